"""A release that NIXL refuses: the handle stays, is tried again ever more rarely, and is told once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType

import pytest

from kvfast_ext import Quarantine
from tests.backend.doubles import DONE, LOST
from tests.backend.engines import CapsuleEngine, Engine
from tests.backend.rig import Rig, failures

Logged = Callable[[str], list[str]]
STEP = 1 / 128  # seconds between sweeps; exact in binary


def retry_times(rig: Rig, seconds: float) -> list[float]:
    """Sweep every `STEP` for some time; return when a release was tried again."""
    start, times = rig.clock.now, []
    while rig.clock.now - start < seconds:
        result = rig.sweep(after=STEP)
        assert result.release_retries in (0, 1)
        times += [rig.clock.now - start] * result.release_retries
    return times


@pytest.mark.parametrize("status", [-3, DONE, LOST])
def test_retries_back_off_exponentially_to_a_cap(any_rig: Rig, engine: Engine, status: int) -> None:
    any_rig.add("r", 1)
    engine.set(1, status)
    engine.refuse(1, -3)
    first = any_rig.sweep()
    assert (first.release_retries, first.retained) == (0, 1)
    if status == LOST:
        assert any_rig.sweep(after=30).release_retries == 0  # the first try at the end of the quarantine
    times = retry_times(any_rig, seconds=30)
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times)]
    assert 4 * STEP < gaps[0] <= 0.1  # soon, but not at each sweep
    rising = [gap for gap in gaps if gap < 0.99 * gaps[-1]]
    assert len(rising) >= 4
    assert all(1.8 < later / earlier < 2.2 for earlier, later in itertools.pairwise(rising))
    assert gaps == sorted(gaps)
    assert 1 <= gaps[-1] <= 4  # the cap: a freed backend is noticed within seconds
    assert gaps.count(gaps[-1]) >= 5
    assert any_rig.released(1) == [0]


def test_a_refused_failure_keeps_its_request(any_rig: Rig, engine: Engine, logged: Logged) -> None:
    any_rig.add("r", 1)
    any_rig.add("other", 2)
    engine.set(1, -3)
    engine.set(2, DONE)
    engine.refuse(1, -6)
    first = any_rig.sweep()
    assert (first.done, first.failed, first.retained) == ({"other"}, {"r"}, 1)
    for _ in range(100):
        result = any_rig.sweep(after=1)
        assert (result.done, result.failed, result.failures, result.retained) == (set(), set(), [], 1)
    assert any_rig.table.handle_count == 1
    engine.refuse(1, None)
    last = any_rig.sweep(after=10)
    assert (last.done, last.release_retries, last.retained) == ({"r"}, 1, 0)
    assert any_rig.released(1) == [1]
    assert len(logged("release refused")) == 1


def test_a_failure_is_sticky_while_its_release_is_refused(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1)
    engine.set(1, -3)
    engine.refuse(1, -3)
    any_rig.sweep()
    engine.set(1, DONE)
    result = any_rig.sweep(after=10)
    assert (result.done, result.failed, len(result.transfers)) == (set(), set(), 0)


def test_a_refused_release_of_done_is_a_leak_not_a_failure(
    any_rig: Rig, engine: Engine, logged: Logged
) -> None:
    any_rig.add("r", 1, 2)
    engine.set(1, DONE)
    engine.set(2, DONE)
    engine.refuse(1, -3)
    first = any_rig.sweep()
    assert (first.done, first.failed, first.failures) == ({"r"}, set(), [])
    assert (len(first.transfers), first.retained) == (2, 1)
    table = any_rig.table
    assert ("r" in table, len(table), table.handle_count, table.handle_ids.tolist()) == (False, 0, 0, [])
    assert any_rig.sweep(after=10).retained == 1
    engine.refuse(1, None)
    last = any_rig.sweep(after=10)
    assert (last.done, last.retained, last.release_retries) == (set(), 0, 1)
    assert any_rig.released(1, 2) == [1, 1]
    assert len(logged("release refused")) == 1


def test_the_same_request_id_runs_while_its_old_handle_is_a_leak(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1)
    engine.set(1, DONE)
    engine.refuse(1, -3)
    assert any_rig.sweep().done == {"r"}
    any_rig.add("r", 2)
    assert any_rig.table.handles("r") == [2]
    engine.refuse(1, None)
    assert any_rig.sweep(after=10).done == set()
    engine.set(2, DONE)
    assert any_rig.sweep().done == {"r"}


def test_each_handle_is_logged_once(any_rig: Rig, engine: Engine, logged: Logged) -> None:
    for handle in range(5):
        any_rig.add(f"r{handle}", handle)
        engine.set(handle, (DONE, -3)[handle % 2])
        engine.refuse(handle, -3)
    for _ in range(30):
        any_rig.sweep(after=1)
    messages = logged("release refused")
    assert len(messages) == 5
    assert [m for m in messages if "nixlBackendError" not in m] == []


def test_a_backend_that_recovers_frees_all(any_rig: Rig, engine: Engine) -> None:
    for handle in range(40):
        any_rig.add(f"r{handle // 4}", handle)
        engine.set(handle, (DONE, -3, -9, DONE)[handle % 4])
        engine.refuse(handle, -3)
    assert (any_rig.sweep().done, any_rig.sweep().retained) == (set(), 40)
    for handle in range(40):
        engine.refuse(handle, None)
    result = any_rig.sweep(after=3)
    assert (result.done, result.retained) == ({f"r{request}" for request in range(10)}, 0)
    assert result.release_retries == 40


def test_lost_and_refused_counts_as_a_blind_release_when_it_succeeds(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1)
    engine.set(1, LOST)
    engine.refuse(1, -3)
    any_rig.sweep()
    refused = any_rig.sweep(after=30)
    assert (refused.done, refused.blind_releases, refused.release_retries) == (set(), 0, 0)
    engine.refuse(1, None)
    result = any_rig.sweep(after=5)
    assert (result.done, result.blind_releases, result.release_retries) == ({"r"}, 1, 1)


def test_refusal_does_not_shorten_a_quarantine(
    backend: ModuleType, engine: Engine, scan: str, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(backend, engine, scan, quarantine=Quarantine(lost_s=30, failed_s=8))
    rig.add("r", 1)
    rig.add("done", 2)
    engine.set(1, -3)
    engine.set(2, DONE)
    engine.refuse(2, -3)
    rig.sweep()
    assert retry_times(rig, 7.9) != []  # handle 2
    assert rig.released(1) == [0]
    engine.refuse(2, None)
    assert rig.sweep(after=4).done == {"r"}


@pytest.mark.parametrize("status", [DONE, -3])
def test_a_release_in_progress_is_no_release(
    backend: ModuleType, scan: str, status: int, make_rig: Callable[..., Rig]
) -> None:
    engine = CapsuleEngine()
    rig = make_rig(backend, engine, scan)
    rig.add("r", 1)
    engine.set(1, status)
    engine.refuse(1, 1)  # NIXL_IN_PROG is no error, and no success either
    result = rig.sweep()
    assert (result.done, result.retained) == ({"r"} if status == DONE else set(), 1)
    engine.refuse(1, None)
    result = rig.sweep(after=1)
    assert (result.retained, rig.released(1)) == (0, [1])
    assert engine.violations == []


def test_a_failure_of_a_released_handle_is_told_with_its_own_error_not_the_releases(
    any_rig: Rig, engine: Engine
) -> None:
    any_rig.add("r", 1)
    engine.set(1, -9)
    engine.refuse(1, -6)
    result = any_rig.sweep()
    assert failures(result) == [("r", 1, "NOT_SUPPORTED", False)]
    assert type(result.failures[0].error).__name__ == "nixlNotSupportedError"
