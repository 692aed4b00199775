"""Which backends and scans programs are run on."""

from __future__ import annotations

import os
from typing import Final

from kvfast_ext import cython_available

REQUIRED: Final = os.environ.get("KVFAST_REQUIRE_EXT") == "1"
BACKENDS: Final = ("python", "cython") if REQUIRED or cython_available() else ("python",)
SETUPS: Final = tuple((backend, scan) for backend in BACKENDS for scan in ("all", "watch"))

# A program that fails is left where it is, with its transfers in flight. That is to be told apart from a
# program that ends and leaves some: those are looked for by name.
LEFT_IN_FLIGHT: Final = "ignore:a transfer table was dropped:ResourceWarning"
