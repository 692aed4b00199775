"""The scripted agent: it answers as its script says, and no misuse of a handle escapes it."""

from __future__ import annotations

import doctest
from types import ModuleType
from typing import Any

import pytest

import kvfast.testing.clock
import kvfast.testing.scripted_agent
from kvfast.agent import Agent
from kvfast.testing import (
    FakeClock,
    ScriptedAgent,
    ScriptedHandle,
    nixlBackendError,
    nixlInvalidParamError,
    nixlNotFoundError,
    nixlRemoteDisconnectError,
    nixlRepostActiveError,
)
from kvfast_ext import states


@pytest.fixture(params=[False, True], ids=["ints", "objects"])
def agent(request: pytest.FixtureRequest) -> ScriptedAgent:
    return ScriptedAgent(handle_objects=request.param)


def posted(agent: ScriptedAgent, key: int = 101, **options: Any) -> Any:
    handle = agent.prepare(key, **options)
    agent.transfer(handle)
    return handle


def test_it_is_an_agent(agent: ScriptedAgent) -> None:
    accepted: Agent = agent  # for the type checker
    assert all(callable(getattr(accepted, name)) for name in vars(Agent) if not name.startswith("_"))


def test_kinds_of_handles() -> None:
    assert ScriptedAgent().prepare(101) == 101
    handle = ScriptedAgent(handle_objects=True).prepare(101)
    assert isinstance(handle, ScriptedHandle)
    assert (handle._handle, handle._released) == (101, False)
    assert repr(handle) == "ScriptedHandle(101, released=False)"
    handle.release()
    handle.release()  # as NIXL's: the second does nothing
    assert handle._agent.released == [101]
    handle._agent.assert_drained()


# ---- the script


def test_states_last_until_told_otherwise(agent: ScriptedAgent) -> None:
    handle = posted(agent)
    assert [agent.check_xfer_state(handle) for _ in range(3)] == ["PROC"] * 3
    agent.set_states({101: "DONE"})
    assert [agent.check_xfer_state(handle) for _ in range(2)] == ["DONE"] * 2
    agent.set_state(101, "ERR")
    assert agent.check_xfer_state(handle) == "ERR"
    assert agent.checks == 6


def test_states_in_a_row(agent: ScriptedAgent) -> None:
    agent.set_state(101, "PROC", "NOT_FOUND", "DONE")  # before there is a handle
    handle = posted(agent)
    assert agent.next_answer(101) == "PROC"
    assert agent.last_answer(101) is None
    assert agent.check_xfer_state(handle) == "PROC"
    with pytest.raises(nixlNotFoundError):
        agent.check_xfer_state(handle)
    assert agent.last_answer(handle) == "NOT_FOUND"
    assert [agent.check_xfer_state(handle) for _ in range(2)] == ["DONE"] * 2
    agent.release_xfer_handle(handle)


@pytest.mark.parametrize(
    ("state", "error", "code"),
    [
        ("NOT_FOUND", nixlNotFoundError, states.NOT_FOUND),
        ("DISCONNECT", nixlRemoteDisconnectError, states.REMOTE_DISCONNECT),
        ("BACKEND", nixlBackendError, states.BACKEND),
        ("BOOM", RuntimeError, states.ERR_EXCEPTION),
        (KeyError, KeyError, states.ERR_EXCEPTION),
        (nixlNotFoundError("now"), nixlNotFoundError, states.NOT_FOUND),
        (KeyboardInterrupt(), KeyboardInterrupt, states.ERR_EXCEPTION),
    ],
)
def test_states_that_raise(
    agent: ScriptedAgent, state: Any, error: type[BaseException], code: int, backend: ModuleType
) -> None:
    agent.set_state(101, state)
    handle = posted(agent)
    with pytest.raises(error) as raised:
        agent.check_xfer_state(handle)
    assert states.code_of_exception(raised.value) == code
    if code != states.ERR_EXCEPTION:
        assert backend.bind(agent).status(handle)[0] == code


@pytest.mark.parametrize("states", [["done"], [None], ["DONE", 7], [], [str]])
def test_what_is_no_state(agent: ScriptedAgent, states: list[Any]) -> None:
    with pytest.raises(ValueError, match="state"):
        agent.set_state(101, *states)
    assert agent.next_answer(101) == "PROC"


