"""Fixtures of the backend tests: every kind of agent, and checks that hold whatever a test is about."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from kvfast_ext import cython_available, select_backend
from tests.backend.engines import ENGINES, DoubleEngine, Engine
from tests.backend.rig import Rig


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine of each kind; a test that misuses a handle fails at its end."""
    made: Engine = ENGINES[request.param]()
    yield made
    assert made.violations == []


@pytest.fixture
def double() -> Iterator[DoubleEngine]:
    """The engine that answers by Python methods, for tests that look at its calls."""
    made = DoubleEngine()
    yield made
    assert made.violations == []


@pytest.fixture(params=["ints", "mixed", "objects"])
def form(request: pytest.FixtureRequest) -> str:
    """What handles look like."""
    return str(request.param)


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    """Make rigs; each must be able to end, with every handle released once."""
    made: list[Rig] = []

    def make(*args: Any, **options: Any) -> Rig:
        made.append(Rig(*args, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.end()


@pytest.fixture
def any_rig(backend: ModuleType, engine: Engine, scan: str, make_rig: Callable[..., Rig]) -> Rig:
    """A table on any engine, both backends and both scans; `watch` scans fully each time."""
    return make_rig(backend, engine, scan)


@pytest.fixture
def rig(backend: ModuleType, double: DoubleEngine, scan: str, make_rig: Callable[..., Rig]) -> Rig:
    """The same on the Python double."""
    return make_rig(backend, double, scan)


@pytest.fixture
def compiled() -> ModuleType:
    """The compiled backend, for what only that one promises."""
    if not cython_available() and os.environ.get("KVFAST_REQUIRE_EXT") != "1":
        pytest.skip("the cython backend is not built")
    return select_backend("cython")


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Return the messages at WARNING or above that contain some words."""
    caplog.set_level(logging.WARNING, logger="kvfast_ext")

    def matching(words: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if words in record.getMessage()]

    return matching
