"""The producer's lease, as the consumer knows it: what is read after it may be the next owner's."""

from __future__ import annotations

import pytest

from kvfast import UnknownRequestError
from tests.orchestration.rigs import ReceiveRig, ends


def test_a_read_that_ends_after_the_lease_fails(rig: ReceiveRig) -> None:
    rig.track("R", 1, read_before=10)
    rig.receiver.add_notif("R", "P0", b"R:1")
    rig.clock.advance(10.001)
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    assert rig.agent.sent == []
    assert rig.count("expired_leases") == 1
    assert rig.count("failed_transfers") == 0
    rig.agent.assert_drained()


def test_a_read_that_ends_within_the_lease_is_good(rig: ReceiveRig) -> None:
    rig.track("R", 1, read_before=10)
    rig.clock.advance(10)
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())
    assert rig.count("expired_leases") == 0


def test_it_is_reported_only_when_all_has_ended(rig: ReceiveRig) -> None:
    rig.track("R", 1, 2, read_before=10)
    rig.clock.advance(11)
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), set(), set())
    rig.states("DONE", 2)
    assert ends(rig.poll()) == (set(), {"R"}, set())


def test_an_extended_lease(rig: ReceiveRig) -> None:
    rig.track("R", 1, read_before=10)
    rig.receiver.extend("R", 30)
    rig.receiver.extend("R", 20)  # never shortens
    rig.clock.advance(25)
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_a_request_without_a_lease_is_never_late(rig: ReceiveRig) -> None:
    rig.track("R", 1)
    rig.receiver.extend("R", 1)
    rig.clock.advance(1000)
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_nothing_read_nothing_late(rig: ReceiveRig) -> None:
    rig.track("R", read_before=10)
    rig.receiver.complete("R")
    rig.clock.advance(11)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_an_aborted_one_stays_aborted_and_its_notification_is_sent(rig: ReceiveRig) -> None:
    rig.track("R", 1, read_before=10)
    rig.receiver.add_notif("R", "P0", b"R:1")
    rig.receiver.abort("R")
    rig.clock.advance(11)
    rig.states("DONE", 1)
    assert ends(rig.poll()) == (set(), set(), {"R"})
    assert rig.agent.sent == [("P0", b"R:1")]
    assert rig.count("expired_leases") == 0


@pytest.mark.parametrize("bad", [None, "soon", float("nan"), float("inf")])
def test_a_moment_that_is_none(rig: ReceiveRig, bad: object) -> None:
    rig.track("R", 1, read_before=10)
    with pytest.raises((TypeError, ValueError), match="read_before"):
        rig.receiver.extend("R", bad)  # type: ignore[arg-type]
    rig.states("DONE", 1)
    assert ends(rig.poll()) == ({"R"}, set(), set())


def test_a_request_that_is_not_tracked(rig: ReceiveRig) -> None:
    with pytest.raises(UnknownRequestError, match="'R'"):
        rig.receiver.extend("R", 1)
