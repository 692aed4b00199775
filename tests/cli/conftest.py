"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import first_on_path

Environment = dict[str, str]


@pytest.fixture
def hide(tmp_path: Path) -> Callable[[str], Environment]:
    """Return what makes an environment in which packages can't be imported, installed or not."""

    def make(start: str) -> Environment:
        # Run at Python's start; a finder before all others says what a missing package would.
        (tmp_path / "sitecustomize.py").write_text(
            "import sys\n"
            "class Hide:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name.partition('.')[0].startswith({start!r}):\n"
            "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
            "sys.meta_path.insert(0, Hide())\n"
        )
        return first_on_path(tmp_path)

    return make


@pytest.fixture
def hide_nixl(hide: Callable[[str], Environment]) -> Environment:
    """Return an environment in which NIXL can't be imported."""
    return hide("nixl")
