"""The table of states, over every state and every event."""

from __future__ import annotations

from itertools import product

import pytest

from kvfast.request_states import ENDS, FAILED_STATES, TABLE, Event, State, step
from tests.orchestration.state_docs import DOCUMENT, rendered

DRAINED_EVENTS = {Event.DRAINED, Event.DRAINED_LEASED, Event.DRAINED_OVERDUE}
LEASE_EVENTS = {Event.DRAINED_LEASED, Event.DRAINED_OVERDUE}
ABORTED_STATES = {State.ABORTED, State.ABORTED_FAILING}


def test_every_state_has_a_row() -> None:
    assert set(TABLE) == set(State)


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_combination_leads_somewhere_or_cannot_happen(state: State, event: Event) -> None:
    # A Sender aborts nothing, and what has ended is forgotten.
    impossible = state in ENDS or (state in ABORTED_STATES and event in LEASE_EVENTS)
    if impossible:
        with pytest.raises(ValueError, match=f"{event.name} in state {state.name}"):
            step(state, event)
    else:
        assert step(state, event) is TABLE[state].next[event]


@pytest.mark.parametrize(("state", "event"), [(s, e) for s in State for e in TABLE[s].next])
def test_only_a_drained_request_ends(state: State, event: Event) -> None:
    assert step(state, event) not in ENDS or event in DRAINED_EVENTS


@pytest.mark.parametrize(("state", "event"), [(s, e) for s in FAILED_STATES for e in TABLE[s].next])
def test_a_failure_is_never_forgotten(state: State, event: Event) -> None:
    following = step(state, event)
    assert following in FAILED_STATES or following in ENDS - {State.ENDED_FINISHED}


@pytest.mark.parametrize(("state", "event"), [(s, e) for s in ABORTED_STATES for e in TABLE[s].next])
def test_an_abort_is_never_forgotten(state: State, event: Event) -> None:
    assert step(state, event) in ABORTED_STATES | {State.ENDED_ABORTED}


def test_who_may_post_and_who_notifies() -> None:
    assert {state for state in State if TABLE[state].posts} == {State.TRACKED, State.OUTSTANDING}
    assert {state for state in State if TABLE[state].notifies} == {State.OUTSTANDING, State.ABORTED}
    assert not {state for state in FAILED_STATES | ENDS if TABLE[state].posts or TABLE[state].notifies}


def test_a_tracked_request_waits() -> None:
    assert step(State.TRACKED, Event.DRAINED) is State.TRACKED
    assert step(State.TRACKED, Event.DRAINED_LEASED) is State.TRACKED
    assert step(State.TRACKED, Event.DRAINED_OVERDUE) is State.ENDED_EXPIRED


def test_a_failed_send_leaves_only_when_its_lease_is_over() -> None:
    assert step(State.FAILING, Event.DRAINED_LEASED) is State.FAILING
    assert step(State.FAILING, Event.DRAINED_OVERDUE) is State.ENDED_EXPIRED


def test_every_state_is_reached() -> None:
    reached, todo = {State.TRACKED}, [State.TRACKED]
    while todo:
        new = set(TABLE[todo.pop()].next.values()) - reached
        reached |= new
        todo += new
    assert reached == set(State)


def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text() == rendered(), "run: python -m tests.orchestration.state_docs"
