"""The fault: one rank is stopped with transfers in flight, then killed, while a sibling is slow.

If the sibling were fast, its transfers would have ended long before the dead rank's fail, and a
Receiver that reports a failure at once would pass. So one surviving rank is stopped too, and continued
only after the failures have been seen: until then no request that has a share from it may be reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .engine import Engine, Request, Source
from .evidence import EARLY

_POLLS_WHILE_DEFERRED: Final = 50
_DEATH_UNSEEN_S: Final = 5.0  # then the Receiver is told; a disconnect shows in well under a second

Control = Callable[[str, list[int]], None]  # "stop", "kill" or "cont", and the ranks


@dataclass(slots=True)
class FaultReport:
    """What the fault did. ``in_flight_when_killed``: requests with a transfer by the killed rank."""

    killed: str
    in_flight_when_killed: list[str] = field(default_factory=list)
    told_of_death: bool = False
    deferred: int = 0


class Fault:
    """Break one rank of a running engine.

    Parameters
    ----------
    victim, spare : Source
        The agent that dies, and the one that serves its share afterwards.
    slow : Source or None
        A survivor to hold up; None if there is no other rank.
    control : callable
        Has it done to the ranks' processes, and returns when it has worked.
    keep_pending : int
        How many requests are not started before the victim is replaced, so that the spare has some.
    pause_s : float
        Time between two polls.
    death_unseen_s : float
        How long the Receiver has to find out by itself that the victim is dead.
    """

    def __init__(
        self,
        engine: Engine,
        control: Control,
        victim: Source,
        spare: Source,
        slow: Source | None,
        keep_pending: int,
        pause_s: float,
        death_unseen_s: float = _DEATH_UNSEEN_S,
    ) -> None:
        self._engine = engine
        self._control = control
        self._victim = victim
        self._spare = spare
        self._slow = slow
        self._keep_pending = keep_pending
        self._pause_s = pause_s
        self._death_unseen_s = death_unseen_s
        self._started_before: set[str] = set()
        self.report = FaultReport(victim.name)

    def carry_out(self) -> None:
        """Do all of it; afterwards the engine can go on."""
        slow = [] if self._slow is None else [self._slow.rank]
        self._poll_until(self._can_start)  # so that something is started with the stopped ranks
        self._control("stop", [self._victim.rank, *slow])
        # What a stopped rank had sent before may still arrive; what is started from now on can't be served.
        self._started_before = set(self._engine.outstanding)
        self._poll_until(self._only_stopped_ranks_left, start=True)
        self.report.in_flight_when_killed = self._engine.in_flight(self._victim)
        self._control("kill", [self._victim.rank])
        self._see_death()
        self._check_deferral()
        if slow:
            self._control("cont", slow)
        self._engine.replace(self._spare)

    def _poll_until(self, reached: Callable[[], bool], *, start: bool = False) -> None:
        # Ends or hangs by what the Receiver does; the supervisor's deadline is the way out of a hang.
        while not reached():
            if start:
                self._engine.step(self._keep_pending)
            else:
                self._engine.poll()
            time.sleep(self._pause_s)

    def _can_start(self) -> bool:
        return self._engine.can_start(self._keep_pending)

    def _only_stopped_ranks_left(self) -> bool:
        stopped = {self._victim.name} | ({self._slow.name} if self._slow else set())
        running = [s for s in self._engine.sources.values() if s.name not in stopped]
        return not self._can_start() and not any(map(self._engine.in_flight, running))

    def _see_death(self) -> None:
        unseen_until = time.monotonic() + self._death_unseen_s

        def seen() -> bool:
            if not self.report.told_of_death and time.monotonic() > unseen_until:
                self.report.told_of_death = True
                self._engine.process_ended(self._victim)
            return self._engine.has_lost(self._victim)

        self._poll_until(seen)

    def _check_deferral(self) -> None:
        """Poll while failed requests wait for the slow rank, and see that they do wait."""
        doomed = [self._engine.outstanding.get(req_id) for req_id in self.report.in_flight_when_killed]
        waiting = [request for request in doomed if request is not None and self._waits(request)]
        self.report.deferred = len(waiting)
        for _ in range(_POLLS_WHILE_DEFERRED):
            self._engine.poll()
            time.sleep(self._pause_s)
        for request in waiting:
            if request.req_id in self._started_before:
                continue  # its end, if it came, was checked by its bytes
            if request.req_id not in self._engine.outstanding:
                self._note(f"{request.req_id} was reported while a transfer of it was stopped")
            elif not self._waits(request):
                self._note(f"{request.req_id} let go of a transfer that was still running")

    def _waits(self, request: Request) -> bool:
        """Tell whether a survivor's transfer of the request is running, by the evidence."""
        others = [source for source in request.sources if source != self._victim]
        return any(self._engine.runs(request, source) for source in others)

    def _note(self, text: str) -> None:
        self._engine.problems.add(EARLY, text)
