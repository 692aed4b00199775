"""Fixtures of the benchmarks, and the report at the end of the run."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType

import pytest

from bench.gates import FLOORS
from bench.report import Report
from kvfast.bench import bare_loop, real, subjects
from kvfast.bench.machine import machine
from kvfast.benchgate import GateBook, load
from kvfast_ext import cython_available, select_backend
from tests.nixl.rank import nixl_missing

REPORT = pytest.StashKey[Report]()
FIRST = Path(__file__).with_name("test_simulated.py")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = Report(GateBook(load(FLOORS)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # 100,000 handles are about caches: they come before others have scattered the heap.
    items.sort(key=lambda item: item.path != FIRST)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("kvfast performance")
    terminalreporter.write_line(f"{datetime.now(timezone.utc):%Y-%m-%d}, {machine()}")
    for line in ["", *config.stash[REPORT].lines()]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    return pytestconfig.stash[REPORT]


@pytest.fixture(scope="session")
def book(report: Report) -> GateBook:
    return report.book


@pytest.fixture(scope="session")
def cython() -> ModuleType:
    """The compiled backend: what most gates are about. Skipped where it is not built, if that may be."""
    if not cython_available() and os.environ.get("KVFAST_REQUIRE_EXT") != "1":
        pytest.skip("the cython backend is not built")
    return select_backend("cython")


@pytest.fixture(scope="session")
def python() -> ModuleType:
    return select_backend("python")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL | None:
    """The bare C++ loop, compiled now; None where there is no compiler, if that may be."""
    if bare_loop.compiler() is None and os.environ.get("KVFAST_REQUIRE_EXT") != "1":
        return None
    return bare_loop.build(tmp_path_factory.mktemp("bare"))


@pytest.fixture
def limit(bare: ctypes.CDLL | None) -> None:
    """Skip what is about the limit itself where that can't be compiled."""
    if bare is None:
        pytest.skip("no C++ compiler for the bare loop, the limit")


@pytest.fixture(scope="module")
def link() -> Iterator[real.Link]:
    """A rank and an agent over real NIXL. Skipped where NIXL is not installed, if that may be."""
    if nixl_missing():
        pytest.skip("NIXL is not installed")
    with real.link() as found:
        yield found


@pytest.fixture(scope="module")
def flight(link: real.Link) -> Iterator[real.Flight]:
    """Real transfers in flight to a stopped peer."""
    with real.in_flight(link) as found:
        yield found


@pytest.fixture(scope="module")
def backends(cython: ModuleType, python: ModuleType) -> dict[str, ModuleType]:
    return {"cython": cython, "python": python}


@pytest.fixture(scope="module")
def sweeps(flight: real.Flight, backends: dict[str, ModuleType]) -> dict[str, subjects.Sweep]:
    """A sweep of each subject over the same transfers in flight."""
    return subjects.sweepers(flight, backends)
