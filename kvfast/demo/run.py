"""The supervisor: starts all processes, does the fault to them, judges the result, leaves nothing behind."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Final

from .errors import DeadlineError
from .judge import DemoResult, judge
from .messages import sort_told
from .process import LOOPBACK_ENV, Child, Message, uninterrupted
from .rank import Rank
from .settings import DemoSettings

_TOLD_TIMEOUT_S: Final = 10.0
_TOLD_POLL_S: Final = 0.01

# What a living rank says at the end, and what of decode's result it must match.
_TOLD: Final = {"read": "landed_from", "finished": "finished_with"}
_SENDS: Final = {"finished": "landed_from"}


class Watcher:
    """Who follows a demo. Each method may be left as it is."""

    def progressed(self, finished: int, failed: int) -> None:
        """Hear how many requests have ended so far."""

    def serves_metrics(self, url: str) -> None:
        """Hear where the metrics are."""

    def judged(self, result: DemoResult) -> None:
        """Hear the result, while the processes and the metrics are still there."""


def run_demo(settings: DemoSettings, watcher: Watcher | None = None) -> DemoResult:
    """Run a demo; no process of it is left when this returns or raises.

    Raises
    ------
    BackendUnavailableError
        If NIXL, or what `settings` ask for, is not installed.
    DemoError
        If a process ended or failed, or if `DemoSettings.timeout_s` was not enough.
    """
    begin = time.monotonic()
    supervisor = Supervisor(settings, watcher or Watcher(), begin + settings.timeout_s)
    with supervisor.processes():
        try:
            measured = supervisor.converse()
            ranks = supervisor.ask_ranks(measured)
        except DeadlineError as error:
            so_far = supervisor.so_far
            text = f"the demo did not end within {settings.timeout_s:g} s (so far: {so_far}); {error}"
            raise DeadlineError(text) from error
        result = judge(settings, measured, ranks, time.monotonic() - begin)
        supervisor.watcher.judged(result)
    return result


class Supervisor:
    """The processes of one demo."""

    def __init__(self, settings: DemoSettings, watcher: Watcher, deadline: float) -> None:
        self._settings = settings
        self.watcher = watcher
        self._deadline = deadline
        self._ranks = [self._make_rank(n, f"prefill{n}") for n in range(settings.ranks)]
        victim = settings.victim
        self._spare = None if victim is None else self._make_rank(victim, f"spare{victim}")
        self._decode: Child | None = None
        self.so_far = "nothing yet"

    def _make_rank(self, rank: int, name: str) -> Rank:
        settings = self._settings
        return Rank(
            rank,
            blocks=settings.rank_blocks,
            block_bytes=settings.block_bytes,
            name=name,
            timeout_s=settings.timeout_s,
            module="kvfast.demo.writer" if settings.push else "kvfast.demo.prefill",
            options=(settings.backend, settings.scan) if settings.push else (),
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
            yield

    def converse(self) -> Message:
        """Give decode its task and do what it asks for, until it has a result."""
        for rank in self._all_ranks:
            rank.wait_ready(self._left_s)
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

    def ask_ranks(self, measured: Message) -> dict[str, Message]:
        """Return what each living rank was told (pull), or what became of its sends (push).

        Waits for as much as is expected: a notification travels.
        """
        deadline = min(self._deadline, time.monotonic() + _TOLD_TIMEOUT_S)
        ask, kinds = (_sends, _SENDS) if self._settings.push else (_told, _TOLD)
        return {
            rank.name: _wait(
                partial(ask, rank),
                {kind: len(measured[expected].get(rank.name, [])) for kind, expected in kinds.items()},
                deadline,
            )
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
            self.watcher.progressed(counts["finished"], counts["failed"])
        elif "metrics" in message:
            self.watcher.serves_metrics(message["metrics"])
        elif "meet" in message:
            for rank in self._all_ranks:
                rank.ask({"ask": "meet", **message["meet"]})
            self._running.send({"did": "meet"})
        else:
            self.so_far = f"after {message['do']} of rank {message['ranks']}"
            for number in message["ranks"]:
                {"stop": Rank.stop, "cont": Rank.cont, "kill": Rank.kill}[message["do"]](self._ranks[number])
            self._running.send({"did": message["do"]})


def _introduction(rank: Rank) -> Message:
    metadata = base64.b64encode(rank.metadata).decode()
    return {"rank": rank.rank, "name": rank.name, "address": rank.address, "metadata": metadata}


def _told(rank: Rank) -> Message:
    return sort_told(rank.notifs().get("decode", []))


def _sends(rank: Rank) -> Message:
    return rank.ask({"ask": "report"})


def _wait(ask: Callable[[], Message], expected: dict[str, int], deadline: float) -> Message:
    while True:
        said = ask()
        if all(len(said[kind]) >= count for kind, count in expected.items()) or time.monotonic() > deadline:
            return said
        time.sleep(_TOLD_POLL_S)
