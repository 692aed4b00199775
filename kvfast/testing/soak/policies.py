"""Who says when blocks may be given back: kvfast, or one of two policies to compare it with.

``first-error``
    A request is reported, and its blocks are given back, at its first failed handle.
``release-is-drain``
    A request is reported when all its handles are gone. A handle is gone when it is DONE, or when
    its check raised and its release then succeeded; a refused release is tried again.
``kvfast``
    `kvfast.Receiver`.

The first two are what a serving engine's connector would do in its own loop. Neither owns a handle
for what peers write, so both take a request that fails or is aborted meanwhile for drained.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from kvfast.metric_names import COUNTERS
from kvfast.peers import PeerGuard
from kvfast.receive import Receiver
from kvfast.stats import Stats
from kvfast_ext.contract import Quarantine, SweepResult

from .settings import SoakSettings

Prepare = Callable[[], Any]


class Ended(NamedTuple):
    """What a poll reports."""

    finished: Sequence[str] = ()
    failed: Sequence[str] = ()
    aborted: Sequence[str] = ()


class Policy(Protocol):
    """What decode's loop asks of a policy."""

    def track(
        self, req_id: str, blocks: list[int], peers: list[str], *, wrapped: bool, read_before: float | None
    ) -> None: ...
    def post(
        self, req_id: str, peer: str, prepares: Sequence[Prepare], transfer: Callable[[Any], Any]
    ) -> bool: ...
    def add_notif(self, req_id: str, peer: str, message: bytes) -> None: ...
    def abort(self, req_id: str) -> None: ...
    def expect_writes(self, req_id: str) -> None: ...
    def notified(self, req_id: str, producers: int, *, failed: bool, peer: str) -> None: ...
    def peer_lost(self, peer: str) -> None: ...
    def poll(self) -> Ended: ...
    def remove_peer(self, peer: str) -> None: ...
    def is_removing(self, peer: str) -> bool: ...
    @property
    def waiting(self) -> int:
        """How many requests have not ended, but for those in quarantine."""

    @property
    def left_handles(self) -> int:
        """How many handles it still keeps."""

    @property
    def quarantine(self) -> QuarantineLog: ...
    def counters(self) -> Mapping[str, float]: ...


