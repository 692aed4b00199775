"""What the demo shows of a sweep: how long each took, by which backend, through which ops."""

from __future__ import annotations

import statistics
from typing import Any, Final

from kvfast.metric_names import COUNTERS
from kvfast.receive import Receiver
from kvfast.send import Sender
from kvfast.stats import Stats


class SweepTimes(Stats):
    """A Stats that remembers every sweep's time besides."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds: Final[list[float]] = []

    def observe_sweep(self, seconds: float) -> None:
        """Add the time of one sweep."""
        self._seconds.append(seconds)
        super().observe_sweep(seconds)

    def summary(self) -> dict[str, float]:
        """Return how many sweeps there were, and their times in microseconds."""
        times = [seconds * 1e6 for seconds in self._seconds] or [0.0]
        return {
            "sweeps": len(self._seconds),
            "min": min(times),
            "median": statistics.median(times),
            "max": max(times),
        }

    def counters(self) -> dict[str, int]:
        """Return every counter that is not zero."""
        numbers: Any = self.snapshot()
        return {name: numbers[name] for name in COUNTERS if numbers[name]}


def describe(poller: Receiver | Sender) -> dict[str, str]:
    """Return which backend, scan and ops a Receiver or Sender has, and why these ops."""
    (info,) = poller.stats.infos
    ops = poller._ops  # its kind may have changed since it was bound
    return {**info, "ops": ops.kind, "ops_reason": ops.reason}
