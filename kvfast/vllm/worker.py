"""What kvfast does in vLLM's workers, pull and push: polling, release, notifications.

These methods stand before vLLM's own, call them, and write none of them again. See docs/vllm.md for
what differs from stock and why.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvfast.peers import is_disconnect
from kvfast_ext import states
from kvfast_ext.contract import HandleFailure, SweepResult, Transfers

from .borrow import StandIn, after
from .engines import KvfastEnginesMixin
from .metrics import KvfastStats
from .options import Options
from .stalls import StallWatch
from .state import KvfastState, logger
from .transfers import TrackedTransfers
from .watch import NotifWatch, OneNotif, Tolerant, why_malformed

_DISCONNECT = states.name_of(states.REMOTE_DISCONNECT)


class KvfastWorkerMixin(KvfastEnginesMixin):
    """Polling, release and clean-up, common to pull and push."""

    _kvfast_state: KvfastState | None = None
    _kvfast_stalls: StallWatch | None = None
    _kvfast_locked: bool | None

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        config = vllm_config.kv_transfer_config
        options = Options.read(config.kv_connector_extra_config if config is not None else None)
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._kvfast_start(options)

    def _kvfast_start(self: Any, options: Options) -> None:
        state = KvfastState(options, locked=self._kvfast_locked)
        self._kvfast_state = state
        state.ops.use(self.nixl_wrapper)
        self._recving_transfers = TrackedTransfers(state.ops)
        self.xfer_stats = KvfastStats()
        if options.stall_after_s is not None:
            self._kvfast_stalls = StallWatch(options.stall_after_s, state)
        ops = state.ops.bound
        state.stats.set_info(backend=state.ops.backend_name, ops=ops.kind, scan=options.scan)
        logger.info(
            "kvfast polls for %s: backend=%s, ops=%s (%s), scan=%s, sync_mode=%s",
            type(self).__name__,
            state.ops.backend_name,
            ops.kind,
            ops.reason,
            options.scan,
            "RW" if self._kvfast_locked else 'none: this NIXL can\'t be given a lock, so "python" polls',
        )

    @property
    def _kvfast(self) -> KvfastState:
        state = self._kvfast_state
        if state is None:
            state = self._kvfast_state = KvfastState(Options(), locked=getattr(self, "_kvfast_locked", None))
        return state

    # ---- polling

    def get_transfer_results(self: Any) -> Any:
        """Poll once, as vLLM does at every step."""
        self._kvfast.expired_now = 0
        results = super().get_transfer_results()
        self._kvfast_settle()
        self._kvfast_count_ends(results)
        if self._kvfast_stalls is not None:
            self._kvfast_stalls.look(self._recving_metadata, getattr(self, "_sending_transfers", {}))
        return results

    def _kvfast_count_ends(self: Any, results: Any) -> None:
        failed = len(results.failed_recving)
        received = len(results.finished_recving) - failed  # which vLLM names among the finished, too
        finished = received + len(results.finished_sending) - self._kvfast.expired_now
        if failed:
            self._kvfast.count("failed_requests", failed)
        if finished:
            self._kvfast.count("finished_requests", finished)

    def _reap_expired_send_leases(self: Any, done_sending: set[str]) -> None:
        """Let leases run out, and count them."""
        before = len(done_sending)
        super()._reap_expired_send_leases(done_sending)
        expired = len(done_sending) - before
        if expired:
            self._kvfast.count("expired_leases", expired)
            self._kvfast.expired_now += expired

    def _pop_done_transfers(self: Any, transfers: Any) -> tuple[set[str], set[str]]:
        result = self._kvfast.sweep(transfers, getattr(self, "nixl_wrapper", None))
        told: tuple[set[str], set[str]] = self._kvfast_tell(result)
        return told

    def _kvfast_tell(self: Any, result: SweepResult) -> tuple[set[str], set[str]]:
        """Count and log a sweep's result where vLLM does; return who is done and who has failed."""
        if len(result.transfers):
            self._kvfast_record(result.transfers)
        failed = set(result.failed)
        for failure in result.failures:
            self._kvfast_tell_failure(failure, failed)
        if result.done:
            self._kvfast.forget_told(result.done)
        return result.done, failed

    def _kvfast_record(self: Any, transfers: Transfers) -> None:
        rows = (transfers.xfer_us, transfers.post_us, transfers.bytes, transfers.descriptors)
        for xfer_us, post_us, size, count in zip(*(row.tolist() for row in rows)):
            self.xfer_stats.record_transfer(
                SimpleNamespace(xferDuration=xfer_us, postDuration=post_us, totalBytes=size, descCount=count)
            )

    def _kvfast_tell_failure(self: Any, failure: HandleFailure, failed: set[str]) -> None:
        engine_id = self._kvfast_engine_of(failure)
        if not self._kvfast.was_told(failure.req_id, failure.handle):
            self._kvfast_log_failure(failure)
            self._handle_failed_transfer(failure.req_id, None, failed)
        if failure.status != _DISCONNECT:
            return
        if failure.peer is not None:
            self._kvfast_found_dead(failure.peer, failure.error)
        if engine_id is not None:
            self._kvfast_disconnected(engine_id)

    def _kvfast_log_failure(self: Any, failure: HandleFailure) -> None:
        context = {"req_id": failure.req_id, "xfer_state": failure.status, "quarantined": failure.lost}
        if failure.error is None or failure.status == states.name_of(states.ERR_VALUE):
            self._log_failure(failure_type="transfer_failed", **context)
            return
        try:
            raise failure.error  # vLLM logs the traceback of the exception that is being handled
        except BaseException as error:
            self._log_failure(failure_type="transfer_exception", error=error, **context)

    def _try_release_xfer_handle(self: Any, req_id: str, handle: Any) -> bool:
        """Release a handle whose start failed, unless its bytes may still land."""
        state = self._kvfast
        state.ops.use(self.nixl_wrapper)
        if state.ops.try_release(handle):
            return True
        state.tell(req_id, handle)
        self._log_failure(
            failure_type="transfer_release_failed",
            msg="Keeping handle and blocks until its transfer has ended",
            req_id=req_id,
        )
        return False

    # ---- notifications

    def _get_new_notifs(self: Any) -> Any:
        """Take in the notifications that have come, each by itself: none can harm the others."""
        done: set[str] = set()
        for peer, raws in self.nixl_wrapper.get_new_notifs().items():
            for raw in raws:
                done |= self._kvfast_take_notif(raw, peer)
        self._kvfast_fail_waiting()
        return done

    def _kvfast_take_notif(self: Any, raw: bytes, peer: str) -> set[str]:
        """Have vLLM take in one notification; return the requests that it ended."""
        state = self._kvfast
        reason = why_malformed(raw)
        if reason is None:
            stand_in = StandIn(self, **self._kvfast_inbox_of(raw))
            try:
                ended: set[str] = after(KvfastWorkerMixin, self)._get_new_notifs(stand_in)
                return ended
            except Exception as error:  # such as a count that does not fit the sizes of both sides
                reason = repr(error)
        state.count("bad_notifs")
        state.warn(f"notif {peer}", "notification from %r ignored: %.120r: %s", peer, raw, reason)
        return set()

    def _kvfast_inbox_of(self: Any, raw: bytes) -> dict[str, Any]:
        """Return the attribute that vLLM takes notifications from, with one in it."""
        return {"nixl_wrapper": OneNotif(self.nixl_wrapper, raw)}

    def _send_heartbeats(self: Any, metadata: Any) -> None:
        agent = NotifWatch(self.nixl_wrapper, self._kvfast_notif_failed)
        cleaning = self._kvfast.cleaning
        if cleaning:  # in another thread: a handshake would find them half removed; the next one is not late
            left = {name: info for name, info in metadata.heartbeat_by_engine.items() if name not in cleaning}
            metadata = StandIn(metadata, heartbeat_by_engine=left)
        after(KvfastWorkerMixin, self)._send_heartbeats(StandIn(self, nixl_wrapper=agent), metadata)

    def _send_pending_recv_notifs(self: Any, req_id: str) -> None:
        agent = NotifWatch(self.nixl_wrapper, self._kvfast_notif_failed)
        after(KvfastWorkerMixin, self)._send_pending_recv_notifs(StandIn(self, nixl_wrapper=agent), req_id)

    def _kvfast_notif_failed(self, agent_name: Any, error: Exception) -> None:
        """See whether an agent is dead. From any thread; the next poll draws the consequences."""
        if is_disconnect(error):
            self._kvfast_found_dead(agent_name, error)

    # ---- the rest

    def get_kv_connector_stats(self: Any) -> Any:
        """Return what was counted since the last call, kvfast's own numbers with it."""
        if isinstance(self.xfer_stats, KvfastStats):
            # An idle engine takes no further step: what has just ended would wait for the next request.
            self._kvfast.counters.add_to(self.xfer_stats.data, at_once=not self.xfer_stats.is_empty())
        return super().get_kv_connector_stats()

    def shutdown(self: Any) -> None:
        """End, trying every clean-up whatever another one raised."""
        if not hasattr(self, "_handshake_initiation_executor"):
            super().shutdown()
            return
        state = self._kvfast
        agent = self.nixl_wrapper
        state.shutting_down = True
        self.nixl_wrapper = Tolerant(agent, state)
        try:
            for transfers in self._kvfast_tracked():
                for handle in transfers.aside:  # vLLM knows of none of them
                    self.nixl_wrapper.release_xfer_handle(handle)
            super().shutdown()
        finally:
            self.nixl_wrapper = agent
