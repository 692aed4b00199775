"""The tables at the end of a run: times as information, gates as verdicts."""

from __future__ import annotations

from kvfast.benchgate import GateBook, aligned


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
        return [*self._time_lines(), "", *self._note_lines(), "", *self.book.lines()]

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
