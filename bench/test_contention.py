"""Polling beside a busy Python thread: sweeps of the poller, and what the other thread gets done."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import ModuleType

import pytest

from bench.report import Report
from kvfast.bench.contention import Contest
from kvfast.bench.real import PER_REQUEST, Link, in_flight
from kvfast.bench.subjects import ALL, LOOP, WATCH, sweepers
from kvfast.benchgate import GateBook

BURST_S = 0.15
ROUNDS = 30
SIZES = (256, 1_024)
CASES = [(256, ALL), (256, WATCH), (1_024, ALL), (1_024, WATCH)]


class Beside:
    """Contests by the number of handles in flight; measured the first time that one is asked for."""

    def __init__(self, contest: Contest, handles: int) -> None:
        self.contest = contest
        self.handles = handles

    def sweeps(self, subject: str) -> str:
        ours, loop = self.contest.rates[subject], self.contest.rates[LOOP]
        return f"{ours.sweeps:,.0f}/s, {loop.sweeps:,.0f}/s"

    def work(self, subject: str) -> str:
        ours, loop = self.contest.rates[subject], self.contest.rates[LOOP]
        return f"{ours.work_on_core:,.0f}/s, {loop.work_on_core:,.0f}/s, {self.handles:,} handles, {subject}"


@pytest.fixture(scope="module", params=SIZES)
def beside(
    request: pytest.FixtureRequest, link: Link, cython: ModuleType, report: Report
) -> Iterator[Beside]:
    handles: int = request.param
    with in_flight(link, handles // PER_REQUEST, PER_REQUEST) as flight:
        contest = Contest(sweepers(flight, {"cython": cython}), BURST_S)
        contest.run(ROUNDS)
        yield Beside(contest, handles)
    for name, rates in contest.rates.items():
        report.note(
            f"beside a busy thread, {handles:,} real handles, {name}",
            f"{rates.sweeps:,.1f} sweeps/s, the other thread {rates.work:,.0f} units/s, "
            f"and had no core for {rates.coreless / rates.seconds:.0%} of the time",
        )


@pytest.mark.parametrize("subject", [ALL, WATCH])
def test_sweeps_beside_a_busy_thread(beside: Beside, book: GateBook, subject: str) -> None:
    scan = subject.split()[1]
    book.expect(
        f"contention-{beside.handles}-{scan}",
        partial(beside.contest.sweeps_ratio, subject, LOOP),
        partial(beside.contest.run, ROUNDS),
        note=partial(beside.sweeps, subject),
    )


@pytest.mark.parametrize("subject", [ALL, WATCH])
def test_the_other_thread_gets_no_less_done(beside: Beside, book: GateBook, subject: str) -> None:
    book.expect(
        "contention-work",
        partial(beside.contest.work_ratio, subject, LOOP),
        partial(beside.contest.run, ROUNDS),
        note=partial(beside.work, subject),
    )
