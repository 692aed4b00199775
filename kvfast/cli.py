"""The ``kvfast`` command."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import click

from kvfast import __version__
from kvfast_ext.errors import BackendUnavailableError, KvfastError

EXIT_FAILED: Final = 1
EXIT_UNUSABLE: Final = 2  # as click does for bad options
EXIT_INTERRUPTED: Final = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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
    help="Requests; each READs 1 to 16 blocks from every rank.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "cython", "python"]),
    default="auto",
    show_default=True,
    help="Polling backend; auto asks KVFAST_BACKEND, then takes cython where it is installed.",
)
@click.option(
    "--scan",
    type=click.Choice(["watch", "all"]),
    default="watch",
    show_default=True,
    help="Which handles a sweep asks about: one a request, or every one.",
)
@click.option(
    "--kill/--no-kill", default=True, show_default=True, help="Stop one rank midway, and kill it in mid-READ."
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
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
def demo(as_json: bool, **options: Any) -> None:
    """Move KV blocks between processes with real NIXL, kill one, and check every byte.

    Starts prefill ranks and one decode, each in a process of its own, with NIXL over UCX (TCP on the
    loopback device; no GPU, no network). Decode READs each request's blocks from every rank and
    frees its own blocks when kvfast says that the request has ended. Midway one rank is stopped with
    READs in flight, then killed, while another one is held up.

    Checked: every byte of every finished request; that no failed request is reported while another
    READ of it runs; that nothing is written to a block that was freed; and what each rank is told.

    Exit status: 0 if every check held, 1 if one did not or the demo broke off, 2 for bad options or
    where NIXL is missing, 130 after Ctrl-C.
    """
    from kvfast.demo.settings import DemoSettings

    try:
        _demo(DemoSettings(**options), as_json)
    except BackendUnavailableError as error:
        _give_up(error, as_json, EXIT_UNUSABLE)
    except KvfastError as error:
        _give_up(error, as_json, EXIT_FAILED)
    except (ImportError, ValueError) as error:  # a broken extension, a bad KVFAST_BACKEND
        _give_up(error, as_json, EXIT_UNUSABLE)
    except KeyboardInterrupt:
        click.echo("interrupted: all processes of the demo have been ended", err=True)
        sys.exit(EXIT_INTERRUPTED)


def _demo(settings: Any, as_json: bool) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from kvfast.demo.report import show
    from kvfast.demo.run import run_demo
    from kvfast_ext import select_backend

    select_backend(settings.backend)  # say so now if it can't be had
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        disable=as_json,
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=settings.requests)
        result = run_demo(
            settings,
            lambda finished, failed: bar.update(
                task, completed=finished + failed, description=f"{failed} failed"
            ),
        )
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=2))
    else:
        show(result, Console())
    sys.exit(0 if result.ok else EXIT_FAILED)


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


def _give_up(error: Exception, as_json: bool, code: int) -> None:
    if as_json:
        click.echo(json.dumps({"ok": False, "error": str(error)}))
    click.echo(f"kvfast: {error}", err=True)
    sys.exit(code)
