"""Simulated transfers: kvfast's own cost a handle, and that it does not grow with their number."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from bench.report import Report
from kvfast.bench import bare_loop
from kvfast.bench.race import Race
from kvfast.bench.simulated import (
    SimulatedTable,
    bookkeeping_burst,
    drain,
    each,
    finished_burst,
    in_flight_burst,
)
from kvfast.benchgate import GateBook

FEW, MANY = 1_000, 100_000
FINISHED_SIZES = (256, FEW, MANY)
FLIGHT_SIZES = (1, 4, 32, 256, FEW, 10_000, MANY)
ROUNDS = 6
LIMIT = f"bare C++ loop, {FEW:,} handles"
BOOKKEEPING = f"dict pop and list append, {FEW:,} items"
PROMISED_NS = {"in flight": 10, "finished": 150}


@pytest.fixture(scope="module")
def flights(cython: ModuleType) -> Iterator[dict[int, SimulatedTable]]:
    tables = {size: SimulatedTable(cython, size) for size in FLIGHT_SIZES}
    for table in tables.values():
        table.fill()
    yield tables
    for table in tables.values():
        drain(table)


@pytest.fixture(scope="module")
def in_flight(flights: dict[int, SimulatedTable], bare: ctypes.CDLL | None, report: Report) -> Iterator[Race]:
    subjects = {_name(n): in_flight_burst(table, max(2, 50_000 // n)) for n, table in flights.items()}
    if bare is not None:
        subjects[LIMIT] = bare_loop.simulated(bare, flights[FEW].agent.states)
    race = Race(subjects)
    race.run(10 * ROUNDS)
    yield race
    _show(report, "in flight, simulated", race)


@pytest.fixture(scope="module")
def finished(cython: ModuleType, report: Report) -> Iterator[Race]:
    race = Race(
        {
            **{_name(n): finished_burst(each(cython, n, 1 if n == MANY else 4)) for n in FINISHED_SIZES},
            BOOKKEEPING: bookkeeping_burst(FEW),
        }
    )
    race.run(ROUNDS)
    yield race
    _show(report, "finished, simulated", race)


@pytest.mark.usefixtures("limit")
def test_handle_in_flight(in_flight: Race, book: GateBook) -> None:
    book.expect(
        "simulated-in-flight",
        lambda: in_flight.ratio(_name(FEW), LIMIT),
        in_flight.longer,
        limit=lambda: 1.0,
        note=lambda: _against_promise(in_flight, "in flight"),
    )


def test_finished_handle(finished: Race, book: GateBook) -> None:
    book.expect(
        "simulated-finished",
        lambda: finished.ratio(_name(FEW), BOOKKEEPING),
        finished.longer,
        note=lambda: _against_promise(finished, "finished"),
    )


def test_cost_in_flight_does_not_grow(in_flight: Race, book: GateBook) -> None:
    book.expect(
        "scaling-in-flight",
        lambda: _growth(in_flight),
        in_flight.longer,
        limit=lambda: 1.0,
        note=lambda: f"{_ns(in_flight, MANY):.1f} ns / {_ns(in_flight, FEW):.1f} ns",
    )


def test_cost_of_finished_does_not_grow(finished: Race, book: GateBook) -> None:
    book.expect(
        "scaling-finished",
        lambda: _growth(finished),
        finished.longer,
        limit=lambda: 1.0,
        note=lambda: f"{_ns(finished, MANY):.1f} ns / {_ns(finished, FEW):.1f} ns",
    )


@pytest.mark.benchmark(group="in flight, simulated", max_time=0.2, min_rounds=5, disable_gc=True)
@pytest.mark.parametrize("size", [256, FEW, MANY])
def test_sweep_time(benchmark: Any, flights: dict[int, SimulatedTable], size: int) -> None:
    benchmark(flights[size].sweep)


def _name(size: int) -> str:
    return f"cython all, {size:,} handles"


def _growth(race: Race) -> float:
    return _ns(race, MANY) / _ns(race, FEW)


def _ns(race: Race, size: int) -> float:
    return race.best[_name(size)] * 1e9 / size


def _against_promise(race: Race, what: str) -> str:
    return f"{_ns(race, FEW):.1f} ns, promised {PROMISED_NS[what]} ns"


def _show(report: Report, group: str, race: Race) -> None:
    sizes = {_name(n): n for n in (*FLIGHT_SIZES, *FINISHED_SIZES)}
    for name, seconds in race.best.items():
        report.time(group, name, seconds, sizes.get(name, FEW))
