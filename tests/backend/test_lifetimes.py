"""Who keeps what alive: handles in a table, tables with handles in flight, and nothing for longer."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from kvfast_ext import Quarantine, SimulatedAgent
from tests.backend.doubles import DONE, LOST, PROC, Clock, Double, HandleObject
from tests.backend.engines import DoubleEngine, Engine
from tests.backend.rig import Rig


@pytest.fixture
def objects(backend: ModuleType, engine: Engine, scan: str, make_rig: Callable[..., Rig]) -> Rig:
    return make_rig(backend, engine, scan, form="objects")


@pytest.fixture(autouse=True)
def only_reference_counts() -> Iterator[None]:
    """Neither the collector may help, nor a log that keeps what it was given.

    Exceptions of Python agents are the exception: their frames make cycles.
    """
    logging.disable()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("status", [DONE, -3, LOST])
def test_a_handle_dropped_by_the_caller_lives_until_its_release(
    objects: Rig, engine: Engine, status: int
) -> None:
    handle = weakref.ref(objects.add("r", 1)[0])
    for _ in range(3):
        objects.sweep()
        assert handle() is not None
    engine.set(1, status)
    engine.refuse(1, -3)
    result = objects.sweep()
    assert handle() is not None
    engine.refuse(1, None)
    objects.sweep(after=60)
    del result  # a failure names its handle
    assert handle() is None


def test_a_finaliser_never_frees_what_a_sweep_has_freed(
    backend: ModuleType, double: DoubleEngine, scan: str, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(backend, double, scan, form="objects", quarantine=Quarantine(1, 1))
    for handle in range(12):
        rig.add(f"r{handle % 5}", handle, peer="p")
        double.set(handle, (DONE, LOST, -10, -3)[handle % 4])
    for _ in range(4):
        rig.sweep(after=1)
    gc.collect()
    assert double.agent.finalised == []
    assert rig.released(*range(12)) == [1] * 12


def test_reference_counts_return_to_where_they_were(objects: Rig, engine: Engine) -> None:
    handles = objects.add("r", *range(8)) + objects.add("s", *range(8, 12), peer="p")
    held = [sys.getrefcount(handle) for handle in handles]
    for handle in range(12):
        engine.set(handle, (DONE, -3, LOST)[handle % 3])
    for _ in range(3):
        objects.sweep(after=20)
    assert len(objects.table) == 0
    assert [sys.getrefcount(handle) for handle in handles] == [count - 1 for count in held]


@pytest.mark.parametrize("calls", [1000])
def test_reading_and_failing_calls_keep_no_references(objects: Rig, calls: int) -> None:
    (handle,) = objects.add("r", 1)
    table, error_handle = objects.table, HandleObject(2)
    watched: list[Any] = [handle, error_handle, table, objects.ops]
    bad: tuple[Any, ...] = ()
    before = [sys.getrefcount(thing) for thing in watched]
    for _ in range(calls):
        table.handles("r")
        list(table)
        _ = (table.handle_ids, table.handle_count, table.quarantined, table.outstanding_of("p"), "r" in table)
        for bad in ((error_handle, error_handle), (handle,), (error_handle, None), (error_handle, -1)):
            with pytest.raises((TypeError, ValueError)):
                table.add("r", *bad)
        with pytest.raises(TypeError):
            objects.backend.try_release(objects.ops, [handle, error_handle, None])
        objects.backend.try_release(objects.ops, [handle])
        objects.sweep()
    bad = ()
    assert [sys.getrefcount(thing) for thing in watched] == before


def test_exceptions_of_failures_are_not_kept(rig: Rig, double: DoubleEngine) -> None:
    class Watched(RuntimeError):
        pass

    rig.add("r", 1)
    double.agent.answers[1] = error = Watched()
    reference = weakref.ref(error)
    result = rig.sweep()
    double.agent.answers.clear()
    assert result.failures[0].error is error
    error.__traceback__ = None
    del error, result
    assert reference() is None


def test_a_swept_table_is_collected_with_its_agent(backend: ModuleType, scan: str) -> None:
    agent = Double()
    ops = backend.bind(agent)
    table = backend.TransferTable(ops, scan=scan)
    table.add("r", HandleObject(1, agent))
    backend.pop_done_transfers(table)
    agent.answers[1] = "DONE"
    backend.pop_done_transfers(table)
    references = [weakref.ref(agent), weakref.ref(table)]
    del agent, ops, table
    assert [reference() for reference in references] == [None, None]


def test_a_cycle_of_agent_and_table_is_collected(backend: ModuleType) -> None:
    agent: Any = Double()
    agent.table = backend.TransferTable(backend.bind(agent))
    agent.table.open("r")
    backend.pop_done_transfers(agent.table)
    reference = weakref.ref(agent)
    del agent
    assert reference() is not None
    gc.collect()
    assert reference() is None


# ---- dropping a table too early


def dropped(table: list[Any]) -> list[str]:
    """Drop the table, and return what was warned about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table.clear()
        gc.collect()
    assert {warning.category for warning in caught} <= {ResourceWarning}
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("status", [PROC, LOST, -3, DONE])
def test_a_dropped_table_warns_and_releases_nothing(
    backend: ModuleType, double: DoubleEngine, scan: str, status: int
) -> None:
    # In flight, in quarantine, refused after a failure, refused after DONE: none may be released by a
    # finaliser, since bytes may still land or NIXL would refuse.
    table = [backend.TransferTable(backend.bind(double.agent), scan=scan, clock=Clock())]
    table[0].add("r", HandleObject(1, double.agent), HandleObject(2, double.agent), 3)
    double.set(1, status)
    double.refuse(1, -3)
    double.agent.asked("release")
    backend.pop_done_transfers(table[0])
    tries = len(double.agent.asked("release"))
    (message,) = dropped(table)
    assert "3 handle" in message
    assert (double.agent.finalised, double.agent.asked("release")) == ([], [])
    assert tries == (status in (-3, DONE))


