"""Native calls, on a libnixl of the tests' own: what is trusted, what is caught, and what falls back."""

from __future__ import annotations

import functools
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvfast_ext import DuplicateHandleError, Quarantine, backend_name
from tests.backend import native_double
from tests.backend.doubles import DISCONNECT, DONE, ERRORS, FAILED_CODES, LOST, NIXL_STATUSES, Clock
from tests.backend.engines import new_capsule
from tests.backend.native_double import THROW_IN, Requests, nixl_agent, nixlAgent

Logged = Callable[[str], list[str]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if native_double.compiler() is None and os.environ.get("KVFAST_REQUIRE_EXT") != "1":
        pytest.skip("there is no C++ compiler")
    return native_double.build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def bindings(library: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name, module in native_double.modules(library).items():
        monkeypatch.setitem(sys.modules, name, module)
    return sys.modules[f"{native_double.PACKAGE}._bindings"]


@pytest.fixture
def agent(bindings: ModuleType) -> nixl_agent:
    return nixl_agent()


@pytest.fixture
def requests(agent: nixl_agent) -> Iterator[Requests]:
    made = Requests(agent.agent)
    yield made
    gc.collect()
    assert made.misuses() == 0


class Forwarding:
    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


WRAPS: dict[str, Callable[[Any], Any]] = {
    "agent": lambda agent: agent,
    "binding": lambda agent: agent.agent,
    "wrapper": Forwarding,
    "wrapper of a wrapper": lambda agent: Forwarding(Forwarding(agent)),
    "wrapper of the binding": lambda agent: Forwarding(agent.agent),
}


def is_native(backend: ModuleType) -> bool:
    return backend_name(backend) == "cython"


def table_of(backend: ModuleType, agent: Any, **options: Any) -> Any:
    return backend.TransferTable(backend.bind(agent), scan="all", clock=Clock(), **options)


@pytest.mark.parametrize("wrap", sorted(WRAPS))
@pytest.mark.parametrize("form", ["objects", "ints", "array"])
def test_a_transfer(
    backend: ModuleType, agent: nixl_agent, requests: Requests, wrap: str, form: str, library: Path
) -> None:
    ops = backend.bind(WRAPS[wrap](agent))
    assert ops.kind == ("nixl" if is_native(backend) else "python"), ops.reason
    if is_native(backend):
        assert str(library) in ops.reason
    table = backend.TransferTable(ops, scan="all")
    handles: list[Any] = [requests.handle(n) if form == "objects" else requests.id(n) for n in range(4)]
    table.add("r", *([np.array(handles, np.uint64)] if form == "array" else handles))
    agent.agent.python_calls.clear()
    assert backend.pop_done_transfers(table).done == set()
    for n in range(4):
        requests[n].state = DONE
    result = backend.pop_done_transfers(table)
    assert result.done == {"r"}
    rows = zip(
        *(getattr(result.transfers, name).tolist() for name in ("post_us", "xfer_us", "bytes", "descriptors"))
    )
    assert sorted(rows) == [(100 + n, 200 + n, 300 + n, 400 + n) for n in range(4)]
    assert requests.released(0, 1, 2, 3) == [1, 1, 1, 1]
    if is_native(backend):
        assert agent.agent.python_calls == ["telemetry"]  # the one comparison
    if form == "objects":
        assert all(handle._released for handle in handles)  # or the finaliser frees them again
    del handles, table
    gc.collect()
    assert requests.released(0, 1, 2, 3) == [1, 1, 1, 1]


@pytest.mark.parametrize("status", FAILED_CODES)
def test_each_failure(backend: ModuleType, agent: nixl_agent, requests: Requests, status: int) -> None:
    table = table_of(backend, agent)
    handle = requests.handle(0)
    table.add("r", handle, peer="p")
    requests[0].state = status
    result = backend.pop_done_transfers(table)
    (failure,) = result.failures
    name, error_class = NIXL_STATUSES[status]
    assert (failure.handle, failure.status, type(failure.error).__name__) == (handle, name, error_class)
    assert type(failure.error) is ERRORS[status]  # the binding's own class
    assert (result.done, requests.released(0), handle._released) == ({"r"}, [1], True)


def test_lost_dead_and_refused(backend: ModuleType, agent: nixl_agent, requests: Requests) -> None:
    table = table_of(backend, agent, quarantine=Quarantine(lost_s=30))
    handles = [requests.handle(n) for n in range(5)]
    for n, (request, peer) in enumerate([("lost", "p"), ("dead", "q"), ("dead", "q"), ("refused", None)]):
        table.add(request, handles[n], peer=peer)
    table.add("leak", handles[4])
    for n, state in enumerate([LOST, LOST, DISCONNECT, -3, DONE]):
        requests[n].state = state
    requests[3].release_code = requests[4].release_code = -3
    result = backend.pop_done_transfers(table)
    assert (result.done, result.retained) == ({"dead", "leak"}, 3)
    assert requests.released(0, 1, 2, 3, 4) == [0, 1, 1, 0, 0]
    requests[3].release_code = 0
    requests[4].release_code = 1 if is_native(backend) else -3  # 1: in progress, which pybind11 does not tell
    table._clock.advance(10)
    result = backend.pop_done_transfers(table)
    assert (result.done, requests.released(3, 4)) == ({"refused"}, [1, 0])
    requests[4].release_code = 0
    table._clock.advance(20)
    assert backend.pop_done_transfers(table).done == {"lost"}
    assert requests.released(0, 1, 2, 3, 4) == [1, 1, 1, 1, 1]


def test_try_release(backend: ModuleType, agent: nixl_agent, requests: Requests) -> None:
    ops = backend.bind(agent)
    for n, state in enumerate([DONE, 1, LOST, -3, DONE]):
        requests[n].state = state
    requests[4].release_code = -6
    handles: list[Any] = [
        requests.handle(0),
        requests.id(1),
        requests.id(2),
        requests.handle(3),
        requests.handle(4),
    ]
    assert backend.try_release(ops, handles).tolist() == [True, False, False, True, False]
    assert [handles[n]._released for n in (0, 3, 4)] == [True, True, False]
    requests[4].release_code = 0
    requests[1].state = DONE
    ids = np.array([requests.id(1), requests.id(4)], np.uint64)
    assert backend.try_release(ops, ids).tolist() == [True, True]
    handles[4]._released = True  # released by its raw id: the caller's to say
    assert requests.released(0, 1, 2, 3, 4) == [1, 1, 0, 1, 1]


# ---- C++ exceptions


@pytest.mark.parametrize("where", sorted(THROW_IN))
def test_a_cpp_exception_ends_at_the_boundary(
    compiled: ModuleType, agent: nixl_agent, requests: Requests, where: str
) -> None:
    backend = compiled
    ops = backend.bind(agent)
    first = backend.TransferTable(ops, scan="all")
    first.add("trust", requests.handle(9))
    requests[9].state = DONE
    backend.pop_done_transfers(first)
    table = backend.TransferTable(ops, scan="all", clock=Clock())
    for n in range(3):
        table.add(f"r{n}", requests.handle(n))
        requests[n].state = DONE
    requests[1].throws = THROW_IN[where]
    result = backend.pop_done_transfers(table)
    assert ops.kind == "nixl"
    assert requests.released(0, 2) == [1, 1]
    if where == "telemetry":
        assert (result.done, result.transfers.unsampled, requests.released(1)) == ({"r0", "r1", "r2"}, 1, [1])
    elif where == "release":
        assert (result.done, result.failed, result.retained) == ({"r0", "r1", "r2"}, set(), 1)
    else:
        assert (result.done, result.failed) == ({"r0", "r1", "r2"}, {"r1"})
        assert [failure.status for failure in result.failures] == ["EXCEPTION"]
    requests[1].throws = 0
    table._clock.advance(10)
    backend.pop_done_transfers(table)
    assert requests.released(0, 1, 2) == [1, 1, 1]


# ---- telemetry is compared once


@pytest.mark.parametrize("layout", [1, 3])
@pytest.mark.parametrize("form", ["objects", "ints"])
def test_another_telemetry_layout_falls_back_in_the_middle_of_a_sweep(
    compiled: ModuleType, agent: nixl_agent, requests: Requests, layout: int, form: str
) -> None:
    backend = compiled
    agent.agent.cpp.layout = layout
    ops = backend.bind(agent)
    other = backend.TransferTable(ops, scan="all")  # a second table on the same ops is told as well
    table = backend.TransferTable(ops, scan="all")
    handles: list[Any] = [requests.handle(n) if form == "objects" else requests.id(n) for n in range(6)]
    table.add("r", *handles[:4])
    other.add("s", *handles[4:])
    backend.pop_done_transfers(table)
    backend.pop_done_transfers(other)
    assert ops.kind == "nixl"
    for n, state in enumerate([-3, DONE, DONE, DONE, DONE, DONE]):
        requests[n].state = state
    agent.agent.python_calls.clear()
    result = backend.pop_done_transfers(table)
    assert (result.done, result.failed) == ({"r"}, {"r"})
    assert ops.kind == "python"
    assert "layout" in ops.reason
    assert sorted(result.transfers.xfer_us.tolist()) == [201, 202, 203]  # the binding's values
    assert "release" in agent.agent.python_calls
    result = backend.pop_done_transfers(other)
    assert (result.done, sorted(result.transfers.post_us.tolist())) == ({"s"}, [104, 105])
    assert requests.released(*range(6)) == [1] * 6
    if form == "objects":
        assert all(handle._released for handle in handles)
    third = backend.TransferTable(ops, scan="all")
    third.add("t", requests.handle(7))
    requests[7].state = DONE
    assert backend.pop_done_transfers(third).done == {"t"}


def test_a_longer_telemetry_struct_does_no_harm(
    backend: ModuleType, agent: nixl_agent, requests: Requests
) -> None:
    agent.agent.cpp.layout = 2
    table = table_of(backend, agent)
    table.add("r", requests.handle(0))
    requests[0].state = DONE
    assert backend.pop_done_transfers(table).transfers.bytes.tolist() == [300]


@pytest.mark.parametrize("code", [-12, -3])
def test_an_agent_without_telemetry_stays_native(
    backend: ModuleType, agent: nixl_agent, requests: Requests, code: int, logged: Logged
) -> None:
    ops = backend.bind(agent)
    table = backend.TransferTable(ops, scan="all")
    for n in range(3):
        table.add("r", requests.handle(n))
        requests[n].state, requests[n].telemetry_code = DONE, code
    result = backend.pop_done_transfers(table)
    assert (result.done, len(result.transfers), result.transfers.unsampled) == ({"r"}, 0, 3)
    assert ops.kind == ("nixl" if is_native(backend) else "python")
    assert len(logged("telemetry")) == 1


# ---- what falls back, with a reason


def reason_of(backend: ModuleType, agent: Any, requests: Requests) -> str:
    """Bind, check that a transfer works through Python calls, and return the reason."""
    ops = backend.bind(agent)
    assert ops.kind == "python"
    table = backend.TransferTable(ops, scan="all")
    table.add("r", requests.handle(0))
    requests[0].state = DONE
    assert backend.pop_done_transfers(table).done == {"r"}
    assert requests.released(0) == [1]
    return str(ops.reason)


def test_another_abi(compiled: ModuleType, agent: nixl_agent, requests: Requests) -> None:
    agent.agent.answers_conduit = lambda: None
    reason = reason_of(compiled, agent, requests)
    assert "ABI" in reason
    assert agent.agent.conduit_calls == [(native_double.ABI_ID, b"raw_pointer_ephemeral")]


def test_a_conduit_that_raises(compiled: ModuleType, agent: nixl_agent, requests: Requests) -> None:
    agent.agent.answers_conduit = lambda: 1 / 0
    assert "ZeroDivisionError" in reason_of(compiled, agent, requests)


@pytest.mark.parametrize("name", [b"some other class", None])
def test_a_conduit_that_answers_with_another_class(
    compiled: ModuleType, agent: nixl_agent, requests: Requests, name: bytes | None
) -> None:
    agent.agent.answers_conduit = lambda: new_capsule(0x1000, name)
    assert "conduit" in reason_of(compiled, agent, requests)


def test_a_conduit_that_answers_with_no_capsule(
    compiled: ModuleType, agent: nixl_agent, requests: Requests
) -> None:
    agent.agent.answers_conduit = lambda: "a string"
    assert "conduit" in reason_of(compiled, agent, requests)


@pytest.mark.parametrize("missing", ["getXferStatus", "getXferTelemetry", "releaseXferReq"])
def test_a_library_without_a_symbol(
    compiled: ModuleType,
    agent: nixl_agent,
    requests: Requests,
    bindings: ModuleType,
    tmp_path: Path,
    missing: str,
) -> None:
    library = native_double.build(tmp_path, f"-D{missing}=renamed")
    native_double.load(bindings, library)
    reason = reason_of(compiled, agent, requests)
    assert "lacks the symbol" in reason
    assert missing in reason


@pytest.mark.parametrize("file", ["/nowhere/libnixl.so", __file__, ""])
def test_a_module_that_is_no_loaded_library(
    compiled: ModuleType, agent: nixl_agent, requests: Requests, bindings: ModuleType, file: str
) -> None:
    bindings.__file__ = file
    reason = reason_of(compiled, agent, requests)
    assert "not loaded" in reason


def test_a_module_that_has_gone(
    compiled: ModuleType, agent: nixl_agent, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"{native_double.PACKAGE}._bindings")
    assert "not loaded" in reason_of(compiled, agent, requests)


class Counting(Forwarding):
    def check_xfer_state(self, handle: Any) -> Any:
        return self._wrapped.check_xfer_state(handle)


class Subclass(nixl_agent):
    def release_xfer_handle(self, handle: Any) -> None:
        handle.release()


class Harmless(nixl_agent):
    def another_method(self) -> int:
        return 1


@pytest.mark.parametrize("method", ["check_xfer_state", "get_xfer_telemetry", "release_xfer_handle"])
def test_a_method_replaced_on_the_agent_itself(
    compiled: ModuleType, agent: nixl_agent, requests: Requests, method: str
) -> None:
    setattr(agent, method, functools.partial(getattr(agent, method)))
    assert f"nixl_agent.{method}" in reason_of(compiled, agent, requests)


def test_a_wrapper_with_a_method_of_its_own(
    compiled: ModuleType, agent: nixl_agent, requests: Requests
) -> None:
    assert "Counting.check_xfer_state" in reason_of(compiled, Counting(agent), requests)


def test_a_subclass_with_a_method_of_its_own(compiled: ModuleType, bindings: ModuleType) -> None:
    agent = Subclass()
    assert "Subclass.release_xfer_handle" in reason_of(compiled, agent, Requests(agent.agent))


def test_a_subclass_that_leaves_the_methods_alone_is_native(
    compiled: ModuleType, bindings: ModuleType
) -> None:
    assert compiled.bind(Harmless()).kind == "nixl"


def test_raw_ids_where_the_agents_methods_are_its_own(
    backend: ModuleType, agent: nixl_agent, requests: Requests
) -> None:
    # They take handle objects only, so a raw id can't be asked about.
    table = table_of(backend, Counting(agent))
    with pytest.raises(TypeError, match="handle object"):
        table.add("r", requests.id(0))
    with pytest.raises(TypeError, match="handle object"):
        backend.try_release(table.ops, np.array([requests.id(0)], np.uint64))
    assert len(table) == 0


# ---- what is refused


def test_handles_that_would_crash_nixl(backend: ModuleType, agent: nixl_agent, requests: Requests) -> None:
    table = table_of(backend, agent)
    for bad in (0, 1, 8, 4088, requests.id(0) + 1, requests.id(0) + 4, np.array([16], np.uint64)):
        with pytest.raises(ValueError, match="not a NIXL transfer handle"):
            table.add("r", requests.id(1), bad)
        with pytest.raises(ValueError, match="not a NIXL transfer handle"):
            backend.try_release(table.ops, [bad])
    mixed = np.array([requests.id(1), requests.id(2) + 2, requests.id(3)], np.uint64)
    with pytest.raises(ValueError, match="not a NIXL transfer handle"):
        backend.try_release(table.ops, mixed)
    assert (len(table), agent.agent.cpp.calls) == (0, 0)


@pytest.mark.parametrize("other", [SimpleNamespace(_handle=0x10000), object(), 2**64, [0x10000]], ids=repr)
def test_objects_that_are_no_nixl_handles(backend: ModuleType, agent: nixl_agent, other: Any) -> None:
    table = table_of(backend, agent)
    with pytest.raises((TypeError, ValueError), match="handle"):
        table.add("r", other)
    assert (len(table), agent.agent.cpp.calls) == (0, 0)


def test_a_released_handle(backend: ModuleType, agent: nixl_agent, requests: Requests) -> None:
    handle = requests.handle(0)
    requests[0].state = DONE
    handle.release()
    table = table_of(backend, agent)
    with pytest.raises(ValueError, match="released already"):
        table.add("r", handle)
    with pytest.raises(ValueError, match="released already"):
        backend.try_release(table.ops, [handle])


def test_a_handle_of_another_agent(backend: ModuleType, agent: nixl_agent, requests: Requests) -> None:
    table = table_of(backend, nixl_agent())
    handle = requests.handle(0)
    with pytest.raises(ValueError, match="belongs to another agent"):
        table.add("r", handle)
    with pytest.raises(ValueError, match="belongs to another agent"):
        backend.try_release(table.ops, [handle])
    handle._released = True


def test_the_same_transfer_as_object_and_as_id(
    backend: ModuleType, agent: nixl_agent, requests: Requests
) -> None:
    table = table_of(backend, agent)
    handle = requests.handle(0)
    table.add("r", handle)
    with pytest.raises(DuplicateHandleError):
        table.add("s", requests.id(0))
    with pytest.raises(DuplicateHandleError):
        backend.try_release(table.ops, [requests.id(1), handle, requests.id(1)])
    requests[0].state = DONE
    assert backend.pop_done_transfers(table).done == {"r"}


# ---- the rest


def test_the_agent_lives_as_long_as_its_ops(backend: ModuleType, bindings: ModuleType) -> None:
    agent = nixl_agent()
    requests = Requests(agent.agent)
    table = table_of(backend, agent)
    table.add("r", requests.id(0))
    requests.inner = None  # type: ignore[assignment]
    del agent
    gc.collect()
    requests[0].state = DONE
    assert backend.pop_done_transfers(table).done == {"r"}
    assert requests.misuses() == 0


def test_a_table_dropped_in_flight_marks_its_handles(
    backend: ModuleType, agent: nixl_agent, requests: Requests
) -> None:
    table = [table_of(backend, agent)]
    table[0].add("r", requests.handle(0), requests.handle(1))
    requests[1].state = LOST
    backend.pop_done_transfers(table[0])
    with pytest.warns(ResourceWarning, match="2 handle"):
        table.clear()
    assert requests.released(0, 1) == [0, 0]


@pytest.mark.parametrize("holder", ["config", "nixl_conf", "nixl_config"])
@pytest.mark.parametrize("mode", ["NIXL_THREAD_SYNC_NONE", "NIXL_THREAD_SYNC_RW"])
def test_an_agent_without_locking_is_warned_about(
    backend: ModuleType, agent: nixl_agent, holder: str, mode: str
) -> None:
    setattr(agent, holder, SimpleNamespace(sync_mode=SimpleNamespace(name=mode)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        backend.bind(agent)
    unlocked = is_native(backend) and mode.endswith("NONE")
    assert [warning.category for warning in caught] == [RuntimeWarning] * unlocked
    if unlocked:
        assert "NIXL_THREAD_SYNC_NONE" in str(caught[0].message)


def test_every_binding_has_its_own_library(
    compiled: ModuleType, agent: nixl_agent, requests: Requests, bindings: ModuleType, tmp_path: Path
) -> None:
    # cu12 and cu13 side by side: the functions must come from the agent's own.
    copy = native_double.build(tmp_path)
    native_double.load(bindings, copy)
    ops = compiled.bind(agent)
    assert (ops.kind, ops.library) == ("nixl", str(copy))
    assert isinstance(agent.agent, nixlAgent)
