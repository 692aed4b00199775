"""What a run of ``kvfast bench`` has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from .subjects import ALL, LIMIT, LOOP, WATCH

REAL: Final = "real"
SIMULATED: Final = "simulated"
GATED_HANDLES: Final = 256

Seconds = dict[str, float]  # by subject


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
    """

    date: str
    machine: str
    in_flight: dict[str, dict[int, Seconds]] = field(default_factory=dict)
    drain: dict[str, dict[int, Seconds]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

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
            "in_flight": _rows(self.in_flight),
            "drain": _rows(self.drain),
            "gates": self.gates,
            "skipped": self.skipped,
        }


def ratio(times: Seconds, above: str, below: str) -> float | None:
    """Return how many times as long one took as another; None where one was not measured."""
    return times[above] / times[below] if above in times and below in times else None


def _rows(times: dict[str, dict[int, Seconds]]) -> list[dict[str, Any]]:
    return [
        {"transfers": where, "handles": handles, "subject": subject, "seconds": seconds}
        for where, sizes in times.items()
        for handles, subjects in sizes.items()
        for subject, seconds in subjects.items()
    ]
