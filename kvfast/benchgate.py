"""Floors for benchmarks: numbers that a run must reach, in a readable file with reasons and dates.

``python -m kvfast.benchgate FLOORS.toml RESULTS.json`` judges the numbers of any benchmark, and
`GateBook` judges them inside a test. docs/howto-benchgate.md shows both.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, Final

import click

from kvfast_ext.errors import KvfastError

RETRIES: Final = 3  # a missed gate is measured this often again
_TEXTS: Final = ("what", "value", "reason")
_BOUNDS: Final = ("at_least", "at_most")
_EXIT_MISSED: Final = 1
_EXIT_UNUSABLE: Final = 2


class GateFileError(KvfastError, ValueError):
    """A file of floors or results that is not what it should be; the message names it."""


@dataclass(frozen=True)
class Gate:
    """A row of a floors file: a number measured in one run, and its floor or its ceiling."""

    name: str
    what: str
    value: str
    reason: str
    date: date
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"

    def holds(self, measured: float) -> bool:
        """Tell whether the measured value is on the right side. NaN never is."""
        if self.at_least is not None:
            return measured >= self.at_least
        return self.at_most is not None and measured <= self.at_most

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
    limit: float | None = None
    note: str = ""
    attempts: int = 1

    @property
    def held(self) -> bool:
        """Whether the gate held."""
        return self.gate.holds(self.measured)

    @property
    def merit(self) -> tuple[bool, float]:
        """What orders the verdicts of one gate: the larger, the better."""
        return self.held, -self.measured if self.gate.at_least is None else self.measured

    @property
    def complaint(self) -> str:
        """A sentence for a gate that did not hold."""
        details = [self.note] * bool(self.note) + [f"{self.attempts} attempts"] * (self.attempts > 1)
        words = (
            f"{self.gate.name}: {self.gate.value} is {self.measured:.2f} {self.gate.unit}, "
            f"must be {self.gate.bound}"
        )
        return f"{words} ({'; '.join(details)})" if details else words


class GateBook:
    """Judges measurements and remembers the verdicts for the report.

    Parameters
    ----------
    gates : dict of str to Gate
        What `load` returned.
    """

    def __init__(self, gates: dict[str, Gate]) -> None:
        self.gates = gates
        self.verdicts: dict[str, Verdict] = {}

    def judge(
        self,
        name: str,
        measure: Callable[[], float],
        again: Callable[[], object] | None = None,
        *,
        limit: Callable[[], float] | None = None,
        note: Callable[[], str] = str,
    ) -> Verdict:
        """Judge ``measure()``; where the gate is missed, call `again` and look once more.

        Parameters
        ----------
        name : str
            A gate of the file.
        measure : callable
            Returns the measured number as it stands.
        again : callable, optional
            Measures more, so that what `measure` returns is better founded. Must not start afresh: a
            minimum goes on from where it was, so more of it can't turn a number by luck.
        limit, note : callable, optional
            For the report; asked at the end, so that they are of the same run.

        Raises
        ------
        KeyError
            If there is no such gate.
        """
        gate = self._gate(name)
        attempts = 1
        while again is not None and not gate.holds(measure()) and attempts <= RETRIES:
            again()
            attempts += 1
        verdict = Verdict(gate, measure(), limit() if limit else None, note(), attempts)
        before = self.verdicts.get(name)
        if before is None or verdict.merit <= before.merit:  # the worst of several cases is what counts
            self.verdicts[name] = verdict
        return verdict

    def expect(self, name: str, measure: Callable[[], float], *args: Any, **options: Any) -> None:
        """Judge as `judge` does, with the same arguments; AssertionError if the gate was missed."""
        verdict = self.judge(name, measure, *args, **options)
        if not verdict.held:
            raise AssertionError(verdict.complaint)

    def lines(self) -> list[str]:
        """Return a table of all gates and their verdicts, those that were not judged included."""
        rows = [("gate", "measured", "must be", "limit", "", "what, and from what")]
        for name, gate in self.gates.items():
            verdict = self.verdicts.get(name)
            if verdict is None:
                rows.append((name, "-", gate.bound, "-", "not run", gate.what))
            else:
                what = f"{gate.what}: {verdict.note}" if verdict.note else gate.what
                rows.append((name, *_numbers(verdict), what))
        return aligned(rows, right=(1, 2, 3))

    def _gate(self, name: str) -> Gate:
        if name not in self.gates:
            raise KeyError(f"there is no gate {name!r}; there are {', '.join(self.gates)}")
        return self.gates[name]


def load(path: Path) -> dict[str, Gate]:
    """Return the gates of a floors file, by name.

    Raises
    ------
    GateFileError
        If the file can't be read, is no TOML, or a row lacks a field, has one too many, or has not
        exactly one of at_least and at_most.
    """
    text = _text(path)
    toml = _toml()
    try:
        rows = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise GateFileError(f"{path}: no TOML: {error}") from error
    if not rows:
        raise GateFileError(f"{path}: no gates in it")
    return {name: _checked_gate(path, name, row) for name, row in rows.items()}


def read_results(path: Path) -> dict[str, float]:
    """Return measured numbers by gate: of ``{"gates": {...}}``, or of an object that is only that.

    Raises
    ------
    GateFileError
        If the file can't be read, is no JSON, or holds anything else than numbers.
    """
    try:
        found = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise GateFileError(f"{path}: no JSON: {error}") from error
    if isinstance(found, dict) and "gates" in found:
        found = found["gates"]
    if not isinstance(found, dict):
        raise GateFileError(f"{path}: must be an object of numbers by gate, or have one as gates")
    for name, value in found.items():
        if not _is_number(value):
            raise GateFileError(f"{path}: {name} must be a number, not {value!r}")
    return found


def judge_all(gates: dict[str, Gate], results: dict[str, float]) -> GateBook:
    """Judge results that were measured elsewhere.

    Raises
    ------
    KeyError
        If a result belongs to no gate.
    """
    book = GateBook(gates)
    for name, measured in results.items():
        book.judge(name, lambda measured=measured: measured)  # type: ignore[misc]
    return book


def aligned(rows: Sequence[tuple[str, ...]], right: Iterable[int] = ()) -> list[str]:
    """Return the rows as lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    right = set(right)
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("floors", type=click.Path(path_type=Path))
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--partial", is_flag=True, help="Don't mind gates that were not measured.")
def main(floors: Path, results: Path, partial: bool) -> None:
    """Judge the numbers of RESULTS (JSON) by the bounds of FLOORS (TOML), and print a table.

    Exit status: 0 if every gate held, 1 if one was missed or not measured, 2 if a file is not what it
    should be or a number belongs to no gate.
    """
    try:
        book = judge_all(load(floors), read_results(results))
    except GateFileError as error:
        _stop(str(error), _EXIT_UNUSABLE)
    except KeyError as error:
        _stop(f"{results}: {error.args[0]}", _EXIT_UNUSABLE)
    click.echo("\n".join(book.lines()))
    complaints = [verdict.complaint for verdict in book.verdicts.values() if not verdict.held]
    if not partial:
        complaints += [f"{name}: not measured" for name in book.gates if name not in book.verdicts]
    if complaints:
        _stop("\n".join(complaints), _EXIT_MISSED)


