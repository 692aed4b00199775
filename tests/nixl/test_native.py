"""Native calls on real NIXL: when they are made, what is checked before, and what falls back and why."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from kvfast import open_agent
from kvfast_ext import SweepResult, backend_name, cython_available, select_backend
from tests.nixl.rank import LOOPBACK_ENV, Decode, Rank, nixl_missing

pytestmark = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")

DEADLINE_S = 60.0
METHODS = ("check_xfer_state", "get_xfer_telemetry", "release_xfer_handle")


class Forwarding:
    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class Overriding(Forwarding):
    """Forwards everything, and counts the calls of one method."""

    def __init__(self, wrapped: Any, method: str) -> None:
        super().__init__(wrapped)
        self.calls = 0

        def counted(handle: Any) -> Any:
            self.calls += 1
            return getattr(wrapped, method)(handle)

        setattr(self, method, counted)


WRAPS: dict[str, Callable[[Any], Any]] = {
    "agent": lambda agent: agent,
    "binding": lambda agent: agent.agent,
    "wrapper": Forwarding,
    "wrapper of a wrapper": lambda agent: Forwarding(Forwarding(agent)),
    "wrapper of the binding": lambda agent: Forwarding(agent.agent),
}


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    with Rank(1) as made:
        yield made


@pytest.fixture(scope="module")
def decode(rank: Rank) -> Iterator[Decode]:
    with Decode() as made:
        made.connect(rank)
        yield made


@pytest.fixture
def compiled() -> ModuleType:
    if not cython_available() and os.environ.get("KVFAST_REQUIRE_EXT") != "1":
        pytest.skip("the cython backend is not built")
    return select_backend("cython")


@pytest.fixture
def binding_class(decode: Decode) -> Any:
    return type(decode.agent.agent)


def transfer(
    backend: ModuleType, ops: Any, rank: Rank, decode: Decode, count: int = 4, *, ids: bool = False
) -> list[SweepResult]:
    """READ some blocks with these ops, and check bytes, telemetry and that each handle is released."""
    decode.memory[:] = 0
    handles = [decode.read(rank, n, n) for n in range(count)]
    table = backend.TransferTable(ops, scan="all")
    if ids:
        for handle in handles:
            handle._released = True
        table.add("r", np.array([handle._handle for handle in handles], np.uint64))
    else:
        table.add("r", *handles)
    results: list[SweepResult] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(table):
        assert time.monotonic() < deadline, results[-1]
        results.append(backend.pop_done_transfers(table))
    assert [failure for result in results for failure in result.failures] == []
    assert results[-1].done == {"r"}
    assert (decode.memory[:count] == rank.expected(0, count)).all()
    assert [handle._released for handle in handles] == [True] * count
    return results


def sizes(results: list[SweepResult]) -> list[int]:
    return [n for result in results for n in result.transfers.bytes.tolist()]


@pytest.mark.parametrize("wrap", sorted(WRAPS))
def test_each_way_to_hand_over_an_agent(backend: ModuleType, rank: Rank, decode: Decode, wrap: str) -> None:
    given = WRAPS[wrap](decode.agent)
    ops = backend.bind(given)
    assert ops.agent is given
    assert ops.kind == ("nixl" if backend_name(backend) == "cython" else "python"), ops.reason
    for ids in (False, True):
        results = transfer(backend, ops, rank, decode, ids=ids)
        assert sizes(results) == [decode.block_bytes] * 4
    assert ops.kind == ("nixl" if backend_name(backend) == "cython" else "python"), ops.reason


def test_the_functions_are_of_the_agents_own_library(
    compiled: ModuleType, decode: Decode, binding_class: Any
) -> None:
    # cu12 and cu13 can both be installed, each with a libnixl of its own.
    ops = compiled.bind(decode.agent)
    module_file = Path(sys.modules[binding_class.__module__].__file__ or "")
    library = Path(ops.library)
    assert library.name.startswith("libnixl")
    assert ops.library in ops.reason
    package = binding_class.__module__.split(".")[
        0
    ]  # nixl_cu12: its libraries are in nixl_cu12.libs or alike
    assert any(part.startswith((package, f".{package}")) for part in library.parts)
    assert module_file.exists()
    assert library.exists()


# ---- the telemetry of the first DONE handle is compared with the binding's


def test_the_comparison_is_made_once(
    compiled: ModuleType, rank: Rank, decode: Decode, binding_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    original = binding_class.getXferTelemetry

    def counted(inner: Any, handle: int) -> Any:
        asked.append(handle)
        return original(inner, handle)

    monkeypatch.setattr(binding_class, "getXferTelemetry", counted)
    ops = compiled.bind(decode.agent)
    assert asked == []
    for _ in range(3):
        transfer(compiled, ops, rank, decode)
        assert len(asked) == 1
    assert ops.kind == "nixl"


def test_telemetry_that_differs_falls_back(
    compiled: ModuleType, rank: Rank, decode: Decode, binding_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a NIXL would look whose struct is laid out otherwise: the binding knows, native code does not.
    original = binding_class.getXferTelemetry

    def shifted(inner: Any, handle: int) -> Any:
        seen = original(inner, handle)
        return SimpleNamespace(
            xferDuration=seen.xferDuration, postDuration=seen.postDuration, descCount=9, totalBytes=4711
        )

    monkeypatch.setattr(binding_class, "getXferTelemetry", shifted)
    ops = compiled.bind(decode.agent)
    assert ops.kind == "nixl"
    assert sizes(transfer(compiled, ops, rank, decode)) == [4711] * 4
    assert ops.kind == "python"
    assert "layout" in ops.reason
    assert sizes(transfer(compiled, ops, rank, decode, ids=True)) == [4711] * 4


def test_an_agent_without_telemetry_stays_native(backend: ModuleType, rank: Rank) -> None:
    with Decode("without telemetry", telemetry=False) as decode:
        decode.connect(rank)
        ops = backend.bind(decode.agent)
        results = transfer(backend, ops, rank, decode)
        assert sizes(results) == []
        assert sum(result.transfers.unsampled for result in results) == 4
        assert ops.kind == ("nixl" if backend_name(backend) == "cython" else "python"), ops.reason


# ---- what falls back to Python calls, with a reason


def test_another_abi(
    compiled: ModuleType, rank: Rank, decode: Decode, binding_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = binding_class._pybind11_conduit_v1_
    seen: list[bytes] = []

    def other_abi(inner: Any, abi_id: bytes, type_info: Any, kind: bytes) -> Any:
        seen.append(abi_id)
        return original(inner, b"some_other_abi", type_info, kind)

    monkeypatch.setattr(binding_class, "_pybind11_conduit_v1_", other_abi)
    ops = compiled.bind(decode.agent)
    assert (ops.kind, "ABI" in ops.reason) == ("python", True)
    assert seen == [b"system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"]
    transfer(compiled, ops, rank, decode)


def test_no_symbols(
    compiled: ModuleType, rank: Rank, decode: Decode, binding_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sys.modules["kvfast_ext.cython_backend._native"]  # a library that is loaded, and is not NIXL
    monkeypatch.setattr(sys.modules[binding_class.__module__], "__file__", other.__file__)
    ops = compiled.bind(decode.agent)
    assert (ops.kind, "lacks the symbol" in ops.reason) == ("python", True)
    transfer(compiled, ops, rank, decode)


@pytest.mark.parametrize("file", ["/nowhere/_bindings.so", __file__])
def test_a_module_file_that_is_not_loaded(
    compiled: ModuleType,
    rank: Rank,
    decode: Decode,
    binding_class: Any,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
) -> None:
    monkeypatch.setattr(sys.modules[binding_class.__module__], "__file__", file)
    ops = compiled.bind(decode.agent)
    assert (ops.kind, "not loaded" in ops.reason) == ("python", True)
    transfer(compiled, ops, rank, decode)


@pytest.mark.parametrize("method", METHODS)
def test_a_wrapper_with_a_method_of_its_own(
    compiled: ModuleType, rank: Rank, decode: Decode, method: str
) -> None:
    wrapper = Overriding(decode.agent, method)
    ops = compiled.bind(wrapper)
    assert (ops.kind, method in ops.reason) == ("python", True)
    transfer(compiled, ops, rank, decode)
    assert wrapper.calls >= 4


@pytest.mark.parametrize("method", METHODS)
def test_a_method_replaced_on_the_agent(
    compiled: ModuleType, rank: Rank, decode: Decode, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = mock.Mock(side_effect=getattr(decode.agent, method))
    monkeypatch.setattr(decode.agent, method, replaced)
    ops = compiled.bind(decode.agent)
    assert (ops.kind, method in ops.reason) == ("python", True)
    transfer(compiled, ops, rank, decode)
    assert replaced.call_count >= 4


# ---- what is refused before NIXL could crash on it


def test_bad_handles(backend: ModuleType, rank: Rank, decode: Decode) -> None:
    ops = backend.bind(decode.agent)
    table = backend.TransferTable(ops)
    handle = decode.read(rank, 0, 0)
    for bad in (0, 8, handle._handle + 1, handle._handle + 4):
        with pytest.raises(ValueError, match="not a NIXL transfer handle"):
            table.add("r", bad)
        with pytest.raises(ValueError, match="not a NIXL transfer handle"):
            backend.try_release(ops, np.array([bad], np.uint64))
    with pytest.raises(TypeError, match="nixl_xfer_handle"):
        table.add("r", SimpleNamespace(_handle=handle._handle, _released=False, _agent=None))
    assert len(table) == 0
    assert decode.wait(handle) == ["DONE"]
    assert backend.try_release(ops, [handle]).tolist() == [True]
    with pytest.raises(ValueError, match="released already"):
        table.add("r", handle)


def test_a_handle_of_another_agent(backend: ModuleType, rank: Rank, decode: Decode) -> None:
    handle = decode.read(rank, 0, 0)
    for name, value in LOOPBACK_ENV.items():
        os.environ.setdefault(name, value)
    ops = backend.bind(open_agent("another"))
    for given in (handle, [handle]):
        with pytest.raises(ValueError, match="belongs to another agent"):
            backend.TransferTable(ops).add("r", handle)
        with pytest.raises(ValueError, match="belongs to another agent"):
            backend.try_release(ops, [handle] if given is handle else given)
    assert decode.wait(handle) == ["DONE"]


def test_the_agent_lives_as_long_as_its_ops(backend: ModuleType, rank: Rank) -> None:
    with Decode("short-lived") as decode:
        decode.connect(rank)
        ops = backend.bind(decode.agent)
        handle = decode.read(rank, 0, 0)
        table = backend.TransferTable(ops, scan="all")
        table.add("r", handle)
        agent, decode.agent = decode.agent, None
        inner = agent.agent
        del agent
        deadline = time.monotonic() + DEADLINE_S
        while not backend.pop_done_transfers(table).done:
            assert time.monotonic() < deadline
        assert handle._released
        decode.agent = ops.agent  # to close it
        assert ops.agent.agent is inner
