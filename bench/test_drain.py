"""Real transfers that are DONE: sweep, telemetry, statistics, release."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from bench.bare_loop import BareLoop
from bench.gates import GateBook
from bench.race import Race, shortest
from bench.real import HANDLES, REQUESTS, Link, Transfers
from bench.report import Report
from bench.vllm_loop import SmallStats, VllmLoop

GROUP = f"drain, {HANDLES} real handles that are DONE"
ROUNDS = 12
LIMIT = "bare C++ loop"
SETS = 4  # drained one after the other in a burst, see `shortest`

Drain = Callable[[], bool]  # sweeps once; tells whether all requests are done by now
Prepare = Callable[[Transfers], Drain]


class Drains:
    """What a drain of each subject is. All prepare the same, and only what they return is timed."""

    def __init__(self, link: Link, backends: dict[str, ModuleType]) -> None:
        self.link = link
        self.backends = backends
        self.ops = {name: backend.bind(link.agent) for name, backend in backends.items()}

    def loop(self, transfers: Transfers) -> Drain:
        """Prepare a drain by the per-handle loop."""
        loop = VllmLoop(self.link.agent, transfers, SmallStats(), _refuse)

        def drain() -> bool:
            return len(loop.sweep()) == REQUESTS and len(loop.stats.bytes) == HANDLES

        return drain

    def table(self, name: str, transfers: Transfers) -> Drain:
        """Prepare a drain by a table, with what it samples put where the loop puts it.

        The table's references to the handles are the last ones, as the loop's are, so their
        finalisers run inside the sweep on both sides.
        """
        backend = self.backends[name]
        table = backend.TransferTable(self.ops[name], scan="all")
        for req_id, handles in transfers.items():
            table.add(req_id, *handles, peer=self.link.rank.name)
        transfers.clear()
        stats = SmallStats()

        def drain() -> bool:
            result = backend.pop_done_transfers(table)
            stats.record_all(result.transfers)
            return len(result.done) == REQUESTS and len(stats.bytes) == HANDLES

        return drain

    def bare(self, limit: BareLoop) -> float:
        """Run the limit over some sets of handles; return the seconds of the shortest pass."""
        best = float("inf")
        for transfers in [self.link.done() for _ in range(SETS)]:
            handles = [handle for each in transfers.values() for handle in each]
            best = min(best, limit.finish(handle._handle for handle in handles))
            for handle in handles:
                handle._released = True
        return best


@pytest.fixture(scope="module")
def drains(link: Link, cython: ModuleType, python: ModuleType) -> Drains:
    return Drains(link, {"cython all": cython, "python all": python})


@pytest.fixture(scope="module")
def prepares(drains: Drains) -> dict[str, Prepare]:
    return {
        "per-handle loop": drains.loop,
        "python all": partial(drains.table, "python all"),
        "cython all": partial(drains.table, "cython all"),
    }


@pytest.fixture(scope="module")
def race(
    drains: Drains, prepares: dict[str, Prepare], bare: ctypes.CDLL | None, report: Report
) -> Iterator[Race]:
    subjects = {name: partial(_burst, drains.link.done, prepare) for name, prepare in prepares.items()}
    if bare is not None:
        subjects[LIMIT] = partial(drains.bare, BareLoop(bare, drains.link.binding))
    race = Race(subjects)
    race.run(ROUNDS)
    yield race
    report.times(GROUP, race.best, HANDLES)


def test_drain_against_the_loop(race: Race, book: GateBook) -> None:
    book.expect(
        "drain",
        partial(race.ratio, "per-handle loop", "cython all"),
        partial(race.run, ROUNDS),
        limit=partial(race.ratio, "per-handle loop", LIMIT) if LIMIT in race.best else None,
        note=lambda: f"{race.best['per-handle loop'] * 1e6:.1f} us / {race.best['cython all'] * 1e6:.1f} us",
    )


def test_drain_with_the_first_check(drains: Drains, prepares: dict[str, Prepare], report: Report) -> None:
    """Information: the same from where NIXL has not been asked yet; its part is the larger here."""
    names = ("per-handle loop", "cython all")
    race = Race({name: partial(_burst_of_landed, drains.link, prepares[name]) for name in names})
    race.run(ROUNDS)
    report.times(f"{GROUP}, NIXL's first check included", race.best, HANDLES)
    report.note("drain, NIXL's first check included", f"{race.ratio(*names):.2f} x")


@pytest.mark.benchmark(group=f"{GROUP}, each after other work", disable_gc=True)
@pytest.mark.parametrize("subject", ["per-handle loop", "python all", "cython all"])
def test_drain_time(benchmark: Any, link: Link, prepares: dict[str, Prepare], subject: str) -> None:
    done = benchmark.pedantic(
        lambda drain: drain(), setup=lambda: ((prepares[subject](link.done()),), {}), rounds=15
    )
    assert done, "a sweep left something over"


def _burst(source: Callable[[], Transfers], prepare: Prepare) -> float:
    drains = [prepare(source()) for _ in range(SETS)]
    return shortest([partial(_drain_whole, drain) for drain in drains])


def _burst_of_landed(link: Link, prepare: Prepare) -> float:
    # The first sweep of a burst is a warm-up here: each set must be swept before the next is posted,
    # or NIXL's checks of one would also do the work of another.
    _drain_whole(prepare(link.done()))
    drain = prepare(link.landed())
    start = time.perf_counter_ns()
    whole = drain()
    spent = (time.perf_counter_ns() - start) / 1e9
    while not whole:  # there was a straggler: not what is measured
        whole, spent = drain(), float("inf")
    return spent


def _drain_whole(drain: Drain) -> None:
    assert drain(), "a sweep left something over"


def _refuse(req_id: str, what: object) -> None:
    raise AssertionError(f"{req_id}: {what!r} is not DONE")
