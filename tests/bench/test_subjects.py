"""Both sides of each comparison do the same work, and a measurement of something else is an error."""

from __future__ import annotations

from functools import partial
from math import isfinite
from types import ModuleType
from typing import Any

import pytest

from kvfast.bench import simulated
from kvfast.bench.errors import BenchError
from kvfast.bench.machine import machine
from kvfast.bench.real import Link
from kvfast.bench.simulated import Poller, SimulatedLoop, SimulatedTable, StandIn, drain
from kvfast.bench.vllm_loop import SmallStats, VllmLoop
from kvfast.testing import FakeClock, ScriptedAgent

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


def test_the_machine_is_named_also_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert "cores, load" in machine()
    monkeypatch.setattr("kvfast.bench.machine._CPUINFO", tmp_path / "none")
    assert "Python 3." in machine()
    (tmp_path / "none").write_text("processor: 0\n")
    assert "nixl" in machine()