def test_releases_that_are_refused(agent: ScriptedAgent) -> None:
    agent.set_state(101, "DONE")
    handle = posted(agent)
    agent.check_xfer_state(handle)
    agent.refuse_release(101, error=nixlBackendError("busy"))
    with pytest.raises(nixlBackendError, match="busy"):
        agent.release_xfer_handle(handle)
    assert agent.released == []
    agent.allow_release(101)
    agent.release_xfer_handle(handle)
    assert agent.released == [101]
    agent.assert_drained()


def test_transfers_that_are_refused(agent: ScriptedAgent) -> None:
    agent.refuse_transfer(101)
    handle = agent.prepare(101)
    with pytest.raises(RuntimeError, match="transfer refused"):
        agent.transfer(handle)
    assert agent.posted == []
    agent.release_xfer_handle(handle)  # it was never posted
    agent.assert_drained()


def test_telemetry(agent: ScriptedAgent) -> None:
    handle = posted(agent)
    agent.set_telemetry(101, xfer_us=5, post_us=6, n_bytes=7, descriptors=8)
    found = agent.get_xfer_telemetry(handle)
    assert (found.xferDuration, found.postDuration, found.totalBytes, found.descCount) == (5, 6, 7, 8)
    agent.omit_telemetry(101)
    assert agent.get_xfer_telemetry(handle) is None
    agent.refuse_telemetry(101, error=KeyError("none"))
    with pytest.raises(KeyError):
        agent.get_xfer_telemetry(handle)
    _end(agent, handle)


def test_notifications(agent: ScriptedAgent) -> None:
    agent.send_notif("P0", b"one")
    agent.refuse_notifs("P0", "P1")
    with pytest.raises(RuntimeError, match="notification refused"):
        agent.send_notif("P0", b"two")
    agent.allow_notifs("P0")
    agent.send_notif("P0", b"three")
    assert agent.sent == [("P0", b"one"), ("P0", b"three")]
    agent.deliver_notif("P1", b"a")
    agent.deliver_notif("P1", b"b")
    assert agent.get_new_notifs() == {"P1": [b"a", b"b"]}
    assert agent.get_new_notifs() == {}


def test_a_transfers_notification_leaves_with_the_first_check_that_says_done(agent: ScriptedAgent) -> None:
    handle = agent.initialize_xfer("READ", None, None, "P0", b"R:1")
    agent.transfer(handle)
    key = agent.posted[0]
    agent.set_state(key, "PROC", "DONE")
    agent.check_xfer_state(handle)
    assert agent.sent == []
    agent.check_xfer_state(handle)
    agent.check_xfer_state(handle)
    assert agent.sent == [("P0", b"R:1")]
    agent.release_xfer_handle(handle)


def test_ids_are_free_again_after_the_release(agent: ScriptedAgent) -> None:
    handle = posted(agent)
    with pytest.raises(ValueError, match="101 is in use"):
        agent.prepare(101)
    agent.refuse_telemetry(101)
    _end(agent, handle)
    again = posted(agent)
    assert agent.check_xfer_state(again) == "PROC"  # the old script is gone
    assert agent.get_xfer_telemetry(again) is not None
    _end(agent, again)
    assert agent.released == [101, 101]
    agent.assert_drained()


def test_free_ids(agent: ScriptedAgent) -> None:
    agent.prepare(1)
    handles = [agent.prepare() for _ in range(3)]
    assert len({getattr(handle, "_handle", handle) for handle in handles} - {1}) == 3


# ---- misuse


def test_release_in_flight(agent: ScriptedAgent) -> None:
    agent.release_xfer_handle(posted(agent))  # NIXL says nothing either
    with pytest.raises(AssertionError, match="handle 101 was released in flight"):
        agent.assert_clean()


def test_release_after_a_check_that_said_proc(agent: ScriptedAgent) -> None:
    handle = posted(agent)
    agent.check_xfer_state(handle)
    agent.set_state(101, "DONE")  # nobody has seen that
    agent.release_xfer_handle(handle)
    with pytest.raises(AssertionError, match="in flight"):
        agent.assert_clean()


def test_a_refused_release_in_flight_counts_too(agent: ScriptedAgent) -> None:
    handle = posted(agent)
    agent.refuse_release(101)
    with pytest.raises(RuntimeError):
        agent.release_xfer_handle(handle)
    assert agent.violations == ["handle 101 was released in flight"]
    agent.allow_release(101)
    _end(agent, handle)


