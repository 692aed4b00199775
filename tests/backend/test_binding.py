"""`bind` on agents of other people's making: wrappers, doubles, mocks."""

from __future__ import annotations

import enum
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.backend.doubles import Double, HandleObject, nixl_error, telemetry


class Forwarding:
    """A wrapper that forwards every attribute."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class Counting(Forwarding):
    """A wrapper that overrides one method."""

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self.checks = 0

    def check_xfer_state(self, handle: Any) -> Any:
        self.checks += 1
        return self._wrapped.check_xfer_state(handle)


@pytest.mark.parametrize(
    "wrap", [lambda agent: agent, Forwarding, Counting, lambda a: Forwarding(Counting(a))]
)
def test_wrappers_are_called_not_passed_by(backend: ModuleType, wrap: Any) -> None:
    double = Double()
    agent = wrap(double)
    ops = backend.bind(agent)
    assert (ops.kind, ops.agent) == ("python", agent)
    table = backend.TransferTable(ops, scan="all")
    table.add("r", 1, HandleObject(2, double))
    backend.pop_done_transfers(table)
    double.answers.update({1: "DONE", 2: "DONE"})
    assert backend.pop_done_transfers(table).done == {"r"}
    assert double.released == {1: 1, 2: 1}
    if hasattr(agent, "checks"):
        assert agent.checks == 4


def test_the_reason_is_a_sentence(backend: ModuleType) -> None:
    reason = backend.bind(Double()).reason
    assert isinstance(reason, str)
    assert len(reason.split()) >= 4


def test_repr_of_ops_says_kind_and_reason(backend: ModuleType) -> None:
    ops = backend.bind(Double())
    assert ops.kind in repr(ops)


@pytest.mark.parametrize("make", [mock.Mock, mock.MagicMock])
def test_a_mock_is_an_agent(backend: ModuleType, make: Any) -> None:
    agent = make()
    agent.check_xfer_state.return_value = "PROC"
    agent.get_xfer_telemetry.return_value = telemetry(1, 2, 3, 4)
    ops = backend.bind(agent)
    assert ops.kind == "python"
    table = backend.TransferTable(ops, scan="all")
    handle = make()
    table.add("r", handle)
    for _ in range(2):
        assert backend.pop_done_transfers(table).done == set()
    agent.release_xfer_handle.assert_not_called()
    agent.check_xfer_state.return_value = "DONE"
    result = backend.pop_done_transfers(table)
    assert (result.done, result.transfers.bytes.tolist()) == ({"r"}, [3])
    agent.check_xfer_state.assert_called_with(handle)
    agent.release_xfer_handle.assert_called_once_with(handle)


def test_a_mock_that_was_told_nothing_ends_no_transfer(backend: ModuleType) -> None:
    agent = mock.MagicMock()  # its checks return MagicMocks, which are 1 as ints
    table = backend.TransferTable(backend.bind(agent), scan="all")
    table.add("r", 5)
    result = backend.pop_done_transfers(table)
    assert (result.done, result.failed, len(result.transfers)) == (set(), set(), 0)
    agent.release_xfer_handle.assert_not_called()
    agent.check_xfer_state.return_value = "DONE"
    assert backend.pop_done_transfers(table).done == {"r"}


def test_a_mock_with_a_spec(backend: ModuleType) -> None:
    agent = mock.create_autospec(Double, instance=True)
    agent.check_xfer_state.side_effect = nixl_error(-10)
    table = backend.TransferTable(backend.bind(agent), scan="all")
    table.add("r", 5)
    (failure,) = backend.pop_done_transfers(table).failures
    assert failure.status == "REMOTE_DISCONNECT"
    agent.release_xfer_handle.assert_called_once_with(5)


def test_states_as_the_bindings_enum(backend: ModuleType) -> None:
    class Status(enum.IntEnum):
        NIXL_IN_PROG = 1
        NIXL_SUCCESS = 0

    double = Double()
    double.answers.update({1: Status.NIXL_IN_PROG, 2: Status.NIXL_SUCCESS})
    double._seen[1] = "PROC"
    table = backend.TransferTable(backend.bind(double), scan="all")
    table.add("one", 1)
    table.add("two", 2)
    assert backend.pop_done_transfers(table).done == {"two"}
    double.answers[1] = Status.NIXL_SUCCESS
    assert backend.pop_done_transfers(table).done == {"one"}
    assert double.violations == []


def test_the_inner_bindings_methods(backend: ModuleType) -> None:
    # NIXL's own binding object has these names and takes raw ids.
    calls: list[tuple[str, int]] = []
    states = {1: 0, 2: 0}

    def status(handle: int) -> int:
        calls.append(("status", handle))
        return states[handle]

    def release(handle: int) -> None:
        calls.append(("release", handle))

    inner = SimpleNamespace(
        getXferStatus=status, getXferTelemetry=lambda handle: telemetry(1, 1, 1, 1), releaseXferReq=release
    )
    table = backend.TransferTable(backend.bind(inner), scan="all")
    handle = HandleObject(2)
    table.add("r", 1, handle)
    assert backend.pop_done_transfers(table).done == {"r"}
    assert sorted(calls) == [("release", 1), ("release", 2), ("status", 1), ("status", 2)]
    assert handle._released  # or its finaliser would release it again


def test_methods_are_looked_up_at_bind(backend: ModuleType) -> None:
    double = Double()
    ops = backend.bind(double)
    double.answers[1] = "DONE"
    double.check_xfer_state = lambda handle: "PROC"  # type: ignore[method-assign]
    assert backend.try_release(ops, [1]).tolist() in ([True], [False])
    assert double.violations == []


def test_a_wrapper_that_looks_like_nixl_is_not_trusted(backend: ModuleType) -> None:
    # It has the conduit's name, but no pybind11 object behind it.
    class Impostor(Double):
        _pybind11_conduit_v1_ = None

        @property
        def agent(self) -> Any:
            return self

    double = Impostor()
    ops = backend.bind(double)
    assert ops.kind == "python"
    table = backend.TransferTable(ops, scan="all")
    table.add("r", 3)
    double.answers[3] = "DONE"
    assert backend.pop_done_transfers(table).done == {"r"}


def test_an_agent_that_resists_being_looked_at(backend: ModuleType) -> None:
    class Shy(Double):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"{name} is private")

    try:
        ops = backend.bind(Shy())
    except RuntimeError as error:
        assert "is private" in str(error)  # noqa: PT017
    else:
        assert ops.kind == "python"


def test_ops_keep_the_agent(backend: ModuleType) -> None:
    ops = backend.bind(Double())
    assert isinstance(ops.agent, Double)
