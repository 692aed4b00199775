"""The fault: one rank is stopped with READs in flight, then killed, while a sibling is slow.

If the sibling were fast, its READs would have ended long before the dead rank's fail, and a backend
that reports a failure at once would pass. So one surviving rank is stopped too, and continued only
after the failures have been seen: until then no request that READs from it may be reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .engine import DecodeEngine, Request, Source
from .evidence import EARLY, BindingWitness

_SWEEPS_WHILE_DEFERRED: Final = 50

Control = Callable[[str, list[int]], None]  # "stop", "kill" or "cont", and the ranks


@dataclass(slots=True)
class FaultReport:
    """What the fault did."""

    killed: str
    in_flight_when_killed: int = 0
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
    pause_s : float
        Time between two sweeps.
    """

    def __init__(
        self,
        engine: DecodeEngine,
        binding: BindingWitness,
        control: Control,
        victim: Source,
        spare: Source,
        slow: Source | None,
        pause_s: float,
    ) -> None:
        self._engine = engine
        self._binding = binding
        self._control = control
        self._victim = victim
        self._spare = spare
        self._slow = slow
        self._pause_s = pause_s
        self._posted_before: set[str] = set()
        self.report = FaultReport(victim.name)

    def carry_out(self) -> None:
        """Do all of it; afterwards the engine can go on."""
        slow = [] if self._slow is None else [self._slow.rank]
        self._sweep_until(self._engine.can_post)  # so that something is posted to the stopped ranks
        self._control("stop", [self._victim.rank, *slow])
        # What a stopped rank had sent before may still arrive; READs from now on can't be served.
        self._posted_before = set(self._engine.outstanding)
        self._sweep_until(self._only_stopped_ranks_left, post=True)
        self.report.in_flight_when_killed = self._in_flight(self._victim)
        self._control("kill", [self._victim.rank])
        self._sweep_until(lambda: self._engine.table.outstanding_of(self._victim.name) == 0)
        self._check_deferral()
        if slow:
            self._control("cont", slow)
        self._engine.replace(self._spare)

    def _sweep_until(self, reached: Callable[[], bool], *, post: bool = False) -> None:
        # Ends or hangs by what the table does; the supervisor's deadline is the way out of a hang.
        while not reached():
            if post:
                self._engine.step()
            else:
                self._engine.sweep()
            time.sleep(self._pause_s)

    def _only_stopped_ranks_left(self) -> bool:
        stopped = {self._victim.name} | ({self._slow.name} if self._slow else set())
        running = [s for s in self._engine.sources.values() if s.name not in stopped]
        return not self._engine.can_post() and not any(map(self._in_flight, running))

    def _check_deferral(self) -> None:
        """Sweep while failed requests wait for the slow rank, and see that they do wait."""
        waiting = {r.req_id: r for r in self._engine.outstanding.values() if r.failing and self._waits(r)}
        self.report.deferred = len(waiting)
        for _ in range(_SWEEPS_WHILE_DEFERRED):
            self._engine.sweep()
            time.sleep(self._pause_s)
        for req_id, request in waiting.items():
            if req_id in self._posted_before:
                continue  # its end, if it came, was checked by its bytes
            if req_id not in self._engine.outstanding:
                self._engine.problems.add(EARLY, f"{req_id} was reported while a READ of it was stopped")
            elif not self._waits(request):
                self._engine.problems.add(EARLY, f"{req_id} let go of a READ that was still running")

    def _waits(self, request: Request) -> bool:
        """Tell whether NIXL itself says that a READ of the request is in progress."""
        table = self._engine.table
        handles = table.handles(request.req_id) if request.req_id in table else []
        return self._binding.count_in_flight(handles) > 0

    def _in_flight(self, source: Source) -> int:
        return self._binding.count_in_flight(self._engine.reads_of(source))
