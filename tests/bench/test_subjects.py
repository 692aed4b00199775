"""Both sides of each comparison do the same work, and a measurement of something else is an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import metadata
from math import inf, isfinite
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvfast.bench import bare_loop, drains, real, simulated, subjects
from kvfast.bench.errors import BenchError
from kvfast.bench.machine import machine
from kvfast.bench.real import Flight, Link
from kvfast.bench.simulated import Poller, SimulatedLoop, SimulatedTable, StandIn, drain
from kvfast.bench.vllm_loop import SmallStats, VllmLoop
from kvfast.testing import FakeClock, ScriptedAgent
from tests.nixl.rank import nixl_missing

HANDLES = 10


@pytest.fixture(params=["loop", "table"])
def poller(request: pytest.FixtureRequest, backend: ModuleType) -> Poller:
    return SimulatedLoop(HANDLES) if request.param == "loop" else SimulatedTable(backend, HANDLES)


def test_a_poller_keeps_what_is_in_flight_and_samples_each_that_ends_once(poller: Poller) -> None:
    for _ in range(2):  # it can be filled again
        poller.fill()
        stats = SmallStats()
        poller.sweep_into(stats)
        assert stats.bytes == []
        poller.end()
        poller.sweep_into(stats)
        assert len(stats.bytes) == len(stats.xfer_s) == len(stats.post_s) == len(stats.descriptors) == HANDLES
        poller.sweep_into(stats)
        assert len(stats.bytes) == HANDLES


def test_both_sides_fill_the_same_statistics(poller: Poller) -> None:
    poller.fill()
    poller.end()
    stats = SmallStats()
    poller.sweep_into(stats)
    assert set(stats.xfer_s) == set(stats.post_s) == {1e-6}
    assert set(stats.bytes) == set(stats.descriptors) == {1}


def test_a_drain_that_leaves_something_over_is_an_error(poller: Poller) -> None:
    with pytest.raises(BenchError, match="0 of 10 simulated transfers are done"):
        drain(poller)
    with pytest.raises(BenchError, match="0 of 10"):
        simulated.check_drained(poller, SmallStats())


def test_bursts_leave_the_pollers_as_they_were(poller: Poller) -> None:
    poller.fill()
    assert isfinite(simulated.in_flight_burst(poller, 3)())
    drain(poller)
    assert simulated.drain_burst([poller])() >= 0


def test_an_empty_burst_that_was_interrupted_makes_no_sweep_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = iter([5e-6, *[1e-6] * 100])
    bursts: list[Callable[[], float]] = [lambda: next(empty), lambda: 3e-6]
    monkeypatch.setattr(simulated, "calls", lambda *_: bursts.pop(0))
    assert simulated.in_flight_burst(SimulatedLoop(4), 1)() == pytest.approx(2e-6)


def test_finished_bursts_of_tables(backend: ModuleType) -> None:
    assert simulated.finished_burst(simulated.each(backend, HANDLES, 2))() >= 0
    assert simulated.bookkeeping_burst(HANDLES)() >= 0


def test_the_loop_on_its_way_through_every_state() -> None:
    failed: list[tuple[str, Any]] = []
    agent = ScriptedAgent()
    handles = [agent.prepare() for _ in range(3)]
    for handle in handles:
        agent.transfer(handle)
    loop = VllmLoop(
        agent, {"a": handles[:2], "b": handles[2:]}, SmallStats(), lambda *what: failed.append(what)
    )
    assert loop.sweep() == set()
    agent.set_states({handles[0]: "DONE", handles[2]: "ERR"})
    assert loop.sweep() == {"b"}
    assert failed == [("b", handles[2])]
    assert loop.transfers == {"a": [handles[1]]}
    assert len(loop.stats.bytes) == 1
    agent.set_states({handles[1]: "DONE"})
    assert loop.sweep() == {"a"}


def test_a_failure_where_none_may_be_stops_the_measurement() -> None:
    loop = SimulatedLoop(4)
    loop.fill()
    stand_in: StandIn = loop._engine
    stand_in._states[2] = "ERR"
    with pytest.raises(BenchError, match="no state of a simulated transfer"):
        loop.sweep()


class OneState:
    """An agent all of whose transfers are in one state."""

    agent = None

    def __init__(self, state: Any) -> None:
        self.state = state

    def check_xfer_state(self, handle: Any) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state


@pytest.mark.parametrize("state", ["ERR", RuntimeError("gone")])
def test_a_real_transfer_that_fails_stops_the_measurement(state: Any) -> None:
    link = Link(None, OneState(state), None)  # type: ignore[arg-type]
    with pytest.raises(BenchError, match=r"a READ has failed: .*(ERR|gone)"):
        link.wait([1])


def test_a_real_transfer_that_does_not_end_stops_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr("kvfast.bench.real.time.monotonic", partial(_late, clock))
    with pytest.raises(BenchError, match="2 of 2 READs are not DONE after 30 s"):
        Link(None, OneState("PROC"), None).wait([1, 2])  # type: ignore[arg-type]


def _late(clock: FakeClock) -> float:
    clock.advance(20.0)
    return clock()


def test_subjects_are_those_whose_backend_is_there_and_the_loop(backend: ModuleType) -> None:
    flight = Flight(Link(None, StandIn(4), None), {"a": [1, 2], "b": [3]})  # type: ignore[arg-type]
    assert list(subjects.sweepers(flight, {})) == [subjects.LOOP]
    assert subjects.limits(flight, None) == {}
    flight.link.agent._states[2] = "ERR"
    with pytest.raises(BenchError, match=r"a: .* is not in flight"):
        subjects.sweepers(flight, {})[subjects.LOOP]()


def test_racers_all_get_the_same_number_of_passes() -> None:
    passes: list[str] = []

    def limit() -> float:
        passes.append("limit")
        return 1.0

    racers = subjects.racers({"sweep": partial(passes.append, "sweep")}, {"limit": limit})
    for burst in racers.values():
        assert burst() > 0
    assert passes == ["sweep"] * 3 + ["limit"] * 3


def test_a_drain_of_something_else_stops_the_measurement() -> None:
    link = Link(None, StandIn(4), None)  # type: ignore[arg-type]
    with pytest.raises(BenchError, match="a sweep left something over"):
        drains.drain_whole(drains.Drains(link, {}).loop({"a": [1]}))
    link.agent._states[1] = "ERR"
    with pytest.raises(BenchError, match=r"a: .* is not DONE"):
        drains.Drains(link, {}).loop({"a": [1]})()


def test_a_bare_loop_over_something_else_stops_the_measurement(tmp_path: Path) -> None:
    if bare_loop.compiler() is None:
        pytest.skip("no C++ compiler")
    library = bare_loop.build(tmp_path)
    states = simulated.Arrays(3).agent.states
    burst = bare_loop.simulated(library, states)
    assert burst() >= 0
    states[1] = 0
    with pytest.raises(BenchError, match="a handle was not in flight"):
        burst()

    class Binding:
        def _pybind11_conduit_v1_(self, *_: object) -> None: ...

    with pytest.raises(BenchError, match="was not built for the C\\+\\+ ABI"):
        bare_loop.BareLoop(library, Binding())


def test_a_straggler_spoils_the_burst_and_is_waited_for() -> None:
    link = SimpleNamespace(done=dict, landed=lambda: {"a": [1]})
    answers = iter([True, False, True])  # the warm-up, then a sweep that leaves one over
    assert drains.burst_of_landed(link, lambda transfers: lambda: next(answers)) == inf  # type: ignore[arg-type]
    assert next(answers, None) is None


def test_bytes_that_do_not_come_stop_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = SimpleNamespace(expected=lambda block, n_blocks: np.ones((n_blocks, 8), np.uint8))
    link = Link(rank, StandIn(1), np.zeros((real.BLOCKS, 8), np.uint8))  # type: ignore[arg-type]
    monkeypatch.setattr(link, "post", dict)
    monkeypatch.setattr("kvfast.bench.real.time.monotonic", partial(_late, FakeClock()))
    with pytest.raises(BenchError, match="the bytes of READs did not come"):
        link.landed()


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "rc")
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    with real._loopback():
        assert (os.environ["UCX_TLS"], os.environ["UCX_NET_DEVICES"]) == ("tcp", "lo")
    assert os.environ["UCX_TLS"] == "rc"
    assert "UCX_NET_DEVICES" not in os.environ


needs_nixl = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")


@needs_nixl
def test_a_drain_from_before_nixl_has_noticed() -> None:
    with real.link() as link:
        prepare = drains.Drains(link, {}).loop
        assert min(drains.burst_of_landed(link, prepare) for _ in range(3)) > 0


@needs_nixl
def test_a_read_that_ends_although_its_peer_is_stopped_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with real.link() as link:
        monkeypatch.setattr(link, "state", lambda handle: "DONE")
        monkeypatch.setattr(link, "wait", _plain(link).wait)
        with (
            pytest.raises(BenchError, match="a READ from a stopped peer is DONE"),
            real.in_flight(link, 1, 1),
        ):
            pass


def _plain(link: Link) -> Link:
    return Link(link.rank, link.agent, link._memory)


def test_the_machine_is_named_also_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert "cores, load" in machine()
    monkeypatch.setattr("kvfast.bench.machine.metadata.version", _no_package)
    assert "nixl absent, numpy absent" in machine()
    monkeypatch.setattr("kvfast.bench.machine._CPUINFO", tmp_path / "none")
    assert "Python 3." in machine()
    (tmp_path / "none").write_text("processor: 0\n")
    assert "nixl" in machine()


def _no_package(name: str) -> str:
    raise metadata.PackageNotFoundError(name)
