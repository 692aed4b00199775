"""The supervisor of a soak: starts all processes, does to them what decode asks for, leaves none behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

from kvfast.demo.errors import DeadlineError, DemoError
from kvfast.demo.process import LOOPBACK_ENV, Child, Message, uninterrupted

from .network import Network
from .policies import QuarantineLog
from .settings import SoakSettings

_START_S: Final = 600.0
_TICK_S: Final = 0.02
_DRAIN_S: Final = 10.0

Progress = Callable[[Message], None]


@dataclass(slots=True, eq=False)
class _Rank:
    """A process that serves a rank's share. ``replaces`` is the life that it stands in for, if any."""

    column: int
    key: int
    name: str
    child: Child
    ready: bool = False
    tally: Message = field(default_factory=dict)  # what it has counted, as it has last told
    stops: int = 0  # faults overlap: it is continued when the last of them is over
    intro: Message | None = None


class Supervisor:
    """The processes of one soak."""

    def __init__(self, settings: SoakSettings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._ranks: dict[int, _Rank] = {}
        self._spare: Child | None = None
        self._decode: Child | None = None
        self._decode_intro: Message = {}
        self._network = Network()
        self._broken: set[str] = set()
        self._decode_stops = 0
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> Message:
        """Run the soak; return decode's result, with what the ranks have counted."""
        with self._processes():
            result = self._converse()
            result["ranks"] = self._ask_ranks()
            killed = (rank for rank in self._ranks.values() if not rank.child.alive)
            result["killed_ranks"] = [{"name": rank.name, **rank.tally} for rank in killed]
            result["skipped"] = self._network.skipped
        return result

    @contextlib.contextmanager
    def _processes(self) -> Iterator[None]:
        try:
            with uninterrupted():
                if self._settings.network:
                    self._network.open()
                env = {**LOOPBACK_ENV, **self._network.env("decode")}
                self._decode = Child("decode", "kvfast.testing.soak.decode", [], env)
            for column in range(self._settings.ranks):
                self._launch(column, f"prefill{column}")
            yield
        finally:
            for child in (*(rank.child for rank in self._ranks.values()), self._spare, self._decode):
                if child is not None:
                    child.close()
            self._network.close()

    def _launch(self, column: int, name: str) -> None:
        """Give the process that waits the part of a rank, and have another one wait."""
        key = len(self._ranks)
        child = self._spare or self._start_spare()
        self._ranks[key] = _Rank(column, key, name, child)
        self._spare = None
        child.name = name
        child.send({"name": name, "key": key, "column": column})
        self._spare = self._start_spare()

    def _start_spare(self) -> Child:
        module = "prefill" if self._settings.mode == "pull" else "push_prefill"
        env = {**LOOPBACK_ENV, **self._network.env("ranks")}
        with uninterrupted():
            args = [json.dumps(asdict(self._settings))]
            self._spare = Child("a rank that waits", f"kvfast.testing.soak.{module}", args, env)
        return self._spare

    def _converse(self) -> Message:
        decode = self._running
        decode.send({"settings": asdict(self._settings), "network": self._network.faults})
        self._decode_intro = decode.receive(_START_S)["decode"]
        for rank in self._ranks.values():
            self._introduce(rank, rank.child.receive(_START_S))
        decode.send({"ranks": [rank.intro for rank in self._ranks.values()]})
        quiet_since = time.monotonic()
        while True:
            message = _try_receive(decode, _TICK_S)
            if message is not None:
                quiet_since = time.monotonic()
                if "result" in message:
                    result: Message = message["result"]
                    return result
                self._handle(message)
            elif time.monotonic() - quiet_since > self._settings.timeout_s:
                raise DeadlineError(f"decode said nothing for {self._settings.timeout_s:g} s")
            self._hear_ranks()
            self._do_timers()

    def _handle(self, message: Message) -> None:
        if "progress" in message:
            self._progress(message["progress"])
            return
        verb = message["do"]
        if verb == "stop-decode":
            self._stop_decode(message["seconds"])
            return
        if verb == "network":
            self._break_network(message["fault"], message["seconds"])
            return
        rank = self._ranks[message["key"]]
        if verb == "replace":
            self._hear(rank)
            rank.child.kill()
            self._running.send({"killed": rank.name})
            self._launch(rank.column, message["name"])
        elif verb == "remove-decode":
            self._stop_decode(message["seconds"])
            self._after(message["after"], lambda: _ask(rank, "remove-behind"))
        elif rank.child.alive:
            _signal(rank, verb)

    def _stop_decode(self, seconds: float) -> None:
        """Stop decode; it can ask for no other fault until it runs again."""
        decode = self._running
        if not self._decode_stops:
            decode.signal(signal.SIGSTOP, os.WSTOPPED)
        # Orders that were on their way may ask for another stop meanwhile: that one only lasts longer.
        self._decode_stops += 1
        self._after(seconds, self._continue_decode)

    def _continue_decode(self) -> None:
        self._decode_stops -= 1
        if not self._decode_stops:
            self._running.signal(signal.SIGCONT, os.WCONTINUED)

    def _break_network(self, fault: str, seconds: float) -> None:
        if fault not in self._broken:  # one of a kind at a time
            self._broken.add(fault)
            self._network.begin(fault)
            self._after(seconds, lambda: self._mend_network(fault))

    def _mend_network(self, fault: str) -> None:
        self._broken.discard(fault)
        self._network.end(fault)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), action))

    def _do_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            heappop(self._timers)[2]()

    def _hear_ranks(self) -> None:
        for rank in self._ranks.values():
            if rank.child.alive:
                self._hear(rank)

    def _hear(self, rank: _Rank) -> None:
        """Take what a rank has said: its counts, or that it has started, which decode is told."""
        while (message := _try_receive(rank.child, 0.0)) is not None:
            if rank.ready:
                rank.tally = message["tally"]
            else:
                self._introduce(rank, message)
                self._running.send({"rank": rank.intro})

    def _introduce(self, rank: _Rank, message: Message) -> None:
        rank.ready = True
        rank.intro = {"column": rank.column, "key": rank.key, "name": rank.name, **message}
        rank.child.send({"decode": self._decode_intro})

    def _ask_ranks(self) -> list[Message]:
        """Return the counts of the ranks that live, once they hold nothing any more or the time is up."""
        deadline = time.monotonic() + self._settings.lost_s + 2 * self._settings.lease_s + _DRAIN_S
        living = [rank for rank in self._ranks.values() if rank.ready and rank.child.alive]
        for rank in living:
            os.kill(rank.child.pid, signal.SIGCONT)
        return [{"name": rank.name, **_drained_stats(rank, deadline)} for rank in living]

    @property
    def _running(self) -> Child:
        if self._decode is None:
            raise RuntimeError("decode was not started")
        return self._decode


