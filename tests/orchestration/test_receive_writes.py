"""A push consumer: the peers' writes are outstanding like own handles."""

from __future__ import annotations

from itertools import permutations

import pytest

from kvfast.receiving.writes import ExpectedWrites
from kvfast.results import ReceiveResults
from tests.orchestration.rigs import ReceiveRig, ends

NOTHING = ReceiveResults()


@pytest.fixture
def pushed(rig: ReceiveRig) -> ReceiveRig:
    """A rig with a request R that P0 has been told to write."""
    rig.track("R", peer="P0", blocks=[[1]])
    rig.receiver.expect_writes("R")
    return rig


def test_it_finishes_at_the_last_producer(pushed: ReceiveRig) -> None:
    for _ in range(2):
        assert pushed.poll() == NOTHING
        pushed.receiver.notified("R", 3)
    assert pushed.poll() == NOTHING
    pushed.receiver.notified("R", 3)
    assert ends(pushed.poll()) == ({"R"}, set(), set())


@pytest.mark.parametrize("how", ["abort", "fail", "failed producer"])
def test_whatever_happens_it_waits_for_every_producer(pushed: ReceiveRig, how: str) -> None:
    if how == "abort":
        pushed.receiver.abort("R")
    elif how == "fail":
        pushed.receiver.fail("R", "a test")
    pushed.receiver.notified("R", 2, failed=how == "failed producer")
    pushed.clock.advance(1000)
    assert pushed.poll() == NOTHING
    pushed.receiver.notified("R", 2)
    finished, failed, aborted = ends(pushed.poll())
    assert not finished
    assert (aborted if how == "abort" else failed) == {"R"}
    assert not (failed if how == "abort" else aborted)


