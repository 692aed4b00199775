"""Real transfers that are DONE: sweep, telemetry, statistics, release."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from bench.report import Report
from kvfast.bench.bare_loop import BareLoop
from kvfast.bench.drains import Drains, burst_of_landed
from kvfast.bench.race import Race
from kvfast.bench.real import HANDLES, Link
from kvfast.bench.subjects import ALL, LIMIT, LOOP, PYTHON
from kvfast.benchgate import GateBook

GROUP = f"drain, {HANDLES} real handles that are DONE"
ROUNDS = 20


@pytest.fixture(scope="module")
def drains(link: Link, cython: ModuleType, python: ModuleType) -> Drains:
    return Drains(link, {ALL: cython, PYTHON: python})


@pytest.fixture(scope="module")
def race(drains: Drains, bare: ctypes.CDLL | None, report: Report) -> Iterator[Race]:
    subjects = drains.bursts()
    if bare is not None:
        subjects[LIMIT] = partial(drains.bare, BareLoop(bare, drains.link.binding))
    race = Race(subjects)
    race.run(ROUNDS)
    yield race
    report.times(GROUP, race.best, HANDLES)


def test_drain_against_the_loop(race: Race, book: GateBook) -> None:
    book.expect(
        "drain",
        partial(race.ratio, LOOP, ALL),
        race.longer,
        limit=partial(race.ratio, LOOP, LIMIT) if LIMIT in race.best else None,
        note=lambda: f"{race.best[LOOP] * 1e6:.1f} us / {race.best[ALL] * 1e6:.1f} us",
    )


def test_drain_with_the_first_check(drains: Drains, report: Report) -> None:
    """Information: the same from where NIXL has not been asked yet; its part is the larger here."""
    race = Race({name: partial(burst_of_landed, drains.link, drains.prepares[name]) for name in (LOOP, ALL)})
    race.run(ROUNDS // 2)
    report.times(f"{GROUP}, NIXL's first check included", race.best, HANDLES)
    report.note("drain, NIXL's first check included", f"{race.ratio(LOOP, ALL):.2f} x")


@pytest.mark.benchmark(group=f"{GROUP}, each after other work", disable_gc=True)
@pytest.mark.parametrize("subject", [LOOP, PYTHON, ALL])
def test_drain_time(benchmark: Any, drains: Drains, subject: str) -> None:
    prepare = drains.prepares[subject]
    done = benchmark.pedantic(
        lambda drain: drain(), setup=lambda: ((prepare(drains.link.done()),), {}), rounds=15
    )
    assert done, "a sweep left something over"
