"""What Receiver and Sender have in common: an agent, a transfer table, an owner thread, an end."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, Protocol

from kvfast_ext import backend_name, select_backend, states
from kvfast_ext.contract import HandleFailure, Ops, Quarantine, SweepResult, check_backend, merged
from kvfast_ext.errors import ClosedError, WrongThreadError
from kvfast_ext.loglater import LogLater
from kvfast_ext.table import NO_TRANSFERS

from . import checks
from .peers import PeerGuard
from .posting import Posted, Starter, keep_handles
from .ratelimit import RateLimit
from .stats import Stats

logger = logging.getLogger(__name__)

# Between the sweeps of a close: short against any transfer worth waiting for, long against a sweep.
CLOSE_INTERVAL_S: Final = 0.001

DISCONNECT: Final = states.name_of(states.REMOTE_DISCONNECT)


class TrackedRequest(Protocol):
    """What the gauges need to know of a request."""

    @property
    def req_id(self) -> str: ...
    @property
    def blocks(self) -> checks.Blocks: ...
    @property
    def tracked_at(self) -> float: ...


class Poller:
    """The common part. Not public: `kvfast.receive.Receiver` and `kvfast.send.Sender` are.

    The owner is the thread that makes the object.
    """

    def __init__(
        self,
        agent: Any,
        *,
        backend: str | ModuleType,
        scan: str,
        quarantine: Quarantine,
        clock: Callable[[], float],
        sleep: Callable[[float], object],
        stats: Stats | None,
        guard: PeerGuard | None,
    ) -> None:
        module = select_backend(backend) if isinstance(backend, str) else _checked_backend(backend)
        self._agent = agent
        self._clock: Final = checks.function("clock", clock)
        self._sleep: Final = checks.function("sleep", sleep)
        self._pop: Final = module.pop_done_transfers
        self._ops: Final[Ops] = module.bind(agent)
        self._table: Final = module.TransferTable(self._ops, scan=scan, quarantine=quarantine, clock=clock)
        self.stats: Final = stats if stats is not None else Stats(clock=clock)
        self.guard: Final = guard if guard is not None else PeerGuard(agent, stats=self.stats, clock=clock)
        self._limit: Final = RateLimit(clock=clock)
        self._lines: Final = LogLater()
        self._starter: Final = Starter(self._ops, self._table.admit, self._lines)
        self._owner: Final = threading.get_ident()
        self._now = clock()
        self._retained = 0
        self._posting_to: Final[Counter[str | None]] = Counter()
        # A handle that is dropped releases itself: those of a post that was broken off stay here for good.
        self._posts: Final[dict[int, Posted]] = {}
        self._untaken: SweepResult | None = None  # what was swept, until the requests have it
        self._interrupted = False
        self._may_own_more = False  # a request that a sweep calls done: something was posted since
        self._closing = False
        self.guard.watch(self)
        self.stats.set_info(backend=backend_name(module), ops=self._ops.kind, scan=scan)
        self.stats.set_gauges(self._gauges)

    @property
    def ops(self) -> Ops:
        """How states are read now: its ``kind``, and ``reason``, a sentence."""
        return self._ops

    def outstanding_of(self, peer: str) -> int:
        """Return how many handles and expected writes of a peer are outstanding."""
        return int(self._table.outstanding_of(peer))

    def remove_peer(self, peer: str) -> bool:
        """Remove a peer from the agent once no handle of it is outstanding; see `PeerGuard.remove`."""
        self._check_open()
        return self.guard.remove(peer)

    def _check_owner(self) -> None:
        if threading.get_ident() != self._owner:
            raise WrongThreadError(
                f"{type(self).__name__} belongs to thread {self._owner}, called from {threading.get_ident()}"
            )

    def _check_open(self) -> None:
        if threading.get_ident() != self._owner or self._closing:
            self._check_owner()
            self._refuse_closed()

    def _sweep(self) -> SweepResult:
        """Sweep once; return what was found, and what no earlier poll came to take in.

        Whatever raises from here until `_taken` (a clock, a log, Ctrl-C), the next sweep brings it again.
        """
        earlier = self._untaken
        started = self._clock()
        self._may_own_more = self._interrupted or earlier is not None
        try:
            swept: SweepResult = self._pop(self._table)
        except BaseException:
            self._interrupted = True
            raise
        self._untaken = swept if earlier is None else merged(earlier, swept)
        self._now = self._clock()
        self.stats.observe_sweep(self._now - started)
        # Most sweeps find nothing, and then there is nothing to count. What was retained may be gone.
        if swept.transfers is not NO_TRANSFERS or swept.failures or swept.retained or self._retained:
            self.stats.observe_result(swept)
            self._retained = swept.retained
        return self._untaken

    def _taken(self) -> None:
        self._untaken = None
        self._interrupted = False

    # While it runs a post is outstanding: who is called from there may poll, or remove a peer.

    def _post_begins(self, request: Any, peer: str | None, posted: Posted) -> None:
        self._posts[id(posted)] = posted
        request.posting += 1
        self._posting_to[peer] += 1

    def _post_ended(self, request: Any, peer: str | None, posted: Posted) -> None:
        del self._posts[id(posted)]
        request.posting -= 1
        self._posting_to[peer] -= 1
        if not self._posting_to[peer]:
            del self._posting_to[peer]

    def _keep_posted(self, request: Any, posted: Posted, peer: str | None) -> None:
        """Put what a post has left into the table, and have its request begin or fail with it."""
        if posted.keep:
            refused = keep_handles(self._table, request.req_id, posted.keep, peer)
            request.in_table = refused is None or request.req_id in self._table
            self._may_own_more = True
            posted.failure = posted.failure or refused
        self._post_ended(request, peer, posted)  # not before: interrupted, it must not end
        if posted.keep:
            self._begin(request)
        if posted.failure is not None:
            self.stats.count("failed_transfers", posted.failed_handles)
            self._fail(request, posted.failure)

    def _begin(self, request: Any) -> None:
        raise NotImplementedError

    def _fail(self, request: Any, reason: object) -> None:
        raise NotImplementedError

    def _log_handle_failure(self, failure: HandleFailure) -> None:
        dropped = self._limit.allow(("handle", failure.peer))
        if dropped is not None:
            self._lines.add(
                logger,
                logging.WARNING,
                "transfer failed: request %r, peer %r, handle %r, status %s%s: %r (%d more before)",
                failure.req_id,
                failure.peer,
                failure.handle,
                failure.status,
                ", quarantined" if failure.lost else "",
                failure.error,
                dropped,
            )

    def _log_request(self, what: str, req_id: str, peer: str | None, reason: object) -> None:
        dropped = self._limit.allow((what, peer))
        if dropped is not None:
            # A peer may have chosen the id: no line of its own, and no endless one.
            text = "request %.200r %s, peer %r: %s (%d more before)"
            self._lines.add(logger, logging.WARNING, text, req_id, what, peer, reason, dropped)

    def _unknown_failure(self, req_id: str, reason: object) -> None:
        self.stats.count("failures_of_unknown_requests")
        self._log_request("is not tracked, its failure is dropped", req_id, None, reason)

    def _gauges(self) -> dict[str, float]:
        raise NotImplementedError

    def _common_gauges(self, requests: Sequence[TrackedRequest]) -> dict[str, float]:
        # Asked from any thread: nothing here may iterate over what the owner changes.
        quarantined = self._table.quarantined
        blocks = sum(len(group) for r in requests if r.req_id in quarantined for group in r.blocks)
        return {
            "outstanding_handles": self._table.handle_count,
            "outstanding_requests": len(requests),
            "retained_handles": self._retained,
            "quarantined_blocks": blocks,
            "oldest_outstanding_seconds": self._clock() - requests[0].tracked_at if requests else 0.0,
        }

    # ---- the end

    def _refuse_closed(self) -> None:
        if self._closing:
            raise ClosedError(f"this {type(self).__name__} is closed")

    def _sweep_until(
        self, timeout_s: float, advance: Callable[[], None], drained: Callable[[], bool]
    ) -> list[Exception]:
        """Advance until all is drained or the time is up; return what was raised on the way."""
        deadline = self._clock() + timeout_s
        errors: list[Exception] = []
        while True:
            try:
                advance()
            except Exception as error:
                if type(error) not in map(type, errors):  # each kind once: it may be raised by every sweep
                    logger.exception("closing goes on after an error")
                    errors.append(error)
            if drained() or self._clock() >= deadline:
                return errors
            self._sleep(CLOSE_INTERVAL_S)

    def _leave(self, left: Sequence[str], handles: int, posting: int = 0) -> None:
        """Let go of what is shared with others, as far as nothing is left, or is just being posted."""
        self.stats.unset_gauges(self._gauges)
        if not (handles or self._retained or posting):
            self.guard.unwatch(self)
        self._table.abandon()
        if left:
            logger.warning(
                "closed with %d requests and %d handles left, first %r: their blocks must not be given back",
                len(left),
                handles,
                left[0],
            )


def dead_peers(failures: Sequence[HandleFailure]) -> list[str]:
    """Return the peers whose death these failures tell of."""
    return sorted({f.peer for f in failures if f.peer is not None and f.status == DISCONNECT})


def _checked_backend(module: object) -> ModuleType:
    if not isinstance(module, ModuleType):
        raise TypeError(f"backend must be a name or a backend module, not {module!r}")
    return check_backend(module)
