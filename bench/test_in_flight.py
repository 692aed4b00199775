"""Real transfers in flight to a stopped peer: the sweep that an engine does at every step."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from bench.report import Report
from kvfast.bench.bare_loop import BareLoop
from kvfast.bench.race import Race
from kvfast.bench.real import HANDLES, Flight
from kvfast.bench.subjects import ALL, LIMIT, LIMIT_WATCH, LOOP, PYTHON, WATCH, Sweep, limits, racers
from kvfast.benchgate import GateBook

GROUP = f"in flight, {HANDLES} real handles"
ROUNDS = 150


@pytest.fixture(scope="module")
def race(
    sweeps: dict[str, Sweep], flight: Flight, bare: ctypes.CDLL | None, report: Report
) -> Iterator[Race]:
    loop = None if bare is None else BareLoop(bare, flight.link.binding)
    race = Race(racers(sweeps, limits(flight, loop)))
    race.run(ROUNDS)
    yield race
    report.times(GROUP, race.best, HANDLES)


def test_native_calls_are_what_is_measured(flight: Flight, cython: ModuleType) -> None:
    ops = cython.bind(flight.link.agent)
    assert ops.kind == "nixl", ops.reason


@pytest.mark.parametrize(
    ("gate", "subject", "limit"),
    [
        ("in-flight-all", ALL, LIMIT),
        ("in-flight-watch", WATCH, LIMIT_WATCH),
    ],
)
def test_sweep_against_the_loop(race: Race, book: GateBook, gate: str, subject: str, limit: str) -> None:
    book.expect(
        gate,
        partial(race.ratio, LOOP, subject),
        race.longer,
        limit=partial(race.ratio, LOOP, limit) if limit in race.best else None,
        note=lambda: _both(race, LOOP, subject),
    )


@pytest.mark.usefixtures("limit")
def test_scan_all_against_the_limit(race: Race, book: GateBook) -> None:
    book.expect(
        "bare-loop",
        partial(race.ratio, ALL, LIMIT),
        race.longer,
        limit=lambda: 1.0,
        note=lambda: _both(race, ALL, LIMIT),
    )


@pytest.mark.benchmark(group=GROUP, max_time=0.3, min_rounds=20, disable_gc=True)
@pytest.mark.parametrize("subject", [LOOP, PYTHON, ALL, WATCH])
def test_sweep_time(benchmark: Any, sweeps: dict[str, Sweep], subject: str) -> None:
    benchmark(sweeps[subject])


def _both(race: Race, above: str, below: str) -> str:
    return f"{race.best[above] * 1e6:.1f} us / {race.best[below] * 1e6:.1f} us"
