"""The soak starts many processes and takes minutes: it runs where KVFAST_SOAK=1 asks for it."""

from __future__ import annotations

import os

if os.environ.get("KVFAST_SOAK") != "1":
    collect_ignore_glob = ["test_*.py"]
