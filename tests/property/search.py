"""Look for a program that fails, in a fixed sequence of programs, and without shrinking it.

Hypothesis draws other programs when other modules have been imported, as it learns constants from them. A
search that must find something within so many programs needs the same ones every time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.property.programs import Program, Programs

Check = Callable[[Program], Any]


def for_programs(programs: Programs, check: Check, count: int) -> None:
    """Run a check on the first `count` programs; raise what it raises first."""
    random = Random(0)
    for _ in range(count):
        check(programs.draw(random))
