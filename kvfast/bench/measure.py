"""A run of all that ``kvfast bench`` measures, in steps of about the same length."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

from kvfast_ext import cython_available, select_backend
from kvfast_ext.errors import BackendUnavailableError

from . import bare_loop, real, simulated
from .bare_loop import BareLoop
from .drains import Drains
from .errors import BenchError
from .machine import machine
from .race import Burst, Race
from .result import DRAIN, IN_FLIGHT, REAL, SIMULATED, BenchResult, Row
from .subjects import ALL, LIMIT, LOOP, PYTHON, WATCH, limits, racers, sweepers

REAL_HANDLES: Final = (1, 4, 16, 64, 256, 1_024, 4_096)
SIMULATED_HANDLES: Final = (1, 10, 100, 1_000, 10_000, 100_000)
SIMULATED_DRAIN: Final = 1_000
_SETS: Final = 2
_SHORTEST_BURST: Final = 2_000  # handles that are asked in a burst, at least, where no clock ticks finer


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and for about how long in all.

    Attributes
    ----------
    seconds : float
        Time for measuring; starting processes and putting transfers in flight comes on top.
    nixl : bool
        Whether to measure real transfers too, where NIXL is there.
    real_handles, simulated_handles : tuple of int
        Numbers of handles in flight.
    """

    seconds: float = 30.0
    nixl: bool = True
    real_handles: tuple[int, ...] = REAL_HANDLES
    simulated_handles: tuple[int, ...] = SIMULATED_HANDLES

    @property
    def steps(self) -> int:
        """How many things are measured, each for as long."""
        return len(self.simulated_handles) + 1 + self.nixl * (len(self.real_handles) + 1)


Step = Callable[[str], object]


class Bench:
    """A run; ``on_step`` is told, before each step, what is measured now."""

    def __init__(self, plan: Plan, on_step: Step) -> None:
        self.plan = plan
        self.result = BenchResult(f"{datetime.now(timezone.utc):%Y-%m-%d}", machine())
        self._on_step = on_step
        self._backends = {"python": select_backend("python")}
        self._library: ctypes.CDLL | None = None
        if cython_available():
            self._backends["cython"] = select_backend("cython")
        else:
            self.result.skipped.append("cython: the compiled backend is not installed")

    def run(self) -> BenchResult:
        """Measure everything that can be measured here."""
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvfast-bench-"))
            self._build_limit(Path(folder))
            for handles in self.plan.simulated_handles:
                self._simulated_in_flight(handles)
            self._simulated_drain()
            link = self._open_link(stack)
            if link is not None:
                for handles in self.plan.real_handles:
                    self._real_in_flight(link, handles)
                self._real_drain(link)
        return self.result

    def _build_limit(self, folder: Path) -> None:
        try:
            self._library = bare_loop.build(folder)
        except (BenchError, OSError) as error:
            self.result.skipped.append(f"{LIMIT}: {error}")

    def _open_link(self, stack: ExitStack) -> real.Link | None:
        if not self.plan.nixl:
            self.result.skipped.append("real transfers: they were not asked for")
            return None
        try:
            return stack.enter_context(real.link())
        except BackendUnavailableError as error:
            self.result.skipped.append(f"real transfers: {error}")
            return None

    def _race(self, row: Row, subjects: dict[str, Burst]) -> None:
        end = "that are done" if row.what == DRAIN else "in flight"
        self._on_step(f"{row.handles:,} {row.where} transfers {end}")
        race = Race(subjects)
        race.run_for(self.plan.seconds / self.plan.steps)
        self.result.add(row, race.best, race.rounds)

    # ---- simulated transfers

    def _simulated_in_flight(self, handles: int) -> None:
        pollers = self._pollers(handles)
        for poller in pollers.values():
            poller.fill()
            poller.sweep()  # the first one asks about all, on any scan
        times = max(1, _SHORTEST_BURST // handles)
        subjects = {name: simulated.in_flight_burst(poller, times) for name, poller in pollers.items()}
        if self._library is not None:
            states = simulated.Arrays(handles).agent.states
            subjects[LIMIT] = bare_loop.simulated(self._library, states)
        self._race(Row(IN_FLIGHT, SIMULATED, handles), subjects)
        for poller in pollers.values():
            simulated.drain(poller)

    def _simulated_drain(self) -> None:
        handles = SIMULATED_DRAIN
        sets = [self._pollers(handles) for _ in range(_SETS)]
        subjects = {
            name: simulated.drain_burst([each[name] for each in sets]) for name in sets[0] if name != WATCH
        }
        self._race(Row(DRAIN, SIMULATED, handles), subjects)

    def _pollers(self, handles: int) -> dict[str, simulated.Poller]:
        found: dict[str, simulated.Poller] = {LOOP: simulated.SimulatedLoop(handles)}
        for name, backend, scan in self._scans():
            found[name] = simulated.SimulatedTable(backend, handles, scan)
        return found

    def _scans(self) -> Iterator[tuple[str, ModuleType, str]]:
        for subject in (PYTHON, ALL, WATCH):
            name, scan = subject.split()
            if name in self._backends:
                yield subject, self._backends[name], scan

    # ---- real ones

    def _real_in_flight(self, link: real.Link, handles: int) -> None:
        per_request = min(real.PER_REQUEST, handles)
        with real.in_flight(link, handles // per_request, per_request) as flight:
            subjects = racers(sweepers(flight, self._backends), limits(flight, self._bare(link)))
            self._race(Row(IN_FLIGHT, REAL, handles), subjects)

    def _real_drain(self, link: real.Link) -> None:
        backends = {f"{name} all": backend for name, backend in self._backends.items()}
        drains = Drains(link, backends)
        bursts = drains.bursts()
        bare = self._bare(link)
        if bare is not None:
            bursts[LIMIT] = partial(drains.bare, bare)
        self._race(Row(DRAIN, REAL, real.HANDLES), bursts)

    def _bare(self, link: real.Link) -> BareLoop | None:
        return None if self._library is None else BareLoop(self._library, link.binding)
