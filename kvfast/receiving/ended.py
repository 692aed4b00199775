"""Requests that have ended and are not reported yet.

They are kept here, not in a variable of a poll: an exception that is no error (Ctrl-C in an agent's
method) ends the poll, and the next one must still report them.
"""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import Final

from kvfast_ext.loglater import LogLater

from ..request_states import State
from ..results import ReceiveResults
from ..stats import Stats
from .request import BY_ORDER, ReceiveRequest

logger = logging.getLogger(__name__)


class EndedRequests:
    """Ended requests by their end, and stalled ones, until `take` reports them."""

    def __init__(self) -> None:
        self.by_end: Final[dict[State, list[ReceiveRequest]]] = {
            State.ENDED_FINISHED: [],
            State.ENDED_FAILED: [],
            State.ENDED_ABORTED: [],
        }
        self.stalled: Final[list[ReceiveRequest]] = []
        self.maybe_any = False  # set by whoever adds: an idle poll looks at nothing else
        self.lists: Final = (*self.by_end.values(), self.stalled)

    def __contains__(self, req_id: str) -> bool:
        return any(request.req_id == req_id for ended in self.by_end.values() for request in ended)

    def take(self, stats: Stats, lines: LogLater) -> ReceiveResults:
        """Report and count what was taken in since the last call."""
        finished, failed, aborted, stalled = map(_ids, self.lists)
        results = ReceiveResults(
            finished, failed, aborted, stalled, _invalid_blocks(self.by_end[State.ENDED_FAILED])
        )
        for name in ("finished", "failed", "aborted", "stalled"):
            req_ids = getattr(results, name)
            if req_ids:
                stats.count(f"{name}_requests", len(req_ids))
                lines.add(logger, logging.DEBUG, "requests %s: %s", name, req_ids)
        self.maybe_any = False
        for requests in self.lists:  # last: what raised before is reported by the next call
            requests.clear()
        return results


def _ids(requests: list[ReceiveRequest]) -> frozenset[str]:
    return frozenset([request.req_id for request in requests])


def _invalid_blocks(failed: list[ReceiveRequest]) -> list[list[int]]:
    groups = [request.blocks for request in sorted(failed, key=BY_ORDER)]
    return [[block for group in merged for block in group] for merged in zip_longest(*groups, fillvalue=())]
