"""How often a peer can make kvfast write to the log."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from kvfast_ext.contract import check_seconds


@dataclass(slots=True)
class _Window:
    start: float
    allowed: int = 0
    dropped: int = 0


class RateLimit:
    """A limit for each key, such as a peer: so many events in so many seconds.

    No more than `max_keys` keys are kept. While all of them are in use, further keys share one
    allowance: a peer that invents names can neither grow this nor write more to the log.
    Thread-safe.

    Parameters
    ----------
    burst : int
        Events of one key that are allowed in a window.
    every_s : float
        Seconds that a window lasts, from its first event on.
    max_keys : int
        Keys that have an allowance of their own at one time.
    clock : callable
        Gives the time in seconds.

    Raises
    ------
    TypeError, ValueError
        If a number is no number, or not positive.

    Notes
    -----
    At the defaults a key gets 3 lines in 30 s, enough to see what happens and to whom, and all keys
    together 26 lines a second at the most, which a log can take.
    """

    def __init__(
        self,
        *,
        burst: int = 3,
        every_s: float = 30.0,
        max_keys: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst: Final = _positive("burst", burst)
        self._every_s: Final = check_seconds("every_s", every_s, positive=True)
        self._max_keys: Final = _positive("max_keys", max_keys)
        self._clock: Final = clock
        self._lock: Final = threading.RLock()  # reentrant, as a finaliser may run anywhere and log
        # By start of the window: the first is the one to give up.
        self._windows: Final[OrderedDict[Hashable, _Window]] = OrderedDict()
        self._others = _Window(clock())

    def allow(self, key: Hashable) -> int | None:
        """Tell whether an event may be logged.

        Returns
        -------
        int or None
            None: drop it silently. Else log it, and say that this many of the same key were dropped
            since the last one that was logged.
        """
        with self._lock:
            now = self._clock()
            window = self._window(key, now)
            if now - window.start >= self._every_s:
                window.start, window.allowed = now, 0
                if window is not self._others:
                    self._windows.move_to_end(key)
            if window.allowed >= self._burst:
                window.dropped += 1
                return None
            window.allowed += 1
            dropped, window.dropped = window.dropped, 0
            return dropped

    def __len__(self) -> int:
        """Return how many keys are kept."""
        return len(self._windows)

    def _window(self, key: Hashable, now: float) -> _Window:
        window = self._windows.get(key)
        if window is not None:
            return window
        if len(self._windows) >= self._max_keys and not self._give_up_oldest(now):
            return self._others
        window = self._windows[key] = _Window(now)
        return window

    def _give_up_oldest(self, now: float) -> bool:
        oldest = next(iter(self._windows.values()))
        if now - oldest.start < self._every_s:
            return False  # giving it up would hand out a second allowance in its window
        self._windows.popitem(last=False)
        self._others.dropped += oldest.dropped  # so that no drop goes untold
        return True


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, not {value!r}")
    return value
