"""Random programs for tables: what to add, what becomes of it, when to sweep; and how to run them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from tests.backend.doubles import DISCONNECT, DONE, LOST, PROC
from tests.backend.engines import SIZE
from tests.backend.model import Model, Seen
from tests.backend.rig import Rig, failures

PEERS: Final = (None, "p", "q")
Action = tuple[Any, ...]

adds = st.tuples(st.just("add"), st.integers(0, 4), st.integers(0, 4), st.sampled_from(PEERS))
refusals = st.tuples(st.sampled_from(["refuse", "accept"]), st.integers(0, SIZE - 1))


def ends(codes: tuple[int, ...]) -> st.SearchStrategy[Action]:
    return st.tuples(st.just("end"), st.integers(0, SIZE - 1), st.sampled_from(codes))


def programs(
    actions: st.SearchStrategy[Action], most_sweeps: int = 8
) -> st.SearchStrategy[list[list[Action]]]:
    """Return programs: for each sweep, what happens before it."""
    return st.lists(st.lists(actions, max_size=8), min_size=1, max_size=most_sweeps)


ANY_CODE: Final = (DONE, DONE, DONE, LOST, DISCONNECT, -3, -9)
anything = programs(st.one_of(adds, adds, ends(ANY_CODE), ends(ANY_CODE), refusals))
terminal = programs(st.one_of(adds, ends((DONE, DONE, -3, DISCONNECT))), most_sweeps=12)


@dataclass
class Machine:
    """Runs one program on several tables and the model, step by step."""

    rigs: list[Rig]
    model: Model
    step_s: float
    free: list[int] = field(default_factory=lambda: list(range(SIZE)))
    statuses: list[int] = field(default_factory=lambda: [PROC] * SIZE)
    refused: set[int] = field(default_factory=set)

    def run(self, before: list[Action], *, reuse: bool = True) -> tuple[Seen, list[Seen]]:
        """Do the actions and sweep; return what the model saw and what each table saw.

        With `reuse`, ids that the model has released are released in every table, and given out again.
        """
        for action in before:
            getattr(self, "_" + action[0])(*action[1:])
        clock = self.rigs[0].clock.now + self.step_s
        was = set(self.model.handles)
        expected = self.model.sweep(clock, self.statuses, self.refused)
        seen = [observe(rig, self.step_s, self.model.lives) for rig in self.rigs]
        if reuse:
            self._give_back(was - set(self.model.handles))
        return expected, seen

    def finish(self) -> None:
        """End everything: tables must end up empty, with each handle released."""
        self.refused.clear()
        for rig in self.rigs:
            rig.end()
            assert rig.engine.violations == []

    def _add(self, request: int, count: int, peer: str | None) -> None:
        ids, self.free = self.free[:count], self.free[count:]
        self.model.add(f"r{request}", ids, peer)
        for rig in self.rigs:
            rig.add(f"r{request}", *ids, peer=peer)

    def _end(self, which: int, status: int) -> None:
        # A handle ends once; which one is a matter of how many there are.
        flying = [h for h, item in self.model.handles.items() if self.statuses[h] == PROC]
        if flying:
            handle = flying[which % len(flying)]
            self.statuses[handle] = status
            for rig in self.rigs:
                rig.engine.set(handle, status)

    def _refuse(self, handle: int) -> None:
        self.refused.add(handle)
        for rig in self.rigs:
            rig.engine.refuse(handle, -3)

    def _accept(self, handle: int) -> None:
        self.refused.discard(handle)
        for rig in self.rigs:
            rig.engine.refuse(handle, None)

    def _give_back(self, released: set[int]) -> None:
        for handle in sorted(released):
            self.statuses[handle] = PROC
            self.free.insert(0, handle)  # soonest used again
            for rig in self.rigs:
                assert rig.released(handle) == [1], f"handle {handle} in {rig.backend.__name__}"
                rig.engine.reuse(handle)
                rig.added.remove(handle)


def observe(rig: Rig, after: float, peers: Any) -> Seen:
    """Sweep a table and look at all that it shows."""
    result = rig.sweep(after)
    table = rig.table
    left = {request: sorted(table.handles(request)) for request in table}
    assert table.handle_count == len(table.handle_ids) == sum(map(len, left.values()))
    assert sorted(table.handle_ids.tolist()) == sorted(handle for ids in left.values() for handle in ids)
    return Seen(
        sorted(result.done),
        sorted(result.failed),
        failures(result),
        len(result.transfers),
        result.retained,
        result.blind_releases,
        result.release_retries,
        left,
        sorted(table.quarantined),
        {peer: table.outstanding_of(peer) for peer in peers},
    )
