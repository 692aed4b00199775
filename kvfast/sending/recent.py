"""Request ids that have ended, as far back as anybody may still ask."""

from __future__ import annotations

from collections import OrderedDict


class RecentIds:
    """The last `capacity` ids that were added."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, req_id: str) -> None:
        """Remember an id, and forget the oldest one if there are too many."""
        self._ids[req_id] = None
        self._ids.move_to_end(req_id)
        if len(self._ids) > self._capacity:
            self._ids.popitem(last=False)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)
