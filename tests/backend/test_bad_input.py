"""Bad input gets a named error that says what was wrong, and changes nothing."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvfast_ext import DuplicateHandleError, KvfastError, Quarantine, SimulatedAgent, select_backend
from tests.backend.doubles import DONE, LOST, Double, HandleObject
from tests.backend.engines import DoubleEngine, Engine
from tests.backend.rig import Rig


def state_of(table: Any) -> tuple[Any, ...]:
    return ([(request, table.handles(request)) for request in table], sorted(table.handle_ids.tolist()))


@pytest.fixture
def fed(any_rig: Rig, engine: Engine) -> Rig:
    """A table with handles in flight, a lost one and a refused one."""
    any_rig.add("r", 1, 2)
    any_rig.add("s", 3, 4, peer="p")
    any_rig.add("leak", 5)
    engine.set(3, LOST)
    engine.set(5, DONE)
    engine.refuse(5, -3)
    any_rig.sweep()
    return any_rig


BAD_REQUEST_IDS = [None, 5, b"r", ["r"], ("r",), 1.5, object()]


@pytest.mark.parametrize("req_id", BAD_REQUEST_IDS, ids=repr)
def test_request_ids(fed: Rig, req_id: Any) -> None:
    before = state_of(fed.table)
    for call in (fed.table.open, lambda bad: fed.table.add(bad, 9), fed.table.add):
        with pytest.raises(TypeError, match="request id must be a str"):
            call(req_id)
    assert state_of(fed.table) == before


BAD_HANDLES = [None, "1", b"1", 1.0, True, {1}, {1: 1}, [6], (6,), np.float64(1), bytearray(8)]


@pytest.mark.parametrize("handle", BAD_HANDLES, ids=repr)
@pytest.mark.parametrize("place", ["only", "first", "last"])
def test_handles_of_a_wrong_type(fed: Rig, handle: Any, place: str) -> None:
    before = state_of(fed.table)
    handles = {"only": [handle], "first": [handle, 6], "last": [6, handle]}[place]
    with pytest.raises(TypeError, match="handle"):
        fed.table.add("new", *handles)
    with pytest.raises(TypeError, match="handle"):
        fed.table.add("r", *handles, peer="p")
    assert state_of(fed.table) == before
    assert fed.table.outstanding_of("p") == 2


@pytest.mark.parametrize(
    "handle", [object(), 1 + 2j, 2**64, np.float32(1), np.bool_(True), decimal.Decimal(1)]
)
def test_what_only_a_double_of_ones_own_could_mean(backend: ModuleType, handle: Any) -> None:
    # kvfast's own agents, and capsules, know handles by ids of 64 bits only.
    table = backend.TransferTable(backend.bind(SimulatedAgent(4)))
    with pytest.raises((TypeError, ValueError), match="handle"):
        table.add("r", handle)
    assert len(table) == 0


@pytest.mark.parametrize("inner", [-1, 2**64, 2**70])
def test_handle_objects_with_an_impossible_id(backend: ModuleType, inner: int) -> None:
    table = backend.TransferTable(backend.bind(SimulatedAgent(4)))
    with pytest.raises((TypeError, ValueError), match="handle"):
        table.add("r", HandleObject(inner))
    assert len(table) == 0


@pytest.mark.parametrize("handle", [-1, -(2**70), np.int64(-5)])
def test_negative_ids(fed: Rig, handle: Any) -> None:
    before = state_of(fed.table)
    with pytest.raises(ValueError, match=f"{handle} is negative"):
        fed.table.add("new", 6, handle)
    assert state_of(fed.table) == before


@pytest.mark.parametrize("handle", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("as_object", [False, True])
def test_a_handle_that_is_there_already(fed: Rig, handle: int, as_object: bool) -> None:
    # In flight, lost, and a leak: NIXL still has all of them, so an equal id is the same handle.
    before = state_of(fed.table)
    again = HandleObject(handle) if as_object else handle
    for request in ("r", "new"):
        with pytest.raises(DuplicateHandleError, match="in the table already") as raised:
            fed.table.add(request, 6, again)
        assert isinstance(raised.value, (KvfastError, ValueError))
        with pytest.raises(DuplicateHandleError, match="in the table already"):
            fed.table.admit(again)
    assert state_of(fed.table) == before
    assert fed.table.admit(6) == 6  # and that adds nothing
    assert state_of(fed.table) == before
    fed.add("new", 6)


@pytest.mark.parametrize(
    "handles",
    [
        (6, 6),
        (6, 7, 6),
        (np.array([6, 6], np.uint64),),
        (6, np.array([7, 6], np.uint64)),
        (6, HandleObject(6)),
    ],
    ids=repr,
)
def test_a_handle_that_is_named_twice(fed: Rig, handles: tuple[Any, ...]) -> None:
    before = state_of(fed.table)
    with pytest.raises(DuplicateHandleError, match="twice in one call"):
        fed.table.add("new", *handles)
    assert state_of(fed.table) == before


@pytest.mark.parametrize("peer", [b"p", 5, ["p"], object()], ids=repr)
def test_peers(fed: Rig, peer: Any) -> None:
    before = state_of(fed.table)
    with pytest.raises(TypeError, match="peer must be a str or None"):
        fed.table.add("new", 6, peer=peer)
    assert state_of(fed.table) == before


def test_a_failed_addition_drops_no_handle(any_rig: Rig) -> None:
    good, bad = HandleObject(6), HandleObject(-1)
    any_rig.add("r", 1)
    with pytest.raises((TypeError, ValueError, DuplicateHandleError)):
        any_rig.table.add("new", good, 1)
    assert not good._released
    assert "new" not in any_rig.table
    del bad


# ---- making a table


def test_ops_of_another_kind(backend: ModuleType, compiled: ModuleType) -> None:
    other = select_backend("python") if backend is compiled else compiled
    agent = SimulatedAgent(1)
    for wrong in (None, agent, 5, other.bind(agent), other, backend):
        with pytest.raises(TypeError, match="ops must come from bind"):
            backend.TransferTable(wrong)
        with pytest.raises(TypeError, match="ops must come from bind"):
            backend.try_release(wrong, [0])
    assert agent.released.tolist() == [0]


def test_a_table_of_another_kind(backend: ModuleType, compiled: ModuleType) -> None:
    other = select_backend("python") if backend is compiled else compiled
    for wrong in (
        None,
        5,
        other.TransferTable(other.bind(SimulatedAgent(1))),
        backend.bind(SimulatedAgent(1)),
    ):
        with pytest.raises(TypeError, match="table must be a TransferTable of the"):
            backend.pop_done_transfers(wrong)


@pytest.mark.parametrize("scan", ["", "ALL", None, 1, b"all", ["all"], "watch "], ids=repr)
def test_scans(backend: ModuleType, scan: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="scan must be one of all, watch"):
        backend.TransferTable(backend.bind(SimulatedAgent(1)), scan=scan)


BAD_SECONDS: list[tuple[Any, type[Exception]]] = [
    (-1, ValueError),
    (math.nan, ValueError),
    (math.inf, ValueError),
    (-0.001, ValueError),
]
NO_SECONDS: list[tuple[Any, type[Exception]]] = [
    ("1", TypeError),
    (None, TypeError),
    (True, TypeError),
    ([], TypeError),
    (1j, TypeError),
]


@pytest.mark.parametrize(("seconds", "error"), BAD_SECONDS + NO_SECONDS, ids=repr)
def test_times(backend: ModuleType, seconds: Any, error: type[Exception]) -> None:
    ops = backend.bind(SimulatedAgent(1))
    with pytest.raises(error, match="full_scan_s"):
        backend.TransferTable(ops, full_scan_s=seconds)
    with pytest.raises(error, match="lost_s"):
        Quarantine(lost_s=seconds)
    with pytest.raises(error, match="failed_s"):
        Quarantine(failed_s=seconds)


@pytest.mark.parametrize("quarantine", [30, None, (30, 0), {"lost_s": 30}], ids=repr)
def test_quarantines(backend: ModuleType, quarantine: Any) -> None:
    with pytest.raises(TypeError, match="quarantine must be a Quarantine"):
        backend.TransferTable(backend.bind(SimulatedAgent(1)), quarantine=quarantine)


@pytest.mark.parametrize("clock", [5, 0.0, "now"], ids=repr)
def test_clocks(backend: ModuleType, clock: Any) -> None:
    with pytest.raises(TypeError, match="clock must be callable"):
        backend.TransferTable(backend.bind(SimulatedAgent(1)), clock=clock)


def test_options_are_named(backend: ModuleType) -> None:
    with pytest.raises(TypeError):
        backend.TransferTable(backend.bind(SimulatedAgent(1)), "all")


def test_a_table_that_was_not_made_is_collected_in_silence(backend: ModuleType) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="scan"):
            backend.TransferTable(backend.bind(SimulatedAgent(1)), scan="no")


def test_quarantine_is_a_value() -> None:
    assert (Quarantine(), Quarantine(lost_s=1)) == (Quarantine(30, 0), Quarantine(1.0, 0.0))
    with pytest.raises(AttributeError):
        Quarantine().lost_s = 5  # type: ignore[misc]


# ---- agents


class OneMethodShort:
    def check_xfer_state(self, handle: Any) -> str:
        return "PROC"

    def release_xfer_handle(self, handle: Any) -> None: ...


@pytest.mark.parametrize("agent", [None, 5, "agent", object(), OneMethodShort()], ids=repr)
def test_what_is_no_agent(backend: ModuleType, agent: Any) -> None:
    with pytest.raises(TypeError, match=r"is not an agent: .*get_xfer_telemetry"):
        backend.bind(agent)


def test_a_method_that_is_no_method(backend: ModuleType) -> None:
    agent = Double()
    agent.get_xfer_telemetry = 5  # type: ignore[assignment,method-assign]
    with pytest.raises(TypeError, match="get_xfer_telemetry"):
        backend.bind(agent)


def test_an_agent_whose_methods_all_raise(
    rig: Rig, double: DoubleEngine, logged: Callable[[str], Any]
) -> None:
    error = RuntimeError("the agent is dead")
    for handle in range(4):
        rig.add(f"r{handle % 2}", handle)
        double.agent.answers[handle] = double.agent.refusals[handle] = error
    result = rig.sweep()
    assert (result.done, result.failed, len(result.failures)) == (set(), {"r0", "r1"}, 4)
    assert (rig.table.handle_count, rig.sweep(after=1).retained) == (4, 4)
    for handle in range(4):
        double.set(handle, LOST)
        double.refuse(handle, None)
    assert rig.sweep(after=10).done == {"r0", "r1"}
