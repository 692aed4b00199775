"""Real transfers, 1 to 4,096 of them in flight: the cost of a handle must not grow with their number."""

from __future__ import annotations

import ctypes
from functools import partial
from types import ModuleType

import pytest

from bench.report import Report
from kvfast.bench.bare_loop import BareLoop
from kvfast.bench.race import Race
from kvfast.bench.real import PER_REQUEST, Link, in_flight
from kvfast.bench.subjects import ALL, LIMIT, LIMIT_WATCH, LOOP, limits, racers, sweepers
from kvfast.benchgate import GateBook

SIZES = (1, 4, 16, 64, 256, 1_024, 4_096)
FEW, MANY = 256, 4_096
SECONDS = {1_024: 2.0, 4_096: 4.0}  # 1 for the others

Sizes = dict[int, dict[str, float]]


class Scaling:
    """The shortest sweep of each subject, by how many real handles are in flight."""

    def __init__(self, link: Link, cython: ModuleType, bare: ctypes.CDLL | None) -> None:
        self._link = link
        self._cython = cython
        self._bare = None if bare is None else BareLoop(bare, link.binding)
        self.best: Sizes = {}

    def measure(self, size: int) -> None:
        """Put so many in flight and race; a size that was measured before keeps its minima."""
        per_request = min(PER_REQUEST, size)
        with in_flight(self._link, size // per_request, per_request) as flight:
            sweeps = sweepers(flight, {"cython": self._cython})
            race = Race(racers(sweeps, limits(flight, self._bare)))
            race.best |= self.best.get(size, {})
            race.run_for(SECONDS.get(size, 1.0))
        self.best[size] = race.best

    def growth(self, subject: str) -> float:
        """Return the cost of a handle among many, divided by that among few."""
        return self.ns(subject, MANY) / self.ns(subject, FEW)

    def ns(self, subject: str, size: int) -> float:
        return self.best[size][subject] * 1e9 / size

    def again(self) -> None:
        for size in (FEW, MANY):
            self.measure(size)


@pytest.fixture(scope="module")
def scaling(link: Link, cython: ModuleType, bare: ctypes.CDLL | None, report: Report) -> Scaling:
    found = Scaling(link, cython, bare)
    for size in SIZES:
        found.measure(size)
        for subject, seconds in found.best[size].items():
            if subject != LIMIT_WATCH:
                report.time("in flight, real", f"{subject}, {size:,} handles", seconds, size)
    return found


def test_cost_of_real_handles_does_not_grow(scaling: Scaling, book: GateBook) -> None:
    book.expect(
        "scaling-real",
        partial(scaling.growth, ALL),
        scaling.again,
        limit=partial(scaling.growth, LIMIT) if LIMIT in scaling.best[FEW] else None,
        note=lambda: (
            f"{scaling.ns(ALL, MANY):.0f} ns / {scaling.ns(ALL, FEW):.0f} ns "
            f"(vLLM's loop {scaling.ns(LOOP, MANY):,.0f} / {scaling.ns(LOOP, FEW):,.0f})"
        ),
    )