def _ask(rank: _Rank, what: str) -> None:
    if rank.child.alive and rank.ready:
        rank.child.send({"ask": what})


def _drained_stats(rank: _Rank, deadline: float) -> Message:
    while True:
        _ask(rank, "stats")
        stats = _next_stats(rank)
        if not (stats["tracked"] or stats["left_handles"]) or time.monotonic() > deadline:
            return stats
        time.sleep(_TICK_S)


def _next_stats(rank: _Rank) -> Message:
    while True:
        message = rank.child.receive(_START_S)
        if "stats" in message:
            stats: Message = message["stats"]
            return stats


def _signal(rank: _Rank, verb: str) -> None:
    if verb == "stop":
        rank.stops += 1
        if rank.stops == 1:
            rank.child.signal(signal.SIGSTOP, os.WSTOPPED)
    else:
        rank.stops -= 1
        if rank.stops == 0:
            rank.child.signal(signal.SIGCONT, os.WCONTINUED)


def _try_receive(child: Child, timeout_s: float) -> Message | None:
    try:
        return child.receive(timeout_s)
    except DeadlineError:
        return None


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a soak found."""

    settings: SoakSettings
    measured: Message
    seconds: float

    @property
    def problems(self) -> dict[str, int]:
        """What must not have happened, and how often it did."""
        measured = self.measured
        ranks = measured["ranks"]
        everyone = [*ranks, *measured["killed_ranks"]]
        return {
            "corrupted": measured["corrupted"],
            "lost": len(measured["lost"]) + sum(rank["tracked"] for rank in ranks),
            "reported twice": measured["twice"] + sum(rank.get("twice", 0) for rank in everyone),
            "leaked": max(measured["leaked"], measured["left_handles"])
            + sum(rank["left_handles"] for rank in ranks),
        }

    @property
    def quarantine(self) -> dict[str, float]:
        """Quarantine at decode and at the ranks, the killed ones included, together."""
        held = [part for part in self._parts("quarantine") if part["requests"]]
        parts = held or [QuarantineLog().summary()]
        how = {"seconds_min": min, "seconds_max": max}
        return {name: how.get(name, sum)(part[name] for part in parts) for name in parts[0]}

    @property
    def injected(self) -> dict[str, int]:
        """How many faults of each kind there were, at decode and at the ranks."""
        total: Counter[str] = Counter()
        for part in self._parts("injected"):
            total.update(part)
        return dict(sorted(total.items()))

    @property
    def ok(self) -> bool:
        """Whether none of it did, and the soak came to its end."""
        return not any(self.problems.values()) and not self.measured["stuck"]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "ok": self.ok,
            "problems": self.problems,
            "seconds": round(self.seconds, 1),
            **{k: v for k, v in self.measured.items() if k not in ("seconds", "problems")},
            "injected": self.injected,
            "faults": sum(self.injected.values()),
            "quarantine": self.quarantine,
            "settings": asdict(self.settings),
        }

    def _parts(self, name: str) -> list[dict[str, Any]]:
        """Return what decode and each rank have told under a name; not all of them tell everything."""
        tellers = [self.measured, *self.measured["ranks"], *self.measured["killed_ranks"]]
        return [teller[name] for teller in tellers if name in teller]


def run_soak(settings: SoakSettings, progress: Progress | None = None) -> SoakResult:
    """Run one soak; no process of it is left when this returns or raises.

    Raises
    ------
    DemoError
        If a process ended that should not, or said nothing for too long.
    """
    begin = time.monotonic()
    measured = Supervisor(settings, progress or (lambda _message: None)).run()
    return SoakResult(settings, measured, time.monotonic() - begin)


__all__ = ["DemoError", "SoakResult", "SoakSettings", "run_soak"]
