"""Real NIXL transfers to measure on: many in flight to a stopped peer, or many that are DONE."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from tests.nixl.rank import Decode, Rank

REQUESTS: Final = 64
PER_REQUEST: Final = 4
HANDLES: Final = REQUESTS * PER_REQUEST
BLOCKS: Final = HANDLES

Transfers = dict[str, list[Any]]  # handles by request


class Link:
    """A rank in its own process and an agent in this one, connected over UCX on loopback TCP."""

    def __init__(self, rank: Rank, decode: Decode) -> None:
        self.rank = rank
        self.decode = decode
        self.agent = decode.agent
        self.binding = decode.agent.agent

    def post(self, requests: int = REQUESTS, per_request: int = PER_REQUEST) -> Transfers:
        """Post READs of a block each: `requests` requests of `per_request` handles."""
        return {
            f"request-{i}": [self._read(i * per_request + j) for j in range(per_request)]
            for i in range(requests)
        }

    def done(self, requests: int = REQUESTS, per_request: int = PER_REQUEST) -> Transfers:
        """Post READs, and ask the binding until NIXL itself has marked every one as DONE.

        The first check that finds a transfer finished does more in NIXL than the later ones (it
        reaps it and sends its notification) and costs what the network makes it cost. With that
        behind it each side of a comparison starts from the same state.
        """
        transfers = self.post(requests, per_request)
        states = self.decode.wait(*(handle for handles in transfers.values() for handle in handles))
        assert set(states) == {"DONE"}, states
        return transfers

    def landed(self) -> Transfers:
        """Post READs and wait until their bytes are here, without asking NIXL about one of them.

        That NIXL's progress thread has noticed as well can't be known without asking, so it gets a
        little time; whoever polls then has to count with stragglers.
        """
        memory = self.decode.memory
        memory[:] = 0
        transfers = self.post()
        expected = self.rank.expected(0, BLOCKS)
        deadline = time.monotonic() + 30.0
        while not (memory == expected).all():
            assert time.monotonic() < deadline, "the bytes did not come"
        time.sleep(0.005)
        return transfers

    def _read(self, number: int) -> Any:
        return self.decode.read(self.rank, number % BLOCKS, number % BLOCKS)


@contextmanager
def link() -> Iterator[Link]:
    """Start a rank and an agent, and have them exchange bytes once, so that they are connected."""
    with Rank(blocks=BLOCKS) as rank, Decode("bench", blocks=BLOCKS) as decode:
        decode.connect(rank)
        found = Link(rank, decode)
        for handles in found.done(1, 1).values():
            decode.agent.release_xfer_handle(*handles)
        yield found


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
        assert {on.decode.state(handle) for handle in flight.handles} == {"PROC"}
        yield flight
    finally:
        on.rank.cont()
        on.decode.wait(*flight.handles)
        flight.drop_tables()
        for handle in flight.handles:
            handle._released = False  # the tables have marked it, so that its finaliser lets it be
            on.agent.release_xfer_handle(handle)
