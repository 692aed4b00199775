"""Who has been outstanding for too long, at no cost per poll."""

from __future__ import annotations

from collections import deque
from typing import Final

from ..request_states import ENDS
from .request import NEVER, ReceiveRequest

_SLACK: Final = 64  # ended requests that are not worth clearing away


class StallWatch:
    """Requests in the order in which they became outstanding.

    All wait equally long, so that is the order in which they are due, and a look at the first tells
    that nobody is. An end leaves its request here, until it comes up or such ones are the majority.
    """

    def __init__(self, after_s: float | None) -> None:
        self._after_s = NEVER if after_s is None else after_s
        self._watched: deque[ReceiveRequest] = deque()
        self.next_at = NEVER  # nobody is due before or at this time

    def __len__(self) -> int:
        """Return how many requests are kept, ended ones included."""
        return len(self._watched)

    def add(self, request: ReceiveRequest, tracked: int) -> None:
        """Watch a request that has become outstanding; `tracked` is how many there are in all."""
        if self._after_s == NEVER:
            return
        if len(self._watched) > 2 * tracked + _SLACK:
            self._watched = deque(known for known in self._watched if known.state not in ENDS)
        self._watched.append(request)
        self._set_next()

    def due(self, now: float) -> list[ReceiveRequest]:
        """Take out the requests that have been outstanding for too long."""
        found: list[ReceiveRequest] = []
        while now > self.next_at:
            request = self._watched.popleft()
            if request.state not in ENDS:
                found.append(request)
            self._set_next()
        return found

    def _set_next(self) -> None:
        self.next_at = self._watched[0].since + self._after_s if self._watched else NEVER
