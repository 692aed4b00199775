"""Our workers' polling on real NIXL: a live, a stopped, a killed and a removed peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("vllm")

from kvfast.testing import FakeClock
from tests.nixl.rank import Decode, Rank, nixl_missing
from tests.vllm import rig

if nixl_missing():
    pytest.skip("NIXL is not installed", allow_module_level=True)

DEADLINE_S = 60.0
LOST_S = 30.0


class Side:
    """A worker over a real agent, connected to one rank."""

    def __init__(self, decode: Decode, rank: Rank, mode: str, *, stock: bool = False, **options: Any) -> None:
        classes = rig.STOCK if stock else rig.OURS
        self.decode, self.rank, self.mode = decode, rank, mode
        self.worker = rig.make(classes[mode], decode.agent, **options)
        self.worker._remote_agents[rig.ENGINE] = {(0, 0): rank.name.encode()}  # bytes, as NIXL itself gave it
        self.clock = FakeClock() if stock else rig.use_clock(self.worker)
        self.finished: set[str] = set()
        self.failed: set[str] = set()

    def begin(self, req_id: str, blocks: tuple[int, ...]) -> list[Any]:
        """Post one handle for each block: READs of a decode, WRITEs of a prefill."""
        post = self.decode.read if self.mode == "pull" else self.decode.write
        handles = [post(self.rank, block, block) for block in blocks]
        if self.mode == "push":
            self.note_peers(handles)
            rig.sending(self.worker, req_id, *handles)
            return handles
        transfers = self.worker._recving_transfers
        if hasattr(transfers, "of_peer"):
            with transfers.of_peer(self.rank.name.encode()):
                rig.receive(self.worker, req_id, *handles, blocks=blocks)
        else:
            rig.receive(self.worker, req_id, *handles, blocks=blocks)
        return handles

    def note_peers(self, handles: list[Any]) -> None:
        for handle in handles:
            self.worker._sending_transfers.note_peer(handle, self.rank.name.encode())

    def poll(self) -> None:
        results = self.worker.get_transfer_results()
        self.failed |= results.failed_recving
        self.finished |= results.finished_recving - results.failed_recving
        self.finished |= results.finished_sending

    def poll_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, (self.finished, self.failed)
            self.clock.advance(0.05)  # the full scans go by it
            self.poll()

    def counted(self, name: str) -> int:
        return int(self.worker._kvfast.stats.snapshot()[name])


@pytest.fixture
def rank() -> Iterator[Rank]:
    with Rank(1, timeout_s=4 * DEADLINE_S) as made:  # it imports NIXL, on machines that are busy, too
        yield made


@pytest.fixture
def decode(rank: Rank) -> Iterator[Decode]:
    with Decode() as made:
        made.connect(rank)
        yield made


@pytest.fixture(params=["cython", "python"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_reads_that_stay_and_then_land(decode: Decode, rank: Rank, backend: str) -> None:
    side = Side(decode, rank, "pull", backend=backend)
    assert side.worker._kvfast.ops.bound.kind == ("nixl" if backend == "cython" else "python")
    rank.stop()
    handles = side.begin("r", (1, 2, 3, 4))
    for _ in range(50):
        side.clock.advance(1.0)
        side.poll()
    assert side.finished == side.failed == set()
    assert not any(handle._released for handle in handles)
    assert side.worker._recving_transfers == {"r": handles}
    rank.cont()
    side.poll_until(lambda: side.finished)
    assert (side.finished, side.failed) == ({"r"}, set())
    assert (decode.memory[1:5] == rank.expected(1, 4)).all()
    assert all(handle._released for handle in handles)
    data = side.worker.xfer_stats.data
    assert data["bytes_transferred"] == [decode.block_bytes] * 4
    assert sum(data["num_descriptors"]) == 4
    assert side.worker.get_block_ids_with_load_errors() == set()


def test_writes_that_stay_and_then_land(decode: Decode, rank: Rank, backend: str) -> None:
    side = Side(decode, rank, "push", backend=backend)
    decode.memory[1:3] = 7
    rank.stop()
    handles = side.begin("r", (1, 2))
    for _ in range(20):
        side.poll()
    if all(side.decode.state(handle) == "PROC" for handle in handles):
        assert side.finished == set()
    rank.cont()
    side.poll_until(lambda: side.finished)
    assert all(handle._released for handle in handles)
    assert (rank.memory(1, 2) == 7).all()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_killed_peer(decode: Decode, rank: Rank, backend: str, mode: str) -> None:
    side = Side(decode, rank, mode, backend=backend)
    rank.stop()
    handles = side.begin("r", (1, 2))
    side.poll()
    assert side.finished == side.failed == set()
    rank.kill()
    transfers = side.worker._recving_transfers if mode == "pull" else side.worker._sending_transfers
    side.poll_until(lambda: "r" not in transfers)
    assert all(handle._released for handle in handles)
    assert side.finished == set()
    assert side.counted("blind_releases") == 0  # none of them had to wait for a quarantine
    side.poll()
    # The disconnect itself has had the engine's state removed: the next read shakes hands anew.
    assert rig.ENGINE not in side.worker._remote_agents
    decode._connected.discard(rank.name)
    if mode == "pull":
        assert side.failed == {"r"}
        assert side.worker.get_block_ids_with_load_errors() == {1, 2}


def test_a_removed_peer_is_quarantined(decode: Decode, rank: Rank, backend: str) -> None:
    side = Side(decode, rank, "pull", backend=backend, lost_s=LOST_S)
    rank.stop()
    handles = side.begin("r", (1, 2))
    side.poll()
    decode.disconnect(rank)
    side.poll_until(lambda: side.counted("failed_transfers") == 2)
    since = side.clock()
    for _ in range(10):
        side.clock.advance(LOST_S / 20)
        side.poll()
    assert side.finished == side.failed == set()
    assert not any(handle._released for handle in handles)
    assert side.worker.get_block_ids_with_load_errors() == set()
    rank.cont()  # and now the bytes do land, in blocks that nobody else has
    wait_for_bytes(decode, rank)
    assert side.failed == set()
    side.poll_until(lambda: side.failed)
    assert side.clock() - since >= LOST_S
    assert side.worker.get_block_ids_with_load_errors() == {1, 2}
    assert side.counted("blind_releases") == 2


def test_a_stock_worker_gives_the_blocks_of_a_removed_peer_back_too_early(decode: Decode, rank: Rank) -> None:
    side = Side(decode, rank, "pull", stock=True)
    rank.stop()
    side.begin("r", (1, 2))
    decode.disconnect(rank)
    side.poll()
    assert side.failed == {"r"}
    assert side.worker.get_block_ids_with_load_errors() == {1, 2}
    decode.memory[1:3] = 0  # the next owner's data
    rank.cont()
    wait_for_bytes(decode, rank)  # overwritten


def wait_for_bytes(decode: Decode, rank: Rank) -> None:
    expected = rank.expected(1, 2)
    deadline = time.monotonic() + DEADLINE_S
    while not (decode.memory[1:3] == expected).all():
        assert time.monotonic() < deadline
        decode.agent.get_new_notifs()  # has NIXL make progress
        time.sleep(0.01)
