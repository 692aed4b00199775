"""Lines that no other test comes to: small promises, each with the reason why it is there."""

from __future__ import annotations

import pytest

import kvfast
from kvfast.peers import PeerGuard
from kvfast.testing import FakeClock, ScriptedAgent
from tests.orchestration.rigs import ReceiveRig


class Users:
    """Somebody with handles of some peers outstanding."""

    def __init__(self, **outstanding: int) -> None:
        self.outstanding = outstanding

    def outstanding_of(self, peer: str) -> int:
        return self.outstanding.get(peer, 0)


def test_one_that_is_watched_twice_counts_once() -> None:
    users = Users(P0=2)
    guard = PeerGuard(ScriptedAgent(), users)
    guard.watch(users)
    assert guard.outstanding_of("P0") == 2


def test_a_removal_that_is_taken_back_while_another_one_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    users = Users(P0=1, P1=1)
    agent = ScriptedAgent()
    guard = PeerGuard(agent, users)
    guard.remove("P0")
    guard.remove("P1")
    remove = agent.remove_remote_agent

    def cancelling(name: str) -> None:
        guard.cancel("P1")
        remove(name)

    monkeypatch.setattr(agent, "remove_remote_agent", cancelling)
    users.outstanding.clear()
    guard.settle()
    assert agent.removed == ["P0"]


def test_a_peer_that_dies_again_and_again_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    guard = PeerGuard(ScriptedAgent(), clock=FakeClock())
    for _ in range(100):
        guard.mark_dead("P0")
        guard.mark_alive("P0")
    assert guard.stats.snapshot()["dead_peers"] == 100
    assert 0 < len(caplog.records) < 100


def test_ops_tell_how_states_are_read(rig: ReceiveRig) -> None:
    assert rig.receiver.ops.kind == "python"
    assert rig.receiver.ops.reason


def test_names_of_the_package() -> None:
    assert kvfast.BACKEND in ("cython", "python")
    assert set(kvfast.__all__) <= set(dir(kvfast))
    with pytest.raises(AttributeError, match="module 'kvfast' has no attribute 'nothing'"):
        kvfast.nothing  # noqa: B018
