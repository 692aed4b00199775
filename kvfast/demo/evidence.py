"""What is known about transfers without asking what is under test.

Three sources: the bytes in decode's memory, compared with what the rank holds; poison in blocks
that nobody owns, which a late transfer would overwrite or carry away; and NIXL's own binding, asked
directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from .pattern import POISON, Bytes, pattern

_IN_PROG: Final = 1  # nixl_status_t
_MOST_SHOWN: Final = 10


BYTES: Final = "every byte of every finished request is right"
EARLY: Final = "no failed request was reported before all its transfers had ended"
REUSE: Final = "no block was written to after it was freed"
ONCE: Final = "every request was reported once, and its blocks freed once"


class Problems:
    """Violated checks: all counted, by check, and the first few in words."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys((BYTES, EARLY, REUSE, ONCE), 0)
        self.shown: list[str] = []

    def add(self, check: str, text: str) -> None:
        """Note one violation of a check."""
        self.counts[check] += 1
        if len(self.shown) < _MOST_SHOWN:
            self.shown.append(text)


class MemoryWitness:
    """Compares decode's memory, shape (ranks, blocks, block_bytes), with what it should hold."""

    def __init__(self, memory: Bytes, problems: Problems) -> None:
        self._memory = memory
        self._problems = problems
        memory[:] = POISON

    def landed(self, rank: int, local: Sequence[int], remote: Sequence[int]) -> bool:
        """Tell whether every byte of a rank's share of a request is there."""
        return bool(np.array_equal(self._memory[rank, local], pattern(rank, remote, self._memory.shape[2])))

    def poison(self, blocks: Sequence[int]) -> None:
        """Mark blocks that nobody owns from now on."""
        self._memory[:, blocks] = POISON

    def check_untouched(self, blocks: Sequence[int], when: str) -> None:
        """Note a problem for each block that was written to while nobody owned it."""
        touched = (self._memory[:, blocks] != POISON).any(axis=(0, 2))
        for block in np.asarray(blocks)[touched]:
            self._problems.add(REUSE, f"block {block} was written to after it was freed ({when})")


class BindingWitness:
    """Asks NIXL's inner binding about handles."""

    def __init__(self, agent: Any) -> None:
        self._binding = agent.agent

    def in_flight(self, handle: Any) -> bool:
        """Tell whether a transfer is not released, and NIXL says that it is in progress."""
        if handle._released:  # NIXL has freed what the id stands for
            return False
        try:
            return int(self._binding.getXferStatus(handle._handle)) == _IN_PROG
        except Exception:  # it raises on a failed transfer, which has ended
            return False

    def any_in_flight(self, handles: Iterable[Any]) -> bool:
        """Tell whether one of the transfers is in progress."""
        return any(map(self.in_flight, handles))
