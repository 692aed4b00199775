"""Positions: a rank's blocks over and over again, so that each block of each request has its own bytes.

A rank of N blocks has the positions 0, 1, 2, ... Position p lies in block p modulo N and holds
``pattern(source, p)``. When the request that read it is over, the rank overwrites the block at once,
with the bytes of position p + N.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from kvfast.demo.pattern import Bytes, pattern

TRACK: Final = b"T|"
FREED: Final = b"F|"
WRITE: Final = b"W|"
FAILED: Final = b"X|"


class RankMemory:
    """A rank's side: what its blocks hold now."""

    def __init__(self, source: int, blocks: int, block_bytes: int) -> None:
        self.blocks = blocks
        self._source = source
        self.memory: Bytes = pattern(source, range(blocks), block_bytes)
        self._held = np.arange(blocks)

    def holds(self, position: int) -> bool:
        """Tell whether a position has not been overwritten."""
        return bool(self._held[position % self.blocks] == position)

    def block(self, position: int) -> int:
        """Return where a position lies."""
        return position % self.blocks

    def overwrite(self, positions: Sequence[int]) -> None:
        """Put the next positions' bytes where these are."""
        following = np.asarray(positions) + self.blocks
        self.memory[following % self.blocks] = pattern(self._source, following.tolist(), self.memory.shape[1])
        self._held[following % self.blocks] = following


class Positions:
    """Decode's side: which positions of a rank are filled and not in use."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._free = deque(range(blocks))
        self._out: set[int] = set()

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Return `count` positions; there must be as many."""
        taken = [self._free.popleft() for _ in range(count)]
        self._out.update(taken)
        return taken

    def freed(self, positions: Sequence[int]) -> None:
        """Note that the rank has overwritten these. A second note of the same is nothing new."""
        for position in positions:
            if position in self._out:
                self._out.discard(position)
                self._free.append(position + self._blocks)


def encode_track(req_id: str, lease_s: float, positions: Sequence[int]) -> bytes:
    """Build the message that asks a rank to keep positions for a request."""
    return TRACK + f"{req_id}|{lease_s}|{_join(positions)}".encode()


def decode_track(message: bytes) -> tuple[str, float, list[int]]:
    """Read it."""
    _, req_id, lease_s, positions = message.decode().split("|")
    return req_id, float(lease_s), _split(positions)


def encode_freed(positions: Sequence[int]) -> bytes:
    """Build the message that tells decode of overwritten positions."""
    return FREED + _join(positions).encode()


def decode_freed(message: bytes) -> list[int]:
    """Read it."""
    return _split(message[len(FREED) :].decode())


class WriteOrder(NamedTuple):
    """What decode asks a rank to write: positions of its ring into blocks of decode."""

    req_id: str
    lease_s: float
    producers: int
    positions: list[int]
    blocks: list[int]


def encode_write(order: WriteOrder) -> bytes:
    """Build the message that asks for WRITEs."""
    head = f"{order.req_id}|{order.lease_s}|{order.producers}"
    return WRITE + f"{head}|{_join(order.positions)}|{_join(order.blocks)}".encode()


def decode_write(message: bytes) -> WriteOrder:
    """Read it."""
    _, req_id, lease_s, producers, positions, blocks = message.decode().split("|")
    return WriteOrder(req_id, float(lease_s), int(producers), _split(positions), _split(blocks))


def encode_failed(req_id: str, producers: int) -> bytes:
    """Build the message that says: a rank has ended its writes, and not all of it was written."""
    return FAILED + f"{req_id}|{producers}".encode()


def decode_failed(message: bytes) -> tuple[str, int]:
    """Read it."""
    _, req_id, producers = message.decode().split("|")
    return req_id, int(producers)


def _join(positions: Sequence[int]) -> str:
    return ",".join(map(str, positions))


def _split(text: str) -> list[int]:
    return [int(position) for position in text.split(",")]
