"""Who says, at a push producer, when source blocks may be given back; see `policies`.

``first-error`` and ``release-is-drain`` differ as they do at the other end. Both give blocks back
when the lease is over, whatever still reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kvfast.send import Sender
from kvfast_ext.contract import Quarantine

from .policies import Prepare, QuarantineLog, release, sweep_handles
from .settings import SoakSettings

Transfer = Callable[[Any], Any]


class Sent(NamedTuple):
    """What a poll reports."""

    finished: Sequence[str] = ()
    expired: Sequence[str] = ()


class SendPolicy(Protocol):
    """What a rank's loop asks of a policy."""

    threaded: bool
    """Whether `post` may be called by a writer thread."""

    def track(self, req_id: str, blocks: list[int], lease_s: float, *, wrapped: bool) -> None: ...
    def post(self, req_id: str, peer: str, prepares: Sequence[Prepare], transfer: Transfer) -> bool: ...
    def heartbeat(self, req_ids: Sequence[str], extend_s: float) -> None: ...
    def poll(self) -> Sent: ...
    @property
    def tracked(self) -> int:
        """How many requests have not ended."""

    @property
    def left_handles(self) -> int:
        """How many handles it still keeps."""

    @property
    def quarantine(self) -> QuarantineLog: ...


class KvfastSendPolicy:
    """`kvfast.Sender`, twice: over the agent itself, and over one that can be made to raise."""

    threaded = True

    def __init__(self, agent: Any, faulty: Any, settings: SoakSettings) -> None:
        self.quarantine = QuarantineLog()
        quarantine = Quarantine(lost_s=settings.lost_s)
        make: dict[str, Any] = {"backend": settings.backend, "scan": settings.scan, "quarantine": quarantine}
        first = Sender(agent, stats=self.quarantine, **make)
        self._senders = first, Sender(faulty, stats=self.quarantine, guard=first.guard, **make)
        self._of: dict[str, Sender] = {}

    def track(self, req_id: str, blocks: list[int], lease_s: float, *, wrapped: bool) -> None:
        sender = self._of[req_id] = self._senders[wrapped]
        self.quarantine.blocks_of[req_id] = len(blocks)
        sender.track(req_id, [blocks], lease_s=lease_s)

    def post(self, req_id: str, peer: str, prepares: Sequence[Prepare], transfer: Transfer) -> bool:
        sender = self._of.get(req_id)
        return sender is not None and sender.post(req_id, prepares, transfer, peer=peer)

    def heartbeat(self, req_ids: Sequence[str], extend_s: float) -> None:
        for sender in self._senders:
            sender.heartbeat(req_ids, extend_s)

    def poll(self) -> Sent:
        finished: list[str] = []
        expired: list[str] = []
        for sender in self._senders:
            results = sender.poll()
            finished += sorted(results.finished)
            expired += sorted(results.expired)
        for req_id in (*finished, *expired):
            self._of.pop(req_id, None)
            self.quarantine.ended(req_id)
        return Sent(finished, expired)

    @property
    def tracked(self) -> int:
        return sum(map(len, self._senders))

    @property
    def left_handles(self) -> int:
        gauges = self.quarantine.snapshot()
        return int(gauges["outstanding_handles"] + gauges["retained_handles"])  # type: ignore[operator]


@dataclass(slots=True, eq=False)
class _Request:
    deadline: float
    handles: list[Any] = field(default_factory=list)
    posted: bool = False
    failed: bool = False
    reported: bool = False


class HandleSendPolicy:
    """``first-error`` and ``release-is-drain``."""

    threaded = False

    def __init__(self, agent: Any, faulty: Any, settings: SoakSettings) -> None:
        del agent
        self._faulty = faulty
        self._at_first_error = settings.policy == "first-error"
        self._requests: dict[str, _Request] = {}
        self.quarantine = QuarantineLog()

    def track(self, req_id: str, blocks: list[int], lease_s: float, *, wrapped: bool) -> None:
        del blocks, wrapped
        self._requests[req_id] = _Request(time.monotonic() + lease_s)

    def post(self, req_id: str, peer: str, prepares: Sequence[Prepare], transfer: Transfer) -> bool:
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

    def heartbeat(self, req_ids: Sequence[str], extend_s: float) -> None:
        deadline = time.monotonic() + extend_s
        for req_id in req_ids:
            request = self._requests.get(req_id)
            if request is not None:
                request.deadline = max(request.deadline, deadline)

    def poll(self) -> Sent:
        finished: list[str] = []
        expired: list[str] = []
        now = time.monotonic()
        for req_id, request in list(self._requests.items()):
            self._check(request)
            drained = request.posted and not request.handles
            if not request.reported and (drained or now > request.deadline or self._gives_up(request)):
                request.reported = True
                (finished if drained and not request.failed else expired).append(req_id)
            if request.reported and not request.handles:
                del self._requests[req_id]
        return Sent(finished, expired)

    @property
    def tracked(self) -> int:
        return len(self._requests)

    @property
    def left_handles(self) -> int:
        return sum(len(request.handles) for request in self._requests.values())

    def _gives_up(self, request: _Request) -> bool:
        return request.failed and self._at_first_error

    def _check(self, request: _Request) -> None:
        if sweep_handles(self._faulty, request.handles, forgets_refused=self._at_first_error):
            request.failed = True


def make_send_policy(agent: Any, faulty: Any, settings: SoakSettings) -> SendPolicy:
    """Return the policy that the settings name."""
    kind: Any = KvfastSendPolicy if settings.policy == "kvfast" else HandleSendPolicy
    policy: SendPolicy = kind(agent, faulty, settings)
    return policy
