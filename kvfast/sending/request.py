"""What a Sender knows of one request."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import Blocks
from ..request_states import FAILED_STATES, TABLE, Event, State, step


@dataclass(slots=True, eq=False)
class SendRequest:
    """One tracked request. ``deadline`` is when its lease is over."""

    req_id: str
    blocks: Blocks
    peer: str | None
    deadline: float
    order: int
    tracked_at: float
    state: State = State.TRACKED
    in_table: bool = False
    posting: int = 0  # posts that are running now
    consumers: int = 0  # the greatest number that a notification has named
    consumed: int = 0
    has_timer: bool = True  # an entry in the leases' heap

    def step(self, event: Event) -> State:
        """Go to the state that follows, and return it."""
        self.state = step(self.state, event)
        return self.state

    @property
    def may_post(self) -> bool:
        """Tell whether a transfer may be started for it."""
        return TABLE[self.state].posts

    @property
    def has_failed(self) -> bool:
        """Tell whether a failure was seen or reported."""
        return self.state in FAILED_STATES

    @property
    def drained(self) -> bool:
        """Tell whether nothing reads its blocks on our behalf any more."""
        return not (self.in_table or self.posting)

    def notified(self, consumers: int) -> bool:
        """Note that one consumer has read; tell whether one was still waited for."""
        self.consumers = max(self.consumers, consumers)
        if self.consumed >= self.consumers:
            return False
        self.consumed += 1
        return True

    @property
    def all_consumed(self) -> bool:
        """Tell whether every consumer has read."""
        return 0 < self.consumers <= self.consumed
