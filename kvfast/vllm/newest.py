"""Which of the things that were handed over under one request id still counts.

A client that tries again may use the id of a request that has ended, while something of that request
still waits for a handshake. What waits is told from what came later by which object it is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_REMEMBERED: Final = 4096


class Newest:
    """The latest request ids whose things were withdrawn, each with what came after. Has no lock."""

    def __init__(self) -> None:
        # The thing's id(), so that nothing is kept alive by it. Whoever asks holds what it asks about, which
        # was there before anything newer: no newer thing can have got the same.
        self._known: OrderedDict[str, int | None] = OrderedDict()

    def give(self, req_id: str, thing: object) -> None:
        """Note what has just come under an id of which something was withdrawn."""
        if req_id in self._known:
            self._note(req_id, id(thing))

    def withdraw(self, req_id: str) -> None:
        """Note that nothing that has come under an id counts any more."""
        self._note(req_id, None)

    def is_withdrawn(self, req_id: str) -> bool:
        """Tell whether nothing counts under an id, until something comes anew."""
        return self._known.get(req_id, -1) is None

    def counts(self, req_id: str, thing: object) -> bool:
        """Tell whether a thing still counts; of an id that is not known, it does."""
        return self._known.get(req_id, id(thing)) == id(thing)

    def _note(self, req_id: str, known: int | None) -> None:
        self._known[req_id] = known
        self._known.move_to_end(req_id)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
