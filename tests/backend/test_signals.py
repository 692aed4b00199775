"""SIGINT in the middle of native code, and wherever Python looks for it: nothing is lost or freed twice.

C's ``raise(int)`` stands in for a native release: with SIGINT as the context of a ``kvfast.ops.v1``
capsule, each release raises that signal and answers 0, success, without Python code in between. So
KeyboardInterrupt comes where the signal is first looked for afterwards, as it does after a Ctrl-C.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import functools
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from kvfast_ext import Quarantine, SimulatedAgent
from tests.backend.doubles import DONE, LOST, PROC, Clock, HandleObject
from tests.backend.engines import CALL, Ops, new_capsule

C: Any = ctypes.CDLL(None)


class SigintEngine:
    """Ops whose every release raises SIGINT; states are asked for in Python, before that.

    With ``native`` states are asked for in C too, and are none that NIXL has: all handles have failed.
    """

    def __init__(self, signals: Callable[[], int], *, native: bool = False) -> None:
        self.states: dict[int, int] = {}
        self.asked: list[int] = []
        self.finalised: list[int] = []  # by `HandleObject`
        self.releases = signals
        self._status = CALL(self._answer)
        # abs(SIGINT) is no success: there is no telemetry.
        functions = (C.abs if native else self._status, C.abs, getattr(C, "raise"))
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        self.ops = Ops(1, ctypes.sizeof(Ops), int(signal.SIGINT), *addresses)
        self.capsule = new_capsule(ctypes.addressof(self.ops))

    def _answer(self, context: int, handle: int) -> int:
        self.asked.append(handle)
        return self.states.get(handle, PROC)

    def handle(self, handle: int, state: int, form: str = "objects") -> Any:
        self.states[handle] = state
        return HandleObject(handle, self) if form == "objects" else handle


@pytest.fixture
def signals() -> Iterator[Callable[[], int]]:
    """Count the SIGINTs that came: the C handler writes a byte for each."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.set_wakeup_fd(writer)
    count = 0

    def came() -> int:
        nonlocal count
        with contextlib.suppress(BlockingIOError):
            count += len(os.read(reader, 4096))
        return count

    yield came
    signal.set_wakeup_fd(before)
    signal.signal(signal.SIGINT, handler)
    os.close(reader)
    os.close(writer)


@pytest.fixture
def engine(signals: Callable[[], int]) -> SigintEngine:
    return SigintEngine(signals)


@pytest.mark.filterwarnings("ignore:a transfer table was dropped:ResourceWarning")
@pytest.mark.parametrize("failing", [[], [-3], [LOST], [-3, LOST, -10, 17]], ids=repr)
@pytest.mark.parametrize("form", ["objects", "ints"])
def test_when_a_sweep_releases(
    backend: ModuleType, engine: SigintEngine, scan: str, failing: list[int], form: str
) -> None:
    table = backend.TransferTable(
        backend.bind(engine.capsule), scan=scan, quarantine=Quarantine(30, 30), clock=Clock()
    )
    for n, state in enumerate([DONE, *failing, DONE, PROC]):
        table.add(f"r{n}", engine.handle(n, state, form))
    last = len(failing) + 1
    with pytest.raises(KeyboardInterrupt):
        backend.pop_done_transfers(table)
    assert engine.releases() == 2  # of the DONE ones; the failed ones wait
    engine.asked.clear()
    result = backend.pop_done_transfers(table)
    assert engine.asked == [last + 1]  # and none that has ended
    assert result.done == {"r0", f"r{last}"}
    assert [failure.req_id for failure in result.failures] == [f"r{n}" for n in range(1, last)]
    assert (result.failed, result.retained) == ({failure.req_id for failure in result.failures}, len(failing))
    assert (len(result.transfers), result.transfers.unsampled) == (0, 2)
    assert table.handle_count == len(failing) + 1
    assert backend.pop_done_transfers(table).done == set()
    del result
    gc.collect()
    assert (engine.finalised, engine.releases()) == ([], 2)


@pytest.mark.parametrize("state", [-3, LOST])
def test_when_a_held_handle_is_released(
    backend: ModuleType, engine: SigintEngine, scan: str, state: int
) -> None:
    clock = Clock()
    table = backend.TransferTable(
        backend.bind(engine.capsule), scan=scan, quarantine=Quarantine(5, 5), clock=clock
    )
    for n in range(3):
        table.add(f"r{n}", engine.handle(n, state))
    assert len(backend.pop_done_transfers(table).failures) == 3
    clock.advance(5)
    with pytest.raises(KeyboardInterrupt):
        backend.pop_done_transfers(table)
    done: list[str] = []
    blind = 0
    for _ in range(3):
        with contextlib.suppress(KeyboardInterrupt):  # the python backend may stop after each release
            result = backend.pop_done_transfers(table)
            done += result.done
            blind += result.blind_releases
    assert (sorted(done), result.retained, len(table)) == (["r0", "r1", "r2"], 0, 0)
    assert (blind, engine.releases()) == (3 if state == LOST else 0, 3)
    del result
    gc.collect()
    assert engine.finalised == []


