"""Simulated transfers: what kvfast costs by itself, with nothing under it."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from bench.race import Burst, calls, shortest
from kvfast_ext import SimulatedAgent
from kvfast_ext.states import IN_PROG, SUCCESS

PER_REQUEST = 4

# Nothing waits here and no second thread works, so the thread's own CPU time is the time of the
# work, and a long burst is not spoiled by whoever else gets the core for a while.
cpu_clock = time.thread_time_ns


class SimulatedTable:
    """A table over `handles` simulated handles, four a request, that can be filled again and again."""

    def __init__(self, backend: ModuleType, handles: int, scan: str = "all") -> None:
        self.handles = handles
        self.agent = SimulatedAgent(handles)
        self._backend = backend
        self._table = backend.TransferTable(backend.bind(self.agent), scan=scan, full_scan_s=1e9)

    def fill(self) -> None:
        """Put every handle in flight."""
        self.agent.states[:] = IN_PROG
        for first in range(0, self.handles, PER_REQUEST):
            last = min(first + PER_REQUEST, self.handles)
            self._table.add(f"request-{first}", *range(first, last))

    def end(self) -> None:
        """Let every handle reach DONE."""
        self.agent.states[:] = SUCCESS

    def sweep(self) -> Any:
        """Sweep once."""
        return self._backend.pop_done_transfers(self._table)

    def drain(self) -> None:
        """Let every handle end, and take them out."""
        self.end()
        result = self.sweep()
        assert len(result.transfers) == self.handles, f"{len(result.transfers)} of {self.handles} are done"


def in_flight_burst(table: SimulatedTable, times: int) -> Burst:
    """Return a burst of sweeps over a filled table: seconds of one, an empty call taken off."""
    nothing = calls(_nothing, times, cpu_clock)
    sweeps = calls(table.sweep, times, cpu_clock)
    return lambda: sweeps() - nothing()


def finished_burst(tables: list[SimulatedTable]) -> Burst:
    """Return a burst that fills the tables and times their drains: seconds of the shortest."""

    def burst() -> float:
        for table in tables:
            table.fill()
            table.end()
        return shortest([table.sweep for table in tables], cpu_clock)

    return burst


def bookkeeping_burst(items: int) -> Burst:
    """Return a burst of the least that Python does for a finished handle: out of a dict, into a list."""

    def burst() -> float:
        table: dict[int, None] = dict.fromkeys(range(items))
        done: list[None] = []

        def move_all() -> None:
            for key in range(items):
                item = table.pop(key)
                done.append(item)

        return shortest([move_all], cpu_clock)

    return burst


def _nothing() -> None: ...


def each(backend: ModuleType, handles: int, tables: int) -> list[SimulatedTable]:
    """Return some tables of one size."""
    return [SimulatedTable(backend, handles) for _ in range(tables)]
