"""Pushes whose handshake failed, and when each is tried again.

vLLM drops such a push: nobody tells decode, whose request then waits for ever, although prefill holds the
blocks for as long as decode asks it to. That a peer was busy for the 5 s of a handshake is no reason.

It is decode's heartbeat for the request that starts the next try. A decode that was cut off may have failed
the request and given its blocks to another one: it asks for no more, and then nothing may be written there.
For the same reason a push waits for a heartbeat whose registration is older than a break of the connection:
what answers under the engine's name now may be a new process, which knows nothing of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Container
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from .borrow import StandIn, after

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker as _Next
else:
    _Next = object  # vLLM's push worker stands behind in the ``__mro__``

Push = tuple[str, Any, dict[str, Any]]  # the request's id, its blocks, and decode's registration

_MARK: Final = "kvfast_breaks"  # in a registration: how often the connection had broken when decode asked
_ENGINES: Final = 4096  # whose breaks are known; of another one, what is marked counts as older

# A handshake that is refused for good, such as over another model, fails and is logged at every try.
_WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class PushRetries:
    """Pushes that wait to be tried again. Thread-safe: their handshakes fail in vLLM's executor.

    A push is a tuple that begins with its request's id.

    Parameters
    ----------
    clock : callable
        Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock: Final = threading.Lock()
        self._failures: Final[dict[str, int]] = {}
        self._waiting: Final[list[tuple[float, Push]]] = []
        self._breaks: Final[OrderedDict[str, int]] = OrderedDict()

    def failed(self, push: Push) -> float:
        """Keep a push for later; return for how many seconds at least."""
        with self._lock:
            failures = self._failures.get(push[0], 0)
            self._failures[push[0]] = failures + 1
            wait_s = _WAITS_S[min(failures, len(_WAITS_S) - 1)]
            self._waiting.append((self._clock() + wait_s, push))
        return wait_s

    def broke(self, engine_id: str) -> None:
        """Note that the connection with an engine broke."""
        with self._lock:
            self._breaks[engine_id] = self._breaks.pop(engine_id, 0) + 1
            while len(self._breaks) > _ENGINES:
                self._breaks.popitem(last=False)

    def asked(self, registration: dict[str, Any]) -> None:
        """Note that decode has just asked for what it has registered."""
        registration[_MARK] = self._breaks_of(registration)

    def is_old(self, registration: dict[str, Any]) -> bool:
        """Tell whether the connection broke since decode asked; one that was not marked has just come."""
        known = self._breaks_of(registration)
        return bool(registration.setdefault(_MARK, known) != known)

    def take_due(self, req_ids: Container[str]) -> list[Push]:
        """Return these requests' pushes that have waited long enough, and keep them no longer."""
        if not self._waiting:
            return []  # nearly always: no lock, no clock
        with self._lock:
            now = self._clock()
            return self._take(lambda when, push: when <= now and push[0] in req_ids)

    def drop_others(self, req_ids: Container[str]) -> list[str]:
        """Drop the pushes of all other requests than these; return whose they were."""
        if not self._waiting:
            return []
        with self._lock:
            return [push[0] for push in self._take(lambda _, push: push[0] not in req_ids)]

    def has_failed(self, req_id: str) -> bool:
        """Tell whether a request's push has failed, and is not forgotten."""
        return req_id in self._failures

    def forget(self, req_id: str) -> None:
        """Forget how often a request's push failed: it was made, or will not be."""
        with self._lock:
            self._failures.pop(req_id, None)

    def _breaks_of(self, registration: dict[str, Any]) -> int:
        return self._breaks.get(registration.get("decode_engine_id", ""), 0)

    def _take(self, wanted: Callable[[float, Push], bool]) -> list[Push]:
        taken = [push for when, push in self._waiting if wanted(when, push)]
        self._waiting[:] = [(when, push) for when, push in self._waiting if not wanted(when, push)]
        return taken


class KvfastRetriesMixin(_Next):  # type: ignore[misc]
    """Tries a push again for as long as decode asks for it and its lease lives."""

    def _do_start_push_kv(self: Any, request_id: str, local_block_ids: Any, registration_data: Any) -> None:
        """Start a push; have it tried again if it waits for a handshake, and that fails."""
        handshakes: list[Future[Any]] = []

        def ensure(*args: Any, **kwargs: Any) -> Future[Any] | None:
            handshake: Future[Any] | None = self._ensure_handshake(*args, **kwargs)
            if handshake is not None:
                handshakes.append(handshake)
            return handshake

        push = (request_id, local_block_ids, registration_data)
        if self._kvfast.retries.is_old(registration_data):
            self._kvfast_wait_for_heartbeat(push)
            return
        stock = after(KvfastRetriesMixin, self)._do_start_push_kv
        try:
            stock(StandIn(self, _ensure_handshake=ensure), *push)
        finally:
            if not handshakes:
                self._kvfast.retries.forget(request_id)
        for handshake in handshakes:
            handshake.add_done_callback(lambda ended: self._kvfast_handshake_ended(ended, push))

    def _kvfast_wait_for_heartbeat(self: Any, push: Push) -> None:
        wait_s = self._kvfast.retries.failed(push)
        message = "engine %s was cut off after it registered request %s: pushed at a heartbeat after %.0f s"
        self._kvfast.warn("old registration", message, push[2]["decode_engine_id"], push[0], wait_s)

    def _kvfast_handshake_ended(self: Any, handshake: Future[Any], push: Push) -> None:
        """Keep a push whose handshake failed. From vLLM's executor."""
        if handshake.cancelled() or (error := handshake.exception()) is None:
            return
        req_id, _, registration = push
        wait_s = self._kvfast.retries.failed(push)
        message = "no handshake with engine %s: %r: request %s is pushed at a heartbeat after %.0f s"
        self._kvfast.warn("push handshake", message, registration["decode_engine_id"], error, req_id, wait_s)

    def _handle_heartbeat(self: Any, payload: str) -> None:
        """Extend leases, and try again to push what decode still waits for."""
        super()._handle_heartbeat(payload)
        asked_for = self._reqs_to_send.keys() & payload.split(",")
        for push in self._kvfast.retries.take_due(asked_for):
            self._kvfast.retries.asked(push[2])
            self._kvfast_hand_over(self._deferred_push_inbox, push)

    def _kvfast_settle(self: Any) -> None:
        super()._kvfast_settle()
        for req_id in self._kvfast.retries.drop_others(self._reqs_to_send):
            self._kvfast_too_late(req_id)
