"""What the examples share: KV blocks in memory that NIXL may read and write, and two processes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

BLOCKS, BLOCK_BYTES = 16, 1 << 16  # one agent's KV cache
BLOCKS_A_REQUEST = 4
LEASE_S = 30.0


class Cache:
    """A few blocks, taken and given back all the time."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.memory = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
        self.address: int = self.memory.ctypes.data
        self.free = list(range(BLOCKS))
        agent.register_memory([(self.address, self.memory.nbytes, 0, "")], "DRAM")

    @property
    def has_room(self) -> bool:
        """Tell whether there are blocks for one more request."""
        return len(self.free) >= BLOCKS_A_REQUEST

    def take(self) -> list[int]:
        """Take blocks for one request."""
        taken, self.free = self.free[:BLOCKS_A_REQUEST], self.free[BLOCKS_A_REQUEST:]
        return taken

    def compute(self, req_id: str, blocks: list[int]) -> None:
        """Fill a request's blocks, as a prefill does."""
        for number, block in enumerate(blocks):
            self.memory[block] = _content(req_id, number)

    def check(self, req_id: str, blocks: list[int]) -> None:
        """Raise if the blocks are not what the prefill has computed for this request."""
        for number, block in enumerate(blocks):
            assert (self.memory[block] == _content(req_id, number)).all(), f"wrong bytes in {req_id}"

    def transfer(
        self, operation: str, blocks: list[int], peer: Peer, remote: list[int], notif: bytes = b""
    ) -> Any:
        """Prepare a READ or WRITE between our blocks and a peer's; return its handle."""
        ours, theirs = self._descriptors(self.address, blocks), self._descriptors(peer.address, remote)
        return self.agent.initialize_xfer(operation, ours, theirs, peer.name, notif)

    def _descriptors(self, address: int, blocks: list[int]) -> Any:
        rows = [(address + block * BLOCK_BYTES, BLOCK_BYTES, 0) for block in blocks]
        return self.agent.get_xfer_descs(rows, "DRAM")


class Peer:
    """The engine at the other end of a pipe, introduced to NIXL."""

    def __init__(self, pipe: Connection, cache: Cache) -> None:
        pipe.send((cache.agent.get_agent_metadata(), cache.address))
        metadata, self.address = pipe.recv()
        name = cache.agent.add_remote_agent(metadata)
        self.name: str = name.decode() if isinstance(name, bytes) else name


def run(prefill: Callable[[Connection], None], decode: Callable[[Connection, int], None]) -> None:
    """Run the prefill in a process of its own and the decode in this one."""
    parser = argparse.ArgumentParser(description="Serve requests over real NIXL, and check every byte.")
    parser.add_argument("requests", type=int, nargs="?", default=100, help="how many (100)")
    requests: int = parser.parse_args().requests
    os.environ.setdefault("UCX_TLS", "tcp")  # runs anywhere; leave it out on a real fabric
    spawn = multiprocessing.get_context("spawn")  # a fork after NIXL has started would hang
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=prefill, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # or the end of the prefill would go unnoticed
    decode(ours, requests)
    process.join()


def _content(req_id: str, number: int) -> int:
    return (int(req_id.split("-")[1]) * 31 + number * 7) % 251
