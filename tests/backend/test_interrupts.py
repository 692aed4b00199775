"""Ctrl-C and its like out of the agent's methods: nothing is lost, and nothing is freed twice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kvfast_ext import Quarantine
from tests.backend.doubles import DONE, LOST, PROC, Double, HandleObject, raising
from tests.backend.engines import DoubleEngine
from tests.backend.rig import Rig, failures

INTERRUPTS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]


@pytest.fixture(params=INTERRUPTS, ids=lambda cls: cls.__name__)
def interrupt(request: pytest.FixtureRequest) -> BaseException:
    error: BaseException = request.param("stop")
    return error


def test_out_of_a_check(rig: Rig, double: DoubleEngine, interrupt: BaseException) -> None:
    rig.add("r", 1, 2, 3)
    rig.add("s", 4)
    rig.add("t", 5)
    for handle in (1, 3, 4):
        double.set(handle, DONE)
    double.set(5, -3)
    double.agent.answers[2] = interrupt
    with pytest.raises(type(interrupt)) as raised:
        rig.sweep()
    assert raised.value is interrupt
    assert rig.released(1, 2, 3, 4, 5) == [0] * 5  # all checks come before any release
    assert rig.table.handle_count == 5
    double.set(2, PROC)
    result = rig.sweep()
    assert (result.done, result.failed, failures(result)) == ({"s", "t"}, {"t"}, [("t", 5, "BACKEND", False)])
    double.set(2, DONE)
    assert len(result.transfers) + len(rig.sweep().transfers) == 4
    assert rig.released(1, 2, 3, 4, 5) == [1] * 5


def test_nothing_more_is_asked_after_an_interrupt(rig: Rig, double: DoubleEngine) -> None:
    for handle in range(10):
        rig.add(f"r{handle}", handle)
        double.agent.answers[handle] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        rig.sweep()
    assert len(double.agent.asked()) == 1


def test_out_of_telemetry(rig: Rig, double: DoubleEngine, interrupt: BaseException) -> None:
    rig.add("r", 1, 2)
    rig.add("s", 3)
    for handle in (1, 2, 3):
        double.set(handle, DONE)
    double.agent.samples[2] = interrupt
    with pytest.raises(type(interrupt)):
        rig.sweep()
    assert rig.released(1, 2, 3) == [1, 1, 1]
    result = rig.sweep()  # what the interrupted sweep saw
    assert (result.done, len(result.transfers), result.transfers.unsampled) == ({"r", "s"}, 2, 1)
    assert rig.sweep().done == set()


def test_out_of_the_release_of_a_done_handle(
    rig: Rig, double: DoubleEngine, interrupt: BaseException
) -> None:
    rig.add("r", 1, 2)
    rig.add("s", 3)
    for handle in (1, 2, 3):
        double.set(handle, DONE)
    double.agent.refusals[2] = interrupt  # whether NIXL has freed it can't be known
    with pytest.raises(type(interrupt)):
        rig.sweep()
    double.agent.asked("release")
    result = rig.sweep(after=1000)
    assert (result.done, result.failed, len(result.transfers), result.retained) == ({"r", "s"}, set(), 3, 0)
    assert double.agent.asked("release") == []  # trying again could free it twice
    assert (rig.released(1, 3), len(rig.table)) == ([1, 1], 0)
    rig.added.remove(2)


@pytest.mark.parametrize("status", [-3, LOST])
def test_out_of_the_release_of_a_failed_handle(
    rig: Rig, double: DoubleEngine, interrupt: BaseException, status: int
) -> None:
    rig.add("r", 1, 2)
    rig.add("s", 3)
    for handle in (1, 2, 3):
        double.set(handle, status)
    if status == LOST:
        assert len(rig.sweep().failures) == 3
    double.agent.refusals[2] = interrupt
    with pytest.raises(type(interrupt)):
        rig.sweep(after=30)
    double.agent.asked("release")
    result = rig.sweep(after=1000)
    assert (result.done, result.retained) == ({"r", "s"}, 0)
    assert len(result.failures) == (0 if status == LOST else 3)
    assert result.blind_releases == (3 if status == LOST else 0)
    assert double.agent.asked("release") == []
    rig.added.remove(2)


def interrupting() -> None:
    raise KeyboardInterrupt


def test_an_interrupted_release_is_not_repeated_by_the_finaliser(
    backend: ModuleType, double: DoubleEngine, scan: str
) -> None:
    # NIXL frees first and sets `_released` then: an interrupt may come in between.
    table = backend.TransferTable(backend.bind(double.agent), scan=scan)
    for handle, status in ((1, DONE), (2, -3)):
        table.add(f"r{handle}", HandleObject(handle, double.agent))
        double.set(handle, status)
        double.agent.refusals[handle] = interrupting
        with pytest.raises(KeyboardInterrupt):
            backend.pop_done_transfers(table)
    result = backend.pop_done_transfers(table)
    assert result.done == {"r1", "r2"}
    del result, table
    gc.collect()
    assert double.agent.finalised == []


def test_two_interrupts_in_a_row_lose_nothing(rig: Rig, double: DoubleEngine) -> None:
    for handle in (1, 2, 3):
        rig.add(f"r{handle}", handle)
    for handle in (1, 2):
        double.set(handle, DONE)
        double.agent.samples[handle] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            rig.sweep()
    double.set(3, DONE)
    result = rig.sweep()
    assert (result.done, len(result.transfers), result.transfers.unsampled) == ({"r1", "r2", "r3"}, 1, 2)
    assert rig.sweep().done == set()


def test_in_one_sweep_out_of_telemetry_and_release(rig: Rig, double: DoubleEngine) -> None:
    rig.add("r", 1, 2)
    double.set(1, DONE)
    double.set(2, DONE)
    double.agent.samples[1] = KeyboardInterrupt("telemetry")
    double.agent.refusals[2] = KeyboardInterrupt("release")
    with pytest.raises(KeyboardInterrupt):
        rig.sweep()
    result = rig.sweep()  # and not the other one again
    assert result.done == {"r"}
    rig.added.remove(2)


def test_the_interrupted_request_used_again_is_told_twice_not_mixed_up(
    rig: Rig, double: DoubleEngine
) -> None:
    rig.add("r", 1)
    double.set(1, DONE)
    double.agent.samples[1] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        rig.sweep()
    rig.add("r", 2)
    assert rig.sweep().done == {"r"}
    assert list(rig.table) == ["r"]
    double.set(2, DONE)
    assert rig.sweep().done == {"r"}


def test_a_watching_table_with_quarantine_goes_on(
    backend: ModuleType, double: DoubleEngine, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(backend, double, "watch", full_scan_s=5, quarantine=Quarantine(30, 1))
    rig.add("r", 1, 2, 3)
    rig.sweep()
    double.set(3, -3)
    double.set(2, DONE)
    double.agent.samples[2] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        rig.sweep()
    result = rig.sweep(after=1)
    assert (result.done, result.failed, failures(result)) == (set(), {"r"}, [("r", 3, "BACKEND", False)])
    assert rig.released(1, 2, 3) == [0, 1, 1]


class Interrupting(Double):
    """Raises at the n-th call of any method, whichever that is."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 30

    def _enter(self, method: str, handle: object) -> object:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super()._enter(method, handle)


