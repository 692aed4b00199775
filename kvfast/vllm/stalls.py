"""Requests that take long: logged and counted once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from .state import KvfastState

_LOOKS_A_STALL = 4


class StallWatch:
    """Looks, a few times in each stall time, for requests outstanding longer than that."""

    def __init__(self, after_s: float, state: KvfastState) -> None:
        self._after_s = after_s
        self._state = state
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._next = state.clock()

    def look(self, *outstanding: Iterable[str]) -> None:
        """Look at the requests that are outstanding now."""
        now = self._state.clock()
        if now < self._next:
            return
        self._next = now + self._after_s / _LOOKS_A_STALL
        seen = {req_id for req_ids in outstanding for req_id in list(req_ids)}
        self._since = {req_id: self._since.get(req_id, now) for req_id in seen}
        self._told &= seen
        for req_id, since in self._since.items():
            if now - since > self._after_s and req_id not in self._told:
                self._told.add(req_id)
                self._state.count("stalled_requests")
                self._state.warn("stall", "request %s is outstanding for %.1f s", req_id, now - since)
