"""Who has been outstanding for too long, at no cost per poll."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from .request import ReceiveRequest

NEVER: Final = float("inf")


class StallWatch:
    """Requests by the time since which they have been outstanding.

    All wait equally long, so the order of adding is the order in which they are due, and a look at
    the first tells that nobody is.
    """

    def __init__(self, after_s: float | None) -> None:
        self._after_s = after_s
        # Not a dict: its first key is slow to find after many deletions at its front.
        self._since: OrderedDict[str, float] = OrderedDict()
        self.next_at: float = NEVER  # nobody is due before or at this time

    def add(self, req_id: str, now: float) -> None:
        """Watch a request from now on, unless it is watched already."""
        if self._after_s is not None:
            self._since.setdefault(req_id, now)
            self.next_at = min(self.next_at, now + self._after_s)

    def discard(self, requests: Iterable[ReceiveRequest]) -> None:
        """Watch these no more."""
        if self._since:
            for request in requests:
                self._since.pop(request.req_id, None)

    def due(self, now: float) -> list[str]:
        """Return the requests that have been outstanding for too long, each once."""
        found: list[str] = []
        while self._since and self._after_s is not None:
            req_id, since = next(iter(self._since.items()))
            self.next_at = since + self._after_s
            if now <= self.next_at:
                return found
            del self._since[req_id]
            found.append(req_id)
        self.next_at = NEVER
        return found
