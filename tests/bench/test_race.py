"""Races and contests: what counts is the best burst of each."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from kvfast.bench import contention
from kvfast.bench.contention import BusyThread, Contest, Rates, beside_a_busy_thread
from kvfast.bench.race import Race, calls, in_a_row, shortest


def nothing() -> None: ...


def bursts_of(**bursts: list[float]) -> dict[str, Any]:
    return {name: iter(values).__next__ for name, values in bursts.items()}


def test_a_race_keeps_each_subjects_shortest_and_goes_on_from_there() -> None:
    race = Race(bursts_of(a=[3.0, 2.0, 4.0], b=[8.0, 9.0, 6.0]))
    race.run(2)
    assert race.ratio("b", "a") == 4.0
    race.run(1)
    assert (race.best, race.rounds) == ({"a": 2.0, "b": 6.0}, 3)


def test_who_begins_a_round_changes() -> None:
    order: list[str] = []

    def burst(name: str) -> float:
        order.append(name)
        return 1.0

    Race({name: lambda name=name: burst(name) for name in "abc"}).run(3)  # type: ignore[misc]
    assert "".join(order) == "abcbcacab"


def test_no_collection_happens_in_a_burst_and_the_collector_is_on_again() -> None:
    seen: list[bool] = []

    def burst() -> float:
        seen.append(gc.isenabled())
        if len(seen) == 2:
            raise ValueError("broken")
        return 1.0

    with pytest.raises(ValueError, match="broken"):
        Race({"a": burst}).run(2)
    assert seen == [False, False]
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("ticks", "rounds"),
    [
        ((0.0, 100.0), 2),  # it takes two at least
        ((0.0, 1.0, 2.0, 3.0, 4.0, 4.5, 5.0), 7),  # and as many as there is time for
        ((0.0, 6.0, 7.0, 8.0, 9.0), 5),  # but five beyond its time
        ((0.0, 6.0, 49.0, 50.0), 4),  # up to ten times that
    ],
)
def test_a_race_by_time(ticks: tuple[float, ...], rounds: int) -> None:
    race = Race(bursts_of(a=[1.0] * 9))
    race.run_for(5.0, iter(ticks).__next__)
    assert race.rounds == rounds


def test_a_longer_race_goes_on_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(Race, "run_for", lambda self, seconds: asked.append(seconds))
    Race({}).longer()
    assert asked == [3.0]


def test_in_a_row_every_pass_counts_by_itself() -> None:
    bursts = in_a_row(bursts_of(a=[3.0, 1.0, 2.0, 0.5], b=[4.0, 5.0, 6.0, 7.0]))
    assert {name: burst() for name, burst in bursts.items()} == {"a": 1.0, "b": 4.0}


def test_calls_and_shortest_by_a_clock() -> None:
    ticks = iter([0, 60])
    assert calls(nothing, 3, lambda: next(ticks))() == 20e-9
    ticks = iter([0, 50, 100, 130, 200, 290])
    assert shortest([nothing] * 3, lambda: next(ticks)) == 30e-9


def test_a_contest_goes_by_the_means_of_all_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [Rates(10, 50, 1.0, 0.5), Rates(20, 30, 2.0, 0.5)]
    fast = [Rates(40, 60, 1.0), Rates(50, 60, 1.0)]
    seen = iter([slow[0], fast[0], slow[1], fast[1]])
    monkeypatch.setattr(contention, "beside_a_busy_thread", lambda sweep, seconds: next(seen))
    contest = Contest({"slow": nothing, "fast": nothing}, 1.0)
    contest.run(2)
    assert contest.rates == {"slow": Rates(30, 80, 3.0, 1.0), "fast": Rates(90, 120, 2.0, 0.0)}
    assert contest.sweeps_ratio("fast", "slow") == 4.5
    assert contest.rates["slow"].work == pytest.approx(80 / 3)
    assert contest.work_ratio("fast", "slow") == 1.5  # 60 a second, against 80 in 2 s with a core


def test_the_busy_thread_knows_how_long_it_had_no_core() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # a process on the same core takes about half of it
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    busy = BusyThread()
    assert busy.coreless() == 0.0  # no thread yet, so the kernel tells nothing
    try:
        busy.start()
        deadline = time.monotonic() + 30.0
        while busy.coreless() < 0.05 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert busy.coreless() >= 0.05
    finally:
        busy.stop()
        spinner.kill()
        spinner.wait()
        os.sched_setaffinity(0, cores)


def test_beside_a_busy_thread_both_get_something_done() -> None:
    busy = BusyThread()
    busy.start()
    while busy.units == 0:
        pass  # the interpreter lets it in by itself
    busy.stop()
    assert not busy.is_alive()
    sweeps: list[None] = []
    rates = beside_a_busy_thread(lambda: sweeps.append(None), 0.0)
    assert len(sweeps) == 1
    assert rates.sweeps > 0


def test_the_busy_thread_ends_when_a_sweep_raises() -> None:
    def sweep() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        beside_a_busy_thread(sweep, 1.0)
    assert "busy" not in {thread.name for thread in threading.enumerate()}
