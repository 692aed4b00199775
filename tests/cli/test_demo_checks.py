"""The demo's checks can fail: a Receiver or Sender that is wrong in a given way is caught, on real NIXL.

The same engines and fault as in `kvfast demo`, in this process.
"""

from __future__ import annotations

import base64
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvfast import Receiver
from kvfast.demo.evidence import BYTES, EARLY, ONCE, REUSE
from kvfast.demo.messages import Registration, sort_told
from kvfast.demo.pattern import POISON
from kvfast.demo.writer import Writer
from kvfast.results import ReceiveResults, SendResults
from tests.cli.stages import BLOCK_BYTES, PAUSE_S, REQUESTS, Fleet, PullStage, PushStage
from tests.nixl.rank import LOOPBACK_ENV, Rank, nixl_missing

pytestmark = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in LOOPBACK_ENV.items():
        monkeypatch.setenv(name, value)
    yield
    gc.collect()  # the test's agent, or its progress thread would go on taking a core's time


@pytest.fixture(scope="module")
def readers() -> Iterator[Fleet]:
    fleet = Fleet("kvfast.demo.prefill")
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def writers() -> Iterator[Fleet]:
    fleet = Fleet("kvfast.demo.writer", "auto", "watch")
    yield fleet
    fleet.close()


class Tampered(Receiver):
    """A Receiver whose reports are changed by a function of them, and of itself."""

    change: Callable[[ReceiveResults], ReceiveResults] = staticmethod(lambda results: results)

    def poll(self) -> ReceiveResults:
        return self.change(super().poll())


# ---- pull


def test_an_honest_pull_passes(readers: Fleet, backend: ModuleType) -> None:
    stage = PullStage(readers, backend=backend)
    assert stage.run() == {}
    assert stage.left == 0
    assert len(stage.engine.counts.failed) == REQUESTS
    assert len(stage.fault.report.in_flight_when_killed) == REQUESTS
    assert stage.fault.report.deferred == REQUESTS
    assert stage.receiver.guard.dead == {"prefill1"}


def test_an_honest_pull_passes_without_a_fault(readers: Fleet, backend: ModuleType) -> None:
    stage = PullStage(readers, backend=backend)
    assert stage.run(fault=False) == {}
    assert (stage.engine.counts.finished, stage.engine.counts.failed) == (REQUESTS, [])
    # Free blocks are poisoned, so that old bytes do not pass for new.
    assert (stage.memory == POISON).all()
    # Both kinds of notification have come, from the READ and from the Receiver.
    rank, name = readers.ranks[0], stage.agent.name
    while len(rank.notifs().get(name, [])) < 2 * REQUESTS:
        time.sleep(PAUSE_S)
    every = sorted(f"req-{n}" for n in range(REQUESTS))
    assert sort_told(rank.notifs()[name]) == {"read": every, "finished": every, "else": []}
    # A late write to a free block is caught.
    stage.memory[0, 5, 17] ^= 0xFF
    stage.engine.pool.check_all_free()
    assert stage.problems.counts[REUSE] == 1
    assert stage.problems.shown == ["block 5 was written to after it was freed (found at the end)"]


def test_failures_that_are_reported_at_once_are_caught(readers: Fleet) -> None:
    stage = PullStage(readers, Tampered)

    def at_once(results: ReceiveResults) -> ReceiveResults:
        failing = stage.engine.outstanding if "prefill1" in stage.receiver.guard.dead else ()
        return dataclasses.replace(results, failed=results.failed | frozenset(failing))

    vars(stage.receiver)["change"] = at_once
    violations = stage.run()
    assert violations[EARLY] == REQUESTS  # the slow rank's bytes were not there
    # Its blocks were not named, and then each is reported as it ends.
    assert violations[ONCE] > REQUESTS
    assert violations[REUSE] > 0  # the slow rank's bytes landed in blocks that were free by then


def test_requests_that_are_reported_in_flight_are_caught(readers: Fleet) -> None:
    stage = PullStage(readers, Tampered)
    vars(stage.receiver)["change"] = lambda results: dataclasses.replace(
        results, finished=results.finished | frozenset(stage.engine.outstanding)
    )
    stage.control("stop", [0])
    stage.engine.step()
    stage.control("cont", [0])
    violations = stage.run(fault=False)
    assert violations[BYTES] >= REQUESTS  # of the stopped rank, and of the other one if it was not that fast
    assert violations[REUSE] > 0
    assert violations[ONCE] >= REQUESTS


