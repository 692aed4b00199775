"""A caller's mistakes with a Sender: a named error with the value in it, and nothing has changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from kvfast import ClosedError, DuplicateRequestError, WrongThreadError
from kvfast.results import SendResults
from kvfast.send import Sender
from kvfast.testing import ScriptedAgent
from tests.orchestration.rigs import SendRig, in_thread

Call = Callable[[Sender], Any]

OWNERS: dict[str, Call] = {
    "track": lambda s: s.track("X", [[1]], lease_s=1),
    "notified": lambda s: s.notified("R", 1),
    "heartbeat": lambda s: s.heartbeat(["R"], 1),
    "remove_peer": lambda s: s.remove_peer("P0"),
    "poll": lambda s: s.poll(),
}
ANYBODYS: dict[str, Call] = {
    "post": lambda s: s.post("R", [lambda: 1]),
    "fail": lambda s: s.fail("R", "a test"),
}


def named(calls: dict[str, Call]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("call", calls.values(), ids=calls.keys())


@named({**OWNERS, "close": lambda s: s.close(0)})
def test_a_call_from_another_thread(sending: SendRig, call: Call) -> None:
    sending.track("R", 1)
    with pytest.raises(WrongThreadError, match="Sender belongs to thread"):
        in_thread(lambda: call(sending.sender))
    assert list(sending.sender._requests) == ["R"]
    sending.states("DONE", 1)
    assert sending.poll().finished == {"R"}


@named({**OWNERS, **ANYBODYS})
def test_a_call_after_close(sending: SendRig, call: Call) -> None:
    sending.track("R")
    sending.sender.close(0)
    with pytest.raises(ClosedError, match="Sender is closed"):
        call(sending.sender)


def test_a_request_that_is_tracked_already(sending: SendRig) -> None:
    sending.track("R", lease_s=10)
    with pytest.raises(DuplicateRequestError, match="'R'"):
        sending.track("R", lease_s=100)
    sending.clock.advance(11)
    assert sending.poll().expired == {"R"}


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, "1", None, True])
def test_bad_leases(sending: SendRig, seconds: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"lease_s.*{seconds}"):
        sending.track("R", lease_s=seconds)
    assert "R" not in sending.sender
    sending.track("R", lease_s=10)
    with pytest.raises((TypeError, ValueError), match=f"extend_s.*{seconds}"):
        sending.sender.heartbeat(["R"], seconds)
    sending.clock.advance(10)
    assert sending.poll().expired == {"R"}


@pytest.mark.parametrize("blocks", [None, [1], [[-1]], [[True]], "1"])
def test_bad_blocks(sending: SendRig, blocks: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        sending.sender.track("R", blocks, lease_s=1)
    assert "R" not in sending.sender


@pytest.mark.parametrize("consumers", [0, -1, 1.0, True, None, "2"])
def test_expected_consumers_is_a_positive_int(sending: SendRig, consumers: Any) -> None:
    sending.track("R")
    with pytest.raises((TypeError, ValueError), match=str(consumers)):
        sending.sender.notified("R", consumers)
    assert sending.poll() == SendResults()


@pytest.mark.parametrize("req_ids", ["R", b"R", 5, ["R", 5]])
def test_bad_heartbeats(sending: SendRig, req_ids: Any) -> None:
    sending.track("R", lease_s=10)
    with pytest.raises(TypeError):
        sending.sender.heartbeat(req_ids, 100)
    sending.clock.advance(10)
    assert sending.poll().expired == {"R"}


@pytest.mark.parametrize("method", ["track", "post", "fail", "notified"])
def test_a_request_id_is_a_str(sending: SendRig, method: str) -> None:
    extra: dict[str, Any] = {"track": ([[1]],), "post": ([],), "fail": ("x",), "notified": (1,)}
    options = {"lease_s": 1} if method == "track" else {}
    with pytest.raises(TypeError, match="request id must be a str, not 7"):
        getattr(sending.sender, method)(7, *extra[method], **options)


@pytest.mark.parametrize(
    ("args", "options", "value"),
    [((5,), {}, "5"), (([5],), {}, "5"), (([lambda: 1], 5), {}, "5"), (([lambda: 1],), {"peer": 5}, "5")],
)
def test_bad_posts(sending: SendRig, args: Any, options: Any, value: str) -> None:
    sending.track("R")
    with pytest.raises(TypeError, match=value):
        sending.sender.post("R", *args, **options)
    assert sending.post("R", 1)  # it has not failed


def test_bad_peer(sending: SendRig) -> None:
    with pytest.raises(TypeError, match="5"):
        sending.track("R", peer=5)
    assert "R" not in sending.sender


@pytest.mark.parametrize("timeout_s", [-1, math.nan, "1", None])
def test_bad_timeout(sending: SendRig, timeout_s: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=str(timeout_s)):
        sending.sender.close(timeout_s)
    assert sending.poll() == SendResults()  # not closed


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="some"):
        Sender(ScriptedAgent(), scan="some")
