"""A prefill rank as its parent sees it: a process that can be stopped, continued and killed."""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Sequence
from types import TracebackType

import numpy as np

from .errors import DeadlineError
from .pattern import Bytes, check_shape, pattern
from .process import LOOPBACK_ENV, Child, Message, uninterrupted


class Rank:
    """A prefill rank in a process of its own, as a context manager.

    Its memory holds a known pattern; see `expected`. UCX is held to TCP on loopback, where a
    transfer really is asynchronous.

    Parameters
    ----------
    rank : int
        Goes into the pattern, and into the default agent name ``prefill<rank>``.
    blocks, block_bytes : int
        Size of the registered memory; block_bytes is a multiple of 8.
    name : str, optional
        The agent's name.
    env : dict, optional
        More environment for the process, e.g. ``{"UCX_LOG_LEVEL": "info"}``.
    timeout_s : float
        How long to wait for an answer of the process.
    module : str
        What the process runs: ``kvfast.demo.prefill``, or another that begins as it does.
    options : sequence of str
        Further arguments for it.
    """

    def __init__(
        self,
        rank: int = 0,
        *,
        blocks: int = 64,
        block_bytes: int = 4096,
        name: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float = 60.0,
        module: str = "kvfast.demo.prefill",
        options: Sequence[str] = (),
    ) -> None:
        check_shape(blocks, block_bytes)
        self.rank = rank
        self.name = name or f"prefill{rank}"
        self.blocks = blocks
        self.block_bytes = block_bytes
        self.timeout_s = timeout_s
        self.metadata = b""
        self.address = 0
        self._module = module
        self._options = tuple(options)
        self._env = {**LOOPBACK_ENV, **(env or {})}
        self._child: Child | None = None

    def __enter__(self) -> Rank:
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def launch(self) -> None:
        """Start the process; `wait_ready` must follow. Apart, so that several start at once."""
        args = [self.name, *map(str, (self.rank, self.blocks, self.block_bytes)), *self._options]
        with uninterrupted():
            self._child = Child(self.name, self._module, args, self._env)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the memory is registered; raise DemoError if that fails."""
        ready = self._running.receive(self.timeout_s if timeout_s is None else timeout_s)
        self.metadata = base64.b64decode(ready["metadata"])
        self.address = int(ready["address"])

    @property
    def pid(self) -> int:
        """The process id of the rank."""
        return self._running.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended (a stopped one is alive)."""
        return self._child is not None and self._child.alive

    def expected(self, block: int, n_blocks: int = 1) -> Bytes:
        """Return the pattern of some blocks, as a READ should find it: shape (n_blocks, block_bytes)."""
        return pattern(self.rank, range(block, block + n_blocks), self.block_bytes)

    def ask(self, question: Message) -> Message:
        """Ask the process a question of its module's; return the answer."""
        self._running.send(question)
        return self._running.receive(self.timeout_s)

    def memory(self, block: int, n_blocks: int = 1) -> Bytes:
        """Ask the rank what it holds now in some blocks (after WRITEs to it)."""
        answer = self.ask({"ask": "memory", "block": block, "n_blocks": n_blocks})
        held = np.frombuffer(base64.b64decode(answer["memory"]), np.uint8)
        return held.reshape(n_blocks, self.block_bytes)

    def notifs(self) -> dict[str, list[bytes]]:
        """Ask the rank for every notification it has received so far, by sending agent."""
        received = self.ask({"ask": "notifs"})["notifs"]
        return {name: [base64.b64decode(m) for m in messages] for name, messages in received.items()}

    def wait_notifs(self, count: int, timeout_s: float = 30.0) -> dict[str, list[bytes]]:
        """Ask until at least `count` notifications have come; raise DeadlineError otherwise."""
        deadline = time.monotonic() + timeout_s
        while sum(map(len, (received := self.notifs()).values())) < count:
            if time.monotonic() > deadline:
                raise DeadlineError(f"{self.name} has {received} after {timeout_s} s, expected {count}")
        return received

    def stop(self) -> None:
        """SIGSTOP the process and wait until it is stopped: from now on it answers nothing."""
        self._running.signal(signal.SIGSTOP, os.WSTOPPED)

    def cont(self) -> None:
        """SIGCONT the process and wait until it runs."""
        self._running.signal(signal.SIGCONT, os.WCONTINUED)

    def kill(self) -> None:
        """SIGKILL the process, stopped or not, and reap it. Harmless on one that has ended."""
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """Kill the process and free its pipes."""
        if self._child is not None:
            self._child.close()

    @property
    def _running(self) -> Child:
        if self._child is None:
            raise RuntimeError(f"rank {self.name} was not started")
        return self._child
