"""Time several subjects in one run, so that their ratios mean something on a noisy machine.

The subjects take turns in short bursts, and each keeps its shortest: what else the machine does
makes a burst longer, never shorter, and hits all subjects alike. A ratio of two such minima holds
still where absolute times do not. A race can be run again; its minima then go on from where they
were, so more rounds find the ratio better and can't turn it by luck.

What shares a core from another virtual machine may leave it alone for moments only. A subject whose
bursts are longer, or fewer, then finds such a moment more rarely; so where the work of two subjects
is of like length, give both as many passes and let each pass count by itself: `in_a_row`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from typing import Final

Burst = Callable[[], float]  # does the work once, returns seconds
Clock = Callable[[], int]  # nanoseconds

ENOUGH: Final = 5  # bursts of a subject: the shortest of fewer may be one that was interrupted, too
_PATIENCE: Final = 10
_IN_A_ROW: Final = 3
_LONGER_S: Final = 3.0


class Race:
    """Subjects by name, and the shortest burst of each so far in ``best`` (seconds)."""

    def __init__(self, subjects: Mapping[str, Burst]) -> None:
        self.subjects = dict(subjects)
        self.best = dict.fromkeys(subjects, float("inf"))
        self.rounds = 0

    def run(self, rounds: int) -> None:
        """Give every subject `rounds` more bursts; who begins a round changes with each."""
        gc.collect()
        gc.disable()  # a collection belongs to no subject
        try:
            for _ in range(rounds):
                self._round()
        finally:
            gc.enable()

    def run_for(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Run whole rounds until so much time has passed, and until there were `ENOUGH` of them.

        These are given up on after ten times as long; there are at least two.
        """
        start = clock()
        self.run(2)
        while (spent := clock() - start) < seconds or (self.rounds < ENOUGH and spent < _PATIENCE * seconds):
            self.run(1)

    def longer(self) -> None:
        """Go on, for as long as it may take for what disturbs a race to pass."""
        self.run_for(_LONGER_S)

    def ratio(self, above: str, below: str) -> float:
        """Return the shortest burst of one subject divided by that of another."""
        return self.best[above] / self.best[below]

    def _round(self) -> None:
        names = list(self.subjects)
        start = self.rounds % len(names)
        for name in names[start:] + names[:start]:
            self.best[name] = min(self.best[name], self.subjects[name]())
        self.rounds += 1


def calls(function: Callable[[], object], times: int, clock: Clock = time.perf_counter_ns) -> Burst:
    """Return a burst of `times` calls; it returns the seconds of one."""

    def burst() -> float:
        start = clock()
        for _ in repeat(None, times):
            function()
        return (clock() - start) / (times * 1e9)

    return burst


def in_a_row(bursts: Mapping[str, Burst]) -> dict[str, Burst]:
    """Return bursts that do the work of the given ones some times in a row, and keep the shortest.

    The first pass after the others' turns finds cold caches, and of a watch scan it may be the full one.
    """
    return {name: partial(_least, burst) for name, burst in bursts.items()}


def _least(burst: Burst) -> float:
    return min(burst() for _ in range(_IN_A_ROW))


def shortest(functions: list[Callable[[], object]], clock: Clock = time.perf_counter_ns) -> float:
    """Call each once, one after the other, and return the seconds of the shortest.

    For work that uses something up. The first call finds the caches full of what was prepared; the
    others are as in a loop that polls all the time.
    """
    best = float("inf")
    for function in functions:
        start = clock()
        function()
        best = min(best, (clock() - start) / 1e9)
    return best
