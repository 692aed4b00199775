"""A soak's result as a person reads it, and the live view while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from kvfast.demo.process import Message

from .run import SoakResult

_MOST_SHOWN: Final = 5


class LiveView:
    """The numbers of a soak that is running, as one table."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last: tuple[float, int] = (0.0, 0)
        self._rate = 0.0

    def table(self, progress: Message) -> Table:
        """Return the table for what decode has told last."""
        ended = progress["finished"] + progress["failed"] + progress["aborted"]
        seconds = progress["seconds"] - self._last[0]
        if seconds > 0:
            self._rate = (ended - self._last[1]) / seconds
        self._last = progress["seconds"], ended
        table = Table(title=f"{self._title}, {progress['seconds']:.0f} s")
        columns = {
            "requests/s": f"{self._rate:.0f}",
            "ended": str(ended),
            "in flight": str(progress["in_flight"]),
            "failed": str(progress["failed"]),
            "aborted": str(progress["aborted"]),
            "faults": str(progress["faults"]),
            "quarantined": str(progress["quarantined"]),
            "corrupted": _alarming(progress["corrupted"]),
            "twice": _alarming(progress["twice"]),
            "not released yet": str(progress["leaked"]),
        }
        for name in columns:
            table.add_column(name, justify="right")
        table.add_row(*columns.values())
        return table


def show(results: Sequence[SoakResult], console: Console) -> None:
    """Print one column a soak, what each kind of fault did, and the first corruptions."""
    table = Table(title="kvfast soak")
    table.add_column("")
    columns = [_column(result) for result in results]
    for result in results:
        table.add_column(f"{result.settings.mode}, {result.settings.policy}", justify="right")
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)
    for result in results:
        _show_details(result, console)
    for verdict in verdicts(results):
        console.print(verdict, style="bold", markup=False)


def verdicts(results: Sequence[SoakResult]) -> list[str]:
    """Return what the results mean, a sentence each."""
    lines = []
    for result in results:
        name = f"{result.settings.mode}, {result.settings.policy}"
        found = ", ".join(f"{count} {what}" for what, count in result.problems.items() if count)
        if result.measured["stuck"]:
            found = ", ".join(filter(None, [found, "it got stuck"]))
        lines.append(f"{name}: {found or 'nothing corrupted, lost, reported twice or leaked'}")
    lines += [
        f"{result.settings.policy} corrupted nothing: these faults prove nothing about it"
        for result in results
        if result.settings.policy != "kvfast" and not result.problems["corrupted"]
    ]
    return lines


def _column(result: SoakResult) -> dict[str, str]:
    measured = result.measured
    quarantine = result.quarantine
    return {
        "backend": measured["backend"] if result.settings.policy == "kvfast" else "-",
        "requests": str(measured["posted"]),
        "finished": str(measured["finished"]),
        "failed": str(measured["failed"]),
        "aborted": str(measured["aborted"]),
        "faults": str(sum(result.injected.values())),
        "corrupted": _alarming(result.problems["corrupted"]),
        "lost": _alarming(result.problems["lost"]),
        "twice": _alarming(result.problems["reported twice"]),
        "leaked": _alarming(result.problems["leaked"]),
        "quarantined blocks": f"{quarantine['blocks']:.0f}",
        "for at most": f"{quarantine['seconds_max']:.1f} s",
        "time": f"{result.seconds:.0f} s",
    }


def _show_details(result: SoakResult, console: Console) -> None:
    measured = result.measured
    settings = result.settings
    console.print(
        f"\n{settings.mode}, {settings.policy}: seed {settings.seed}, {settings.ranks} ranks, "
        f"NIXL {measured['nixl']}, ops {' and '.join(measured['ops'])}, "
        f"{measured['bytes_checked']:,} bytes and {measured['canaries_checked']:,} canaries checked",
        markup=False,
    )
    faults = ", ".join(f"{name} {n}" for name, n in result.injected.items())
    console.print(f"  faults: {faults or 'none'}", markup=False)
    for reason in measured.get("skipped", []):
        console.print(f"  skipped: {reason}", markup=False)
    for found in measured["corruptions"][:_MOST_SHOWN]:
        console.print(
            f"  {found['kind']}: block {found['block']} of {found['request']}, handle {found['handle']}, "
            f"rank {found['rank']}, {found['wrong_bytes']} bytes, {found['seconds']} s later "
            f"(at {found['at_s']} s)",
            markup=False,
        )


def _alarming(count: int) -> str:
    return f"[bold red]{count}[/]" if count else "0"
