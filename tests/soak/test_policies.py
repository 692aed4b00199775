"""What tells the policies apart, without processes: one scripted agent, the same faults, three answers."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvfast.testing import ScriptedAgent
from kvfast.testing.soak.policies import Ended, Policy, make_policy
from kvfast.testing.soak.settings import POLICIES, SoakSettings


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """Drop here the tables that a test leaves with handles in flight, not in the middle of another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def start(policy_name: str, backend: str = "python") -> tuple[ScriptedAgent, Policy, list[Any]]:
    """Return an agent and a policy with one request of two handles in flight, from two ranks."""
    agent = ScriptedAgent()
    policy = make_policy(agent, agent, SoakSettings(policy=policy_name, backend=backend, lost_s=3600))
    policy.track("r", [1], ["a", "b"], wrapped=False, read_before=None)
    handles = []
    for peer in ("a", "b"):
        handles.append(agent.prepare(peer=peer))
        assert policy.post("r", peer, [lambda: handles[-1]], agent.transfer)
    return agent, policy, handles


def poll(policy: Policy) -> Ended:
    """Poll often enough for what a policy does in two steps."""
    found: tuple[list[str], list[str], list[str]] = [], [], []
    for _ in range(3):
        for into, some in zip(found, policy.poll()):
            into.extend(some)
    return Ended(*found)


@pytest.mark.parametrize("name", POLICIES)
class TestAll:
    def test_finished_when_all_handles_are_done(self, name: str) -> None:
        agent, policy, (a, b) = start(name)
        agent.set_states({a: "DONE"})
        assert poll(policy) == ([], [], [])
        agent.set_states({b: "DONE"})
        assert poll(policy) == (["r"], [], [])
        assert sorted(agent.released) == sorted([a, b])
        assert (policy.waiting, policy.left_handles) == (0, 0)

    def test_an_abort_waits_for_the_handles(self, name: str) -> None:
        agent, policy, (a, b) = start(name)
        policy.abort("r")
        agent.set_states({a: "DONE"})
        assert poll(policy) == ([], [], [])
        agent.set_states({b: "DONE"})
        assert poll(policy) == ([], [], ["r"])

    def test_all_producers_notifications_finish_a_push(self, name: str) -> None:
        agent = ScriptedAgent()
        policy = make_policy(agent, agent, SoakSettings(policy=name, backend="python"))
        policy.track("r", [1], ["a", "b"], wrapped=False, read_before=None)
        policy.expect_writes("r")
        policy.notified("r", 2, failed=False, peer="a")
        assert poll(policy) == ([], [], [])
        policy.notified("r", 2, failed=False, peer="b")
        assert poll(policy) == (["r"], [], [])


Setup = Callable[[ScriptedAgent, Policy, list[Any]], None]


def a_sibling_is_in_flight(agent: ScriptedAgent, policy: Policy, handles: list[Any]) -> None:
    agent.set_states({handles[0]: "DISCONNECT"})


def a_peer_was_removed(agent: ScriptedAgent, policy: Policy, handles: list[Any]) -> None:
    agent.set_states({handles[0]: "NOT_FOUND", handles[1]: "DONE"})


@pytest.mark.parametrize(
    ("name", "setup", "given_back"),
    [
        ("first-error", a_sibling_is_in_flight, True),
        ("first-error", a_peer_was_removed, True),
        ("release-is-drain", a_sibling_is_in_flight, False),
        ("release-is-drain", a_peer_was_removed, True),
        ("kvfast", a_sibling_is_in_flight, False),
        ("kvfast", a_peer_was_removed, False),
    ],
)
def test_when_blocks_that_may_still_be_written_are_given_back(
    name: str, setup: Setup, given_back: bool
) -> None:
    agent, policy, handles = start(name)
    setup(agent, policy, handles)
    assert poll(policy).failed == (["r"] if given_back else [])


@pytest.mark.parametrize(("name", "given_back"), [(n, n != "kvfast") for n in POLICIES])
def test_when_blocks_that_peers_write_are_given_back(name: str, given_back: bool) -> None:
    agent = ScriptedAgent()
    policy = make_policy(agent, agent, SoakSettings(policy=name, backend="python"))
    policy.track("r", [1], ["a", "b"], wrapped=False, read_before=None)
    policy.expect_writes("r")
    policy.peer_lost("a")
    assert poll(policy).failed == (["r"] if given_back else [])
    policy.notified("r", 2, failed=False, peer="b")
    assert poll(policy).failed == ([] if given_back else ["r"])


def test_a_quarantine_is_counted_in_handles_blocks_and_seconds() -> None:
    agent = ScriptedAgent()
    policy = make_policy(agent, agent, SoakSettings(backend="python", lost_s=0))
    policy.track("r", [1, 2], ["a"], wrapped=False, read_before=None)
    handle = agent.prepare(peer="a")
    policy.post("r", "a", [lambda: handle], agent.transfer)
    agent.set_states({handle: "NOT_FOUND"})
    assert poll(policy).failed == ["r"]
    summary = policy.quarantine.summary()
    assert (summary["handles"], summary["requests"], summary["blocks"]) == (1, 1, 2)
