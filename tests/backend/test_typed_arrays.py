"""Raw handle ids as typed arrays: every kind of buffer, and what is refused."""

from __future__ import annotations

import array
import ctypes
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest

from kvfast_ext import SimulatedAgent
from tests.backend.doubles import DONE, PROC
from tests.backend.engines import Engine
from tests.backend.rig import Rig

IDS: Final = [3, 1, 2]


def torch_tensor(ids: list[int], dtype: str, **options: Any) -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    return torch.tensor(ids, dtype=getattr(torch, dtype), **options)


def strided(ids: list[int]) -> Any:
    spread = np.full(2 * len(ids), 60, np.uint64)
    spread[::2] = ids
    return spread[::2]


def read_only(ids: list[int]) -> Any:
    made = np.array(ids, np.uint64)
    made.flags.writeable = False
    return made


def ctypes_array(ids: list[int]) -> Any:
    return (ctypes.c_uint64 * len(ids))(*ids)


GOOD: Final[dict[str, Callable[[list[int]], Any]]] = {
    "numpy uint64": lambda ids: np.array(ids, np.uint64),
    "numpy int64": lambda ids: np.array(ids, np.int64),
    "numpy big-endian": lambda ids: np.array(ids, ">u8"),
    "numpy strided": strided,
    "numpy reversed": lambda ids: np.array(ids[::-1], np.uint64)[::-1],
    "numpy read-only": read_only,
    "numpy subclass": lambda ids: np.array(ids, np.uint64).view(np.recarray),
    "array Q": lambda ids: array.array("Q", ids),
    "array q": lambda ids: array.array("q", ids),
    "memoryview": lambda ids: memoryview(array.array("Q", ids)),
    "memoryview cast": lambda ids: memoryview(np.array(ids, np.uint64).tobytes()).cast("Q"),
    "memoryview strided": lambda ids: memoryview(strided(ids)),
    "ctypes": ctypes_array,
    "torch int64": lambda ids: torch_tensor(ids, "int64"),
    "torch uint64": lambda ids: torch_tensor(ids, "uint64"),
    "torch strided": lambda ids: torch_tensor([x for i in ids for x in (i, 60)], "int64")[::2],
}


@pytest.fixture(params=sorted(GOOD))
def made(request: pytest.FixtureRequest) -> Callable[[list[int]], Any]:
    return GOOD[request.param]


@pytest.mark.parametrize("scan", ["all"])
def test_added_to_a_table(any_rig: Rig, engine: Engine, made: Callable[[list[int]], Any]) -> None:
    any_rig.table.add("r", made(IDS))
    any_rig.table.add("s", 9, made([8, 7]), 6)
    assert (any_rig.table.handles("r"), any_rig.table.handles("s")) == ([3, 1, 2], [9, 8, 7, 6])
    assert {type(handle) for handle in any_rig.table.handles("r")} == {int}
    for handle in (1, 2, 3):
        engine.set(handle, DONE)
    assert any_rig.sweep().done == {"r"}
    any_rig.added += [1, 2, 3, 6, 7, 8, 9]


def test_released(backend: ModuleType, engine: Engine, made: Callable[[list[int]], Any]) -> None:
    ops = backend.bind(engine.agent)
    for handle, status in zip((3, 1, 2), (DONE, PROC, -3)):
        engine.set(handle, status)
    released = backend.try_release(ops, made(IDS))
    assert (released.dtype, released.tolist()) == (np.bool_, [True, False, True])
    assert [engine.released(handle) for handle in (1, 2, 3, 60)] == [0, 1, 1, 0]


def test_an_array_is_read_not_kept(any_rig: Rig, engine: Engine) -> None:
    given = np.array([1, 2], np.uint64)
    any_rig.table.add("r", given)
    given[:] = 50
    assert any_rig.table.handles("r") == [1, 2]
    growing = array.array("Q", [3, 4])
    any_rig.table.add("r", growing)
    growing.append(5)  # BufferError while an export is held
    engine.set(3, DONE)
    engine.set(4, DONE)
    any_rig.sweep()
    released = any_rig.backend.try_release(any_rig.ops, growing[2:])
    assert released.tolist() == [False]
    growing.append(6)


@pytest.mark.parametrize("empty", [GOOD["numpy uint64"], GOOD["array Q"], GOOD["ctypes"], list, tuple])
def test_empty_arrays(any_rig: Rig, empty: Callable[[list[int]], Any]) -> None:
    released = any_rig.backend.try_release(any_rig.ops, empty([]))
    assert (released.dtype, released.shape) == (np.bool_, (0,))
    if not isinstance(empty([]), (list, tuple)):
        any_rig.table.add("r", empty([]))
        assert any_rig.sweep().done == {"r"}


