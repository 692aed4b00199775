"""The decode side: which requests have their KV blocks, and which blocks may be given back.

A serving engine tracks a request when it has blocks for it, posts the transfers that fill them, and
polls once a step. What a poll reports is safe to act on: the law and the states behind it are in
`kvfast.request_states`.

    receiver = Receiver(agent)
    receiver.track("req-1", [[3, 4, 5]], peer="prefill-0")
    receiver.add_notif("req-1", "prefill-0", notifs.consumed("req-1", 1))
    receiver.post("req-1", lambda: agent.initialize_xfer("READ", local, remote, "prefill-0"))
    while ...:
        results = receiver.poll()
        use(results.finished)
        give_back(results.invalid_block_ids)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from kvfast_ext.contract import HandleFailure, Quarantine, check_seconds
from kvfast_ext.errors import DuplicateRequestError, UnknownRequestError

from . import checks
from .peers import PeerGuard
from .polling import Poller, dead_peers
from .posting import Posted, Prepare, Transfer
from .receiving.ended import EndedRequests
from .receiving.outbox import Outbox
from .receiving.request import NEVER, ReceiveRequest
from .receiving.stalls import StallWatch
from .request_states import ENDINGS, FAILED_STATES, Event, State
from .results import Closed, ReceiveResults, nothing_received
from .stats import Stats

__all__ = ["ReceiveResults", "Receiver"]


class Receiver(Poller):
    """Requests whose KV blocks are being filled, by own READs (pull) or by peers' WRITEs (push).

    Made and called by one thread, its owner; only `report_failure` may be called from others.

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
    stall_after_s : float, optional
        Seconds after which an outstanding request is named as stalled; never if None.
    clock : callable
        Gives the time in seconds. ``read_before`` is by this clock.
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
        stall_after_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        stats: Stats | None = None,
        guard: PeerGuard | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if stall_after_s is not None:
            stall_after_s = check_seconds("stall_after_s", stall_after_s, positive=True)
        self._requests: dict[str, ReceiveRequest] = {}
        self._order = 0
        self._settled: list[ReceiveRequest] = []  # may have drained: looked at by the next poll
        self._reports: deque[tuple[str, object]] = deque()  # failures told by other threads
        self._ended = EndedRequests()
        self._stalls = StallWatch(stall_after_s)
        self._closed: Closed[ReceiveResults] | None = None
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
        self._outbox = Outbox(agent, self.stats, self._limit, self._lines, self._lose)

    # ---- a request's life

    def track(
        self,
        req_id: str,
        block_ids: Sequence[Sequence[int]],
        *,
        peer: str | Sequence[str] | None = None,
        read_before: float | None = None,
    ) -> None:
        """Take in a request and the blocks that will be written for it.

        Parameters
        ----------
        req_id : str
            A new id. One that was reported may be used again.
        block_ids : sequence of sequence of int
            The blocks, one list for each KV-cache group.
        peer : str or sequence of str, optional
            The agent that the data comes from, or several: what `peer_lost` and `remove_peer` go by.
            Without it, `remove_peer` can't know of the request's handles.
        read_before : float, optional
            When the producer's lease runs out, by the Receiver's clock. A later post is declined,
            and a request whose own transfers are seen to end only later fails: they may have read
            the next owner's data. `extend` moves it. Without it no lease is minded.

        Raises
        ------
        DuplicateRequestError
            If the id is in use.
        TypeError, ValueError
            If an argument is no such thing; the message names it.
        """
        self._check_open()
        req_id = checks.req_id(req_id)
        if req_id in self._requests:
            raise DuplicateRequestError(f"request {req_id!r} is tracked already")
        if self._ended.maybe_any and req_id in self._ended:
            raise DuplicateRequestError(f"the end of the earlier request {req_id!r} is not reported yet")
        blocks, peers = checks.block_ids(block_ids), checks.peers(peer)
        deadline = checks.moment("read_before", read_before)
        self._order += 1
        self._requests[req_id] = ReceiveRequest(req_id, blocks, peers, deadline, self._order, self._clock())

    def post(
        self, req_id: str, prepare: Prepare, transfer: Transfer | None = None, *, peer: str | None = None
    ) -> bool:
        """Start one transfer of a request; see `post_many`."""
        return self.post_many(req_id, [prepare], transfer, peer=peer)

    def post_many(
        self,
        req_id: str,
        prepares: Sequence[Prepare],
        transfer: Transfer | None = None,
        *,
        peer: str | None = None,
    ) -> bool:
        """Start transfers of a request: prepare all, then post them in order.

        If one can't be prepared, none is posted. Post everything that a request needs before the
        next poll: it ends when all that was posted has ended.

        Parameters
        ----------
        req_id : str
            A tracked request.
        prepares : sequence of callable
            Each returns a new handle, not posted yet. None at all starts nothing: of a request that
            needs no transfer, say `complete`.
        transfer : callable, optional
            Posts a handle; by default the agent's ``transfer``.
        peer : str, optional
            The agent at the other end; by default the request's, if that has one.

        Returns
        -------
        bool
            False if no more must be posted for this request: something failed here, it had failed
            or was aborted before, its ``read_before`` is over, or its peer is being removed. The
            request will be reported, and nothing that was raised gets out of here.

        Raises
        ------
        UnknownRequestError
            If the request is not tracked, or was reported.
        ValueError
            If the request has several peers, and none is named here.
        """
        request = self._request(req_id)
        prepares = checks.functions("prepares", prepares)
        transfer = self._agent.transfer if transfer is None else checks.function("transfer", transfer)
        peer = request.peer_of_post(peer)
        self._take_reports()
        may = self._may_post(request, peer)
        posted = self._post(request, prepares, transfer, peer) if may else None
        self._lines.write()
        if posted is not None:
            posted.raise_interrupt()
        return posted is not None and posted.failure is None

    def add_notif(self, req_id: str, agent_name: str, message: bytes) -> None:
        """Have a notification sent when the request succeeds; a failure withdraws it."""
        request = self._request(req_id)
        notif = checks.name("agent_name", agent_name), checks.message(message)
        request.notifs = [*(request.notifs or ()), notif]

    def complete(self, req_id: str) -> None:
        """Say that nothing more will be posted: the request ends when it is drained.

        For a full prefix hit, where there is nothing to transfer. What is outstanding all the same,
        handles and expected writes, is waited for.
        """
        request = self._request(req_id)
        request.step(Event.BEGIN)
        self._settled.append(request)

    def expect_writes(self, req_id: str) -> None:
        """Note that peers have been told where to write: from now on their writes are outstanding."""
        request = self._request(req_id)
        request.expected_writes().told = True
        self._begin(request)
        self._settled.append(request)

    def notified(self, req_id: str, producers: int, *, failed: bool = False, peer: str | None = None) -> None:
        """Note that one of so many producers has ended its writes.

        The last one drains the request. It may come before `expect_writes`, which the request then
        waits for. One that comes after the request's end, or is one too many, is counted.

        Parameters
        ----------
        req_id : str
            The request, as the producer named it: any str.
        producers : int
            How many there are in all.
        failed : bool
            The producer says that not all of it was written.
        peer : str, optional
            Which agent it was. Needed to tell, when one of several producers dies, whether it had
            ended before; and a second notification of the same one is then known as such.
        """
        self._check_open()
        producers = checks.count("producers", producers)
        peer = None if peer is None else checks.name("peer", peer)
        req_id = checks.req_id(req_id)
        request = self._requests.get(req_id)
        if request is None or not request.expected_writes().notified(producers, peer):
            self._surplus_notif(req_id, peer)
        if request is not None:
            if failed:
                self._fail(request, f"producer {peer or 'unnamed'} could not write everything")
            self._settled.append(request)
        self._lines.write()

    def extend(self, req_id: str, read_before: float) -> None:
        """Note that the producer has extended its lease, as it does for a heartbeat. Never shortens it.

        Raises
        ------
        TypeError, ValueError
            If `read_before` is not a finite moment of the Receiver's clock.
        """
        request = self._request(req_id)
        deadline = checks.moment("read_before", read_before)
        if deadline is None:
            raise TypeError("read_before must be a moment of the clock, not None")
        if request.read_before is not None:
            request.read_before = max(request.read_before, deadline)

    def fail(self, req_id: str, reason: str) -> None:
        """Fail a request. It is reported when it is drained."""
        self._fail(self._request(req_id), reason)
        self._lines.write()

    def report_failure(self, req_id: str, reason: str) -> None:
        """Fail a request, from any thread. One that is not tracked by then is counted and logged.

        Raises
        ------
        TypeError
            If `req_id` is not a str.
        ClosedError
            If the Receiver is closed.
        """
        req_id = checks.req_id(req_id)
        self._refuse_closed()
        self._reports.append((req_id, reason))

    def abort(self, req_id: str) -> None:
        """Give a request up. It is reported when it is drained; its blocks are held until then."""
        request = self._request(req_id)
        request.step(Event.ABORT)
        self._settled.append(request)

    # ---- peers

    def peer_lost(self, name: str) -> None:
        """Note that a peer is dead: its writes have ended, and what waits for it alone fails.

        Requests with own handles end by these: NIXL tells of each.
        """
        self._check_open()
        self._lose(checks.name("name", name))
        self._lines.write()
        self.guard.tell()

    def outstanding_of(self, peer: str) -> int:
        """Return how many handles of a peer, posts to it and requests that it may write, are outstanding."""
        writing = sum(
            request.writes is not None and request.writes.outstanding and peer in request.peers
            for request in list(self._requests.values())
        )
        return super().outstanding_of(peer) + self._posting_to[peer] + writing

    # ---- polling

    def poll(self) -> ReceiveResults:
        """Sweep once, and report what has ended and what has stalled.

        Call it once an engine step: notifications of READs leave from here, so the time between two
        polls is time for which a producer holds its blocks.

        Raises
        ------
        WrongThreadError, ClosedError
            If it is not the owner's to call, or not any more.
        """
        self._check_open()
        self._advance()
        return self._ended.take(self.stats, self._lines) if self._ended.maybe_any else nothing_received()

    def __len__(self) -> int:
        """Return how many requests are tracked."""
        return len(self._requests)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._requests

    def close(self, timeout_s: float) -> Closed[ReceiveResults]:
        """End: sweep until all requests are drained, or the time is up.

        Requests for which nothing is outstanding end as aborted. What is in flight ends as it does;
        what has not by then is named as left, and its handles are never released. A second call
        returns what the first did.

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

    # ---- inside

    def _request(self, req_id: str) -> ReceiveRequest:
        self._check_open()
        request = self._requests.get(checks.req_id(req_id))
        if request is None:
            raise UnknownRequestError(f"request {req_id!r} is not tracked")
        return request

    def _may_post(self, request: ReceiveRequest, peer: str | None) -> bool:
        if not request.may_post:
            return False
        if request.read_before is not None and self._clock() > request.read_before:
            self.stats.count("expired_leases")
            self._fail(request, f"the producer's lease ran out at {request.read_before}, before it was read")
            return False
        if peer is not None and self.guard.is_removing(peer):
            self._fail(request, f"peer {peer} is being removed")
            return False
        return True

    def _post(
        self, request: ReceiveRequest, prepares: Sequence[Prepare], transfer: Transfer, peer: str | None
    ) -> Posted:
        posted = Posted()
        self._post_begins(request, peer, posted)
        try:
            self._starter.start(posted, prepares, transfer, lambda: request.may_post)
        finally:
            self._posted(request, posted, peer)
        return posted

    def _posted(self, request: ReceiveRequest, posted: Posted, peer: str | None) -> None:
        interrupt = self._ops.take_interrupt()
        if interrupt is not None:  # out of a release: the ops have kept it
            posted.error = interrupt
        self._keep_posted(request, posted, peer)

    def _begin(self, request: ReceiveRequest) -> None:
        request.step(Event.BEGIN)
        if request.since == NEVER:
            request.since = self._clock()
            self._stalls.add(request, len(self._requests))

    def _fail(self, request: ReceiveRequest, reason: object) -> None:
        is_new = request.state not in FAILED_STATES
        request.step(Event.FAIL)
        self._settled.append(request)
        if is_new:
            self._log_request("fails", request.req_id, request.peer, reason)

    def _surplus_notif(self, req_id: str, peer: str | None) -> None:
        self.stats.count("notifs_after_end")
        self._log_request("got a notification after its writes had ended", req_id, peer, "ignored")

    def _take_reports(self) -> None:
        while self._reports:
            req_id, reason = self._reports.popleft()
            request = self._requests.get(req_id)
            if request is None:
                self._unknown_failure(req_id, reason)
            else:
                self._fail(request, reason)

    def _advance(self) -> None:
        swept = self._sweep()
        if swept.failures:
            self._take_failures(swept.failures)
        if swept.done:
            self._take_done(swept.done)
        if swept.failures:
            self._lose(*dead_peers(swept.failures))
        self._taken()
        if self._reports:
            self._take_reports()
        if self._settled:
            self._end_drained()
        if self._now > self._stalls.next_at:
            self._name_stalled()
        if self._outbox.waiting:
            self._outbox.send()
        self.guard.settle()
        if self._lines.waiting:
            self._lines.write()

    def _take_failures(self, failures: Sequence[HandleFailure]) -> None:
        for failure in failures:
            request = self._requests.get(failure.req_id)
            if request is not None:
                request.step(Event.FAIL)
            self._log_handle_failure(failure)

    def _take_done(self, done: Iterable[str]) -> None:
        requests, settle, look = self._requests, self._settled.append, self._may_own_more
        for req_id in done:
            request = requests[req_id]
            request.in_table = look and req_id in self._table
            if request.read_before is not None and self._now > request.read_before:
                self._read_too_late(request)
            settle(request)

    def _read_too_late(self, request: ReceiveRequest) -> None:
        # The producer can't know of a READ in flight. Once its lease is over it gives the blocks to
        # somebody else, and a READ that it serves after that brings the next owner's data.
        if request.state is State.OUTSTANDING:
            self.stats.count("expired_leases")
            self._fail(request, f"the producer's lease ran out at {request.read_before}, before all was read")

    def _lose(self, *peers: str) -> None:
        for request in self._requests.values():
            for peer in peers:
                if peer in request.peers:
                    self._lose_one(request, peer)
        self.guard.note_dead(*peers)

    def _lose_one(self, request: ReceiveRequest, peer: str) -> None:
        waits = request.state is State.TRACKED
        cut = request.writes is not None and request.writes.lost(peer)
        if cut or waits:
            self._fail(request, f"peer {peer} is dead")

    def _end_drained(self) -> None:
        # Interrupted, the next poll looks at them again: no end may be lost, so each is noted first.
        requests, ended = self._requests, self._ended.by_end
        self._ended.maybe_any = True
        notifying: list[ReceiveRequest] = []
        for request in self._settled:
            ending = ENDINGS.get(request.state)  # None: it waits, or has ended already
            # This is what drained means: no own handle, and no peer that may write.
            if ending is None or request.in_table or request.posting:
                continue
            if request.writes is not None and request.writes.outstanding:
                continue
            state, notifies = ending
            ended[state].append(request)
            request.state = state
            del requests[request.req_id]
            if notifies and request.notifs is not None:
                notifying.append(request)
        self._settled.clear()
        if notifying:
            self._outbox.put(notifying)

    def _name_stalled(self) -> None:
        stalled = self._stalls.due(self._now)
        self._ended.stalled.extend(stalled)
        self._ended.maybe_any = True
        for request in stalled:
            self._log_request("is stalled", request.req_id, request.peer, "its blocks stay held")

    def _close(self, timeout_s: float) -> Closed[ReceiveResults]:
        for request in self._requests.values():
            if request.state is State.TRACKED:
                request.step(Event.ABORT)
                self._settled.append(request)
        errors = self._sweep_until(timeout_s, self._advance, lambda: not self._requests)
        left, handles = tuple(self._requests), self._table.handle_count
        writing = sum(r.writes is not None and r.writes.outstanding for r in self._requests.values())
        self._leave(left, handles, sum(self._posting_to.values()) + writing)
        return Closed(self._ended.take(self.stats, self._lines), left, handles, tuple(errors))

    def _gauges(self) -> dict[str, float]:
        return self._common_gauges(list(self._requests.values()))
