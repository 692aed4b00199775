"""Simulated transfers: what polling costs by itself, with no NIXL under it.

The compiled backend reads states from an array without the GIL. Who polls in Python, which is vLLM's
loop and the ``python`` backend, calls the methods of a stand-in for ``nixl_agent`` instead. It answers
from a list: less than NIXL's own two layers cost, so it flatters these two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol

from kvfast_ext import SimulatedAgent, backend_name
from kvfast_ext.states import IN_PROG, SUCCESS

from .errors import BenchError
from .race import Burst, calls, shortest
from .vllm_loop import SmallStats, VllmLoop

PER_REQUEST: Final = 4
_EMPTY_BURSTS: Final = 20

# Nothing waits here and no second thread works, so the thread's own CPU time is the time of the
# work, and a long burst is not spoiled by whoever else gets the core for a while.
cpu_clock = time.thread_time_ns


class _Telemetry(NamedTuple):
    xferDuration: int  # noqa: N815 - NIXL's names
    postDuration: int  # noqa: N815
    totalBytes: int  # noqa: N815
    descCount: int  # noqa: N815


class Arrays:
    """Simulated handles as arrays, which compiled code reads."""

    def __init__(self, handles: int) -> None:
        self.agent = SimulatedAgent(handles)
        self.ids = range(handles)

    def set_all(self, done: bool) -> None:
        """Let every handle be DONE, or in flight."""
        self.agent.states[:] = SUCCESS if done else IN_PROG


class StandIn:
    """Simulated handles behind the methods of ``nixl_agent``, for who polls in Python."""

    def __init__(self, handles: int) -> None:
        self.agent = self
        self.ids = range(1, handles + 1)
        self._states = ["PROC"] * (handles + 1)
        self._telemetry = _Telemetry(1, 1, 1, 1)

    def set_all(self, done: bool) -> None:
        """Let every handle be DONE, or in flight."""
        self._states[:] = ["DONE" if done else "PROC"] * len(self._states)

    def check_xfer_state(self, handle: int) -> str:
        return self._states[handle]

    def get_xfer_telemetry(self, handle: int) -> _Telemetry:  # noqa: ARG002 - NIXL's signature
        return self._telemetry

    def release_xfer_handle(self, handle: int) -> None: ...


class Poller(Protocol):
    """Somebody who polls simulated handles, four a request, and can be filled again and again."""

    handles: int

    def fill(self) -> None:
        """Put every handle in flight."""

    def end(self) -> None:
        """Let every handle reach DONE."""

    def sweep(self) -> Any:
        """Sweep once."""

    def sweep_into(self, stats: SmallStats) -> None:
        """Sweep once, and put the telemetry of what was DONE into statistics."""


class SimulatedTable:
    """A `Poller`: a table of a backend's."""

    def __init__(self, backend: ModuleType, handles: int, scan: str = "all") -> None:
        self.handles = handles
        self._engine = Arrays(handles) if backend_name(backend) == "cython" else StandIn(handles)
        self.agent: Any = self._engine.agent
        self._backend = backend
        self._table = backend.TransferTable(backend.bind(self.agent), scan=scan, full_scan_s=1e9)

    def fill(self) -> None:
        self._engine.set_all(done=False)
        for req_id, ids in _requests(self._engine.ids):
            self._table.add(req_id, *ids)

    def end(self) -> None:
        self._engine.set_all(done=True)

    def sweep(self) -> Any:
        return self._backend.pop_done_transfers(self._table)

    def sweep_into(self, stats: SmallStats) -> None:
        stats.record_all(self.sweep().transfers)


class SimulatedLoop:
    """A `Poller`: vLLM's loop."""

    def __init__(self, handles: int) -> None:
        self.handles = handles
        self._engine = StandIn(handles)
        self._loop = VllmLoop(self._engine, {}, SmallStats(), _refuse)

    def fill(self) -> None:
        self._engine.set_all(done=False)
        self._loop.transfers.update((req_id, list(ids)) for req_id, ids in _requests(self._engine.ids))

    def end(self) -> None:
        self._engine.set_all(done=True)

    def sweep(self) -> Any:
        return self._loop.sweep()

    def sweep_into(self, stats: SmallStats) -> None:
        self._loop.stats = stats
        self._loop.sweep()


def drain(poller: Poller) -> None:
    """Let every handle end, and take them out; BenchError unless each comes out, once."""
    poller.end()
    stats = SmallStats()
    poller.sweep_into(stats)
    check_drained(poller, stats)


def check_drained(poller: Poller, stats: SmallStats) -> None:
    """Raise BenchError unless a sweep has sampled every handle."""
    if len(stats.bytes) != poller.handles:
        raise BenchError(f"{len(stats.bytes)} of {poller.handles} simulated transfers are done")


def in_flight_burst(poller: Poller, times: int) -> Burst:
    """Return a burst of sweeps over filled pollers: seconds of one, an empty call taken off."""
    nothing = calls(_nothing, times, cpu_clock)
    # Its shortest: one that was interrupted would make a sweep look shorter than it is.
    overhead = min(nothing() for _ in range(_EMPTY_BURSTS))
    sweeps = calls(poller.sweep, times, cpu_clock)
    return lambda: sweeps() - overhead


def finished_burst(tables: Sequence[SimulatedTable]) -> Burst:
    """Return a burst that fills the tables and times their drains: seconds of the shortest."""

    def burst() -> float:
        for table in tables:
            table.fill()
            table.end()
        return shortest([table.sweep for table in tables], cpu_clock)

    return burst


def drain_burst(pollers: Sequence[Poller]) -> Burst:
    """Return the same for drains with statistics, which is what an engine does."""

    def burst() -> float:
        pairs = [(poller, SmallStats()) for poller in pollers]
        for poller, _ in pairs:
            poller.fill()
            poller.end()
        drains: list[Callable[[], object]] = [partial(poller.sweep_into, stats) for poller, stats in pairs]
        seconds = shortest(drains, cpu_clock)
        for poller, stats in pairs:
            check_drained(poller, stats)
        return seconds

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


def each(backend: ModuleType, handles: int, tables: int) -> list[SimulatedTable]:
    """Return some tables of one size."""
    return [SimulatedTable(backend, handles) for _ in range(tables)]


def _requests(ids: range) -> list[tuple[str, range]]:
    return [(f"request-{i}", ids[i : i + PER_REQUEST]) for i in range(0, len(ids), PER_REQUEST)]


def _nothing() -> None: ...


def _refuse(req_id: str, what: object) -> None:
    raise BenchError(f"{req_id}: {what!r} is no state of a simulated transfer")
