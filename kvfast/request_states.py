"""The life of a request: the one table of its states, which Receiver and Sender both read.

A request is *outstanding* while bytes may still move for it: a handle of its own is in the transfer
table (in flight, or failed and not released yet), a post of it is running, or a peer has been told
where to write and has not ended. A request with nothing outstanding is *drained*. Outstanding or
drained is a fact about handles and writes, found out at each poll; it is no choice of ours, for a
posted transfer can't be called back. What is ours to decide is what to make of it, and that is the
state.

**The one law.** A request ends only when it is drained. Ending is when its blocks are given back,
named invalid, or used: while a byte may still land in them, any of these corrupts somebody's data.
So there is no arrow to an end in this table but on a DRAINED event. A failure, an abort or a lease
that runs out changes which end it will be, never when.

States before the end:

``TRACKED``
    Known, and nothing was started for it. It is drained, but that means nothing yet: it waits.
``OUTSTANDING``
    Something was started, or it was declared complete. When it is drained, it is well.
``FAILING``
    A failure was seen or reported. That is sticky: whatever its other handles say later, it never
    ends as finished and none of its pending notifications is sent. No more is posted for it.
``ABORTED``
    Nobody wants it any more. No more is posted; when it is drained its pending notifications are
    sent, since nothing went wrong and the producer may free its blocks.
``ABORTED_FAILING``
    Both, in either order. It ends as aborted, for nobody waits for its data and nothing must be
    done about its blocks but to free them; and its notifications are withdrawn, as for any failure.

Events:

``BEGIN``
    A transfer was posted, a peer was told where to write, all consumers have read, or the caller
    says that the request is complete.
``FAIL``, ``ABORT``
    See the states.
``DRAINED``
    A poll finds nothing outstanding, and nobody holds a promise on the blocks: the Receiver's event.
``DRAINED_LEASED``
    A poll finds nothing outstanding, while the lease still promises the blocks to a consumer: the
    Sender's. A failed send waits for its lease, since a consumer may read its blocks until then.
``DRAINED_OVERDUE``
    The lease is over and nothing is outstanding, be it that it ran out so or that the last handle
    ended after it.

A Sender knows no ABORT, a Receiver no lease: the combinations that can't happen have no arrow, and
`step` raises for them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class State(IntEnum):
    """Where a request stands. See the module's text."""

    TRACKED = 0
    OUTSTANDING = 1
    FAILING = 2
    ABORTED = 3
    ABORTED_FAILING = 4
    ENDED_FINISHED = 5
    ENDED_FAILED = 6
    ENDED_ABORTED = 7
    ENDED_EXPIRED = 8


class Event(IntEnum):
    """What happens to a request. See the module's text."""

    BEGIN = 0
    FAIL = 1
    ABORT = 2
    DRAINED = 3
    DRAINED_LEASED = 4
    DRAINED_OVERDUE = 5


class Rule(NamedTuple):
    """One state's row.

    ``posts``: may a transfer be started? ``notifies``: are its pending notifications sent at the
    end? ``next``: where an event leads; an event that is not named can't happen.
    """

    posts: bool
    notifies: bool
    next: dict[Event, State]


TABLE: Final[dict[State, Rule]] = {
    State.TRACKED: Rule(
        posts=True,
        notifies=False,
        next={
            Event.BEGIN: State.OUTSTANDING,
            Event.FAIL: State.FAILING,
            Event.ABORT: State.ABORTED,
            Event.DRAINED: State.TRACKED,
            Event.DRAINED_LEASED: State.TRACKED,
            Event.DRAINED_OVERDUE: State.ENDED_EXPIRED,
        },
    ),
    State.OUTSTANDING: Rule(
        posts=True,
        notifies=True,
        next={
            Event.BEGIN: State.OUTSTANDING,
            Event.FAIL: State.FAILING,
            Event.ABORT: State.ABORTED,
            Event.DRAINED: State.ENDED_FINISHED,
            Event.DRAINED_LEASED: State.ENDED_FINISHED,
            Event.DRAINED_OVERDUE: State.ENDED_FINISHED,
        },
    ),
    State.FAILING: Rule(
        posts=False,
        notifies=False,
        next={
            Event.BEGIN: State.FAILING,
            Event.FAIL: State.FAILING,
            Event.ABORT: State.ABORTED_FAILING,
            Event.DRAINED: State.ENDED_FAILED,
            Event.DRAINED_LEASED: State.FAILING,
            Event.DRAINED_OVERDUE: State.ENDED_EXPIRED,
        },
    ),
    State.ABORTED: Rule(
        posts=False,
        notifies=True,
        next={
            Event.BEGIN: State.ABORTED,
            Event.FAIL: State.ABORTED_FAILING,
            Event.ABORT: State.ABORTED,
            Event.DRAINED: State.ENDED_ABORTED,
        },
    ),
    State.ABORTED_FAILING: Rule(
        posts=False,
        notifies=False,
        next={
            Event.BEGIN: State.ABORTED_FAILING,
            Event.FAIL: State.ABORTED_FAILING,
            Event.ABORT: State.ABORTED_FAILING,
            Event.DRAINED: State.ENDED_ABORTED,
        },
    ),
    State.ENDED_FINISHED: Rule(posts=False, notifies=False, next={}),
    State.ENDED_FAILED: Rule(posts=False, notifies=False, next={}),
    State.ENDED_ABORTED: Rule(posts=False, notifies=False, next={}),
    State.ENDED_EXPIRED: Rule(posts=False, notifies=False, next={}),
}

FAILED_STATES: Final = frozenset({State.FAILING, State.ABORTED_FAILING})
"""States in which a failure was seen."""

ENDS: Final = frozenset(state for state, rule in TABLE.items() if not rule.next)
"""States that a request does not leave: it is reported, and forgotten."""

ENDINGS: Final[dict[State, tuple[State, bool]]] = {
    state: (rule.next[Event.DRAINED], rule.notifies)
    for state, rule in TABLE.items()
    if rule.next.get(Event.DRAINED) in ENDS
}
"""The DRAINED column, for a poll that ends many: the states that it ends, as what, and who notifies."""


def step(state: State, event: Event) -> State:
    """Return the state that follows.

    Raises
    ------
    ValueError
        If the event can't happen in this state: a mistake in kvfast itself.
    """
    following = TABLE[state].next.get(event)
    if following is None:
        raise ValueError(f"no rule for {event.name} in state {state.name}")
    return following