def test_use_after_the_release(agent: ScriptedAgent) -> None:
    handle = posted(agent)
    _end(agent, handle)
    for use in (
        agent.release_xfer_handle,
        agent.check_xfer_state,
        agent.get_xfer_telemetry,
        agent.transfer,
    ):
        with pytest.raises(nixlInvalidParamError):
            use(handle)
    assert agent.released == [101]
    assert agent.violations == [
        f"handle 101 was {how} after its release"
        for how in ("released", "asked for its state", "asked for telemetry", "posted")
    ]


def test_a_handle_that_never_was(agent: ScriptedAgent) -> None:
    with pytest.raises(nixlInvalidParamError):
        agent.check_xfer_state(7)
    assert agent.violations == []


def test_posting_in_flight(agent: ScriptedAgent) -> None:
    handle = posted(agent)
    with pytest.raises(nixlRepostActiveError):
        agent.transfer(handle)
    assert agent.violations == ["handle 101 was posted in flight"]
    _end(agent, handle)
    assert agent.posted == [101]


def test_a_handle_dropped_in_flight() -> None:
    agent = ScriptedAgent(handle_objects=True)
    posted(agent)
    assert agent.released == [101]
    assert agent.violations == ["handle 101 was dropped in flight"]


def test_a_handle_dropped_afterwards_is_released_by_its_finaliser() -> None:
    agent = ScriptedAgent(handle_objects=True)
    agent.set_states({101: "DONE"})
    agent.check_xfer_state(posted(agent))
    agent.prepare(102)
    assert agent.released == [101, 102]
    agent.assert_drained()


def test_a_finaliser_whose_release_is_refused_leaks() -> None:
    agent = ScriptedAgent(handle_objects=True)
    agent.refuse_release(101)
    agent.prepare(101)
    agent.assert_clean()
    with pytest.raises(AssertionError, match=r"never released: \[101\]"):
        agent.assert_drained()


def test_a_handle_marked_as_released_is_left_alone_by_its_finaliser() -> None:
    agent = ScriptedAgent(handle_objects=True)
    handle = posted(agent)
    handle._released = True
    del handle
    assert agent.released == []
    assert agent.in_flight == {101}


def test_a_peer_removed_under_a_transfer(agent: ScriptedAgent) -> None:
    flying, landed = posted(agent, 101, peer="P0"), posted(agent, 102, peer="P0")
    other = posted(agent, 103, peer="P1")
    agent.set_states({102: "DONE"})
    agent.check_xfer_state(landed)
    agent.remove_remote_agent("P0")
    assert agent.removed == ["P0"]
    assert agent.violations == ["peer P0 was removed with handle 101 in flight"]
    with pytest.raises(nixlNotFoundError):
        agent.check_xfer_state(flying)
    assert agent.check_xfer_state(other) == "PROC"
    for handle in (flying, landed, other):
        _end(agent, handle)


def test_the_with_block_raises(agent: ScriptedAgent) -> None:
    with pytest.raises(AssertionError, match="in flight"), agent:
        agent.release_xfer_handle(posted(agent))


def test_the_with_block_hides_no_exception(agent: ScriptedAgent) -> None:
    agent.release_xfer_handle(posted(agent))
    with pytest.raises(KeyError), agent:
        raise KeyError


def test_what_is_left(agent: ScriptedAgent) -> None:
    handle, unposted = posted(agent, 101), agent.prepare(102)
    assert agent.in_flight == {101}
    assert agent.unreleased == {101, 102}
    with pytest.raises(AssertionError, match=r"never released: \[101, 102\]"):
        agent.assert_drained()
    _end(agent, handle)
    agent.release_xfer_handle(unposted)
    agent.assert_drained()


def _end(agent: ScriptedAgent, handle: Any) -> None:
    agent.set_state(handle, "DONE")
    agent.check_xfer_state(handle)
    agent.release_xfer_handle(handle)


# ---- the clock, and the documents


def test_the_clock() -> None:
    clock = FakeClock(2)
    clock.advance(0)
    clock.advance(1.5)
    assert clock() == 3.5
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds"):
            clock.advance(seconds)
    with pytest.raises(TypeError, match="seconds"):
        clock.advance("1")  # type: ignore[arg-type]
    assert clock() == 3.5


@pytest.mark.parametrize("module", [kvfast.testing.clock, kvfast.testing.scripted_agent])
def test_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
