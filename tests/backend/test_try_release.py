"""`try_release`: what is released, what must be kept, and that a mistake releases nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvfast_ext import DuplicateHandleError
from tests.backend.doubles import DONE, FAILED_CODES, LOST, PROC, HandleObject
from tests.backend.engines import DoubleEngine, Engine, as_handles
from tests.backend.rig import Rig


@pytest.fixture
def ops(backend: ModuleType, engine: Engine) -> Any:
    return backend.bind(engine.agent)


def test_each_state(backend: ModuleType, engine: Engine, ops: Any, form: str) -> None:
    statuses = [DONE, PROC, LOST, *FAILED_CODES]
    for handle, status in enumerate(statuses):
        engine.set(handle, status)
    handles = as_handles(engine, tuple(range(len(statuses))), form)
    released = backend.try_release(ops, handles)
    expected = [status not in (PROC, LOST) for status in statuses]
    assert (released.dtype, released.tolist()) == (np.bool_, expected)
    assert [engine.released(handle) for handle in range(len(statuses))] == [int(gone) for gone in expected]
    objects = [handle for handle in handles if isinstance(handle, HandleObject)]
    assert [handle._released for handle in objects] == [expected[handle._handle] for handle in objects]


@pytest.mark.parametrize("status", [DONE, -3])
def test_a_refusal_means_keep(backend: ModuleType, engine: Engine, ops: Any, form: str, status: int) -> None:
    for handle in (1, 2, 3):
        engine.set(handle, status)
    engine.refuse(2, -3)
    handles = as_handles(engine, (1, 2, 3), form)
    assert backend.try_release(ops, handles).tolist() == [True, False, True]
    assert not getattr(handles[1], "_released", False)
    engine.refuse(2, None)
    assert backend.try_release(ops, [handles[1]]).tolist() == [True]
    assert [engine.released(handle) for handle in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.parametrize("make", [list, tuple, iter, lambda handles: (h for h in handles)])
def test_any_iterable(backend: ModuleType, engine: Engine, ops: Any, make: Any) -> None:
    engine.set(5, DONE)
    assert backend.try_release(ops, make([5, 6])).tolist() == [True, False]


def test_in_the_order_given(backend: ModuleType, engine: Engine, ops: Any) -> None:
    for handle in (2, 4):
        engine.set(handle, DONE)
    mixed = [7, np.array([4, 3], np.uint64), HandleObject(2), 1]
    assert backend.try_release(ops, mixed).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    "handles",
    [
        [1, 1],
        [1, HandleObject(1)],
        [1, np.array([2, 1], np.uint64)],
        np.array([1, 2, 1], np.uint64),
        [HandleObject(1), 2, HandleObject(1)],
    ],
    ids=str,
)
def test_duplicates_release_nothing(backend: ModuleType, engine: Engine, ops: Any, handles: Any) -> None:
    engine.set(1, DONE)
    engine.set(2, DONE)
    with pytest.raises(DuplicateHandleError, match="twice"):
        backend.try_release(ops, handles)
    assert [engine.released(handle) for handle in (1, 2)] == [0, 0]


@pytest.mark.parametrize(
    ("handles", "error"),
    [
        ("abc", TypeError),
        (b"abcdefgh", TypeError),
        (None, TypeError),
        (5, TypeError),
        (5.0, TypeError),
        ([1, None], TypeError),
        ([1, "2"], TypeError),
        ([1, 2.0], TypeError),
        ([1, True], TypeError),
        ([1, [2]], TypeError),
        ([1, -2], ValueError),
    ],
    ids=repr,
)
def test_bad_input_releases_nothing(
    backend: ModuleType, engine: Engine, ops: Any, handles: Any, error: type[Exception]
) -> None:
    for handle in range(10):
        engine.set(handle, DONE)
    with pytest.raises(error, match="handle"):
        backend.try_release(ops, handles)
    assert [engine.released(handle) for handle in range(10)] == [0] * 10


def test_one_handle_object_is_no_sequence(backend: ModuleType, ops: Any) -> None:
    with pytest.raises(TypeError, match="sequence of handles"):
        backend.try_release(ops, HandleObject(1))


def test_an_unexpected_answer_is_a_failure_like_in_a_sweep(backend: ModuleType, double: DoubleEngine) -> None:
    double.agent.answers.update({1: "ERR", 2: None, 3: ValueError(), 4: "PROC"})
    assert backend.try_release(backend.bind(double.agent), [1, 2, 3, 4]).tolist() == [True] * 3 + [False]


@pytest.mark.parametrize("handles", [[1, 2, 3], np.array([1, 2, 3], np.uint64)], ids=["list", "array"])
def test_an_interrupt_out_of_a_check_releases_nothing(
    backend: ModuleType, double: DoubleEngine, handles: Any
) -> None:
    double.agent.answers.update({1: "DONE", 2: KeyboardInterrupt(), 3: "DONE"})
    with pytest.raises(KeyboardInterrupt):
        backend.try_release(backend.bind(double.agent), handles)
    assert sum(double.agent.released.values()) == 0


def test_an_interrupt_out_of_a_release_carries_the_answer(backend: ModuleType, double: DoubleEngine) -> None:
    double.agent.answers.update(dict.fromkeys((1, 2, 3), "DONE"))
    double.agent.refusals[2] = interrupt = KeyboardInterrupt()
    ops = backend.bind(double.agent)
    with pytest.raises(KeyboardInterrupt) as raised:
        backend.try_release(ops, [1, 2, 3])
    assert raised.value is interrupt
    assert interrupt.kvfast_released.tolist() == [True, True, False]  # type: ignore[attr-defined]
    assert double.agent.released == {1: 1}  # what 2 did can't be known, 3 was left alone
    double.agent.answers[4] = "DONE"
    assert backend.try_release(ops, [4]).tolist() == [True]  # and no interrupt once more


def test_each_handle_is_asked_once_and_not_for_telemetry(backend: ModuleType, double: DoubleEngine) -> None:
    double.agent.answers.update({1: "DONE", 2: "PROC"})
    backend.try_release(backend.bind(double.agent), [1, 2])
    assert sorted(double.agent.calls) == [("check", 1), ("check", 2), ("release", 1)]


def test_a_handle_of_a_table_is_the_callers_own_business(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1)
    assert any_rig.backend.try_release(any_rig.ops, [1]).tolist() == [False]
    assert any_rig.table.handles("r") == [1]
