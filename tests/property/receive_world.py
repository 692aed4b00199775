"""A Receiver under a program, and a plain model of what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvfast import Quarantine, Receiver
from tests.property.facts import require
from tests.property.programs import Config
from tests.property.world import DUPLICATE, UNKNOWN, Blocks, Life, Outcome, World, agree

ENDS = ("finished", "failed", "aborted")


@dataclass(eq=False)
class ReceiveLife(Life):
    """A tracked request."""

    deadline: float = 0.0  # read_before
    aborted: bool = False
    told: bool = False
    producers: int = 0
    ended_producers: int = 0
    peer_lost: bool = False
    since: float | None = None
    stalled: bool = False
    notifs: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def writes_outstanding(self) -> bool:
        if not (self.told or self.ended_producers) or self.peer_lost:
            return False
        return self.ended_producers < self.producers or not self.producers

    @property
    def outstanding(self) -> bool:
        return bool(self.own_outstanding) or self.writes_outstanding

    @property
    def end(self) -> str | None:
        """The set that it belongs to once nothing is outstanding."""
        if self.aborted:
            return "aborted"
        if self.failed:
            return "failed"
        return "finished" if self.begun else None


class ReceiveWorld(World):
    """One Receiver."""

    lives: dict[str, ReceiveLife]  # type: ignore[assignment]
    make: ClassVar[Callable[..., Receiver]] = Receiver

    def __init__(self, config: Config, backend: str, scan: str, clock: Any) -> None:
        super().__init__(config, backend, scan, clock)
        self.subject = self.receiver = type(self).make(
            self.agent,
            backend=backend,
            scan=scan,
            quarantine=Quarantine(config.lost_s, config.failed_s),
            stall_after_s=config.stall_after_s,
            clock=clock,
        )
        self.reports: list[str] = []  # failures told and not taken yet
        self.unknown_failures = 0
        self.removing: set[str] = set()
        self.notif_owners: dict[bytes, ReceiveLife] = {}
        self.sent_seen = 0
        self.removals_seen = 0

    # ---- steps

    def track(self, req_id: str, blocks: Blocks, peer: str | None, within_s: float) -> Outcome:
        known = req_id in self.lives
        deadline = self.clock() + within_s
        outcome = self.attempt(self.receiver.track, req_id, blocks, peer=peer, read_before=deadline)
        agree(outcome, DUPLICATE if known else ("returned", None), f"track {req_id}")
        if not known:
            self.lives[req_id] = ReceiveLife(req_id, blocks, peer, deadline=deadline)
        return outcome

    def post(self, req_id: str, keys: list[int], ways: tuple[str, ...], together: bool) -> Outcome:
        life = self.lives.get(req_id)
        if life is None:
            return self.unknown(self.receiver.post, req_id, lambda: None)
        self.take_reports()
        declined = self._declines(life)
        prepares, transfer = self.prepares(life, keys, ways), self.transfer(keys, ways)
        if together:
            outcome = self.attempt(self.receiver.post_many, req_id, prepares, transfer)
        else:
            outcome = "returned", all(self.receiver.post(req_id, prepare, transfer) for prepare in prepares)
        require(4, not declined or not set(keys) & set(self.facts.live), f"post {req_id} was to be declined")
        agree(outcome, ("returned", not declined and set(ways) == {"ok"}), f"post {req_id}")
        self._after_post(life, keys, failed=not outcome[1] and not life.aborted)
        return self.made(keys, outcome)

    def _declines(self, life: ReceiveLife) -> bool:
        if life.failed or life.aborted:
            self.seen.add("post declined: failed or aborted")
            return True
        if self.clock() > life.deadline:
            self.seen.add("post declined: too late")
            return True
        if life.peer in self.removing:
            self.seen.add("post declined: peer is being removed")
            return True
        return False

    def _after_post(self, life: ReceiveLife, keys: list[int], *, failed: bool) -> None:
        life.failed = life.failed or failed
        if self.agent.unreleased & set(keys):
            self._begin(life)

    def _begin(self, life: ReceiveLife) -> None:
        life.begun = True
        if life.since is None:
            life.since = self.clock()

    def notif(self, req_id: str, peer: str, message: bytes) -> Outcome:
        life = self.lives.get(req_id)
        if life is None:
            return self.unknown(self.receiver.add_notif, req_id, peer, message)
        life.notifs.append((peer, message))
        self.notif_owners[message] = life
        return self.attempt(self.receiver.add_notif, req_id, peer, message)

    def call(self, method: str, req_id: str) -> Outcome:
        if method == "report_failure":
            self.reports.append(req_id)
            return self.attempt(self.receiver.report_failure, req_id, "scripted")
        arguments = (req_id, "scripted") if method == "fail" else (req_id,)
        life = self.lives.get(req_id)
        if life is None:
            return self.unknown(getattr(self.receiver, method), *arguments)
        if method == "fail":
            life.failed = True
        elif method == "abort":
            life.aborted = True
        elif method == "complete":
            life.begun = True
        else:
            life.told = True
            self._begin(life)
        return self.attempt(getattr(self.receiver, method), *arguments)

    def extend(self, req_id: str, by_s: float) -> Outcome:
        deadline = self.clock() + by_s
        life = self.lives.get(req_id)
        if life is None:
            return self.unknown(self.receiver.extend, req_id, deadline)
        life.deadline = max(life.deadline, deadline)
        return self.attempt(self.receiver.extend, req_id, deadline)

    def notified(self, req_id: str, count: int, failed: bool) -> Outcome:
        life = self.lives.get(req_id)
        if life is not None:
            life.failed = life.failed or failed
            life.producers = count
            life.ended_producers = min(life.ended_producers + 1, count)
        return self.attempt(self.receiver.notified, req_id, count, failed=failed)

    def peer_call(self, method: str, peer: str) -> Outcome:
        if method == "remove_peer":
            self.removing.add(peer)
            return self.attempt(self.receiver.remove_peer, peer)
        self.lose(peer)
        return self.attempt(self.receiver.peer_lost, peer)

    def lose(self, peer: str) -> None:
        for life in self.lives.values():
            if life.peer == peer:
                waits = not (life.begun or life.failed or life.aborted)
                if waits or life.writes_outstanding:
                    life.failed = True
                    self.bereft[life.req_id] += 1
                life.peer_lost = life.peer_lost or life.told or bool(life.ended_producers)

    def unknown(self, call: Any, *args: Any) -> Outcome:
        outcome = self.attempt(call, *args)
        agree(outcome, UNKNOWN, f"{call.__name__} of a request that is not tracked")
        return outcome

    # ---- polling

    def poll(self) -> Outcome:
        reading = [life for life in self.lives.values() if life.own_outstanding]
        results = self.receiver.poll()
        before = dict(self.lives)
        self.after()
        self.check_sweep()
        self._expire(reading)
        self.take_reports()
        for name in ENDS:
            self._check_ends(name, getattr(results, name))
        self._check_blocks(results.invalid_block_ids, [before[req_id] for req_id in results.failed])
        self._check_sent([life for req_id, life in before.items() if req_id not in self.lives])
        self._check_left()
        self._check_stalled(results.stalled)
        return "returned", results

    def _expire(self, reading: list[ReceiveLife]) -> None:
        """Fail what has read to its end only now that the producer's lease is over."""
        for life in reading:
            late = not life.own_outstanding and self.clock() > life.deadline
            if late and not (life.failed or life.aborted):
                life.failed = True
                self.seen.add("read too late")

    def take_reports(self) -> None:
        """Fail the requests that `report_failure` named."""
        for req_id in self.reports:
            if req_id in self.lives:
                self.lives[req_id].failed = True
            else:
                self.unknown_failures += 1
        self.reports.clear()

    def after(self) -> None:
        super().after()
        self._check_removals()

    def after_step(self) -> None:
        super().after_step()
        require(4, len(self.agent.sent) == self.sent_seen, "a notification was sent outside of a poll")

    def _check_ends(self, name: str, req_ids: frozenset[str]) -> None:
        for req_id in req_ids:
            self.seen.add(name)
            life = self.lives.pop(req_id, None)
            require(2, life is not None, f"{req_id} is in {name}, and not tracked or reported before")
            assert life is not None
            require(1, not life.own_outstanding, f"{req_id} is in {name} with handles {life.own_outstanding}")
            require(1, not life.writes_outstanding, f"{req_id} is in {name}, and may be written to")
            require(4, not (name == "finished" and life.failed), f"{req_id} is in finished after a failure")
            agree(name, life.end, f"the end of {req_id}")

    def _check_blocks(self, named: Blocks, failed: list[ReceiveLife]) -> None:
        held = {block for life in self.lives.values() for group in life.blocks for block in group}
        early = sorted(held & {block for group in named for block in group})
        require(1, not early, f"blocks {early} are named, and their requests have not ended")
        groups = [sorted(block for life in failed for block in life.blocks[group]) for group in range(2)]
        agree([sorted(group) for group in named], groups if failed else [], "invalid blocks")

    def _check_sent(self, ended: list[ReceiveLife]) -> None:
        sent = self.agent.sent[self.sent_seen :]
        self.sent_seen = len(self.agent.sent)
        for peer, message in sent:
            life = self.notif_owners.pop(message, None)
            require(4, life is not None, f"{message!r} was sent twice")
            assert life is not None
            require(1, life in ended, f"{message!r} was sent before the end")
            require(4, not life.failed, f"{message!r} was sent to {peer} after a failure")
            self.seen.add("notif sent")
        well = [life for life in ended if not life.failed]
        expected = [notif for life in well for notif in life.notifs if notif[0] not in self.deaf_peers]
        agree(sorted(sent), sorted(expected), "notifications")

    def _check_left(self) -> None:
        for life in self.lives.values():
            drained = not life.outstanding and life.end
            require(2, not drained, f"{life.req_id} has drained, and is not in {life.end}")

    def _check_stalled(self, stalled: frozenset[str]) -> None:
        expected = set()
        for life in self.lives.values():
            after_s = self.config.stall_after_s
            if after_s is None or life.since is None or life.stalled:
                continue
            if self.clock() > life.since + after_s:
                life.stalled = True
                expected.add(life.req_id)
                self.seen.add("stalled")
        agree(set(stalled), expected, "stalled")

    def _check_removals(self) -> None:
        for peer in self.agent.removed[self.removals_seen :]:
            held = [facts.key for facts in self.facts.live.values() if facts.connection[0] == peer]
            require(3, not held, f"{peer} was removed while it had handles {held}")
            mine = [life for life in self.lives.values() if life.peer == peer]
            writing = [life.req_id for life in mine if life.writes_outstanding]
            require(1, not writing, f"{peer} was removed while it was writing for {writing}")
            self.removing.discard(peer)
            self.seen.add("peer removed")
        self.removals_seen = len(self.agent.removed)

    # ---- the end

    def drain(self) -> None:
        """Let everything end."""
        self.end_handles()
        for life in list(self.lives.values()):
            if life.told:
                while life.writes_outstanding:
                    self.notified(life.req_id, max(life.producers, 1), False)
            elif life.writes_outstanding or life.end is None:
                self.call("abort", life.req_id)
                while life.writes_outstanding:
                    self.notified(life.req_id, life.producers, False)

    def drained(self) -> None:
        super().drained()
        agree(sorted(self.removing), [], "peers never removed")
        counted = self.receiver.stats.snapshot()["failures_of_unknown_requests"]
        agree(counted, self.unknown_failures, "failures of requests that were not tracked")
