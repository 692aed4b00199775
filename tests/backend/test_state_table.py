"""Each row of the state table, on both backends, both scans, all kinds of agents and of handles."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from kvfast_ext import Quarantine
from tests.backend.doubles import DONE, FAILED_CODES, LOST, NIXL_STATUSES, HandleObject
from tests.backend.engines import DoubleEngine, Engine
from tests.backend.rig import Rig, failures


@pytest.fixture
def table_rig(backend: ModuleType, engine: Engine, scan: str, form: str, make_rig: Callable[..., Rig]) -> Rig:
    """A table for every combination."""
    return make_rig(backend, engine, scan, form=form, quarantine=Quarantine(lost_s=30, failed_s=0))


def test_the_engine_is_bound_as_what_it_is(table_rig: Rig, engine: Engine) -> None:
    assert table_rig.ops.kind == engine.kind
    assert table_rig.ops.reason.strip()
    assert isinstance(table_rig.ops.reason, str)


def test_done_is_sampled_released_and_leaves(table_rig: Rig, engine: Engine) -> None:
    handles = table_rig.add("r", 3, 4)
    engine.sample(3, (30, 31, 32, 33))
    engine.sample(4, (40, 41, 42, 43))
    engine.set(3, DONE)
    engine.set(4, DONE)
    result = table_rig.sweep()
    assert (result.done, result.failed, result.failures, result.retained) == ({"r"}, set(), [], 0)
    transfers = result.transfers
    rows = [transfers.xfer_us, transfers.post_us, transfers.bytes, transfers.descriptors]
    assert all(column.dtype == np.int64 for column in rows)
    assert sorted(zip(*(column.tolist() for column in rows))) == [(30, 31, 32, 33), (40, 41, 42, 43)]
    assert (len(transfers), transfers.unsampled) == (2, 0)
    assert table_rig.released(3, 4) == [1, 1]
    assert all(handle._released for handle in handles if isinstance(handle, HandleObject))
    assert ("r" in table_rig.table, len(table_rig.table), table_rig.table.handle_count) == (False, 0, 0)
    assert table_rig.sweep().done == set()


def test_proc_stays_and_is_never_released(table_rig: Rig, engine: Engine) -> None:
    handles = table_rig.add("r", 0, 1)
    for _ in range(50):
        result = table_rig.sweep(after=100)
        assert (result.done, result.failed, result.failures, len(result.transfers)) == (set(), set(), [], 0)
        assert result.retained == 0
    assert table_rig.released(0, 1) == [0, 0]
    assert not any(handle._released for handle in handles if isinstance(handle, HandleObject))
    assert table_rig.table.handles("r") == handles


def test_a_request_waits_for_its_last_handle(table_rig: Rig, engine: Engine) -> None:
    handles = table_rig.add("r", 0, 1, 2)
    for handle in (2, 0):
        engine.set(handle, DONE)
        assert table_rig.sweep().done == set()
        assert "r" in table_rig.table
    assert table_rig.table.handles("r") == [handles[1]]
    engine.set(1, DONE)
    assert table_rig.sweep().done == {"r"}


@pytest.mark.parametrize("status", FAILED_CODES)
def test_failed_is_reported_and_released_in_one_sweep(table_rig: Rig, engine: Engine, status: int) -> None:
    (handle,) = table_rig.add("r", 5, peer="p")
    engine.set(5, status)
    result = table_rig.sweep()
    assert (result.done, result.failed) == ({"r"}, {"r"})
    (failure,) = result.failures
    assert (failure.req_id, failure.handle, failure.peer) == ("r", handle, "p")
    name, error_class = NIXL_STATUSES[status]
    assert (failure.status, failure.lost) == (name, False)
    assert type(failure.error).__name__ == error_class
    assert table_rig.released(5) == [1]
    assert (len(result.transfers), result.transfers.unsampled) == (0, 0)
    assert (result.retained, result.blind_releases, result.release_retries) == (0, 0, 0)
    assert not isinstance(handle, HandleObject) or handle._released
    assert "r" not in table_rig.table


def test_lost_stays_for_its_quarantine_and_not_longer(table_rig: Rig, engine: Engine) -> None:
    (handle,) = table_rig.add("r", 5)
    engine.set(5, LOST)
    result = table_rig.sweep()
    assert (result.done, result.failed, result.retained) == (set(), {"r"}, 1)
    assert failures(result) == [("r", 5, "NOT_FOUND", True)]
    assert table_rig.table.quarantined == {"r"}
    assert table_rig.table.handles("r") == [handle]
    for after in (0.0, 15.0, 14.999):  # up to 29.999 s
        result = table_rig.sweep(after)
        assert (result.done, result.failed, result.failures, result.retained) == (set(), set(), [], 1)
        assert result.blind_releases == 0
        assert table_rig.released(5) == [0]
    result = table_rig.sweep(after=0.002)
    assert (result.done, result.failed, result.failures) == ({"r"}, set(), [])
    assert (result.retained, result.blind_releases) == (0, 1)
    assert table_rig.released(5) == [1]
    assert not isinstance(handle, HandleObject) or handle._released
    assert ("r" in table_rig.table, table_rig.table.quarantined) == (False, set())


def test_lost_is_not_asked_again(table_rig: Rig, engine: Engine) -> None:
    table_rig.add("r", 5)
    engine.set(5, LOST)
    table_rig.sweep()
    engine.set(5, DONE)  # a NIXL that would look again and be wrong about it
    assert table_rig.sweep(after=29).done == set()
    assert table_rig.released(5) == [0]
    assert table_rig.sweep(after=1).done == {"r"}


def test_failed_waits_for_its_own_quarantine(
    backend: ModuleType, engine: Engine, scan: str, form: str, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(backend, engine, scan, form=form, quarantine=Quarantine(lost_s=30, failed_s=2))
    rig.add("r", 5)
    engine.set(5, -3)
    result = rig.sweep()
    assert (result.done, result.failed, result.retained) == (set(), {"r"}, 1)
    assert failures(result) == [("r", 5, "BACKEND", False)]
    assert rig.table.quarantined == set()  # those wait for LOST handles
    assert rig.sweep(after=1.999).done == set()
    assert rig.released(5) == [0]
    result = rig.sweep(after=0.002)
    assert (result.done, result.retained, result.blind_releases) == ({"r"}, 0, 0)
    assert rig.released(5) == [1]


def test_without_quarantine_lost_ends_at_once(
    backend: ModuleType, engine: Engine, scan: str, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(backend, engine, scan, quarantine=Quarantine(lost_s=0))
    rig.add("r", 5)
    engine.set(5, LOST)
    result = rig.sweep()
    assert (result.done, result.failed, result.blind_releases) == ({"r"}, {"r"}, 1)
    assert failures(result) == [("r", 5, "NOT_FOUND", True)]


def test_quarantine_counts_from_the_sweep_that_saw_it(table_rig: Rig, engine: Engine) -> None:
    table_rig.add("early", 1)
    table_rig.add("late", 2)
    engine.set(1, LOST)
    table_rig.sweep(after=100)
    engine.set(2, LOST)
    table_rig.sweep(after=20)
    assert table_rig.sweep(after=10).done == {"early"}
    assert table_rig.sweep(after=19).done == set()
    assert table_rig.sweep(after=1).done == {"late"}


def test_the_default_quarantine_is_thirty_seconds_and_none(backend: ModuleType, double: DoubleEngine) -> None:
    now = [0.0]
    table = backend.TransferTable(backend.bind(double.agent), clock=lambda: now[0])
    table.add("lost", 1)
    table.add("failed", 2)
    double.set(1, LOST)
    double.set(2, -3)
    assert backend.pop_done_transfers(table).done == {"failed"}
    now[0] = 29.9
    assert backend.pop_done_transfers(table).done == set()
    now[0] = 30.1
    assert backend.pop_done_transfers(table).done == {"lost"}


# ---- what only Python methods can say


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("ERR", "ERR"),
        ("SOMETHING", "BAD_STATE"),
        ("done", "BAD_STATE"),
        (None, "BAD_STATE"),
        (b"DONE", "BAD_STATE"),
        (b"0", "BAD_STATE"),
        (False, "BAD_STATE"),
        (True, "BAD_STATE"),
        (0.0, "BAD_STATE"),
        (0.5, "BAD_STATE"),
        (float("inf"), "BAD_STATE"),
        (float("nan"), "BAD_STATE"),
        (2, "BAD_STATE"),
        (2**70, "BAD_STATE"),
        (-(2**70), "BAD_STATE"),
        ([], "BAD_STATE"),
        (-3, "BACKEND"),
        (ValueError("no"), "EXCEPTION"),
        (OverflowError("no"), "EXCEPTION"),
    ],
    ids=repr,
)
def test_whatever_else_a_check_gives_is_a_failure(rig: Rig, answer: object, status: str) -> None:
    rig.engine.agent.answers[5] = answer
    rig.add("r", 5)
    rig.add("other", 6)
    rig.engine.set(6, DONE)
    result = rig.sweep()
    assert (result.done, result.failed) == ({"r", "other"}, {"r"})
    (failure,) = result.failures
    assert (failure.status, failure.lost) == (status, False)
    if isinstance(answer, Exception):
        assert failure.error is answer
    if status == "BAD_STATE":
        assert repr(answer) in str(failure.error)


def test_statuses_as_numbers_are_understood(rig: Rig) -> None:
    rig.add("done", 1)
    rig.add("proc", 2)
    rig.engine.agent.answers.update({1: np.int32(0), 2: 1})
    assert rig.sweep().done == {"done"}
    assert rig.table.handle_count == 1


def test_subclasses_of_nixls_exceptions_are_those(rig: Rig) -> None:
    base = type("nixlNotFoundError", (RuntimeError,), {})
    rig.engine.agent.answers[5] = type("MoreSpecial", (base,), {})("gone")
    rig.add("r", 5)
    result = rig.sweep()
    assert failures(result) == [("r", 5, "NOT_FOUND", True)]
    assert result.done == set()
    assert rig.sweep(after=30).done == {"r"}


def test_an_exceptions_own_object_is_handed_on(rig: Rig) -> None:
    error = rig.engine.agent.answers[5] = RuntimeError("cable")
    rig.add("r", 5)
    assert rig.sweep().failures[0].error is error
