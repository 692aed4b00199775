"""The floors of gates.toml, and the verdict on what was measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

FLOORS: Final = Path(__file__).with_name("gates.toml")
RETRIES: Final = 3  # a missed gate is measured this often again, with its minima kept


@dataclass(frozen=True)
class Gate:
    """A row of gates.toml: a number measured in one run, and its floor or its ceiling."""

    name: str
    what: str
    value: str
    reason: str
    date: date
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"

    def holds(self, measured: float) -> bool:
        """Tell whether the measured value is on the right side."""
        if self.at_least is not None:
            return measured >= self.at_least
        assert self.at_most is not None
        return measured <= self.at_most

    @property
    def bound(self) -> str:
        """The floor or ceiling as the report shows it."""
        sign, number = (">=", self.at_least) if self.at_least is not None else ("<=", self.at_most)
        return f"{sign} {number:g} {self.unit}"


@dataclass(frozen=True)
class Verdict:
    """What a gate came to. ``limit`` is the best value that there could be, where that was measured."""

    gate: Gate
    measured: float
    limit: float | None
    note: str
    attempts: int

    @property
    def held(self) -> bool:
        """Whether the gate held."""
        return self.gate.holds(self.measured)


def load(path: Path = FLOORS) -> dict[str, Gate]:
    """Return the gates by name.

    Raises
    ------
    ValueError
        If a row lacks a field, has one too many, or has not exactly one of at_least and at_most.
    """
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: _gate(name, row) for name, row in rows.items()}


def _gate(name: str, row: dict[str, Any]) -> Gate:
    known = {field.name for field in fields(Gate)} - {"name"}
    if unknown := row.keys() - known:
        raise ValueError(f"gate {name}: unknown field {', '.join(sorted(unknown))}")
    if missing := {"what", "value", "reason", "date"} - row.keys():
        raise ValueError(f"gate {name}: no {', '.join(sorted(missing))}")
    if ("at_least" in row) == ("at_most" in row):
        raise ValueError(f"gate {name}: exactly one of at_least and at_most must be given")
    return Gate(name, **row)


class GateBook:
    """Judges measurements and remembers the verdicts for the report."""

    def __init__(self, gates: dict[str, Gate]) -> None:
        self.gates = gates
        self.verdicts: dict[str, Verdict] = {}

    def judge(
        self,
        name: str,
        measure: Callable[[], float],
        again: Callable[[], object],
        *,
        limit: Callable[[], float] | None = None,
        note: Callable[[], str] = str,
    ) -> Verdict:
        """Judge ``measure()``; where the gate is missed, call `again` and look once more.

        `limit` and `note` are asked at the end, so that they are of the same run.
        """
        gate = self.gates[name]
        attempts = 1
        while not gate.holds(measure()) and attempts <= RETRIES:
            again()
            attempts += 1
        verdict = Verdict(gate, measure(), limit() if limit else None, note(), attempts)
        missed = name in self.verdicts and not self.verdicts[name].held
        if not missed:  # a gate that is judged in several cases is missed if one of them is
            self.verdicts[name] = verdict
        return verdict

    def expect(
        self,
        name: str,
        measure: Callable[[], float],
        again: Callable[[], object],
        *,
        limit: Callable[[], float] | None = None,
        note: Callable[[], str] = str,
    ) -> None:
        """Judge as `judge` does, and raise AssertionError if the gate was missed."""
        verdict = self.judge(name, measure, again, limit=limit, note=note)
        assert verdict.held, (
            f"{name}: {verdict.gate.value} is {verdict.measured:.2f} {verdict.gate.unit}, must be "
            f"{verdict.gate.bound} ({verdict.note}; {verdict.attempts} attempts)"
        )
