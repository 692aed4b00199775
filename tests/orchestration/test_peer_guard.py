"""When a peer is removed, and what is known of the dead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType

import pytest

from kvfast import Quarantine
from kvfast.peers import PeerGuard
from kvfast.send import Sender
from kvfast.testing import ScriptedAgent, nixlNotFoundError
from tests.orchestration.rigs import ReceiveRig, SendRig, ends

MakeRig = Callable[..., ReceiveRig]


def test_a_peer_without_handles_is_removed_at_once(rig: ReceiveRig) -> None:
    assert rig.receiver.remove_peer("P0") is True
    assert rig.agent.removed == ["P0"]


def test_removal_waits_for_the_last_handle_of_that_peer(rig: ReceiveRig) -> None:
    rig.track("R", 1, 2, peer="P0")
    rig.track("S", 3, peer="P1")
    assert rig.receiver.remove_peer("P0") is False
    rig.states("DONE", 1)
    rig.poll()
    assert rig.agent.removed == []
    rig.states("DONE", 2)
    rig.poll()
    assert rig.agent.removed == ["P0"]
    rig.poll()
    assert rig.agent.removed == ["P0"]


def test_removal_waits_for_a_handle_whose_peer_was_named_at_its_post(rig: ReceiveRig) -> None:
    rig.track("R", peer="P0")
    rig.post("R", 1, peer="P1")
    assert rig.receiver.remove_peer("P0") is True
    assert rig.receiver.remove_peer("P1") is False
    rig.states("DONE", 1)
    rig.poll()
    assert rig.agent.removed == ["P0", "P1"]


def test_removal_waits_for_expected_writes(rig: ReceiveRig) -> None:
    rig.track("R", peer="P0")
    rig.receiver.expect_writes("R")
    assert rig.receiver.remove_peer("P0") is False
    rig.poll()
    assert rig.agent.removed == []
    rig.receiver.notified("R", 1)
    rig.poll()
    assert rig.agent.removed == ["P0"]


def test_removal_waits_for_a_quarantine(receive_rig: MakeRig) -> None:
    rig = receive_rig(quarantine=Quarantine(lost_s=30))
    rig.track("R", 1, peer="P0")
    rig.states("NOT_FOUND", 1)
    rig.poll()
    assert rig.receiver.remove_peer("P0") is False
    rig.clock.advance(31)
    rig.poll()
    assert rig.agent.removed == ["P0"]


def test_removal_waits_for_a_refused_release_of_a_finished_transfer(rig: ReceiveRig) -> None:
    rig.track("R", 1, peer="P0")
    rig.agent.refuse_release(1)
    rig.states("DONE", 1)
    assert ends(rig.poll())[0] == {"R"}
    assert rig.receiver.remove_peer("P0") is False
    rig.agent.allow_release(1)
    rig.clock.advance(10)
    rig.poll()
    assert rig.agent.removed == ["P0"]


def test_nothing_new_is_posted_to_a_peer_that_is_being_removed(rig: ReceiveRig) -> None:
    rig.track("R", 1, peer="P0")
    rig.track("S", peer="P0")
    rig.receiver.remove_peer("P0")
    assert rig.post("S", 2) is False
    assert rig.agent.unreleased == {1}
    assert ends(rig.poll()) == (set(), {"S"}, set())
    rig.states("DONE", 1)
    assert ends(rig.poll())[0] == {"R"}
    rig.track("T", peer="P0")
    assert rig.post("T", 3) is True  # it is removed by now: NIXL will say whether it knows it


def test_a_removal_can_be_cancelled(rig: ReceiveRig) -> None:
    rig.track("R", 1, peer="P0")
    rig.receiver.remove_peer("P0")
    assert rig.receiver.guard.cancel("P0") is True
    assert rig.receiver.guard.cancel("P0") is False
    assert rig.post("R", 2)
    rig.states("DONE", 1, 2)
    rig.poll()
    assert rig.agent.removed == []


def test_a_refused_removal_is_logged_and_given_up(rig: ReceiveRig, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def refuse(agent: str) -> None:
        calls.append(agent)
        raise nixlNotFoundError(agent)

    rig.agent.remove_remote_agent = refuse  # type: ignore[method-assign]
    assert rig.receiver.remove_peer("P0") is False
    rig.poll()
    assert calls == ["P0"]
    assert "removal of peer 'P0' refused" in caplog.text
    assert rig.count("refused_removals") == 1
    assert not rig.receiver.guard.removing


def test_a_shared_guard_waits_for_all(backend: ModuleType) -> None:
    agent = ScriptedAgent()
    guard = PeerGuard(agent)
    table = backend.TransferTable(backend.bind(agent))
    guard.watch(table)
    sender = Sender(agent, backend=backend, guard=guard)
    table.add("raw", agent.prepare(1), peer="P0")
    sender.track("R", [[1]], lease_s=30, peer="P0")
    assert sender.post("R", [lambda: agent.prepare(2)])
    agent.transfer(1)
    assert guard.remove("P0") is False
    assert guard.outstanding_of("P0") == 2
    agent.set_state(2, "DONE")
    sender.poll()
    assert agent.removed == []
    agent.set_state(1, "DONE")
    backend.pop_done_transfers(table)
    assert guard.settle() == ["P0"]
    assert agent.removed == ["P0"]


def test_a_post_that_is_running_holds_up_a_removal(sending: SendRig) -> None:
    sending.track("R", peer="P0")
    seen: list[object] = []

    def prepare() -> int:
        seen.append(sending.sender.remove_peer("P0"))
        return int(sending.agent.prepare(1, peer="P0"))

    assert sending.sender.post("R", [prepare]) is True
    assert seen == [False]
    sending.poll()
    assert sending.agent.removed == []
    sending.states("DONE", 1)
    sending.poll()
    assert sending.agent.removed == ["P0"]


def test_a_dead_peer_is_counted_once(rig: ReceiveRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.track("R", 1, 2, peer="P0")
    rig.states("DISCONNECT", 1, 2)
    rig.poll()
    rig.receiver.peer_lost("P0")
    assert rig.receiver.guard.dead == {"P0"}
    assert rig.count("dead_peers") == 1
    assert caplog.text.count("peer 'P0' is dead") == 1


def test_a_removed_peer_is_not_dead_any_more(rig: ReceiveRig) -> None:
    rig.receiver.peer_lost("P0")
    rig.receiver.remove_peer("P0")
    assert not rig.receiver.guard.is_dead("P0")
    rig.receiver.peer_lost("P1")
    rig.receiver.guard.mark_alive("P1")
    assert rig.receiver.guard.dead == set()


def test_a_sender_marks_the_dead_too(sending: SendRig) -> None:
    sending.track("R", 1, peer="P0")
    sending.states("DISCONNECT", 1)
    sending.poll()
    assert sending.sender.guard.is_dead("P0")


@pytest.mark.parametrize("call", ["remove", "cancel", "mark_dead", "mark_alive"])
def test_a_peer_is_a_str(call: str) -> None:
    with pytest.raises(TypeError, match="7"):
        getattr(PeerGuard(ScriptedAgent()), call)(7)


def test_who_has_no_handles_can_not_be_watched() -> None:
    with pytest.raises(TypeError, match="outstanding_of"):
        PeerGuard(ScriptedAgent(), object())  # type: ignore[arg-type]


def test_a_removal_that_goes_on_can_not_be_cancelled(
    rig: ReceiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, cancelled = threading.Event(), threading.Event()
    told: list[bool] = []

    def remove(peer: str) -> None:
        going.set()
        assert not cancelled.wait(0.2)  # it is told when the peer is gone, and not before

    def cancel() -> None:
        going.wait()
        told.append(rig.receiver.guard.cancel("P0"))
        cancelled.set()

    monkeypatch.setattr(rig.agent, "remove_remote_agent", remove)
    thread = threading.Thread(target=cancel)
    thread.start()
    assert rig.receiver.remove_peer("P0") is True
    thread.join()
    assert told == [False]
