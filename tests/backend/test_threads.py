"""Feeding a table while it is swept, from another thread or the agent's own methods; two sweeps at once.

Threads meet by handshakes: a hook in the agent's check lets the other thread run and waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvfast_ext import ConcurrentSweepError, DuplicateHandleError, DuplicateRequestError, WrongThreadError
from tests.backend.doubles import DISCONNECT, DONE
from tests.backend.engines import DoubleEngine
from tests.backend.rig import Rig

TIMEOUT = 30.0
Logged = Callable[[str], list[str]]


def elsewhere(action: Callable[[], object]) -> Callable[[], None]:
    """Return a hook that runs `action` in another thread and waits until it has ended."""

    def hook() -> None:
        errors: list[BaseException] = []

        def run() -> None:
            try:
                action()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "the other thread waits for the sweep"
        outcomes.append(errors[0] if errors else None)

    outcomes: list[BaseException | None] = []
    hook.outcomes = outcomes  # type: ignore[attr-defined]
    return hook


def here(action: Callable[[], object]) -> Callable[[], object]:
    return action


@pytest.fixture(params=[elsewhere, here], ids=["thread", "method"])
def during(request: pytest.FixtureRequest) -> Any:
    """Make a hook for `Double.before`, run from another thread or from the agent's own method."""
    return request.param


@pytest.fixture(params=["check", "telemetry", "release"])
def method(request: pytest.FixtureRequest) -> str:
    """In which of the agent's methods the sweep is when it happens."""
    return str(request.param)


def test_what_is_added_during_a_sweep_joins_at_its_end(
    rig: Rig, double: DoubleEngine, during: Any, method: str
) -> None:
    rig.add("r", 1)
    double.set(1, DONE)
    double.set(2, DONE)
    double.set(3, DONE)
    seen: list[Any] = []

    def add() -> None:
        rig.add("new", 2, 3, peer="p")
        table = rig.table
        seen.append(("new" in table, table.handles("new"), table.outstanding_of("p"), sorted(table)))
        seen.append((2 in table.handle_ids, 3 in table.handle_ids, len(table)))

    double.agent.before[method, 1] = during(add)
    first = rig.sweep()
    assert first.done == {"r"}
    assert [key for key in double.agent.asked() if key != 1] == []
    assert seen[0][:3] == (True, [2, 3], 2)
    assert "new" in seen[0][3]
    assert seen[1][:2] == (True, True)
    assert rig.table.handles("new") == [2, 3]
    assert (len(rig.table), rig.table.handle_count, rig.table.outstanding_of("p")) == (1, 2, 2)
    assert rig.sweep().done == {"new"}


def test_a_request_in_flight_can_get_more(rig: Rig, double: DoubleEngine, during: Any) -> None:
    rig.add("r", 1, 2)
    double.set(1, DONE)
    double.agent.before["check", 1] = during(lambda: rig.add("r", 3))
    assert rig.sweep().done == set()
    assert rig.table.handles("r") == [2, 3]
    double.set(2, DONE)
    assert rig.sweep().done == set()
    double.set(3, DONE)
    assert rig.sweep().done == {"r"}


def test_a_request_that_ends_in_the_sweep_is_done_and_then_new(
    rig: Rig, double: DoubleEngine, during: Any, method: str
) -> None:
    # Who adds to a request while its last handle ends gets it reported twice: once for each part.
    rig.add("r", 1)
    double.set(1, DONE)
    double.agent.before[method, 1] = during(lambda: rig.add("r", 2))
    assert rig.sweep().done == {"r"}
    assert (list(rig.table), rig.table.handles("r")) == (["r"], [2])
    assert rig.sweep().done == set()
    double.set(2, DONE)
    assert rig.sweep().done == {"r"}


def test_a_request_opened_during_a_sweep_is_done_at_the_next(
    rig: Rig, double: DoubleEngine, during: Any, method: str
) -> None:
    rig.add("r", 1)
    double.set(1, DONE)
    double.agent.before[method, 1] = during(lambda: rig.table.open("new"))
    assert rig.sweep().done == {"r"}
    assert list(rig.table) == ["new"]
    assert rig.sweep().done == {"new"}


