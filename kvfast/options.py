"""Options that several ``kvfast`` commands have, in the same words."""

from __future__ import annotations

from typing import Final

import click

backend_option: Final = click.option(
    "--backend",
    type=click.Choice(["auto", "cython", "python"]),
    default="auto",
    show_default=True,
    help="Polling backend; auto asks KVFAST_BACKEND, then takes cython where it is installed.",
)
scan_option: Final = click.option(
    "--scan",
    type=click.Choice(["watch", "all"]),
    default="watch",
    show_default=True,
    help="Which handles a sweep asks about: one a request, or every one.",
)
