"""Looking into a table: requests, handles, ids, counts."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from kvfast_ext import UnknownRequestError
from tests.backend.doubles import DONE, LOST, HandleObject
from tests.backend.engines import DoubleEngine, Engine
from tests.backend.rig import Rig


@pytest.fixture
def full(backend: ModuleType, engine: Engine, scan: str, form: str, make_rig: Callable[..., Rig]) -> Rig:
    rig = make_rig(backend, engine, scan, form=form)
    rig.add("r", 5, 3)
    rig.table.open("empty")
    rig.add("s", 9)
    rig.add("r", 4)
    return rig


def test_a_new_table_is_empty(any_rig: Rig) -> None:
    table = any_rig.table
    assert (len(table), list(table), table.handle_count, table.quarantined) == (0, [], 0, set())
    assert (table.handle_ids.dtype, table.handle_ids.shape) == (np.uint64, (0,))
    assert "r" not in table
    assert any_rig.sweep().done == set()


def test_in_len_iter(full: Rig) -> None:
    assert [request in full.table for request in ("r", "s", "empty", "t", "")] == [True] * 3 + [False] * 2
    assert 5 not in full.table
    assert (len(full.table), list(full.table)) == (3, ["r", "empty", "s"])


def test_a_table_may_be_changed_while_it_is_iterated(full: Rig) -> None:
    for request in full.table:
        full.table.open(request + " again")
    assert len(full.table) == 6


def test_handles_oldest_first_as_they_were_given(full: Rig) -> None:
    first, second = full.table.handles("r")[:2]
    assert [getattr(handle, "_handle", handle) for handle in full.table.handles("r")] == [5, 3, 4]
    if full.form == "objects":
        assert isinstance(first, HandleObject)
    if full.form == "mixed":
        assert (type(first), type(second)) == (int, HandleObject)
    assert full.table.handles("empty") == []


def test_handles_is_a_copy(full: Rig) -> None:
    full.table.handles("r").clear()
    assert len(full.table.handles("r")) == 3


@pytest.mark.parametrize("request_id", ["t", ""])
def test_handles_of_an_unknown_request(full: Rig, request_id: str) -> None:
    with pytest.raises(UnknownRequestError, match=f"'{request_id}'") as raised:
        full.table.handles(request_id)
    assert isinstance(raised.value, KeyError)


def test_handle_ids_are_a_read_only_snapshot(full: Rig) -> None:
    ids = full.table.handle_ids
    assert (ids.dtype, sorted(ids.tolist()), full.table.handle_count) == (np.uint64, [3, 4, 5, 9], 4)
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 7
    full.add("r", 10)
    assert sorted(ids.tolist()) == [3, 4, 5, 9]
    assert sorted(full.table.handle_ids.tolist()) == [3, 4, 5, 9, 10]


def test_failed_handles_are_outstanding_until_released(full: Rig, engine: Engine) -> None:
    engine.set(3, LOST)
    engine.set(9, -3)
    engine.refuse(9, -3)
    full.sweep()
    assert sorted(full.table.handle_ids.tolist()) == [3, 4, 5, 9]
    assert full.table.handle_count == 4
    assert [getattr(handle, "_handle", handle) for handle in full.table.handles("r")] == [5, 4, 3]
    assert (list(full.table), full.table.quarantined) == (["r", "s"], {"r"})
    engine.refuse(9, None)
    full.sweep(after=10)
    assert sorted(full.table.handle_ids.tolist()) == [3, 4, 5]
    full.sweep(after=20)
    assert sorted(full.table.handle_ids.tolist()) == [4, 5]


def test_quarantined_names_each_request_once(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1, 2)
    any_rig.add("s", 3)
    engine.set(1, LOST)
    engine.set(2, LOST)
    any_rig.sweep()
    quarantined = any_rig.table.quarantined
    assert quarantined == {"r"}
    quarantined.clear()
    assert any_rig.table.quarantined == {"r"}


def test_other_objects_as_handles(rig: Rig, double: DoubleEngine) -> None:
    # Test doubles hand out all kinds of things; 128-bit ints among them.
    class Opaque:
        pass

    opaque, long_id = Opaque(), 2**100 + 17
    rig.table.add("r", opaque, long_id, 2**64 - 1)
    assert rig.table.handles("r") == [opaque, long_id, 2**64 - 1]
    for handle in (opaque, long_id, 2**64 - 1):
        double.agent.answers[handle] = "DONE"
    assert rig.sweep().done == {"r"}
    assert double.agent.released == {opaque: 1, long_id: 1, 2**64 - 1: 1}


def test_numbers_like_ints_are_ints(any_rig: Rig, engine: Engine) -> None:
    any_rig.table.add("r", np.uint64(4), np.int32(5))
    handles = any_rig.table.handles("r")
    assert (handles, [type(handle) for handle in handles]) == ([4, 5], [int, int])
    engine.set(4, DONE)
    engine.set(5, DONE)
    assert any_rig.sweep().done == {"r"}


def test_request_ids_of_all_kinds(any_rig: Rig, engine: Engine) -> None:
    class Id(str):
        __slots__ = ()

    ids = ["", "cmpl-1:0", "ü\N{SNOWMAN}", "\ud800", "x" * 10_000, Id("mine"), str(np.str_("numpy"))]
    for handle, request in enumerate(ids):
        any_rig.add(request, handle)
        engine.set(handle, DONE)
    assert all(request in any_rig.table for request in ids)
    assert any_rig.sweep().done == set(ids)


def test_the_scan_is_shown(any_rig: Rig) -> None:
    assert any_rig.table.scan in ("all", "watch")
    assert any_rig.table.ops is any_rig.ops
