"""A busy Python thread beside the poller: what each of the two gets done.

NIXL's binding gives up the GIL at every call. A poller that calls it once a handle then waits for the
GIL once a handle, up to the interpreter's switch interval (5 ms) each time; one that makes all calls
in one go waits once a sweep.

Without the GIL a poller and a Python thread really run side by side, and want a core each; NIXL's
progress thread wants another. With fewer cores than that the kernel makes one of them wait, which no
poller can help but by polling less. So the work of the busy thread is counted by the time in which it
had a core or waited for the GIL, and the kernel's own account of its waiting for a core is taken off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class Rates(NamedTuple):
    """What happened in some time, and so per second."""

    swept: int
    units: int
    seconds: float
    coreless: float = 0.0  # of these seconds, how long the busy thread was ready and had no core

    @property
    def sweeps(self) -> float:
        """Sweeps a second of the poller."""
        return self.swept / self.seconds

    @property
    def work(self) -> float:
        """Units of work a second of the other thread."""
        return self.units / self.seconds

    @property
    def work_on_core(self) -> float:
        """The same for each second in which it had a core, or waited for the GIL."""
        return self.units / (self.seconds - self.coreless)

    def plus(self, more: Rates) -> Rates:
        """Return both together."""
        return Rates(
            self.swept + more.swept,
            self.units + more.units,
            self.seconds + more.seconds,
            self.coreless + more.coreless,
        )


class BusyThread(threading.Thread):
    """Counts units of pure Python work until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(name="busy", daemon=True)
        self.units = 0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            sum(range(200))  # some microseconds
            self.units += 1

    def coreless(self) -> float:
        """Return for how many seconds of its life it was ready but had no core; 0.0 where no kernel tells."""
        try:
            account = Path(f"/proc/self/task/{self.native_id}/schedstat").read_text(encoding="ascii")
        except OSError:
            return 0.0
        return int(account.split()[1]) / 1e9

    def stop(self) -> None:
        """Let it end, and wait for that."""
        self._stopped.set()
        self.join()


def beside_a_busy_thread(sweep: Callable[[], object], seconds: float) -> Rates:
    """Sweep for some seconds, and at least once, while the other thread is busy."""
    busy = BusyThread()
    busy.start()
    try:
        units, coreless, sweeps = busy.units, busy.coreless(), 0
        start = time.perf_counter()
        while sweeps == 0 or time.perf_counter() - start < seconds:
            sweep()
            sweeps += 1
        spent = time.perf_counter() - start
        units, coreless = busy.units - units, busy.coreless() - coreless
    finally:
        busy.stop()
    return Rates(sweeps, units, spent, coreless)


class Contest:
    """Pollers that take turns beside a busy thread, and the rates of each over all its bursts so far.

    Means, and not the best bursts as in a `Race`: the poller's best burst would be the one in which
    something else kept the busy thread from its core. More rounds make the means steadier.
    """

    def __init__(self, sweeps: Mapping[str, Callable[[], object]], seconds: float) -> None:
        self.sweeps = dict(sweeps)
        self.rates: dict[str, Rates] = {}
        self._seconds = seconds

    def run(self, rounds: int) -> None:
        """Give every poller `rounds` more bursts."""
        for _ in range(rounds):
            for name, sweep in self.sweeps.items():
                seen = beside_a_busy_thread(sweep, self._seconds)
                self.rates[name] = self.rates[name].plus(seen) if name in self.rates else seen

    def sweeps_ratio(self, above: str, below: str) -> float:
        """Return how many sweeps one got for each of the other."""
        return self.rates[above].sweeps / self.rates[below].sweeps

    def work_ratio(self, above: str, below: str) -> float:
        """Return how much the busy thread got done beside one, for each unit beside the other.

        In time in which it had a core or waited for the GIL.
        """
        return self.rates[above].work_on_core / self.rates[below].work_on_core
