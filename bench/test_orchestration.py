"""What the orchestration adds to a sweep: it must not eat what the backend has won."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from bench.report import Report
from kvfast import Receiver, Sender
from kvfast.bench.race import Burst, Race, calls, shortest
from kvfast.bench.simulated import bookkeeping_burst, cpu_clock
from kvfast.benchgate import GateBook
from kvfast_ext import SimulatedAgent
from kvfast_ext.states import SUCCESS

REQUESTS, ENDING = 1_000, 100
ROUNDS = 40
BOOKKEEPING = "a dict pop and a list append"
ALLOWED = 28  # what a poll may cost besides its share of the sweep: 2 us, where one of those took 72 ns
FEW_LEASES, MANY_LEASES = 100, 10_000


def bare_table(backend: ModuleType, scan: str) -> tuple[SimulatedAgent, Callable[[], Any]]:
    """Return an agent and the sweep of a table with one handle in flight for each request."""
    agent = SimulatedAgent(REQUESTS)
    table = backend.TransferTable(backend.bind(agent), scan=scan)
    for key in range(REQUESTS):
        table.add(f"request-{key}", key, peer="prefill-0")
    return agent, lambda: backend.pop_done_transfers(table)


def receiver(backend: ModuleType, scan: str) -> tuple[SimulatedAgent, Callable[[], Any]]:
    """Return an agent and the poll of a Receiver with the same in flight."""
    agent = SimulatedAgent(REQUESTS)
    found = Receiver(agent, backend=backend, scan=scan, stall_after_s=1e6)
    for key in range(REQUESTS):
        found.track(f"request-{key}", [[key]], peer="prefill-0")
        found.post(f"request-{key}", lambda key=key: key, lambda _: "PROC")  # type: ignore[misc]
    return agent, found.poll


def ending_burst(make: Callable[[], tuple[SimulatedAgent, Callable[[], Any]]]) -> Burst:
    """Return a burst that times one call in which a tenth of the requests ends."""

    def burst() -> float:
        agent, call = make()
        call()
        agent.states[:: REQUESTS // ENDING] = SUCCESS
        seconds = shortest([call], cpu_clock)
        agent.states[:] = SUCCESS
        call()
        return seconds

    return burst


@pytest.fixture(scope="module", params=["all", "watch"])
def idle(request: pytest.FixtureRequest, cython: ModuleType, report: Report) -> Iterator[Race]:
    agents: list[SimulatedAgent] = []
    subjects: dict[str, Burst] = {}
    ends: list[Callable[[], Any]] = []
    for name, make in {"bare sweep": bare_table, "Receiver.poll": receiver}.items():
        agent, call = make(cython, request.param)
        agents.append(agent)
        ends.append(call)
        subjects[name] = calls(call, 500, cpu_clock)
    race = Race({**subjects, BOOKKEEPING: bookkeeping_burst(REQUESTS)})
    race.run(ROUNDS)
    yield race
    for name in subjects:
        report.time("nothing ended", f"{name}, {request.param}", race.best[name], REQUESTS)
    for agent, call in zip(agents, ends):
        agent.states[:] = SUCCESS
        call()


def test_a_poll_in_which_nothing_ended(idle: Race, book: GateBook) -> None:
    book.expect(
        "receiver-idle",
        lambda: (idle.best["Receiver.poll"] - ALLOWED * _unit(idle)) / idle.best["bare sweep"],
        idle.longer,
        note=lambda: (
            f"{idle.best['Receiver.poll'] * 1e6:.2f} us, sweep {idle.best['bare sweep'] * 1e6:.2f} us"
        ),
    )


def test_a_poll_that_ends_requests(cython: ModuleType, book: GateBook, report: Report) -> None:
    race = Race(
        {
            "bare sweep": ending_burst(lambda: bare_table(cython, "all")),
            "Receiver.poll": ending_burst(lambda: receiver(cython, "all")),
            BOOKKEEPING: bookkeeping_burst(REQUESTS),
        }
    )
    race.run(ROUNDS)
    book.expect(
        "receiver-ends",
        lambda: _for_a_request(race) / _unit(race),
        race.longer,
        note=lambda: f"{_for_a_request(race) * 1e6:.2f} us; promised 1.5 us",
    )
    for name in ("bare sweep", "Receiver.poll"):
        report.time("100 requests ended", name, race.best[name], ENDING)


def _unit(race: Race) -> float:
    """Return what a little bookkeeping takes on this machine now: promises in microseconds are held to it."""
    return race.best[BOOKKEEPING] / REQUESTS


def _for_a_request(race: Race) -> float:
    """Return what a request that ends takes on top of the sweep, in seconds."""
    return (race.best["Receiver.poll"] - race.best["bare sweep"]) / ENDING


def test_a_senders_poll_with_no_lease_due(cython: ModuleType, book: GateBook, report: Report) -> None:
    subjects: dict[str, Burst] = {}
    for leases in (FEW_LEASES, MANY_LEASES):
        sender = Sender(SimulatedAgent(1), backend=cython)
        for number in range(leases):
            sender.track(f"request-{number}", [[number]], lease_s=1e6 + number)
        subjects[f"{leases:,} leases"] = calls(sender.poll, 500, cpu_clock)
    race = Race(subjects)
    race.run(ROUNDS)
    book.expect(
        "sender-idle",
        lambda: race.ratio(f"{MANY_LEASES:,} leases", f"{FEW_LEASES:,} leases"),
        race.longer,
        limit=lambda: 1.0,
    )
    for name, seconds in race.best.items():
        report.time("no lease due", f"Sender.poll, {name}", seconds, 1)
