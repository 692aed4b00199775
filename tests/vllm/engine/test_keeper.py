"""Whatever becomes of a test run, no server outlives it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.vllm.engine import keeper

_RUN = """\
import subprocess, sys, time
keeper = subprocess.Popen(
    [sys.executable, *sys.argv[1:], "sh", "-c", "sleep 1000 & sleep 1000; true"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True,
)
print(keeper.stdout.readline(), end="", flush=True)
time.sleep(1000)
"""


def test_a_killed_run_leaves_nothing_behind(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN, keeper.__file__, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    session = int(run.stdout.readline())
    try:
        _wait_for(session, 3)  # the shell and what it has started
    finally:
        run.kill()
        run.communicate()
    _wait_for(session, 0)


def _wait_for(session: int, processes: int) -> None:
    end = time.monotonic() + 60
    while len(keeper.session_members(session)) != processes:
        assert time.monotonic() < end, keeper.session_members(session)
        time.sleep(0.05)
