"""Telemetry of DONE handles: a transfer without it is a success all the same."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.backend.doubles import DONE, telemetry
from tests.backend.engines import CapsuleEngine, DoubleEngine, Engine
from tests.backend.rig import Rig

Logged = Callable[[str], list[str]]


def rows(result: Any) -> list[tuple[int, ...]]:
    transfers = result.transfers
    columns = (transfers.xfer_us, transfers.post_us, transfers.bytes, transfers.descriptors)
    return sorted(zip(*(column.tolist() for column in columns)))


BAD_SAMPLES = {
    "raises": RuntimeError("telemetry is off"),
    "None": None,
    "no fields": object(),
    "a string": telemetry("soon", 1, 1, 1),
    "nan": telemetry(float("nan"), 1, 1, 1),
    "infinite": telemetry(1, float("inf"), 1, 1),
    "2**63": telemetry(1, 1, 2**63, 1),
    "2**64": telemetry(1, 1, 2**64, 1),
    "very negative": telemetry(-(2**63) - 1, 1, 1, 1),
    "huge descriptors": telemetry(1, 1, 1, 2**200),
}


@pytest.mark.parametrize("bad", sorted(BAD_SAMPLES))
def test_a_bad_sample_is_no_sample_and_warned_about_once(
    rig: Rig, double: DoubleEngine, bad: str, logged: Logged
) -> None:
    for handle in range(6):
        rig.add("r", handle)
        double.set(handle, DONE)
        double.agent.samples[handle] = BAD_SAMPLES[bad] if handle % 2 else telemetry(handle, 2, 3, 4)
    result = rig.sweep()
    assert (result.done, result.failed, result.failures) == ({"r"}, set(), [])
    assert rows(result) == [(0, 2, 3, 4), (2, 2, 3, 4), (4, 2, 3, 4)]
    assert result.transfers.unsampled == 3
    rig.add("s", 7)
    double.set(7, DONE)
    double.agent.samples[7] = BAD_SAMPLES[bad]
    again = rig.sweep()
    assert (again.done, len(again.transfers), again.transfers.unsampled) == ({"s"}, 0, 1)
    assert len(logged("telemetry")) == 1


def test_no_sample_at_all_is_not_warned_about_where_all_is_well(rig: Rig, logged: Logged) -> None:
    rig.add("r", 1)
    rig.engine.set(1, DONE)
    assert rig.sweep().transfers.unsampled == 0
    assert logged("telemetry") == []


def test_durations_may_be_timedeltas(rig: Rig, double: DoubleEngine) -> None:
    rig.add("r", 1)
    double.set(1, DONE)
    xfer, post = (datetime.timedelta(microseconds=n) for n in (1234567, 89))
    double.agent.samples[1] = telemetry(xfer, post, 4096, 2)
    assert rows(rig.sweep()) == [(1234567, 89, 4096, 2)]


def test_large_values_survive(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1)
    engine.set(1, DONE)
    engine.sample(1, (2**62, 2**40, 2**63 - 1, 2**33))
    assert rows(any_rig.sweep()) == [(2**62, 2**40, 2**63 - 1, 2**33)]


def test_each_rows_columns_belong_together(any_rig: Rig, engine: Engine) -> None:
    expected = []
    for handle in range(40):
        any_rig.add(f"r{handle // 4}", handle)
        engine.sample(handle, (handle, handle + 100, handle + 200, handle + 300))
        if handle % 3:
            engine.set(handle, DONE)
            expected.append((handle, handle + 100, handle + 200, handle + 300))
    assert rows(any_rig.sweep()) == expected


def test_failed_handles_are_not_asked_for_telemetry(rig: Rig, double: DoubleEngine) -> None:
    rig.add("r", 1, 2)
    double.set(1, -3)
    rig.sweep()
    assert double.agent.asked("telemetry") == []


def test_telemetry_comes_before_release(rig: Rig, double: DoubleEngine) -> None:
    rig.add("r", 1)
    double.set(1, DONE)
    rig.sweep()
    assert [method for method, _ in double.agent.calls] == ["check", "telemetry", "release"]


def test_results_do_not_share_memory(any_rig: Rig, engine: Engine) -> None:
    kept = []
    for handle in range(3):
        any_rig.add("r", handle)
        engine.sample(handle, (handle, handle, handle, handle))
        engine.set(handle, DONE)
        kept.append(any_rig.sweep())
    assert [rows(result) for result in kept] == [[(h,) * 4] for h in range(3)]
    empty, other = any_rig.sweep(), any_rig.sweep()
    for result in (empty, other):
        assert [len(result.transfers.xfer_us), result.transfers.xfer_us.dtype] == [0, np.int64]
    empty.done.add("mine")
    empty.failed.add("mine")
    empty.failures.extend(kept)  # type: ignore[arg-type]
    assert (other.done, other.failed, other.failures) == (set(), set(), [])
    assert (any_rig.sweep().done, any_rig.sweep().failures) == (set(), [])


def test_a_capsule_that_has_none(backend: ModuleType, make_rig: Callable[..., Rig], logged: Logged) -> None:
    engine = CapsuleEngine()
    rig = make_rig(backend, engine)
    engine.telemetry_codes[2] = engine.telemetry_codes[3] = -12
    for handle in (1, 2, 3):
        rig.add("r", handle)
        engine.set(handle, DONE)
    result = rig.sweep()
    assert (result.done, len(result.transfers), result.transfers.unsampled) == ({"r"}, 1, 2)
    assert rig.released(1, 2, 3) == [1, 1, 1]
    assert len(logged("telemetry")) == 1


@pytest.mark.parametrize("n_bytes", [2**63, 2**64 - 1])
def test_a_capsules_count_that_no_int64_holds_is_no_sample(
    backend: ModuleType, make_rig: Callable[..., Rig], n_bytes: int
) -> None:
    engine = CapsuleEngine()
    rig = make_rig(backend, engine)
    rig.add("r", 1)
    engine.set(1, DONE)
    engine.sample(1, (1, 1, n_bytes, 1))
    result = rig.sweep()
    assert (result.done, len(result.transfers), result.transfers.unsampled) == ({"r"}, 0, 1)
