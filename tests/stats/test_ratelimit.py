"""The limit on log lines that a peer can cause."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfast.ratelimit import RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_burst_is_allowed_then_dropped_and_told_once(clock: Clock) -> None:
    limit = RateLimit(burst=2, every_s=10, clock=clock)
    assert [limit.allow("P") for _ in range(5)] == [0, 0, None, None, None]
    clock.now += 9.99
    assert limit.allow("P") is None
    clock.now += 0.02
    assert [limit.allow("P") for _ in range(3)] == [4, 0, None]


def test_a_quiet_key_starts_its_window_at_its_next_event(clock: Clock) -> None:
    limit = RateLimit(burst=1, every_s=10, clock=clock)
    assert limit.allow("P") == 0
    clock.now += 19
    assert limit.allow("P") == 0
    clock.now += 9  # 28 s after the first event, 9 s into this window
    assert limit.allow("P") is None


def test_keys_do_not_share_an_allowance(clock: Clock) -> None:
    limit = RateLimit(burst=1, every_s=10, clock=clock)
    assert [limit.allow(key) for key in ("P", "Q", "P", "Q", ("P", 1), None)] == [0, 0, None, None, 0, 0]


def test_invented_names_share_one_allowance_and_are_not_kept(clock: Clock) -> None:
    limit = RateLimit(burst=2, every_s=10, max_keys=3, clock=clock)
    answers = [limit.allow(f"invented-{i}") for i in range(1_000)]
    assert answers == [0] * 5 + [None] * 995
    assert len(limit) == 3
    assert limit.allow("invented-0") == 0  # one that is kept has its own allowance still


def test_a_key_whose_window_is_over_makes_room(clock: Clock) -> None:
    limit = RateLimit(burst=1, every_s=10, max_keys=2, clock=clock)
    assert limit.allow("old") == 0
    clock.now += 6
    assert limit.allow("young") == 0
    clock.now += 6
    assert limit.allow("new") == 0  # in the place of "old"
    assert len(limit) == 2
    assert [limit.allow(key) for key in ("young", "new", "old")] == [None, None, 0]


def test_a_key_that_goes_on_keeps_its_place(clock: Clock) -> None:
    limit = RateLimit(burst=1, every_s=10, max_keys=2, clock=clock)
    limit.allow("busy")
    clock.now += 1
    limit.allow("quiet")
    clock.now += 10
    assert limit.allow("busy") == 0  # its window is the younger one now
    assert limit.allow("new") == 0  # in the place of "quiet"
    assert limit.allow("busy") is None
    assert limit.allow("one of the others") == 0  # which "new" is not


def test_drops_of_a_key_that_made_room_are_told_by_the_others(clock: Clock) -> None:
    limit = RateLimit(burst=1, every_s=10, max_keys=1, clock=clock)
    assert [limit.allow("old") for _ in range(3)] == [0, None, None]
    clock.now += 10
    assert limit.allow("new") == 0
    assert limit.allow("one of the others") == 2


EVENTS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.0, 0.0, 1.0, 4.0, 11.0])), max_size=200
)


@settings(deadline=None)
@given(EVENTS, st.integers(1, 3), st.integers(1, 4))
def test_the_log_is_bounded_and_every_drop_is_told(
    events: list[tuple[int, float]], burst: int, max_keys: int
) -> None:
    clock = Clock()
    limit = RateLimit(burst=burst, every_s=10, max_keys=max_keys, clock=clock)
    answers: list[int | None] = []
    allowed_at: list[float] = []
    for key, wait in events:
        clock.now += wait
        answers.append(limit.allow(key))
        assert len(limit) <= max_keys
        if answers[-1] is not None:
            allowed_at.append(clock.now)
    # Any 10 s touch two windows of a key at the most.
    for start in allowed_at:
        assert sum(start <= when < start + 10 for when in allowed_at) <= 2 * burst * (max_keys + 1)
    clock.now += 10
    answers += [limit.allow(key) for key in range(10)]  # what the kept ones have to tell
    clock.now += 10
    answers += [limit.allow(f"new {i}") for i in range(max_keys + 1)]  # the last is one of the others
    assert sum(answer or 0 for answer in answers) == answers.count(None)


class YieldingKey:
    """A key that lets other threads run whenever it is looked up."""

    def __hash__(self) -> int:
        time.sleep(0)
        return 1

    def __eq__(self, other: object) -> bool:
        time.sleep(0)
        return self is other


def test_threads_share_an_allowance_and_lose_nothing(clock: Clock) -> None:
    limit = RateLimit(burst=1, every_s=10, clock=clock)
    keys = [YieldingKey() for _ in range(20)]
    workers, each = 4, 10
    barrier = threading.Barrier(workers)
    answers: list[list[int | None]] = [[] for _ in range(workers)]

    def work(mine: list[int | None]) -> None:
        for key in keys:
            barrier.wait()
            mine.extend(limit.allow(key) for _ in range(each))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(mine) for mine in answers] == [len(keys) * each] * workers
    assert sum(answer is not None for mine in answers for answer in mine) == len(keys)
    clock.now += 10
    assert [limit.allow(key) for key in keys] == [workers * each - 1] * len(keys)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"burst": 0}, ValueError, "burst .* 0"),
        ({"burst": 1.5}, TypeError, "burst .* 1.5"),
        ({"burst": True}, TypeError, "burst .* True"),
        ({"max_keys": -1}, ValueError, "max_keys .* -1"),
        ({"every_s": 0}, ValueError, "every_s .* 0"),
        ({"every_s": float("nan")}, ValueError, "every_s .* nan"),
        ({"every_s": "1"}, TypeError, "every_s .* '1'"),
    ],
)
def test_bad_numbers_are_named(arguments: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        RateLimit(**arguments)


def test_a_finaliser_may_log_while_another_line_is_decided() -> None:
    told: list[int | None] = []

    class Finalising(Clock):
        armed = False

        def __call__(self) -> float:
            if self.armed:
                self.armed = False
                told.append(limit.allow("inner"))  # as a finaliser does that the collector runs here
            return super().__call__()

    clock = Finalising()
    limit = RateLimit(clock=clock)
    clock.armed = True
    thread = threading.Thread(target=lambda: told.append(limit.allow("outer")), daemon=True)
    thread.start()
    thread.join(60)
    assert told == [0, 0]
