"""Failures: sticky, told once, of one handle only; requests without handles."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from kvfast_ext import DuplicateRequestError, Quarantine
from tests.backend.doubles import DISCONNECT, DONE, LOST
from tests.backend.engines import DoubleEngine, Engine
from tests.backend.rig import Rig, failures


def test_a_failure_is_sticky(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 0, 1, 2)
    engine.set(1, -3)
    first = any_rig.sweep()
    assert (first.done, first.failed, failures(first)) == (set(), {"r"}, [("r", 1, "BACKEND", False)])
    assert any_rig.table.handle_count == 2
    engine.set(0, DONE)
    second = any_rig.sweep()
    assert (second.done, second.failed, second.failures) == (set(), set(), [])
    engine.set(2, DONE)
    assert any_rig.sweep().done == {"r"}


def test_a_second_failure_of_a_request_is_told_but_not_as_its_first(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 0, 1, 2)
    engine.set(0, -3)
    assert any_rig.sweep().failed == {"r"}
    engine.set(1, -7)
    second = any_rig.sweep()
    assert (second.failed, failures(second)) == (set(), [("r", 1, "REPOST_ACTIVE", False)])


def test_failures_come_by_request_then_handle(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("b", 7, 3, 9)
    any_rig.add("a", 8, 2)
    for handle in (7, 3, 9, 8, 2):
        engine.set(handle, -3)
    result = any_rig.sweep()
    assert [(f.req_id, f.handle) for f in result.failures] == [
        ("a", 2),
        ("a", 8),
        ("b", 3),
        ("b", 7),
        ("b", 9),
    ]
    assert (result.done, result.failed) == ({"a", "b"}, {"a", "b"})


def test_each_failing_handle_is_told_exactly_once(
    backend: ModuleType, engine: Engine, scan: str, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(backend, engine, scan, quarantine=Quarantine(lost_s=4, failed_s=2))
    for request in range(8):
        rig.add(f"r{request}", *range(4 * request, 4 * request + 4))
    for handle in range(32):
        engine.set(handle, (LOST, -3, DONE, -9)[handle % 4])
        engine.refuse(handle, -3 if handle % 3 == 0 else None)
    told: list[int] = []
    first_seen: list[str] = []
    for sweep in range(40):
        result = rig.sweep(after=0.25)
        told += [failure.handle for failure in result.failures]
        first_seen += result.failed
        if sweep == 30:
            for handle in range(32):
                engine.refuse(handle, None)
    assert sorted(told) == [handle for handle in range(32) if handle % 4 != 2]
    assert sorted(first_seen) == [f"r{request}" for request in range(8)]
    assert rig.released(*range(32)) == [1] * 32
    assert (len(rig.table), rig.table.handle_count, rig.sweep().retained) == (0, 0, 0)


def test_one_failing_handle_disturbs_no_other(any_rig: Rig, engine: Engine) -> None:
    for handle in range(9):
        any_rig.add(f"r{handle}", handle)
        engine.set(handle, (DONE, LOST, -3)[handle % 3])
        engine.refuse(handle, -3 if handle in (0, 2) else None)
    result = any_rig.sweep()
    assert result.done == {"r0", "r3", "r5", "r6", "r8"}  # a refused release of DONE doesn't count
    assert result.failed == {"r1", "r2", "r4", "r5", "r7", "r8"}
    assert len(result.transfers) == 3
    assert any_rig.released(*range(9)) == [0, 0, 0, 1, 0, 1, 1, 0, 1]
    assert sorted(any_rig.table) == ["r1", "r2", "r4", "r7"]


def test_all_methods_of_one_handle_raise_and_the_others_end(rig: Rig, double: DoubleEngine) -> None:
    for handle in range(5):
        rig.add("r", handle)
        double.set(handle, DONE)
    double.agent.answers[1] = ZeroDivisionError()
    double.agent.samples[2] = ZeroDivisionError()
    double.agent.refusals.update({1: ZeroDivisionError(), 3: ZeroDivisionError()})
    result = rig.sweep()
    assert failures(result) == [("r", 1, "EXCEPTION", False)]
    assert (len(result.transfers), result.transfers.unsampled) == (3, 1)
    assert rig.released(0, 1, 2, 3, 4) == [1, 0, 1, 0, 1]
    assert (result.done, result.retained) == (set(), 2)


def test_a_request_id_can_be_used_again_and_starts_clean(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1)
    engine.set(1, -3)
    assert any_rig.sweep().done == {"r"}
    any_rig.add("r", 2)
    assert any_rig.sweep().done == set()
    engine.set(2, -3)
    result = any_rig.sweep()
    assert (result.done, result.failed, failures(result)) == ({"r"}, {"r"}, [("r", 2, "BACKEND", False)])


# ---- requests without handles


def test_an_opened_request_is_done_at_the_next_sweep(any_rig: Rig) -> None:
    any_rig.table.open("r")
    assert ("r" in any_rig.table, any_rig.table.handle_count, any_rig.table.handles("r")) == (True, 0, [])
    result = any_rig.sweep()
    assert (result.done, result.failed, len(result.transfers)) == ({"r"}, set(), 0)
    assert len(any_rig.table) == 0
    assert any_rig.sweep().done == set()


def test_adding_no_handles_is_opening(any_rig: Rig) -> None:
    any_rig.table.add("r")
    assert any_rig.sweep().done == {"r"}


def test_adding_no_handles_to_a_request_with_some_changes_nothing(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1)
    any_rig.table.add("r")
    assert any_rig.sweep().done == set()
    engine.set(1, DONE)
    assert any_rig.sweep().done == {"r"}


def test_an_opened_request_waits_for_handles_added_before_the_sweep(any_rig: Rig, engine: Engine) -> None:
    any_rig.table.open("r")
    any_rig.add("r", 1)
    assert any_rig.sweep().done == set()
    engine.set(1, DONE)
    assert any_rig.sweep().done == {"r"}


def test_opening_twice_is_an_error_and_changes_nothing(any_rig: Rig, engine: Engine) -> None:
    any_rig.table.open("r")
    any_rig.add("s", 1)
    for request in ("r", "s"):
        with pytest.raises(DuplicateRequestError, match=f"'{request}'"):
            any_rig.table.open(request)
    assert list(any_rig.table) == ["r", "s"]
    assert any_rig.sweep().done == {"r"}
    any_rig.table.open("r")
    assert any_rig.sweep().done == {"r"}


def test_opened_requests_do_not_disturb_the_others(any_rig: Rig, engine: Engine) -> None:
    for handle in range(4):
        any_rig.table.open(f"opened{handle}")
        any_rig.add(f"r{handle}", handle, handle + 10)
    engine.set(1, DONE)
    engine.set(11, DONE)
    assert any_rig.sweep().done == {"r1", *(f"opened{handle}" for handle in range(4))}
    assert sorted(any_rig.table) == ["r0", "r2", "r3"]
    assert [any_rig.table.handles(f"r{h}") for h in (0, 2, 3)] == [[0, 10], [2, 12], [3, 13]]


def test_a_lost_handle_keeps_a_request_that_was_opened_again_from_ending(
    any_rig: Rig, engine: Engine
) -> None:
    any_rig.add("r", 1, 2)
    engine.set(1, LOST)
    any_rig.sweep()
    engine.set(2, DONE)
    assert any_rig.sweep().done == set()
    any_rig.table.add("r")
    assert any_rig.sweep().done == set()
    any_rig.add("r", 3)
    assert any_rig.sweep(after=30).done == set()
    assert any_rig.released(1) == [1]
    engine.set(3, DISCONNECT)
    result = any_rig.sweep()
    assert (result.done, result.failed) == ({"r"}, set())
