"""The supervisor: starts all processes, does the fault to them, judges the result, leaves nothing behind."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Final

from .errors import DeadlineError
from .judge import DemoResult, judge
from .process import LOOPBACK_ENV, Child, Message, uninterrupted
from .rank import Rank
from .settings import DemoSettings

_NOTIF_TIMEOUT_S: Final = 10.0
_NOTIF_POLL_S: Final = 0.01

Progress = Callable[[int, int], None]  # finished, failed


def run_demo(settings: DemoSettings, progress: Progress | None = None) -> DemoResult:
    """Run a demo; no process of it is left when this returns or raises.

    Raises
    ------
    DemoError
        If a process ended or failed, or if `DemoSettings.timeout_s` was not enough.
    """
    begin = time.monotonic()
    supervisor = Supervisor(settings, progress or _ignore, begin + settings.timeout_s)
    try:
        with supervisor.processes():
            measured = supervisor.converse()
            notified = supervisor.notified(measured["read_from"])
    except DeadlineError as error:
        text = f"the demo did not end within {settings.timeout_s:g} s (so far: {supervisor.so_far}); {error}"
        raise DeadlineError(text) from error
    return judge(settings, measured, notified, time.monotonic() - begin)


def _ignore(_finished: int, _failed: int) -> None:
    pass


class Supervisor:
    """The processes of one demo."""

    def __init__(self, settings: DemoSettings, progress: Progress, deadline: float) -> None:
        self._settings = settings
        self._progress = progress
        self._deadline = deadline
        self._ranks = [self._make_rank(n, f"prefill{n}") for n in range(settings.ranks)]
        victim = settings.victim
        self._spare = None if victim is None else self._make_rank(victim, f"spare{victim}")
        self._decode: Child | None = None
        self.so_far = "nothing yet"

    def _make_rank(self, rank: int, name: str) -> Rank:
        blocks, block_bytes = self._settings.rank_blocks, self._settings.block_bytes
        return Rank(
            rank, blocks=blocks, block_bytes=block_bytes, name=name, timeout_s=self._settings.timeout_s
        )

    @contextlib.contextmanager
    def processes(self) -> Iterator[None]:
        """Start the ranks and decode; end all of them with the block."""
        with contextlib.ExitStack() as stack:
            for rank in self._all_ranks:
                stack.callback(rank.close)
                rank.launch()
            with uninterrupted():
                self._decode = Child("decode", "kvfast.demo.decode", [], LOOPBACK_ENV)
                stack.callback(self._decode.close)
            for rank in self._all_ranks:
                rank.wait_ready(self._left_s)
            yield

    def converse(self) -> Message:
        """Give decode its task and do what it asks for, until it has a result."""
        task = {
            "settings": asdict(self._settings),
            "ranks": [_introduction(rank) for rank in self._ranks],
            "spare": None if self._spare is None else _introduction(self._spare),
        }
        self._running.send(task)
        while True:
            message = self._running.receive(self._left_s)
            if "result" in message:
                result: Message = message["result"]
                return result
            self._handle(message)

    def notified(self, expected: dict[str, list[str]]) -> dict[str, list[str]]:
        """Return, by name of a living rank, the requests whose blocks it was told to free.

        Waits for as many as are expected: a notification travels.
        """
        deadline = min(self._deadline, time.monotonic() + _NOTIF_TIMEOUT_S)
        return {
            rank.name: _wait_freed(rank, len(expected.get(rank.name, [])), deadline)
            for rank in self._all_ranks
            if rank.alive
        }

    @property
    def _all_ranks(self) -> list[Rank]:
        return self._ranks if self._spare is None else [*self._ranks, self._spare]

    @property
    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    @property
    def _running(self) -> Child:
        if self._decode is None:
            raise RuntimeError("decode was not started")
        return self._decode

    def _handle(self, message: Message) -> None:
        if "progress" in message:
            counts = message["progress"]
            self.so_far = f"{counts['finished']} finished, {counts['failed']} failed"
            self._progress(counts["finished"], counts["failed"])
            return
        self.so_far = f"after {message['do']} of rank {message['ranks']}"
        for rank in message["ranks"]:
            {"stop": Rank.stop, "cont": Rank.cont, "kill": Rank.kill}[message["do"]](self._ranks[rank])
        self._running.send({"did": message["do"]})


def _introduction(rank: Rank) -> Message:
    metadata = base64.b64encode(rank.metadata).decode()
    return {"rank": rank.rank, "name": rank.name, "address": rank.address, "metadata": metadata}


def _wait_freed(rank: Rank, count: int, deadline: float) -> list[str]:
    while True:
        received = rank.notifs().get("decode", [])
        if len(received) >= count or time.monotonic() > deadline:
            return sorted(message.decode().rpartition(":")[0] for message in received)
        time.sleep(_NOTIF_POLL_S)
