"""How the ``kvfast`` commands end when they can't do what they were asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import click

from kvfast_ext.errors import BackendUnavailableError, KvfastError

EXIT_FAILED: Final = 1
EXIT_UNUSABLE: Final = 2  # as click does for bad options
EXIT_INTERRUPTED: Final = 130


@contextmanager
def errors_exit(*, as_json: bool, interrupted: str) -> Iterator[None]:
    """End the process with a message and a status where the body raises; say `interrupted` after Ctrl-C."""
    try:
        yield
    except BackendUnavailableError as error:
        give_up(error, as_json, EXIT_UNUSABLE)
    except KvfastError as error:
        give_up(error, as_json, EXIT_FAILED)
    except (ImportError, ValueError) as error:  # a broken extension, a bad KVFAST_BACKEND
        give_up(error, as_json, EXIT_UNUSABLE)
    except KeyboardInterrupt:
        click.echo(interrupted, err=True)
        sys.exit(EXIT_INTERRUPTED)


def give_up(error: Exception, as_json: bool, code: int) -> NoReturn:
    """Say what was wrong, and end the process."""
    if as_json:
        click.echo(json.dumps({"ok": False, "error": str(error)}))
    click.echo(f"kvfast: {error}", err=True)
    sys.exit(code)
