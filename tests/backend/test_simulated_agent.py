"""`SimulatedAgent`: a documented agent of arrays, the same by its methods and by compiled code."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvfast_ext import BACKEND_NAMES, SimulatedAgent, cython_available, select_backend
from tests.backend.doubles import HandleObject

BACKENDS = [name for name in BACKEND_NAMES if name == "python" or cython_available()]


def test_arrays() -> None:
    agent = SimulatedAgent(3)
    assert [agent.states.tolist(), agent.release_codes.tolist(), agent.released.tolist()] == [
        [1] * 3,
        [0] * 3,
        [0] * 3,
    ]
    assert {a.dtype for a in (agent.states, agent.release_codes, agent.released)} == {np.dtype(np.int32)}
    assert agent.telemetry.dtype == np.dtype(np.int64)
    assert agent.telemetry.shape == (3, 4)


@pytest.mark.parametrize("name", ["states", "release_codes", "telemetry", "released"])
def test_arrays_can_be_written_but_not_replaced(name: str) -> None:
    # Compiled code holds pointers into them.
    agent = SimulatedAgent(2)
    with pytest.raises(AttributeError):
        setattr(agent, name, np.zeros(2, np.int32))
    getattr(agent, name)[:] = 5
    assert (getattr(agent, name) == 5).all()


def test_arrays_that_compiled_code_points_into_do_not_move(backend: ModuleType) -> None:
    agent = SimulatedAgent(2)
    ops = backend.bind(agent)
    if ops.agent is agent and backend.__name__.endswith("cython_backend"):
        for name in ("states", "release_codes", "telemetry", "released"):
            with pytest.raises(ValueError, match="resize"):
                getattr(agent, name).resize((400, 4))


@pytest.mark.parametrize(
    ("n", "error"), [(-1, ValueError), ("1", TypeError), (1.0, TypeError), (True, TypeError)]
)
def test_bad_sizes(n: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="n must be"):
        SimulatedAgent(n)


@pytest.mark.parametrize("handle", [4, 5, 2**31, 2**63, 2**64 - 1])
def test_a_handle_it_does_not_have_is_an_invalid_parameter(backend: ModuleType, handle: int) -> None:
    agent = SimulatedAgent(4)
    table = backend.TransferTable(backend.bind(agent), scan="all")
    table.add("r", handle)
    result = backend.pop_done_transfers(table)
    assert [(f.handle, f.status) for f in result.failures] == [(handle, "INVALID_PARAM")]
    assert (result.done, result.retained) == (set(), 1)  # it refuses the release as well
    assert agent.released.tolist() == [0] * 4
    with pytest.warns(ResourceWarning, match="1 handle"):
        del table


def test_without_handles(backend: ModuleType) -> None:
    ops = backend.bind(SimulatedAgent(0))
    table = backend.TransferTable(ops)
    table.open("r")
    assert backend.pop_done_transfers(table).done == {"r"}


def test_states_set_between_sweeps_are_seen(backend: ModuleType, scan: str) -> None:
    agent = SimulatedAgent(8)
    table = backend.TransferTable(backend.bind(agent), scan=scan, full_scan_s=0)
    table.add("r", *range(8))
    for handle in range(8):
        assert backend.pop_done_transfers(table).done == set()
        agent.states[handle] = 0
        assert agent.released.tolist() == [1] * handle + [0] * (8 - handle)
    assert backend.pop_done_transfers(table).done == {"r"}


def failures_of(backend: ModuleType, code: int) -> list[tuple[str, str, bool]]:
    agent = SimulatedAgent(1)
    agent.states[0] = code
    table = backend.TransferTable(backend.bind(agent), scan="all")
    table.add("r", 0)
    result = backend.pop_done_transfers(table)
    assert (result.done, result.failed, len(result.transfers)) == ({"r"}, {"r"}, 0)
    return [(f.status, type(f.error).__name__, f.lost) for f in result.failures]


@pytest.mark.parametrize("code", [2, 3, 100, 2**31 - 1, -13, -50, -999, -1001, -(2**31)])
def test_codes_that_nixl_does_not_have(code: int) -> None:
    # Whatever a positive one may mean one day, it is not DONE. Both backends say the same about it.
    seen = [failures_of(select_backend(name), code) for name in BACKENDS]
    ((status, error, lost),) = seen[0]
    assert status not in ("DONE", "PROC")
    assert (bool(error), lost) == (True, False)
    assert seen == [seen[0]] * len(seen)


def test_handle_objects_are_handles_by_their_id(backend: ModuleType) -> None:
    agent = SimulatedAgent(2)
    agent.states[:] = 0
    table = backend.TransferTable(backend.bind(agent), scan="all")
    handle = HandleObject(1)
    table.add("r", handle, 0)
    assert backend.pop_done_transfers(table).done == {"r"}
    assert (handle._released, agent.released.tolist()) == (True, [1, 1])
