"""Where a decode's registration and a prefill's finished blocks meet, whichever comes first.

In push mode a decode sends the prefill engine a registration: where to write the blocks of a
request. The prefill engine has the blocks when it has computed them. Either may be first, and a WRITE
can start when both are there.

The two sides may know a request under different ids: engines append a random suffix to the id that
both were given, a ``-`` and 8 hex digits. So the exact id is tried first, and then the id without
such a suffix, on either side. Ids of your own must not end so by chance, as a counter of 8 digits does:
``req-00000001`` and ``req-00000002`` would match. Where both sides use the same ids, say ``exact=True``.

Registrations come from peers. What waits here is bounded on both sides; the oldest goes, and is
counted. A prefill's blocks are not given back by that: they are the `kvfast.send.Sender`'s, and leave
when their lease is over.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from . import checks
from .ratelimit import RateLimit
from .results import SendResults
from .stats import Stats

logger = logging.getLogger(__name__)

RegistrationT = TypeVar("RegistrationT")
BlocksT = TypeVar("BlocksT")
T = TypeVar("T")

_SUFFIX: Final = re.compile(r"-[0-9a-fA-F]{8}\Z")


@dataclass(frozen=True, slots=True)
class PushMatch(Generic[RegistrationT, BlocksT]):
    """Both halves of a push: ``req_id`` is the prefill's id, ``decode_req_id`` the decode's."""

    req_id: str
    blocks: BlocksT
    decode_req_id: str
    registration: RegistrationT


class PushRendezvous(Generic[RegistrationT, BlocksT]):
    """Matches registrations with finished blocks. May be called from any thread.

    What is matched is handed out once, and no longer held.

    Parameters
    ----------
    capacity : int
        How many registrations may wait, and how many finished requests.
    exact : bool
        Match equal ids only.
    stats : Stats, optional
        Where evictions are counted (``evicted_registrations``); its own by default.
    clock : callable
        Gives the time in seconds, for the rate of log lines.

    Raises
    ------
    TypeError, ValueError
        If `capacity` is not a positive int.
    """

    def __init__(
        self,
        *,
        capacity: int = 16_384,
        exact: bool = False,
        stats: Stats | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity: Final = checks.count("capacity", capacity)
        self.stats: Final = stats if stats is not None else Stats(clock=clock)
        self._limit: Final = RateLimit(clock=clock)
        self._lock: Final = threading.RLock()  # reentrant, as a finaliser may run anywhere and evict
        base = _whole if exact else _without_suffix
        self._registrations: Final[_Waiting[RegistrationT]] = _Waiting(base)
        self._blocks: Final[_Waiting[BlocksT]] = _Waiting(base)

    def register(self, req_id: str, registration: RegistrationT) -> PushMatch[RegistrationT, BlocksT] | None:
        """Take in a decode's registration; return the match if the blocks were waiting for it.

        A registration for an id that is registered already takes its place.
        """
        checks.req_id(req_id)
        with self._lock:
            found = self._blocks.pop_match(req_id)
            if found is not None:
                return PushMatch(found[0], found[1], req_id, registration)
            self._registrations.put(req_id, registration)
            evicted = self._registrations.pop_beyond(self._capacity)
        self._count("registration", evicted)
        return None

    def finished_blocks(self, req_id: str, blocks: BlocksT) -> PushMatch[RegistrationT, BlocksT] | None:
        """Take in a prefill's finished blocks; return the match if a registration was waiting for them."""
        checks.req_id(req_id)
        with self._lock:
            found = self._registrations.pop_match(req_id)
            if found is not None:
                return PushMatch(req_id, blocks, found[0], found[1])
            self._blocks.put(req_id, blocks)
            evicted = self._blocks.pop_beyond(self._capacity)
        self._count("finished blocks", evicted)
        return None

    def ended(self, results: SendResults) -> None:
        """Drop what waits for sends that a `Sender.poll` reports as ended.

        A send that has failed is not among them before its lease is over: until then it holds its
        place here.
        """
        for req_id in results.finished | results.expired:
            self.evict(req_id)

    def evict(self, req_id: str) -> None:
        """Drop what waits under exactly this id, if anything does."""
        with self._lock:
            self._registrations.discard(req_id)
            self._blocks.discard(req_id)

    def __len__(self) -> int:
        """Return how many registrations and finished requests wait."""
        return len(self._registrations) + len(self._blocks)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._registrations or req_id in self._blocks

    def _count(self, what: str, evicted: str | None) -> None:
        if evicted is None:
            return
        self.stats.count("evicted_registrations")
        dropped = self._limit.allow(what)
        if dropped is not None:
            logger.warning(
                "rendezvous full, %s of request %.200r given up (%d more before)", what, evicted, dropped
            )


class _Waiting(Generic[T]):
    """One side's items by id, oldest first, and the ids by what is left without a suffix."""

    def __init__(self, base: Callable[[str], str]) -> None:
        self._base: Final = base
        self._items: OrderedDict[str, T] = OrderedDict()
        self._ids: dict[str, OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._items

    def put(self, req_id: str, item: T) -> None:
        self.discard(req_id)
        self._items[req_id] = item
        self._ids.setdefault(self._base(req_id), OrderedDict())[req_id] = None

    def pop_match(self, req_id: str) -> tuple[str, T] | None:
        """Take out the item under this id, or else the oldest one that differs in the suffix only."""
        if req_id in self._items:
            return req_id, self._pop(req_id)
        like = self._ids.get(self._base(req_id))
        if like is None:
            return None
        oldest = next(iter(like))
        return oldest, self._pop(oldest)

    def pop_beyond(self, capacity: int) -> str | None:
        """Take out the oldest item if there are too many; return its id."""
        if len(self._items) <= capacity:
            return None
        oldest = next(iter(self._items))
        self._pop(oldest)
        return oldest

    def discard(self, req_id: str) -> None:
        if req_id in self._items:
            self._pop(req_id)

    def _pop(self, req_id: str) -> T:
        base = self._base(req_id)
        like = self._ids[base]
        del like[req_id]
        if not like:
            del self._ids[base]
        return self._items.pop(req_id)


def _whole(req_id: str) -> str:
    return req_id


def _without_suffix(req_id: str) -> str:
    return _SUFFIX.sub("", req_id)
