"""Decode's blocks, and what is known of every byte in them.

The pool hands out what was freed last, so a block has its next owner within the same step. The
next owner of a failed or aborted request's blocks is no transfer but a canary: bytes that nobody
may change. Whatever lands late is seen, and its old owner is known.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from kvfast.demo.pattern import Bytes, pattern

_MOST_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class Corruption:
    """Bytes that were not what they had to be.

    ``kind`` is ``canary`` (something landed in a block after it was given back) or ``finished``
    (a request was reported finished without its bytes). ``seconds`` is the time since the block was
    given back, or since the request was posted.
    """

    kind: str
    request: str
    handle: int | None
    rank: str
    block: int
    wrong_bytes: int
    seconds: float
    at_s: float


class Corruptions:
    """All are counted, by kind; the first are kept."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {"canary": 0, "finished": 0}
        self.requests: set[str] = set()
        self.shown: list[Corruption] = []

    def add(self, corruption: Corruption) -> None:
        """Note one."""
        self.counts[corruption.kind] += 1
        self.requests.add(corruption.request)
        if len(self.shown) < _MOST_SHOWN:
            self.shown.append(corruption)

    @property
    def total(self) -> int:
        """How many blocks."""
        return sum(self.counts.values())

    def as_list(self) -> list[dict[str, Any]]:
        """Return the first ones, ready for JSON."""
        return [asdict(corruption) for corruption in self.shown]


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank gives to a request: its positions, and the handle that moves each block."""

    column: int  # which part of decode's memory
    source: int  # key of the rank's pattern
    rank: str
    positions: tuple[int, ...]
    handles: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class _Canary:
    owner: str
    shares: tuple[Share, ...]
    blocks: list[int]
    since: float
    until: float


class BlockPool:
    """Blocks 0 to n-1; the one that was freed last goes first."""

    def __init__(self, blocks: int) -> None:
        self._free = list(range(blocks))

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Return `count` blocks; there must be as many."""
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Take blocks back. They are the next to go."""
        self._free.extend(blocks)


class Witness:
    """Looks at decode's memory, shape (ranks, blocks, block_bytes).

    Parameters
    ----------
    memory : array
        Registered with the agent.
    pool : BlockPool
        Gets the blocks back when their canary has been checked.
    canary_s : float
        How long a canary is watched.
    """

    def __init__(self, memory: Bytes, pool: BlockPool, canary_s: float, begin: float) -> None:
        self._memory = memory
        self._pool = pool
        self._canary_s = canary_s
        self._begin = begin
        self._canaries: deque[_Canary] = deque()  # all are held equally long: the first is due first
        self.corruptions = Corruptions()
        self.bytes_checked = 0
        self.canaries_checked = 0

    def check_finished(
        self, req_id: str, shares: Sequence[Share], blocks: Sequence[int], posted_at: float, now: float
    ) -> bool:
        """Compare every byte of a finished request; tell whether all were right."""
        fine = True
        for share in shares:
            held = self._memory[share.column, blocks]
            self.bytes_checked += held.nbytes
            expected = pattern(share.source, share.positions, self._memory.shape[2])
            if not np.array_equal(held, expected):
                fine = False
                wrong = (held != expected).sum(axis=1)
                places: list[int] = np.flatnonzero(wrong).tolist()
                for i in places:
                    self._add(
                        "finished", req_id, share, int(i), blocks[i], int(wrong[i]), now - posted_at, now
                    )
        return fine

    def plant(self, req_id: str, shares: Sequence[Share], blocks: list[int], now: float) -> None:
        """Give a failed or aborted request's blocks to a canary, at once."""
        self._memory[:, blocks] = self._bytes(req_id)
        self._canaries.append(_Canary(req_id, tuple(shares), blocks, now, now + self._canary_s))

    def check_canaries(self, now: float) -> None:
        """Check the canaries whose time is over, and free their blocks."""
        while self._canaries and self._canaries[0].until <= now:
            self._check(self._canaries.popleft(), now)

    @property
    def watching(self) -> int:
        """How many canaries are being watched."""
        return len(self._canaries)

    def _check(self, canary: _Canary, now: float) -> None:
        expected = self._bytes(canary.owner)
        held = self._memory[:, canary.blocks]
        self.bytes_checked += held.nbytes
        self.canaries_checked += len(canary.blocks)
        wrong = (held != expected).sum(axis=2)
        places: list[list[int]] = np.argwhere(wrong).tolist()
        for column, i in places:
            share = next((s for s in canary.shares if s.column == column), None)
            if share is None:
                share = Share(column, -1, "unknown", (), ())
            self._add(
                "canary",
                canary.owner,
                share,
                i,
                canary.blocks[i],
                int(wrong[column, i]),
                now - canary.since,
                now,
            )
        self._pool.give_back(canary.blocks)

    def _bytes(self, owner: str) -> Bytes:
        digest = hashlib.blake2b(owner.encode(), digest_size=8).digest()
        return np.resize(np.frombuffer(digest, np.uint8), self._memory.shape[2])

    def _add(
        self, kind: str, req_id: str, share: Share, i: int, block: int, wrong: int, seconds: float, now: float
    ) -> None:
        handle = share.handles[i] if i < len(share.handles) else None
        at = round(now - self._begin, 3)
        self.corruptions.add(
            Corruption(kind, req_id, handle, share.rank, block, wrong, round(seconds, 3), at)
        )