@pytest.mark.parametrize("form", ["objects", "array"])
def test_when_try_release_releases(backend: ModuleType, signals: Callable[[], int], form: str) -> None:
    engine = SigintEngine(signals, native=True)
    handles = [engine.handle(n, DONE) for n in range(4)]
    ids = np.arange(4, dtype=np.uint64)
    with pytest.raises(KeyboardInterrupt) as raised:
        backend.try_release(backend.bind(engine.capsule), handles if form == "objects" else ids)
    released = raised.value.kvfast_released.tolist()  # type: ignore[attr-defined]
    assert (released[0], sum(released)) == (True, engine.releases())
    if form == "objects":
        assert [handle._released for handle in handles] == released


class SlowToMark:
    """A handle whose class sets attributes in Python: a signal can come between the release and the mark."""

    def __init__(self, handle: int) -> None:
        vars(self).update(_handle=handle, _released=False)

    def __setattr__(self, name: str, value: object) -> None:
        vars(self)[name] = value


class Unmarked:
    """A handle that has no mark."""

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle


@pytest.mark.parametrize("kind", [SlowToMark, Unmarked])
def test_handles_that_python_code_marks(backend: ModuleType, signals: Callable[[], int], kind: Any) -> None:
    engine = SigintEngine(signals)
    table = backend.TransferTable(
        backend.bind(engine.capsule), scan="all", quarantine=Quarantine(0, 0), clock=Clock()
    )
    handles = [kind(n) for n in range(4)]
    engine.states.update({0: DONE, 1: -3, 2: DONE, 3: DONE})
    table.add("r", handles[0])
    table.add("s", handles[1])
    done: list[str] = []
    for _ in range(3):
        with contextlib.suppress(KeyboardInterrupt):
            done += backend.pop_done_transfers(table).done
    assert (sorted(done), engine.releases()) == (["r", "s"], 2)
    engine = SigintEngine(signals, native=True)
    with pytest.raises(KeyboardInterrupt) as raised:
        backend.try_release(backend.bind(engine.capsule), handles[2:])
    released = [True, True, *raised.value.kvfast_released.tolist()]  # type: ignore[attr-defined]
    if kind is SlowToMark:
        assert [handle._released for handle in handles] == released


@functools.cache
def operations(code: CodeType) -> bytes:
    return code.co_code


class Interrupter:
    """Raises KeyboardInterrupt where CPython looks for signals, the n-th time that it is in kvfast_ext.

    That is at the start of a function, after a call into C and at the end of a loop's body.
    """

    def __init__(self, point: int) -> None:
        self.left = point
        self.where = ""
        self.latest: dict[FrameType | None, str] = {}

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "call":
            self.latest[frame.f_back] = ""  # after a call into Python nobody looks
            if "kvfast_ext" not in frame.f_code.co_filename:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            latest = self.latest.get(frame, "RESUME")
            self.latest[frame] = dis.opname[operations(frame.f_code)[frame.f_lasti]]
            self.left -= latest.startswith(("RESUME", "CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE"))
            if self.left == 0 and not self.where:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.trace


def sweep_with(interrupter: Interrupter | None, backend: ModuleType, table: Any) -> Any:
    """Sweep; return the result, or None if the sweep was interrupted."""
    before = sys.gettrace()  # a debugger's, or coverage's
    try:
        if interrupter is not None:
            sys.settrace(interrupter.trace)
        return backend.pop_done_transfers(table)
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(before)
        if interrupter is not None:
            interrupter.latest.clear()  # the frames keep the table


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nothing that another test has left may be finalised in the middle of a traced sweep."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_wherever_signals_are_looked_for(compiled: ModuleType) -> None:
    points = 1
    while interrupted_at(compiled, points):
        points += 1
    assert points > 100  # a sweep has that many


def interrupted_at(backend: ModuleType, point: int) -> bool:
    """Run a program that is interrupted once; return whether it got that far.

    With native ops: what a store does is one step there, and all the rest is the table's.
    """
    agent, clock, interrupter = SimulatedAgent(8), Clock(), Interrupter(point)
    table = backend.TransferTable(backend.bind(agent), scan="all", clock=clock, quarantine=Quarantine(2, 1))
    table.open("idle")
    table.add("r", 0, 1, 2, peer="p")
    table.add("s", 3)
    table.add("t", 4, 5, peer="q")
    agent.states[:6] = [DONE, -3, LOST, DONE, -10, LOST]
    agent.release_codes[3] = -3
    told: Counter[tuple[str, object]] = Counter()
    for step in range(9):
        clock.advance(1)
        if step == 3:
            agent.release_codes[3] = 0
            table.add("u", 6)
            agent.states[6] = DONE
        result = sweep_with(interrupter if step < 8 else None, backend, table)
        if result is not None:
            told.update(("done", req_id) for req_id in result.done)
            told.update(("failed", req_id) for req_id in result.failed)
            told.update(("failure", failure.handle) for failure in result.failures)
            told["samples", None] += len(result.transfers)
            told["blind", None] += result.blind_releases
    expected: Counter[tuple[str, object]] = Counter(
        ("done", req_id) for req_id in ("idle", "r", "s", "t", "u")
    )
    expected.update([("failed", "r"), ("failed", "t"), *(("failure", n) for n in (1, 2, 4, 5))])
    expected.update({("samples", None): 3, ("blind", None): 1})
    assert told == expected, interrupter.where
    assert agent.released[:7].tolist() == [1] * 7, interrupter.where
    assert (len(table), table.handle_count, result.retained) == (0, 0, 0), interrupter.where
    return bool(interrupter.where)
