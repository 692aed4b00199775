"""One vLLM server on this machine, and whatever processes it starts."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from tests.vllm.engine import client, keeper, serve
from tests.vllm.engine.tiny_model import MAX_TOKENS

_START_S: Final = 900.0
_END_S: Final = 30.0
_ROOT: Final = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started."""

    name: str
    model: Path
    site: tuple[Path, ...]
    logging: Path
    log: Path
    transfer: Mapping[str, Any] | None = None
    tensor_parallel: int = 1
    env: Mapping[str, str] = field(default_factory=dict)

    def command(self, port: int) -> list[str]:
        """Return the command line."""
        options = {
            "served-model-name": "tiny",
            "host": "127.0.0.1",
            "port": port,
            "dtype": "float32",
            "block-size": 32,  # the CPU's attention has no smaller one
            "max-model-len": MAX_TOKENS,
            "max-num-seqs": 16,
            "tensor-parallel-size": self.tensor_parallel,
            "seed": 0,
        }
        if self.transfer is not None:
            options["kv-transfer-config"] = json.dumps(self.transfer)
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [sys.executable, serve.__file__, "serve", str(self.model), "--enforce-eager", *words]

    def environment(self) -> dict[str, str]:
        """Return the environment variables."""
        path = os.pathsep.join([*map(str, self.site), str(_ROOT)])
        return {
            **os.environ,
            "PYTHONPATH": path,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_CONFIG_PATH": str(self.logging),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "UCX_TLS": "tcp",
            "UCX_NET_DEVICES": "lo",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            **self.env,
        }


class ServerFailedError(AssertionError):
    """A server did not start, or is gone; the message has the end of its log."""


class Server:
    """A running server. Whoever makes one calls `end`."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.port = free_port()
        self.started = time.monotonic()
        self.start_s = 0.0
        self._keeper = subprocess.Popen(
            [sys.executable, keeper.__file__, str(launch.log), *launch.command(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=launch.environment(),
            start_new_session=True,  # an interrupt from the keyboard is for the tests, which then end it
            text=True,
        )
        self._pipe: IO[str] = _given(self._keeper.stdin)
        self._session = int(_given(self._keeper.stdout).readline())

    def wait_until_ready(self) -> None:
        """Wait for the start."""
        self.wait("start", lambda: client.healthy(self.port), _START_S)
        self.start_s = time.monotonic() - self.started

    def wait(self, what: str, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
        """Wait until something holds, as long as the server runs."""
        end = time.monotonic() + timeout_s
        while not condition():
            if not keeper.runs(self._session):
                raise ServerFailedError(
                    f"{self.launch.name} is gone, waiting for: {what}\n{self.log()[-6000:]}"
                )
            if time.monotonic() > end:
                raise ServerFailedError(
                    f"{self.launch.name}: {what}: not in {timeout_s:.0f} s\n{self.log()[-6000:]}"
                )
            time.sleep(0.25)

    def log(self) -> str:
        """Return what it has written up to now."""
        return self.launch.log.read_text(errors="replace")

    def logged(self, pattern: str) -> list[str]:
        """Return the lines of its log that match."""
        return [line for line in self.log().splitlines() if re.search(pattern, line)]

    def metric(self, name: str) -> float:
        """Return a metric, summed over its labels; 0 if it is not there."""
        return client.metrics(self.port).get(name, 0.0)

    def wait_for_metric(self, name: str, value: float) -> None:
        """Wait until a metric has a value."""
        self.wait(f"{name} is {value}", lambda: self.metric(name) == value)

    def pause(self) -> None:
        """Stop all its processes, as they are."""
        keeper.signal_session(self._session, signal.SIGSTOP)

    def go_on(self) -> None:
        """Have them continue."""
        keeper.signal_session(self._session, signal.SIGCONT)

    def kill(self) -> None:
        """End it without a word to anybody."""
        self._pipe.close()
        self._keeper.wait(_END_S)
        assert keeper.session_members(self._session) == []

    def end(self) -> None:
        """Ask it to end; kill what has not ended in time."""
        if not self._pipe.closed:
            if keeper.runs(self._session):
                os.kill(self._session, signal.SIGCONT)
                os.kill(self._session, signal.SIGTERM)
            end = time.monotonic() + _END_S
            while keeper.session_members(self._session) and time.monotonic() < end:
                time.sleep(0.1)
        self.kill()


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _given(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
