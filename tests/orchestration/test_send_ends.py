"""When a send is reported, and as what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfast import Quarantine
from kvfast.results import SendResults
from tests.orchestration.rigs import SendRig, in_thread

MakeRig = Callable[..., SendRig]
NOTHING = SendResults()


def finished(*req_ids: str) -> SendResults:
    return SendResults(finished=frozenset(req_ids))


def expired(*req_ids: str) -> SendResults:
    return SendResults(expired=frozenset(req_ids))


def test_finished_is_told_once_when_all_writes_are_done(sending: SendRig) -> None:
    sending.track("R", 1, 2)
    sending.states("DONE", 1)
    assert sending.poll() == NOTHING
    sending.states("DONE", 2)
    assert sending.poll() == finished("R")
    sending.clock.advance(1000)
    assert sending.poll() == NOTHING
    assert "R" not in sending.sender
    assert sending.count("finished_requests") == 1


@pytest.mark.parametrize("how", ["sweep", "fail", "transfer", "prepare"])
def test_a_failed_send_is_never_finished_and_leaves_with_its_lease(sending: SendRig, how: str) -> None:
    sending.track("R", lease_s=30)
    if how == "transfer":
        sending.agent.refuse_transfer(2)
        assert sending.post("R", 1, 2) is False
    elif how == "prepare":
        assert sending.sender.post("R", [*sending.prepares([1]), lambda: 1 / 0]) is False
    else:
        assert sending.post("R", 1, 2)
    if how == "sweep":
        sending.states("ERR", 2)
        sending.poll()
    elif how == "fail":
        in_thread(lambda: sending.sender.fail("R", "a test"))
    sending.states("DONE", *sending.agent.in_flight)
    for _ in range(3):
        assert sending.poll() == NOTHING
    sending.clock.advance(29)
    assert sending.poll() == NOTHING
    sending.clock.advance(1)
    assert sending.poll() == expired("R")
    assert sending.poll() == NOTHING
    assert (sending.count("expired_leases"), sending.count("failed_requests")) == (1, 1)


def test_a_failure_reported_in_the_poll_in_which_all_is_done_still_counts(sending: SendRig) -> None:
    sending.track("R", 1)
    sending.states("DONE", 1)
    in_thread(lambda: sending.sender.fail("R", "a test"))
    assert sending.poll() == NOTHING
    sending.clock.advance(31)
    assert sending.poll() == expired("R")


def test_a_lease_that_is_over_waits_for_a_write(sending: SendRig) -> None:
    sending.track("good", 1)
    sending.track("bad", 2)
    sending.clock.advance(1000)
    assert sending.poll() == NOTHING
    sending.states("DONE", 1)
    sending.states("ERR", 2)
    assert sending.poll() == SendResults(frozenset({"good"}), frozenset({"bad"}))


def test_a_lease_that_is_over_waits_for_a_quarantine(send_rig: MakeRig) -> None:
    sending = send_rig(quarantine=Quarantine(lost_s=100))
    sending.track("R", 1, lease_s=30)
    sending.states("NOT_FOUND", 1)
    sending.poll()
    sending.clock.advance(99)
    assert sending.poll() == NOTHING
    sending.clock.advance(2)
    assert sending.poll() == expired("R")


def test_a_send_that_fails_after_its_lease_leaves_when_it_has_drained(sending: SendRig) -> None:
    sending.track("R", 1, 2)
    sending.clock.advance(31)
    sending.states("ERR", 1)
    assert sending.poll() == NOTHING
    sending.clock.advance(100)
    assert sending.poll() == NOTHING
    sending.states("DONE", 2)
    assert sending.poll() == expired("R")


def test_an_id_may_be_used_again(sending: SendRig) -> None:
    sending.track("R", 1, lease_s=30)
    sending.states("DONE", 1)
    assert sending.poll() == finished("R")
    sending.track("R", lease_s=100)
    sending.clock.advance(31)
    assert sending.poll() == NOTHING  # the first one's lease is no longer anybody's
    assert sending.post("R", 2) is True
    sending.states("DONE", 2)
    assert sending.poll() == finished("R")


def test_an_id_that_is_used_again_expires_once(sending: SendRig) -> None:
    sending.track("R", lease_s=30)
    sending.sender.notified("R", 1)
    assert sending.poll() == finished("R")
    sending.track("R", lease_s=100)
    sending.clock.advance(31)
    assert sending.poll() == NOTHING
    sending.clock.advance(69)
    assert sending.poll() == expired("R")
    assert sending.poll() == NOTHING


def test_a_failure_of_a_request_that_is_not_tracked_is_counted_and_logged(
    sending: SendRig, caplog: pytest.LogCaptureFixture
) -> None:
    in_thread(lambda: sending.sender.fail("gone", "the handshake broke"))
    assert sending.count("failures_of_unknown_requests") == 1
    assert "gone" in caplog.text
    assert "the handshake broke" in caplog.text


# ---- consumers


def test_consumers_are_counted_to_the_expected_number(sending: SendRig) -> None:
    sending.track("R")
    for _ in range(2):
        sending.sender.notified("R", 3)
        assert sending.poll() == NOTHING
    sending.sender.notified("R", 3)
    assert sending.poll() == finished("R")
    assert sending.poll() == NOTHING
    assert sending.count("notifs_after_end") == 0


def test_consumers_finish_a_request_whose_lease_is_over_but_not_told(sending: SendRig) -> None:
    sending.track("R")
    sending.clock.advance(31)
    sending.sender.notified("R", 1)
    assert sending.poll() == finished("R")


def test_consumers_do_not_finish_a_request_under_a_write(sending: SendRig) -> None:
    sending.track("R", 1)
    sending.sender.notified("R", 1)
    assert sending.poll() == NOTHING
    sending.states("DONE", 1)
    assert sending.poll() == finished("R")


def test_a_post_after_the_last_consumer_is_waited_for(sending: SendRig) -> None:
    sending.track("R")
    sending.sender.notified("R", 1)
    assert sending.post("R", 1)
    assert sending.poll() == NOTHING
    sending.states("DONE", 1)
    assert sending.poll() == finished("R")


def test_consumers_do_not_finish_a_failed_send(sending: SendRig) -> None:
    sending.track("R")
    sending.sender.fail("R", "a test")
    sending.sender.notified("R", 1)
    assert sending.poll() == NOTHING
    sending.clock.advance(31)
    assert sending.poll() == expired("R")


def test_the_greatest_number_of_consumers_counts(sending: SendRig) -> None:
    sending.track("R")
    sending.sender.notified("R", 2)
    sending.sender.notified("R", 1)
    assert sending.poll() == finished("R")
    sending.track("S")
    sending.sender.notified("S", 1)
    sending.sender.notified("S", 2)
    assert sending.poll() == finished("S")
    assert sending.count("notifs_after_end") == 0


@pytest.mark.parametrize("end", ["finished", "expired", "unknown"])
def test_a_notification_after_the_end_is_counted_and_logged(
    sending: SendRig, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    if end != "unknown":
        sending.track("R")
    if end == "finished":
        sending.sender.notified("R", 1)
    sending.clock.advance(31)
    sending.poll()
    sending.sender.notified("R", 1)
    assert sending.poll() == NOTHING
    assert sending.count("notifs_after_end") == 1
    assert "request 'R'" in caplog.text


def test_one_too_many_before_the_end_is_counted(sending: SendRig) -> None:
    sending.track("R")
    sending.sender.notified("R", 1)
    sending.sender.notified("R", 1)
    assert sending.count("notifs_after_end") == 1
    assert sending.poll() == finished("R")


# ---- leases


def test_leases_end_by_their_deadlines(sending: SendRig) -> None:
    for req_id, lease_s in {"long": 300, "short": 30, "middle": 60}.items():
        sending.track(req_id, lease_s=lease_s)
    sending.clock.advance(30)
    assert sending.poll() == expired("short")
    sending.clock.advance(270)
    assert sending.poll() == expired("middle", "long")


def test_a_heartbeat_extends_and_never_shortens(sending: SendRig) -> None:
    sending.track("short", lease_s=30)
    sending.track("long", lease_s=300)
    sending.clock.advance(20)
    sending.sender.heartbeat(["short", "long", "unknown"], 20)
    sending.clock.advance(19)  # 39
    assert sending.poll() == NOTHING
    sending.clock.advance(1)  # 40
    assert sending.poll() == expired("short")
    sending.clock.advance(259)  # 299
    assert sending.poll() == NOTHING
    sending.clock.advance(1)
    assert sending.poll() == expired("long")


def test_a_lease_that_a_heartbeat_left_alone_admits_posts(sending: SendRig) -> None:
    sending.track("R", lease_s=300)
    sending.sender.heartbeat(["R"], 20)
    sending.clock.advance(299)
    assert sending.post("R", 1) is True


def test_many_heartbeats_keep_a_lease_alive(sending: SendRig) -> None:
    sending.track("R", lease_s=30)
    for _ in range(100):
        sending.clock.advance(10)
        sending.sender.heartbeat(["R"], 30)
        assert sending.poll() == NOTHING
    sending.clock.advance(29)
    assert sending.poll() == NOTHING
    sending.clock.advance(1)
    assert sending.poll() == expired("R")


def test_a_heartbeat_revives_the_lease_of_a_write_that_was_overdue(sending: SendRig) -> None:
    sending.track("R", 1, 2, lease_s=30)
    sending.clock.advance(31)
    sending.poll()
    sending.sender.heartbeat(["R"], 50)
    sending.states("ERR", 1)
    sending.states("DONE", 2)
    assert sending.poll() == NOTHING  # failed and drained, and the lease is running
    sending.clock.advance(49)
    assert sending.poll() == NOTHING
    sending.clock.advance(1)
    assert sending.poll() == expired("R")


def test_a_heartbeat_after_the_end_extends_nothing(sending: SendRig) -> None:
    sending.track("R")
    sending.clock.advance(31)
    assert sending.poll() == expired("R")
    sending.sender.heartbeat(["R"], 100)
    assert sending.poll() == NOTHING


def test_a_peer_can_not_write_lines_of_its_own_into_the_log(
    sending: SendRig, caplog: pytest.LogCaptureFixture
) -> None:
    sending.sender.notified("R\nCRITICAL root everything is lost" + 100_000 * "!", 1)
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 500
