"""Requests that have ended and are not reported yet.

They are kept here, not in a variable of a poll: an exception that is no error (Ctrl-C in an agent's
method) ends the poll, and the next one must still report them.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Final

from ..request_states import State
from ..results import ReceiveResults
from .request import BY_ORDER, ReceiveRequest

# Names of an enum are slow to find.
_FINISHED: Final = State.ENDED_FINISHED
_FAILED: Final = State.ENDED_FAILED
_ABORTED: Final = State.ENDED_ABORTED


class EndedRequests:
    """Ended requests, until `take` reports them by their end."""

    def __init__(self) -> None:
        self.any = False
        self._ended: list[ReceiveRequest] = []
        self._stalled: list[str] = []

    def add(self, ended: list[ReceiveRequest]) -> None:
        """Take in requests whose state is an end."""
        self._ended += ended
        self.any = self.any or bool(ended)

    def add_stalled(self, req_ids: list[str]) -> None:
        """Take in requests that are outstanding for too long."""
        self._stalled += req_ids
        self.any = self.any or bool(req_ids)

    def take(self) -> ReceiveResults:
        """Report what was taken in since the last call."""
        self.any = False
        ended, self._ended = self._ended, []
        stalled, self._stalled = self._stalled, []
        failed = [request for request in ended if request.state == _FAILED]
        return ReceiveResults(
            frozenset([request.req_id for request in ended if request.state == _FINISHED]),
            frozenset([request.req_id for request in failed]),
            frozenset([request.req_id for request in ended if request.state == _ABORTED]),
            frozenset(stalled),
            _invalid_blocks(failed),
        )


def _invalid_blocks(failed: list[ReceiveRequest]) -> list[list[int]]:
    groups = [request.blocks for request in sorted(failed, key=BY_ORDER)]
    return [[block for group in merged for block in group] for merged in zip_longest(*groups, fillvalue=())]
