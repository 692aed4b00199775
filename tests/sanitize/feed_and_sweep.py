"""A table fed by one thread and swept by another, over the simulated ops: a program for ThreadSanitizer.

    python tests/sanitize/feed_and_sweep.py REQUESTS
    python tests/sanitize/feed_and_sweep.py REQUESTS unguarded

With ``unguarded`` the feeder goes past the table's guard, to the store that is being swept: a race that the
sanitizer must find, or it finds nothing.
"""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any, Final

import numpy as np

from kvfast_ext import select_backend, states
from kvfast_ext.contract import Quarantine
from kvfast_ext.simulated import SimulatedAgent

BALLAST: Final = 5_000  # handles that stay in flight, so that a sweep lasts
HANDLES: Final = 8  # of a request
SLOTS: Final = 64  # requests at a time
FAILS_EVERY: Final = 10  # one request of so many has a handle that fails


class Race:
    """The two threads' common state."""

    def __init__(self, requests: int, *, unguarded: bool) -> None:
        self._requests = requests
        self._unguarded = unguarded
        self._agent = SimulatedAgent(BALLAST + SLOTS * HANDLES)
        backend: Any = select_backend("cython")
        self._pop = backend.pop_done_transfers
        ops = backend.bind(self._agent)
        self._table = backend.TransferTable(ops, scan="all", quarantine=Quarantine(lost_s=0))
        self._table.add("ballast", *range(BALLAST))
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(SLOTS):
            self._free.put(slot)
        self._errors: list[BaseException] = []

    def run(self) -> tuple[int, int]:
        """Return how many sweeps it took, and how many transfers failed."""
        feeder = threading.Thread(target=self._feed, daemon=True)
        feeder.start()
        done = sweeps = failed = 0
        while done < self._requests and not self._errors:
            result = self._pop(self._table)
            sweeps += 1
            failed += len(result.failures)
            for req_id in result.done:
                done += 1
                self._free.put(int(req_id.partition("/")[0]))
        feeder.join()
        if self._errors:
            raise self._errors[0]
        self._agent.states[:] = states.SUCCESS
        while len(self._table):
            self._pop(self._table)
        return sweeps, failed

    def _feed(self) -> None:
        try:
            for number in range(self._requests):
                self._add(number, self._free.get())
        except BaseException as error:
            self._errors.append(error)

    def _add(self, number: int, slot: int) -> None:
        first = BALLAST + slot * HANDLES
        ids = np.arange(first, first + HANDLES, dtype=np.uint64)
        self._agent.states[first : first + HANDLES] = states.SUCCESS
        if number % FAILS_EVERY == 0:
            self._agent.states[first] = states.BACKEND
        req_id = f"{slot}/{number}"
        if self._unguarded:
            self._table._store.open(req_id)
            self._table._store.append(req_id, ids.tolist(), [None] * HANDLES, 0)
            return
        self._table.add(req_id, ids, peer=f"rank{slot % 4}")
        # What a producer's other code may ask meanwhile.
        assert self._table.outstanding_of(f"rank{slot % 4}") <= SLOTS * HANDLES
        assert len(self._table.handle_ids) <= BALLAST + SLOTS * HANDLES


def main(requests: str, mode: str = "") -> None:
    """Run it; a wrong count ends it with a traceback, a race by the sanitizer."""
    expected = -(-int(requests) // FAILS_EVERY)
    sweeps, failed = Race(int(requests), unguarded=mode == "unguarded").run()
    if failed != expected:
        raise SystemExit(f"{failed} failures, not {expected}")
    print(f"{requests} requests fed by one thread, {sweeps} sweeps by another, {failed} failures")


if __name__ == "__main__":
    main(*sys.argv[1:])
