"""The parts of the demo that need no NIXL: memory, pool, verdict, settings."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kvfast.demo.engine import Request, Source, make_requests
from kvfast.demo.evidence import BYTES, EARLY, ONCE, REUSE, MemoryWitness, Problems
from kvfast.demo.fault import Fault, FaultReport
from kvfast.demo.judge import DemoResult, judge
from kvfast.demo.pattern import POISON, check_shape, pattern
from kvfast.demo.pool import BlockPool
from kvfast.demo.report import show
from kvfast.demo.settings import DemoSettings

SETTINGS = DemoSettings(ranks=2, requests=10)
GOOD: dict[str, Any] = {
    "finished": 7,
    "failed": 3,
    "bytes_checked": 4096,
    "blocks_given": 20,
    "sweeps": 5,
    "sweep_us": {"min": 1.0, "median": 2.0, "max": 3.0},
    "transfers": {"sampled": 17, "unsampled": 0, "bytes": 4096},
    "fault": {"killed": "prefill1", "in_flight_when_killed": 3, "deferred": 3},
    "left_in_table": 0,
    "backend": "python",
    "scan": "watch",
    "ops": "python",
    "ops_reason": "because",
    "nixl": "1.5.1",
    "violations": {BYTES: 0, EARLY: 0, REUSE: 0, ONCE: 0},
    "problems": [],
    "failing": ["prefill1"],
    "read_from": {"prefill0": ["req-1", "req-0"], "spare1": ["req-1"]},
}
NOTIFIED = {"prefill0": ["req-0", "req-1"], "spare1": ["req-1"]}


def verdict(
    changes: dict[str, Any], settings: DemoSettings = SETTINGS, notified: dict[str, list[str]] = NOTIFIED
) -> DemoResult:
    return judge(settings, copy.deepcopy(GOOD) | changes, notified, 1.0)


def failed_checks(result: DemoResult) -> list[str]:
    return [check for check, held in result.checks.items() if not held]


def test_verdict_of_a_good_run() -> None:
    result = verdict({})
    assert failed_checks(result) == []
    assert result.ok
    assert result.as_dict()["ok"] is True


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"violations": {BYTES: 1, EARLY: 0, REUSE: 0, ONCE: 0}}, BYTES),
        ({"violations": {BYTES: 0, EARLY: 1, REUSE: 0, ONCE: 0}}, EARLY),
        ({"violations": {BYTES: 0, EARLY: 0, REUSE: 1, ONCE: 0}}, REUSE),
        ({"violations": {BYTES: 0, EARLY: 0, REUSE: 0, ONCE: 1}}, ONCE),
        ({"finished": 6}, "every request ended"),
        ({"left_in_table": 1}, "nothing is left in the table"),
        ({"failing": ["prefill0", "prefill1"]}, "requests of the killed rank failed, and only those"),
        ({"failed": 0, "finished": 10}, "requests of the killed rank failed, and only those"),
        (
            {"fault": {"killed": "prefill1", "in_flight_when_killed": 0, "deferred": 3}},
            "READs from the killed rank were in flight",
        ),
        (
            {"fault": {"killed": "prefill1", "in_flight_when_killed": 3, "deferred": 0}},
            "failed requests had to wait for another rank",
        ),
        (
            {"transfers": {"sampled": 17, "unsampled": 0, "bytes": 4095}},
            "every ended READ has telemetry, of as many bytes as were checked",
        ),
        (
            {"transfers": {"sampled": 16, "unsampled": 1, "bytes": 4096}},
            "every ended READ has telemetry, of as many bytes as were checked",
        ),
    ],
)
def test_each_check_fails_for_its_own_reason(changes: dict[str, Any], check: str) -> None:
    result = verdict(changes)
    assert failed_checks(result) == [check]
    assert not result.ok


@pytest.mark.parametrize(
    "notified",
    [
        {"prefill0": ["req-0"], "spare1": ["req-1"]},
        {"prefill0": ["req-0", "req-1", "req-1"], "spare1": ["req-1"]},
        {"prefill0": ["req-0", "req-2"], "spare1": ["req-1"]},
        {"prefill0": ["req-0", "req-1"], "spare1": []},
    ],
)
def test_a_missing_doubled_or_wrong_notification_fails(notified: dict[str, list[str]]) -> None:
    assert failed_checks(verdict({}, notified=notified)) == [
        "each rank was told of exactly the READs from it that ended"
    ]


def test_without_a_kill_no_request_may_fail() -> None:
    calm = DemoSettings(ranks=2, requests=10, kill=False)
    assert failed_checks(verdict({"fault": None, "failed": 0, "finished": 10}, calm)) == []
    assert failed_checks(verdict({"fault": None}, calm)) == ["no request failed"]


def test_one_rank_has_no_sibling_to_wait_for() -> None:
    alone = DemoSettings(ranks=1, requests=10)
    result = verdict({"fault": {"killed": "prefill1", "in_flight_when_killed": 3, "deferred": 0}}, alone)
    assert failed_checks(result) == []


def test_report_names_the_failed_check_and_the_problem() -> None:
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115 - closed below
    show(verdict({"left_in_table": 1, "problems": ["block 3 [bold]was[/] odd"]}), console)
    console.file.close()
    text = console.export_text()
    assert "FAILED nothing is left in the table" in text
    assert "block 3 [bold]was[/] odd" in text
    assert "some checks FAILED" in text


def test_pattern_differs_by_rank_block_and_place() -> None:
    held = pattern(0, range(8), 64)
    assert held.shape == (8, 64)
    words = np.concatenate([held.view(np.uint64).ravel(), pattern(1, range(8), 64).view(np.uint64).ravel()])
    assert len(np.unique(words)) == len(words)
    assert (pattern(0, [5, 2], 64) == held[[5, 2]]).all()


def test_pattern_of_neighbouring_ranks_never_meets() -> None:
    # The last words of a large rank's memory, and the first of the next one's.
    last = pattern(0, [2**31 - 1], 64).view(np.uint64)
    assert not np.isin(last, pattern(1, [0, 1], 64).view(np.uint64)).any()


@pytest.mark.parametrize(("blocks", "block_bytes"), [(0, 64), (-1, 64), (1, 0), (1, 12), (1, -8)])
def test_bad_shapes(blocks: int, block_bytes: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        check_shape(blocks, block_bytes)


@pytest.fixture
def problems() -> Problems:
    return Problems()


@pytest.fixture
def memory() -> Any:
    return np.zeros((2, 8, 64), np.uint8)


def test_pool_gives_the_longest_free_first_and_takes_back(memory: Any, problems: Problems) -> None:
    pool = BlockPool(8, MemoryWitness(memory, problems), problems)
    first = pool.take(3)
    second = pool.take(5)
    assert (first, second, len(pool)) == ([0, 1, 2], [3, 4, 5, 6, 7], 0)
    pool.give_back(second)
    pool.give_back(first)
    assert pool.take(6) == [3, 4, 5, 6, 7, 0]
    assert pool.given == 14
    assert problems.shown == []


def test_pool_finds_blocks_freed_twice_or_never(memory: Any, problems: Problems) -> None:
    pool = BlockPool(8, MemoryWitness(memory, problems), problems)
    blocks = pool.take(2)
    pool.take(1)
    pool.give_back(blocks)
    pool.give_back(blocks[:1])
    pool.check_all_free()
    assert problems.counts == {BYTES: 0, EARLY: 0, REUSE: 0, ONCE: 2}
    assert problems.shown == ["block 0 was freed twice", "block 2 was never freed"]


def test_pool_finds_a_block_that_was_written_to_while_free(memory: Any, problems: Problems) -> None:
    pool = BlockPool(8, MemoryWitness(memory, problems), problems)
    memory[1, 2, 63] = 1
    pool.take(2)
    assert problems.counts[REUSE] == 0
    pool.take(1)
    assert problems.counts[REUSE] == 1
    assert "block 2" in problems.shown[0]


def test_witness_sees_every_byte(memory: Any, problems: Problems) -> None:
    witness = MemoryWitness(memory, problems)
    assert (memory == POISON).all()
    memory[1, [3, 1]] = pattern(1, [40, 50], 64)
    assert witness.landed(1, [3, 1], [40, 50])
    assert not witness.landed(1, [1, 3], [40, 50])
    assert not witness.landed(0, [3, 1], [40, 50])
    for place in range(64):
        memory[1, 1, place] ^= 1
        assert not witness.landed(1, [3, 1], [40, 50]), place
        memory[1, 1, place] ^= 1
    assert witness.bytes_checked == (3 + 64) * 2 * 64


def test_problems_are_all_counted_and_some_are_shown(problems: Problems) -> None:
    for n in range(100):
        problems.add(BYTES, f"problem {n}")
    assert problems.counts[BYTES] == 100
    assert problems.shown == [f"problem {n}" for n in range(10)]


def test_requests_by_seed() -> None:
    requests = make_requests(50, 512, 16, seed=3)
    assert [r.remote for r in requests] == [r.remote for r in make_requests(50, 512, 16, seed=3)]
    assert [r.remote for r in requests] != [r.remote for r in make_requests(50, 512, 16, seed=4)]
    sizes = {len(r.remote) for r in requests}
    assert min(sizes) >= 1
    assert max(sizes) <= 16
    assert len(sizes) > 8
    assert all(len(set(r.remote)) == len(r.remote) for r in requests)
    assert len({r.req_id for r in requests}) == 50


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 0}, "ranks must be 1 to 32, not 0"),
        ({"ranks": 33}, "ranks must be 1 to 32, not 33"),
        ({"requests": -1}, "requests must be 1 to 100000, not -1"),
        ({"max_request_blocks": 257}, "max_request_blocks must be 1 to 256, not 257"),
        ({"timeout_s": 0}, "timeout_s must be positive, not 0"),
    ],
)
def test_bad_settings(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DemoSettings(**options)


def test_who_is_broken() -> None:
    for seed in range(20):
        settings = DemoSettings(ranks=3, seed=seed)
        assert settings.victim in range(3)
        assert settings.slow in range(3)
        assert settings.victim != settings.slow
    assert {DemoSettings(ranks=3, seed=seed).victim for seed in range(20)} == {0, 1, 2}
    assert (DemoSettings(ranks=1).victim, DemoSettings(ranks=1).slow) == (0, None)
    assert (DemoSettings(kill=False).victim, DemoSettings(kill=False).slow) == (None, None)


def test_some_requests_are_held_back_for_the_fault() -> None:
    assert [DemoSettings(requests=n).held_back for n in (1, 2, 4, 128)] == [1, 1, 1, 32]
    assert DemoSettings(kill=False).held_back == 0


class FakeTable:
    def __init__(self, in_table: set[str]) -> None:
        self.in_table = in_table

    def __contains__(self, req_id: object) -> bool:
        return req_id in self.in_table

    def handles(self, req_id: str) -> list[str]:
        assert req_id in self.in_table
        return [req_id]

    def outstanding_of(self, peer: str) -> int:
        return 0


class FakeEngine:
    """An engine whose second sweep, the first one of the deferral check, goes wrong."""

    def __init__(self, problems: Problems, forget: str, drop: str) -> None:
        self.problems = problems
        self.outstanding = {"older": Request("older", [0], failing={"victim"})}
        self.table = FakeTable({"older"})
        self.sources: dict[int, Source] = {}
        self._wrong = (forget, drop)
        self.replaced: list[Source] = []

    def can_post(self) -> bool:
        return len(self.outstanding) == 1

    def step(self) -> None:
        for req_id in ("kept", "forgotten", "dropped"):
            self.outstanding[req_id] = Request(req_id, [0], failing={"victim"})
            self.table.in_table.add(req_id)

    def sweep(self) -> None:
        forget, drop = self._wrong
        self.outstanding.pop(forget, None)
        self.table.in_table.discard(forget)
        self.table.in_table.discard(drop)

    def reads_of(self, source: Source) -> list[str]:
        return ["read"] if source.name == "victim" else []

    def replace(self, source: Source) -> None:
        self.replaced.append(source)


class FakeBinding:
    def count_in_flight(self, handles: list[str]) -> int:
        return len(handles)


def carry_out(engine: FakeEngine) -> tuple[Fault, list[tuple[str, list[int]]]]:
    done: list[tuple[str, list[int]]] = []
    victim, spare, slow = Source(1, "victim", 0), Source(1, "spare", 0), Source(0, "slow", 0)
    fault = Fault(
        engine,  # type: ignore[arg-type]
        FakeBinding(),  # type: ignore[arg-type]
        lambda verb, ranks: done.append((verb, ranks)),
        victim,
        spare,
        slow,
        0.0,
    )
    fault.carry_out()
    return fault, done


def test_fault_in_order(problems: Problems) -> None:
    engine = FakeEngine(problems, forget="", drop="")
    fault, done = carry_out(engine)
    assert done == [("stop", [1, 0]), ("kill", [1]), ("cont", [0])]
    assert fault.report == FaultReport("victim", in_flight_when_killed=1, deferred=4)
    assert [source.name for source in engine.replaced] == ["spare"]
    assert problems.shown == []


def test_fault_notes_a_request_that_does_not_wait(problems: Problems) -> None:
    carry_out(FakeEngine(problems, forget="forgotten", drop=""))
    assert problems.shown == ["forgotten was reported while a READ of it was stopped"]
    assert problems.counts[EARLY] == 1


def test_fault_lets_an_older_request_end(problems: Problems) -> None:
    # The stopped rank may have sent its bytes before it was stopped.
    carry_out(FakeEngine(problems, forget="older", drop=""))
    assert problems.shown == []


def test_fault_notes_a_running_read_that_is_let_go(problems: Problems) -> None:
    carry_out(FakeEngine(problems, forget="", drop="dropped"))
    assert problems.shown == ["dropped let go of a READ that was still running"]
    assert problems.counts[EARLY] == 1
