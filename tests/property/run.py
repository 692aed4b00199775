"""Run one program in several worlds at once, and compare them: invariant 7.

A request is *excused* from the comparison of scans, for the rest of the program, once

* a quarantine or a release retry runs for it in one of the worlds: its clock starts when the failure is
  noticed, which may be later in ``scan="watch"``;
* a call for it did different things: a post is declined once a failure is noticed;
* the death of its peer was noticed in one world and not in the other.

Backends are compared without any excuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvfast.metric_names import COUNTERS
from kvfast.testing import FakeClock
from tests.property.facts import require
from tests.property.programs import (
    PEERS,
    Advance,
    Call,
    Deaf,
    Extend,
    Heartbeat,
    Kill,
    Notif,
    Notified,
    Pass,
    PeerCall,
    Poll,
    Post,
    Program,
    Script,
    SetState,
    Step,
    Track,
)
from tests.property.world import Outcome, World

SOON_S = 3.03125
LATE_S = 40.03125
NOBODY = 0  # no handle's id
Action = tuple[str, tuple[Any, ...], str | None]  # a World's method, its arguments, the request it is about


class Run:
    """A program's way through its worlds. The first world is the one that others are compared with."""

    def __init__(self, program: Program, worlds: Sequence[World], clock: FakeClock) -> None:
        self.program = program
        self.worlds = worlds
        self.clock = clock
        self.excused: set[str] = set()
        self.compared = 0  # ends that were compared between scans
        self._serial = 0

    def run(self) -> None:
        """Run all steps; let everything end; look at what is left."""
        for step in self.program.steps:
            self.step(step)
        self._finish()

    def step(self, step: Step) -> None:
        """Do one step in every world, and compare."""
        if isinstance(step, Pass):
            return
        if isinstance(step, Advance):
            self.clock.advance(step.seconds)
            return
        method, args, req_id = self._action(step)
        outcomes = [getattr(world, method)(*args) for world in self.worlds]
        if method != "poll":
            for world in self.worlds:
                world.after_step()
        self._compare(method, req_id, outcomes)

    # ---- from a step to what is done

    def _action(self, step: Step) -> Action:
        match step:
            case Track(req, groups, peer, short):
                within_s = SOON_S if short else LATE_S
                by = None if peer is None else PEERS[peer]
                return "track", (f"R{req}", self._blocks(groups), by, within_s), f"R{req}"
            case Post(req, ways, together):
                return "post", (f"R{req}", self._free_keys(len(ways)), ways, together), f"R{req}"
            case Notif(req, peer):
                self._serial += 1
                return "notif", (f"R{req}", PEERS[peer], f"R{req}:{self._serial}".encode()), f"R{req}"
            case Call(method, req):
                return "call", (method, f"R{req}"), f"R{req}"
            case Notified(req, failed):
                return "notified", (f"R{req}", 1 + req % 2, failed), f"R{req}"
            case Extend(req, by_s):
                return "extend", (f"R{req}", by_s), f"R{req}"
            case Heartbeat(reqs, extend_s):
                return "heartbeat", ([f"R{req}" for req in reqs], extend_s), None
            case _:
                return self._agent_action(step)

    def _agent_action(self, step: Step) -> Action:
        match step:
            case PeerCall(method, peer):
                return "peer_call", (method, PEERS[peer]), None
            case SetState(pick, state):
                key = self._picked(pick)
                return "set_states", ({key: state} if self._may_end(key) else {},), None
            case Kill(peer):
                return "set_states", (self._killed(PEERS[peer]),), None
            case Script(method, pick):
                return "script", (method, self._picked(pick)), None
            case Deaf(peer, refuse):
                return "deaf", (PEERS[peer], refuse), None
            case Poll():
                return "poll", (), None
            case _:
                raise TypeError(f"not a step: {step!r}")

    def _blocks(self, groups: tuple[int, int]) -> list[list[int]]:
        self._serial += 1
        first = self._serial * 10
        return [list(range(first, first + groups[0])), list(range(first + 5, first + 5 + groups[1]))]

    def _unreleased(self) -> list[int]:
        return sorted(set().union(*(world.facts.live for world in self.worlds)))

    def _free_keys(self, count: int) -> list[int]:
        # The lowest, so that ids are used again, as NIXL does.
        taken = set(self._unreleased())
        return [key for key in range(101, 101 + len(taken) + count) if key not in taken][:count]

    def _picked(self, pick: int) -> int:
        keys = self._unreleased()
        return keys[pick % len(keys)] if keys else NOBODY

    def _may_end(self, key: int) -> bool:
        # A transfer ends once. What was noticed may change its word afterwards; what was not may not, or
        # a scan that looks later would see another end.
        return not any(world.unnoticed(key) for world in self.worlds)

    def _killed(self, peer: str) -> dict[int, str]:
        keys = sorted(set().union(*(world.in_flight_to(peer) for world in self.worlds)))
        return {
            key: "NOT_FOUND" if number else "DISCONNECT"
            for number, key in enumerate(filter(self._may_end, keys))
        }

    # ---- comparing

    def _compare(self, method: str, req_id: str | None, outcomes: list[Outcome]) -> None:
        self._compare_backends(method, outcomes)
        if method == "poll":
            self._excuse_troubled()
            self._compare_scans(outcomes)
        elif req_id is not None and len({repr(outcome) for outcome in outcomes}) > 1:
            self.excused.add(req_id)

    def _compare_backends(self, method: str, outcomes: list[Outcome]) -> None:
        first: dict[str, tuple[World, Outcome]] = {}
        for world, outcome in zip(self.worlds, outcomes):
            other, expected = first.setdefault(world.scan, (world, outcome))
            require(7, outcome == expected, f"{method}: {world.name} gave {outcome}, {other.name} {expected}")
            require(
                7,
                sorted(world.agent.released) == sorted(other.agent.released)
                and world.agent.sent == other.agent.sent
                and world.agent.removed == other.agent.removed,
                f"{method}: {world.name} and {other.name} have done different things with their agents",
            )

    def _excuse_troubled(self) -> None:
        for world in self.worlds:
            self.excused |= world.troubled()
            first = self.worlds[0].bereft
            self.excused |= {
                req_id for req_id in world.bereft | first if world.bereft[req_id] != first[req_id]
            }

    def _compare_scans(self, outcomes: list[Outcome]) -> None:
        ends = [self._ends(results) for _, results in outcomes]
        self.compared += sum(map(len, ends[0].values()))
        for world, found in zip(self.worlds[1:], ends[1:]):
            require(7, found == ends[0], f"{world.name} reported {found}, {self.worlds[0].name} {ends[0]}")

    def _ends(self, results: Any) -> dict[str, set[str]]:
        names = ("finished", "failed", "aborted", "expired")
        return {name: set(getattr(results, name, ())) - self.excused for name in names}

    # ---- the end

    def _finish(self) -> None:
        for world in self.worlds:
            world.drain()
        for _ in range(3):  # notice, wait for the quarantine, and once more for what waited for that
            self.step(Poll())
            self.clock.advance(1000.0)
        for world in self.worlds:
            world.drained()
        self._compare_counts()

    def _compare_counts(self) -> None:
        first: dict[str, dict[str, Any]] = {}
        for world in self.worlds:
            snapshot = world.subject.stats.snapshot()
            counts = {name: snapshot[name] for name in COUNTERS}
            expected = first.setdefault(world.scan, counts)
            require(7, counts == expected, f"{world.name} counted {counts}, the other backend {expected}")
