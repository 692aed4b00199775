"""Decode's serving loop: take blocks, post READs, sweep, free the blocks of what has ended.

This is the part that a serving engine has. It knows nothing of processes and faults.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvfast_ext.contract import SweepResult

from .evidence import BYTES, EARLY, ONCE, MemoryWitness, Problems
from .pattern import Bytes
from .pool import BlockPool


class Source(NamedTuple):
    """The agent that serves a rank's share now."""

    rank: int
    name: str
    address: int


@dataclass(slots=True)
class Request:
    """A request: the same blocks are read from every rank, into the same places of its share."""

    req_id: str
    remote: list[int]
    local: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    reads: dict[int, str] = field(default_factory=dict)  # handle id: source. The table alone keeps handles
    failing: set[str] = field(default_factory=set)  # sources

    @property
    def notif(self) -> bytes:
        """What each rank is told when its blocks have been read."""
        return f"{self.req_id}:1".encode()


@dataclass(slots=True)
class Counts:
    """What the loop has seen so far."""

    finished: int = 0
    failed: int = 0
    sampled_bytes: int = 0
    samples: int = 0
    unsampled: int = 0
    sweep_ns: list[int] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)  # sources of which a READ failed
    read_from: dict[str, list[str]] = field(default_factory=dict)  # by source: requests that it served


def make_requests(count: int, rank_blocks: int, most: int, seed: int) -> list[Request]:
    """Return requests with random block ids, 1 to `most` blocks each."""
    dice = random.Random(seed)
    return [Request(f"req-{n}", dice.sample(range(rank_blocks), dice.randint(1, most))) for n in range(count)]


class DecodeEngine:
    """The loop's state.

    Parameters
    ----------
    agent : nixl_agent
        Posts the READs.
    memory : array
        Registered, shape (ranks, blocks, block_bytes).
    table : TransferTable
        The table under test.
    sweep : callable
        ``pop_done_transfers`` of the same backend.
    """

    def __init__(
        self,
        agent: Any,
        memory: Bytes,
        table: Any,
        sweep: Callable[[Any], SweepResult],
        sources: Iterable[Source],
        requests: Iterable[Request],
        problems: Problems,
    ) -> None:
        self._agent = agent
        self._memory = memory
        self.table = table
        self._sweep = sweep
        self.sources = {source.rank: source for source in sources}
        self.pending = deque(requests)
        self.outstanding: dict[str, Request] = {}
        self.problems = problems
        self.witness = MemoryWitness(memory, problems)
        self.pool = BlockPool(memory.shape[1], self.witness, problems)
        self.counts = Counts()

    @property
    def reported(self) -> int:
        """How many requests have ended."""
        return self.counts.finished + self.counts.failed

    def step(self, keep_pending: int = 0) -> None:
        """Post what there is room for, but for the last `keep_pending` requests, and sweep."""
        while self.can_post(keep_pending):
            self._post(self.pending.popleft())
        self.sweep()

    def can_post(self, keep_pending: int = 0) -> bool:
        """Tell whether a request waits and its blocks are free."""
        return len(self.pending) > keep_pending and len(self.pool) >= len(self.pending[0].remote)

    def sweep(self) -> None:
        """Sweep once; report what has ended and free its blocks."""
        in_flight = self.table.handle_count
        begin = time.perf_counter_ns()
        result = self._sweep(self.table)
        elapsed = time.perf_counter_ns() - begin
        if in_flight:
            self.counts.sweep_ns.append(elapsed)
        self._take_samples(result)
        for failure in result.failures:
            self.outstanding[failure.req_id].failing.add(failure.peer or "?")
            self.counts.failing.add(failure.peer or "?")
        for req_id in sorted(result.done):
            self._report(req_id)

    def replace(self, source: Source) -> None:
        """Read a rank's share from another agent from now on."""
        self.sources[source.rank] = source

    def reads_of(self, source: Source) -> list[Any]:
        """Return the handles in the table that read from a source."""
        return [
            handle
            for request in self.outstanding.values()
            for handle in self.table.handles(request.req_id)
            if request.reads[handle._handle] == source.name
        ]

    def _post(self, request: Request) -> None:
        request.local = self.pool.take(len(request.remote))
        request.sources = list(self.sources.values())
        self.outstanding[request.req_id] = request
        for source in request.sources:
            handle = self._prepare(request, source)
            request.reads[handle._handle] = source.name
            self._agent.transfer(handle)
            self.table.add(request.req_id, handle, peer=source.name)

    def _prepare(self, request: Request, source: Source) -> Any:
        own = self._memory[source.rank].ctypes.data
        local = self._descriptors(own, request.local)
        remote = self._descriptors(source.address, request.remote)
        return self._agent.initialize_xfer("READ", local, remote, source.name, request.notif)

    def _descriptors(self, address: int, blocks: list[int]) -> Any:
        size = self._memory.shape[2]
        return self._agent.get_xfer_descs([(address + b * size, size, 0) for b in blocks], "DRAM")

    def _take_samples(self, result: SweepResult) -> None:
        self.counts.samples += len(result.transfers)
        self.counts.unsampled += result.transfers.unsampled
        self.counts.sampled_bytes += int(result.transfers.bytes.sum())

    def _report(self, req_id: str) -> None:
        request = self.outstanding.pop(req_id, None)
        if request is None:
            self.problems.add(ONCE, f"{req_id} was reported twice")
            return
        # The bytes of every READ that has not failed must be there now, of a failed request too: if
        # not, the request was reported while that READ was still running.
        for source in request.sources:
            if source.name not in request.failing:
                self._check_landed(request, source)
        self.pool.give_back(request.local)
        if request.failing:
            self.counts.failed += 1
        else:
            self.counts.finished += 1

    def _check_landed(self, request: Request, source: Source) -> None:
        self.counts.read_from.setdefault(source.name, []).append(request.req_id)
        if not self.witness.landed(source.rank, request.local, request.remote):
            check, how = (EARLY, "failed") if request.failing else (BYTES, "finished")
            text = f"{request.req_id} was reported {how}, but its bytes from {source.name} are not all there"
            self.problems.add(check, text)