class QuarantineLog(Stats):
    """Stats that also note which requests got a LOST handle, and how long they then waited."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, tuple[float, int]] = {}
        self.blocks_of: dict[str, int] = {}
        self.seconds: list[float] = []
        self.blocks = 0
        self.handles = 0

    def observe_result(self, result: SweepResult) -> None:
        """Count as ever, and note the LOST ones."""
        super().observe_result(result)
        for failure in result.failures:
            if failure.lost:
                self.handles += 1
                blocks = self.blocks_of.get(failure.req_id, 0)
                self.held.setdefault(failure.req_id, (time.monotonic(), blocks))

    def counted(self) -> dict[str, int]:
        """Return the counters that have counted anything."""
        snapshot = self.snapshot()
        return {name: cast(int, snapshot[name]) for name in COUNTERS if snapshot[name]}

    def summary(self) -> dict[str, float]:
        """Return how many handles, requests and blocks, and for how long."""
        return {
            "handles": self.handles,
            "requests": len(self.seconds),
            "blocks": self.blocks,
            "seconds_min": round(min(self.seconds, default=0.0), 3),
            "seconds_max": round(max(self.seconds, default=0.0), 3),
        }

    def ended(self, req_id: str) -> None:
        """Note that a request was reported."""
        self.blocks_of.pop(req_id, None)
        entry = self.held.pop(req_id, None)
        if entry is not None:
            self.seconds.append(time.monotonic() - entry[0])
            self.blocks += entry[1]


class KvfastPolicy:
    """`kvfast.Receiver`, twice: over the agent itself, and over one that can be made to raise.

    The first polls natively where that is possible; calls to the second all go through Python.
    Both share the agent, and so its guard.
    """

    def __init__(self, agent: Any, faulty: Any, settings: SoakSettings) -> None:
        self.quarantine = QuarantineLog()
        self._guard = PeerGuard(agent, stats=self.quarantine)
        make: dict[str, Any] = {
            "backend": settings.backend,
            "scan": settings.scan,
            "quarantine": Quarantine(lost_s=settings.lost_s),
            "stats": self.quarantine,
            "guard": self._guard,
            "stall_after_s": 1.0,
        }
        self._receivers = Receiver(agent, **make), Receiver(faulty, **make)
        self._of: dict[str, Receiver] = {}

    def track(
        self, req_id: str, blocks: list[int], peers: list[str], *, wrapped: bool, read_before: float | None
    ) -> None:
        receiver = self._of[req_id] = self._receivers[wrapped]
        self.quarantine.blocks_of[req_id] = len(blocks)
        receiver.track(req_id, [blocks], peer=peers, read_before=read_before)

    def post(
        self, req_id: str, peer: str, prepares: Sequence[Prepare], transfer: Callable[[Any], Any]
    ) -> bool:
        return self._of[req_id].post_many(req_id, prepares, transfer, peer=peer)

    def add_notif(self, req_id: str, peer: str, message: bytes) -> None:
        self._of[req_id].add_notif(req_id, peer, message)

    def abort(self, req_id: str) -> None:
        self._of[req_id].abort(req_id)

    def expect_writes(self, req_id: str) -> None:
        self._of[req_id].expect_writes(req_id)

    def notified(self, req_id: str, producers: int, *, failed: bool, peer: str) -> None:
        receiver = self._of.get(req_id, self._receivers[0])
        receiver.notified(req_id, producers, failed=failed, peer=peer)

    def peer_lost(self, peer: str) -> None:
        for receiver in self._receivers:
            receiver.peer_lost(peer)

    def poll(self) -> Ended:
        ended: tuple[list[str], list[str], list[str]] = [], [], []
        for receiver in self._receivers:
            results = receiver.poll()
            for into, some in zip(ended, (results.finished, results.failed, results.aborted)):
                into.extend(sorted(some))
        for req_id in (*ended[0], *ended[1], *ended[2]):
            self._of.pop(req_id, None)
            self.quarantine.ended(req_id)
        return Ended(*ended)

    def remove_peer(self, peer: str) -> None:
        self._guard.remove(peer)

    def is_removing(self, peer: str) -> bool:
        return self._guard.is_removing(peer)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._receivers)) - len(self.quarantine.held)

    @property
    def left_handles(self) -> int:
        gauges = [receiver._gauges() for receiver in self._receivers]
        return int(sum(g["outstanding_handles"] + g["retained_handles"] for g in gauges))

    def counters(self) -> Mapping[str, float]:
        return self.quarantine.counted()


@dataclass(slots=True, eq=False)
class _Request:
    peers: list[str]
    handles: list[Any] = field(default_factory=list)
    notifs: list[tuple[str, bytes]] = field(default_factory=list)
    failed: bool = False
    aborted: bool = False
    reported: bool = False
    posted: bool = False
    expects: bool = False
    ended: set[str] = field(default_factory=set)
    producers: int = 0

    @property
    def landed(self) -> bool:
        """Whether all that it waits for has come."""
        if self.expects:
            return 0 < self.producers <= len(self.ended)
        return self.posted and not self.handles


class HandlePolicy:
    """``first-error`` and ``release-is-drain``: one loop, and the two places where they differ."""

    def __init__(self, agent: Any, faulty: Any, settings: SoakSettings) -> None:
        self._agent = agent
        self._faulty = faulty
        self._at_first_error = settings.policy == "first-error"
        self._requests: dict[str, _Request] = {}
        self._failed_count = 0
        self.quarantine = QuarantineLog()

    def track(
        self, req_id: str, blocks: list[int], peers: list[str], *, wrapped: bool, read_before: float | None
    ) -> None:
        del blocks, wrapped, read_before
        self._requests[req_id] = _Request(peers)

    def post(
        self, req_id: str, peer: str, prepares: Sequence[Prepare], transfer: Callable[[Any], Any]
    ) -> bool:
        del peer
        request = self._requests[req_id]
        request.posted = True
        prepared: list[Any] = []
        try:
            prepared.extend(prepare() for prepare in prepares)
            while prepared:
                transfer(prepared[0])
                request.handles.append(prepared.pop(0))
        except Exception:
            request.failed = True
            for handle in prepared:
                release(self._faulty, handle)
        return not request.failed

    def add_notif(self, req_id: str, peer: str, message: bytes) -> None:
        self._requests[req_id].notifs.append((peer, message))

    def abort(self, req_id: str) -> None:
        self._requests[req_id].aborted = True

    def expect_writes(self, req_id: str) -> None:
        self._requests[req_id].expects = True

    def notified(self, req_id: str, producers: int, *, failed: bool, peer: str) -> None:
        request = self._requests.get(req_id)
        if request is not None:
            request.producers = producers
            request.ended.add(peer)
            request.failed |= failed

    def peer_lost(self, peer: str) -> None:
        # For requests with own handles, these tell.
        for request in self._requests.values():
            if request.expects and peer in request.peers and peer not in request.ended:
                request.failed = True

    def poll(self) -> Ended:
        finished: list[str] = []
        failed: list[str] = []
        aborted: list[str] = []
        for req_id, request in list(self._requests.items()):
            self._check(request)
            drained = request.landed or (not request.handles and (request.failed or request.aborted))
            if request.failed and (drained or self._at_first_error):
                self._report(req_id, request, failed)
            elif request.aborted and drained:
                self._report(req_id, request, aborted)
            elif drained:
                self._report(req_id, request, finished)
            if request.reported and not request.handles:
                del self._requests[req_id]
        return Ended(finished, failed, aborted)

    def remove_peer(self, peer: str) -> None:
        with contextlib.suppress(Exception):
            self._agent.remove_remote_agent(peer)

    def is_removing(self, peer: str) -> bool:
        del peer
        return False

    @property
    def waiting(self) -> int:
        return len(self._requests)

    @property
    def left_handles(self) -> int:
        return sum(len(request.handles) for request in self._requests.values())

    def counters(self) -> Mapping[str, float]:
        return {"failed_transfers": self._failed_count}

    def _report(self, req_id: str, request: _Request, into: list[str]) -> None:
        if request.reported:
            return
        request.reported = True
        into.append(req_id)
        if not request.failed:
            for peer, message in request.notifs:
                with contextlib.suppress(Exception):
                    self._agent.send_notif(peer, message)

    def _check(self, request: _Request) -> None:
        if sweep_handles(self._faulty, request.handles, forgets_refused=self._at_first_error):
            self._failed_count += not request.failed
            request.failed = True


def sweep_handles(agent: Any, handles: list[Any], *, forgets_refused: bool) -> bool:
    """Release and take out what is no longer in progress; tell whether any of it was not DONE.

    A refused release: the one policy forgets the handle, the other one tries again.
    """
    failed = False
    for handle in list(handles):
        try:
            state = agent.check_xfer_state(handle)
        except Exception:
            state = "ERR"
        if state == "PROC":
            continue
        failed |= state != "DONE"
        if release(agent, handle) or forgets_refused:
            handles.remove(handle)
    return failed


def release(agent: Any, handle: Any) -> bool:
    """Release a handle; tell whether that was not refused."""
    try:
        agent.release_xfer_handle(handle)
    except Exception:
        return False
    return True


def make_policy(agent: Any, faulty: Any, settings: SoakSettings) -> Policy:
    """Return the policy that the settings name."""
    kind: Any = KvfastPolicy if settings.policy == "kvfast" else HandlePolicy
    policy: Policy = kind(agent, faulty, settings)
    return policy
