"""What vLLM does with its containers and nobody else does with a transfer table.

It takes requests out, in its tests and at its shutdown, and has the handles from then on. It tries a
refused release again at its next step. And it removes engines whose handles have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def without_request(table: Any, make_table: Callable[[], Any], req_id: str) -> Any:
    """Return a table with everything of `table` but one request; `table` is used up.

    Handles that had failed and wait for their release are asked again: their wait begins anew.
    """
    fresh = make_table()
    for other in table:
        if other != req_id:
            fresh.open(other)
            handles = table.handles(other)
            if handles:
                fresh.add(other, *handles)
    give_up(table)
    return fresh


def give_up(table: Any) -> None:
    """Have a table own nothing any more: dropped as it is, it would mark its handles as released."""
    table._store = None


def retry_at_next_sweep(table: Any) -> None:
    """Have releases that were refused once tried again at the next sweep; then the table's back-off holds."""
    for item in table._held.items():
        if item.refusals == 1:
            item.due = item.since


def aside(table: Any) -> list[Any]:
    """Return the handles of transfers that are done and whose release was refused: no request has them."""
    return [item.handle for item in table._held.items() if item.req_id is None]


def in_flight_of(table: Any, peer: str) -> int:
    """Return how many handles of a peer may still move bytes; those aside have moved theirs."""
    with table._feed:  # push mode's writer thread asks too, and a sweep may be forgetting a peer
        tokens = set(table._peers.tokens_of(peer))
        done = sum(item.req_id is None and item.peer in tokens for item in table._held.items())
        return int(table.outstanding_of(peer)) - done
