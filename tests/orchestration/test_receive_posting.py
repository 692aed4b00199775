"""Starting transfers: every way in which that can go wrong."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from kvfast import Receiver
from kvfast.results import ReceiveResults
from kvfast.testing import ScriptedAgent
from tests.orchestration.rigs import ReceiveRig, Unshowable, broken, ends, in_thread

NOTHING = ReceiveResults()


def test_the_agents_transfer_posts(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    assert rig.agent.posted == [1]


def test_a_given_transfer_posts(rig: ReceiveRig) -> None:
    rig.track("R")
    seen: list[int] = []

    def transfer(handle: int) -> object:
        seen.append(handle)
        rig.agent.transfer(handle)
        return object()  # whatever it is, it is no failure

    assert rig.receiver.post("R", lambda: rig.agent.prepare(7), transfer)
    assert seen == [7]
    rig.states("DONE", 7)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_prepare_that_raises_fails_the_request_when_it_has_drained(
    rig: ReceiveRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.track("R", 1)
    assert rig.receiver.post("R", broken) is False
    assert "no descriptors" in caplog.text
    assert rig.poll() == NOTHING
    assert rig.post("R", 2) is False
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    assert rig.agent.posted == [1]
    assert rig.count("failed_transfers") == 1


def test_transfer_that_raises_releases_its_handle_at_once(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.agent.refuse_transfer(2)
    assert rig.post("R", 2) is False
    assert rig.agent.released == [2]
    assert rig.post("R", 3) is False
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.assert_drained()
    assert rig.count("failed_transfers") == 1


def test_a_handle_that_can_be_neither_posted_nor_released_is_waited_for(rig: ReceiveRig) -> None:
    rig.track("R")
    rig.agent.refuse_transfer(1)
    rig.agent.refuse_release(1)
    assert rig.post("R", 1) is False
    assert rig.poll() == NOTHING
    rig.states("ERR", 1)
    assert rig.poll() == NOTHING
    rig.agent.allow_release(1)
    rig.clock.advance(10)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.assert_drained()
    assert rig.count("failed_transfers") == 1  # seen by its check, and not by the post too


@pytest.mark.parametrize("status", ["ERR", -3])
def test_transfer_that_returns_an_error_keeps_its_handle(rig: ReceiveRig, status: object) -> None:
    rig.track("R")

    def transfer(handle: int) -> object:
        rig.agent.transfer(handle)
        return status

    assert rig.receiver.post_many("R", rig.prepares([1, 2]), transfer) is False
    assert rig.agent.posted == [1]
    assert rig.agent.released == [2]  # it was never posted
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.assert_drained()


@pytest.mark.parametrize("status", ["DONE", "PROC", None, 0, 1, True])
def test_transfer_may_return_anything_else(rig: ReceiveRig, status: object) -> None:
    rig.track("R")
    assert rig.receiver.post("R", lambda: rig.agent.prepare(1), lambda handle: status)


def test_post_many_posts_nothing_if_one_can_not_be_prepared(rig: ReceiveRig) -> None:
    rig.track("R")
    one, two = rig.prepares([1, 2])
    assert rig.receiver.post_many("R", [one, two, broken]) is False
    assert rig.agent.posted == []
    assert rig.agent.released == [1, 2]
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.assert_drained()


def test_post_many_keeps_a_prepared_handle_that_can_not_be_released(rig: ReceiveRig) -> None:
    rig.track("R")
    rig.agent.refuse_release(1)
    assert rig.receiver.post_many("R", [*rig.prepares([1]), broken]) is False
    assert rig.poll() == NOTHING
    rig.states("ERR", 1)
    rig.agent.allow_release(1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.assert_drained()


def test_post_many_stops_at_the_first_that_can_not_be_posted(rig: ReceiveRig) -> None:
    rig.track("R")
    rig.agent.refuse_transfer(2)
    assert rig.post("R", 1, 2, 3) is False
    assert rig.agent.posted == [1]
    assert rig.agent.released == [2, 3]
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.assert_drained()


def test_post_many_of_nothing_starts_nothing(rig: ReceiveRig) -> None:
    rig.track("R")
    assert rig.post("R") is True
    assert rig.poll() == NOTHING


@pytest.mark.parametrize("how", ["fail", "report", "abort"])
def test_nothing_is_posted_after_a_failure_or_an_abort(rig: ReceiveRig, how: str) -> None:
    rig.track("R")
    if how == "report":
        in_thread(lambda: rig.receiver.report_failure("R", "a test"))
    else:
        getattr(rig.receiver, how)("R", *(["a test"] if how == "fail" else []))
    assert rig.post("R", 1) is False
    assert rig.agent.unreleased == set()  # not even prepared


def test_nothing_is_posted_after_a_failure_that_a_sweep_saw(rig: ReceiveRig) -> None:
    rig.track("R", 1, 2)
    rig.states("ERR", 1)
    rig.poll()
    assert rig.post("R", 3) is False


def test_a_post_after_read_before_is_declined_and_counts_as_expired(rig: ReceiveRig) -> None:
    rig.track("R", 1, read_before=10)
    rig.clock.advance(10)
    assert rig.post("R", 2) is True  # at the very moment it is not late
    rig.clock.advance(0.001)
    assert rig.post("R", 3) is False
    assert rig.poll() == NOTHING
    rig.states("DONE", 1, 2)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    assert rig.count("expired_leases") == 1
    assert rig.count("failed_transfers") == 0
    rig.agent.assert_drained()


@pytest.mark.parametrize("bad", [None, "handle", 1.5, -1])
def test_prepare_that_returns_no_handle_is_a_failure_before_anything_is_posted(
    rig: ReceiveRig, bad: object
) -> None:
    rig.track("R")
    assert rig.receiver.post_many("R", [*rig.prepares([1]), lambda: bad]) is False
    assert rig.agent.posted == []
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.assert_drained()


def test_a_handle_prepared_twice_is_a_failure_before_anything_is_posted(rig: ReceiveRig) -> None:
    rig.track("R")
    handle = rig.agent.prepare(1)
    assert rig.receiver.post_many("R", [lambda: handle, lambda: handle]) is False
    assert rig.agent.posted == []
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.assert_drained()


def test_a_handle_in_flight_that_is_posted_again_is_not_released(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.track("S")
    assert rig.receiver.post("S", lambda: 1) is False
    assert rig.agent.posted == [1]  # and not again
    assert rig.agent.released == []
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, {"S"}, set())
    assert rig.agent.violations == []


def test_a_handle_in_flight_is_not_released_when_another_post_with_it_fails(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.track("S")

    assert rig.receiver.post_many("S", [lambda: 1, broken]) is False
    assert rig.receiver.post("S", lambda: 1) is False
    assert (rig.agent.released, rig.agent.violations) == ([], [])
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, {"S"}, set())


def test_a_handle_that_somebody_else_has_posted_is_kept(rig: ReceiveRig) -> None:
    handle = rig.agent.prepare(1)
    rig.agent.transfer(handle)
    rig.track("R")
    assert rig.receiver.post("R", lambda: handle) is False  # the agent raises nixlRepostActiveError
    assert ends(rig.poll()) == (set(), set(), set())
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    assert rig.agent.violations == ["handle 1 was posted in flight"]
    rig.misused = True


def test_a_handle_that_is_in_the_table_already_does_not_hang_its_second_request(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.track("S")
    assert rig.receiver.post_many("S", [lambda: 1, *rig.prepares([2])], lambda handle: "PROC") is False
    rig.states("DONE", 1, 2)
    assert ends(rig.poll()) == ({"R"}, {"S"}, set())


@pytest.mark.parametrize("where", ["prepare", "transfer"])
def test_an_interrupt_gets_out_and_loses_no_handle(rig: ReceiveRig, where: str) -> None:
    rig.track("R")

    def interrupted(handle: int | None = None) -> Any:
        if handle is not None:
            rig.agent.transfer(handle)
        raise KeyboardInterrupt

    prepares = rig.prepares([1, 2]) if where == "transfer" else [*rig.prepares([1]), interrupted]
    with pytest.raises(KeyboardInterrupt):
        rig.receiver.post_many("R", prepares, interrupted)
    if where == "transfer":
        assert rig.agent.released == [2]
        assert rig.poll() == NOTHING  # it may have been posted
        rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.assert_drained()


class Unindexable:
    """Looks like a state, and raises when it is taken for one."""

    def __index__(self) -> int:
        raise RuntimeError("no index")


def test_an_error_that_can_not_be_shown_loses_no_handle(rig: ReceiveRig) -> None:
    rig.track("R")
    rig.agent.refuse_transfer(2, error=Unshowable())
    assert rig.post("R", 1, 2, 3) is False
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    assert sorted(rig.agent.released) == [1, 2, 3]


def test_a_status_that_raises_loses_no_handle(rig: ReceiveRig) -> None:
    rig.track("R")

    def transfer(handle: int) -> object:
        rig.agent.transfer(handle)
        return Unindexable()

    assert rig.receiver.post_many("R", rig.prepares([1, 2]), transfer) is False
    assert rig.agent.released == [2]
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_a_handle_that_its_own_transfer_has_released_is_not_released_again(
    backend: ModuleType, scan: str
) -> None:
    agent = ScriptedAgent(handle_objects=True)
    receiver = Receiver(agent, backend=backend, scan=scan)
    receiver.track("R", [[1]])

    def transfer(handle: Any) -> str:
        agent.release_xfer_handle(handle)
        raise RuntimeError("no route")

    assert receiver.post("R", agent.prepare, transfer) is False
    assert ends(receiver.poll()) == (set(), {"R"}, set())
    agent.assert_drained()


def test_a_handle_that_its_own_transfer_has_released_takes_no_other_with_it(
    rig: ReceiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = rig.receiver._table.add

    def refuse_two(req_id: str, *handles: int, peer: str | None = None) -> None:
        if 2 in handles:
            raise ValueError("handle 2 is released already")
        add(req_id, *handles, peer=peer)

    monkeypatch.setattr(rig.receiver._table, "add", refuse_two)
    rig.track("R")
    assert rig.post("R", 1, 2) is False
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.misused = True  # handle 2 is nobody's


def test_an_interrupted_release_of_what_was_not_posted_gets_out(rig: ReceiveRig) -> None:
    rig.track("R")
    rig.agent.refuse_release(1, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        rig.receiver.post_many("R", [*rig.prepares([1]), broken])
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.agent.allow_release(1)
    rig.agent.release_xfer_handle(1)


def test_a_poll_within_a_post_does_not_end_its_request(rig: ReceiveRig) -> None:
    rig.track("R")

    def prepare() -> Any:
        rig.receiver.report_failure("R", "a test")
        assert rig.poll() == NOTHING
        return rig.agent.prepare(1)

    assert rig.receiver.post("R", prepare) is False
    assert rig.agent.posted == []
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_a_poll_within_the_last_transfer_does_not_end_its_request(rig: ReceiveRig) -> None:
    rig.track("R")

    def transfer(handle: int) -> str:
        state = str(rig.agent.transfer(handle))
        rig.receiver.report_failure("R", "a test")
        assert rig.poll() == NOTHING
        return state

    assert rig.receiver.post("R", lambda: rig.agent.prepare(1), transfer) is True
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_a_request_that_is_declared_complete_within_a_post_of_nothing_ends(rig: ReceiveRig) -> None:
    rig.track("R")

    def last() -> Any:
        rig.receiver.complete("R")
        assert rig.poll() == NOTHING
        return rig.agent.prepare(1)

    assert rig.receiver.post("R", last) is True
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_a_peer_is_not_removed_within_a_post_to_it(rig: ReceiveRig) -> None:
    rig.track("R", peer="P")

    def transfer(handle: int) -> str:
        state = str(rig.agent.transfer(handle))
        assert rig.receiver.remove_peer("P") is False
        return state

    assert rig.receiver.post("R", lambda: rig.agent.prepare(1, peer="P"), transfer) is True
    assert rig.poll() == NOTHING
    assert rig.agent.violations == []
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())
    assert rig.receiver.guard.removing == frozenset()


def test_a_transfer_that_raises_when_it_has_posted_keeps_its_handle(rig: ReceiveRig) -> None:
    # Such as a caller's own function, whose metrics fail after the post.
    def transfer(handle: int) -> None:
        rig.agent.transfer(handle)
        raise OSError("nobody takes these numbers")

    rig.track("R", peer="P")
    assert rig.receiver.post_many("R", rig.prepares([1]), transfer) is False
    assert rig.poll() == NOTHING
    assert (rig.agent.in_flight, rig.agent.released) == ({1}, [])
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_of_peers_that_were_posted_to_nothing_is_kept(rig: ReceiveRig) -> None:
    for number in range(3):
        rig.track(f"R{number}", number + 1, peer=f"P{number}")
    assert not rig.receiver._posting_to


def test_a_post_within_a_post_ends_alone(rig: ReceiveRig) -> None:
    def prepare() -> Any:
        assert rig.post("S", 2)
        assert rig.receiver.outstanding_of("P") == 2  # that one's handle, and this post
        return rig.agent.prepare(1)

    rig.track("R", peer="P")
    rig.track("S", peer="P")
    assert rig.receiver.post("R", prepare) is True
    assert rig.receiver.outstanding_of("P") == 2
    rig.states("DONE", 1, 2)
    assert ends(rig.poll()) == ({"R", "S"}, set(), set())
