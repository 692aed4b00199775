"""Fixtures for all tests: each runs on both backends, and on both scans where it asks for one."""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from kvfast_ext import cython_available, select_backend


@pytest.fixture(params=["cython", "python"])
def backend(request: pytest.FixtureRequest) -> ModuleType:
    """A backend module. A missing extension is skipped, or fails under KVFAST_REQUIRE_EXT=1."""
    if request.param == "cython" and not cython_available() and os.environ.get("KVFAST_REQUIRE_EXT") != "1":
        pytest.skip("the cython backend is not built")
    return select_backend(request.param)


@pytest.fixture(params=["all", "watch"])
def scan(request: pytest.FixtureRequest) -> str:
    """How a sweep scans."""
    return str(request.param)
