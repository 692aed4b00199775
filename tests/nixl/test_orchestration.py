"""Receiver and Sender over real NIXL, where a transfer can really be held up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from kvfast import Receiver, Sender, notifs
from kvfast.results import ReceiveResults
from tests.nixl.rank import Decode, Rank, nixl_missing

pytestmark = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")

TIMEOUT_S = 60.0
BLOCKS = 8  # of a transfer: enough that a stopped peer can't have sent it all


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    """A rank that outlives its tests."""
    with Rank(0) as found:
        yield found


@pytest.fixture(scope="module")
def decode(rank: Rank) -> Iterator[Decode]:
    with Decode() as found:
        found.connect(rank)
        yield found


@pytest.fixture
def dying(decode: Decode) -> Iterator[Rank]:
    """A rank that does not."""
    with Rank(1) as found:
        decode.connect(found)
        yield found
    decode.disconnect(found)


def read(receiver: Receiver, decode: Decode, rank: Rank, req_id: str, block: int) -> None:
    """Post a READ of some blocks of a rank into the same blocks of ours."""
    assert receiver.post(req_id, lambda: decode.prepare("READ", rank, block, block, BLOCKS), peer=rank.name)


def until(condition: Callable[[], object], poll: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        poll()


def test_a_request_ends_when_its_last_transfer_does(
    backend: ModuleType, scan: str, rank: Rank, dying: Rank, decode: Decode
) -> None:
    decode.memory[:] = 0
    heard = rank.notifs()
    receiver = Receiver(decode.agent, backend=backend, scan=scan)
    ended: list[ReceiveResults] = []
    receiver.track("both", [[*range(16)]], peer=[rank.name, dying.name])
    receiver.add_notif("both", rank.name, notifs.consumed("both", 1))
    rank.stop()
    dying.stop()
    read(receiver, decode, rank, "both", 0)
    read(receiver, decode, dying, "both", BLOCKS)
    dying.kill()
    # The dead one's transfer fails; the living one's is in flight as long as we like.
    until(lambda: receiver.guard.is_dead(dying.name), lambda: ended.append(receiver.poll()))
    ended += [receiver.poll() for _ in range(1000)]
    assert all(results == ReceiveResults() for results in ended)
    assert not (decode.memory[:BLOCKS] == rank.expected(0, BLOCKS)).all()
    rank.cont()
    until(lambda: ended[-1].failed, lambda: ended.append(receiver.poll()))
    assert ended[-1] == ReceiveResults(failed=frozenset({"both"}), invalid_block_ids=[[*range(16)]])
    assert (decode.memory[:BLOCKS] == rank.expected(0, BLOCKS)).all()  # landed before it was told
    assert rank.notifs() == heard
    assert receiver.close(TIMEOUT_S).left == ()


def test_a_success_is_told_to_the_producer(backend: ModuleType, rank: Rank, decode: Decode) -> None:
    receiver = Receiver(decode.agent, backend=backend)
    decode.memory[:] = 0
    heard = rank.notifs().get("decode", [])
    receiver.track("R", [[0]], peer=rank.name)
    receiver.add_notif("R", rank.name, notifs.consumed("R", 1))
    read(receiver, decode, rank, "R", 0)
    until(lambda: receiver.poll().finished == {"R"}, lambda: None)
    assert (decode.memory[:BLOCKS] == rank.expected(0, BLOCKS)).all()
    assert rank.wait_notifs(len(heard) + 1) == {"decode": [*heard, b"R:1"]}
    assert receiver.stats.snapshot()["bytes"] == decode.memory[:BLOCKS].nbytes


def test_an_abort_and_a_removal_wait_for_a_read(backend: ModuleType, rank: Rank, decode: Decode) -> None:
    decode.memory[:] = 0
    receiver = Receiver(decode.agent, backend=backend)
    receiver.track("R", [[0]], peer=rank.name)
    rank.stop()
    read(receiver, decode, rank, "R", 0)
    receiver.abort("R")
    assert receiver.remove_peer(rank.name) is False
    for _ in range(1000):
        assert receiver.poll() == ReceiveResults()
    assert receiver.guard.removing == {rank.name}
    rank.cont()
    until(lambda: receiver.poll().aborted == {"R"}, lambda: None)
    assert (decode.memory[:BLOCKS] == rank.expected(0, BLOCKS)).all()
    assert not receiver.guard.removing
    decode.connect(rank)  # it was really removed: it can be added again
    receiver.track("S", [[1]], peer=rank.name)
    read(receiver, decode, rank, "S", BLOCKS)
    until(lambda: receiver.poll().finished == {"S"}, lambda: None)


def test_a_lease_that_is_over_waits_for_a_write(backend: ModuleType, rank: Rank, decode: Decode) -> None:
    now = [0.0]
    sender = Sender(decode.agent, backend=backend, clock=lambda: now[0])
    decode.memory[:] = 7
    heard = rank.notifs().get("decode", [])
    sender.track("R", [[0]], lease_s=30, peer=rank.name)
    rank.stop()
    told = notifs.consumed("R", 1)
    assert sender.post("R", [lambda: decode.prepare("WRITE", rank, 0, 0, BLOCKS, told)])
    now[0] = 1000.0
    for _ in range(1000):
        results = sender.poll()
        assert not results.finished
        assert not results.expired
    rank.cont()
    until(lambda: sender.poll().finished == {"R"}, lambda: None)
    decode.memory[:] = 8  # ours again
    assert rank.wait_notifs(len(heard) + 1) == {"decode": [*heard, b"R:1"]}
    assert (rank.memory(0, BLOCKS) == 7).all()
