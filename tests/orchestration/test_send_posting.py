"""Starting WRITEs, from another thread and under a lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvfast import UnknownRequestError
from kvfast.results import SendResults
from kvfast.sending.recent import RecentIds
from tests.orchestration.rigs import SendRig, Unshowable, broken, in_thread

MakeRig = Callable[..., SendRig]
NOTHING = SendResults()


def test_a_writer_thread_may_post(sending: SendRig) -> None:
    sending.track("R")
    assert in_thread(lambda: sending.post("R", 1, 2)) is True
    sending.states("DONE", 1, 2)
    assert sending.poll().finished == {"R"}


def test_all_handles_of_a_post_become_visible_at_once(sending: SendRig) -> None:
    sending.track("R")
    seen: list[SendResults] = []

    def transfer(handle: int) -> str:
        sending.agent.transfer(handle)
        sending.states("DONE", handle)
        seen.append(sending.poll())  # the owner polls while the post is running
        return "PROC"

    assert sending.sender.post("R", sending.prepares([1, 2, 3]), transfer) is True
    assert seen == [NOTHING] * 3
    assert sending.poll().finished == {"R"}


def test_a_lease_does_not_end_under_a_post_that_is_running(sending: SendRig) -> None:
    sending.track("R", lease_s=30)
    seen: list[SendResults] = []

    def slow() -> Any:
        sending.clock.advance(100)
        seen.append(sending.poll())
        return sending.agent.prepare(1)

    assert sending.sender.post("R", [slow]) is True
    assert seen == [NOTHING]
    assert sending.poll() == NOTHING
    sending.states("DONE", 1)
    assert sending.poll().finished == {"R"}


def test_a_lease_that_ends_under_a_post_that_fails_ends_afterwards(sending: SendRig) -> None:
    sending.track("R", lease_s=30)

    def slow() -> Any:
        sending.clock.advance(100)
        assert sending.poll() == NOTHING
        raise RuntimeError("no descriptors")

    assert sending.sender.post("R", [slow]) is False
    assert sending.poll().expired == {"R"}


def test_a_lease_that_ends_under_a_post_of_nothing_ends_afterwards(sending: SendRig) -> None:
    sending.track("R", lease_s=30)
    assert sending.sender.post("R", []) is True
    sending.clock.advance(30)
    assert sending.poll().expired == {"R"}


def test_a_lease_that_ends_during_a_post_of_nothing_ends_afterwards(
    sending: SendRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*arguments: Any) -> None:
        sending.clock.advance(31)
        assert sending.poll() == NOTHING

    monkeypatch.setattr(sending.sender._starter, "start", slow)
    sending.track("R", lease_s=30)
    assert sending.sender.post("R", []) is True
    assert sending.poll().expired == {"R"}


def test_a_failure_reported_during_a_post_stops_it(sending: SendRig) -> None:
    sending.track("R", lease_s=30)

    def transfer(handle: int) -> str:
        if handle == 1:
            in_thread(lambda: sending.sender.fail("R", "a test"))
        return str(sending.agent.transfer(handle))

    assert sending.sender.post("R", sending.prepares([1, 2, 3]), transfer) is False
    assert sending.agent.posted == [1]
    assert sending.agent.released == [2, 3]
    sending.states("DONE", 1)
    assert sending.poll() == NOTHING
    sending.clock.advance(31)
    assert sending.poll().expired == {"R"}


def test_one_that_can_not_be_posted_stops_the_rest(sending: SendRig) -> None:
    sending.track("R", lease_s=30)
    sending.agent.refuse_transfer(2)
    assert sending.post("R", 1, 2, 3) is False
    assert sending.agent.posted == [1]
    assert sending.agent.released == [2, 3]
    assert sending.count("failed_transfers") == 1
    assert sending.post("R", 4) is False


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told yet"])
def test_no_write_after_the_lease(sending: SendRig, told: bool) -> None:
    sending.track("R", lease_s=30)
    sending.clock.advance(30)
    if told:
        assert sending.poll().expired == {"R"}
    assert sending.post("R", 1) is False
    assert sending.agent.unreleased == set()  # not even prepared
    assert sending.poll().expired == (set() if told else {"R"})


def test_a_send_whose_second_post_was_too_late_is_not_finished(sending: SendRig) -> None:
    sending.track("R", 1, lease_s=30)
    sending.clock.advance(31)
    assert sending.post("R", 2) is False
    sending.states("DONE", 1)
    assert sending.poll() == SendResults(expired=frozenset({"R"}))


def test_no_write_after_the_end(sending: SendRig) -> None:
    sending.track("R", 1)
    sending.states("DONE", 1)
    sending.poll()
    assert sending.post("R", 2) is False
    assert sending.agent.unreleased == set()


def test_no_write_to_a_peer_that_is_being_removed(sending: SendRig) -> None:
    sending.track("R", 1, peer="P0")
    sending.track("S", peer="P0")
    sending.sender.remove_peer("P0")
    assert sending.post("S", 2) is False
    assert sending.agent.unreleased == {1}
    sending.clock.advance(31)
    assert sending.poll().expired == {"S"}


def test_a_request_that_never_was_is_an_error(sending: SendRig) -> None:
    with pytest.raises(UnknownRequestError, match="'R'"):
        sending.post("R", 1)


def test_a_post_that_races_with_the_sweep_that_drains(sending: SendRig) -> None:
    # The owner's sweep finds handle 1 DONE; before the owner takes that in, the writer posts 2.
    sending.track("R", 1)
    sending.states("DONE", 1)
    sweep = sending.sender._sweep

    def racing() -> Any:
        swept = sweep()
        assert in_thread(lambda: sending.post("R", 2)) is True
        return swept

    sending.sender._sweep = racing  # type: ignore[method-assign]
    assert sending.poll() == NOTHING
    sending.sender._sweep = sweep  # type: ignore[method-assign]
    assert sending.poll() == NOTHING
    sending.states("DONE", 2)
    assert sending.poll().finished == {"R"}


def test_the_lock_is_free_while_a_transfer_is_prepared(sending: SendRig) -> None:
    sending.track("R")
    sending.track("S")
    preparing, go_on = threading.Event(), threading.Event()

    def slow() -> Any:
        preparing.set()
        assert go_on.wait(60)
        return sending.agent.prepare(1)

    outcome: list[bool] = []
    writer = threading.Thread(target=lambda: outcome.append(sending.sender.post("R", [slow])))
    writer.start()
    assert preparing.wait(60)
    # With the lock held these would wait for the writer, who waits for us.
    assert sending.poll() == NOTHING
    sending.sender.fail("S", "a test")
    go_on.set()
    writer.join()
    assert outcome == [True]


def test_the_lock_is_free_during_a_sweep(sending: SendRig) -> None:
    sending.track("R", 1)
    sending.track("S")
    sweep = sending.sender._pop

    def during_sweep(table: Any) -> Any:
        in_thread(lambda: sending.sender.fail("S", "a test"))
        assert in_thread(lambda: sending.post("R", 2)) is True
        return sweep(table)

    sending.sender._pop = during_sweep  # type: ignore[misc]
    assert sending.poll() == NOTHING
    sending.sender._pop = sweep  # type: ignore[misc]


def test_a_slow_log_holds_up_nobody(sending: SendRig, caplog: pytest.LogCaptureFixture) -> None:
    sending.track("R", 1)
    waits: list[bool] = []

    def lock_is_taken() -> bool:
        lock = sending.sender._lock
        taken = not lock.acquire(blocking=False)
        if not taken:
            lock.release()
        return taken

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            waits.append(in_thread(lock_is_taken))

    handler = Slow()
    logging.getLogger("kvfast").addHandler(handler)
    try:
        sending.states("ERR", 1)
        sending.poll()
        sending.sender.fail("X", "a test")
        sending.track("S")
        sending.sender.fail("S", "a test")
        sending.track("T")
        sending.sender.post("T", [lambda: 1 / 0])
        sending.sender.notified("X", 1)
    finally:
        logging.getLogger("kvfast").removeHandler(handler)
    assert waits == [False] * 5


def test_recent_ids_are_bounded() -> None:
    recent = RecentIds(3)
    for req_id in "abcadd":
        recent.add(req_id)
    assert len(recent) == 3
    assert [req_id for req_id in "abcd" if req_id in recent] == ["a", "c", "d"]


def test_a_finaliser_may_report_a_failure_anywhere(sending: SendRig) -> None:
    sending.track("R")

    class Owner:
        def __del__(self) -> None:
            sending.sender.fail("R", "its owner has gone")

    class Clock:
        owner: Owner | None = None

        def __call__(self) -> float:
            self.owner = None  # here, under the lock
            return 0.0

    clock = Clock()
    clock.owner = Owner()
    sending.sender._clock = clock  # type: ignore[misc]
    assert sending.post("R", 1) is False
    sending.sender._clock = sending.clock  # type: ignore[misc]


def test_a_handle_in_flight_is_not_released_when_another_post_with_it_fails(sending: SendRig) -> None:
    sending.track("R", 1)
    sending.track("S")

    assert sending.sender.post("S", [lambda: 1, broken]) is False
    assert (sending.agent.released, sending.agent.violations) == ([], [])
    sending.states("DONE", 1)
    assert sending.poll().finished == {"R"}
    sending.clock.advance(31)
    assert sending.poll().expired == {"S"}


def test_an_error_that_can_not_be_shown_loses_no_write(sending: SendRig) -> None:
    sending.track("R")
    sending.agent.refuse_transfer(2, error=Unshowable())
    assert sending.post("R", 1, 2) is False
    sending.clock.advance(31)
    assert sending.poll() == NOTHING  # a WRITE still reads its blocks
    sending.states("DONE", 1)
    assert sending.poll().expired == {"R"}
