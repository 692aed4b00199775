"""What a run of ``kvfast bench`` has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .race import ENOUGH
from .subjects import ALL, LIMIT, LOOP, WATCH

REAL: Final = "real"
SIMULATED: Final = "simulated"
IN_FLIGHT: Final = "in_flight"
DRAIN: Final = "drain"
GATED_HANDLES: Final = 256
_MOST_GROWTH: Final = 2.5  # of the time a transfer; the caches account for less than 2

Seconds = dict[str, float]  # by subject
Sizes = dict[int, Seconds]  # by number of handles


class Row(NamedTuple):
    """What was measured in one race: IN_FLIGHT or DRAIN, of REAL or SIMULATED transfers, and how many."""

    what: str
    where: str
    handles: int


@dataclass(slots=True)
class BenchResult:
    """Shortest times seen, in seconds.

    Attributes
    ----------
    in_flight : dict
        For ``real`` and ``simulated``: by number of handles in flight, the time of a sweep by subject.
    drain : dict
        The same for a sweep in which all handles were DONE, with telemetry, statistics and release.
    skipped : list of str
        What could not be measured here, and why.
    bursts : dict
        By `Row`: how many bursts each subject had.
    """

    date: str
    machine: str
    in_flight: dict[str, Sizes] = field(default_factory=dict)
    drain: dict[str, Sizes] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    bursts: dict[Row, int] = field(default_factory=dict)

    def add(self, row: Row, times: Seconds, bursts: int) -> None:
        """Take in the outcome of a race."""
        self.sizes(row.what).setdefault(row.where, {})[row.handles] = times
        self.bursts[row] = bursts

    def sizes(self, what: str) -> dict[str, Sizes]:
        """Return `in_flight` or `drain`, by its name."""
        return self.in_flight if what == IN_FLIGHT else self.drain

    def is_rough(self, row: Row) -> bool:
        """Tell whether a row can't be relied on: too few bursts, or none that was left alone.

        A transfer costs about the same among more, so a subject that takes far longer for each than
        with the next smaller number was interrupted in all of its bursts.
        """
        sizes = self.sizes(row.what)[row.where]
        fewer = max((handles for handles in sizes if handles < row.handles), default=row.handles)
        growth = row.handles / fewer * _MOST_GROWTH
        slow = any(time > growth * sizes[fewer].get(name, time) for name, time in sizes[row.handles].items())
        return slow or self.bursts.get(row, ENOUGH) < ENOUGH

    @property
    def gates(self) -> dict[str, float]:
        """The ratios that kvfast's own floors are about, by their names: for `kvfast.benchgate`."""
        sweep = self.in_flight.get(REAL, {}).get(GATED_HANDLES, {})
        drain = self.drain.get(REAL, {}).get(GATED_HANDLES, {})
        found = {
            "in-flight-all": ratio(sweep, LOOP, ALL),
            "in-flight-watch": ratio(sweep, LOOP, WATCH),
            "bare-loop": ratio(sweep, ALL, LIMIT),
            "drain": ratio(drain, LOOP, ALL),
        }
        return {name: value for name, value in found.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "ok": True,
            "date": self.date,
            "machine": self.machine,
            "in_flight": self._rows(IN_FLIGHT),
            "drain": self._rows(DRAIN),
            "gates": self.gates,
            "skipped": self.skipped,
        }

    def _rows(self, what: str) -> list[dict[str, Any]]:
        return [
            {
                "transfers": where,
                "handles": handles,
                "subject": subject,
                "seconds": seconds,
                "bursts": self.bursts.get(Row(what, where, handles)),
            }
            for where, sizes in self.sizes(what).items()
            for handles, times in sizes.items()
            for subject, seconds in times.items()
        ]


def ratio(times: Seconds, above: str, below: str) -> float | None:
    """Return how many times as long one took as another; None where one was not measured."""
    return times[above] / times[below] if above in times and below in times else None
