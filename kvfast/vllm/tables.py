"""Taking a request out of a transfer table: its caller has the handles from then on.

No sweep does that and vLLM's serving paths don't either; its tests and its shutdown do.
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
    # It owns nothing any more; dropped as it is, it would mark the handles as released.
    table._store = None
    return fresh
