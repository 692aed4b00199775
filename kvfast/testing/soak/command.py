"""``kvfast soak``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from kvfast.exits import EXIT_FAILED, errors_exit
from kvfast.options import backend_option, scan_option

from .settings import DEFAULT_REQUESTS, FAULTS, MAX_RANKS, MODES, POLICIES, SoakSettings, parse_faults

if TYPE_CHECKING:
    from .run import SoakResult

_UNLIMITED: Final = 10**8


def _faults(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    try:
        return parse_faults(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "--mode",
    type=click.Choice([*MODES, "both"]),
    default="both",
    show_default=True,
    help="Decode READs from the ranks, or the ranks WRITE to decode.",
)
@click.option(
    "--requests",
    type=click.IntRange(1, _UNLIMITED),
    help=f"Requests of each soak; {DEFAULT_REQUESTS} by default.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help="Make no more requests of a soak after this time.",
)
@click.option(
    "--ranks", type=click.IntRange(1, MAX_RANKS), default=3, show_default=True, help="Prefill ranks."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides sizes and faults.")
@click.option(
    "--policy",
    type=click.Choice([*POLICIES, "all"]),
    default="kvfast",
    show_default=True,
    help="Who says when blocks may be given back; all: one after the other, with the same faults.",
)
@click.option(
    "--faults",
    default="all",
    show_default=True,
    metavar="NAMES",
    callback=_faults,
    help=f"all, none, or some with commas between: {', '.join(FAULTS)}.",
)
@click.option(
    "--fault-every",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="One fault of a process or peer for so many requests.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Factor on how often each fault of a single request comes.",
)
@click.option(
    "--lease-s",
    type=click.FloatRange(0, min_open=True),
    default=4.0,
    show_default=True,
    help="Seconds of a producer's lease; heartbeats extend it.",
)
@click.option(
    "--short-lease-s",
    type=click.FloatRange(0, min_open=True),
    default=0.3,
    show_default=True,
    help="Seconds of the lease that the fault ``lease`` gives, and nobody extends.",
)
@click.option(
    "--lost-s",
    type=click.FloatRange(0),
    default=6.0,
    show_default=True,
    help="Seconds for which LOST handles are kept in quarantine.",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Give up when nothing has moved for so many seconds.",
)
@click.option(
    "--network",
    is_flag=True,
    help="Run ranks and decode in network namespaces of their own, and break the network (root only).",
)
@backend_option
@scan_option
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else.")
def soak(mode: str, policy: str, requests: int | None, as_json: bool, **options: Any) -> None:
    """Break things under real NIXL transfers, and look for a block that was given back too early.

    Starts prefill ranks and one decode, each a process with a NIXL agent (UCX over TCP on loopback).
    Ranks are stopped, killed, started again and removed, calls raise, notifications get lost. The
    blocks of a failed or aborted request go to the next owner at once, who fills them with a canary
    and watches it; every byte of every finished request is checked.

    Exit status: 0 if kvfast had nothing corrupted, lost, reported twice or leaked; 1 if it had, or a
    soak broke off; 2 for bad options or where NIXL is missing, 130 after Ctrl-C. The policies it is
    compared with decide the status only where they run alone.
    """
    if requests is None:
        requests = DEFAULT_REQUESTS if options["minutes"] is None else _UNLIMITED
    modes = MODES if mode == "both" else (mode,)
    policies = POLICIES if policy == "all" else (policy,)
    interrupted = "interrupted: all processes of the soak have been ended"
    with errors_exit(as_json=as_json, interrupted=interrupted):
        chosen = [
            SoakSettings(mode=m, policy=p, requests=requests, **options) for m in modes for p in policies
        ]
        results = _run_all(chosen, shown=not as_json)
    _print(results, as_json)
    judged = [result for result in results if len(policies) == 1 or result.settings.policy == "kvfast"]
    sys.exit(0 if all(result.ok for result in judged) else EXIT_FAILED)


def _run_all(chosen: list[SoakSettings], *, shown: bool) -> list[SoakResult]:
    from kvfast_ext import select_backend

    select_backend(chosen[0].backend)  # say so now if it can't be had
    return [_run(settings, shown=shown) for settings in chosen]


def _run(settings: SoakSettings, *, shown: bool) -> SoakResult:
    from rich.console import Console
    from rich.live import Live

    from .report import LiveView
    from .run import run_soak

    if not shown:
        return run_soak(settings)
    view = LiveView(f"{settings.mode} soak, {settings.policy}")
    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        return run_soak(settings, lambda progress: live.update(view.table(progress), refresh=True))


def _print(results: list[SoakResult], as_json: bool) -> None:
    from rich.console import Console

    from .report import show, verdicts

    if as_json:
        found = [result.as_dict() for result in results]
        click.echo(json.dumps({"soaks": found, "verdicts": verdicts(results)}, indent=2))
    else:
        show(results, Console())
