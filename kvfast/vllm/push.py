"""vLLM's push worker (prefill WRITEs, and the decode that waits for them), with kvfast's polling."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker

from .agent import LockedAgentWorker
from .options import Options
from .registrations import KvfastRegistrationsMixin
from .retries import KvfastRetriesMixin
from .transfers import TrackedTransfers
from .worker import KvfastWorkerMixin


class KvfastNixlPushConnectorWorker(
    KvfastRegistrationsMixin,
    KvfastRetriesMixin,
    KvfastWorkerMixin,
    NixlPushConnectorWorker,  # type: ignore[misc]
    LockedAgentWorker,
):
    """The push worker."""

    def _kvfast_start(self, options: Options) -> None:
        super()._kvfast_start(options)
        self._sending_transfers = TrackedTransfers(self._kvfast.ops)

    def start_load_kv(self, metadata: Any) -> None:
        """Take in a step's requests. An id that was used before may be used again."""
        state = self._kvfast
        with state.lock:
            for req_id, blocks in metadata.push_finished_blocks.items():
                state.sends.give(req_id, blocks)
            for req_id, registration in metadata.push_registrations.items():
                state.registrations.give(req_id, registration)
        super().start_load_kv(metadata)
        self._kvfast_drop_unasked(metadata)

    # ---- polling

    def get_transfer_results(self) -> Any:
        """Poll once. The WRITEs are swept before vLLM takes the lock that its writer thread needs."""
        state = self._kvfast
        if isinstance(self._sending_transfers, TrackedTransfers):
            state.swept_sends = state.sweep(self._sending_transfers, self.nixl_wrapper)
        try:
            return super().get_transfer_results()
        finally:
            state.swept_sends = None

    def _pop_done_transfers(self, transfers: Any) -> tuple[set[str], set[str]]:
        swept = self._kvfast.swept_sends
        if swept is not None and transfers is self._sending_transfers:
            self._kvfast.swept_sends = None
            done, failed = self._kvfast_tell(swept)
            # The writer may have added to one of them since: then it is not done.
            return {req_id for req_id in done if req_id not in transfers}, failed
        result: tuple[set[str], set[str]] = super()._pop_done_transfers(transfers)
        return result

    def _get_new_notifs(self) -> set[str]:
        """Take in what the writer thread has passed on, each by itself."""
        done: set[str] = set()
        while True:
            try:
                raw = self._pending_completion_notifs.get_nowait()
            except queue.Empty:
                break
            done |= self._kvfast_take_notif(raw, "")
        doomed = self._kvfast_doomed  # those that were so at the last poll
        self._kvfast_fail_waiting()
        self._kvfast_fail_doomed(doomed)
        return done

    def _kvfast_inbox_of(self, raw: bytes) -> dict[str, Any]:
        inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        inbox.put(raw)
        return {"_pending_completion_notifs": inbox}

    # ---- leases

    def _reap_expired_send_leases(self: Any, done_sending: set[str]) -> None:
        """Let leases run out, but not under a WRITE: NIXL may still be reading the blocks."""
        if not isinstance(self._sending_transfers, TrackedTransfers):
            # Whoever put a plain dict here, as vLLM's tests do, has vLLM's leases with it.
            super()._reap_expired_send_leases(done_sending)
            return
        now = time.perf_counter()
        overdue = [req_id for req_id, expires in self._reqs_to_send.items() if now >= expires]
        if not overdue:
            return
        state = self._kvfast
        with state.lock:
            expired = [req_id for req_id in overdue if not self._kvfast_writing(req_id)]
            for req_id in expired:
                state.sends.withdraw(req_id)
        # vLLM reads the clock again. So it sees these alone, and no lease that has run out since.
        leases = self._reqs_to_send
        self._reqs_to_send = {req_id: leases.pop(req_id) for req_id in expired}
        try:
            super()._reap_expired_send_leases(done_sending)
        finally:
            leases.update(self._reqs_to_send)
            self._reqs_to_send = leases

    def _kvfast_writing(self, req_id: str) -> bool:
        swept = self._kvfast.swept_sends
        return (
            req_id in self._kvfast.posting
            or req_id in self._sending_transfers
            or (swept is not None and req_id in swept.done)
        )

    # ---- posting (writer thread)

    def _xfer_blocks_for_req(self, req_id: str, meta: Any) -> None:
        """Post a request's WRITEs, unless its lease has run out: its blocks may be another's by now."""
        state = self._kvfast
        with state.lock:
            ended = state.sends.is_withdrawn(req_id)
            if not ended:
                state.posting[req_id] = []
        if ended:
            self._kvfast_too_late(req_id)
            return
        with self._kvfast_posting(req_id):
            super()._xfer_blocks_for_req(req_id=req_id, meta=meta)

    @contextmanager
    def _kvfast_posting(self, req_id: str) -> Iterator[None]:
        state = self._kvfast
        try:
            yield
        except BaseException:
            # vLLM publishes a request's handles together at the end, which it has not reached.
            with self._sending_transfers_lock:
                self._send_failures.add(req_id)
                if state.posting[req_id]:
                    self._sending_transfers[req_id].extend(state.posting[req_id])
            raise
        finally:
            with state.lock:
                del state.posting[req_id]

    def _xfer_blocks(self, *args: Any, **kwargs: Any) -> Any:
        handle = super()._xfer_blocks(*args, **kwargs)
        if handle is not None:
            self._kvfast_posted(handle, **kwargs)
        return handle

    def _kvfast_posted(
        self,
        handle: Any,
        read_spec: Any = None,
        request_id: str = "",
        dst_engine_id: str = "",
        **_others: Any,
    ) -> None:
        posted = self._kvfast.posting.get(request_id)
        if posted is not None:
            posted.append(handle)
        agents = self._remote_agents.get(dst_engine_id) or {}
        peer = agents.get((0, read_spec.remote_rank)) if read_spec is not None else None
        if peer is not None and isinstance(self._sending_transfers, TrackedTransfers):
            self._sending_transfers.note_peer(handle, peer)

    def _kvfast_too_late(self, req_id: str) -> None:
        self._kvfast.retries.forget(req_id)
        self._kvfast.warn("late push", "request %s is not pushed: its lease has run out", req_id)

    def _do_start_push_kv(self, request_id: str, local_block_ids: Any, registration_data: Any) -> None:
        """Start a push, or have it wait while its engine's state is to be removed."""
        state = self._kvfast
        if state.retries.has_failed(request_id):
            registration_data = self._kvfast_newest_registration(
                request_id, local_block_ids, registration_data
            )
        registration_data = self._kvfast_fitting(request_id, local_block_ids, registration_data)
        if registration_data is None:
            return
        engine_id = registration_data["decode_engine_id"]
        self._evict_stale_engines()  # as vLLM does first: once it is in use, this engine stays
        with state.lock:
            counts = state.sends.counts(request_id, local_block_ids)
            entered = counts and self._kvfast_enter(engine_id)
        if not counts:
            self._kvfast_too_late(request_id)
            return
        if not entered:
            state.parked_pushes.append((request_id, local_block_ids, registration_data))
            return
        try:
            super()._do_start_push_kv(request_id, local_block_ids, registration_data)
        finally:
            self._kvfast_leave(engine_id)

    def _kvfast_settle(self) -> None:
        super()._kvfast_settle()
        self._kvfast_drop_parked()
        self._kvfast_resume(
            self._kvfast.parked_pushes,
            lambda parked: parked[2]["decode_engine_id"],
            lambda parked: self._kvfast_hand_over(self._deferred_push_inbox, parked),
        )

    def _kvfast_drop_parked(self) -> None:
        """Drop the pushes whose leases are over: `sends` does not remember for ever that they have ended."""
        parked = self._kvfast.parked_pushes
        for _ in range(len(parked)):
            push = parked.popleft()
            if push[0] in self._reqs_to_send:
                parked.append(push)
            else:
                self._kvfast_too_late(push[0])
