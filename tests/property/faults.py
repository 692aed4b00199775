"""Faults to be found: each breaks one promise in one place.

Where it can be, a fault is a subclass that does a public method wrongly. The others change a row of the
table of request states, or a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any, Final

import pytest

from kvfast import PeerGuard, Receiver, Sender
from kvfast.request_states import ENDINGS, TABLE, Event, State
from kvfast.results import ReceiveResults, SendResults
from kvfast_ext import states
from kvfast_ext.agent_ops import PythonOps
from kvfast_ext.held import HeldHandles
from kvfast_ext.python_backend.store import PythonStore
from tests.property.receive_world import ReceiveWorld
from tests.property.send_world import SendWorld

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]


def made_as(world: type[ReceiveWorld | SendWorld], subject: Callable[..., Any]) -> Fault:
    """Return the fault of making the object under test in another way."""

    def fault(patch: Patch) -> None:
        patch.setattr(world, "make", staticmethod(subject))

    fault.__name__ = subject.__name__
    return fault


def rule(state: State, name: str, **changes: Any) -> Fault:
    """Return the fault of a wrong row in the table of states."""

    def fault(patch: Patch) -> None:
        wrong = TABLE[state]._replace(**changes)
        patch.setitem(TABLE, state, wrong)
        if state in ENDINGS:  # made from the table when it was imported
            patch.setitem(ENDINGS, state, (wrong.next[Event.DRAINED], wrong.notifies))

    fault.__name__ = name
    return fault


def leads_to(state: State, event: Event, following: State, name: str) -> Fault:
    """Return the fault of a wrong arrow in the table of states."""
    return rule(state, name, next={**TABLE[state].next, event: following})


# ---- Receivers


class ReportsAFailureAtOnce(Receiver):
    def fail(self, req_id: str, reason: str) -> None:
        super().fail(req_id, reason)
        self._early = req_id

    def poll(self) -> ReceiveResults:
        results = super().poll()
        early, self._early = self._early, ""
        return replace(results, failed=results.failed | {early}) if early in self else results

    _early = ""


class NamesBlocksAtOnce(Receiver):
    def track(self, req_id: str, block_ids: Any, **options: Any) -> None:
        super().track(req_id, block_ids, **options)
        self._early = (req_id, block_ids)

    def poll(self) -> ReceiveResults:
        results = super().poll()
        req_id, blocks = self._early
        if req_id not in self or not any(blocks):
            return results
        both: Iterable[Any] = zip_longest(results.invalid_block_ids, blocks, fillvalue=[])
        return replace(results, invalid_block_ids=[[*named, *early] for named, early in both])

    _early: tuple[str, Any] = ("", [])


class WaitsForNoWriter(Receiver):
    def expect_writes(self, req_id: str) -> None:
        self.complete(req_id)


class NotifiesAtOnce(Receiver):
    def add_notif(self, req_id: str, agent_name: str, message: bytes) -> None:
        super().add_notif(req_id, agent_name, message)
        self._early = [(req_id, agent_name, message)]

    def poll(self) -> ReceiveResults:
        results = super().poll()
        for req_id, peer, message in self._early:
            if req_id in self:
                with suppress(RuntimeError):  # a peer that is deaf
                    self._agent.send_notif(peer, message)
        self._early = []
        return results

    _early: list[tuple[str, str, bytes]] = []  # noqa: RUF012 - replaced, never changed


class ReportsAgain(Receiver):
    _last: frozenset[str] = frozenset()

    def poll(self) -> ReceiveResults:
        results = super().poll()
        last, self._last = self._last, results.finished
        return replace(results, finished=results.finished | last)


class ReportsInTwoSets(Receiver):
    def poll(self) -> ReceiveResults:
        results = super().poll()
        return replace(results, aborted=results.aborted | results.finished)


class ForgetsAborts(Receiver):
    def poll(self) -> ReceiveResults:
        return replace(super().poll(), aborted=frozenset())


class DropsReports(Receiver):
    def report_failure(self, req_id: str, reason: str) -> None:
        if req_id not in self:
            super().report_failure(req_id, reason)


class NamesAStallTwice(Receiver):
    _last: frozenset[str] = frozenset()

    def poll(self) -> ReceiveResults:
        results = super().poll()
        last, self._last = self._last, results.stalled
        return replace(results, stalled=results.stalled | last)


class LosesNotifications(Receiver):
    def add_notif(self, req_id: str, agent_name: str, message: bytes) -> None:
        if req_id not in self:
            super().add_notif(req_id, agent_name, message)


class NamesOneGroup(Receiver):
    def poll(self) -> ReceiveResults:
        results = super().poll()
        return replace(results, invalid_block_ids=results.invalid_block_ids[:1])


# ---- Senders


class FinishesAtTheFirstConsumer(Sender):
    def notified(self, req_id: str, expected_consumers: int) -> None:
        super().notified(req_id, 1)


class GivesUpBlocksUnderAWrite(Sender):
    def post(self, req_id: str, *args: Any, **options: Any) -> bool:
        self._early = req_id
        return super().post(req_id, *args, **options)

    def poll(self) -> SendResults:
        results = super().poll()
        early, self._early = self._early, ""
        return replace(results, expired=results.expired | {early}) if early in self else results

    _early = ""


class NeverExpires(Sender):
    def poll(self) -> SendResults:
        return replace(super().poll(), expired=frozenset())


class ForgetsFailures(Sender):
    def fail(self, req_id: str, reason: str) -> None:
        if req_id not in self:
            super().fail(req_id, reason)


class WritesAfterItsLease(Sender):
    def track(self, req_id: str, block_ids: Any, **options: Any) -> None:
        super().track(req_id, block_ids, **options)
        self._tracked = (req_id, self._clock() + options["lease_s"])

    def post(self, req_id: str, *args: Any, **options: Any) -> bool:
        tracked, over = getattr(self, "_tracked", ("", 0.0))
        if req_id == tracked and self._clock() >= over:
            self.heartbeat([req_id], 1000.0)
        return super().post(req_id, *args, **options)


# ---- request states

finishes_what_failed = leads_to(State.FAILING, Event.DRAINED, State.ENDED_FINISHED, "finishes_what_failed")
forgets_a_failure = leads_to(State.FAILING, Event.BEGIN, State.OUTSTANDING, "forgets_a_failure")
finishes_a_failed_send = leads_to(
    State.FAILING, Event.DRAINED_LEASED, State.ENDED_FINISHED, "finishes_a_failed_send"
)
finishes_without_a_write = leads_to(
    State.TRACKED, Event.DRAINED_OVERDUE, State.ENDED_FINISHED, "finishes_without_a_write"
)
notifies_of_a_failure = rule(State.FAILING, "notifies_of_a_failure", notifies=True)
notifies_of_a_failed_abort = rule(State.ABORTED_FAILING, "notifies_of_a_failed_abort", notifies=True)
posts_after_a_failure = rule(State.FAILING, "posts_after_a_failure", posts=True)


# ---- peers


def removes_a_peer_at_once(patch: Patch) -> None:
    patch.setattr(PeerGuard, "outstanding_of", lambda self, peer: 0)


# ---- backends


def releases_in_flight(patch: Patch) -> None:
    status = PythonOps.status

    def never_in_progress(self: PythonOps, handle: Any) -> Any:
        code, error = status(self, handle)
        return (states.SUCCESS if code == states.IN_PROG else code), error

    patch.setattr(PythonOps, "status", never_in_progress)


def releases_lost_handles(patch: Patch) -> None:
    hold = HeldHandles.hold_failed

    def due_now(self: HeldHandles, *args: Any, lost: bool) -> None:
        hold(self, *args, lost=lost)
        _, _, key, _, now = args
        self._held[key].due = now

    patch.setattr(HeldHandles, "hold_failed", due_now)


def releases_twice(patch: Patch) -> None:
    release = PythonOps.release

    def twice(self: PythonOps, handle: Any) -> Any:
        error = release(self, handle)
        if error is None:
            release(self, handle)
        return error

    patch.setattr(PythonOps, "release", twice)


def never_releases(patch: Patch) -> None:
    patch.setattr(PythonOps, "release", lambda self, handle: None)


def keeps_failed_handles(patch: Patch) -> None:
    patch.setattr(HeldHandles, "release_due", lambda self, now, release: ([], 0))


def never_scans_in_full(patch: Patch) -> None:
    ask = PythonStore._ask
    patch.setattr(PythonStore, "_ask", lambda self, req_id, full: ask(self, req_id, False))


def watch_asks_one_handle_only(patch: Patch) -> None:
    ask = PythonStore._ask

    def asked(self: PythonStore, req_id: str, full: bool) -> Iterator[Any]:
        return islice(ask(self, req_id, full), None if full else 1)

    patch.setattr(PythonStore, "_ask", asked)


# ---- one backend that differs from the other


class NamesBlocksBackwards(Receiver):
    def poll(self) -> ReceiveResults:
        results = super().poll()
        return replace(results, invalid_block_ids=[group[::-1] for group in results.invalid_block_ids])


class CountsMoreReceived(Receiver):
    def poll(self) -> ReceiveResults:
        self.stats.count("bytes")
        return super().poll()


class CountsMoreSent(Sender):
    def poll(self) -> SendResults:
        self.stats.count("bytes")
        return super().poll()


def on_python_only(broken: type[Receiver | Sender]) -> Callable[..., Any]:
    """Return what makes a broken object for the python backend, and a sound one for the other."""

    def make(*args: Any, backend: str, **options: Any) -> Receiver | Sender:
        sound = Receiver if issubclass(broken, Receiver) else Sender
        return (broken if backend == "python" else sound)(*args, backend=backend, **options)

    make.__name__ = broken.__name__
    return make


RECEIVE: Final[list[tuple[int, Fault]]] = [
    (1, made_as(ReceiveWorld, ReportsAFailureAtOnce)),
    (1, made_as(ReceiveWorld, NamesBlocksAtOnce)),
    (1, made_as(ReceiveWorld, WaitsForNoWriter)),
    (1, made_as(ReceiveWorld, NotifiesAtOnce)),
    (2, made_as(ReceiveWorld, ReportsAgain)),
    (2, made_as(ReceiveWorld, ReportsInTwoSets)),
    (2, made_as(ReceiveWorld, ForgetsAborts)),
    (2, made_as(ReceiveWorld, DropsReports)),
    (3, releases_in_flight),
    (3, releases_lost_handles),
    (3, releases_twice),
    (3, removes_a_peer_at_once),
    (4, finishes_what_failed),
    (4, forgets_a_failure),
    (4, notifies_of_a_failure),
    (4, notifies_of_a_failed_abort),
    (4, posts_after_a_failure),
]
SEND: Final[list[tuple[int, Fault]]] = [
    (2, made_as(SendWorld, NeverExpires)),
    (3, releases_in_flight),
    (3, releases_lost_handles),
    (3, releases_twice),
    (4, made_as(SendWorld, ForgetsFailures)),
    (4, finishes_a_failed_send),
    (4, posts_after_a_failure),
    (5, made_as(SendWorld, FinishesAtTheFirstConsumer)),
    (5, finishes_without_a_write),
    (6, made_as(SendWorld, GivesUpBlocksUnderAWrite)),
    (6, made_as(SendWorld, WritesAfterItsLease)),
]
