"""The ``kvfast`` command."""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from kvfast import __version__
from kvfast.exits import EXIT_FAILED, EXIT_UNUSABLE, errors_exit
from kvfast.options import backend_option, scan_option

if TYPE_CHECKING:
    from kvfast.demo.judge import DemoResult
    from kvfast.demo.settings import DemoSettings

# Commands whose code is in a part of its own, which is loaded when one of them is asked for.
_ELSEWHERE: Final = {"bench": "kvfast.bench.command", "soak": "kvfast.testing.soak.command"}


class _Commands(click.Group):
    """The commands of this file, and those that are elsewhere: each the one of its module's name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load(cmd_name) if cmd_name in _ELSEWHERE else super().get_command(ctx, cmd_name)


def _load(name: str) -> click.Command:
    try:
        command: click.Command = getattr(importlib.import_module(_ELSEWHERE[name]), name)
    except ModuleNotFoundError as error:
        return _not_installed(name, str(error.name))
    return command


def _not_installed(name: str, module: str) -> click.Command:
    def refuse() -> None:
        click.echo(f"kvfast: {name} can't be run here: there is no module {module}", err=True)
        sys.exit(EXIT_UNUSABLE)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    text = f"Not installed: there is no module {module}."
    return click.Command(name, callback=refuse, help=text, context_settings=anything)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvfast")
def main() -> None:
    """Fast, safe polling of NIXL transfers for disaggregated LLM serving."""


@main.command()
@click.option(
    "--ranks", type=click.IntRange(1, 32), default=2, show_default=True, help="Prefill ranks, each a process."
)
@click.option(
    "--requests",
    type=click.IntRange(1, 100_000),
    default=128,
    show_default=True,
    help="Requests; each gets 1 to 16 blocks from every rank.",
)
@backend_option
@scan_option
@click.option(
    "--push", is_flag=True, help="The ranks WRITE where decode says, and keep their blocks under leases."
)
@click.option(
    "--kill/--no-kill", default=True, show_default=True, help="Stop one rank midway, and kill it in transfer."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Decides block ids, sizes, and who is killed."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after this time.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve decode's metrics as Prometheus text on this port of 127.0.0.1; 0 takes any free one.",
)
@click.option(
    "--hold",
    "hold_s",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="Keep the metrics up for so long after the result, or until Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
def demo(as_json: bool, hold_s: float, **options: Any) -> None:
    """Move KV blocks between processes with real NIXL, kill one, and check every byte.

    Starts prefill ranks and one decode, each in a process of its own, with NIXL over UCX (TCP on the
    loopback device; no GPU, no network). Decode has a kvfast.Receiver: it READs each request's blocks
    from every rank, and frees its own blocks when the Receiver says that the request has ended. With
    --push it tells the ranks where to write instead, and each rank has a kvfast.Sender. Midway one
    rank is stopped with transfers in flight, then killed, while another one is held up.

    Checked: every byte of every finished request; that no failed request is reported while another
    transfer of it runs; that nothing is written to, or from, a block that was freed; and what each
    rank is told.

    Exit status: 0 if every check held, 1 if one did not or the demo broke off, 2 for bad options or
    where NIXL or prometheus_client is missing, 130 after Ctrl-C.
    """
    from kvfast.demo.settings import DemoSettings

    if hold_s and options["metrics_port"] is None:
        raise click.UsageError("--hold keeps metrics up: it needs --metrics-port")
    with errors_exit(as_json=as_json, interrupted="interrupted: all processes of the demo have been ended"):
        _demo(DemoSettings(**options), as_json, hold_s)


def _demo(settings: DemoSettings, as_json: bool, hold_s: float) -> None:
    from kvfast.demo.run import Watcher, run_demo
    from kvfast.prometheus import PrometheusExporter
    from kvfast_ext import select_backend

    select_backend(settings.backend)  # say so now if it can't be had
    if settings.metrics_port is not None:
        PrometheusExporter()  # the same
    bar = _progress_bar(shown=not as_json)
    task = bar.add_task("starting", total=settings.requests)

    class OnScreen(Watcher):
        def progressed(self, finished: int, failed: int) -> None:
            bar.update(task, completed=finished + failed, description=f"{failed} failed")

        def serves_metrics(self, url: str) -> None:
            click.echo(f"metrics: {url}", err=True)

        def judged(self, result: DemoResult) -> None:
            bar.stop()
            _print_result(result, as_json)
            _hold(hold_s)

    with bar:
        result = run_demo(settings, OnScreen())
    sys.exit(0 if result.ok else EXIT_FAILED)


def _progress_bar(*, shown: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True)


def _print_result(result: DemoResult, as_json: bool) -> None:
    from rich.console import Console

    from kvfast.demo.report import show

    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=2))
    else:
        show(result, Console())


def _hold(seconds: float) -> None:
    if not seconds:
        return
    click.echo(f"the metrics stay up for {seconds:g} s, or until Ctrl-C", err=True)
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        click.echo("enough", err=True)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, and nothing else.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up on each probe after this time.",
)
def doctor(as_json: bool, timeout_s: float) -> None:
    """Tell which versions, backend and ops a NIXL agent would get here, and what to do about problems.

    Makes two real agents in a process of its own, with the environment as it is, and moves a few
    bytes between them. Exit status: 0 if kvfast is usable, 1 if there is a problem.
    """
    from rich.console import Console

    from kvfast.doctor import examine, show

    findings = examine(timeout_s)
    if as_json:
        click.echo(json.dumps(findings.as_dict(), indent=2))
    else:
        show(findings, Console())
    sys.exit(0 if findings.ok else EXIT_FAILED)
