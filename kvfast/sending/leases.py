"""Whose lease is over, at no cost per poll."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from .request import SendRequest

NEVER: Final = float("inf")
_SLACK: Final = 64  # entries of ended requests that are not worth clearing away


class Leases:
    """A heap of deadlines, one entry a request.

    An extension leaves the entry where it is: when that comes up, it goes back in under the new
    deadline. An end leaves it too, until it comes up or such entries are the majority.
    """

    def __init__(self, requests: Mapping[str, SendRequest]) -> None:
        self._requests = requests
        self._heap: list[tuple[float, int, str]] = []
        self.next_at: float = NEVER  # nobody is due before this time

    def __len__(self) -> int:
        """Return how many entries there are, those of ended requests included."""
        return len(self._heap)

    def add(self, request: SendRequest) -> None:
        """Put a request in, under its deadline."""
        if len(self._heap) > 2 * len(self._requests) + _SLACK:
            self._heap = [entry for entry in self._heap if self._owner(entry) is not None]
            heapify(self._heap)
        request.has_timer = True
        heappush(self._heap, (request.deadline, request.order, request.req_id))
        self.next_at = self._heap[0][0]

    def due(self, now: float) -> list[SendRequest]:
        """Take out the requests whose lease is over, in the order of their deadlines."""
        found: list[SendRequest] = []
        while self._heap and self._heap[0][0] <= now:
            request = self._owner(heappop(self._heap))
            if request is None:
                continue
            if request.deadline > now:
                heappush(self._heap, (request.deadline, request.order, request.req_id))
                continue
            request.has_timer = False
            found.append(request)
        self.next_at = self._heap[0][0] if self._heap else NEVER
        return found

    def _owner(self, entry: tuple[float, int, str]) -> SendRequest | None:
        request = self._requests.get(entry[2])
        # The id may be in use again by another request.
        return request if request is not None and request.order == entry[1] else None
