"""Ops that others make: the ``kvfast.ops.v1`` capsule, in both backends."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.backend.doubles import DONE, LOST
from tests.backend.engines import CapsuleEngine, Ops, new_capsule
from tests.backend.rig import Rig, failures


@pytest.fixture
def engine() -> CapsuleEngine:
    return CapsuleEngine()


@pytest.fixture
def rig(backend: ModuleType, engine: CapsuleEngine, scan: str, make_rig: Callable[..., Rig]) -> Rig:
    return make_rig(backend, engine, scan)


def changed(engine: CapsuleEngine, **values: Any) -> Any:
    """Return a capsule over the engine's struct with other values in it."""
    for name, value in values.items():
        setattr(engine.ops, name, value)
    return engine.agent


def test_all_functions_are_called_with_the_context(rig: Rig, engine: CapsuleEngine) -> None:
    rig.add("r", 1, 2, 3)
    engine.set(1, DONE)
    engine.set(2, -3)
    engine.set(3, LOST)
    result = rig.sweep()
    assert sorted(engine.asked) == [1, 2, 3]
    assert failures(result) == [("r", 2, "BACKEND", False), ("r", 3, "NOT_FOUND", True)]
    assert engine.violations == []


def test_kind_and_agent(backend: ModuleType, engine: CapsuleEngine) -> None:
    ops = backend.bind(engine.agent)
    assert (ops.kind, ops.agent) == ("capsule", engine.agent)
    assert "kvfast.ops.v1" in ops.reason


def test_a_larger_struct_is_of_a_later_minor_version(backend: ModuleType, engine: CapsuleEngine) -> None:
    capsule = changed(engine, size=ctypes.sizeof(Ops) + 64)
    assert backend.bind(capsule).kind == "capsule"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"version": 0}, "version 0"),
        ({"size": ctypes.sizeof(Ops) - 1}, f"size {ctypes.sizeof(Ops) - 1}"),
        ({"size": 0}, "size 0"),
        ({"status": None}, "lack a function"),
        ({"telemetry": None}, "lack a function"),
        ({"release": None}, "lack a function"),
    ],
    ids=repr,
)
def test_a_wrong_struct(
    backend: ModuleType, engine: CapsuleEngine, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        backend.bind(changed(engine, **values))


@pytest.mark.parametrize("name", [None, b"", b"kvfast.ops.v2", b"kvfast.ops", b"numpy"], ids=repr)
def test_a_wrong_name(backend: ModuleType, engine: CapsuleEngine, name: bytes | None) -> None:
    capsule = new_capsule(ctypes.addressof(engine.ops), name)
    with pytest.raises(TypeError, match=r"not a capsule named 'kvfast\.ops\.v1'"):
        backend.bind(capsule)


@pytest.mark.parametrize("code", [2, 17, 2**31 - 1])
def test_an_unknown_positive_status_is_neither_done_nor_in_progress(
    rig: Rig, engine: CapsuleEngine, code: int
) -> None:
    rig.add("r", 1)
    engine.set(1, code)
    result = rig.sweep()
    assert (len(result.transfers), failures(result)) == (0, [("r", 1, "BAD_STATE", False)])
    assert (result.done, result.failed) == ({"r"}, {"r"})


def test_released_means_exactly_zero(backend: ModuleType, engine: CapsuleEngine) -> None:
    ops = backend.bind(engine.agent)
    for handle, answer in ((1, 0), (2, 1), (3, -3), (4, 2)):
        engine.set(handle, DONE)
        engine.refuse(handle, answer)
    assert backend.try_release(ops, [1, 2, 3, 4]).tolist() == [True, False, False, False]


def test_the_capsule_lives_as_long_as_it_is_used(backend: ModuleType, engine: CapsuleEngine) -> None:
    destroyed: list[int] = []
    destructor_type = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
    destructor = destructor_type(lambda _: destroyed.append(1))
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, destructor_type]
    capsule = make(ctypes.addressof(engine.ops), b"kvfast.ops.v1", destructor)
    table = backend.TransferTable(backend.bind(capsule), scan="all")
    del capsule
    gc.collect()
    assert destroyed == []
    table.add("r", 1)
    engine.set(1, DONE)
    assert backend.pop_done_transfers(table).done == {"r"}
    del table
    gc.collect()
    assert destroyed == [1]


def test_the_struct_is_copied_at_bind(backend: ModuleType, engine: CapsuleEngine) -> None:
    # A maker may not change functions under a running sweep; nor can it by accident.
    ops = backend.bind(engine.agent)
    table = backend.TransferTable(ops, scan="all")
    table.add("r", 1)
    engine.set(1, DONE)
    if backend.__name__.endswith("cython_backend"):
        changed(engine, status=None, release=None, telemetry=None)
    assert backend.pop_done_transfers(table).done == {"r"}


def test_two_tables_on_one_capsule(backend: ModuleType, engine: CapsuleEngine) -> None:
    ops = backend.bind(engine.agent)
    one, two = (backend.TransferTable(ops, scan="all") for _ in range(2))
    one.add("r", 1)
    two.add("r", 2)
    engine.set(1, DONE)
    assert backend.pop_done_transfers(two).done == set()
    assert backend.pop_done_transfers(one).done == {"r"}
    engine.set(2, DONE)
    assert backend.pop_done_transfers(two).done == {"r"}
