"""Pushes whose handshake failed, and when each is tried again.

vLLM drops such a push: nobody tells decode, whose request then waits for ever, although prefill holds the
blocks for as long as decode asks it to. That a peer was busy for the 5 s of a handshake is no reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from .borrow import StandIn, after

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker as _Next
else:
    _Next = object  # vLLM's push worker stands behind in the ``__mro__``

# A handshake that is refused for good, such as over another model, fails and is logged at every try.
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 30.0


class PushRetries:
    """Pushes that wait to be tried again. Thread-safe: their handshakes fail in vLLM's executor.

    Parameters
    ----------
    clock : callable
        Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock: Final = threading.Lock()
        self._failures: Final[dict[str, int]] = {}
        self._waiting: Final[list[tuple[float, Any]]] = []

    def failed(self, req_id: str, push: Any) -> float:
        """Keep a request's push for later; return in how many seconds it is due."""
        with self._lock:
            failures = self._failures.get(req_id, 0)
            self._failures[req_id] = failures + 1
            wait_s = min(_FIRST_S * 2.0**failures, _LONGEST_S)
            self._waiting.append((self._clock() + wait_s, push))
        return wait_s

    def take_due(self) -> list[Any]:
        """Return the pushes that are due, and keep them no longer."""
        if not self._waiting:
            return []  # at nearly every step: no lock, no clock
        with self._lock:
            now = self._clock()
            due = [push for when, push in self._waiting if when <= now]
            self._waiting[:] = [(when, push) for when, push in self._waiting if when > now]
        return due

    def forget(self, req_id: str) -> None:
        """Forget how often a request's push has failed: it was made, or will not be."""
        with self._lock:
            self._failures.pop(req_id, None)


class KvfastRetriesMixin(_Next):  # type: ignore[misc]
    """Tries a push again for as long as its lease lives."""

    def _do_start_push_kv(self: Any, request_id: str, local_block_ids: Any, registration_data: Any) -> None:
        """Start a push; have it tried again if it waits for a handshake, and that fails."""
        handshakes: list[Future[Any]] = []

        def ensure(*args: Any, **kwargs: Any) -> Future[Any] | None:
            handshake: Future[Any] | None = self._ensure_handshake(*args, **kwargs)
            if handshake is not None:
                handshakes.append(handshake)
            return handshake

        push = (request_id, local_block_ids, registration_data)
        stock = after(KvfastRetriesMixin, self)._do_start_push_kv
        try:
            stock(StandIn(self, _ensure_handshake=ensure), *push)
        finally:
            if not handshakes:
                self._kvfast.retries.forget(request_id)
        for handshake in handshakes:
            handshake.add_done_callback(lambda ended: self._kvfast_handshake_ended(ended, push))

    def _kvfast_handshake_ended(self: Any, handshake: Future[Any], push: tuple[str, Any, Any]) -> None:
        """Keep a push whose handshake failed. From vLLM's executor."""
        if handshake.cancelled() or (error := handshake.exception()) is None:
            return
        req_id, _, registration = push
        wait_s = self._kvfast.retries.failed(req_id, push)
        message = "request %s is pushed later: no handshake with engine %s: %r; next try in %.0f s"
        self._kvfast.warn("push handshake", message, req_id, registration["decode_engine_id"], error, wait_s)

    def _kvfast_settle(self: Any) -> None:
        super()._kvfast_settle()
        for push in self._kvfast.retries.take_due():
            self._kvfast_hand_over(self._deferred_push_inbox, push)
