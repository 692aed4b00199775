"""What a Receiver knows of one request."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from .. import checks
from ..request_states import TABLE, Event, State, step
from .writes import ExpectedWrites

NEVER: Final = float("inf")

BY_ORDER: Final = attrgetter("order")
"""Sort key: in the order of tracking."""


@dataclass(slots=True, eq=False)
class ReceiveRequest:
    """One tracked request. ``since`` is when it became outstanding."""

    req_id: str
    blocks: checks.Blocks
    peers: tuple[str, ...]
    read_before: float | None
    order: int
    tracked_at: float
    state: State = State.TRACKED
    in_table: bool = False
    posting: int = 0  # posts that are running
    writes: ExpectedWrites | None = None
    notifs: list[tuple[str, bytes]] | None = None
    since: float = NEVER

    def step(self, event: Event) -> State:
        """Go to the state that follows, and return it."""
        self.state = step(self.state, event)
        return self.state

    @property
    def may_post(self) -> bool:
        """Tell whether a transfer may be started for it."""
        return TABLE[self.state].posts

    @property
    def peer(self) -> str | None:
        """The peer, for the log; several are named in one."""
        return ", ".join(self.peers) or None

    def peer_of_post(self, peer: str | None) -> str | None:
        """Return the peer of a transfer: the one that is named, or else the only one there is."""
        if peer is not None:
            return checks.name("peer", peer)
        if len(self.peers) > 1:
            raise ValueError(
                f"request {self.req_id!r} has the peers {self.peers}: name the one of this transfer"
            )
        return self.peers[0] if self.peers else None

    def expected_writes(self) -> ExpectedWrites:
        """Return what is known of its producers' writes, from now on."""
        if self.writes is None:
            self.writes = ExpectedWrites(self.peers)
        return self.writes
