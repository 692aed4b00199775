"""A Sender under a program, and a plain model of what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kvfast import Quarantine, Sender
from tests.property.facts import require
from tests.property.programs import Config
from tests.property.world import DUPLICATE, UNKNOWN, Blocks, Life, Outcome, World, agree


@dataclass(eq=False)
class SendLife(Life):
    """A tracked request."""

    deadline: float = 0.0
    consumers: int = 0
    consumed: int = 0

    @property
    def all_consumed(self) -> bool:
        return 0 < self.consumers <= self.consumed

    @property
    def all_landed(self) -> bool:
        return bool(self.handles) and all(facts.done for facts in self.handles)

    def end(self, now: float) -> str | None:
        """The set that it belongs to once no WRITE is outstanding."""
        if self.begun and not self.failed:
            return "finished"
        return "expired" if now >= self.deadline else None


class SendWorld(World):
    """One Sender."""

    lives: dict[str, SendLife]  # type: ignore[assignment]
    make: ClassVar[Callable[..., Sender]] = Sender

    def __init__(self, config: Config, backend: str, scan: str, clock: Any) -> None:
        super().__init__(config, backend, scan, clock)
        self.subject = self.sender = type(self).make(
            self.agent,
            backend=backend,
            scan=scan,
            quarantine=Quarantine(config.lost_s, config.failed_s),
            clock=clock,
        )
        self.ended: set[str] = set()
        self.unknown_failures = 0
        self.surplus_notifs = 0

    # ---- steps

    def track(self, req_id: str, blocks: Blocks, peer: str | None, within_s: float) -> Outcome:
        known = req_id in self.lives
        outcome = self.attempt(self.sender.track, req_id, blocks, lease_s=within_s, peer=peer)
        agree(outcome, DUPLICATE if known else ("returned", None), f"track {req_id}")
        if not known:
            self.lives[req_id] = SendLife(req_id, blocks, peer, deadline=self.clock() + within_s)
        return outcome

    def post(self, req_id: str, keys: list[int], ways: tuple[str, ...], together: bool) -> Outcome:
        life = self.lives.get(req_id)
        if life is None:
            outcome = self.attempt(self.sender.post, req_id, [lambda: 1 / 0])
            expected = ("returned", False) if req_id in self.ended else UNKNOWN
            agree(outcome, expected, f"post {req_id}, which is not tracked")
            return outcome
        late = self.clock() >= life.deadline
        declined = life.failed or late
        if declined:
            self.seen.add("post declined: failed" if life.failed else "post declined: too late")
        prepares, transfer = self.prepares(life, keys, ways), self.transfer(keys, ways)
        outcome = self.attempt(self.sender.post, req_id, prepares, transfer)
        posted = set(keys) & set(self.facts.live)
        require(4 if life.failed else 6, not (declined and posted), f"post {req_id} was to be declined")
        agree(outcome, ("returned", not declined and set(ways) == {"ok"}), f"post {req_id}")
        life.failed = life.failed or outcome[1] is False
        life.begun = life.begun or bool(self.agent.unreleased & set(keys))
        return self.made(keys, outcome)

    def call(self, method: str, req_id: str) -> Outcome:
        life = self.lives.get(req_id)
        if life is None:
            self.unknown_failures += 1
        else:
            life.failed = True
        return self.attempt(getattr(self.sender, method), req_id, "scripted")

    def notified(self, req_id: str, count: int, failed: bool) -> Outcome:
        life = self.lives.get(req_id)
        if life is None or life.consumed >= count:
            self.surplus_notifs += 1
        else:
            life.consumers = count
            life.consumed += 1
            life.begun = life.begun or life.all_consumed
        return self.attempt(self.sender.notified, req_id, count)

    def heartbeat(self, req_ids: list[str], extend_s: float) -> Outcome:
        for life in filter(None, map(self.lives.get, req_ids)):
            life.deadline = max(life.deadline, self.clock() + extend_s)
        return self.attempt(self.sender.heartbeat, req_ids, extend_s)

    # ---- polling

    def poll(self) -> Outcome:
        results = self.sender.poll()
        self.after()
        self.check_sweep()
        for name in ("finished", "expired"):
            self._check_ends(name, getattr(results, name))
        for life in self.lives.values():
            due = not life.own_outstanding and life.end(self.clock())
            require(2, not due, f"{life.req_id} has drained, and is not in {due}")
        return "returned", results

    def _check_ends(self, name: str, req_ids: frozenset[str]) -> None:
        for req_id in req_ids:
            self.seen.add(name)
            life = self.lives.pop(req_id, None)
            require(2, life is not None, f"{req_id} is in {name}, and not tracked or reported before")
            assert life is not None
            self.ended.add(req_id)
            flying = life.own_outstanding
            require(6, not flying, f"{req_id} is in {name} with WRITEs {flying} outstanding")
            if name == "finished":
                require(4, not life.failed, f"{req_id} is in finished after a failure")
                used = life.all_landed or life.all_consumed
                require(5, used, f"{req_id} is in finished, and nobody has its data")
            agree(name, life.end(self.clock()), f"the end of {req_id}")

    # ---- the end

    def drain(self) -> None:
        """Let all WRITEs end; the leases run out by themselves."""
        self.end_handles()

    def drained(self) -> None:
        super().drained()
        found = self.sender.stats.snapshot()
        agree(found["failures_of_unknown_requests"], self.unknown_failures, "failures of unknown requests")
        agree(found["notifs_after_end"], self.surplus_notifs, "notifications after the end")
