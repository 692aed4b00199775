"""Look for a program that fails, in a fixed sequence of programs, and without shrinking it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.property.programs import Program

Check = Callable[[Program], Any]


def for_programs(programs: st.SearchStrategy[Program], check: Check, count: int) -> None:
    """Run a check on the first `count` programs; raise what it raises first."""

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs)
    def run(program: Program) -> None:
        check(program)

    with contextlib.redirect_stdout(io.StringIO()):  # a failure that is wanted needs no words
        run()
