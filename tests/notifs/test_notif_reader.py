"""What a peer can do to an engine with its notifications: be heard, or be counted and logged a little."""

from __future__ import annotations

import logging

import pytest

from kvfast.notifs import Consumed, Heartbeat, NotifReader
from kvfast.stats import Stats


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stats() -> Stats:
    return Stats()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(stats: Stats, clock: Clock) -> NotifReader:
    return NotifReader(stats, clock=clock)


def test_good_ones_come_back_in_order_with_their_peer(reader: NotifReader, stats: Stats) -> None:
    read = reader.read({"P0": [b"r1:1", b"bad", b"HB:r2"], "P1": [], "P2": [b"r1:1", b"r1:1"]})
    consumed = Consumed("r1", 1)
    assert read == [("P0", consumed), ("P0", Heartbeat(("r2",))), ("P2", consumed), ("P2", consumed)]
    assert stats.snapshot()["bad_notifs"] == 1
    assert reader.read({}) == []


def test_bad_ones_are_all_counted_and_logged_for_each_peer_a_little(
    reader: NotifReader, stats: Stats, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="kvfast.notifs"):
        assert reader.read({"P0": [b"bad"] * 100, "P1": [None, b"\xff:1"]}) == []
        assert stats.snapshot()["bad_notifs"] == 102
        assert [record.getMessage() for record in caplog.records] == [
            *["notification of 'P0' ignored: no count in 'bad' (0 more before)"] * 3,
            "notification of 'P1' ignored: not bytes but NoneType (0 more before)",
            "notification of 'P1' ignored: not UTF-8 at byte 0: b'\\xff:1' (0 more before)",
        ]
        caplog.clear()
        clock.now = 30.0
        reader.read({"P0": [b"bad"]})
    assert [record.args for record in caplog.records] == [("P0", "no count in 'bad'", 97)]


def test_a_peer_can_not_write_lines_of_its_own(reader: NotifReader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="kvfast.notifs"):
        reader.read({"P\nERROR forged": [b"x\nERROR forged", b"r:\n1", b"\xff\n"]})
    assert len(caplog.records) == 3
    for record in caplog.records:
        assert "\n" not in record.getMessage()


def test_names_that_a_peer_invents_do_not_fill_the_log(
    reader: NotifReader, stats: Stats, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="kvfast.notifs"):
        reader.read({f"invented-{i}": [b"bad"] for i in range(5_000)})
    assert stats.snapshot()["bad_notifs"] == 5_000
    assert len(caplog.records) == 256 + 3  # as many as are kept, and the burst of all others
