"""The prefill side: how long a request's KV blocks must be kept for those who need them.

A prefill engine tracks a request when its blocks are filled and promises to keep them for a time, the
lease. They are needed until every own WRITE of them has landed (push), or every consumer has said
that it has read them (pull), or the lease is over and no WRITE is reading them. What a poll reports
is safe to give back; the law and the states behind it are in `kvfast.request_states`.

    sender = Sender(agent)
    sender.track("req-1", [[3, 4, 5]], lease_s=30, peer="decode-0")
    sender.post("req-1", [lambda: agent.initialize_xfer("WRITE", local, remote, "decode-0", b"req-1:1")])
    while ...:
        results = sender.poll()
        give_back(results.finished | results.expired)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from types import ModuleType
from typing import Any, Final

from kvfast_ext.contract import Quarantine, check_seconds
from kvfast_ext.errors import DuplicateRequestError, UnknownRequestError

from . import checks
from .peers import PeerGuard
from .polling import Poller, dead_peers
from .posting import Posted, Prepare, Transfer
from .request_states import ENDS, Event, State
from .results import NOTHING_SENT, Closed, SendResults
from .sending.leases import Leases
from .sending.recent import RecentIds
from .sending.request import SendRequest
from .stats import Stats

__all__ = ["SendResults", "Sender"]

logger = logging.getLogger(__name__)

_BY_ORDER: Final = attrgetter("order")
# How many ended requests a late post can be told from one that never was. At 1,000 requests a second
# that is a minute, longer than a handshake that a post waits for.
_RECENT: Final = 65_536


class Sender(Poller):
    """Requests whose KV blocks are kept for consumers: those that READ them, or are WRITTEN to.

    Made and called by one thread, its owner. `post` may be called from another one, and `fail` from
    any.

    Parameters
    ----------
    agent : Agent
        A ``nixl_agent``, or anything with its methods.
    backend : {"auto", "cython", "python"} or module
        The polling backend; see `kvfast.select_backend`.
    scan : {"watch", "all"}
        Which handles a sweep asks about.
    quarantine : Quarantine
        How long failed handles are kept before they are released.
    clock : callable
        Gives the time in seconds.
    stats : Stats, optional
        Where it counts; its own by default.
    guard : PeerGuard, optional
        The agent's guard, to be shared by all that use the agent; its own by default.
    sleep : callable
        Called with seconds by `close`, between two sweeps.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range; the message names it.
    """

    def __init__(
        self,
        agent: Any,
        *,
        backend: str | ModuleType = "auto",
        scan: str = "watch",
        quarantine: Quarantine = Quarantine(),
        clock: Callable[[], float] = time.monotonic,
        stats: Stats | None = None,
        guard: PeerGuard | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        # Guards the requests, and all that follows from a look at one: a post that is admitted is
        # outstanding before a poll can find its lease over. Never held while a transfer is prepared
        # or posted, or during a sweep. Reentrant, as a finaliser may run anywhere and report a failure.
        self._lock = threading.RLock()
        self._requests: dict[str, SendRequest] = {}
        self._order = 0
        self._leases = Leases(self._requests)
        self._recent = RecentIds(_RECENT)
        self._settled: list[SendRequest] = []  # may have drained: looked at by the next poll
        self._ended: list[tuple[str, State, bool]] = []  # id, end, had it failed? Not reported yet
        self._closed: Closed[SendResults] | None = None
        super().__init__(
            agent,
            backend=backend,
            scan=scan,
            quarantine=quarantine,
            clock=clock,
            sleep=sleep,
            stats=stats,
            guard=guard,
        )

    # ---- a request's life

    def track(
        self, req_id: str, block_ids: Sequence[Sequence[int]], *, lease_s: float, peer: str | None = None
    ) -> None:
        """Take in a request, and promise its blocks for a time from now on.

        Parameters
        ----------
        req_id : str
            A new id. One that was reported may be used again.
        block_ids : sequence of sequence of int
            The blocks, one list for each KV-cache group.
        lease_s : float
            Seconds; more than 0.
        peer : str, optional
            The agent that is written to, for each handle that is posted without another.

        Raises
        ------
        DuplicateRequestError
            If the id is in use.
        TypeError, ValueError
            If an argument is no such thing; the message names it.
        """
        self._check_open()
        req_id = checks.req_id(req_id)
        blocks = checks.block_ids(block_ids)
        lease_s = check_seconds("lease_s", lease_s, positive=True)
        peer = None if peer is None else checks.name("peer", peer)
        now = self._clock()
        with self._lock:
            if req_id in self._requests:
                raise DuplicateRequestError(f"request {req_id!r} is tracked already")
            if any(req_id == ended for ended, _, _ in self._ended):
                raise DuplicateRequestError(f"the end of the earlier request {req_id!r} is not reported yet")
            self._order += 1
            request = SendRequest(req_id, blocks, peer, now + lease_s, self._order, now)
            self._requests[req_id] = request
            self._leases.add(request)

    def post(
        self,
        req_id: str,
        prepares: Sequence[Prepare],
        transfer: Transfer | None = None,
        *,
        peer: str | None = None,
    ) -> bool:
        """Start all WRITEs of a request: prepare all, then post them in order. From any one thread.

        A sweep sees either none or all of them. The request is finished when they have landed, so
        one call must name all that belong to it.

        Parameters
        ----------
        req_id : str
            A tracked request.
        prepares : sequence of callable
            Each returns a new handle, not posted yet.
        transfer : callable, optional
            Posts a handle; by default the agent's ``transfer``.
        peer : str, optional
            The agent at the other end; by default the request's.

        Returns
        -------
        bool
            False if the send has failed: here, or before, or because its lease is over, its peer is
            being removed, or it has ended. Nothing that was raised gets out of here.

        Raises
        ------
        UnknownRequestError
            If there has been no such request.
        """
        prepares = checks.functions("prepares", prepares)
        transfer = self._agent.transfer if transfer is None else checks.function("transfer", transfer)
        peer = None if peer is None else checks.name("peer", peer)
        posted = Posted()
        with self._lock:
            request = self._postable(checks.req_id(req_id), peer)
            if request is not None:
                peer = request.peer if peer is None else peer
                self._post_begins(request, peer, posted)
        self._lines.write()
        return request is not None and self._post(request, prepares, transfer, peer, posted)

    def fail(self, req_id: str, reason: str) -> None:
        """Fail a send, from any thread: it will never be finished, and leaves when its lease is over.

        One that is not tracked is counted and logged.
        """
        req_id = checks.req_id(req_id)
        with self._lock:
            self._refuse_closed()
            request = self._requests.get(req_id)
            if request is None:
                self._unknown_failure(req_id, reason)
            else:
                self._fail(request, reason)
        self._lines.write()

    def notified(self, req_id: str, expected_consumers: int) -> None:
        """Note that one of so many consumers has read the blocks.

        The last one finishes the request. One that comes after the request's end, or is one too
        many, is counted: it may have read the next owner's data.

        Parameters
        ----------
        req_id : str
            The request, as the consumer named it: any str.
        expected_consumers : int
            How many there are in all.
        """
        self._check_open()
        req_id = checks.req_id(req_id)
        consumers = checks.count("expected_consumers", expected_consumers)
        with self._lock:
            request = self._requests.get(req_id)
            if request is None or not request.notified(consumers):
                self._surplus_notif(req_id)
            elif request.all_consumed:
                self._begin(request)
                self._settle(request)
        self._lines.write()

    def heartbeat(self, req_ids: Iterable[str], extend_s: float) -> None:
        """Extend leases to at least so many seconds from now. Never shortens one.

        Ids that are not tracked are ignored: a consumer can't know what has ended meanwhile. A consumer
        that waits for WRITEs must not extend for ever: a failed send ends when its lease is over.
        """
        self._check_open()
        extend_s = check_seconds("extend_s", extend_s, positive=True)
        if isinstance(req_ids, (str, bytes)):
            raise TypeError(f"req_ids must be several request ids, not {req_ids!r}")
        known = [checks.req_id(req_id) for req_id in req_ids]
        deadline = self._clock() + extend_s
        with self._lock:
            for request in filter(None, map(self._requests.get, known)):
                request.deadline = max(request.deadline, deadline)
                if not request.has_timer:
                    self._leases.add(request)

    # ---- peers

    def outstanding_of(self, peer: str) -> int:
        """Return how many handles of a peer are outstanding, and how many posts to it are running."""
        with self._lock:
            return super().outstanding_of(peer) + self._posting_to[peer]

    # ---- polling

    def poll(self) -> SendResults:
        """Sweep once, and report what has ended.

        Raises
        ------
        WrongThreadError, ClosedError
            If it is not the owner's to call, or not any more.
        """
        self._check_open()
        self._advance()
        return self._report()

    def __len__(self) -> int:
        """Return how many requests are tracked."""
        return len(self._requests)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._requests

    def close(self, timeout_s: float) -> Closed[SendResults]:
        """End: sweep until no WRITE is in flight, or the time is up. Leases are not waited for.

        What is left then, be it in flight or under a lease, is named, and handles in flight are
        never released. A second call returns what the first did.

        Parameters
        ----------
        timeout_s : float
            Seconds; 0 sweeps once.
        """
        self._check_owner()
        timeout_s = check_seconds("timeout_s", timeout_s)
        if self._closed is None:
            self._closing = True
            self._closed = self._close(timeout_s)
            self._lines.write()
        return self._closed

    # ---- inside: without the lock

    def _post(
        self,
        request: SendRequest,
        prepares: Sequence[Prepare],
        transfer: Transfer,
        peer: str | None,
        posted: Posted,
    ) -> bool:
        try:
            self._starter.start(posted, prepares, transfer, lambda: request.may_post)
        finally:
            with self._lock:
                self._posted(request, posted, peer)
        self._lines.write()
        posted.raise_interrupt()
        return posted.failure is None

    def _advance(self) -> None:
        swept = self._sweep()
        with self._lock:
            for failure in swept.failures:
                self._handle_failed(failure.req_id)
            if swept.done:
                self._take_done(swept.done)
            if swept.failures:
                self.guard.note_dead(*dead_peers(swept.failures))
            self._taken()
            if self._settled:
                self._end_drained()
            if self._now >= self._leases.next_at:
                self._end_overdue()
        for failure in swept.failures:
            self._log_handle_failure(failure)
        self.guard.settle()
        if self._lines.waiting:
            self._lines.write()

    def _report(self) -> SendResults:
        if not self._ended:
            return NOTHING_SENT
        ended = self._ended
        finished = frozenset(req_id for req_id, state, _ in ended if state is State.ENDED_FINISHED)
        expired = frozenset(req_id for req_id, state, _ in ended if state is State.ENDED_EXPIRED)
        self.stats.count("finished_requests", len(finished))
        self.stats.count("expired_leases", len(expired))
        self.stats.count("failed_requests", sum(failed for _, _, failed in ended))
        self._lines.add(logger, logging.DEBUG, "finished: %s, expired: %s", finished, expired)
        self._ended = []  # last: what raised before is reported by the next call
        return SendResults(finished, expired)

    def _close(self, timeout_s: float) -> Closed[SendResults]:
        errors = self._sweep_until(timeout_s, self._advance, self._all_drained)
        left, handles = tuple(self._requests), self._table.handle_count
        with self._lock:
            posting = sum(self._posting_to.values())
        self._leave(left, handles, posting)
        return Closed(self._report(), left, handles, tuple(errors))

    def _all_drained(self) -> bool:
        with self._lock:
            return all(request.drained for request in self._requests.values())

    def _gauges(self) -> dict[str, float]:
        return self._common_gauges(list(self._requests.values()))

    # ---- inside: under the lock

    def _postable(self, req_id: str, peer: str | None) -> SendRequest | None:
        self._refuse_closed()
        request = self._requests.get(req_id)
        if request is None:
            if req_id in self._recent:
                return None
            raise UnknownRequestError(f"request {req_id!r} is not tracked")
        peer = request.peer if peer is None else peer
        if request.may_post and self._clock() >= request.deadline:
            self._fail(request, "its lease is over, no WRITE may be posted")
        elif request.may_post and peer is not None and self.guard.is_removing(peer):
            self._fail(request, f"peer {peer} is being removed")
        return request if request.may_post else None

    def _posted(self, request: SendRequest, posted: Posted, peer: str | None) -> None:
        self._keep_posted(request, posted, peer)
        self._settle(request)

    def _begin(self, request: SendRequest) -> None:
        request.step(Event.BEGIN)

    def _fail(self, request: SendRequest, reason: object) -> None:
        if not request.has_failed:
            self._log_request("fails", request.req_id, request.peer, reason)
        request.step(Event.FAIL)
        self._settle(request)

    def _settle(self, request: SendRequest) -> None:
        if request.drained:
            self._settled.append(request)

    def _surplus_notif(self, req_id: str) -> None:
        self.stats.count("notifs_after_end")
        self._log_request("got a notification of a consumer too many", req_id, None, "ignored")

    def _handle_failed(self, req_id: str) -> None:
        request = self._requests.get(req_id)
        if request is not None:
            request.step(Event.FAIL)

    def _take_done(self, done: Iterable[str]) -> None:
        for req_id in done:
            request = self._requests.get(req_id)
            if request is not None:
                # A post may have added more since the sweep.
                request.in_table = req_id in self._table
                self._settle(request)

    def _end_drained(self) -> None:
        settled = sorted(self._settled, key=_BY_ORDER)
        for request in settled:
            if request.drained and request.state not in ENDS:
                overdue = request.deadline <= self._now
                self._step(request, Event.DRAINED_OVERDUE if overdue else Event.DRAINED_LEASED)
        del self._settled[: len(settled)]  # last: interrupted, the next poll looks at them again

    def _end_overdue(self) -> None:
        for request in self._leases.due(self._now):
            # One that is outstanding is looked at when it has drained.
            if request.drained:
                self._step(request, Event.DRAINED_OVERDUE)

    def _step(self, request: SendRequest, event: Event) -> None:
        failed = request.has_failed
        if request.step(event) in ENDS:
            del self._requests[request.req_id]
            self._recent.add(request.req_id)
            self._ended.append((request.req_id, request.state, failed))
