"""Who may call what: everything from the owner's thread, little from others."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import pytest

from kvfast import Receiver, Sender, WrongThreadError
from kvfast.testing import ScriptedAgent
from tests.cases.runner import in_another_thread

Call = Callable[[Any], Any]

RECEIVER_CALLS: Final[dict[str, Call]] = {
    "track": lambda r: r.track("new", [[9]]),
    "post": lambda r: r.post("R", lambda: 1),
    "post_many": lambda r: r.post_many("R", [lambda: 1]),
    "add_notif": lambda r: r.add_notif("R", "P0", b"R:1"),
    "complete": lambda r: r.complete("R"),
    "expect_writes": lambda r: r.expect_writes("R"),
    "notified": lambda r: r.notified("R", 1),
    "extend": lambda r: r.extend("R", 1e9),
    "fail": lambda r: r.fail("R", "why"),
    "abort": lambda r: r.abort("R"),
    "poll": lambda r: r.poll(),
    "remove_peer": lambda r: r.remove_peer("P0"),
    "peer_lost": lambda r: r.peer_lost("P0"),
    "close": lambda r: r.close(0),
}
SENDER_CALLS: Final[dict[str, Call]] = {
    "track": lambda s: s.track("new", [[9]], lease_s=1),
    "notified": lambda s: s.notified("R", 1),
    "heartbeat": lambda s: s.heartbeat(["R"], 1),
    "poll": lambda s: s.poll(),
    "remove_peer": lambda s: s.remove_peer("P0"),
    "close": lambda s: s.close(0),
}
FROM_ANY_THREAD: Final = {
    Receiver: {"report_failure", "outstanding_of"},
    Sender: {"post", "fail", "outstanding_of"},
}


def public_methods(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))}


@pytest.fixture
def receiver(backend: ModuleType) -> Receiver:
    receiver = Receiver(ScriptedAgent(), backend=backend)
    receiver.track("R", [[1]], peer="P0")
    return receiver


@pytest.fixture
def sender(backend: ModuleType) -> Sender:
    sender = Sender(ScriptedAgent(), backend=backend)
    sender.track("R", [[1]], lease_s=1000, peer="P0")
    return sender


@pytest.mark.parametrize("method", RECEIVER_CALLS)
def test_receiver(receiver: Receiver, method: str) -> None:
    with pytest.raises(WrongThreadError):
        in_another_thread(lambda: RECEIVER_CALLS[method](receiver))
    # Nothing has changed: the request is tracked, alone, and nothing was started or ended for it.
    assert len(receiver) == 1
    results = receiver.poll()
    assert [*results.finished, *results.failed, *results.aborted] == []
    assert receiver.outstanding_of("P0") == 0
    receiver.complete("R")
    assert receiver.poll().finished == {"R"}


@pytest.mark.parametrize("method", SENDER_CALLS)
def test_sender(sender: Sender, method: str) -> None:
    with pytest.raises(WrongThreadError):
        in_another_thread(lambda: SENDER_CALLS[method](sender))
    assert len(sender) == 1
    results = sender.poll()
    assert [*results.finished, *results.expired] == []
    sender.notified("R", 1)
    assert sender.poll().finished == {"R"}


def test_what_other_threads_may_call(receiver: Receiver, sender: Sender) -> None:
    in_another_thread(lambda: receiver.report_failure("R", "why"))
    assert receiver.poll().failed == {"R"}
    posted: list[bool] = []
    in_another_thread(lambda: posted.append(sender.post("R", [])))
    assert posted == [True]
    in_another_thread(lambda: sender.fail("R", "why"))
    assert sender.post("R", []) is False


def test_every_method_is_listed() -> None:
    assert set(RECEIVER_CALLS) | FROM_ANY_THREAD[Receiver] == public_methods(Receiver)
    assert set(SENDER_CALLS) | FROM_ANY_THREAD[Sender] == public_methods(Sender)
