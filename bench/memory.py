"""Measure what a handle costs in memory; run in a process of its own, prints JSON.

Two looks at the same: what the compiled store says it has allocated, and what the process has
resident. Raw ids are added, so no handle objects count.
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from kvfast_ext import SimulatedAgent, select_backend

HANDLES: Final = 400_000
CHUNK: Final = 1_000


def resident() -> int:
    """Return the resident bytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def new_table(handles: int) -> Any:
    """Return an empty table of the compiled backend."""
    backend = select_backend("cython")
    agent = SimulatedAgent(handles)
    agent.states[:] = 0
    agent.released[:] = 0
    return backend.TransferTable(backend.bind(agent), scan="all")


def fill(table: Any, handles: int, per_request: int) -> float:
    """Add handles; return the most bytes a handle that the store had allocated on the way."""
    worst = 0.0
    for first in range(0, handles, CHUNK):
        for start in range(first, first + CHUNK, per_request):
            table.add(f"request-{start}", np.arange(start, start + per_request, dtype=np.uint64))
        worst = max(worst, table._store.nbytes / (first + CHUNK))
    return worst


def measure() -> dict[str, float]:
    """Return bytes a handle, and bytes a request."""
    backend = select_backend("cython")
    fill(new_table(CHUNK), CHUNK, 4)  # whatever is loaded or cached at first use
    few = new_table(HANDLES)
    before = resident()
    allocated = fill(few, HANDLES, CHUNK)
    a_handle = (resident() - before) / HANDLES
    backend.pop_done_transfers(few)
    fill(few, HANDLES, CHUNK)
    after_drain = (resident() - before) / HANDLES
    many = new_table(HANDLES)
    before = resident()
    fill(many, HANDLES, 4)
    a_request = (resident() - before - a_handle * HANDLES) / (HANDLES / 4)
    for table in (few, many):
        backend.pop_done_transfers(table)
    return {
        "allocated": allocated,
        "resident": a_handle,
        "resident after all ended at once": after_drain,
        "a request with its id": a_request,
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
