"""The compiled store against the plain one, call for call: ids that collide, handles that swap slots."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any, Final

import pytest

from kvfast_ext import select_backend
from kvfast_ext.held import HeldHandle
from tests.backend.doubles import Double

_GOLDEN: Final = 0x9E3779B97F4A7C15  # of the index's hash: (id * golden) >> 32, modulo its size
_INVERSE: Final = pow(_GOLDEN, -1, 1 << 64)


def id_with_home(cell: int, which: int) -> int:
    """Return the `which`-th id whose probe begins at `cell`, in an index of up to 2**20 cells."""
    return (_INVERSE * (which << 52 | cell << 32 | which)) % (1 << 64)


POOLS: Final = {
    "one cell": [id_with_home(5, n) for n in range(300)],
    "the last cell, so that probes wrap": [id_with_home(0xFFFFF, n) for n in range(300)],
    "a few cells side by side": [id_with_home((n % 3) - 1 & 0xFFFFF, n) for n in range(300)],
    "addresses": [0x7F12_3456_7000 + 64 * n for n in range(300)],
    "small ints": list(range(300)),
    "anything": list(map(random.Random(1).getrandbits, [64] * 300)),
}


def test_the_ids_do_collide() -> None:
    homes = {((n * _GOLDEN) % (1 << 64)) >> 32 & 0xFFFFF for n in POOLS["one cell"]}
    assert (homes, len(set(POOLS["one cell"]))) == ({5}, 300)


class Twins:
    """Both stores, each on an agent of its own, given the same calls."""

    def __init__(self, pool: list[int], seed: int) -> None:
        self.random = random.Random(seed)
        self.free = list(pool)
        self.pool = pool
        self.agents = [Double(), Double()]
        backends = [select_backend(name) for name in ("cython", "python")]
        self.stores = [b.TransferTable._store_type(b.bind(a)) for b, a in zip(backends, self.agents)]
        self.flying: dict[int, str] = {}
        self.held: list[str] = []
        self.empty: list[str] = []
        self.names = 0

    def both(self, call: str, *arguments: Any) -> Any:
        first, second = (getattr(store, call)(*arguments) for store in self.stores)
        assert first == second, (call, arguments)
        return first

    def step(self) -> None:
        moves = [self.add, self.add, self.add, self.open, self.drop, self.let_go, self.sweep, self.look]
        self.random.choice(moves)()
        assert [store.in_flight for store in self.stores] == [len(self.flying)] * 2

    def requests(self) -> list[str]:
        ids: list[str] = sorted(self.stores[0])
        assert ids == sorted(self.stores[1])
        assert len(self.stores[0]) == len(self.stores[1]) == len(ids)
        return ids

    def open(self) -> None:
        self.names += 1
        self.both("open", f"r{self.names}")
        self.empty.append(f"r{self.names}")

    def add(self) -> None:
        requests = self.requests()
        if not requests or not self.free:
            return self.open()
        request, peer = self.random.choice(requests), self.random.randrange(5)
        self.random.shuffle(self.free)
        count = self.random.randint(1, 6)
        ids, self.free = self.free[:count], self.free[count:]
        self.both("append", request, list(ids), [None] * len(ids), peer)
        self.flying |= dict.fromkeys(ids, request)
        self.empty = [req_id for req_id in self.empty if req_id != request]
        return None

    def drop(self) -> None:
        if self.empty:
            self.both("drop", self.empty.pop())

    def let_go(self) -> None:
        if self.held:
            request = self.held.pop(self.random.randrange(len(self.held)))
            first, second = (let_go(store, request) for store in self.stores)
            assert first == second
            assert (request in first) == (request not in self.requests())

    def look(self) -> None:
        handle = self.random.choice(self.pool)
        assert self.both("find", handle) == (handle in self.flying)
        self.both("outstanding_of", self.random.randrange(7))
        for request in self.requests():
            handles = self.both("handles", request)
            assert sorted(handles) == sorted(h for h, owner in self.flying.items() if owner == request)
        for store in self.stores:
            assert sorted(store.ids().tolist()) == sorted(self.flying)

    def sweep(self) -> None:
        if self.flying:
            ended = self.random.sample(sorted(self.flying), self.random.randint(0, min(40, len(self.flying))))
            for handle in ended:
                answer = self.random.choice(["DONE", "DONE", "ERR"])
                for agent in self.agents:
                    agent.answers[handle] = answer
        full = self.random.random() < 0.7
        first, second = (comparable(swept(store, full)) for store in self.stores)
        assert first == second
        released = [agent.asked("release") for agent in self.agents]
        assert sorted(released[0]) == sorted(released[1])
        for request, handle in first["ended"]:
            self.held.append(request)
            self.gone(handle)
        for handle in released[0]:
            self.gone(handle)
        compiled = self.stores[0]
        assert [handle for handle in self.pool if compiled.find(handle)] == [
            handle for handle in self.pool if handle in self.flying
        ]

    def gone(self, handle: int) -> None:
        del self.flying[handle]
        self.free.append(handle)
        for agent in self.agents:
            agent.reuse(handle)


def let_go(store: Any, request: str) -> set[str]:
    """Let go of one failed handle of a request; return whether it was the last, as a store tells it."""
    item, done = HeldHandle(request, 1, 1, 0, 0.0, 0.0), set[str]()
    store.let_go(item, done)
    assert item.req_id is None
    return done


def swept(store: Any, full: bool) -> Any:
    """Return what a sweep gives, or None if nothing has ended."""
    out: list[Any] = []
    store.sweep(full, out)
    assert len(out) < 2
    return out[0] if out else None


def comparable(swept: Any) -> dict[str, Any]:
    if swept is None:
        return {"drained": set(), "ended": [], "samples": 0}
    ended = sorted((item.req_id, item.key) for item in swept.ended)
    return {"drained": swept.drained, "ended": ended, "samples": swept.samples.shape}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pool", sorted(POOLS))
def test_random_calls(compiled: ModuleType, pool: str, seed: int) -> None:
    twins = Twins(POOLS[pool], seed)
    for _ in range(400):
        twins.step()
    twins.look()
    assert [agent.violations for agent in twins.agents] == [[], []]


def test_growing_and_shrinking(backend: Any) -> None:
    agent = Double()
    store = backend.TransferTable._store_type(backend.bind(agent))
    ids = [id_with_home(n % 7, n) for n in range(3000)]
    store.open("r")
    for handle in ids:
        store.append("r", [handle], [None], 1)
        assert store.find(handle)
    assert not any(store.find(id_with_home(n % 7, n)) for n in range(3000, 3100))
    for some in range(0, 3000, 500):
        agent.answers.update(dict.fromkeys(ids[some : some + 500], "DONE"))
        store.sweep(True, [])
        assert [store.find(handle) for handle in ids] == [False] * (some + 500) + [True] * (2500 - some)
        assert store.outstanding_of(1) == 2500 - some
    assert (len(store), store.in_flight) == (0, 0)
    assert agent.violations == []