def test_opened_and_then_fed_during_one_sweep(rig: Rig, double: DoubleEngine, during: Any) -> None:
    rig.add("r", 1)

    def feed() -> None:
        rig.table.open("new")
        rig.add("new", 2)
        with pytest.raises(DuplicateRequestError):
            rig.table.open("new")

    double.agent.before["check", 1] = during(feed)
    rig.sweep()
    assert rig.sweep().done == set()
    assert rig.table.handles("new") == [2]
    double.set(2, DONE)
    assert rig.sweep().done == {"new"}


def test_many_additions_keep_their_order(rig: Rig, double: DoubleEngine, during: Any) -> None:
    rig.add("r", 1)

    def feed() -> None:
        for handle in range(2, 20):
            rig.add(("s", "t", "u")[handle % 3], handle)

    double.agent.before["check", 1] = during(feed)
    rig.sweep()
    assert list(rig.table) == ["r", "u", "s", "t"]
    assert rig.table.handles("u") == [2, 5, 8, 11, 14, 17]


def test_an_interrupted_sweep_takes_in_what_was_added(rig: Rig, double: DoubleEngine, during: Any) -> None:
    rig.add("r", 1)
    double.agent.answers[1] = KeyboardInterrupt()
    double.agent.before["check", 1] = during(lambda: rig.add("new", 2))
    with pytest.raises(KeyboardInterrupt):
        rig.sweep()
    double.set(1, DONE)
    double.set(2, DONE)
    assert rig.sweep().done == {"r", "new"}


@pytest.mark.parametrize("status", [DONE, -3])
def test_an_id_that_nixl_gives_out_again_before_the_sweep_has_ended(
    rig: Rig, double: DoubleEngine, during: Any, status: int
) -> None:
    # Ids are addresses: another thread's next transfer may get the one that this sweep has just released.
    rig.add("r", 1, 2)
    double.set(1, status)

    def next_transfer() -> None:
        double.reuse(1)
        rig.table.add("new", 1)

    hook = double.agent.after_release[1] = during(next_transfer)
    assert rig.sweep().done == set()
    assert getattr(hook, "outcomes", [None]) == [None]
    assert (rig.table.handles("r"), rig.table.handles("new")) == ([2], [1])
    assert sorted(rig.table.handle_ids.tolist()) == [1, 2]
    double.set(1, DONE)
    result = rig.sweep()
    assert (result.done, result.failed) == ({"new"}, set())


def test_the_same_for_a_release_that_is_tried_again(rig: Rig, double: DoubleEngine, during: Any) -> None:
    rig.add("r", 1)
    double.set(1, -3)
    double.refuse(1, -3)
    rig.sweep()
    double.refuse(1, None)

    def next_transfer() -> None:
        double.reuse(1)
        rig.table.add("new", 1)

    hook = double.agent.after_release[1] = during(next_transfer)
    assert rig.sweep(after=10).done == {"r"}
    assert getattr(hook, "outcomes", [None]) == [None]
    assert rig.table.handles("new") == [1]


def test_a_handle_in_flight_that_is_added_again_during_a_sweep(
    rig: Rig, double: DoubleEngine, during: Any, logged: Logged
) -> None:
    # Too late to raise for the feeder: the handle is kept once, and the second request must not hang, nor
    # pass for complete.
    rig.add("r", 1)
    double.agent.before["check", 1] = during(lambda: rig.table.add("s", 1, peer="p"))
    assert rig.sweep().done == set()
    second = rig.sweep()
    assert len(logged("is in the table already")) == 1
    assert (second.done, second.failed) == ({"s"}, {"s"})
    (failure,) = second.failures
    assert (failure.req_id, failure.handle, failure.lost, failure.peer) == ("s", 1, False, "p")
    assert isinstance(failure.error, DuplicateHandleError)
    assert rig.released(1) == [0]
    double.set(1, DONE)
    third = rig.sweep()
    assert (third.done, third.failed, third.failures) == ({"r"}, set(), [])


