"""From what was measured to a verdict: which checks there are, and whether each held."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .process import Message
from .settings import DemoSettings


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a demo found.

    Attributes
    ----------
    measured : dict
        Decode's result.
    ranks : dict
        By name of a living rank, what it said at the end.
    checks : dict of str to bool
        Each check, in words, and whether it held.
    """

    settings: DemoSettings
    measured: Message
    ranks: dict[str, Message]
    seconds: float
    checks: dict[str, bool]

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return all(self.checks.values())

    @property
    def bytes_checked(self) -> int:
        """How many bytes were compared, and right."""
        return sum(self.measured["bytes_from"].values())

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "ok": self.ok,
            **self.measured,
            "failed": len(self.measured["failed"]),
            "bytes_checked": self.bytes_checked,
            "checks": self.checks,
            "ranks": self.ranks,
            "seconds": self.seconds,
            "settings": asdict(self.settings),
        }


def judge(settings: DemoSettings, measured: Message, ranks: dict[str, Message], seconds: float) -> DemoResult:
    """Return the verdict; the arguments are `DemoResult`'s."""
    checks = {check: count == 0 for check, count in measured["violations"].items()}
    ended = measured["finished"] + len(measured["failed"])
    checks["every request ended"] = ended == settings.requests
    checks["no request and no handle is left"] = measured["left"] == 0
    checks |= (_push_checks if settings.push else _pull_checks)(measured, ranks)
    checks["kvfast has counted the same requests"] = _counted(measured) == {
        "finished_requests": measured["finished"],
        "failed_requests": len(measured["failed"]),
        "aborted_requests": 0,
    }
    checks |= _fault_checks(settings, measured)
    return DemoResult(settings, measured, ranks, seconds, checks)


def _counted(measured: Message) -> dict[str, int]:
    names = ("finished_requests", "failed_requests", "aborted_requests")
    return {name: measured["counters"].get(name, 0) for name in names}


def _pull_checks(measured: Message, ranks: dict[str, Message]) -> dict[str, bool]:
    transfers = measured["transfers"]
    return {
        "each rank was told of exactly the READs from it that ended": all(
            told["read"] == sorted(measured["landed_from"].get(name, [])) for name, told in ranks.items()
        ),
        "each rank was told of exactly the requests that finished": all(
            told["finished"] == sorted(measured["finished_with"].get(name, []))
            for name, told in ranks.items()
        ),
        "no rank was told anything else": not any(told["else"] for told in ranks.values()),
        "every ended READ has telemetry, of as many bytes as were checked": (
            transfers["unsampled"] == 0 and transfers["bytes"] == sum(measured["bytes_from"].values())
        ),
    }


def _push_checks(measured: Message, ranks: dict[str, Message]) -> dict[str, bool]:
    said = ranks.values()
    return {
        "each rank's sends finished exactly where its bytes had landed": all(
            rank["finished"] == sorted(measured["landed_from"].get(name, [])) for name, rank in ranks.items()
        ),
        "no lease ran out, and no rank has a send left": not any(
            rank["expired"] or rank["left"] for rank in said
        ),
        "no rank freed a block that was still being written from": not any(
            sum(rank["violations"].values()) for rank in said
        ),
        "every ended WRITE has telemetry, of as many bytes as were checked": all(
            rank["unsampled"] == 0 and rank["bytes"] == measured["bytes_from"].get(name, 0)
            for name, rank in ranks.items()
        ),
    }


def _fault_checks(settings: DemoSettings, measured: Message) -> dict[str, bool]:
    fault = measured["fault"]
    if fault is None:
        return {"no request failed": not measured["failed"]}
    what = "WRITEs" if settings.push else "READs"
    failed = set(measured["failed"])
    checks = {
        f"{what} of the killed rank were in flight": bool(fault["in_flight_when_killed"]),
        "requests of the killed rank failed, and only those": (
            bool(failed)
            and failed <= set(fault["in_flight_when_killed"])
            and measured["dead"] == [fault["killed"]]
        ),
    }
    if settings.slow is not None:
        checks["failed requests had to wait for another rank"] = fault["deferred"] > 0
    return checks
