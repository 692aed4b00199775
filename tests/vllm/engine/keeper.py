"""Runs one command in a session of its own, and ends all of that session when it is told to.

Run as a script: ``keeper.py LOG COMMAND...``. It prints the command's process id, then waits for the end
of its input. That comes when whoever started it closes the pipe, or dies, by whatever means: so no
failing or killed test run leaves a server behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path


def session_members(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    members = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _parent, _group, its_session = _after_name(folder / "stat")[:4]
            if int(its_session) == session and state not in "ZX":
                members.append(int(folder.name))
    return members


def runs(pid: int) -> bool:
    """Tell whether a process has not ended."""
    try:
        return _after_name(Path("/proc", str(pid), "stat"))[0] not in "ZX"
    except OSError:
        return False


def signal_session(session: int, number: int) -> None:
    """Send a signal to each process of a session."""
    for pid in session_members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _after_name(stat: Path) -> list[str]:
    return stat.read_text().rpartition(")")[2].split()


def main(log: str, *command: str) -> None:
    """Run a command until the input ends."""
    with Path(log).open("ab") as output:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    print(server.pid, flush=True)
    sys.stdin.read()
    while session_members(server.pid):  # a process may be starting another one
        signal_session(server.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
