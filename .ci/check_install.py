"""Check an installed kvfast: ``check_install.py cython|python``, which backend there must be.

A request of two handles goes through the table, to see that the backend works and not only loads.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import kvfast
import kvfast_ext
from kvfast_ext import SimulatedAgent, states


def check(condition: bool, words: str) -> None:
    """End with an error unless `condition` holds."""
    if not condition:
        sys.exit(f"check_install: {words}")


def main(expected: str) -> None:
    """Run all checks."""
    folder = Path(kvfast_ext.__file__).parent
    check("site-packages" in folder.parts, f"{folder} is not an installation")
    check(expected == kvfast.BACKEND, f"the backend is {kvfast.BACKEND!r}, expected {expected!r}")
    compiled = sorted(path.name for path in folder.rglob("*.so"))
    check(len(compiled) == (2 if expected == "cython" else 0), f"compiled modules: {compiled}")
    check(importlib.util.find_spec("nixl") is None, "NIXL is here: this should run without")

    agent = SimulatedAgent(2)
    backend = kvfast.select_backend("auto")
    table = backend.TransferTable(backend.bind(agent), scan="all")
    table.add("request", 0, 1)
    check(backend.pop_done_transfers(table).done == set(), "reported in flight")
    agent.states[:] = states.SUCCESS
    check(backend.pop_done_transfers(table).done == {"request"}, "not reported when done")
    check(agent.released.tolist() == [1, 1], f"released {agent.released.tolist()}, expected once each")
    print(f"kvfast {kvfast.__version__} from {folder}: {expected} backend works")


if __name__ == "__main__":
    main(sys.argv[1])
