"""The baseline against what it stands for: the loop in vLLM's real worker class, where vLLM is installed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from bench.report import Report
from kvfast.bench.race import Race
from kvfast.bench.real import HANDLES, Flight
from kvfast.bench.subjects import ALL, LOOP, WATCH, Sweep, racers
from kvfast.benchgate import GateBook

pytest.importorskip("vllm")

from tests.vllm import rig

ROUNDS = 150
WORKER = "vLLM's worker class"


def worker_sweep(flight: Flight) -> Sweep:
    """Return a sweep by vLLM's own code, over the same transfers as everyone's."""
    worker: Any = rig.make(rig.STOCK["pull"], flight.link.agent)
    worker._recving_transfers.update(flight.transfers)
    return partial(worker._pop_done_transfers, worker._recving_transfers)


@pytest.fixture(scope="module")
def race(flight: Flight, sweeps: dict[str, Sweep], report: Report) -> Iterator[Race]:
    subjects = {name: sweeps[name] for name in (LOOP, ALL, WATCH)} | {WORKER: worker_sweep(flight)}
    race = Race(racers(subjects, {}))
    race.run(ROUNDS)
    yield race
    report.times(f"in flight, {HANDLES} real handles, beside vLLM", race.best, HANDLES)


@pytest.mark.parametrize(
    ("gate", "above", "below"),
    [
        ("vllm-baseline", LOOP, WORKER),
        ("vllm-in-flight-all", WORKER, ALL),
        ("vllm-in-flight-watch", WORKER, WATCH),
    ],
)
def test_against_vllms_own_loop(race: Race, book: GateBook, gate: str, above: str, below: str) -> None:
    book.expect(
        gate,
        partial(race.ratio, above, below),
        race.longer,
        note=lambda: f"{race.best[above] * 1e6:.1f} us / {race.best[below] * 1e6:.1f} us",
    )
