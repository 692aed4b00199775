"""A demo's result as a person reads it."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.table import Table

from .judge import DemoResult
from .process import Message


def show(result: DemoResult, console: Console) -> None:
    """Print the table of what was measured, then each check."""
    table = Table(title="kvfast demo", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in _rows(result):
        table.add_row(name, value)
    console.print(table)
    for check, held in result.checks.items():
        console.print(f"  [{'green' if held else 'red'}]{'ok    ' if held else 'FAILED'}[/] {check}")
    for problem in _problems(result):
        console.print(f"         {problem}", markup=False)
    console.print("every check held" if result.ok else "some checks FAILED", style="bold")


def sweeping(result: DemoResult) -> list[Message]:
    """Return the numbers of the processes that swept: decode, or the ranks if they WRITE."""
    ranks = [rank for rank in result.ranks.values() if rank.get("sweep_us", {}).get("sweeps")]
    return ranks if result.settings.push and ranks else [result.measured]


def _rows(result: DemoResult) -> list[tuple[str, str]]:
    settings, measured = result.settings, result.measured
    sweeps = [numbers["sweep_us"] for numbers in sweeping(result)]
    info = sweeping(result)[0]
    median = statistics.median(sweep["median"] for sweep in sweeps)
    least, most = min(sweep["min"] for sweep in sweeps), max(sweep["max"] for sweep in sweeps)
    verb = "written by" if settings.push else "read from"
    return [
        ("requests", f"{settings.requests}, {verb} {settings.ranks} ranks each"),
        ("finished", f"{measured['finished']}"),
        ("failed", f"{len(measured['failed'])}"),
        ("bytes checked", f"{result.bytes_checked:,}"),
        ("blocks given out", f"{measured['blocks_given']} times, of {settings.pool_blocks}"),
        ("sweeps", f"{sum(sweep['sweeps'] for sweep in sweeps)}{' by the ranks' if settings.push else ''}"),
        ("time per sweep", f"median {median:.1f} us (min {least:.1f}, max {most:.1f})"),
        ("backend", f"{info['backend']}, scan {info['scan']}"),
        ("ops", f"{info['ops']}: {info['ops_reason']}"),
        ("NIXL", measured["nixl"]),
        ("time in all", f"{result.seconds:.1f} s"),
        *_fault_rows(result),
    ]


def _fault_rows(result: DemoResult) -> list[tuple[str, str]]:
    fault = result.measured["fault"]
    if fault is None:
        return []
    what = "WRITEs" if result.settings.push else "READs"
    in_flight = len(fault["in_flight_when_killed"])
    seen = "by the end of its process" if fault["told_of_death"] else "by NIXL's disconnect exception"
    return [
        ("killed", f"{fault['killed']}, with {in_flight} {what} in flight"),
        ("death seen", seen),
        ("deferred", f"{fault['deferred']} failed requests waited for their other {what}"),
    ]


def _problems(result: DemoResult) -> list[str]:
    by_rank = [f"{name}: {text}" for name, rank in result.ranks.items() for text in rank.get("problems", [])]
    return [*result.measured["problems"], *by_rank]
