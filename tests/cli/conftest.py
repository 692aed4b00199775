"""Fixtures of the command-line tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import first_on_path


@pytest.fixture
def hide_nixl(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which NIXL can't be imported, whether it is installed or not."""
    # Run at Python's start; a finder before all others says what a missing package would.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0].startswith('nixl'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    return first_on_path(tmp_path)
