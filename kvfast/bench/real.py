"""Real NIXL transfers to measure on: many in flight to a stopped peer, or many that are DONE."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

import numpy as np

from kvfast.agent import open_agent
from kvfast.demo.pattern import Bytes
from kvfast.demo.prefill import register
from kvfast.demo.process import LOOPBACK_ENV
from kvfast.demo.rank import Rank

from .errors import BenchError

REQUESTS: Final = 64
PER_REQUEST: Final = 4
HANDLES: Final = REQUESTS * PER_REQUEST
BLOCKS: Final = HANDLES
BLOCK_BYTES: Final = 4096
_PATIENCE_S: Final = 30.0

Transfers = dict[str, list[Any]]  # handles by request


class Link:
    """A rank in its own process and an agent in this one, connected over UCX on loopback TCP."""

    def __init__(self, rank: Rank, agent: Any, memory: Bytes) -> None:
        self.rank = rank
        self.agent = agent
        self.binding = agent.agent
        self._memory = memory

    def post(self, requests: int = REQUESTS, per_request: int = PER_REQUEST) -> Transfers:
        """Post READs of a block each: `requests` requests of `per_request` handles."""
        return {
            f"request-{i}": [self._read((i * per_request + j) % BLOCKS) for j in range(per_request)]
            for i in range(requests)
        }

    def done(self, requests: int = REQUESTS, per_request: int = PER_REQUEST) -> Transfers:
        """Post READs, and ask the binding until NIXL itself has marked every one as DONE.

        The first check that finds a transfer finished does more in NIXL than the later ones (it
        reaps it and sends its notification) and costs what the network makes it cost. With that
        behind it each side of a comparison starts from the same state.
        """
        transfers = self.post(requests, per_request)
        self.wait([handle for handles in transfers.values() for handle in handles])
        return transfers

    def landed(self) -> Transfers:
        """Post READs and wait until their bytes are here, without asking NIXL about one of them.

        That NIXL's progress thread has noticed as well can't be known without asking, so it gets a
        little time; whoever polls then has to count with stragglers.
        """
        self._memory[:] = 0
        transfers = self.post()
        expected = self.rank.expected(0, BLOCKS)
        deadline = time.monotonic() + _PATIENCE_S
        while not (self._memory == expected).all():
            if time.monotonic() > deadline:
                raise BenchError("the bytes of READs did not come")
        time.sleep(0.005)
        return transfers

    def wait(self, handles: list[Any]) -> None:
        """Poll until every handle is DONE; BenchError if one ends otherwise, or too late."""
        deadline = time.monotonic() + _PATIENCE_S
        left = handles
        while left := [handle for handle in left if self.state(handle) != "DONE"]:
            if time.monotonic() > deadline:
                raise BenchError(f"{len(left)} of {len(handles)} READs are not DONE after {_PATIENCE_S:g} s")

    def state(self, handle: Any) -> str:
        """Return ``"PROC"`` or ``"DONE"``; anything else is a BenchError."""
        try:
            state = str(self.agent.check_xfer_state(handle))
        except Exception as error:
            raise BenchError(f"a READ has failed: {error!r}") from error
        if state not in ("PROC", "DONE"):
            raise BenchError(f"a READ has failed: {state}")
        return state

    def _read(self, block: int) -> Any:
        start = block * BLOCK_BYTES
        sides = [
            self.agent.get_xfer_descs([(base + start, BLOCK_BYTES, 0)], "DRAM")
            for base in (self._memory.ctypes.data, self.rank.address)
        ]
        handle = self.agent.initialize_xfer("READ", *sides, self.rank.name, b"")
        self.agent.transfer(handle)
        return handle


@contextmanager
def link() -> Iterator[Link]:
    """Start a rank and an agent, and have them exchange bytes once, so that they are connected.

    Raises
    ------
    BackendUnavailableError
        If NIXL is missing, or can't be used.
    """
    with _loopback():
        agent: Any = open_agent("kvfast-bench")  # first, so that what is missing here is said as it is
        with Rank(blocks=BLOCKS, block_bytes=BLOCK_BYTES) as rank:
            memory: Bytes = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
            registered = register(agent, memory)
            agent.add_remote_agent(rank.metadata)
            found = Link(rank, agent, memory)
            for handles in found.done(1, 1).values():
                agent.release_xfer_handle(*handles)
            yield found
            agent.remove_remote_agent(rank.name)
            agent.deregister_memory(registered)


@contextmanager
def _loopback() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in LOOPBACK_ENV}
    os.environ.update(LOOPBACK_ENV)  # UCX reads them when an agent is made
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Flight:
    """Transfers in flight, and everyone who polls them; nobody but `in_flight` releases them."""

    def __init__(self, on: Link, transfers: Transfers) -> None:
        self.link = on
        self.transfers = transfers
        self.handles = [handle for each in transfers.values() for handle in each]
        # The only references to the tables, so that `in_flight` can drop them.
        self._tables: dict[str, tuple[ModuleType, Any]] = {}

    def sweeper(self, backend: ModuleType, scan: str) -> Callable[[], object]:
        """Return a function that sweeps a new table over these transfers once."""
        table = backend.TransferTable(backend.bind(self.link.agent), scan=scan)
        for req_id, handles in self.transfers.items():
            table.add(req_id, *handles, peer=self.link.rank.name)
        backend.pop_done_transfers(table)  # the first sweep is a full one on any scan
        name = f"{backend.__name__} {scan}"
        self._tables[name] = backend, table

        def sweep() -> object:
            backend, table = self._tables[name]
            return backend.pop_done_transfers(table)

        return sweep

    def drop_tables(self) -> None:
        """Drop all tables; they leave their handles alone, and say so."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self._tables.clear()


@contextmanager
def in_flight(on: Link, requests: int = REQUESTS, per_request: int = PER_REQUEST) -> Iterator[Flight]:
    """Stop the peer and post READs to it, which so stay in flight; in the end let them finish."""
    on.rank.stop()
    flight = Flight(on, on.post(requests, per_request))
    try:
        if {on.state(handle) for handle in flight.handles} != {"PROC"}:
            raise BenchError("a READ from a stopped peer is DONE")
        yield flight
    finally:
        on.rank.cont()
        on.wait(flight.handles)
        flight.drop_tables()
        for handle in flight.handles:
            handle._released = False  # the tables have marked it, so that its finaliser lets it be
            on.agent.release_xfer_handle(handle)
