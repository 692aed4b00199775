"""The two tables at the end of a run: times as information, gates as verdicts."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from bench.gates import GateBook, Verdict


class Report:
    """Collects what is to be printed: absolute times, notes, and the verdicts of a `GateBook`."""

    def __init__(self, book: GateBook) -> None:
        self.book = book
        self._times: dict[str, list[tuple[str, float, int]]] = {}
        self._notes: list[tuple[str, str]] = []

    def time(self, group: str, subject: str, seconds: float, handles: int) -> None:
        """Show what a subject takes in a group; `handles` is how many it takes that for."""
        self._times.setdefault(group, []).append((subject, seconds, handles))

    def times(self, group: str, best: dict[str, float], handles: int) -> None:
        """Show the minima of a race."""
        for subject, seconds in best.items():
            self.time(group, subject, seconds, handles)

    def note(self, name: str, text: str) -> None:
        """Show one more fact."""
        self._notes.append((name, text))

    def lines(self) -> list[str]:
        """Return the report."""
        return [*self._time_lines(), "", *self._note_lines(), "", *self._gate_lines()]

    def _time_lines(self) -> list[str]:
        rows = [("shortest seen (information, gates nothing)", "", "us", "ns/handle")]
        for group, entries in self._times.items():
            rows += [
                (group, subject, f"{seconds * 1e6:.1f}", f"{seconds * 1e9 / handles:.1f}")
                for subject, seconds, handles in entries
            ]
        return aligned(rows, right=(2, 3))

    def _note_lines(self) -> list[str]:
        return aligned([("also", ""), *self._notes])

    def _gate_lines(self) -> list[str]:
        rows = [("gate", "measured", "must be", "limit", "", "what, and from what")]
        for name, gate in self.book.gates.items():
            verdict = self.book.verdicts.get(name)
            if verdict is None:
                rows.append((name, "-", gate.bound, "-", "not run", gate.what))
            else:
                rows.append((name, *_numbers(verdict), f"{gate.what}: {verdict.note}"))
        return aligned(rows, right=(1, 2, 3))


def _numbers(verdict: Verdict) -> tuple[str, str, str, str]:
    limit = "-" if verdict.limit is None else f"{verdict.limit:.2f}"
    word = "ok" if verdict.held else "MISSED"
    if verdict.attempts > 1:
        word += f" ({verdict.attempts} tries)"
    return f"{verdict.measured:.2f}", verdict.gate.bound, limit, word


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


def machine() -> str:
    """Return what a number of this run was measured on."""
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"{_cpu()}, {os.cpu_count()} cores, load {load}; Python {platform.python_version()}, "
        f"nixl {_version('nixl')}, numpy {_version('numpy')}"
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"
