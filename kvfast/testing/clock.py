"""A clock that stands still until a test moves it."""

from __future__ import annotations

from kvfast_ext.contract import check_seconds


class FakeClock:
    """Seconds that pass only when told to: give it as ``clock=`` to whatever takes one.

    Parameters
    ----------
    start_s : float
        What it shows at first.

    Examples
    --------
    >>> clock = FakeClock()
    >>> clock.advance(1.5)
    >>> clock()
    1.5
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = float(start_s)

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward.

        Raises
        ------
        TypeError, ValueError
            If `seconds` is not a finite number of zero or more.
        """
        self._now += check_seconds("seconds", seconds)