def _stop(words: str, code: int) -> None:
    click.echo(words, err=True)
    sys.exit(code)


def _numbers(verdict: Verdict) -> tuple[str, str, str, str]:
    limit = "-" if verdict.limit is None else f"{verdict.limit:.2f}"
    word = "ok" if verdict.held else "MISSED"
    if verdict.attempts > 1:
        word += f" ({verdict.attempts} tries)"
    return f"{verdict.measured:.2f}", verdict.gate.bound, limit, word


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GateFileError(f"{path}: can't be read: {error}") from error


def _toml() -> Any:
    try:
        return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ModuleNotFoundError as error:
        raise GateFileError("Python 3.10 reads no TOML: pip install tomli") from error


def _checked_gate(path: Path, name: str, row: Any) -> Gate:
    complaint = _complaint(row)
    if complaint is not None:
        raise GateFileError(f"{path}: gate {name}: {complaint}")
    return Gate(name, **row)


def _complaint(row: Any) -> str | None:
    if not isinstance(row, dict):
        return f"must be a table, not {row!r}"
    known = {field.name for field in fields(Gate)} - {"name"}
    if unknown := row.keys() - known:
        return f"unknown field {', '.join(sorted(unknown))}"
    if missing := {*_TEXTS, "date"} - row.keys():
        return f"no {', '.join(sorted(missing))}"
    if ("at_least" in row) == ("at_most" in row):
        return "exactly one of at_least and at_most must be given"
    for field, value in row.items():
        if not _fits(field, value):
            return f"{field} is {value!r}"
    return None


def _fits(field: str, value: Any) -> bool:
    if field in _BOUNDS:
        return _is_number(value)
    # A datetime is a date too, and compares with none.
    return type(value) is date if field == "date" else isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


if __name__ == "__main__":
    main()
