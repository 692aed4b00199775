"""A demo's result as a person reads it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from .judge import DemoResult


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
    for problem in result.measured["problems"]:
        console.print(f"         {problem}", markup=False)
    console.print("every check held" if result.ok else "some checks FAILED", style="bold")


def _rows(result: DemoResult) -> list[tuple[str, str]]:
    measured = result.measured
    times = measured["sweep_us"]
    rows = [
        ("requests", f"{result.settings.requests} from {result.settings.ranks} ranks each"),
        ("finished", f"{measured['finished']}"),
        ("failed", f"{measured['failed']}"),
        ("bytes checked", f"{measured['bytes_checked']:,}"),
        ("blocks given out", f"{measured['blocks_given']} times, of {result.settings.pool_blocks}"),
        ("sweeps", f"{measured['sweeps']}"),
        (
            "time per sweep",
            f"median {times['median']:.1f} us (min {times['min']:.1f}, max {times['max']:.1f})",
        ),
        ("backend", f"{measured['backend']}, scan {measured['scan']}"),
        ("ops", f"{measured['ops']}: {measured['ops_reason']}"),
        ("NIXL", measured["nixl"]),
        ("time in all", f"{result.seconds:.1f} s"),
    ]
    return rows + _fault_rows(result)


def _fault_rows(result: DemoResult) -> list[tuple[str, str]]:
    fault = result.measured["fault"]
    if fault is None:
        return []
    return [
        ("killed", f"{fault['killed']}, with {fault['in_flight_when_killed']} READs in flight"),
        ("deferred", f"{fault['deferred']} failed requests waited for their other READs"),
    ]
