"""The tables of ``kvfast bench``, for somebody who has not read the documentation."""

from __future__ import annotations

from typing import Any, Final

from .result import REAL, SIMULATED, BenchResult, Seconds, ratio
from .subjects import ALL, LIMIT, LIMIT_WATCH, LOOP, SUBJECTS, WATCH

_NAMES: Final = {
    REAL: "real NIXL (UCX over TCP on this machine)",
    SIMULATED: "simulated transfers (no NIXL: what polling costs by itself)",
}
_UNITS: Final = ((1e9, "ns"), (1e6, "us"), (1e3, "ms"))
_LEGEND: Final = """\
vLLM's loop   asks about every transfer with a Python call, as serving engines do at every step
python        kvfast without its compiled part
cython        kvfast; "all" asks about every transfer, "watch" (the default) about one a request
bare limit    a C++ loop over NIXL's own calls and nothing else: nobody can be faster
"""


def show(result: BenchResult, console: Any) -> None:
    """Print the tables."""
    console.print(f"{result.date}, {result.machine}", markup=False, highlight=False, soft_wrap=True)
    for where in reversed(result.in_flight):  # real ones first
        console.print(f"\n[bold]A sweep while nothing ends[/], {_NAMES[where]}", soft_wrap=True)
        console.print(_table(result.in_flight[where], WATCH))
    for where in reversed(result.drain):
        console.print(f"\n[bold]A sweep in which all end[/], {_NAMES[where]}", soft_wrap=True)
        console.print(_table(result.drain[where], ALL))
    console.print()
    console.print(_LEGEND, markup=False, highlight=False, soft_wrap=True, end="")
    for line in result.skipped:
        console.print(f"not measured: {line}", markup=False, highlight=False, soft_wrap=True)


def _table(sizes: dict[int, Seconds], best: str) -> Any:
    from rich import box
    from rich.table import Table

    there = {name for times in sizes.values() for name in times}
    subjects = [name for name in SUBJECTS if name in there and name != LIMIT_WATCH]
    table = Table(caption=f"speed-up: {LOOP} / {best}", caption_justify="left", box=box.SIMPLE)
    table.padding, table.collapse_padding, table.pad_edge = (0, 1), True, False
    table.add_column("transfers", justify="right", no_wrap=True)
    for name in subjects:
        table.add_column(name, justify="right", style="dim" if name == LIMIT else None, no_wrap=True)
    table.add_column("speed-up", justify="right", style="green", no_wrap=True)
    for handles, times in sizes.items():
        factor = ratio(times, LOOP, best)
        cells = [in_words(times.get(name)) for name in subjects]
        table.add_row(f"{handles:,}", *cells, f"{factor:.1f}x" if factor else "-")
    return table


def in_words(seconds: float | None) -> str:
    """Return a time with three digits and its unit."""
    if seconds is None:
        return "-"
    factor, unit = next(((f, u) for f, u in _UNITS if seconds * f < 1_000), _UNITS[-1])
    number = seconds * factor
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:,.{digits}f} {unit}"
