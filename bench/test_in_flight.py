"""Real transfers in flight to a stopped peer: the sweep that an engine does at every step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from bench.bare_loop import BareLoop
from bench.gates import GateBook
from bench.race import Burst, Race, calls
from bench.real import HANDLES, REQUESTS, Flight
from bench.report import Report

GROUP = f"in flight, {HANDLES} real handles"
ROUNDS = 150
LIMIT_ALL = "bare C++ loop"
LIMIT_WATCH = f"bare C++ loop, {REQUESTS} of them"
SUBJECTS = ("per-handle loop", "python all", "cython all", "cython watch")


@pytest.fixture(scope="module")
def race(
    sweeps: dict[str, Callable[[], object]], flight: Flight, bare: ctypes.CDLL | None, report: Report
) -> Iterator[Race]:
    race = Race(
        {
            "per-handle loop": calls(sweeps["per-handle loop"], 1),
            "python all": calls(sweeps["python all"], 1),
            "cython all": calls(sweeps["cython all"], 2),
            "cython watch": calls(sweeps["cython watch"], 4),
            **_limits(flight, bare),
        }
    )
    race.run(ROUNDS)
    yield race
    report.times(GROUP, race.best, HANDLES)


def test_native_calls_are_what_is_measured(flight: Flight, cython: ModuleType) -> None:
    ops = cython.bind(flight.link.agent)
    assert ops.kind == "nixl", ops.reason


@pytest.mark.parametrize(
    ("gate", "subject", "limit"),
    [
        ("in-flight-all", "cython all", LIMIT_ALL),
        ("in-flight-watch", "cython watch", LIMIT_WATCH),
    ],
)
def test_sweep_against_the_loop(race: Race, book: GateBook, gate: str, subject: str, limit: str) -> None:
    book.expect(
        gate,
        partial(race.ratio, "per-handle loop", subject),
        partial(race.run, ROUNDS),
        limit=partial(race.ratio, "per-handle loop", limit) if limit in race.best else None,
        note=lambda: _both(race, "per-handle loop", subject),
    )


@pytest.mark.usefixtures("limit")
def test_scan_all_against_the_limit(race: Race, book: GateBook) -> None:
    book.expect(
        "bare-loop",
        partial(race.ratio, "cython all", LIMIT_ALL),
        partial(race.run, ROUNDS),
        limit=lambda: 1.0,
        note=lambda: _both(race, "cython all", LIMIT_ALL),
    )


@pytest.mark.benchmark(group=GROUP, max_time=0.3, min_rounds=20, disable_gc=True)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_sweep_time(benchmark: Any, sweeps: dict[str, Callable[[], object]], subject: str) -> None:
    benchmark(sweeps[subject])


def _limits(flight: Flight, bare: ctypes.CDLL | None) -> dict[str, Burst]:
    """Return the bare loop over what each scan asks about."""
    if bare is None:
        return {}
    loop = BareLoop(bare, flight.link.binding)
    newest = [handles[-1]._handle for handles in flight.transfers.values()]
    return {
        LIMIT_ALL: loop.check(handle._handle for handle in flight.handles),
        LIMIT_WATCH: loop.check(newest),
    }


def _both(race: Race, above: str, below: str) -> str:
    return f"{race.best[above] * 1e6:.1f} us / {race.best[below] * 1e6:.1f} us"
