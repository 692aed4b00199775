"""Notifications that wait for a request's end."""

from __future__ import annotations

import pytest

from kvfast.testing import nixlRemoteDisconnectError
from tests.orchestration.rigs import ReceiveRig, ends


def test_they_are_sent_once_and_in_order_when_the_request_succeeds(rig: ReceiveRig) -> None:
    rig.track("R", 1, 2)
    rig.receiver.add_notif("R", "P0", b"R:2")
    rig.receiver.add_notif("R", "P1", b"R:2")
    rig.receiver.add_notif("R", "P0", b"more")
    rig.states("DONE", 1)
    rig.poll()
    assert rig.agent.sent == []
    rig.states("DONE", 2)
    rig.poll()
    rig.poll()
    assert rig.agent.sent == [("P0", b"R:2"), ("P1", b"R:2"), ("P0", b"more")]
    assert rig.count("sent_notifs") == 3


def test_of_several_requests_in_the_order_of_tracking(rig: ReceiveRig) -> None:
    names = [f"{letter}{number}" for number in range(3) for letter in "zmaq"]
    for number, req_id in enumerate(names):
        rig.track(req_id, number + 1)
        rig.receiver.add_notif(req_id, "P0", req_id.encode())
    rig.states("DONE", *range(1, len(names) + 1))
    rig.poll()
    assert [message.decode() for _, message in rig.agent.sent] == names


@pytest.mark.parametrize("how", ["sweep", "fail", "late"])
def test_a_failure_withdraws_them(rig: ReceiveRig, how: str) -> None:
    rig.track("R", 1, 2)
    rig.receiver.add_notif("R", "P0", b"R:1")
    if how == "fail":
        rig.receiver.fail("R", "a test")
        rig.states("DONE", 1)
    else:
        rig.states("ERR", 1)
    if how == "late":
        rig.poll()
        rig.receiver.add_notif("R", "P0", b"after the failure")
    rig.states("DONE", 2)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    assert rig.agent.sent == []


def test_an_aborted_request_sends_them_when_it_has_drained(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.receiver.add_notif("R", "P0", b"R:1")
    rig.receiver.abort("R")
    rig.poll()
    assert rig.agent.sent == []
    rig.states("DONE", 1)
    rig.poll()
    assert rig.agent.sent == [("P0", b"R:1")]


@pytest.mark.parametrize("first", ["abort", "fail"])
def test_an_aborted_request_that_failed_sends_none(rig: ReceiveRig, first: str) -> None:
    rig.track("R", 1)
    rig.receiver.add_notif("R", "P0", b"R:1")
    if first == "abort":
        rig.receiver.abort("R")
        rig.states("ERR", 1)
    else:
        rig.receiver.fail("R", "a test")
        rig.receiver.abort("R")
        rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), set(), {"R"})
    assert rig.agent.sent == []


def test_one_that_can_not_be_sent_is_counted_and_logged_and_stops_nothing(
    rig: ReceiveRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.agent.refuse_notifs("P0", error=RuntimeError("no route"))
    rig.track("R", 1)
    for peer in ("P0", "P1"):
        rig.receiver.add_notif("R", peer, b"R:1")
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())
    assert rig.agent.sent == [("P1", b"R:1")]
    assert (rig.count("failed_notifs"), rig.count("sent_notifs")) == (1, 1)
    assert "request 'R' to peer 'P0'" in caplog.text
    assert "no route" in caplog.text
    assert not rig.receiver.guard.is_dead("P0")


def test_a_disconnect_marks_the_peer_dead_and_fails_who_waits_for_it(rig: ReceiveRig) -> None:
    rig.agent.refuse_notifs("P0", error=nixlRemoteDisconnectError("gone"))
    rig.track("R", 1, peer="P0")
    rig.receiver.add_notif("R", "P0", b"R:1")
    rig.track("waits", peer="P0")
    rig.receiver.expect_writes("waits")
    rig.track("elsewhere", peer="P1")
    rig.receiver.expect_writes("elsewhere")
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())
    assert rig.receiver.guard.is_dead("P0")
    assert ends(rig.poll()) == (set(), {"waits"}, set())
    assert rig.count("dead_peers") == 1


def test_a_deaf_peer_does_not_flood_the_log(rig: ReceiveRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.agent.refuse_notifs("P0")
    for number in range(1, 51):
        rig.track(f"R{number}", number)
        rig.receiver.add_notif(f"R{number}", "P0", b"x")
        rig.states("DONE", number)
        rig.poll()
    assert rig.count("failed_notifs") == 50
    assert 1 <= len([record for record in caplog.records if "not sent" in record.message]) < 10


def test_an_interrupt_while_sending_loses_no_report_and_no_other_notification(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.receiver.add_notif("R", "P0", b"first")
    rig.receiver.add_notif("R", "P1", b"second")
    rig.agent.refuse_notifs("P0", error=KeyboardInterrupt())
    rig.states("DONE", 1)
    with pytest.raises(KeyboardInterrupt):
        rig.poll()
    assert ends(rig.poll()) == ({"R"}, set(), set())
    assert rig.agent.sent == [("P1", b"second")]