def test_a_request_with_a_clash_waits_for_its_other_handles(
    rig: Rig, double: DoubleEngine, during: Any
) -> None:
    rig.add("r", 1)
    double.agent.before["check", 1] = during(lambda: rig.table.add("s", 2, 1, 3))
    rig.added += [2, 3]
    rig.sweep()
    second = rig.sweep()
    assert (second.done, second.failed, len(second.failures)) == (set(), {"s"}, 1)
    assert rig.table.handles("s") == [2, 3]
    double.set(2, DONE)
    double.set(3, DONE)
    third = rig.sweep()
    assert (third.done, third.failed) == ({"s"}, set())


def test_one_clash_does_not_take_other_additions_along(rig: Rig, double: DoubleEngine, during: Any) -> None:
    rig.add("r", 1)

    def feed() -> None:
        rig.add("before", 2)
        rig.table.add("bad", 1)
        rig.add("after", 3)

    double.agent.before["check", 1] = during(feed)
    assert rig.sweep().done == set()
    assert {"before", "after"} <= set(rig.table)
    for handle in (1, 2, 3):
        double.set(handle, DONE)
    assert rig.sweep().done == {"r", "before", "after", "bad"}


def test_duplicates_within_what_waits_are_refused(rig: Rig, double: DoubleEngine) -> None:
    rig.add("r", 1)
    errors: list[Exception] = []

    def feed() -> None:
        rig.add("new", 2)
        for call, arguments in ((rig.table.add, ("other", 2)), (rig.table.open, ("new",))):
            try:
                call(*arguments)
            except (DuplicateHandleError, DuplicateRequestError) as error:
                errors.append(error)

    double.agent.before["check", 1] = feed
    rig.sweep()
    assert [type(error) for error in errors] == [DuplicateHandleError, DuplicateRequestError]
    assert sorted(rig.table) == ["new", "r"]


def test_a_dead_peers_name_used_again_during_the_sweep(rig: Rig, double: DoubleEngine, during: Any) -> None:
    rig.add("old", 1, peer="p")
    double.set(1, DISCONNECT)
    double.agent.before["release", 1] = during(lambda: rig.add("new", 2, peer="p"))
    assert rig.sweep().done == {"old"}
    double.set(2, -4)
    assert rig.sweep().done == set()
    assert rig.table.quarantined == {"new"}


# ---- two sweeps at once


def test_a_second_sweep_is_an_error_and_harms_nothing(
    rig: Rig, double: DoubleEngine, during: Any, method: str
) -> None:
    rig.add("r", 1)
    double.set(1, DONE)
    errors: list[Exception] = []

    def second() -> None:
        try:
            rig.backend.pop_done_transfers(rig.table)
        except ConcurrentSweepError as error:
            errors.append(error)

    double.agent.before[method, 1] = during(second)
    assert rig.sweep().done == {"r"}
    (error,) = errors
    assert isinstance(error, WrongThreadError)
    assert "swept already" in str(error)
    assert rig.sweep().done == set()


def test_a_sweep_that_raised_does_not_lock_the_table(rig: Rig, double: DoubleEngine) -> None:
    rig.add("r", 1)
    double.agent.answers[1] = SystemExit()
    with pytest.raises(SystemExit):
        rig.sweep()
    double.set(1, DONE)
    assert rig.sweep().done == {"r"}


def test_a_clock_that_raises_does_not_lock_the_table(rig: Rig, double: DoubleEngine) -> None:
    rig.add("r", 1)
    double.set(1, DONE)
    table = rig.backend.TransferTable(rig.ops, clock=lambda: 1 / 0)
    table.open("r")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            rig.backend.pop_done_transfers(table)


def test_a_writer_feeds_while_the_owner_sweeps(rig: Rig, double: DoubleEngine) -> None:
    # 40 requests from another thread, each posted only after the owner has begun another sweep.
    double.agent.answers = dict.fromkeys(range(64), "DONE")
    turn, posted = threading.Semaphore(0), []

    def write() -> None:
        for handle in range(40):
            if not turn.acquire(timeout=TIMEOUT):
                return
            rig.add(f"r{handle % 7}", handle)
            posted.append(handle)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    samples = 0
    for _ in range(10**6):
        turn.release()
        samples += len(rig.sweep().transfers)
        if samples == 40:
            break
    writer.join(TIMEOUT)
    assert (posted, samples, len(rig.table)) == (list(range(40)), 40, 0)
