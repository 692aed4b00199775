"""The parts of the demo that need no NIXL: memory, pool, messages, settings, numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvfast.demo.engine import make_requests
from kvfast.demo.errors import PortError
from kvfast.demo.evidence import BYTES, EARLY, ONCE, REUSE, BindingWitness, MemoryWitness, Problems
from kvfast.demo.messages import (
    Registration,
    decode_registration,
    finished_message,
    new_notifs,
    read_message,
    sort_told,
)
from kvfast.demo.metrics import serve_metrics
from kvfast.demo.pattern import POISON, check_shape, pattern
from kvfast.demo.pool import BlockPool
from kvfast.demo.settings import DemoSettings
from kvfast.demo.sweeps import SweepTimes


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
        ({"metrics_port": 65536}, "metrics_port must be 0 to 65535, not 65536"),
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
    assert [DemoSettings(requests=n).kept_for_spare for n in (1, 2, 8, 128)] == [0, 0, 1, 16]
    assert DemoSettings(kill=False).held_back == 0


def test_registrations_and_what_ranks_are_told() -> None:
    asked = Registration("req:1", content=[5, 2], blocks=[0, 9], producers=3)
    assert decode_registration(asked.encode()) == asked
    assert decode_registration(read_message("req:1")) is None
    messages = [finished_message("req-2"), read_message("req-2"), read_message("req-1"), b"HB:x", b"\xff"]
    assert sort_told(messages) == {
        "read": ["req-1", "req-2"],
        "finished": ["req-2"],
        "else": ["b'HB:x'", "b'\\xff'"],
    }


def test_notifications_by_sender_whatever_the_names_type() -> None:
    agent = SimpleNamespace(get_new_notifs=lambda: {b"old": [b"1"], "new": [b"2"]})
    assert new_notifs(agent) == {"old": [b"1"], "new": [b"2"]}


def test_sweep_times() -> None:
    stats = SweepTimes()
    assert stats.summary() == {"sweeps": 0, "min": 0.0, "median": 0.0, "max": 0.0}
    for seconds in (0.5, 0.125, 0.25):
        stats.observe_sweep(seconds)
    stats.count("bad_notifs", 2)
    assert stats.summary() == {"sweeps": 3, "min": 125_000.0, "median": 250_000.0, "max": 500_000.0}
    assert stats.counters() == {"bad_notifs": 2}
    histogram: Any = stats.snapshot()["sweep_seconds"]
    assert histogram["sum"] == 0.875


def test_a_port_that_is_taken() -> None:
    pytest.importorskip("prometheus_client", exc_type=ModuleNotFoundError)
    with (
        serve_metrics(SweepTimes(), 0) as server,
        pytest.raises(PortError, match="Address already in use") as told,
    ):
        serve_metrics(SweepTimes(), server.port)
    assert f"port {server.port} " in str(told.value)
    assert "--metrics-port 0" in str(told.value)


class ScriptedBinding:
    """NIXL's inner binding: a status for each handle id, or an exception to raise."""

    def __init__(self, **states: Any) -> None:
        self.agent = self
        self.states = states

    def getXferStatus(self, handle: str) -> int:  # noqa: N802 - NIXL's name
        state = self.states[handle]
        if isinstance(state, Exception):
            raise state
        return int(state)


def test_the_binding_witness_asks_of_living_handles_only() -> None:
    witness = BindingWitness(ScriptedBinding(done=0, running=1, failed=RuntimeError("disconnect")))

    def handle(name: str, released: bool = False) -> SimpleNamespace:
        return SimpleNamespace(_handle=name, _released=released)

    assert not witness.any_in_flight([handle("done"), handle("failed"), handle("freed", released=True)])
    assert witness.any_in_flight([handle("done"), handle("running")])
