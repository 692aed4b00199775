"""``kvfast bench``."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvfast.exits import EXIT_UNUSABLE, errors_exit, give_up
from kvfast_ext.errors import KvfastError

from .measure import Bench, Plan

if TYPE_CHECKING:
    from .result import BenchResult

_MOST_HANDLES: Final = 100_000


Numbers = tuple[int, ...]


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Numbers | None:
    if value is None:
        return None
    try:
        numbers = tuple(sorted({int(word) for word in value.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers, as 1,256,4096 is") from None
    if numbers[0] < 1:
        raise click.BadParameter(f"{numbers[0]} transfers can't be in flight")
    if numbers[-1] > _MOST_HANDLES:
        raise click.BadParameter(f"{numbers[-1]:,} transfers are too many: {_MOST_HANDLES:,} is the most")
    if bad := [number for number in numbers if number > 4 and number % 4]:
        raise click.BadParameter(f"{bad[0]} is no multiple of 4, the transfers of a request")
    return numbers


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="Time for measuring; getting ready takes some 10 seconds more.",
)
@click.option("--no-nixl", is_flag=True, help="Measure simulated transfers only.")
@click.option(
    "--handles",
    callback=_numbers,
    metavar="N,N,...",
    help="Transfers in flight to measure with, instead of 1 to 4,096 real and 1 to 100,000 simulated ones. "
    f"Each is 1 to 4 or a multiple of 4 (a request has four), and at most {_MOST_HANDLES:,}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw it, as .png or .svg (needs matplotlib).",
)
def bench(
    seconds: float, no_nixl: bool, handles: Numbers | None, as_json: bool, picture: Path | None
) -> None:
    """Measure what one sweep costs, against the number of transfers in flight, in about a minute.

    Compares kvfast with the loop over transfers that vLLM runs at every engine step, and with a bare
    C++ loop that asks about every transfer (which needs a C++ compiler). Real transfers are READs over NIXL
    between two processes here, UCX over TCP on the loopback device, held in flight by stopping the
    process they read from. Simulated ones leave NIXL out.

    All take turns in short bursts, and the shortest of each counts; a row with fewer than five,
    or far off the trend, is marked with "~". Compare the columns of one run:
    ratios hold still on a busy machine, microseconds do not.

    Exit status: 0 if it was measured, 1 if that broke off, 2 for bad options or where --plot lacks
    something, 130 after Ctrl-C. What could not be measured here is named below the tables.
    """
    from .plot import check_plot, plot

    plan = Plan(seconds, not no_nixl)
    if handles is not None:
        plan = Plan(seconds, not no_nixl, handles, handles)
    try:
        if picture is not None:
            check_plot(picture)
    except KvfastError as error:
        give_up(error, as_json, EXIT_UNUSABLE)
    with errors_exit(as_json=as_json, interrupted="interrupted"):
        result = _run(plan, shown=not as_json)
    _print(result, as_json)
    if picture is not None:
        plot(result, picture)
        click.echo(f"drawn: {picture}", err=True)


def _run(plan: Plan, *, shown: bool) -> BenchResult:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    bar = Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True)
    task = bar.add_task("getting ready", total=plan.steps + 1)
    # NIXL logs to stdout, which is for the result alone.
    with contextlib.redirect_stdout(sys.stderr), bar:
        return Bench(plan, lambda what: bar.update(task, advance=1, description=what)).run()


def _print(result: BenchResult, as_json: bool) -> None:
    from rich.console import Console

    from .report import show

    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=2))
    else:
        show(result, Console())
