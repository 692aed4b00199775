"""The demo's fault, on an engine that goes wrong in a given way. No NIXL is needed."""

from __future__ import annotations

import pytest

from kvfast.demo.engine import Request, Source
from kvfast.demo.evidence import EARLY, Problems
from kvfast.demo.fault import Fault


@pytest.fixture
def problems() -> Problems:
    return Problems()


Done = list[tuple[str, list[int]]]
KEPT = 3
VICTIM, SPARE, SLOW = Source(1, "victim", 0), Source(1, "spare", 0), Source(0, "slow", 0)


class FakeEngine:
    """An engine whose first poll of the deferral check, the second in all, goes wrong."""

    def __init__(self, problems: Problems, forget: str = "", drop: str = "", deaf: bool = False) -> None:
        self.problems = problems
        self.sources = {0: SLOW, 1: VICTIM}
        self.outstanding = {"older": Request("older", [0], sources=[SLOW, VICTIM])}
        self.running = {"older"}
        self.replaced: list[Source] = []
        self.told: list[Source] = []
        self._forget, self._drop = forget, drop
        self._deaf = deaf
        self._killed = False

    def can_start(self, keep_pending: int) -> bool:
        assert keep_pending == KEPT
        return len(self.outstanding) == 1

    def step(self, keep_pending: int) -> None:
        assert keep_pending == KEPT
        for req_id in ("kept", "forgotten", "dropped"):
            self.outstanding[req_id] = Request(req_id, [0], sources=[SLOW, VICTIM])
            self.running.add(req_id)

    def poll(self) -> None:
        if self.has_lost(VICTIM):
            self.outstanding.pop(self._forget, None)
            self.running.discard(self._drop)

    def in_flight(self, source: Source) -> list[str]:
        return list(self.running)

    def runs(self, request: Request, source: Source) -> bool:
        assert source == SLOW
        return request.req_id in self.running

    def has_lost(self, source: Source) -> bool:
        return self._killed and (not self._deaf or bool(self.told))

    def process_ended(self, source: Source) -> None:
        self.told.append(source)

    def replace(self, source: Source) -> None:
        self.replaced.append(source)

    def control(self, verb: str, ranks: list[int]) -> None:
        self._killed = self._killed or verb == "kill"


def carry_out(engine: FakeEngine, death_unseen_s: float = 3600.0) -> tuple[Fault, Done]:
    done: Done = []

    def control(verb: str, ranks: list[int]) -> None:
        done.append((verb, ranks))
        engine.control(verb, ranks)

    fault = Fault(
        engine,  # type: ignore[arg-type]
        control,
        VICTIM,
        SPARE,
        SLOW,
        KEPT,
        0.0,
        death_unseen_s,
    )
    fault.carry_out()
    return fault, done


def test_fault_in_order(problems: Problems) -> None:
    engine = FakeEngine(problems)
    fault, done = carry_out(engine)
    assert done == [("stop", [1, 0]), ("kill", [1]), ("cont", [0])]
    assert fault.report.killed == "victim"
    assert sorted(fault.report.in_flight_when_killed) == ["dropped", "forgotten", "kept", "older"]
    assert (fault.report.told_of_death, fault.report.deferred) == (False, 4)
    assert engine.told == []
    assert engine.replaced == [SPARE]
    assert problems.shown == []


def test_fault_tells_of_a_death_that_nobody_sees_once(problems: Problems) -> None:
    engine = FakeEngine(problems, deaf=True)
    fault, _ = carry_out(engine, death_unseen_s=0.0)
    assert fault.report.told_of_death is True
    assert engine.told == [VICTIM]


def test_fault_notes_a_request_that_does_not_wait(problems: Problems) -> None:
    carry_out(FakeEngine(problems, forget="forgotten"))
    assert problems.shown == ["forgotten was reported while a transfer of it was stopped"]
    assert problems.counts[EARLY] == 1


def test_fault_lets_an_older_request_end(problems: Problems) -> None:
    # The stopped rank may have sent its bytes before it was stopped.
    carry_out(FakeEngine(problems, forget="older"))
    assert problems.shown == []


def test_fault_notes_a_running_transfer_that_is_let_go(problems: Problems) -> None:
    carry_out(FakeEngine(problems, drop="dropped"))
    assert problems.shown == ["dropped let go of a transfer that was still running"]
    assert problems.counts[EARLY] == 1
