"""What a demo is told."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

MAX_RANKS: Final = 32
MAX_REQUESTS: Final = 100_000
MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of one demo.

    Parameters
    ----------
    ranks : int
        Prefill ranks, each a process; every request gets a share from every rank.
    requests : int
        Requests in all.
    backend, scan : str
        As `kvfast.select_backend` and ``TransferTable`` take them.
    push : bool
        The ranks WRITE; by default decode READs.
    kill : bool
        Stop and kill one rank midway.
    seed : int
        Decides block ids, block counts and which rank is killed.
    timeout_s : float
        The whole demo must end within this time.
    pool_blocks : int
        Decode's blocks of each rank's share. Fewer than the requests need in all, so that blocks
        are used again.
    rank_blocks : int
        Blocks that a rank holds.
    metrics_port : int or None
        Where decode serves Prometheus text on loopback; 0 is any free port, None is nowhere.
    block_bytes, max_request_blocks : int
        Size of a block, and of the largest request.
    step_s : float
        Pause between two steps of decode's loop.
    """

    ranks: int = 2
    requests: int = 128
    backend: str = "auto"
    scan: str = "watch"
    push: bool = False
    kill: bool = True
    seed: int = 0
    timeout_s: float = 120.0
    pool_blocks: int = 256
    rank_blocks: int = 512
    block_bytes: int = 16384
    max_request_blocks: int = 16
    step_s: float = 0.0002
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        _check_range("ranks", self.ranks, 1, MAX_RANKS)
        _check_range("requests", self.requests, 1, MAX_REQUESTS)
        _check_range("max_request_blocks", self.max_request_blocks, 1, self.pool_blocks)
        if self.metrics_port is not None:
            _check_range("metrics_port", self.metrics_port, 0, MAX_PORT)
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, not {self.timeout_s!r}")

    @property
    def victim(self) -> int | None:
        """The rank that is killed."""
        return self._broken()[0] if self.kill else None

    @property
    def slow(self) -> int | None:
        """The rank that is stopped for a while beside it, if there is another."""
        return self._broken()[1] if self.kill and self.ranks > 1 else None

    def _broken(self) -> list[int]:
        return random.Random(self.seed).sample(range(self.ranks), min(2, self.ranks))

    @property
    def held_back(self) -> int:
        """How many requests are not posted before the fault, so that it meets some for certain."""
        return max(1, self.requests // 4) if self.kill else 0

    @property
    def kept_for_spare(self) -> int:
        """How many of them are not posted before the killed rank is replaced."""
        return self.held_back // 2


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {value!r}")
