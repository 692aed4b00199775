"""The command as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEADLINE_S = 300


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "kvfast", *args]


def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``kvfast`` to its end; the deadline is only there for a hang."""
    return subprocess.run(
        command(*args),
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def run_json(*args: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any], str]:
    """Run ``kvfast ... --json``: exit code, what it printed, and its stderr."""
    ended = run(*args, "--json", env=env)
    found: dict[str, Any] = json.loads(ended.stdout)
    return ended.returncode, found, ended.stderr


def first_on_path(folder: Path) -> dict[str, str]:
    """Return an environment in which Python looks for modules in a folder first."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, zombies included."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, tasks.read_text().split())
    return found


def is_gone(pid: int) -> bool:
    """Tell whether no process has this pid any more, or only one that waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def wait_until_gone(pids: list[int]) -> list[int]:
    """Wait until the processes are gone; return those that are left when that takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while (left := [pid for pid in pids if not is_gone(pid)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def run_python(code: str) -> str:
    """Run some code in a Python of its own; return what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    return ended.stdout.strip()
