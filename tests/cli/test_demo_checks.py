"""The demo's checks can fail: a backend that is wrong in a given way is caught, on real NIXL.

The same engine and fault as in `kvfast demo`, in this process, with the sweep tampered with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvfast import open_agent
from kvfast.demo.engine import DecodeEngine, Source, make_requests
from kvfast.demo.evidence import BYTES, EARLY, ONCE, REUSE, BindingWitness, Problems
from kvfast.demo.fault import Fault
from kvfast.demo.pattern import POISON
from kvfast_ext import SweepResult
from tests.nixl.rank import LOOPBACK_ENV, Rank, nixl_missing, register

pytestmark = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")

REQUESTS = 12
BLOCK_BYTES = 1024
Sweep = Callable[[Any], SweepResult]


class Stage:
    """Two ranks, a spare, and an engine whose sweep may lie."""

    def __init__(self, backend: ModuleType, ranks: list[Rank], spare: Rank, sweep: Sweep) -> None:
        self.ranks = ranks
        self.spare = spare
        self.problems = Problems()
        self.agent: Any = open_agent("decode")
        self.memory = np.empty((2, 64, BLOCK_BYTES), np.uint8)
        self.registered = register(self.agent, self.memory)
        sources = [self.connect(rank) for rank in ranks]
        self.engine = DecodeEngine(
            self.agent,
            self.memory,
            backend.TransferTable(backend.bind(self.agent), scan="all"),
            sweep,
            sources,
            make_requests(REQUESTS, 64, 4, seed=0),
            self.problems,
        )
        self.fault = Fault(
            self.engine,
            BindingWitness(self.agent),
            self.control,
            victim=sources[1],
            spare=self.connect(spare),
            slow=sources[0],
            pause_s=0.0002,
        )

    def connect(self, rank: Rank) -> Source:
        self.agent.add_remote_agent(rank.metadata)
        return Source(rank.rank, rank.name, rank.address)

    def control(self, verb: str, ranks: list[int]) -> None:
        for rank in ranks:
            getattr(self.ranks[rank], verb)()

    def run(self, *, fault: bool = True) -> dict[str, int]:
        """Run to the end of everything in the table; return the violations by check."""
        if fault:
            self.fault.carry_out()
        while self.engine.pending or len(self.engine.table):
            self.engine.step()
        self.engine.pool.check_all_free()
        return {check: count for check, count in self.problems.counts.items() if count}


@pytest.fixture
def stage(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[Sweep], Sweep]], Stage]]:
    for name, value in LOOPBACK_ENV.items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        ranks = [Rank(n, block_bytes=BLOCK_BYTES) for n in range(2)]
        spare = Rank(1, name="spare", block_bytes=BLOCK_BYTES)
        for rank in (*ranks, spare):
            stack.callback(rank.close)
            rank.launch()
        for rank in (*ranks, spare):
            rank.wait_ready()

        def make(tamper: Callable[[Sweep], Sweep]) -> Stage:
            return Stage(backend, ranks, spare, tamper(backend.pop_done_transfers))

        yield make


def honest(sweep: Sweep) -> Sweep:
    return sweep


def reports_failures_at_once(sweep: Sweep) -> Sweep:
    def tampered(table: Any) -> SweepResult:
        result = sweep(table)
        result.done |= result.failed
        return result

    return tampered


def reports_all_as_done(sweep: Sweep) -> Sweep:
    def tampered(table: Any) -> SweepResult:
        result = sweep(table)
        result.done |= set(table)
        return result

    return tampered


def test_an_honest_backend_passes(stage: Callable[..., Stage]) -> None:
    scene = stage(honest)
    assert scene.run() == {}
    assert scene.engine.counts.failed == REQUESTS
    assert scene.fault.report.in_flight_when_killed == REQUESTS
    assert scene.fault.report.deferred == REQUESTS


def test_an_honest_backend_passes_without_a_fault(stage: Callable[..., Stage]) -> None:
    scene = stage(honest)
    assert scene.run(fault=False) == {}
    assert (scene.engine.counts.finished, scene.engine.counts.failed) == (REQUESTS, 0)


def test_failures_that_are_reported_at_once_are_caught(stage: Callable[..., Stage]) -> None:
    violations = stage(reports_failures_at_once).run()
    assert violations[EARLY] == REQUESTS  # the slow rank's bytes were not there
    assert violations[ONCE] == REQUESTS  # and then the table reports each as it ends
    assert violations[REUSE] > 0  # the slow rank's bytes landed in blocks that were free by then


def test_requests_that_are_reported_in_flight_are_caught(stage: Callable[..., Stage]) -> None:
    scene = stage(reports_all_as_done)
    scene.control("stop", [0])
    scene.engine.step()
    scene.control("cont", [0])
    violations = scene.run(fault=False)
    assert violations[BYTES] >= REQUESTS  # of the stopped rank, and of the other one if it was not that fast
    assert violations[REUSE] > 0


def test_a_late_write_to_a_free_block_is_caught(stage: Callable[..., Stage]) -> None:
    scene = stage(honest)
    assert scene.run(fault=False) == {}
    scene.memory[0, 5, 17] ^= 0xFF
    scene.engine.pool.check_all_free()
    assert scene.problems.counts[REUSE] == 1
    assert scene.problems.shown == ["block 5 was written to after it was freed (found at the end)"]


def test_a_single_wrong_byte_is_caught(stage: Callable[..., Stage]) -> None:
    def spoils(sweep: Sweep) -> Sweep:
        def tampered(table: Any) -> SweepResult:
            result = sweep(table)
            if result.done and not spoilt:
                request = scene.engine.outstanding[min(result.done)]
                spoilt.append(request.req_id)
                scene.memory[1, request.local[0], BLOCK_BYTES - 1] ^= 1
            return result

        return tampered

    spoilt: list[str] = []
    scene = stage(spoils)
    assert scene.run(fault=False) == {BYTES: 1}
    assert spoilt[0] in scene.problems.shown[0]


def test_free_blocks_are_poisoned_so_that_old_bytes_do_not_pass_for_new(stage: Callable[..., Stage]) -> None:
    scene = stage(honest)
    scene.run(fault=False)
    assert (scene.memory == POISON).all()
