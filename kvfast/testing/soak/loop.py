"""Decode's loop: what pull and push have in common. Post, poll, and give back at once what has ended."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvfast import notifs
from kvfast.demo.pattern import Bytes

from .agents import FaultyAgent, NotifFaults
from .events import Events
from .memory import BlockPool, Share, Witness
from .plan import RequestPlan, request_plan
from .policies import Policy
from .ring import FREED, decode_freed
from .settings import SoakSettings
from .sources import REMOVING, UP, Source, Sources


@dataclass(slots=True, eq=False)
class Request:
    """A request in flight."""

    plan: RequestPlan
    blocks: list[int]
    posted_at: float
    shares: list[Share] = field(default_factory=list)
    asked_at: dict[int, float] = field(default_factory=dict)  # by source
    handles: list[Any] = field(default_factory=list)  # kept, so that none goes without its release


@dataclass(slots=True)
class Counts:
    """What came of the requests."""

    posted: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    twice: int = 0
    handles: int = 0
    injected: dict[str, int] = field(default_factory=dict)
    unsent: int = 0
    bad_notifs: int = 0

    def inject(self, fault: str) -> None:
        """Count one injected fault."""
        self.injected[fault] = self.injected.get(fault, 0) + 1

    @property
    def reported(self) -> int:
        """How many requests have ended."""
        return self.finished + self.failed + self.aborted


class DecodeLoop(ABC):
    """The loop's state. `step` is one engine step."""

    def __init__(
        self,
        settings: SoakSettings,
        agent: Any,
        faulty: FaultyAgent,
        policy: Policy,
        memory: Bytes,
        sources: Sources,
        send_notif: Callable[[str, bytes], object],
        notif_faults: NotifFaults,
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._faulty = faulty
        self.policy = policy
        self._memory = memory
        self._sources = sources
        self._send_notif = send_notif
        self._notif_faults = notif_faults
        self.pool = BlockPool(settings.pool_blocks)
        self.witness = Witness(memory, self.pool, settings.canary_s, time.monotonic())
        self.outstanding: dict[str, Request] = {}
        self.counts = Counts()
        self.unreleased: list[Any] = []
        self._aborts: deque[tuple[float, str]] = deque()
        self._next_heartbeat = 0.0

    def step(self, events: Events, more: bool) -> None:
        """Post what there is room for, poll, and act on what is reported."""
        self._take_notifs()
        events.step(self.counts.posted)
        while more and self._room():
            self._post(request_plan(self._settings, self.counts.posted))
            if self.counts.posted % self._settings.fault_every == 0:
                break  # the fault comes first
        now = time.monotonic()
        while self._aborts and self._aborts[0][0] <= now:
            self._abort(self._aborts.popleft()[1])
        self._poll()
        self._notif_faults.send_late()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._settings.lease_s / 4
            self._heartbeat(now)
        self.witness.check_canaries(now)

    # ---- posting

    def _room(self) -> bool:
        if self.policy.waiting >= self._settings.window:
            return False
        up = self._sources.up
        most = self._settings.max_request_blocks
        return (
            self.counts.posted < self._settings.requests
            and len(self.pool) >= most
            and bool(up)
            and all(len(source.positions) >= most for source in up)
        )

    def _post(self, plan: RequestPlan) -> None:
        now = time.monotonic()
        request = Request(plan, self.pool.take(plan.blocks), now)
        self.outstanding[plan.req_id] = request
        self.counts.posted += 1
        sources = self._sources.up
        # A lease that is extended outlives every fault. The other one begins at the rank, so not before
        # now. Under a WRITE blocks are kept, lease or not.
        short = "lease" in plan.faults and self._settings.mode == "pull"
        read_before = now + self._settings.short_lease_s if short else None
        names = [source.name for source in sources]
        self.policy.track(plan.req_id, request.blocks, names, wrapped=plan.wrapped, read_before=read_before)
        for source in sources:
            positions = source.positions.take(plan.blocks)
            source.kept[positions[0]] = plan.req_id, positions, now
            handles: tuple[None, ...] = (None,) * len(positions)
            request.shares.append(Share(source.column, source.key, source.name, tuple(positions), handles))
        self._start(request, sources)
        for fault in sorted(plan.faults & {"abort", "lease"}):
            self.counts.inject(fault)
        if "abort" in plan.faults:
            self._aborts.append((now + plan.pick % 4 / 1000, plan.req_id))

    @abstractmethod
    def _start(self, request: Request, sources: list[Source]) -> None:
        """Have the request's blocks filled by the ranks."""

    @abstractmethod
    def _ask_again(self, source: Source, now: float) -> None:
        """Ask a rank again for what it, or its answer, must have missed."""

    def _extends_lease(self, request: Request, now: float) -> bool:
        """Tell whether a heartbeat names this request."""
        del now
        return "lease" not in request.plan.faults

    @abstractmethod
    def _take_notif(self, source: Source, message: bytes) -> None:
        """Take a message that is about no freed blocks."""

    # ---- what has ended

    def _abort(self, req_id: str) -> None:
        if req_id in self.outstanding:
            self.policy.abort(req_id)

    def _poll(self) -> None:
        ended = self.policy.poll()
        now = time.monotonic()
        for req_id in ended.finished:
            request = self._end(req_id)
            if request is not None:
                self.counts.finished += 1
                self.witness.check_finished(req_id, request.shares, request.blocks, request.posted_at, now)
                self.pool.give_back(request.blocks)
        for req_ids, name in ((ended.failed, "failed"), (ended.aborted, "aborted")):
            for req_id in req_ids:
                request = self._end(req_id)
                if request is not None:
                    setattr(self.counts, name, getattr(self.counts, name) + 1)
                    self.witness.plant(req_id, request.shares, request.blocks, now)

    def _end(self, req_id: str) -> Request | None:
        request = self.outstanding.pop(req_id, None)
        if request is None:
            self.counts.twice += 1
            return None
        self.unreleased += [handle for handle in request.handles if not handle._released]
        return request

    # ---- notifications

    def _take_notifs(self) -> None:
        for name, messages in self._agent.get_new_notifs().items():
            source = self._sources.named(name.decode() if isinstance(name, bytes) else name)
            for message in messages:
                if source is not None:
                    self._take(source, message)

    def _take(self, source: Source, message: bytes) -> None:
        if not message.startswith(FREED):
            self._take_notif(source, message)
            return
        positions = decode_freed(message)
        source.kept.pop(positions[0], None)
        source.positions.freed(positions)

    def _heartbeat(self, now: float) -> None:
        ids = [r for r, request in self.outstanding.items() if self._extends_lease(request, now)]
        for source in self._sources:
            if source.state not in (UP, REMOVING):  # while a removal waits, requests still need answers
                continue
            if ids:
                self._tell(source, notifs.heartbeat(ids))
            self._ask_again(source, now)

    def _lease_of(self, request: Request) -> float:
        short = "lease" in request.plan.faults
        return self._settings.short_lease_s if short else self._settings.lease_s

    def _tell(self, source: Source, message: bytes) -> None:
        try:
            self._send_notif(source.name, message)
        except Exception:  # it has died, or its connection has: its transfers tell
            self.counts.unsent += 1
