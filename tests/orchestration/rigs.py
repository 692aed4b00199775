"""A Receiver or a Sender over a scripted agent and a clock that stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kvfast.receive import Receiver
from kvfast.results import ReceiveResults, SendResults
from kvfast.send import Sender
from kvfast.testing import FakeClock, ScriptedAgent

NOBODY: frozenset[str] = frozenset()


class Rig:
    """What both kinds have."""

    def __init__(self) -> None:
        self.agent = ScriptedAgent()
        self.clock = FakeClock()
        self.slept = 0.0
        self.misused = False  # a test that misuses a handle says so

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.clock.advance(seconds)

    def prepares(self, handles: Iterable[int], peer: str | None = None) -> list[Callable[[], Any]]:
        return [partial(self.agent.prepare, key, peer=peer) for key in handles]

    def finish(self, poll: Callable[[], object]) -> None:
        """Let everything end; raise if a handle was misused, or is never released."""
        for _ in range(3):  # a LOST handle's quarantine may begin with the first poll
            for handle in self.agent.unreleased:
                self.agent.set_state(handle, "DONE")
                self.agent.allow_release(handle)
            poll()
            self.clock.advance(1000)
        if not self.misused:
            self.agent.assert_drained()

    def states(self, state: str, *handles: int) -> None:
        self.agent.set_states(dict.fromkeys(handles, state))


class ReceiveRig(Rig):
    """A Receiver."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        options = {"clock": self.clock, "sleep": self.sleep, **options}
        self.receiver = Receiver(self.agent, **options)

    def track(
        self, req_id: str, *handles: int, blocks: Sequence[Sequence[int]] = ((1,),), **options: Any
    ) -> None:
        """Track a request and post handles for it."""
        self.receiver.track(req_id, blocks, **options)
        if handles:
            assert self.post(req_id, *handles)

    def post(self, req_id: str, *handles: int, peer: str | None = None) -> bool:
        return self.receiver.post_many(req_id, self.prepares(handles, peer), peer=peer)

    def poll(self) -> ReceiveResults:
        return self.receiver.poll()

    def count(self, name: str) -> Any:
        return self.receiver.stats.snapshot()[name]


class SendRig(Rig):
    """A Sender."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        options = {"clock": self.clock, "sleep": self.sleep, **options}
        self.sender = Sender(self.agent, **options)

    def track(self, req_id: str, *handles: int, lease_s: float = 30.0, **options: Any) -> None:
        """Track a request and post handles for it."""
        self.sender.track(req_id, [[1]], lease_s=lease_s, **options)
        if handles:
            assert self.post(req_id, *handles)

    def post(self, req_id: str, *handles: int, peer: str | None = None) -> bool:
        return self.sender.post(req_id, self.prepares(handles, peer), peer=peer)

    def poll(self) -> SendResults:
        return self.sender.poll()

    def count(self, name: str) -> Any:
        return self.sender.stats.snapshot()[name]


class Unshowable(RuntimeError):
    """Raises when it is to be shown."""

    def __repr__(self) -> str:
        raise ValueError("no repr")


def broken() -> Any:
    """Fail to prepare a transfer."""
    raise RuntimeError("no descriptors")


def ends(results: ReceiveResults) -> tuple[set[str], set[str], set[str]]:
    """Return finished, failed, aborted."""
    return set(results.finished), set(results.failed), set(results.aborted)


def in_thread(call: Callable[[], Any]) -> Any:
    """Return what a call in another thread returns, or raise what it raises."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((call(), None))
        except BaseException as error:
            outcome.extend((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
