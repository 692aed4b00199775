"""What a scripted handle answers, and what has become of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from .errors import RAISING_STATES, RETURNED_STATES

State = str | BaseException | type[BaseException]
"""A state word, or an exception that the check raises."""

IN_FLIGHT: Final = "PROC"


def telemetry_like(xfer_us: int = 1, post_us: int = 1, n_bytes: int = 1, descriptors: int = 1) -> Any:
    """Return what NIXL's telemetry of one transfer looks like."""
    return SimpleNamespace(
        startTime=0, postDuration=post_us, xferDuration=xfer_us, totalBytes=n_bytes, descCount=descriptors
    )


@dataclass(slots=True)
class Script:
    """The answers of one handle id. It outlives the handle, so it can be written before there is one."""

    states: deque[State] = field(default_factory=deque)  # the last one stays
    release_error: BaseException | None = None
    transfer_error: BaseException | None = None
    telemetry: Any = field(default_factory=telemetry_like)  # an exception is raised

    @property
    def is_refused(self) -> bool:
        """Tell whether it is never posted, and nothing is written of its state."""
        return self.transfer_error is not None and not self.states

    @property
    def state(self) -> State:
        """What the next check says."""
        return self.states[0] if self.states else IN_FLIGHT

    def next_state(self) -> State:
        """Take what this check says."""
        if len(self.states) > 1:
            return self.states.popleft()
        return self.state


@dataclass(slots=True)
class Life:
    """One handle, from prepare to release."""

    peer: str | None
    notif: bytes
    posted: bool = False
    seen: State | None = None  # the last answer
    released: bool = False

    @property
    def may_be_in_flight(self) -> bool:
        """Tell whether, for all that anyone can know, its bytes may be landing now."""
        return self.posted and self.seen in (None, IN_FLIGHT)


def checked_states(states: Iterable[State]) -> deque[State]:
    """Return states as a queue, or raise an error that names the one that is none."""
    queue = deque(states)
    if not queue:
        raise ValueError("states must name at least one state")
    for state in queue:
        known = state in RETURNED_STATES or state in RAISING_STATES
        if not known and not is_exception(state):
            words = ", ".join([*RETURNED_STATES, *RAISING_STATES])
            raise ValueError(f"a state must be one of {words}, or an exception, not {state!r}")
    return queue


def is_exception(value: object) -> bool:
    """Tell whether `value` can be raised."""
    return isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException))


def answer(state: State, handle: int) -> str:
    """Return a state word, or raise what it stands for."""
    if isinstance(state, str) and state not in RAISING_STATES:
        return state
    error = RAISING_STATES[state] if isinstance(state, str) else state
    raise error(f"handle {handle}") if isinstance(error, type) else error
