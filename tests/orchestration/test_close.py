"""The end of a Receiver and of a Sender."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kvfast import PeerGuard, Quarantine, Receiver
from kvfast.results import Closed, ReceiveResults, SendResults
from kvfast.stats import Stats
from kvfast.testing import ScriptedAgent
from tests.orchestration.rigs import ReceiveRig, SendRig, ends


def done_at(rig: Any, moment: float, *handles: int, state: str = "DONE") -> None:
    """Let handles end while `close` sleeps."""
    sleep = rig.sleep

    def ending(seconds: float) -> None:
        sleep(seconds)
        if rig.clock() >= moment:
            rig.states(state, *handles)

    subject: Any = rig.receiver if isinstance(rig, ReceiveRig) else rig.sender
    subject._sleep = ending


def test_an_idle_receiver_closes_at_once(rig: ReceiveRig) -> None:
    assert rig.receiver.close(10) == Closed(ReceiveResults())
    assert rig.slept == 0


def test_it_waits_for_what_is_in_flight(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.receiver.add_notif("R", "P0", b"R:1")
    done_at(rig, 2.0, 1)
    closed = rig.receiver.close(10)
    assert closed == Closed(ReceiveResults(finished=frozenset({"R"})))
    assert rig.agent.sent == [("P0", b"R:1")]
    assert 2 <= rig.slept < 3
    rig.agent.assert_drained()


def test_it_reports_failures_with_their_blocks(rig: ReceiveRig) -> None:
    rig.track("R", 1, blocks=[[4], [5]])
    done_at(rig, 1.0, 1, state="ERR")
    assert rig.receiver.close(10).results == ReceiveResults(
        failed=frozenset({"R"}), invalid_block_ids=[[4], [5]]
    )


def test_what_is_in_flight_when_the_time_is_up_is_left_alone_and_named(
    rig: ReceiveRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.track("stuck", 1, 2)
    rig.track("fine", 3)
    rig.track("pushed", peer="P0")
    rig.receiver.expect_writes("pushed")
    rig.states("DONE", 2, 3)
    closed = rig.receiver.close(5)
    assert closed == Closed(
        ReceiveResults(finished=frozenset({"fine"})), left=("stuck", "pushed"), left_handles=1
    )
    assert rig.agent.released == [2, 3] or rig.agent.released == [3, 2]
    assert 5 <= rig.slept < 6
    assert "2 requests and 1 handles left" in caplog.text


def test_a_timeout_of_zero_sweeps_once(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.track("S", 2)
    rig.states("DONE", 1)
    closed = rig.receiver.close(0)
    assert closed.results.finished == {"R"}
    assert closed.left == ("S",)
    assert rig.slept == 0


def test_what_was_never_started_ends_as_aborted(rig: ReceiveRig) -> None:
    rig.track("R")
    rig.receiver.add_notif("R", "P0", b"R:1")
    assert rig.receiver.close(1).results == ReceiveResults(aborted=frozenset({"R"}))
    assert rig.agent.sent == [("P0", b"R:1")]  # the producer need not wait for its lease


def test_a_quarantine_is_kept(receive_rig: Callable[..., ReceiveRig]) -> None:
    rig = receive_rig(quarantine=Quarantine(lost_s=30))
    rig.track("R", 1)
    rig.states("NOT_FOUND", 1)
    closed = rig.receiver.close(5)
    assert (closed.left, closed.left_handles) == (("R",), 1)
    assert rig.agent.released == []


def test_closing_twice_reports_the_same(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.states("DONE", 1)
    first = rig.receiver.close(1)
    assert rig.receiver.close(1) is first
    assert ends(first.results) == ({"R"}, set(), set())


def test_one_raise_skips_nothing_else(rig: ReceiveRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.track("R", 1)
    rig.track("S", 2)
    for req_id in "RS":
        rig.receiver.add_notif(req_id, "P0", req_id.encode())
    rig.states("DONE", 1, 2)
    advance = rig.receiver._advance
    raised: list[int] = []

    def once() -> None:
        if not raised:
            raised.append(1)
            raise RuntimeError("a hook broke")
        advance()

    rig.receiver._advance = once  # type: ignore[method-assign]
    closed = rig.receiver.close(1)
    rig.receiver._advance = advance  # type: ignore[method-assign]
    assert closed.results.finished == {"R", "S"}
    assert [str(error) for error in closed.errors] == ["a hook broke"]
    assert "a hook broke" in caplog.text
    assert len(rig.agent.sent) == 2


def test_refused_releases_and_notifications_stop_nothing(rig: ReceiveRig) -> None:
    rig.agent.refuse_notifs("P0")
    rig.agent.refuse_release(1)
    for number, req_id in enumerate("RST"):
        rig.track(req_id, number + 1)
        rig.receiver.add_notif(req_id, "P0" if req_id == "R" else "P1", req_id.encode())
    rig.states("DONE", 1, 2, 3)
    closed = rig.receiver.close(1)
    assert closed.results.finished == {"R", "S", "T"}
    assert closed.errors == ()
    assert rig.agent.sent == [("P1", b"S"), ("P1", b"T")]
    assert sorted(rig.agent.released) == [2, 3]


def test_an_error_that_every_sweep_raises_ends_with_the_time(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    advance = rig.receiver._advance

    def broken() -> None:
        raise RuntimeError("always")

    rig.receiver._advance = broken  # type: ignore[method-assign]
    closed = rig.receiver.close(1)
    rig.receiver._advance = advance  # type: ignore[method-assign]
    assert closed.left == ("R",)
    assert len(closed.errors) == 1
    assert 1 <= rig.slept < 2


def test_what_is_shared_is_left_alone_as_far_as_nothing_is_left(backend: ModuleType) -> None:
    agent, stats = ScriptedAgent(), Stats()
    guard = PeerGuard(agent)
    done, stuck = (Receiver(agent, backend=backend, stats=stats, guard=guard) for _ in range(2))
    for receiver, handle in ((done, 1), (stuck, 2)):
        receiver.track("R", [[1]], peer="P0")
        assert receiver.post("R", lambda handle=handle: agent.prepare(handle))  # type: ignore[misc]
    assert stats.snapshot()["outstanding_handles"] == 2
    agent.set_state(1, "DONE")
    assert done.close(0).left == ()
    assert stuck.close(0).left == ("R",)
    assert stats.snapshot()["outstanding_handles"] == 0  # nobody can end it any more
    assert guard.remove("P0") is False
    assert guard.outstanding_of("P0") == 1
    assert guard._users == [stuck]
    agent.set_state(2, "DONE")
    stuck._advance()
    assert agent.removed == ["P0"]


# ---- the Sender


def test_a_sender_waits_for_its_writes(sending: SendRig) -> None:
    sending.track("R", 1)
    done_at(sending, 2.0, 1)
    assert sending.sender.close(10) == Closed(SendResults(finished=frozenset({"R"})))
    assert 2 <= sending.slept < 3


def test_a_sender_does_not_wait_for_leases_but_names_them(sending: SendRig) -> None:
    sending.track("leased", lease_s=100)
    sending.track("stuck", 1, lease_s=100)
    sending.track("over", lease_s=1)
    sending.clock.advance(2)
    closed = sending.sender.close(5)
    assert closed == Closed(
        SendResults(expired=frozenset({"over"})), left=("leased", "stuck"), left_handles=1
    )
    assert sending.agent.released == []
    assert sending.sender.close(5) is closed


def test_a_sender_without_writes_closes_at_once(sending: SendRig) -> None:
    sending.track("leased", lease_s=100)
    assert sending.sender.close(5).left == ("leased",)
    assert sending.slept == 0


def test_a_peer_is_not_removed_under_a_post_that_a_close_has_overtaken(
    send_rig: Callable[..., SendRig],
) -> None:
    sending = send_rig()
    sending.track("R", peer="P")

    def transfer(handle: int) -> str:
        state = str(sending.agent.transfer(handle))
        assert sending.sender.close(0).left == ("R",)
        assert sending.sender.guard.remove("P") is False
        return state

    assert sending.sender.post("R", sending.prepares([1], "P"), transfer) is True
    assert sending.sender.guard.settle() == []
    assert sending.agent.violations == []


def test_what_a_close_leaves_is_not_released_when_it_is_collected(backend: ModuleType, scan: str) -> None:
    agent = ScriptedAgent(handle_objects=True)
    older = [agent.prepare(1)]  # the collector looks at the oldest object first
    holder = [Receiver(agent, backend=backend, scan=scan)]
    holder[0].track("R", [[1]])
    holder[0].post("R", older.pop)
    assert holder[0].close(0).left_handles == 1
    holder.clear()
    with pytest.warns(ResourceWarning, match="1 handles not released"):
        gc.collect()
    assert agent.violations == []


def test_a_peer_is_not_removed_under_writes_that_a_close_has_left(rig: ReceiveRig) -> None:
    rig.track("R", peer="P0")
    rig.receiver.expect_writes("R")
    guard = rig.receiver.guard
    assert rig.receiver.close(0.0).left == ("R",)
    assert guard.remove("P0") is False
    assert rig.agent.removed == []
