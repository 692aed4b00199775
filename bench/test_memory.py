"""Memory for a handle in a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import kvfast_ext
from bench import memory
from bench.report import Report
from kvfast.benchgate import GateBook


def test_memory_of_a_handle(cython: ModuleType, book: GateBook, report: Report) -> None:
    assert cython is not None
    measured = _measure()
    book.expect(
        "memory",
        lambda: max(measured["allocated"], measured["resident"]),
        lambda: measured.update(_measure()),
        note=lambda: f"allocated {measured['allocated']:.1f} B, resident {measured['resident']:.1f} B",
    )
    for name in ("resident after all ended at once", "a request with its id"):
        report.note(f"memory, {name}", f"{measured[name]:.0f} B")


def _measure() -> dict[str, float]:
    # A process of its own: what others have allocated and freed here would blur it.
    root = Path(kvfast_ext.__file__).parent.parent
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, memory.__file__],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found
