"""When a received request is reported, and as what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfast import Quarantine, UnknownRequestError
from kvfast.results import ReceiveResults
from tests.orchestration.rigs import ReceiveRig, ends, in_thread

MakeRig = Callable[..., ReceiveRig]
NOTHING = ReceiveResults()


def test_finished_is_told_once_when_all_handles_are_done(rig: ReceiveRig) -> None:
    rig.track("R", 1, 2)
    rig.states("DONE", 1)
    assert rig.poll() == NOTHING
    rig.states("DONE", 2)
    assert rig.poll() == ReceiveResults(finished=frozenset({"R"}))
    assert rig.poll() == NOTHING
    assert "R" not in rig.receiver
    rig.agent.assert_drained()


def test_a_tracked_request_alone_never_ends(rig: ReceiveRig) -> None:
    rig.track("R")
    for _ in range(3):
        rig.clock.advance(1000)
        assert rig.poll() == NOTHING
    assert "R" in rig.receiver


@pytest.mark.parametrize("how", ["sweep", "fail", "report"])
def test_a_failure_is_told_with_all_blocks_when_it_has_drained(rig: ReceiveRig, how: str) -> None:
    rig.track("R", 1, 2, blocks=[[3, 4], [], [5]])
    if how == "sweep":
        rig.states("ERR", 1)
    elif how == "fail":
        rig.receiver.fail("R", "a test")
    else:
        in_thread(lambda: rig.receiver.report_failure("R", "a test"))
    assert rig.poll() == NOTHING
    rig.states("DONE", *({2} if how == "sweep" else {1, 2}))
    assert rig.poll() == ReceiveResults(failed=frozenset({"R"}), invalid_block_ids=[[3, 4], [], [5]])
    assert rig.poll() == NOTHING
    assert rig.count("failed_requests") == 1


def test_a_failure_is_sticky(rig: ReceiveRig) -> None:
    rig.track("R", 1, 2)
    rig.states("ERR", 1)
    rig.poll()
    rig.states("DONE", 2)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_a_failure_reported_in_the_poll_in_which_all_is_done_still_counts(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.states("DONE", 1)
    in_thread(lambda: rig.receiver.report_failure("R", "a test"))
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_invalid_blocks_are_merged_by_group_in_the_order_of_tracking(rig: ReceiveRig) -> None:
    for number, (req_id, blocks) in enumerate({"Z": [[9], [8, 7]], "A": [[1]], "M": [[5], [6], [2]]}.items()):
        rig.track(req_id, number + 1, blocks=blocks)
    rig.track("good", 9, blocks=[[77]])
    rig.states("ERR", 1, 2, 3)
    rig.states("DONE", 9)
    results = rig.poll()
    assert ends(results) == ({"good"}, {"Z", "A", "M"}, set())
    assert results.invalid_block_ids == [[9, 1, 5], [8, 7, 6], [2]]


def test_the_list_of_an_empty_poll_is_the_callers(rig: ReceiveRig) -> None:
    rig.poll().invalid_block_ids.append([1])
    assert rig.poll().invalid_block_ids == []


def test_blocks_are_copied(rig: ReceiveRig) -> None:
    blocks = [[1, 2]]
    rig.track("R", blocks=blocks)
    blocks[0].append(3)
    blocks.append([4])
    rig.receiver.fail("R", "a test")
    assert rig.poll().invalid_block_ids == [[1, 2]]


def test_an_aborted_request_waits_for_its_handles(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.receiver.abort("R")
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert rig.poll() == ReceiveResults(aborted=frozenset({"R"}))


def test_an_aborted_request_with_nothing_outstanding_ends_at_the_next_poll(rig: ReceiveRig) -> None:
    rig.track("R")
    rig.receiver.abort("R")
    assert ends(rig.poll()) == (set(), set(), {"R"})


@pytest.mark.parametrize("first", ["abort", "fail"])
def test_aborted_and_failed_is_aborted_and_names_no_blocks(rig: ReceiveRig, first: str) -> None:
    rig.track("R", 1)
    if first == "abort":
        rig.receiver.abort("R")
        rig.receiver.fail("R", "a test")
    else:
        rig.receiver.fail("R", "a test")
        rig.receiver.abort("R")
    rig.states("DONE", 1)
    assert rig.poll() == ReceiveResults(aborted=frozenset({"R"}))
    assert rig.count("aborted_requests") == 1
    assert rig.count("failed_requests") == 0


def test_complete_ends_a_request_without_handles(rig: ReceiveRig) -> None:
    rig.track("R", blocks=[[]])
    rig.receiver.complete("R")
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_complete_waits_for_what_is_outstanding(rig: ReceiveRig) -> None:
    rig.track("handles", 1)
    rig.receiver.complete("handles")
    rig.track("writes")
    rig.receiver.expect_writes("writes")
    rig.receiver.complete("writes")
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    rig.receiver.notified("writes", 1)
    assert ends(rig.poll()) == ({"handles", "writes"}, set(), set())


def test_a_post_after_complete_is_waited_for(rig: ReceiveRig) -> None:
    rig.track("R")
    rig.receiver.complete("R")
    assert rig.post("R", 1)
    assert rig.poll() == NOTHING
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_an_id_may_be_used_again(rig: ReceiveRig) -> None:
    rig.track("R", 1, blocks=[[1]])
    rig.receiver.fail("R", "a test")
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    rig.track("R", 2, blocks=[[2]])
    assert rig.poll() == NOTHING
    rig.states("DONE", 2)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_an_ended_request_is_unknown(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.states("DONE", 1)
    rig.poll()
    with pytest.raises(UnknownRequestError, match="'R'"):
        rig.post("R", 2)


def test_a_post_after_an_interrupted_poll_is_waited_for(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.states("DONE", 1)
    rig.agent.refuse_telemetry(1, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        rig.poll()
    assert rig.post("R", 2)
    # The sweep now reports what the interrupted one had found: that R had no handle left, then.
    assert rig.poll() == NOTHING
    rig.states("DONE", 2)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_an_interrupted_poll_loses_no_end(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.track("S", 2)
    rig.states("DONE", 1)
    rig.states("ERR", 2)
    rig.agent.refuse_telemetry(1, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        rig.poll()
    assert ends(rig.poll()) == ({"R"}, {"S"}, set())


def test_a_failure_of_a_request_that_is_not_tracked_is_counted_and_logged(
    rig: ReceiveRig, caplog: pytest.LogCaptureFixture
) -> None:
    in_thread(lambda: rig.receiver.report_failure("gone", "the handshake broke"))
    assert rig.poll() == NOTHING
    assert rig.count("failures_of_unknown_requests") == 1
    assert "gone" in caplog.text
    assert "the handshake broke" in caplog.text


def test_a_lost_handle_holds_its_request_for_the_quarantine(receive_rig: MakeRig) -> None:
    rig = receive_rig(quarantine=Quarantine(lost_s=30))
    rig.track("R", 1, 2, blocks=[[1, 2, 3], [4]])
    rig.track("healthy", 3, blocks=[[5, 6]])
    rig.states("NOT_FOUND", 1)
    rig.states("DONE", 2)
    assert rig.poll() == NOTHING
    assert rig.count("quarantined_blocks") == 4
    rig.clock.advance(29.9)
    assert rig.poll() == NOTHING
    assert 1 not in rig.agent.released
    rig.clock.advance(0.2)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    assert rig.count("blind_releases") == 1
    assert rig.count("quarantined_blocks") == 0
    assert rig.agent.unreleased == {3}


def test_counts_and_gauges(rig: ReceiveRig) -> None:
    rig.agent.set_telemetry(1, n_bytes=500, descriptors=2)
    rig.track("done", 1)
    rig.clock.advance(5)
    rig.track("bad", 2, 3)
    rig.states("ERR", 2)
    rig.poll()
    assert rig.count("outstanding_requests") == 2
    assert rig.count("outstanding_handles") == 2
    assert rig.count("oldest_outstanding_seconds") == 5
    rig.states("DONE", 1, 3)
    rig.poll()
    counts = {
        name: rig.count(name) for name in ("transfers", "failed_transfers", "finished_requests", "bytes")
    }
    assert counts == {"transfers": 2, "failed_transfers": 1, "finished_requests": 1, "bytes": 501}
    assert rig.count("outstanding_requests") == 0
    assert rig.count("sweep_seconds")["count"] == 2