BAD: Final[dict[str, tuple[Callable[[], Any], type[Exception], str]]] = {
    "uint32": (lambda: np.array([1, 2], np.uint32), TypeError, "8-byte"),
    "int32": (lambda: np.array([1, 2], np.int32), TypeError, "8-byte"),
    "float64": (lambda: np.array([1.0, 2.0]), TypeError, "float64"),
    "bool": (lambda: np.array([True, False]), TypeError, "bool"),
    "object": (lambda: np.array([1, 2], object), TypeError, "object"),
    "text": (lambda: np.array(["1", "2"]), TypeError, "8-byte"),
    "datetime": (lambda: np.array([1, 2], "datetime64[s]"), TypeError, "datetime64"),
    "complex": (lambda: np.array([1j]), TypeError, "complex"),
    "two dimensions": (lambda: np.array([[1, 2], [3, 4]], np.uint64), ValueError, "one-dimensional"),
    "no dimension": (lambda: np.array(5, np.uint64), ValueError, "one-dimensional"),
    "negative": (lambda: np.array([5, -7], np.int64), ValueError, "-7 is negative"),
    "array of ints": (lambda: array.array("i", [1, 2]), TypeError, "8-byte"),
    "array of doubles": (lambda: array.array("d", [1.0]), TypeError, "8-byte"),
    "bytes": (lambda: b"12345678", TypeError, "handle"),
    "bytearray": (lambda: bytearray(16), TypeError, "handle"),
    "memoryview of bytes": (lambda: memoryview(b"12345678"), TypeError, "8-byte"),
    "torch int32": (lambda: torch_tensor([1, 2], "int32"), TypeError, "8-byte"),
    "torch float": (lambda: torch_tensor([1, 2], "float64"), TypeError, "8-byte"),
    "torch 2-D": (lambda: torch_tensor([[1], [2]], "int64"), ValueError, "one-dimensional"),  # type: ignore[list-item]
    "torch elsewhere": (lambda: torch_tensor([1, 2], "int64", device="meta"), TypeError, "meta"),
    "torch negative": (lambda: torch_tensor([-1], "int64"), ValueError, "-1 is negative"),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_what_is_refused(backend: ModuleType, engine: Engine, name: str) -> None:
    make, error, words = BAD[name]
    bad = make()
    ops = backend.bind(engine.agent)
    table = backend.TransferTable(ops)
    for handle in range(8):
        engine.set(handle, DONE)
    with pytest.raises(error, match=words):
        table.add("r", 9, bad)
    with pytest.raises(error, match=words):
        backend.try_release(ops, bad)
    with pytest.raises(error, match=words):
        backend.try_release(ops, [4, bad])
    assert ("r" in table, table.handle_count) == (False, 0)
    assert [engine.released(handle) for handle in range(10)] == [0] * 10


def test_ids_of_all_64_bits(backend: ModuleType) -> None:
    class Agent:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def check_xfer_state(self, handle: int) -> str:
            self.seen.append(handle)
            return "DONE"

        def get_xfer_telemetry(self, handle: int) -> None: ...
        def release_xfer_handle(self, handle: int) -> None: ...

    agent = Agent()
    ids = [2**64 - 1, 2**63, 2**63 - 1, 2**32, 0]
    table = backend.TransferTable(backend.bind(agent), scan="all")
    table.add("r", np.array(ids, np.uint64))
    assert sorted(table.handle_ids.tolist()) == sorted(ids)
    assert backend.pop_done_transfers(table).done == {"r"}
    assert sorted(agent.seen) == sorted(ids)


def test_torch_is_not_imported_by_kvfast() -> None:
    spec = importlib.util.find_spec("kvfast_ext.handles")
    assert spec is not None
    assert spec.loader is not None
    source = spec.loader.get_source("kvfast_ext.handles")  # type: ignore[attr-defined]
    assert "import torch" not in source


def test_many_ids_at_once(backend: ModuleType) -> None:
    agent = SimulatedAgent(100_000)
    ops = backend.bind(agent)
    agent.states[::2] = DONE
    ids = np.random.default_rng(5).permutation(100_000).astype(np.uint64)
    released = backend.try_release(ops, ids)
    assert (released == (ids % 2 == 0)).all()
    assert (agent.released == (np.arange(100_000) % 2 == 0)).all()
