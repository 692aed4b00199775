"""Real transfers that are DONE: sweep, telemetry, statistics, release, by each subject."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Final

from .bare_loop import BareLoop
from .errors import BenchError
from .race import Burst, shortest
from .real import HANDLES, REQUESTS, Link, Transfers
from .subjects import LOOP
from .vllm_loop import SmallStats, VllmLoop

SETS: Final = 4  # drained one after the other in a burst, see `shortest`

Drain = Callable[[], bool]  # sweeps once; tells whether all requests are done by now
Prepare = Callable[[Transfers], Drain]


class Drains:
    """What a drain of each subject is. All prepare the same, and only what they return is timed.

    Parameters
    ----------
    link : Link
        Where the transfers come from.
    backends : mapping of str to module
        The backends to measure, by the subject's name.
    """

    def __init__(self, link: Link, backends: Mapping[str, ModuleType]) -> None:
        self.link = link
        self.backends = dict(backends)
        self.ops = {name: backend.bind(link.agent) for name, backend in backends.items()}

    @property
    def prepares(self) -> dict[str, Prepare]:
        """How each subject prepares a drain."""
        found: dict[str, Prepare] = {LOOP: self.loop}
        return found | {name: partial(self.table, name) for name in self.backends}

    def bursts(self) -> dict[str, Burst]:
        """Return a burst for each subject: seconds of the shortest of some drains."""
        return {name: partial(_burst, self.link.done, prepare) for name, prepare in self.prepares.items()}

    def loop(self, transfers: Transfers) -> Drain:
        """Prepare a drain by vLLM's loop."""
        loop = VllmLoop(self.link.agent, transfers, SmallStats(), _refuse)

        def drain() -> bool:
            return len(loop.sweep()) == REQUESTS and len(loop.stats.bytes) == HANDLES

        return drain

    def table(self, name: str, transfers: Transfers) -> Drain:
        """Prepare a drain by a table, with what it samples put where the loop puts it.

        The table's references to the handles are the last ones, as the loop's are, so their
        finalisers run inside the sweep on both sides.
        """
        backend = self.backends[name]
        table = backend.TransferTable(self.ops[name], scan="all")
        for req_id, handles in transfers.items():
            table.add(req_id, *handles, peer=self.link.rank.name)
        transfers.clear()
        stats = SmallStats()

        def drain() -> bool:
            result = backend.pop_done_transfers(table)
            stats.record_all(result.transfers)
            return len(result.done) == REQUESTS and len(stats.bytes) == HANDLES

        return drain

    def bare(self, limit: BareLoop) -> float:
        """Run the limit over some sets of handles; return the seconds of the shortest pass."""
        best = float("inf")
        for transfers in [self.link.done() for _ in range(SETS)]:
            handles = [handle for each in transfers.values() for handle in each]
            best = min(best, limit.finish(handle._handle for handle in handles))
            for handle in handles:
                handle._released = True
        return best


def drain_whole(drain: Drain) -> None:
    """Drain; BenchError if one sweep does not take all."""
    if not drain():
        raise BenchError("a sweep left something over")


def burst_of_landed(link: Link, prepare: Prepare) -> float:
    """Time a drain from where NIXL has not been asked about any of the transfers."""
    # The first sweep of a burst is a warm-up here: each set must be swept before the next is posted,
    # or NIXL's checks of one would also do the work of another.
    drain_whole(prepare(link.done()))
    drain = prepare(link.landed())
    start = time.perf_counter_ns()
    whole = drain()
    spent = (time.perf_counter_ns() - start) / 1e9
    while not whole:  # there was a straggler: not what is measured
        whole, spent = drain(), float("inf")
    return spent


def _burst(source: Callable[[], Transfers], prepare: Prepare) -> float:
    drains = [prepare(source()) for _ in range(SETS)]
    return shortest([partial(drain_whole, drain) for drain in drains])


def _refuse(req_id: str, what: object) -> None:
    raise BenchError(f"{req_id}: {what!r} is not DONE")
