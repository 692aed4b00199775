"""What a poll may not do: look at requests that have not ended. Counted, not timed; bench/ has times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvfast.request_states import ENDINGS, State
from kvfast.sending.leases import Leases
from kvfast.sending.request import SendRequest
from tests.orchestration.rigs import ReceiveRig, SendRig

MANY = 200


class Counting(dict[State, Any]):
    """A table that counts how often it is looked at."""

    looks = 0

    def get(self, state: State, default: Any = None) -> Any:
        self.looks += 1
        return super().get(state, default)


def test_a_receivers_poll_looks_only_at_what_has_ended(
    receive_rig: Callable[..., ReceiveRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Counting(ENDINGS)
    monkeypatch.setattr("kvfast.receive.ENDINGS", table)
    rig = receive_rig(stall_after_s=1000)
    for number in range(1, MANY + 1):
        rig.track(f"R{number}", number)
    for _ in range(20):
        rig.poll()
    assert table.looks == 0
    rig.states("DONE", 7)
    assert rig.poll().finished == {"R7"}
    assert table.looks == 1
    rig.poll()
    assert table.looks == 1


def test_a_senders_poll_looks_only_at_what_has_ended_or_is_due(
    sending: SendRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    drained: Any = SendRequest.drained

    def asking(request: SendRequest) -> bool:
        asked.append(request.req_id)
        return bool(drained.fget(request))

    monkeypatch.setattr(SendRequest, "drained", property(asking))
    for number in range(1, MANY + 1):
        sending.track(f"R{number}", lease_s=1000 + number)
    for _ in range(20):
        sending.clock.advance(1)
        sending.poll()
    assert asked == []
    sending.clock.advance(1001 - 20)
    assert sending.poll().expired == {"R1"}
    assert asked == ["R1"]


def test_heartbeats_add_nothing_to_the_heap(sending: SendRig) -> None:
    names = [f"R{number}" for number in range(MANY)]
    for req_id in names:
        sending.track(req_id, lease_s=30)
    for _ in range(20):
        sending.clock.advance(10)
        sending.sender.heartbeat(names, 30)
        sending.poll()
        assert len(sending.sender._leases) == MANY


def test_ended_requests_do_not_pile_up_in_the_heap(sending: SendRig) -> None:
    for number in range(10 * MANY):
        sending.track(f"R{number}", lease_s=1e6)
        sending.sender.notified(f"R{number}", 1)
        sending.poll()
        assert len(sending.sender._leases) < MANY


def test_a_heap_that_was_cleared_away_still_ends_leases() -> None:
    requests: dict[str, SendRequest] = {}
    leases = Leases(requests)
    for number in range(300):
        request = SendRequest(f"R{number}", (), None, 100.0 - number / 10, number, 0.0)
        requests[request.req_id] = request
        leases.add(request)
        if number % 10:
            del requests[request.req_id]
    assert len(leases) < 300
    assert [request.req_id for request in leases.due(90.0)] == [f"R{n}" for n in range(290, 90, -10)]
