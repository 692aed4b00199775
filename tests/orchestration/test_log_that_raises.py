"""A line that can't be written (Ctrl-C at a slow terminal, a filter's mistake) takes nothing with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kvfast.testing import nixlRemoteDisconnectError
from tests.orchestration.rigs import ReceiveRig, SendRig, ends


class Striking(logging.Handler):
    """Raises, once, when the next line is written."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.armed = True

    def emit(self, record: logging.LogRecord) -> None:
        if self.armed:
            self.armed = False
            raise self.error


@pytest.fixture(params=[KeyboardInterrupt, OSError])
def striking(request: pytest.FixtureRequest) -> Iterator[Striking]:
    handler = Striking(request.param("the line could not be written"))
    loggers = [logging.getLogger(name) for name in ("kvfast", "kvfast_ext")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)
    assert not handler.armed  # or the test has tested nothing


def test_a_handle_that_failed_still_fails_its_request(rig: ReceiveRig, striking: Striking) -> None:
    rig.track("R", 1, 2)
    rig.track("S", 3)
    rig.states("BACKEND", 1)
    rig.states("DONE", 3)
    with pytest.raises(type(striking.error)):
        rig.poll()
    rig.states("DONE", 2)
    assert ends(rig.poll()) == ({"S"}, {"R"}, set())


def test_the_only_handle_failed(rig: ReceiveRig, striking: Striking) -> None:
    rig.track("R", 1)
    rig.states("BACKEND", 1)
    with pytest.raises(type(striking.error)):
        rig.poll()
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_a_reported_failure_is_not_lost(rig: ReceiveRig, striking: Striking) -> None:
    rig.track("R", 1)
    rig.receiver.report_failure("R", "a test")
    with pytest.raises(type(striking.error)):
        rig.poll()
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_a_request_that_was_posted_in_part_fails(rig: ReceiveRig, striking: Striking) -> None:
    rig.track("R")
    rig.agent.refuse_transfer(2)
    with pytest.raises(type(striking.error)):
        rig.post("R", 1, 2)
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_all_requests_of_a_dead_peer_fail(rig: ReceiveRig, striking: Striking) -> None:
    for req_id in ("R", "S"):
        rig.track(req_id, peer="P")
    with pytest.raises(type(striking.error)):
        rig.receiver.peer_lost("P")
    assert ends(rig.poll()) == (set(), {"R", "S"}, set())
    assert rig.receiver.guard.is_dead("P")


def test_the_deaths_of_several_peers_in_one_sweep(rig: ReceiveRig, striking: Striking) -> None:
    rig.track("A", peer="P")
    rig.track("B", peer="Q")
    rig.track("R", 1, peer="P")
    rig.track("S", 2, peer="Q")
    rig.states("DISCONNECT", 1, 2)
    with pytest.raises(type(striking.error)):
        rig.poll()
    assert ends(rig.poll()) == (set(), {"A", "B", "R", "S"}, set())


def test_a_refused_release_loses_no_end_of_its_sweep(rig: ReceiveRig, striking: Striking) -> None:
    rig.track("R", 1)
    rig.track("S", 2)
    rig.track("T", 3)
    rig.states("DONE", 1, 2)
    rig.states("BACKEND", 3)
    rig.agent.refuse_release(1)
    with pytest.raises(type(striking.error)):
        rig.poll()
    assert ends(rig.poll()) == ({"R", "S"}, {"T"}, set())


def test_a_failure_whose_release_was_refused_is_still_one(rig: ReceiveRig, striking: Striking) -> None:
    rig.track("R", 1)
    rig.states("BACKEND", 1)
    rig.agent.refuse_release(1)
    with pytest.raises(type(striking.error)):
        rig.poll()
    rig.agent.allow_release(1)
    rig.clock.advance(1)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_a_handle_that_could_not_be_released_before_its_post_is_kept(
    rig: ReceiveRig, striking: Striking
) -> None:
    rig.track("R")
    rig.agent.refuse_transfer(2)
    rig.agent.refuse_release(3)
    with pytest.raises(type(striking.error)):
        rig.post("R", 1, 2, 3)
    assert ends(rig.poll()) == (set(), set(), set())
    rig.agent.allow_release(3)
    rig.states("DONE", 1, 3)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_notifications_behind_a_refused_one_are_sent(rig: ReceiveRig, striking: Striking) -> None:
    for req_id, peer in (("R", "P"), ("S", "Q")):
        rig.track(req_id, peer=peer)
        rig.receiver.add_notif(req_id, peer, b"read")
        rig.receiver.complete(req_id)
    rig.track("T", peer="P")
    rig.agent.refuse_notifs("P", error=nixlRemoteDisconnectError("gone"))
    with pytest.raises(type(striking.error)):
        rig.poll()
    assert ends(rig.poll()) == ({"R", "S"}, {"T"}, set())  # which a dead peer can't serve
    assert rig.agent.sent == [("Q", b"read")]


def test_a_send_that_failed_stays_failed_and_its_peer_is_dead(sending: SendRig, striking: Striking) -> None:
    sending.track("R", 1, 2, peer="P")
    sending.states("DISCONNECT", 1)
    with pytest.raises(type(striking.error)):
        sending.poll()
    assert sending.sender.guard.is_dead("P")
    sending.states("DONE", 2)
    sending.clock.advance(31)
    assert sending.poll().expired == {"R"}


def test_a_send_that_was_posted_in_part_fails(sending: SendRig, striking: Striking) -> None:
    sending.track("R")
    sending.agent.refuse_transfer(2)
    with pytest.raises(type(striking.error)):
        sending.post("R", 1, 2)
    sending.clock.advance(31)
    assert sending.poll().expired == frozenset()  # a WRITE still reads its blocks
    sending.states("DONE", 1)
    assert sending.poll().expired == {"R"}


def test_all_deaths_of_a_sweep_are_noted(rig: ReceiveRig, striking: Striking) -> None:
    rig.track("R", 1, peer="P")
    rig.track("S", 2, peer="Q")
    rig.states("DISCONNECT", 1, 2)
    with pytest.raises(type(striking.error)):
        rig.poll()
    assert rig.receiver.guard.dead == {"P", "Q"} or not rig.receiver.guard.dead  # or the next poll notes them
    rig.poll()
    assert rig.receiver.guard.dead == {"P", "Q"}
    assert rig.count("dead_peers") == 2