@pytest.mark.parametrize("scan", ["all", "watch"])
def test_an_interrupt_at_any_call_loses_nothing(backend: ModuleType, scan: str) -> None:
    calls = 1
    while interrupted_at(backend, scan, calls):
        calls += 1
    assert calls > 20  # the program has that many calls


def interrupted_at(backend: ModuleType, scan: str, call: int) -> bool:
    """Run a program with an interrupt at a call; return whether that call came."""
    agent = Interrupting()
    now = [0.0]
    table = backend.TransferTable(
        backend.bind(agent), scan=scan, clock=lambda: now[0], quarantine=Quarantine(4, 2)
    )
    codes = {0: "DONE", 1: RuntimeError("x"), 2: type("nixlNotFoundError", (Exception,), {})(), 3: "DONE"}
    for handle in range(8):
        table.add(f"r{handle // 3}", handle)
    agent.left = call
    done: list[str] = []
    failed: list[str] = []
    told: list[int] = []
    samples = 0
    for step in range(14):
        now[0] += 1.0
        agent.answers.update({h: codes[h % 4] for h in range(8) if h <= step})
        try:
            result = backend.pop_done_transfers(table)
        except KeyboardInterrupt:
            continue
        done += result.done
        failed += result.failed
        told += [failure.handle for failure in result.failures]
        samples += len(result.transfers) + result.transfers.unsampled
    came = agent.left <= 0
    assert sorted(done) == ["r0", "r1", "r2"], call
    assert sorted(failed) == ["r0", "r1", "r2"], call
    assert (sorted(told), samples) == ([1, 2, 5, 6], 4), call
    assert agent.violations == [], call
    # A release that was interrupted before it began counts as one: at most that handle leaks.
    assert sum(agent.released.values()) >= (7 if came else 8), call
    assert max(agent.released.values()) == 1, call
    assert (len(table), table.handle_count) == (0, 0)
    return came


@pytest.mark.filterwarnings("ignore:a transfer table was dropped:ResourceWarning")
def test_a_signal_at_any_line_frees_nothing_twice(backend: ModuleType) -> None:
    # A real Ctrl-C comes between any two lines of kvfast too. It may cost results, never a second release.
    tables: list[Any] = []  # dropped at the end: the signal is for sweeps
    while signalled_at(backend, len(tables) + 1, tables):
        pass
    assert len(tables) > 100  # a sweep has that many lines
    tables.clear()
    gc.collect()


def signalled_at(backend: ModuleType, line: int, tables: list[Any]) -> bool:
    """Run a program that a signal handler interrupts at a line of kvfast; return whether it got that far."""
    agent, now, left = Double(), [0.0], [line]
    table = backend.TransferTable(
        backend.bind(agent), scan="all", clock=lambda: now[0], quarantine=Quarantine(2, 1)
    )
    tables.append(table)
    table.add("r", 0, 1, 2)
    table.add("s", 3)
    agent.answers.update({0: "DONE", 1: raising(-3), 2: raising(LOST), 3: "DONE"})
    agent.refusals[3] = raising(-3)

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if "kvfast_ext" not in frame.f_code.co_filename:
            return None
        left[0] -= event == "line"
        if left[0] == 0 and event == "line":
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()  # a debugger's, or coverage's
    for step in range(6):
        now[0] += 1.0
        if step == 2:
            agent.refusals.clear()
        with contextlib.suppress(KeyboardInterrupt):
            sys.settrace(trace)
            try:
                backend.pop_done_transfers(table)
            finally:
                sys.settrace(before)
    assert agent.violations == [], line
    assert max(agent.released.values(), default=0) <= 1, line
    return left[0] <= 0
