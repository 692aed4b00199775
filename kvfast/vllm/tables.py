"""What vLLM does with its containers and nobody else does with a transfer table.

It takes requests out, in its tests and at its shutdown, and has the handles from then on. And it tries a
refused release again at its next step.
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
