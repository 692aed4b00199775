"""What kvfast knows beside vLLM's own attributes of a worker.

It is made on first use: workers exist that never ran their constructor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from kvfast.ratelimit import RateLimit
from kvfast.stats import Stats
from kvfast_ext.contract import SweepResult
from kvfast_ext.table import NO_TRANSFERS

from .metrics import CounterReader
from .newest import Newest
from .ops import AgentOps, unwrap
from .options import Options
from .plain import PlainTransfers
from .retries import PushRetries
from .transfers import TrackedTransfers

# Below vLLM's own logger: there its level and its format hold, elsewhere nothing below WARNING shows.
logger: Final = logging.getLogger("vllm.kvfast")


class KvfastState:
    """One worker's options, ops, counters, and what waits for what.

    Attributes
    ----------
    removing : dict
        Engines whose state goes when their handles have ended, with vLLM's ``log_eviction``.
    cleaning : set
        Those of them whose state is going just now.
    in_use : Counter
        Engines that the writer thread is using: their state stays meanwhile.
    parked_reads, parked_pushes, parked_registrations : deque
        What was asked of engines in `removing` meanwhile.
    dead_agents : set
        Agents whose connection was seen to be gone.
    counted_dead : set
        Those of them that were counted and logged since their engine was connected.
    posting : dict
        Requests whose WRITEs the writer thread is posting, with the handles posted so far.
    sends : Newest
        Which blocks are pushed for a request: none any more when its lease has run out.
    retries : PushRetries
        Pushes whose handshake failed, until decode asks again or their requests end.
    registering : set
        Requests whose producers the writer thread is telling where to write.
    registrations : Newest
        What it tells them: nothing any more when the request has failed before.
    lock : Lock
        Guards what the writer thread uses of the above, too; held for a few instructions.
    swept_sends : SweepResult or None
        What a sweep over the WRITEs found before vLLM's lock was taken.
    """

    def __init__(
        self,
        options: Options,
        *,
        locked: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options: Final = options
        self.clock: Final = clock
        self.ops: Final = AgentOps(options, locked, clock)
        self.stats: Final = Stats(clock=clock)
        self.counters: Final = CounterReader(self.stats, clock)
        self.limit: Final = RateLimit(clock=clock)
        self.lock: Final = threading.Lock()
        self.removing: Final[dict[str, bool]] = {}
        self.cleaning: Final[set[str]] = set()
        self.in_use: Final[Counter[str]] = Counter()
        self.parked_reads: Final[deque[tuple[str, Any]]] = deque()
        self.parked_pushes: Final[deque[tuple[Any, ...]]] = deque()
        self.parked_registrations: Final[deque[tuple[str, Any]]] = deque()
        self.dead_agents: Final[set[str]] = set()
        self.counted_dead: Final[set[str]] = set()
        self.posting: Final[dict[str, list[Any]]] = {}
        self.sends: Final = Newest()
        self.retries: Final = PushRetries(clock)
        self.registering: Final[set[str]] = set()
        self.registrations: Final = Newest()
        self.swept_sends: SweepResult | None = None
        # Requests and handles whose failure vLLM has counted and logged before a sweep.
        self.told: Final[list[tuple[str, Any]]] = []
        self.expired_now = 0  # leases that ran out in the poll that is going on
        self.shutting_down = False
        self.reading = threading.local()
        self._plain: list[PlainTransfers] = []

    def sweep(self, transfers: Any, agent: Any) -> SweepResult:
        """Sweep a container, ours or any dict of lists, and count what was found."""
        if not transfers and not isinstance(transfers, TrackedTransfers) and not self._plain:
            return SweepResult(NO_TRANSFERS)  # there need not even be an agent
        self.ops.use(agent)
        started = self.clock()
        if isinstance(transfers, TrackedTransfers):
            result = transfers.sweep()
        else:
            result = self._sweep_plain(transfers)
        self.stats.observe_sweep(self.clock() - started)
        self.stats.observe_result(result)
        return result

    def _sweep_plain(self, transfers: Any) -> SweepResult:
        plain = next((known for known in self._plain if known.transfers is transfers), None)
        if plain is None:
            plain = PlainTransfers(transfers, self.ops)
            self._plain.append(plain)
        result = plain.sweep()
        if plain.empty:
            self._plain.remove(plain)
        return result

    def tell(self, req_id: str, handle: Any) -> None:
        """Note that vLLM has counted and logged a handle's failure. From any thread."""
        with self.lock:
            self.told.append((req_id, handle))

    def was_told(self, req_id: str, handle: Any) -> bool:
        """Tell, once, whether vLLM has counted and logged a handle's failure before."""
        known = (req_id, unwrap(handle))
        with self.lock:
            if known not in self.told:
                return False
            self.told.remove(known)
        return True

    def forget_told(self, req_ids: set[str]) -> None:
        """Forget the handles of requests that have ended."""
        with self.lock:  # the writer thread may be adding one
            self.told[:] = [known for known in self.told if known[0] not in req_ids]

    def count(self, name: str, n: int = 1) -> None:
        """Add to one of kvfast's counters."""
        self.stats.count(name, n)
        self.counters.expedite()  # an engine that gets idle by what was counted takes no further step

    def warn(self, key: str, message: str, *arguments: object) -> None:
        """Log a warning, at a limited rate for each key."""
        dropped = self.limit.allow(key)
        if dropped is not None:
            logger.warning(f"{message} (%d more before)", *arguments, dropped)
