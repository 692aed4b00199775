"""Fixtures for all tests: each runs on both backends, and on both scans where it asks for one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import ModuleType

import pytest

from kvfast_ext import cython_available, select_backend


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Let started processes take a Ctrl-C: a shell's background jobs inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
