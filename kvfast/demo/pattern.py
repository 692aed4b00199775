"""The bytes that a rank holds, computed by whoever wants to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

POISON: Final = 0xEE  # what decode keeps in blocks that nobody owns
_RANK_SHIFT: Final = 40  # words of one rank; 2**43 bytes


def pattern(rank: int, blocks: Sequence[int], block_bytes: int) -> Bytes:
    """Return what a rank holds in some blocks: shape (len(blocks), block_bytes).

    Each 8-byte word is a hash of (rank, block, position), so bytes of another rank or block, or
    from another place in the block, do not match.
    """
    words = block_bytes // 8
    first = np.asarray(blocks, np.uint64) * np.uint64(words)
    x: npt.NDArray[np.uint64] = np.add.outer(first, np.arange(words, dtype=np.uint64))
    x += np.uint64((rank + 1) << _RANK_SHIFT)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(32)
    return x.view(np.uint8).reshape(len(blocks), block_bytes)


def check_shape(blocks: int, block_bytes: int) -> None:
    """Raise ValueError for a memory that the pattern can't fill."""
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1, not {blocks!r}")
    if block_bytes < 8 or block_bytes % 8:
        raise ValueError(f"block_bytes must be a positive multiple of 8, not {block_bytes!r}")
