"""The tables of ``kvfast bench``, for somebody who has not read the documentation."""

from __future__ import annotations

from typing import Any, Final

from .race import ENOUGH
from .result import DRAIN, IN_FLIGHT, REAL, SIMULATED, BenchResult, Row, ratio
from .subjects import ALL, LIMIT, LIMIT_WATCH, LOOP, PYTHON, SUBJECTS, WATCH

_NAMES: Final = {
    REAL: "real NIXL (UCX over TCP on this machine)",
    SIMULATED: "simulated transfers (polling by itself, no NIXL)",
}
_UNITS: Final = ((1e9, "ns"), (1e6, "us"), (1e3, "ms"))
_LEGEND: Final = {
    LOOP: "vLLM's loop    one Python call a transfer, as serving engines do at every step",
    PYTHON: "python         kvfast without its compiled part",
    ALL: """\
cython         kvfast: "all" asks about every transfer,
               "watch" (the default) about one a request""",
    LIMIT: "bare C++ loop  a bare C++ loop that asks about every transfer, and nothing else",
}
_ROUGH: Final = f"""\
~              fewer than {ENOUGH} bursts, or interrupted in all of them: may be far
               off, --seconds gives it more time"""


def show(result: BenchResult, console: Any) -> None:
    """Print the tables."""
    console.print(f"{result.date}, {result.machine}", markup=False, highlight=False)
    for what, title, best in (
        (IN_FLIGHT, "A sweep while nothing ends", WATCH),
        (DRAIN, "A sweep in which all end", ALL),
    ):
        for where in reversed(result.sizes(what)):  # real ones first
            console.print(f"\n[bold]{title}[/], {_NAMES[where]}")
            console.print(_table(result, what, where, best))
    console.print()
    for line in _legend(result):
        console.print(line, markup=False, highlight=False)


def _legend(result: BenchResult) -> list[str]:
    there = {name for sizes in result.in_flight.values() for times in sizes.values() for name in times}
    lines = [line for name, line in _LEGEND.items() if name in there]
    if any(result.is_rough(row) for row in result.bursts):
        lines.append(_ROUGH)
    return lines + [f"not measured: {what}" for what in result.skipped]


def _table(result: BenchResult, what: str, where: str, best: str) -> Any:
    from rich import box
    from rich.table import Table

    sizes = result.sizes(what)[where]
    there = {name for times in sizes.values() for name in times}
    subjects = [name for name in SUBJECTS if name in there and name != LIMIT_WATCH]
    table = Table(box=box.SIMPLE)
    table.padding, table.collapse_padding, table.pad_edge = (0, 1), True, False
    table.add_column("transfers", justify="right", no_wrap=True)
    for name in subjects:  # headings of two lines: seven columns in 80 characters
        style = "dim" if name == LIMIT else None
        table.add_column(name.replace(" ", "\n", 1), justify="right", style=style, no_wrap=True)
    if best in there:
        table.caption, table.caption_justify = f"speed-up: {LOOP} / {best}", "left"
        table.add_column("speed-up", justify="right", style="green", no_wrap=True)
    for handles, times in sizes.items():
        factor = ratio(times, LOOP, best)
        cells = [in_words(times.get(name)) for name in subjects] + ([f"{factor:.1f}x"] if factor else [])
        rough = "~" if result.is_rough(Row(what, where, handles)) else ""
        table.add_row(f"{handles:,}", *(f"{rough}{cell}" for cell in cells))
    return table


def in_words(seconds: float | None) -> str:
    """Return a time with three digits and its unit."""
    if seconds is None:
        return "-"
    factor, unit = next(((f, u) for f, u in _UNITS if seconds * f < 1_000), _UNITS[-1])
    number = seconds * factor
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:,.{digits}f} {unit}"
