"""Real NIXL for tests and benchmarks: a prefill rank in a process of its own, and a decode beside it.

`Rank` (the demo's) starts a process with a NIXL agent over registered memory that holds a known
pattern. It can be stopped (its READs stay in flight), continued and killed. `Decode` is the
initiating side in this process: it posts READs and WRITEs on blocks and leaves the polling to the
caller.

    with Rank(0) as rank, Decode() as decode:
        decode.connect(rank)
        rank.stop()
        handle = decode.read(rank, remote_block=3, local_block=0)
        assert decode.state(handle) == "PROC"
        rank.cont()
        decode.wait(handle)
        assert (decode.memory[0] == rank.expected(3)[0]).all()
"""

from __future__ import annotations

import importlib
import os
import time
from types import TracebackType
from typing import Any

import numpy as np

from kvfast import open_agent
from kvfast.demo.pattern import Bytes, check_shape
from kvfast.demo.prefill import register
from kvfast.demo.process import LOOPBACK_ENV
from kvfast.demo.rank import Rank

__all__ = ["LOOPBACK_ENV", "Decode", "Rank", "nixl_missing", "register"]


def nixl_missing() -> bool:
    """Tell whether NIXL is not installed, which is the one reason to skip a test that needs it.

    A NIXL that is there and doesn't load raises; so does a missing one under KVFAST_REQUIRE_NIXL=1.
    """
    try:
        importlib.import_module("nixl._api")
    except ModuleNotFoundError as error:
        # "nixl._api": a directory called nixl on sys.path stands in for the package that is missing.
        if error.name not in ("nixl", "nixl._api") or os.environ.get("KVFAST_REQUIRE_NIXL") == "1":
            raise
        return True
    return False


class Decode:
    """The side that posts transfers, in this process.

    Parameters
    ----------
    agent : nixl_agent, optional
        Use this one; by default `kvfast.open_agent` makes one.
    options : Any
        Passed on to `open_agent`.
    """

    def __init__(
        self,
        name: str = "decode",
        *,
        blocks: int = 64,
        block_bytes: int = 4096,
        agent: Any = None,
        **options: Any,
    ) -> None:
        check_shape(blocks, block_bytes)
        self._environ_before = {name: os.environ.get(name) for name in LOOPBACK_ENV}
        os.environ.update(LOOPBACK_ENV)  # UCX reads them when an agent is made
        self.agent: Any = open_agent(name, **options) if agent is None else agent
        self.blocks = blocks
        self.block_bytes = block_bytes
        self.memory: Bytes = np.zeros((blocks, block_bytes), np.uint8)
        self._registered = register(self.agent, self.memory)
        self._connected: set[str] = set()

    def __enter__(self) -> Decode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, deregister, restore the environment; the caller has ended all transfers before."""
        for name in sorted(self._connected):
            self.agent.remove_remote_agent(name)
        self._connected.clear()
        if self._registered is not None:
            self.agent.deregister_memory(self._registered)
            self._registered = None
        for variable, value in self._environ_before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value

    def connect(self, *ranks: Rank) -> None:
        """Add ranks as remote agents."""
        for rank in ranks:
            name = self.agent.add_remote_agent(rank.metadata)
            self._connected.add(name.decode() if isinstance(name, bytes) else name)

    def disconnect(self, rank: Rank) -> None:
        """Remove a remote agent; its transfers in flight become LOST."""
        self.agent.remove_remote_agent(rank.name)
        self._connected.discard(rank.name)

    def read(
        self, rank: Rank, remote_block: int, local_block: int, n_blocks: int = 1, notif: bytes = b""
    ) -> Any:
        """Post a READ of the rank's blocks into ours, one descriptor a block; return its handle."""
        return self.post(self.prepare("READ", rank, remote_block, local_block, n_blocks, notif))

    def write(
        self, rank: Rank, remote_block: int, local_block: int, n_blocks: int = 1, notif: bytes = b""
    ) -> Any:
        """Post a WRITE of our blocks into the rank's, one descriptor a block; return its handle."""
        return self.post(self.prepare("WRITE", rank, remote_block, local_block, n_blocks, notif))

    def prepare(
        self,
        operation: str,
        rank: Rank,
        remote_block: int,
        local_block: int,
        n_blocks: int = 1,
        notif: bytes = b"",
    ) -> Any:
        """Return the handle of a transfer that is not posted yet."""
        local = self._descriptors(self.memory.ctypes.data, local_block, n_blocks, self.block_bytes)
        remote = self._descriptors(rank.address, remote_block, n_blocks, rank.block_bytes)
        return self.agent.initialize_xfer(operation, local, remote, rank.name, notif)

    def post(self, handle: Any) -> Any:
        """Post a prepared transfer; return the handle. Raises what NIXL raises."""
        self.agent.transfer(handle)
        return handle

    def state(self, handle: Any) -> str:
        """Return "DONE", "PROC", or the name of the exception that the check raises."""
        try:
            return str(self.agent.check_xfer_state(handle))
        except Exception as error:
            return type(error).__name__

    def wait(self, *handles: Any, timeout_s: float = 30.0) -> list[str]:
        """Poll until no handle is in progress and return their states; raise TimeoutError otherwise."""
        deadline = time.monotonic() + timeout_s
        states = dict.fromkeys(range(len(handles)), "PROC")
        while "PROC" in states.values():
            if time.monotonic() > deadline:
                raise TimeoutError(f"transfers are {list(states.values())} after {timeout_s} s")
            states |= {i: self.state(handles[i]) for i, state in states.items() if state == "PROC"}
        return list(states.values())

    def _descriptors(self, address: int, block: int, n_blocks: int, block_bytes: int) -> Any:
        rows = [(address + b * block_bytes, block_bytes, 0) for b in range(block, block + n_blocks)]
        return self.agent.get_xfer_descs(rows, "DRAM")
