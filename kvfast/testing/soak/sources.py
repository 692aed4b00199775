"""The ranks as decode knows them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvfast.demo.process import Message

from .ring import Positions

UP = "up"
GONE = "gone"  # killed, or about to be
REMOVING = "removing"


@dataclass(slots=True, eq=False)
class Source:
    """One life of a rank: a process with an agent, and its blocks."""

    column: int
    key: int  # of its pattern; no other life has it
    name: str
    metadata: bytes
    address: int
    positions: Positions
    state: str = UP
    kept: dict[int, tuple[str, list[int], float]] = field(default_factory=dict)  # by first position


class Sources:
    """The life that serves each rank's share now."""

    def __init__(self, rank_blocks: int) -> None:
        self._rank_blocks = rank_blocks
        self._now: dict[int, Source] = {}

    def make(self, message: Message) -> Source:
        """Return the life that a supervisor's message introduces."""
        metadata = base64.b64decode(message["metadata"])
        positions = Positions(self._rank_blocks)
        return Source(
            message["column"], message["key"], message["name"], metadata, message["address"], positions
        )

    def put(self, source: Source) -> None:
        """Let a life serve its rank's share from now on."""
        self._now[source.column] = source

    def __iter__(self) -> Iterator[Source]:
        return iter(self._now.values())

    @property
    def up(self) -> list[Source]:
        """Those that transfers may be started with, in order."""
        return [self._now[column] for column in sorted(self._now) if self._now[column].state == UP]

    def named(self, name: str) -> Source | None:
        """Return the life of that name, if it serves."""
        return next((source for source in self._now.values() if source.name == name), None)