def test_a_dropped_table_of_raw_ids_warns(backend: ModuleType, engine: Engine) -> None:
    table = [backend.TransferTable(backend.bind(engine.agent))]
    table[0].add("r", 1, 2)
    (message,) = dropped(table)
    assert "2 handle" in message
    assert [engine.released(handle) for handle in (1, 2)] == [0, 0]


def test_the_warning_can_be_an_error(backend: ModuleType, double: DoubleEngine) -> None:
    table = backend.TransferTable(backend.bind(double.agent))
    table.add("r", HandleObject(1, double.agent))
    unraisable: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del table
    finally:
        sys.unraisablehook = hook
    assert [entry.exc_type for entry in unraisable] == [ResourceWarning]
    unraisable.clear()
    assert double.agent.finalised == []


def test_an_empty_table_goes_in_silence(backend: ModuleType, double: DoubleEngine) -> None:
    table = [backend.TransferTable(backend.bind(double.agent))]
    table[0].add("r", HandleObject(1, double.agent))
    double.set(1, DONE)
    backend.pop_done_transfers(table[0])
    table[0].open("opened")
    assert dropped(table) == []


def test_a_dropped_table_in_a_cycle(backend: ModuleType) -> None:
    agent: Any = Double()
    agent.table = backend.TransferTable(backend.bind(agent))
    agent.table.add("r", HandleObject(1, agent))
    finalised = agent.finalised
    box = [agent]
    del agent
    (message,) = dropped(box)
    assert "1 handle" in message
    assert finalised == []


def test_the_arrays_of_a_simulated_agent_outlive_it(backend: ModuleType) -> None:
    agent = SimulatedAgent(4)
    states, released = agent.states, agent.released
    table = backend.TransferTable(backend.bind(agent), scan="all")
    reference = weakref.ref(agent)
    table.add("r", 1)
    del agent
    gc.collect()
    assert reference() is not None  # ops keep it
    states[1] = DONE
    assert backend.pop_done_transfers(table).done == {"r"}
    assert released.tolist() == [0, 1, 0, 0]
    del table
    gc.collect()
    assert reference() is None
