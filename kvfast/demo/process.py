"""A child process that talks in lines of JSON, never outlives its parent and never hangs it.

The child's stdin and stdout are the conversation; whatever it, NIXL and UCX have to say besides
goes to its stderr, which is kept in a file and shown when the child fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, Any, Final

from kvfast_ext.errors import BackendUnavailableError

from .errors import DeadlineError, DemoError, ProcessEndedError

LOOPBACK_ENV: Final = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
Message = dict[str, Any]

_PR_SET_PDEATHSIG: Final = 1
# Like ``python -m``, but with our own import path: the current directory may hold a source tree without
# the compiled modules, and ``-P`` is not in Python 3.10.
_RUN: Final = (
    "import json, runpy, sys; ours = json.loads(sys.argv[1]); module = sys.argv[2]; "
    "sys.path[:] = ours + [folder for folder in sys.path if folder and folder not in ours]; "
    "sys.argv[:] = [module, *sys.argv[3:]]; runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
_LOG_LINES: Final = 15
_LOG_BYTES: Final = 1 << 20
_DIED: Final = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)


class Child:
    """The parent's side.

    Parameters
    ----------
    name : str
        What to call the process in messages.
    module : str
        A module to run, whose ``main`` calls `converse`.
    args : list of str
        Its arguments.
    env : dict, optional
        Environment variables besides our own.
    """

    def __init__(self, name: str, module: str, args: list[str], env: dict[str, str] | None = None) -> None:
        self.name = name
        self._unread = b""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() does it
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN, json.dumps(sys.path), module, str(os.getpid()), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(env or {})},
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends its children
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended (a stopped one is alive)."""
        return self._process.poll() is None

    def send(self, message: Message) -> None:
        """Send a message; raise ProcessEndedError if nobody can read it."""
        assert self._process.stdin is not None  # noqa: S101 - it was given PIPE
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError as error:
            raise self._ended() from error

    def receive(self, timeout_s: float) -> Message:
        """Return the next message.

        Raises
        ------
        DeadlineError
            If none comes within `timeout_s`.
        ProcessEndedError
            If the process has ended; the message holds the last lines of its log.
        BackendUnavailableError, DemoError
            If the process says that something is missing, or that it failed.
        """
        assert self._process.stdout is not None  # noqa: S101 - it was given PIPE
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise DeadlineError(f"{self.name} said nothing for {timeout_s:.0f} s{self._log_tail()}")
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise self._ended()
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        message: Message = json.loads(line)
        if "error" in message:
            unavailable = message["type"] == BackendUnavailableError.__name__
            raise (BackendUnavailableError if unavailable else DemoError)(f"{self.name}: {message['error']}")
        return message

    def signal(self, number: signal.Signals, event: int) -> None:
        """Send SIGSTOP or SIGCONT and wait until it has worked (`event`: WSTOPPED or WCONTINUED)."""
        os.kill(self.pid, number)
        # WEXITED and WNOWAIT: see a death instead of waiting for ever, and leave it to Popen to reap.
        seen = os.waitid(os.P_PID, self.pid, event | os.WEXITED | os.WNOWAIT)
        if seen is None or seen.si_code in _DIED:
            raise self._ended()
        os.waitid(os.P_PID, self.pid, event | os.WNOHANG)  # take the event, so that the next one is new

    def kill(self) -> None:
        """SIGKILL the process, stopped or not, and reap it. Harmless on one that has ended."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the process and free the pipes and the log."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()

    def _ended(self) -> ProcessEndedError:
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return ProcessEndedError(f"{self.name} {how}{self._log_tail()}")

    def log(self) -> str:
        """Return what the process has written to its stderr."""
        # Not by seeking: the position is shared with the process, which may still write.
        return os.pread(self._log.fileno(), _LOG_BYTES, 0).decode(errors="replace")

    def _log_tail(self) -> str:
        lines = self.log().splitlines()[-_LOG_LINES:]
        return "; its last words:\n  " + "\n  ".join(lines) if lines else ""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back, so that a process that is being started is known to who must end it."""
    # Not by a signal mask: any other thread would still take the signal, and this one the exception.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if came:
            signal.raise_signal(signal.SIGINT)


class Conversation:
    """The child's side: messages from and to the parent."""

    def __init__(self, to_parent: IO[str]) -> None:
        self._to_parent = to_parent

    def send(self, message: Message) -> None:
        """Send a message."""
        print(json.dumps(message), file=self._to_parent, flush=True)

    def __iter__(self) -> Iterator[Message]:
        for line in sys.stdin:
            yield json.loads(line)

    def ask(self, message: Message) -> Message:
        """Send a message and return the answer."""
        self.send(message)
        return self._read()

    def poll(self) -> Message | None:
        """Return a message if one has come. For a parent that sends no more before it is answered."""
        return self._read() if select.select([sys.stdin], [], [], 0)[0] else None

    def _read(self) -> Message:
        line = sys.stdin.readline()
        if not line:
            raise DemoError("the supervisor has gone")
        message: Message = json.loads(line)
        return message


@contextlib.contextmanager
def converse(parent: int) -> Iterator[Conversation]:
    """Talk to the parent until the block ends, and end the process with it.

    An exception is told to the parent. The process then leaves without NIXL's own shutdown, which
    may wait for peers that have gone.
    """
    _die_with_parent(parent)
    to_parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a stray print must not get between our lines
    code = 0
    conversation = Conversation(to_parent)
    try:
        yield conversation
    except Exception as error:
        code = 1
        sys.excepthook(type(error), error, error.__traceback__)  # the whole of it into the log
        conversation.send({"error": str(error) or repr(error), "type": type(error).__name__})
    sys.stderr.flush()
    os._exit(code)


def _die_with_parent(parent: int) -> None:
    # A stopped process notices no closed pipe; the kernel still kills it when its parent has gone.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)  # it went before we asked
