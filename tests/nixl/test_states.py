"""The state table on real NIXL: what a live, a stopped, a killed and a removed peer look like to a table."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvfast_ext import Quarantine, SweepResult, backend_name
from tests.nixl.rank import Decode, Rank, nixl_missing

pytestmark = pytest.mark.skipif(nixl_missing(), reason="NIXL is not installed")

BLOCKS = 64
DEADLINE_S = 60.0


class Forwarding:
    """A wrapper that forwards every attribute, as engines put around an agent."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


AGENTS: dict[str, Callable[[Any], Any]] = {
    "agent": lambda agent: agent,
    "binding": lambda agent: agent.agent,
    "wrapper": Forwarding,
}
FORMS = ("objects", "ids", "array")


class Setup:
    """A table over a decode agent; handles in one form, all kept so that their end can be looked at."""

    def __init__(self, backend: ModuleType, decode: Decode, which: str, form: str, **options: Any) -> None:
        self.backend = backend
        self.decode = decode
        self.form = form
        self.now = 1000.0
        self.ops = backend.bind(AGENTS[which](decode.agent))
        options = {"scan": "watch", "full_scan_s": 0.0, **options}
        self.table = backend.TransferTable(self.ops, clock=lambda: self.now, **options)
        self.handles: list[Any] = []

    def add(self, req_id: str, *handles: Any, peer: str | None = None) -> None:
        self.handles += handles
        if self.form == "objects":
            self.table.add(req_id, *handles, peer=peer)
            return
        ids = [handle._handle for handle in handles]
        for handle in handles:
            handle._released = True  # from now on only the id counts, as with NIXL's inner binding
        given = [np.array(ids, np.uint64)] if self.form == "array" else ids
        self.table.add(req_id, *given, peer=peer)

    def sweep(self, after: float = 0.0) -> SweepResult:
        self.now += after
        result: SweepResult = self.backend.pop_done_transfers(self.table)
        return result

    def sweep_until(self, ended: Callable[[list[SweepResult]], bool]) -> list[SweepResult]:
        """Sweep until the results fulfil something; fail the test if that takes a minute."""
        results: list[SweepResult] = []
        deadline = time.monotonic() + DEADLINE_S
        while not ended(results):
            assert time.monotonic() < deadline, results[-1]
            results.append(self.sweep())
        return results

    def drain(self) -> list[SweepResult]:
        return self.sweep_until(lambda _: len(self.table) == 0)

    def marked(self) -> list[bool]:
        """Tell of each handle object whether its finaliser will leave it alone."""
        return [handle._released for handle in self.handles]


def done_of(results: list[SweepResult]) -> list[str]:
    return sorted(request for result in results for request in result.done)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(scope="module")
def shared_rank() -> Iterator[Rank]:
    with Rank(7, blocks=BLOCKS, name="shared") as rank:
        yield rank


@pytest.fixture(scope="module")
def shared_decode(shared_rank: Rank) -> Iterator[Decode]:
    with Decode("shared decode", blocks=BLOCKS) as decode:
        decode.connect(shared_rank)
        yield decode


@pytest.fixture(scope="module")
def second_rank(shared_decode: Decode) -> Iterator[Rank]:
    with Rank(8, blocks=BLOCKS, name="second") as rank:
        shared_decode.connect(rank)
        yield rank


@pytest.fixture
def mortal_rank(shared_decode: Decode) -> Iterator[Rank]:
    with Rank(3, blocks=BLOCKS, name="mortal") as rank:
        shared_decode.connect(rank)
        yield rank
        shared_decode.disconnect(rank)


