"""Notifications on their way to peers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from kvfast_ext.loglater import LogLater

from ..peers import is_disconnect
from ..ratelimit import RateLimit
from ..stats import Stats
from .request import BY_ORDER, ReceiveRequest

logger = logging.getLogger(__name__)


class Outbox:
    """Sends what was put in, in order, once. A refusal is counted and logged, never raised.

    ``lost`` is called with a peer whose connection turns out to be gone.
    """

    def __init__(
        self, agent: Any, stats: Stats, limit: RateLimit, lines: LogLater, lost: Callable[[str], None]
    ) -> None:
        self._agent = agent
        self._stats = stats
        self._limit = limit
        self._lines = lines
        self._lost = lost
        self.waiting: deque[tuple[str, str, bytes]] = deque()  # request, peer, message

    def put(self, requests: Iterable[ReceiveRequest]) -> None:
        """Put in the notifications of some requests, in the order in which they were tracked."""
        for request in sorted(requests, key=BY_ORDER):
            self.waiting.extend((request.req_id, peer, message) for peer, message in request.notifs or ())

    def send(self) -> None:
        """Send all that was put in."""
        sent = 0
        try:
            while self.waiting:
                req_id, peer, message = self.waiting.popleft()
                try:
                    self._agent.send_notif(peer, message)
                except Exception as error:
                    self._refused(req_id, peer, error)
                else:
                    sent += 1
        finally:
            self._stats.count("sent_notifs", sent)

    def _refused(self, req_id: str, peer: str, error: Exception) -> None:
        self._stats.count("failed_notifs")
        dropped = self._limit.allow(("notif", peer))
        if dropped is not None:
            text = "notification for request %r to peer %r not sent: %r (%d more before)"
            self._lines.add(logger, logging.WARNING, text, req_id, peer, error, dropped)
        if is_disconnect(error):
            self._lost(peer)
