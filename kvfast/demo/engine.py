"""Decode's serving loop: take blocks, have them filled, poll, free the blocks of what has ended.

This is what a serving engine has, in the shape that pull and push share. It knows nothing of
processes and faults. What the Receiver reports is acted on at once, and checked against evidence
that does not come from it.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvfast.receive import Receiver
from kvfast.results import ReceiveResults

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
    """A request: the same contents from every rank, into the same places of its share.

    ``remote`` are the numbers of the contents; where a rank is read from, its blocks.
    """

    req_id: str
    remote: list[int]
    local: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)


@dataclass(slots=True)
class Counts:
    """What the loop has seen so far. Lists by source: requests, as they were reported."""

    finished: int = 0
    failed: list[str] = field(default_factory=list)
    bytes_from: dict[str, int] = field(default_factory=dict)  # checked, and found right
    landed_from: dict[str, list[str]] = field(default_factory=dict)
    finished_with: dict[str, list[str]] = field(default_factory=dict)

    @property
    def reported(self) -> int:
        """How many requests have ended."""
        return self.finished + len(self.failed)


def make_requests(count: int, rank_blocks: int, most: int, seed: int) -> list[Request]:
    """Return requests with random contents, 1 to `most` blocks each."""
    dice = random.Random(seed)
    return [Request(f"req-{n}", dice.sample(range(rank_blocks), dice.randint(1, most))) for n in range(count)]


class Engine(ABC):
    """The loop's state.

    Parameters
    ----------
    receiver : Receiver
        What is under test.
    memory : array
        Registered, shape (ranks, blocks, block_bytes).
    """

    def __init__(
        self,
        receiver: Receiver,
        memory: Bytes,
        sources: Iterable[Source],
        requests: Iterable[Request],
        problems: Problems,
    ) -> None:
        self.receiver = receiver
        self._memory = memory
        self.sources = {source.rank: source for source in sources}
        self.pending = deque(requests)
        self.outstanding: dict[str, Request] = {}
        self.problems = problems
        self.witness = MemoryWitness(memory, problems)
        self.pool = BlockPool(memory.shape[1], self.witness, problems)
        self.counts = Counts()

    # ---- one step of the loop

    def step(self, keep_pending: int = 0) -> None:
        """Start what there is room for, but for the last `keep_pending` requests, and poll."""
        while self.can_start(keep_pending):
            self._take_in(self.pending.popleft())
        self.poll()

    def can_start(self, keep_pending: int = 0) -> bool:
        """Tell whether a request waits and its blocks are free."""
        return len(self.pending) > keep_pending and len(self.pool) >= len(self.pending[0].remote)

    def poll(self) -> None:
        """Poll once, and free the blocks of what has ended."""
        results = self.receiver.poll()
        self._check_invalid_blocks(results)
        for req_id in sorted(results.finished):
            self._report(req_id, failed=False)
        for req_id in sorted(results.failed):
            self._report(req_id, failed=True)
        for req_id in sorted(results.aborted):
            self.problems.add(ONCE, f"{req_id} was reported aborted, which nobody asked for")

    def replace(self, source: Source) -> None:
        """Have a rank's share served by another agent from now on."""
        self.sources[source.rank] = source

    def close(self, timeout_s: float) -> int:
        """End; return how many requests and handles are left."""
        closed = self.receiver.close(timeout_s)
        for error in closed.errors:
            self.problems.add(ONCE, f"closing raised {error!r}")
        self.pool.check_all_free()
        return len(closed.left) + closed.left_handles

    # ---- what a fault asks

    def in_flight(self, source: Source) -> list[str]:
        """Return the requests that have a transfer with this source running, by the evidence."""
        return [req_id for req_id, request in self.outstanding.items() if self.runs(request, source)]

    @abstractmethod
    def runs(self, request: Request, source: Source) -> bool:
        """Tell whether the transfer of a request with a source is running, by the evidence."""

    @abstractmethod
    def has_lost(self, source: Source) -> bool:
        """Tell whether the Receiver has given up whatever it expected of a source."""

    def process_ended(self, source: Source) -> None:  # noqa: B027 - not everybody needs to be told
        """Hear that the process of a source has ended."""

    # ---- inside

    @abstractmethod
    def _start(self, request: Request) -> None:
        """Track a request and start its transfers."""

    def _take_in(self, request: Request) -> None:
        request.local = self.pool.take(len(request.remote))
        request.sources = list(self.sources.values())
        self.outstanding[request.req_id] = request
        self._start(request)

    def _check_invalid_blocks(self, results: ReceiveResults) -> None:
        known = [self.outstanding[req_id].local for req_id in results.failed if req_id in self.outstanding]
        blocks = sorted(block for local in known for block in local)
        named = sorted(block for group in results.invalid_block_ids for block in group)
        if named != blocks:
            self.problems.add(ONCE, f"{named} were named invalid, the blocks of what failed are {blocks}")

    def _report(self, req_id: str, *, failed: bool) -> None:
        request = self.outstanding.pop(req_id, None)
        if request is None:
            self.problems.add(ONCE, f"{req_id} was reported twice")
            return
        self._check_ended(request, failed)
        self.pool.give_back(request.local)
        if failed:
            self.counts.failed.append(req_id)
            return
        self.counts.finished += 1
        for source in request.sources:
            self.counts.finished_with.setdefault(source.name, []).append(req_id)

    def _check_ended(self, request: Request, failed: bool) -> None:
        dead = self.receiver.guard.dead if failed else frozenset()
        if failed and not any(source.name in dead for source in request.sources):
            self.problems.add(EARLY, f"{request.req_id} was reported failed, but no rank of it is dead")
        # Every byte of a living rank must be there now, of a failed request too: if not, the request
        # was reported while that transfer was still running.
        for source in request.sources:
            if source.name not in dead:
                self._check_landed(request, source, failed)

    def _check_landed(self, request: Request, source: Source, failed: bool) -> None:
        self.counts.landed_from.setdefault(source.name, []).append(request.req_id)
        if self.witness.landed(source.rank, request.local, request.remote):
            checked = len(request.local) * self._memory.shape[2]
            self.counts.bytes_from[source.name] = self.counts.bytes_from.get(source.name, 0) + checked
            return
        check, how = (EARLY, "failed") if failed else (BYTES, "finished")
        text = f"{request.req_id} was reported {how}, but its bytes from {source.name} are not all there"
        self.problems.add(check, text)