def test_a_single_wrong_byte_and_wrong_invalid_blocks_are_caught(readers: Fleet) -> None:
    stage = PullStage(readers, Tampered)
    spoilt: list[str] = []

    def spoil(results: ReceiveResults) -> ReceiveResults:
        if not results.finished or spoilt:
            return results
        request = stage.engine.outstanding[min(results.finished)]
        spoilt.append(request.req_id)
        stage.memory[1, request.local[0], BLOCK_BYTES - 1] ^= 1
        return dataclasses.replace(results, invalid_block_ids=[[7]])

    vars(stage.receiver)["change"] = spoil
    assert stage.run(fault=False) == {BYTES: 1, ONCE: 1}
    assert stage.problems.shown == [
        "[7] were named invalid, the blocks of what failed are []",
        f"{spoilt[0]} was reported finished, but its bytes from prefill1 are not all there",
    ]


# ---- push


def test_an_honest_push_passes(writers: Fleet) -> None:
    stage = PushStage(writers)
    assert stage.run() == {}
    assert stage.left == 0
    assert len(stage.engine.counts.failed) == REQUESTS
    assert len(stage.fault.report.in_flight_when_killed) == REQUESTS
    assert stage.fault.report.deferred == REQUESTS
    assert stage.fault.report.told_of_death is False
    assert not any(sum(report["violations"].values()) for report in stage.reports.values())


def test_expected_writes_that_are_forgotten_are_caught(writers: Fleet) -> None:
    class Forgetful(Receiver):
        def expect_writes(self, req_id: str) -> None:
            pass

    violations = PushStage(writers, Forgetful).run()
    assert violations[EARLY] == REQUESTS  # reported while a rank was stopped that had not written
    assert violations[REUSE] > 0  # then they landed


def test_one_notification_taken_for_all_is_caught(writers: Fleet) -> None:
    class Hurried(Receiver):
        def notified(
            self, req_id: str, producers: int, *, failed: bool = False, peer: str | None = None
        ) -> None:
            super().notified(req_id, 1, failed=failed, peer=peer)

    stage = PushStage(writers, Hurried)
    stage.control("stop", [0])
    while stage.engine.counts.finished < REQUESTS:
        stage.engine.step()
    stage.control("cont", [0])
    violations = stage.run(fault=False)
    assert violations[BYTES] == REQUESTS
    assert violations[REUSE] > 0


def test_a_failure_before_the_rank_is_known_dead_is_caught(writers: Fleet) -> None:
    stage = PushStage(writers, Tampered)
    stage.control("stop", [0])
    stage.engine.step()
    vars(stage.receiver)["change"] = lambda results: dataclasses.replace(
        results, failed=frozenset(stage.engine.outstanding)
    )
    stage.engine.poll()
    vars(stage.receiver)["change"] = lambda results: results
    stage.control("cont", [0])
    assert "req-0 was reported failed, but no rank of it is dead" in stage.problems.shown
    assert stage.problems.counts[EARLY] >= 2 * REQUESTS  # that, and the bytes that were not there
    stage.run(fault=False)  # the ranks must be free for the next test


def test_source_blocks_that_are_freed_too_early_are_caught() -> None:
    # A rank that is stopped before it was ever talked to: a WRITE to it can't end.
    with Rank(0, name="target", block_bytes=BLOCK_BYTES) as target:
        writer = Writer("writer", 0, 8, BLOCK_BYTES)
        metadata = base64.b64encode(target.metadata).decode()
        writer.answer({"ask": "meet", "name": "target", "metadata": metadata, "addresses": [target.address]})
        target.stop()
        sender: Any = writer._sender
        writer._write(Registration("r", content=[40, 41], blocks=[3, 5], producers=1))
        poll = sender.poll
        sender.poll = lambda: SendResults(finished=frozenset({"r"}))
        writer.step()
        report = writer.answer({"ask": "report"})
        assert report["violations"][EARLY] == 1
        assert report["problems"] == ["r was reported while a WRITE of it was running"]
        # And the other evidence: what arrives is the poison.
        target.cont()
        while "r" not in poll().finished:
            time.sleep(PAUSE_S)
        assert (target.memory(3) == POISON).all()
        assert (target.memory(4) == np.asarray(target.expected(4))).all()