@pytest.fixture(params=sorted(AGENTS))
def which(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_done(backend: ModuleType, shared_rank: Rank, shared_decode: Decode, which: str, form: str) -> None:
    rank, decode = shared_rank, shared_decode
    decode.memory[:] = 0
    setup = Setup(backend, decode, which, form)
    assert setup.ops.kind == ("nixl" if backend_name(backend) == "cython" else "python"), setup.ops.reason
    for request in range(8):
        first = 8 * request
        setup.add(f"r{request}", *(decode.read(rank, first + n, first + n, 2) for n in range(0, 8, 2)))
    results = setup.drain()
    assert done_of(results) == sorted(f"r{request}" for request in range(8))
    assert [result.failures for result in results] == [[]] * len(results)
    assert (decode.memory == rank.expected(0, BLOCKS)).all()
    sizes = np.concatenate([result.transfers.bytes for result in results])
    assert sizes.tolist() == [2 * decode.block_bytes] * 32
    assert all((result.transfers.xfer_us >= 0).all() for result in results)
    assert sum(result.transfers.unsampled for result in results) == 0
    assert setup.marked() == [True] * 32
    # Were a handle freed twice, NIXL's next transfers would share memory: make some, and look at the bytes.
    setup.handles.clear()
    gc.collect()
    decode.memory[:] = 0
    setup.add("again", *(decode.read(rank, n, n) for n in range(32)))
    assert done_of(setup.drain()) == ["again"]
    assert (decode.memory[:32] == rank.expected(0, 32)).all()


def test_a_write_is_done_when_the_peer_has_it(
    backend: ModuleType, shared_rank: Rank, shared_decode: Decode
) -> None:
    setup = Setup(backend, shared_decode, "agent", "objects")
    pattern = shared_rank.expected(40, 8)[::-1].copy()
    shared_decode.memory[40:48] = pattern
    setup.add("w", shared_decode.write(shared_rank, 40, 40, 8))
    assert done_of(setup.drain()) == ["w"]
    assert (shared_rank.memory(40, 8) == pattern).all()
    shared_decode.memory[40:48] = shared_rank.expected(40, 8)  # and back as it was
    setup.add("w", shared_decode.write(shared_rank, 40, 40, 8))
    setup.drain()


def test_proc(backend: ModuleType, shared_rank: Rank, shared_decode: Decode, which: str, form: str) -> None:
    rank, decode = shared_rank, shared_decode
    decode.memory[:] = 0
    setup = Setup(backend, decode, which, form)
    rank.stop()
    setup.add("r", *(decode.read(rank, n, n) for n in range(4)))
    setup.add("s", decode.read(rank, 10, 10, 4))
    for _ in range(200):
        result = setup.sweep(after=10)  # long after every quarantine
        assert (result.done, result.failures, result.retained) == (set(), [], 0)
    assert setup.table.handle_count == 5
    if form == "objects":
        assert setup.marked() == [False] * 5
    assert not decode.memory.any()
    in_flight = list(setup.table.handle_ids)
    assert not backend.try_release(setup.ops, np.array(in_flight, np.uint64)).any()
    rank.cont()
    assert done_of(setup.drain()) == ["r", "s"]
    assert (decode.memory[:4] == rank.expected(0, 4)).all()
    assert (decode.memory[10:14] == rank.expected(10, 4)).all()
    assert setup.marked() == [True] * 5


@pytest.mark.parametrize(("which", "form"), [("agent", "objects"), ("binding", "array")])
def test_disconnect(
    backend: ModuleType, mortal_rank: Rank, shared_decode: Decode, which: str, form: str
) -> None:
    rank, decode = mortal_rank, shared_decode
    setup = Setup(backend, decode, which, form, quarantine=Quarantine(lost_s=1e6))
    rank.stop()
    for request in range(4):
        setup.add(f"r{request}", *(decode.read(rank, n, 4 * request + n) for n in range(4)), peer=rank.name)
    setup.add("whole", decode.read(rank, 0, 16, 16), peer=rank.name)
    for _ in range(50):
        assert setup.sweep().done == set()
    rank.kill()
    results = setup.drain()
    failures = [failure for result in results for failure in result.failures]
    # NIXL up to 1.4 tells the first handle of the disconnect and the others that there is no such peer;
    # those are not LOST: over a dead connection nothing can land, so nothing waits for a quarantine.
    statuses = [failure.status for failure in failures]
    assert "REMOTE_DISCONNECT" in statuses
    assert set(statuses) <= {"REMOTE_DISCONNECT", "NOT_FOUND"}
    errors = {type(failure.error).__name__ for failure in failures}
    assert errors <= {"nixlRemoteDisconnectError", "nixlNotFoundError"}
    assert len(failures) == len({id(failure.handle) for failure in failures}) == 17
    assert done_of(results) == ["r0", "r1", "r2", "r3", "whole"]
    assert {request for result in results for request in result.failed} == set(done_of(results))
    assert (setup.table.outstanding_of(rank.name), setup.sweep().retained) == (0, 0)
    assert setup.marked() == [True] * 17


@pytest.mark.parametrize(("which", "form"), list(zip(AGENTS, FORMS)))
def test_not_found(
    backend: ModuleType, shared_rank: Rank, shared_decode: Decode, which: str, form: str
) -> None:
    rank, decode = shared_rank, shared_decode
    decode.memory[:] = 0
    setup = Setup(backend, decode, which, form, quarantine=Quarantine(lost_s=30))
    rank.stop()
    setup.add("r", *(decode.read(rank, n, n) for n in range(4)), peer=rank.name)
    setup.sweep()
    decode.disconnect(rank)  # under the transfers
    result = setup.sweep()
    assert (result.done, result.failed) == (set(), {"r"})
    assert [(failure.status, failure.lost) for failure in result.failures] == [("NOT_FOUND", True)] * 4
    assert {type(failure.error).__name__ for failure in result.failures} == {"nixlNotFoundError"}
    assert setup.table.quarantined == {"r"}
    rank.cont()
    # Why they are kept: NIXL looks no longer, and the bytes land all the same.
    until(lambda: bool((decode.memory[:4] == rank.expected(0, 4)).all()))
    for _ in range(100):
        result = setup.sweep()
        assert (result.done, result.retained, result.blind_releases) == (set(), 4, 0)
    if form == "objects":
        assert setup.marked() == [False] * 4
    assert setup.sweep(after=29.9).done == set()
    result = setup.sweep(after=0.2)
    assert (result.done, result.retained, result.blind_releases) == ({"r"}, 0, 4)
    assert setup.marked() == [True] * 4
    decode.connect(rank)  # for the next test; and a peer that comes back is as good as new
    setup.add("new", decode.read(rank, 20, 20), peer=rank.name)
    assert done_of(setup.drain()) == ["new"]


def test_the_living_go_on_beside_the_dead(
    backend: ModuleType, mortal_rank: Rank, shared_rank: Rank, shared_decode: Decode
) -> None:
    mortal, other, decode = mortal_rank, shared_rank, shared_decode
    setup = Setup(backend, decode, "agent", "objects")
    mortal.stop()
    setup.add("mixed", decode.read(mortal, 0, 0), peer=mortal.name)
    setup.add("mixed", decode.read(other, 1, 1), peer=other.name)
    setup.add("fine", decode.read(other, 2, 2, 4), peer=other.name)
    results = setup.sweep_until(lambda seen: "fine" in done_of(seen))
    assert [failure for result in results for failure in result.failures] == []
    setup.sweep_until(lambda _: setup.table.outstanding_of(other.name) == 0)
    assert (decode.memory[1] == other.expected(1)[0]).all()
    mortal.kill()
    results = setup.drain()
    assert done_of(results) == ["mixed"]
    assert [failure.peer for result in results for failure in result.failures] == [mortal.name]
    setup.add("later", decode.read(other, 9, 9), peer=other.name)
    assert done_of(setup.drain()) == ["later"]
    assert (decode.memory[9] == other.expected(9)[0]).all()


def test_a_notification_is_sent_by_the_sweep_that_sees_done(
    backend: ModuleType, shared_rank: Rank, shared_decode: Decode, scan: str
) -> None:
    rank, decode = shared_rank, shared_decode
    decode.memory[:] = 0
    setup = Setup(backend, decode, "agent", "objects", scan=scan)
    before = sum(map(len, rank.notifs().values()))
    rank.stop()  # or a READ could end within its post, which sends as well
    setup.add("r", *(decode.read(rank, n, n, notif=f"r:{n}:{scan}".encode()) for n in range(3)))
    rank.cont()
    until(lambda: bool((decode.memory[:3] == rank.expected(0, 3)).all()))
    assert sum(map(len, rank.notifs().values())) == before  # the bytes are here, and nobody has polled
    setup.drain()
    received = rank.wait_notifs(before + 3)
    assert sorted(received[decode.agent.name][-3:]) == sorted(f"r:{n}:{scan}".encode() for n in range(3))


def test_a_watching_table_sends_notifications_by_its_full_scans(
    backend: ModuleType, shared_rank: Rank, second_rank: Rank, shared_decode: Decode
) -> None:
    rank, slow, decode = shared_rank, second_rank, shared_decode
    decode.memory[:] = 0
    setup = Setup(backend, decode, "agent", "objects", full_scan_s=1.0)
    setup.sweep()
    before = sum(map(len, rank.notifs().values()))
    rank.stop()
    slow.stop()
    setup.add("r", decode.read(rank, 0, 0, notif=b"older"), decode.read(slow, 1, 1))
    rank.cont()
    until(lambda: bool((decode.memory[0] == rank.expected(0)[0]).all()))
    for _ in range(50):
        assert len(setup.sweep().transfers) == 0  # only the newest is asked
    assert sum(map(len, rank.notifs().values())) == before
    assert len(setup.sweep(after=1.0).transfers) == 1
    assert sum(map(len, rank.wait_notifs(before + 1).values())) == before + 1
    slow.cont()
    assert done_of(setup.drain()) == ["r"]


def test_try_release(backend: ModuleType, shared_rank: Rank, shared_decode: Decode, which: str) -> None:
    rank, decode = shared_rank, shared_decode
    ops = backend.bind(AGENTS[which](decode.agent))
    done = [decode.read(rank, n, n) for n in range(3)]
    assert decode.wait(*done) == ["DONE"] * 3
    rank.stop()
    flying = decode.read(rank, 5, 5)
    answers = backend.try_release(ops, [done[0], flying, done[1]._handle])
    assert answers.tolist() == [True, False, True]
    done[1]._released = True
    assert (done[0]._released, flying._released) == (True, False)
    rank.cont()
    assert decode.wait(flying) == ["DONE"]
    ids = np.array([flying._handle, done[2]._handle], np.uint64)
    assert backend.try_release(ops, ids).tolist() == [True, True]
    flying._released = done[2]._released = True


def test_torch_tensors_of_ids(backend: ModuleType, shared_rank: Rank, shared_decode: Decode) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    setup = Setup(backend, shared_decode, "binding", "ids")
    handles = [shared_decode.read(shared_rank, n, n) for n in range(4)]
    setup.table.add("r", torch.tensor([handle._handle for handle in handles], dtype=torch.int64))
    for handle in handles:
        handle._released = True
    assert done_of(setup.drain()) == ["r"]
    assert (shared_decode.memory[:4] == shared_rank.expected(0, 4)).all()
