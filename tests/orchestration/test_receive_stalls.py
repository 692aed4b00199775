"""Requests that are outstanding for too long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfast.receiving.request import NEVER, ReceiveRequest
from kvfast.receiving.stalls import StallWatch
from tests.orchestration.rigs import ReceiveRig, ends

MakeRig = Callable[..., ReceiveRig]


@pytest.fixture
def stalling(receive_rig: MakeRig) -> ReceiveRig:
    """A Receiver that names requests after 10 s."""
    return receive_rig(stall_after_s=10)


def test_a_stalled_request_is_named_once_and_ends_later(
    stalling: ReceiveRig, caplog: pytest.LogCaptureFixture
) -> None:
    stalling.track("R", 1)
    stalling.clock.advance(10)
    assert stalling.poll().stalled == set()  # longer than, not as long as
    stalling.clock.advance(0.001)
    results = stalling.poll()
    assert results.stalled == {"R"}
    assert results.invalid_block_ids == []
    assert ends(results) == (set(), set(), set())
    assert "request 'R' is stalled" in caplog.text
    stalling.clock.advance(100)
    assert stalling.poll().stalled == set()
    stalling.states("DONE", 1)
    assert ends(stalling.poll()) == ({"R"}, set(), set())
    assert stalling.count("stalled_requests") == 1


def test_a_later_post_does_not_name_it_again(stalling: ReceiveRig) -> None:
    stalling.track("R", 1)
    stalling.clock.advance(11)
    assert stalling.poll().stalled == {"R"}
    stalling.post("R", 2)
    stalling.clock.advance(11)
    assert stalling.poll().stalled == set()


def test_a_later_post_does_not_put_it_off(stalling: ReceiveRig) -> None:
    stalling.track("R", 1)
    stalling.clock.advance(9)
    stalling.post("R", 2)
    stalling.clock.advance(2)
    assert stalling.poll().stalled == {"R"}


def test_expected_writes_stall_too(stalling: ReceiveRig) -> None:
    stalling.track("R", peer="P0")
    stalling.receiver.expect_writes("R")
    stalling.clock.advance(11)
    assert stalling.poll().stalled == {"R"}


@pytest.mark.parametrize("how", ["abort", "fail"])
def test_failing_and_aborted_requests_stall_too(stalling: ReceiveRig, how: str) -> None:
    stalling.track("R", 1)
    stalling.receiver.abort("R") if how == "abort" else stalling.receiver.fail("R", "a test")
    stalling.clock.advance(11)
    assert stalling.poll().stalled == {"R"}


def test_a_tracked_request_is_not_outstanding(stalling: ReceiveRig) -> None:
    stalling.track("R")
    stalling.clock.advance(100)
    assert stalling.poll().stalled == set()
    stalling.post("R", 1)
    stalling.clock.advance(9)
    assert stalling.poll().stalled == set()
    stalling.clock.advance(2)
    assert stalling.poll().stalled == {"R"}


def test_a_request_that_ends_in_this_poll_is_not_stalled(stalling: ReceiveRig) -> None:
    stalling.track("R", 1)
    stalling.clock.advance(11)
    stalling.states("DONE", 1)
    results = stalling.poll()
    assert ends(results) == ({"R"}, set(), set())
    assert results.stalled == set()


def test_each_at_its_time(stalling: ReceiveRig) -> None:
    for number, req_id in enumerate(["A", "B", "C"]):
        stalling.track(req_id, number + 1)
        stalling.clock.advance(4)
    stalling.states("DONE", 1)
    assert ends(stalling.poll())[0] == {"A"}
    stalling.clock.advance(2.5)  # 14.5
    assert stalling.poll().stalled == {"B"}
    stalling.clock.advance(4)  # 18.5
    assert stalling.poll().stalled == {"C"}


def test_one_is_named_and_the_next_is_not_yet_late(stalling: ReceiveRig) -> None:
    stalling.track("A", 1)
    stalling.clock.advance(1)
    stalling.track("B", 2)
    stalling.clock.advance(10)
    assert stalling.poll().stalled == {"A"}
    stalling.clock.advance(0.001)
    assert stalling.poll().stalled == {"B"}


def test_nobody_stalls_by_default(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.clock.advance(1e6)
    assert rig.poll().stalled == set()


def test_a_poll_looks_at_nobody_while_nobody_is_due(
    stalling: ReceiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    due = StallWatch.due

    def counting(self: StallWatch, now: float) -> list[ReceiveRequest]:
        calls.append(now)
        return due(self, now)

    monkeypatch.setattr(StallWatch, "due", counting)
    for number in range(1, 101):
        stalling.track(f"R{number}", number)
    for _ in range(50):
        stalling.poll()
    assert calls == []
    stalling.clock.advance(11)
    assert len(stalling.poll().stalled) == 100
    assert len(calls) == 1
    assert stalling.receiver._stalls.next_at == NEVER


def test_ended_requests_do_not_pile_up_in_the_watch(stalling: ReceiveRig) -> None:
    for number in range(1, 1001):
        stalling.track(f"R{number}", number)
        stalling.states("DONE", number)
        stalling.poll()
        assert len(stalling.receiver._stalls) < 100


def test_a_watch_that_was_cleared_away_still_names_the_others(stalling: ReceiveRig) -> None:
    for number in range(1, 401):
        stalling.track(f"R{number}", number)
        if number % 10:
            stalling.states("DONE", number)
            stalling.poll()
        stalling.clock.advance(0.01)
    assert len(stalling.receiver._stalls) < 400
    stalling.clock.advance(8)
    assert stalling.poll().stalled == {f"R{number}" for number in range(10, 201, 10)}
    stalling.clock.advance(2)
    assert stalling.poll().stalled == {f"R{number}" for number in range(210, 401, 10)}
