"""Where registrations and finished blocks meet."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kvfast.rendezvous import PushMatch, PushRendezvous
from kvfast.results import SendResults
from tests.orchestration.rigs import SendRig

Meeting = PushRendezvous[str, str]


@pytest.fixture
def meeting() -> Meeting:
    """A rendezvous with room for a few."""
    return PushRendezvous(capacity=4)


def meet(meeting: Meeting, prefill: str, decode: str, first: str) -> PushMatch[str, str] | None:
    """Let the two come in this order; return the match of the second."""
    if first == "decode":
        assert meeting.register(decode, "where") is None
        return meeting.finished_blocks(prefill, "blocks")
    assert meeting.finished_blocks(prefill, "blocks") is None
    return meeting.register(decode, "where")


@pytest.mark.parametrize("first", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("R", "R"),
        ("R-0123abcd", "R-0123abcd"),
        ("R-0123abcd", "R-deadbeef"),
        ("R-0123ABCD", "R"),
        ("R", "R-0123abcd"),
        ("a:b-c-00000000", "a:b-c-11111111"),
    ],
)
def test_they_meet_whichever_is_first(meeting: Meeting, prefill: str, decode: str, first: str) -> None:
    assert meet(meeting, prefill, decode, first) == PushMatch(prefill, "blocks", decode, "where")
    assert len(meeting) == 0  # handed out once


@pytest.mark.parametrize("first", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("R", "S"),
        ("R-0123abcd", "S-0123abcd"),
        ("R-0123abc", "R"),  # 7 digits
        ("R-0123abcde", "R"),  # 9
        ("R-0123abcg", "R"),  # no hex
        ("R0123abcd", "R"),  # no dash
        ("R-0123abcd-0123abcd", "R"),  # one suffix only
        ("R-0123abcd\n", "R"),
        ("R-0123abcd\n", "R\n"),
        ("R-０１２３abcd", "R"),  # noqa: RUF001 - digits of another script
    ],
)
def test_they_do_not_meet(meeting: Meeting, prefill: str, decode: str, first: str) -> None:
    assert meet(meeting, prefill, decode, first) is None
    assert len(meeting) == 2


@pytest.mark.parametrize("first", ["decode", "prefill"])
def test_the_exact_id_comes_before_one_that_is_alike(meeting: Meeting, first: str) -> None:
    wait = meeting.register if first == "decode" else meeting.finished_blocks
    come = meeting.finished_blocks if first == "decode" else meeting.register
    for req_id in ("R-00000000", "R-11111111", "R-22222222"):
        assert wait(req_id, req_id) is None
    met = come("R-11111111", "x")
    assert met is not None
    assert (met.req_id, met.decode_req_id) == ("R-11111111", "R-11111111")
    met = come("R-33333333", "x")  # nobody of that id: the oldest that is alike
    assert met is not None
    assert {met.req_id, met.decode_req_id} == {"R-33333333", "R-00000000"}
    assert "R-22222222" in meeting


def test_a_second_registration_takes_the_firsts_place(meeting: Meeting) -> None:
    meeting.register("R", "old")
    meeting.register("R", "new")
    assert len(meeting) == 1
    met = meeting.finished_blocks("R", "blocks")
    assert met is not None
    assert met.registration == "new"


def test_a_peer_can_not_make_it_grow(meeting: Meeting, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        meeting.register(f"R{number}", "where")
        assert len(meeting) <= 4
    assert [f"R{number}" in meeting for number in (95, 96, 99)] == [False, True, True]
    assert meeting.stats.snapshot()["evicted_registrations"] == 96
    lines = [record for record in caplog.records if "rendezvous full" in record.message]
    assert 1 <= len(lines) < 10
    assert "request 'R0'" in lines[0].message
    assert not meeting._registrations._ids.keys() - {f"R{number}" for number in range(96, 100)}


def test_registrations_do_not_crowd_out_finished_blocks(meeting: Meeting) -> None:
    meeting.finished_blocks("mine", "blocks")
    for number in range(100):
        meeting.register(f"R{number}", "where")
    assert meeting.register("mine", "where") is not None


def test_finished_and_expired_evict_and_a_failed_send_does_not(sending: SendRig, meeting: Meeting) -> None:
    for number, req_id in enumerate(["done", "failed", "idle"]):
        sending.track(req_id, *([number + 1] if req_id != "idle" else []), lease_s=30 + number)
        meeting.register(req_id, "where")
    sending.states("DONE", 1)
    sending.states("ERR", 2)
    meeting.ended(sending.poll())
    assert [req_id in meeting for req_id in ("done", "failed", "idle")] == [False, True, True]
    sending.clock.advance(31)
    meeting.ended(sending.poll())
    assert [req_id in meeting for req_id in ("done", "failed", "idle")] == [False, False, True]


def test_only_exactly_this_id_is_evicted(meeting: Meeting) -> None:
    meeting.register("R-00000000", "where")
    meeting.ended(SendResults(finished=frozenset({"R-11111111"})))
    assert "R-00000000" in meeting
    meeting.evict("R-00000000")
    assert len(meeting) == 0
    meeting.evict("R-00000000")  # fine


@pytest.mark.parametrize(
    ("capacity", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_bad_capacity(capacity: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=str(capacity)):
        PushRendezvous(capacity=capacity)


def test_a_request_id_is_a_str(meeting: Meeting) -> None:
    for call in (meeting.register, meeting.finished_blocks):
        with pytest.raises(TypeError, match="7"):
            call(7, "x")  # type: ignore[arg-type]
    assert len(meeting) == 0


def test_each_pair_meets_once_whatever_the_threads_do() -> None:
    meeting: PushRendezvous[int, int] = PushRendezvous()
    names = [f"R{number}" for number in range(3000)]
    met: list[tuple[str, int, int]] = []
    start = threading.Barrier(2)

    def come(call: Any) -> None:
        start.wait()
        for number, req_id in enumerate(names):
            match = call(req_id, number)
            if match is not None:
                met.append((match.req_id, match.blocks, match.registration))

    threads = [
        threading.Thread(target=come, args=(call,)) for call in (meeting.register, meeting.finished_blocks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(met) == sorted((req_id, number, number) for number, req_id in enumerate(names))
    assert len(meeting) == 0


@pytest.mark.parametrize("first", ["decode", "prefill"])
def test_exact_ids_never_match_others(first: str) -> None:
    exact: Meeting = PushRendezvous(exact=True)
    assert meet(exact, "req-00000001", "req-00000002", first) is None
    assert len(exact) == 2
    match = exact.finished_blocks("req-00000002", "more blocks")
    assert match == PushMatch("req-00000002", "more blocks", "req-00000002", "where")
