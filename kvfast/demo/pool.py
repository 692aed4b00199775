"""Decode's KV blocks: given to a request, taken back, given to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .evidence import ONCE, MemoryWitness, Problems


class BlockPool:
    """Blocks 0 to n-1. The longest free one goes first, and must be as clean as it was left."""

    def __init__(self, blocks: int, witness: MemoryWitness, problems: Problems) -> None:
        self._free = deque(range(blocks))
        self._owned: set[int] = set()
        self._witness = witness
        self._problems = problems
        self.given = 0

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Return `count` blocks; there must be as many."""
        blocks = [self._free.popleft() for _ in range(count)]
        self._owned.update(blocks)
        self.given += count
        self._witness.check_untouched(blocks, "found when it was given out again")
        return blocks

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free blocks. From now on nothing may write to them."""
        for block in blocks:
            if block not in self._owned:
                self._problems.add(ONCE, f"block {block} was freed twice")
        self._owned.difference_update(blocks)
        self._witness.poison(blocks)
        self._free.extend(blocks)

    def check_all_free(self) -> None:
        """Note a problem for every block that is still owned, or was written to since it was freed."""
        for block in sorted(self._owned):
            self._problems.add(ONCE, f"block {block} was never freed")
        self._witness.check_untouched(list(self._free), "found at the end")
