"""Stats: what is counted, from any thread, and how it reads."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kvfast import metric_names
from kvfast.histogram import POST_SECONDS, TRANSFER_SECONDS
from kvfast.stats import Stats
from kvfast_ext.contract import HandleFailure, SweepResult, Transfers

ISSUE_COUNTERS = {
    "transfers", "bytes", "failed_transfers", "failed_requests", "failed_notifs", "bad_notifs",
    "notifs_after_end", "failures_of_unknown_requests", "blind_releases", "release_retries",
    "stalled_requests", "expired_leases",
}  # fmt: skip


def transfers_of(xfer_us: list[int], post_us: list[int], nbytes: list[int], unsampled: int = 0) -> Transfers:
    xfer, post, size = (np.array(row, np.int64) for row in (xfer_us, post_us, nbytes))
    return Transfers(xfer, post, size, np.full_like(size, 2), unsampled)


def counters(stats: Stats) -> dict[str, Any]:
    """Return the counters that are not zero."""
    snapshot = stats.snapshot()
    return {name: snapshot[name] for name in metric_names.COUNTERS if snapshot[name]}


def histogram(stats: Stats, name: str) -> Any:
    return stats.snapshot()[name]


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Have threads take turns as often as can be, so that a race shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_new_one_has_every_metric_at_zero() -> None:
    snapshot = Stats().snapshot()
    assert snapshot.keys() == metric_names.METRICS.keys()
    for name, metric in metric_names.METRICS.items():
        value: Any = snapshot[name]
        if metric.kind == "histogram":
            assert value["count"] == value["sum"] == value["buckets"]["+Inf"] == 0
        else:
            assert value == 0
            assert type(value) is (int if metric.kind == "counter" else float)
    assert snapshot.keys() >= ISSUE_COUNTERS


def test_a_snapshot_is_json_and_a_copy() -> None:
    stats = Stats()
    first: Any = stats.snapshot()
    assert json.loads(json.dumps(first)) == first
    first["bytes"] = 7
    first["sweep_seconds"]["buckets"].clear()
    second: Any = stats.snapshot()
    assert second["bytes"] == 0
    assert len(second["sweep_seconds"]["buckets"]) > 10


@pytest.mark.parametrize("name", metric_names.COUNTERS)
def test_each_counter_counts_itself(name: str) -> None:
    stats = Stats()
    stats.count(name)
    stats.count(name, 4)
    stats.count(name, 0)
    assert counters(stats) == {name: 5}


@pytest.mark.parametrize("name", ["", "transfer", "sweep_seconds", "outstanding_handles", None])
def test_an_unknown_counter_is_named(name: Any) -> None:
    stats = Stats()
    with pytest.raises(ValueError, match=repr(name)):
        stats.count(name)
    assert counters(stats) == {}


def test_a_counter_goes_up_by_whole_numbers_only() -> None:
    stats = Stats()
    with pytest.raises(ValueError, match="bytes by -1"):
        stats.count("bytes", -1)
    with pytest.raises(TypeError, match="float"):
        stats.count("bytes", 1.5)  # type: ignore[arg-type]
    assert counters(stats) == {}


def test_transfers_are_counted_with_their_times() -> None:
    stats = Stats()
    stats.observe_transfers(transfers_of([100, 101, 2_000_000], [5, 6, 7], [1 << 20, 10, 1]))
    stats.observe_transfers(transfers_of([400], [1_000_000], [5], unsampled=2))
    stats.observe_transfers(transfers_of([], [], [], unsampled=1))
    stats.observe_transfers(transfers_of([], [], []))
    assert counters(stats) == {
        "transfers": 7,
        "unsampled_transfers": 3,
        "bytes": (1 << 20) + 16,
        "descriptors": 8,
    }
    took = histogram(stats, "transfer_seconds")
    assert took["count"] == 4
    assert took["sum"] == pytest.approx(2.000601)
    assert (took["buckets"]["0.0001"], took["buckets"]["0.0005"], took["buckets"]["1.0"]) == (1, 3, 3)
    posted = histogram(stats, "post_seconds")
    assert posted["count"] == 4
    assert posted["sum"] == pytest.approx(1.000018)
    assert (posted["buckets"]["5e-06"], posted["buckets"]["1e-05"], posted["buckets"]["0.5"]) == (1, 3, 3)


def test_a_time_that_equals_a_bound_is_in_its_bucket() -> None:
    for name, bounds in (("transfer_seconds", TRANSFER_SECONDS), ("post_seconds", POST_SECONDS)):
        stats = Stats()
        micros = [round(bound * 1e6) for bound in bounds]
        stats.observe_transfers(transfers_of(micros, micros, micros))
        buckets = histogram(stats, name)["buckets"]
        assert [buckets[repr(bound)] for bound in bounds] == list(range(1, len(bounds) + 1))


def test_sweeps_are_counted() -> None:
    stats = Stats()
    for seconds in (5e-7, 2e-6, 0.5):
        stats.observe_sweep(seconds)
    took = histogram(stats, "sweep_seconds")
    assert took["count"] == 3
    assert took["sum"] == pytest.approx(0.5000025)
    assert (took["buckets"]["1e-06"], took["buckets"]["2.5e-06"], took["buckets"]["0.1"]) == (1, 2, 2)
    assert counters(stats) == {}


def test_a_result_is_counted_whole() -> None:
    failure = HandleFailure("R", 1, "BACKEND", None)
    stats = Stats()
    stats.observe_result(SweepResult(transfers_of([1], [1], [9]), failures=[failure, failure]))
    stats.observe_result(
        SweepResult(transfers_of([], [], []), blind_releases=3, release_retries=4, retained=5)
    )
    assert counters(stats) == {
        "transfers": 1,
        "bytes": 9,
        "descriptors": 2,
        "failed_transfers": 2,
        "blind_releases": 3,
        "release_retries": 4,
    }


@pytest.mark.parametrize(
    "call",
    [
        lambda stats: stats.observe_transfers(None),
        lambda stats: stats.observe_transfers([1]),
        lambda stats: stats.observe_sweep(None),
    ],
)
def test_what_is_no_observation_is_refused_and_leaves_nothing(call: Callable[[Stats], None]) -> None:
    stats = Stats()
    with pytest.raises(TypeError):
        call(stats)
    assert stats.snapshot() == Stats().snapshot()


def test_what_is_queued_stays_short() -> None:
    stats = Stats()
    longest = 0
    for _ in range(2_000):
        stats.observe_sweep(1e-5)
        stats.observe_transfers(transfers_of([1], [1], [1]))
        stats.count("sent_notifs")
        longest = max(longest, len(stats._queue))
    assert longest <= 128
    assert counters(stats)["sent_notifs"] == counters(stats)["transfers"] == 2_000
    assert histogram(stats, "sweep_seconds")["count"] == 2_000


def test_nobody_who_counts_waits_for_one_who_reads() -> None:
    stats = Stats()

    def work() -> None:
        for _ in range(1_000):
            stats.observe_sweep(1e-5)
            stats.count("sent_notifs")

    thread = threading.Thread(target=work, daemon=True)
    with stats._folding:  # as a reader holds it
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert counters(stats) == {"sent_notifs": 1_000}
    assert histogram(stats, "sweep_seconds")["count"] == 1_000


@pytest.mark.usefixtures("eager_switching")
def test_no_count_is_lost_between_threads() -> None:
    stats = Stats()
    each, workers = 4_000, 4
    start = threading.Barrier(workers + 1)
    errors: list[BaseException] = []
    batch = transfers_of([10, 20], [1, 2], [3, 4], unsampled=1)

    def work() -> None:
        try:
            start.wait()
            for _ in range(each):
                stats.count("failed_notifs")
                stats.count("release_retries", 2)
                stats.observe_sweep(1.0)
                stats.observe_transfers(batch)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    start.wait()
    seen = []
    while any(thread.is_alive() for thread in threads):
        seen.append(counters(stats).get("failed_notifs", 0))
    for thread in threads:
        thread.join()
    total = each * workers
    assert errors == []
    assert seen == sorted(seen)  # a reader never sees a counter go down
    assert counters(stats) == {
        "failed_notifs": total,
        "release_retries": 2 * total,
        "transfers": 3 * total,
        "unsampled_transfers": total,
        "bytes": 7 * total,
        "descriptors": 4 * total,
    }
    assert histogram(stats, "sweep_seconds")["count"] == total
    assert histogram(stats, "sweep_seconds")["sum"] == total
    assert histogram(stats, "transfer_seconds")["count"] == 2 * total


def test_gauges_are_asked_for_only_by_a_reader() -> None:
    stats = Stats()
    asked = []

    def provider() -> dict[str, float]:
        asked.append(1)
        return {"outstanding_handles": 3}

    stats.set_gauges(provider)
    for _ in range(1_000):
        stats.observe_sweep(1e-5)
        stats.count("sent_notifs")
    assert asked == []
    snapshot = stats.snapshot()
    assert (snapshot["outstanding_handles"], snapshot["quarantined_blocks"]) == (3, 0)
    assert asked == [1]


def test_gauges_of_several_are_combined_and_unset() -> None:
    def receiver() -> dict[str, float]:
        return {"outstanding_handles": 3, "oldest_outstanding_seconds": 9.0}

    def sender() -> dict[str, float]:
        return {"outstanding_handles": 4, "oldest_outstanding_seconds": 2.5}

    stats = Stats()
    stats.set_gauges(receiver)
    stats.set_gauges(sender)
    snapshot = stats.snapshot()
    assert (snapshot["outstanding_handles"], snapshot["oldest_outstanding_seconds"]) == (7, 9.0)
    stats.unset_gauges(receiver)
    stats.unset_gauges(receiver)
    snapshot = stats.snapshot()
    assert (snapshot["outstanding_handles"], snapshot["oldest_outstanding_seconds"]) == (4, 2.5)


def raising() -> dict[str, float]:
    raise RuntimeError("dictionary changed size during iteration")


def unknown() -> dict[str, float]:
    return {"outstanding_handles": 1, "no_such_gauge": 2}


def no_number() -> dict[str, Any]:
    return {"outstanding_handles": "many"}


def nothing() -> Any:
    return None


@pytest.mark.parametrize("broken", [raising, unknown, no_number, nothing])
@pytest.mark.parametrize("first", [True, False])
def test_a_gauge_that_fails_is_nan_and_counted_and_logged(
    broken: Callable[[], dict[str, float]], first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stats = Stats(clock=lambda: 0.0)

    def working() -> dict[str, float]:
        return {"outstanding_handles": 1, "oldest_outstanding_seconds": 2}

    for provider in (broken, working) if first else (working, broken):
        stats.set_gauges(provider)
    stats.count("sent_notifs")
    with caplog.at_level(logging.WARNING, logger="kvfast.stats"):
        for reads in range(1, 11):
            snapshot: Any = stats.snapshot()
            assert all(math.isnan(snapshot[name]) for name in metric_names.GAUGES)
            assert snapshot["failed_gauges"] == reads
            assert snapshot["sent_notifs"] == 1
    assert len(caplog.records) == 3  # the burst of the rate limit
    assert broken.__name__ in caplog.text


def test_a_slow_gauge_holds_nobody_up() -> None:
    stats = Stats()
    asked, go_on = threading.Event(), threading.Event()

    def slow() -> dict[str, float]:
        asked.set()
        assert go_on.wait(60)
        return {"outstanding_handles": 1}

    stats.set_gauges(slow)
    reader = threading.Thread(target=stats.snapshot, daemon=True)
    reader.start()
    assert asked.wait(60)
    stats.unset_gauges(slow)
    stats.count("sent_notifs")
    assert counters(stats) == {"sent_notifs": 1}
    go_on.set()
    reader.join(60)
    assert not reader.is_alive()


def test_infos_are_kept_once_each() -> None:
    stats = Stats()
    assert list(stats.infos) == []
    for scan in ("watch", "watch", "all"):
        stats.set_info(backend="cython", ops="nixl", scan=scan)
    assert [info["scan"] for info in stats.infos] == ["watch", "all"]
    stats.infos[0]["scan"] = "changed"
    assert [info["scan"] for info in stats.infos] == ["watch", "all"]