def test_writes_expected_after_a_failure_are_waited_for_too(rig: ReceiveRig) -> None:
    rig.track("R", peer="P0")
    rig.receiver.fail("R", "a test")
    rig.receiver.expect_writes("R")
    assert rig.poll() == NOTHING
    rig.receiver.notified("R", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_a_producer_may_be_quicker_than_expect_writes(rig: ReceiveRig) -> None:
    rig.track("R", peer="P0")
    rig.receiver.notified("R", 1)
    assert rig.poll() == NOTHING  # or expect_writes would find it gone
    rig.receiver.expect_writes("R")
    assert ends(rig.poll()) == ({"R"}, set(), set())
    assert rig.count("notifs_after_end") == 0


def test_one_early_notification_tells_that_the_others_write_too(rig: ReceiveRig) -> None:
    rig.track("R", peer="P0")
    rig.receiver.notified("R", 2)
    rig.receiver.fail("R", "a test")
    assert rig.poll() == NOTHING
    rig.receiver.notified("R", 2)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_writes_and_own_handles_are_both_waited_for(rig: ReceiveRig) -> None:
    rig.track("R", 1, peer="P0")
    rig.receiver.expect_writes("R")
    rig.states("DONE", 1)
    assert rig.poll() == NOTHING
    rig.receiver.notified("R", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_handles_are_waited_for_after_the_writes(rig: ReceiveRig) -> None:
    rig.track("R", 1, peer="P0")
    rig.receiver.expect_writes("R")
    rig.receiver.notified("R", 1)
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())


@pytest.mark.parametrize("req_id", ["R", "never tracked"])
def test_a_notification_after_the_end_is_counted(pushed: ReceiveRig, req_id: str) -> None:
    pushed.receiver.notified("R", 1)
    pushed.poll()
    pushed.receiver.notified(req_id, 1)
    assert pushed.poll() == NOTHING
    assert pushed.count("notifs_after_end") == 1


def test_one_too_many_before_the_end_is_counted(pushed: ReceiveRig) -> None:
    pushed.receiver.notified("R", 1)
    pushed.receiver.notified("R", 1)
    assert ends(pushed.poll()) == ({"R"}, set(), set())
    assert pushed.count("notifs_after_end") == 1


def test_the_greatest_number_of_producers_counts(pushed: ReceiveRig) -> None:
    pushed.receiver.notified("R", 2)
    pushed.receiver.notified("R", 3)
    assert pushed.poll() == NOTHING
    pushed.receiver.notified("R", 1)
    assert ends(pushed.poll()) == ({"R"}, set(), set())
    pushed.track("S", peer="P0")
    pushed.receiver.notified("S", 3)
    pushed.receiver.notified("S", 1)
    pushed.receiver.expect_writes("S")
    assert pushed.poll() == NOTHING
    pushed.receiver.notified("S", 1)
    assert ends(pushed.poll()) == ({"S"}, set(), set())
    assert pushed.count("notifs_after_end") == 0


def test_a_dead_producers_writes_have_ended(pushed: ReceiveRig) -> None:
    pushed.track("S", peer="P1")
    pushed.receiver.expect_writes("S")
    pushed.receiver.peer_lost("P0")
    results = pushed.poll()
    assert ends(results) == (set(), {"R"}, set())
    assert results.invalid_block_ids == [[1]]
    pushed.receiver.notified("S", 1)
    assert ends(pushed.poll()) == ({"S"}, set(), set())


def test_a_request_that_has_everything_outlives_its_producer(pushed: ReceiveRig) -> None:
    pushed.receiver.notified("R", 1)
    pushed.receiver.peer_lost("P0")
    assert ends(pushed.poll()) == ({"R"}, set(), set())


def test_a_tracked_request_of_a_dead_peer_fails(rig: ReceiveRig) -> None:
    rig.track("R", peer="P0")
    rig.track("S", peer="P1")
    rig.receiver.peer_lost("P0")
    assert ends(rig.poll()) == (set(), {"R"}, set())
    assert "S" in rig.receiver


def test_a_request_with_handles_of_a_dead_peer_ends_by_them(rig: ReceiveRig) -> None:
    rig.track("R", 1, peer="P0")
    rig.receiver.peer_lost("P0")
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_the_disconnect_of_a_handle_ends_its_peers_writes(pushed: ReceiveRig) -> None:
    pushed.track("reads", 1, 2, peer="P0")
    pushed.states("DISCONNECT", 1)
    assert ends(pushed.poll()) == (set(), {"R"}, set())
    assert pushed.receiver.guard.is_dead("P0")
    pushed.states("DISCONNECT", 2)
    assert ends(pushed.poll()) == (set(), {"reads"}, set())


@pytest.mark.parametrize("error", ["BACKEND", "NOT_FOUND", "ERR", "BOOM"])
def test_no_other_failure_of_a_handle_ends_its_peers_writes(pushed: ReceiveRig, error: str) -> None:
    pushed.track("reads", 1, peer="P0")
    pushed.states(error, 1)
    pushed.poll()
    assert "R" in pushed.receiver
    assert not pushed.receiver.guard.is_dead("P0")


# ---- several producers, each an agent of its own


@pytest.fixture
def two_ranks(rig: ReceiveRig) -> ReceiveRig:
    """A rig with a request R that P0 and P1 have been told to write."""
    rig.track("R", peer=["P0", "P1"])
    rig.receiver.expect_writes("R")
    return rig


@pytest.mark.parametrize("order", list(permutations(["P0 ends", "P1 dies"])))
def test_one_of_two_dies(two_ranks: ReceiveRig, order: tuple[str, ...]) -> None:
    for number, step in enumerate(order):
        assert two_ranks.poll() == NOTHING, f"step {number}"
        if step == "P0 ends":
            two_ranks.receiver.notified("R", 2, peer="P0")
        else:
            two_ranks.receiver.peer_lost("P1")
    assert ends(two_ranks.poll()) == (set(), {"R"}, set())


def test_a_rank_that_dies_after_its_end_changes_nothing(two_ranks: ReceiveRig) -> None:
    two_ranks.receiver.notified("R", 2, peer="P0")
    two_ranks.receiver.peer_lost("P0")
    assert two_ranks.poll() == NOTHING
    two_ranks.receiver.notified("R", 2, peer="P1")
    assert ends(two_ranks.poll()) == ({"R"}, set(), set())
    assert two_ranks.count("notifs_after_end") == 0  # the dead one was not counted twice


def test_an_unnamed_end_may_be_the_dead_ones(two_ranks: ReceiveRig) -> None:
    two_ranks.receiver.notified("R", 2)
    two_ranks.receiver.peer_lost("P0")
    assert two_ranks.poll() == NOTHING  # P1 may be writing still
    two_ranks.receiver.notified("R", 2)
    assert ends(two_ranks.poll()) == (set(), {"R"}, set())


def test_all_dead_is_all_ended(two_ranks: ReceiveRig) -> None:
    two_ranks.receiver.peer_lost("P0")
    assert two_ranks.poll() == NOTHING
    two_ranks.receiver.peer_lost("P1")
    assert ends(two_ranks.poll()) == (set(), {"R"}, set())


def test_the_same_rank_twice_is_one_too_many(two_ranks: ReceiveRig) -> None:
    two_ranks.receiver.notified("R", 2, peer="P0")
    two_ranks.receiver.notified("R", 2, peer="P0")
    assert two_ranks.poll() == NOTHING
    assert two_ranks.count("notifs_after_end") == 1
    two_ranks.receiver.notified("R", 2, peer="P1")
    assert ends(two_ranks.poll()) == ({"R"}, set(), set())


def test_a_transfer_of_a_request_with_several_peers_must_name_its_own(rig: ReceiveRig) -> None:
    rig.track("R", peer=["P0", "P1"])
    with pytest.raises(ValueError, match="'P0', 'P1'"):
        rig.post("R", 1)
    assert rig.post("R", 2, peer="P1")
    assert rig.receiver.outstanding_of("P1") == 1
    assert rig.receiver.outstanding_of("P0") == 0


def test_nobody_told_is_nobody_writing() -> None:
    assert not ExpectedWrites(("P0",)).outstanding
    assert ExpectedWrites(("P0",), told=True).outstanding
    assert ExpectedWrites((), told=True).outstanding


@pytest.mark.parametrize("polled", [False, True])
def test_the_death_of_the_last_peer_fails_what_it_can_not_bring_any_more(
    pushed: ReceiveRig, polled: bool
) -> None:
    pushed.receiver.notified("R", 2, peer="P0")  # P0 has ended, and another one has not
    if polled:
        assert pushed.poll() == NOTHING
    pushed.receiver.peer_lost("P0")
    assert ends(pushed.poll()) == (set(), {"R"}, set())


def test_the_last_peer_of_fewer_than_there_are_producers_dies(rig: ReceiveRig) -> None:
    rig.track("R", peer=["X", "Y"])
    rig.receiver.expect_writes("R")
    rig.receiver.notified("R", 3, peer="X")
    rig.receiver.peer_lost("Y")
    assert rig.poll() == NOTHING  # the third one has no name here, and may write
    rig.receiver.peer_lost("X")
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_a_bystander_that_dies_does_not_stand_for_a_producer(rig: ReceiveRig) -> None:
    rig.track("R", peer=["X", "Y", "Z"])
    rig.receiver.expect_writes("R")
    rig.receiver.notified("R", 2, peer="X")
    rig.receiver.peer_lost("Z")
    assert rig.poll() == NOTHING  # Y may write
    rig.receiver.notified("R", 2, peer="Y")
    assert ends(rig.poll()) == (set(), {"R"}, set())  # what Z was asked for may be missing


def test_when_all_peers_have_ended_or_died_nobody_is_waited_for(rig: ReceiveRig) -> None:
    rig.track("R", peer=["X", "Y", "Z"])
    rig.receiver.expect_writes("R")
    rig.receiver.notified("R", 2, peer="X")
    for peer in "ZY":
        assert rig.poll() == NOTHING
        rig.receiver.peer_lost(peer)
    assert ends(rig.poll()) == (set(), {"R"}, set())
