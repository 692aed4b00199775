"""A caller's mistakes: a named error with the value in it, and nothing has changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvfast import ClosedError, DuplicateRequestError, UnknownRequestError, WrongThreadError
from kvfast.receive import Receiver
from kvfast.testing import ScriptedAgent
from tests.orchestration.rigs import ReceiveRig, ends, in_thread

Call = Callable[[Receiver], Any]

OF_A_REQUEST: dict[str, Call] = {
    "post": lambda r: r.post("X", lambda: 1),
    "post_many": lambda r: r.post_many("X", [lambda: 1]),
    "add_notif": lambda r: r.add_notif("X", "P0", b"X:1"),
    "complete": lambda r: r.complete("X"),
    "expect_writes": lambda r: r.expect_writes("X"),
    "fail": lambda r: r.fail("X", "a test"),
    "abort": lambda r: r.abort("X"),
}
OWNERS: dict[str, Call] = {
    **OF_A_REQUEST,
    "track": lambda r: r.track("X", [[1]]),
    "notified": lambda r: r.notified("X", 1),
    "remove_peer": lambda r: r.remove_peer("P0"),
    "peer_lost": lambda r: r.peer_lost("P0"),
    "poll": lambda r: r.poll(),
}


def named(calls: dict[str, Call]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("call", calls.values(), ids=calls.keys())


@named(OF_A_REQUEST)
def test_an_unknown_request(rig: ReceiveRig, call: Call) -> None:
    with pytest.raises(UnknownRequestError, match="'X'"):
        call(rig.receiver)
    assert rig.poll() == Receiver(ScriptedAgent()).poll()


@named({**OWNERS, "close": lambda r: r.close(0)})
def test_a_call_from_another_thread(rig: ReceiveRig, call: Call) -> None:
    rig.track("X", 1)
    with pytest.raises(WrongThreadError, match="Receiver belongs to thread"):
        in_thread(lambda: call(rig.receiver))
    assert list(rig.receiver._requests) == ["X"]
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"X"}, set(), set())


@named({**OWNERS, "report_failure": lambda r: r.report_failure("X", "a test")})
def test_a_call_after_close(rig: ReceiveRig, call: Call) -> None:
    rig.receiver.close(0)
    with pytest.raises(ClosedError, match="Receiver is closed"):
        call(rig.receiver)


def test_a_request_that_is_tracked_already(rig: ReceiveRig) -> None:
    rig.track("R", 1, blocks=[[1]])
    with pytest.raises(DuplicateRequestError, match="'R'"):
        rig.track("R", blocks=[[2]])
    rig.states("ERR", 1)
    assert rig.poll().invalid_block_ids == [[1]]


BAD_BLOCKS: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, "None"),
    (5, TypeError, "5"),
    ("12", TypeError, "12"),
    ([1, 2], TypeError, "1"),
    ([[1], 2], TypeError, "2"),
    (["12"], TypeError, "12"),
    ([b"12"], TypeError, "12"),
    ([[[1]]], TypeError, r"\[1\]"),
    ([["1"]], TypeError, "'1'"),
    ([[1.0]], TypeError, "1.0"),
    ([[True]], TypeError, "True"),
    ([[None]], TypeError, "None"),
    ([[1, -2]], ValueError, "-2"),
    ([{1, 2}], TypeError, "1, 2"),
    (np.array([[1, 2]]), TypeError, "1, 2"),
]


@pytest.mark.parametrize(("blocks", "error", "value"), BAD_BLOCKS)
def test_bad_blocks(rig: ReceiveRig, blocks: Any, error: type[Exception], value: str) -> None:
    with pytest.raises(error, match=value):
        rig.track("R", blocks=blocks)
    assert "R" not in rig.receiver


@pytest.mark.parametrize(
    "blocks", [[], [[]], [[0]], ((1, 2), (3,)), [range(1, 3)], [np.array([1, 2])], [[np.int64(4)]]]
)
def test_good_blocks(rig: ReceiveRig, blocks: Any) -> None:
    rig.track("R", blocks=blocks)
    rig.receiver.fail("R", "a test")
    found = rig.poll().invalid_block_ids
    assert found == [[int(block) for block in group] for group in blocks]
    assert all(type(block) is int for group in found for block in group)


@pytest.mark.parametrize("req_id", [None, 1, b"R", ["R"]])
@pytest.mark.parametrize("method", ["track", "post", "notified", "report_failure", "abort"])
def test_a_request_id_is_a_str(rig: ReceiveRig, method: str, req_id: Any) -> None:
    extra = {"track": ([[1]],), "post": (lambda: 1,), "notified": (1,), "report_failure": ("x",), "abort": ()}
    with pytest.raises(TypeError, match="request id must be a str"):
        getattr(rig.receiver, method)(req_id, *extra[method])


@pytest.mark.parametrize("message", ["R:1", None, 7, bytearray(b"R:1"), ["R"]])
def test_a_message_is_bytes(rig: ReceiveRig, message: Any) -> None:
    rig.track("R")
    with pytest.raises(TypeError, match="message must be bytes"):
        rig.receiver.add_notif("R", "P0", message)
    rig.receiver.complete("R")
    rig.poll()
    assert rig.agent.sent == []


@pytest.mark.parametrize(
    ("producers", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (1.0, TypeError),
        (True, TypeError),
        (None, TypeError),
        ("2", TypeError),
    ],
)
def test_producers_is_a_positive_int(rig: ReceiveRig, producers: Any, error: type[Exception]) -> None:
    rig.track("R")
    rig.receiver.expect_writes("R")
    with pytest.raises(error, match=str(producers)):
        rig.receiver.notified("R", producers)
    assert rig.poll() == Receiver(ScriptedAgent()).poll()


@pytest.mark.parametrize(
    ("options", "error", "value"),
    [
        ({"stall_after_s": 0}, ValueError, "0"),
        ({"stall_after_s": math.nan}, ValueError, "nan"),
        ({"stall_after_s": -1}, ValueError, "-1"),
        ({"stall_after_s": math.inf}, ValueError, "inf"),
        ({"stall_after_s": "1"}, TypeError, "'1'"),
        ({"scan": "some"}, ValueError, "some"),
        ({"backend": "fast"}, ValueError, "fast"),
        ({"backend": 5}, TypeError, "5"),
        ({"clock": 5}, TypeError, "5"),
        ({"sleep": 5}, TypeError, "5"),
        ({"quarantine": 30}, TypeError, "30"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], value: str) -> None:
    with pytest.raises(error, match=value):
        Receiver(ScriptedAgent(), **options)


def test_what_is_no_agent() -> None:
    with pytest.raises(TypeError, match="object"):
        Receiver(object())


@pytest.mark.parametrize(
    ("options", "error", "value"),
    [
        ({"peer": 5}, TypeError, "5"),
        ({"peer": bytearray(b"P0")}, TypeError, "P0"),
        ({"peer": b"\xff"}, ValueError, "xff"),
        ({"peer": ""}, ValueError, "''"),
        ({"peer": ["P0", 5]}, TypeError, "5"),
        ({"peer": ["P0", b""]}, ValueError, "b''"),
        ({"read_before": math.nan}, ValueError, "nan"),
        ({"read_before": math.inf}, ValueError, "inf"),
        ({"read_before": "1"}, TypeError, "'1'"),
        ({"read_before": True}, TypeError, "True"),
    ],
)
def test_bad_track_options(rig: ReceiveRig, options: Any, error: type[Exception], value: str) -> None:
    with pytest.raises(error, match=value):
        rig.track("R", **options)
    assert "R" not in rig.receiver


@pytest.mark.parametrize(
    ("args", "options", "value"),
    [
        ((5,), {}, "5"),
        (([5],), {}, "5"),
        (("ab",), {}, "ab"),
        (([lambda: 1], 5), {}, "5"),
        (([lambda: 1],), {"peer": 5}, "5"),
    ],
)
def test_bad_posts(rig: ReceiveRig, args: Any, options: Any, value: str) -> None:
    rig.track("R")
    with pytest.raises(TypeError, match=value):
        rig.receiver.post_many("R", *args, **options)
    assert rig.poll() == Receiver(ScriptedAgent()).poll()
    assert rig.post("R", 1)  # it has not failed


@pytest.mark.parametrize("timeout_s", [-1, math.nan, "1", None])
def test_bad_timeout(rig: ReceiveRig, timeout_s: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=str(timeout_s)):
        rig.receiver.close(timeout_s)
    assert rig.poll() == Receiver(ScriptedAgent()).poll()  # not closed


def test_a_backend_module_is_taken(backend: ModuleType) -> None:
    receiver = Receiver(ScriptedAgent(), backend=backend)
    assert receiver.stats.infos[0]["backend"] in backend.__name__
    with pytest.raises(ImportError, match="math"):
        Receiver(ScriptedAgent(), backend=math)


class Shouted(str):
    """An id of a caller's own type."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def test_an_id_of_a_type_of_its_own_is_taken_as_its_text(rig: ReceiveRig) -> None:
    rig.receiver.track(Shouted("R"), [[1]])
    rig.post("R", 1)
    rig.receiver.add_notif(Shouted("R"), "P", b"read")
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())
