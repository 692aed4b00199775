"""From what was measured to a verdict: which checks there are, and whether each held."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .process import Message
from .settings import DemoSettings


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a demo found. `checks` maps each check, in words, to whether it held."""

    settings: DemoSettings
    measured: Message
    seconds: float
    checks: dict[str, bool]

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return all(self.checks.values())

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "ok": self.ok,
            **self.measured,
            "checks": self.checks,
            "seconds": self.seconds,
            "settings": asdict(self.settings),
        }


def judge(
    settings: DemoSettings, measured: Message, notified: dict[str, list[str]], seconds: float
) -> DemoResult:
    """Return the verdict.

    Parameters
    ----------
    measured : dict
        Decode's result.
    notified : dict
        By name of a living rank, the requests whose blocks it was told to free.
    """
    checks = {check: count == 0 for check, count in measured["violations"].items()}
    checks["every request ended"] = measured["finished"] + measured["failed"] == settings.requests
    checks["nothing is left in the table"] = measured["left_in_table"] == 0
    checks["each rank was told of exactly the READs from it that ended"] = notified == {
        name: sorted(measured["read_from"].get(name, [])) for name in notified
    }
    transfers = measured["transfers"]
    checks["every ended READ has telemetry, of as many bytes as were checked"] = (
        transfers["unsampled"] == 0 and transfers["bytes"] == measured["bytes_checked"]
    )
    checks |= _fault_checks(settings, measured)
    return DemoResult(settings, measured, seconds, checks)


def _fault_checks(settings: DemoSettings, measured: Message) -> dict[str, bool]:
    fault = measured["fault"]
    if fault is None:
        return {"no request failed": measured["failed"] == 0}
    checks = {
        "READs from the killed rank were in flight": fault["in_flight_when_killed"] > 0,
        "requests of the killed rank failed, and only those": (
            measured["failed"] > 0 and measured["failing"] == [fault["killed"]]
        ),
    }
    if settings.slow is not None:
        checks["failed requests had to wait for another rank"] = fault["deferred"] > 0
    return checks
