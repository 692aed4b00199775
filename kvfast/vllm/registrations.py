"""In push mode a decode registers where to write with its producer: both sides of that.

The writer thread sends registrations, and takes them in. What it sends may have waited for a handshake,
and its request may have failed meanwhile: then its blocks are another's, and nobody may be told of them.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any, Final

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import get_base_request_id

from .borrow import StandIn, after
from .watch import NotifWatch

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker as _Next
else:
    _Next = object  # vLLM's push worker stands behind in the ``__mro__``

_TEXTS: Final = ("request_id", "decode_engine_id", "decode_host")
_COUNTS: Final = ("decode_port", "decode_tp_size")
_BLOCKS: Final = "local_block_ids"


class KvfastRegistrationsMixin(_Next):  # type: ignore[misc]
    """Registrations, common to both sides of a push."""

    _kvfast_doomed: tuple[tuple[str, Any], ...] = ()  # requests that fail at the next poll

    # ---- on decode

    def _kvfast_drop_unasked(self: Any, metadata: Any) -> None:
        """Wait for no request that ended before it had blocks: nobody is told of it, and nothing will come.

        In pull mode such an entry has a worker tell the producer; in push mode vLLM keeps it for ever.
        """
        for req_id, meta in metadata.reqs_to_recv.items():
            if req_id not in metadata.push_registrations and not any(meta.local_block_ids):
                self._recving_metadata.pop(req_id, None)

    def _handle_failed_transfer(self: Any, req_id: str, *args: Any, **kwargs: Any) -> Any:
        """Fail a request; one that no blocks were ever given to, the scheduler does not know any more."""
        known = getattr(self, "_recving_metadata", {})
        meta = known.get(req_id)
        if meta is not None and not meta.local_block_ids:
            known.pop(req_id, None)  # and vLLM passes over what it has no metadata of
        return super()._handle_failed_transfer(req_id, *args, **kwargs)

    def _send_registration_to_p(self: Any, req_id: str, reg_data: dict[str, Any]) -> None:
        """Tell a producer where to write; not if the request has failed, and not while its engine goes."""
        state = self._kvfast
        engine_id = reg_data["remote_engine_id"]
        self._evict_stale_engines()  # as vLLM does first: once it is in use, this engine stays
        with state.lock:
            counts = state.registrations.counts(req_id, reg_data)
            entered = counts and self._kvfast_enter(engine_id)
            if entered:
                state.registering.add(req_id)
        if not counts:
            state.warn("late registration", "request %s is not registered: it has failed", req_id)
            return
        if not entered:
            state.parked_registrations.append((req_id, reg_data))
            return
        try:
            super()._send_registration_to_p(req_id, reg_data)
        finally:
            with state.lock:
                state.registering.discard(req_id)
            self._kvfast_leave(engine_id)

    def _do_send_reg_notif(self: Any, req_id: str, reg_data: dict[str, Any]) -> None:
        """Tell a producer's agents where to write; fail the request if none of them can be told."""
        failed: list[str] = []

        def note(agent_name: str, error: Exception) -> None:
            failed.append(agent_name)
            self._kvfast_notif_failed(agent_name, error)

        agent = NotifWatch(self.nixl_wrapper, note)
        stock = after(KvfastRegistrationsMixin, self)._do_send_reg_notif
        stock(StandIn(self, nixl_wrapper=agent), req_id, reg_data)
        if failed and not agent.sent:
            self._failed_recv_reqs.put(req_id)

    def _kvfast_fail_writes_of(self: Any, engine_id: str) -> bool:
        """Doom the requests that wait for an engine's WRITEs: at the next poll they fail, if they still wait.

        No registration of theirs goes out any more. But a producer may have written, said so, and ended: what
        it said, the writer thread passes on meanwhile.

        Return whether that was done for all: of one that is just being registered the next poll knows more.
        """
        state, whole, doomed = self._kvfast, True, dict(self._kvfast_doomed)
        for req_id, meta in list(self._recving_metadata.items()):
            if meta.remote is None or meta.remote.engine_id != engine_id:
                continue
            if req_id in self._recving_transfers or doomed.get(req_id) is meta:
                continue  # all of it has been written, or it is known
            with state.lock:
                if req_id in state.registering:
                    whole = False
                    continue  # whether there is anybody to tell, the writer thread is finding out
                state.registrations.withdraw(req_id)
                self._kvfast_doomed = (*self._kvfast_doomed, (req_id, meta))
            state.warn("waiting", "request %s fails: engine %s is gone", req_id, engine_id)
        return whole

    def _kvfast_fail_doomed(self: Any, doomed: tuple[tuple[str, Any], ...]) -> None:
        with self._kvfast.lock:
            self._kvfast_doomed = self._kvfast_doomed[len(doomed) :]
        for req_id, meta in doomed:
            if self._recving_metadata.get(req_id) is meta and req_id not in self._recving_transfers:
                self.consumer_notification_counts_by_req.pop(req_id, None)
                self._failed_recv_reqs.put(req_id)

    def _kvfast_settle(self: Any) -> None:
        super()._kvfast_settle()
        self._kvfast_resume(
            self._kvfast.parked_registrations,
            lambda parked: parked[1]["remote_engine_id"],
            lambda parked: self._kvfast_hand_over(self._reg_send_inbox, parked),
        )

    def _kvfast_hand_over(self: Any, inbox: queue.Queue[Any], thing: Any) -> None:
        """Give the writer thread something to do."""
        inbox.put(thing)
        self._push_writer_wake.set()

    # ---- on prefill

    def _handle_push_reg_notif(self: Any, notif: bytes) -> None:
        """Take in a registration. One that can't be used must cost no other, nor its request its good one."""
        reason = why_useless(notif)
        if reason is None:
            try:
                super()._handle_push_reg_notif(notif)
                self._kvfast_mark_pending(notif)
                return
            except Exception as error:
                reason = repr(error)
        self._kvfast_not_taken(reason)

    def _kvfast_not_taken(self: Any, reason: str) -> None:
        self._kvfast.count("bad_notifs")
        self._kvfast.warn("registration", "registration not taken: %s", reason)

    def _kvfast_fits(self: Any, blocks: Any, registration: dict[str, Any]) -> bool:
        """Tell whether a registration has as many groups as these blocks: vLLM finds out too late."""
        here, there = (len(self._as_grouped_block_ids(ids)) for ids in (blocks, registration[_BLOCKS]))
        if here == there or not blocks:  # vLLM pushes nothing then
            return True
        self._kvfast_not_taken(f"{there} groups of blocks, for {here}")
        return False

    def _kvfast_fitting(self: Any, req_id: str, blocks: Any, registration: Any) -> dict[str, Any] | None:
        """Return a registration that fits a request's blocks; have them wait for one if there is none."""
        while registration is not None and not self._kvfast_fits(blocks, registration):
            registration = self._pop_matching_registration(req_id)
        if registration is None:
            self._push_finished_blocks[req_id] = blocks
        return registration  # type: ignore[no-any-return]

    def _kvfast_mark_pending(self: Any, notif: bytes) -> None:
        req_id = msgspec.msgpack.decode(notif[len(PUSH_REG_NOTIF_PREFIX) :])["request_id"]
        pending = self._pending_d_registrations.get(req_id)
        if pending is not None:
            self._kvfast.retries.asked(pending)

    def _kvfast_newest_registration(
        self: Any, req_id: str, blocks: Any, registration: dict[str, Any]
    ) -> dict[str, Any]:
        """Return what has been registered since for a request whose push failed, or `registration`.

        Whoever failed the first decode's request, and has another decode go on with what was prefilled, wants
        it written there; the first one's blocks may be another request's. But where a client has used an id
        for two requests at once, what is registered may be the other one's: then each keeps its own.
        """
        base_id = get_base_request_id(req_id)
        live = {*list(self._reqs_to_send), *list(self._reqs_to_process)}  # the main thread changes them
        if any(other != req_id and get_base_request_id(other) == base_id for other in live):
            return registration
        while (newer := self._pop_matching_registration(req_id)) is not None:
            registration = newer if self._kvfast_fits(blocks, newer) else registration
        return registration


def why_useless(notif: bytes) -> str | None:
    """Return why a registration can't be used to push anything, or None."""
    try:
        registration = msgspec.msgpack.decode(notif[len(PUSH_REG_NOTIF_PREFIX) :])
    except Exception as error:
        return repr(error)
    if not isinstance(registration, dict):
        return f"a {type(registration).__name__} in place of a dict"
    for name in (*_TEXTS, *_COUNTS, _BLOCKS):
        value = registration.get(name)
        if name in _TEXTS:
            good = isinstance(value, str) and value != ""
        elif name in _COUNTS:
            good = type(value) is int and value > 0
        else:
            good = _is_blocks(value)
        if not good:
            return f"{name} is {value!r:.60}" if name in registration else f"no {name}"
    return None


def _is_blocks(value: Any) -> bool:
    """Tell whether these are block ids, in groups or, of a single group, as they are."""
    if not isinstance(value, list):
        return False
    groups = value if any(isinstance(group, list) for group in value) else [value]
    return all(
        isinstance(group, list) and all(type(block) is int and block >= 0 for block in group)
        for group in groups
    )
