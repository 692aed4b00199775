"""Which handles a sweep asks about: all of them, or one of each request; and when a full scan is due."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from unittest import mock

import pytest

from tests.backend.doubles import DONE, PROC
from tests.backend.engines import DoubleEngine
from tests.backend.rig import Rig, failures

FULL_SCAN_S = 0.5


@pytest.fixture
def watch(backend: ModuleType, double: DoubleEngine, make_rig: Callable[..., Rig]) -> Rig:
    """A watching table with two requests of three handles, after its first sweep."""
    rig = make_rig(backend, double, "watch", full_scan_s=FULL_SCAN_S)
    rig.add("r", 1, 2, 3)
    rig.add("s", 4, 5, 6)
    rig.sweep()
    return rig


def asked(rig: Rig) -> list[int]:
    handles: list[int] = rig.engine.agent.asked()
    assert len(handles) == len(set(handles)), "a handle was asked twice in one sweep"
    return sorted(handles)


def test_all_asks_about_every_handle_at_every_sweep(
    backend: ModuleType, double: DoubleEngine, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(backend, double, "all", full_scan_s=1e9)
    rig.add("r", 1, 2, 3)
    rig.add("s", 4)
    for _ in range(3):
        rig.sweep()
        assert asked(rig) == [1, 2, 3, 4]


def test_watch_is_the_default(backend: ModuleType, double: DoubleEngine) -> None:
    table = backend.TransferTable(backend.bind(double.agent), clock=lambda: 0.0)
    assert table.scan == "watch"
    table.add("r", 1, 2)
    for expected in ([1, 2], [2]):
        backend.pop_done_transfers(table)
        assert sorted(double.agent.asked()) == expected
    double.set(1, DONE)
    double.set(2, DONE)
    assert backend.pop_done_transfers(table).done == {"r"}


def test_the_first_sweep_is_full(watch: Rig) -> None:
    assert asked(watch) == [1, 2, 3, 4, 5, 6]


def test_watch_asks_about_the_newest_of_each_request(watch: Rig) -> None:
    asked(watch)
    watch.sweep(after=FULL_SCAN_S / 4)
    assert asked(watch) == [3, 6]
    watch.add("r", 7)
    watch.add("t", 8)
    watch.sweep(after=FULL_SCAN_S / 4)
    assert asked(watch) == [6, 7, 8]


@pytest.mark.parametrize("status", [DONE, -3])
def test_watch_goes_on_to_the_next_older_one_in_the_same_sweep(watch: Rig, status: int) -> None:
    asked(watch)
    watch.engine.set(3, status)
    watch.sweep()
    assert asked(watch) == [2, 3, 6]
    watch.sweep()
    assert asked(watch) == [2, 6]
    watch.engine.set(1, DONE)  # not asked yet
    watch.sweep()
    assert asked(watch) == [2, 6]
    watch.engine.set(2, DONE)
    assert watch.sweep().done == {"r"}
    assert asked(watch) == [1, 2, 6]


def test_a_full_scan_is_due_after_full_scan_s_and_not_before(watch: Rig) -> None:
    for _ in range(3):
        asked(watch)
        watch.sweep(after=FULL_SCAN_S * 0.99)
        assert asked(watch) == [3, 6]
        watch.sweep(after=FULL_SCAN_S * 0.02)
        assert asked(watch) == [1, 2, 3, 4, 5, 6]
        watch.sweep()
        assert asked(watch) == [3, 6]


def test_full_scans_come_no_rarer_where_sweeps_are_rare(watch: Rig) -> None:
    for _ in range(3):
        asked(watch)
        watch.sweep(after=10 * FULL_SCAN_S)
        assert asked(watch) == [1, 2, 3, 4, 5, 6]


def test_an_older_handles_failure_is_told_by_the_next_full_scan(watch: Rig) -> None:
    watch.engine.set(1, -3)
    watch.engine.set(4, DONE)
    early = watch.sweep(after=FULL_SCAN_S * 0.9)
    assert (early.failures, len(early.transfers)) == ([], 0)
    late = watch.sweep(after=FULL_SCAN_S * 0.1)
    assert (failures(late), len(late.transfers)) == ([("r", 1, "BACKEND", False)], 1)
    assert watch.released(1, 4) == [1, 1]


def test_zero_makes_every_scan_full(
    backend: ModuleType, double: DoubleEngine, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(backend, double, "watch", full_scan_s=0)
    rig.add("r", 1, 2)
    for _ in range(3):
        rig.sweep()
        assert asked(rig) == [1, 2]


def test_a_sweep_that_was_interrupted_is_no_full_scan(watch: Rig) -> None:
    watch.engine.agent.answers[2] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        watch.sweep(after=FULL_SCAN_S)
    watch.engine.agent.asked()
    watch.engine.set(2, PROC)
    watch.sweep()
    assert asked(watch) == [1, 2, 3, 4, 5, 6]


def test_the_clock_is_read_once_a_sweep(backend: ModuleType, double: DoubleEngine, scan: str) -> None:
    clock = mock.Mock(return_value=5.0)
    table = backend.TransferTable(backend.bind(double.agent), scan=scan, clock=clock)
    for expected in (1, 2, 3):
        backend.pop_done_transfers(table)
        assert clock.call_count == expected


def test_handles_taken_out_in_the_middle_leave_the_order(watch: Rig) -> None:
    watch.engine.agent.asked()
    watch.engine.set(2, DONE)
    watch.sweep(after=FULL_SCAN_S)
    assert (watch.table.handles("r"), watch.table.handles("s")) == ([1, 3], [4, 5, 6])
    asked(watch)
    watch.sweep()
    assert asked(watch) == [3, 6]
    watch.engine.set(3, DONE)
    watch.sweep()
    assert asked(watch) == [1, 3, 6]
