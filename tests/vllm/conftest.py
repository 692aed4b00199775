"""These tests need an installed vLLM of a supported version; they are skipped without one.

With ``KVFAST_REQUIRE_VLLM=1``, as in CI, a missing one is a failure.
"""

from __future__ import annotations

import importlib.util
import os

if importlib.util.find_spec("vllm") is None and os.environ.get("KVFAST_REQUIRE_VLLM") != "1":
    collect_ignore_glob = ["test_*.py"]
