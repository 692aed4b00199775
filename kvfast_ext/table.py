"""The rules of a transfer table, once, for both backends.

A table knows requests and their outstanding handles. A handle is *in flight* (its state is asked at
sweeps; the backend's store keeps it) or *held* (it has failed and waits for its release, `held.py`).
A request is *drained* when it owns neither; the sweep that finds it so reports it and forgets it.

One sweep, in order:

1. The store asks for states. ``scan="all"`` asks about every handle in flight. ``scan="watch"`` asks,
   a request at a time, about its newest handle, and goes on to the next older one as long as the
   answers are terminal. A request can't be drained before all its handles are terminal, so the two
   scans drain a request at the same sweep; but an older handle's failure, or its notification (NIXL
   sends that from the check), would wait. So the first sweep and one at least every
   ``full_scan_s`` are full in ``watch`` too.
2. DONE handles: telemetry, release, gone. A refused release is held aside, without its request.
3. Failures: first which peers have died, then for each failure LOST or FAILED. All are held.
4. Held handles that are due are released; requests that this drains are done.

Threads: one thread sweeps; another may add. While a sweep runs, what is added goes to an inbox and
joins at the sweep's end or the next one's start, so a store is never changed under compiled code that
reads it without the GIL. `_feed` makes "is a sweep running?" and the append one step.

Interrupts: a signal's exception comes out of any call, and after it the table is swept on. So what was
seen waits in the table from step to step (`_swept`, `_clashes`, `_idle`, what is gone in `_held`,
`_unreported`), each step can be done again, and one statement without a call takes note that it is done.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from . import states
from .agent_ops import mark_released, raise_interrupt
from .contract import (
    SCANS,
    Ended,
    Handle,
    HandleFailure,
    HandleStore,
    Ops,
    Quarantine,
    SweepResult,
    Swept,
    Transfers,
    check_seconds,
    merged,
)
from .errors import (
    ConcurrentSweepError,
    DuplicateHandleError,
    DuplicateRequestError,
    UnknownRequestError,
)
from .handles import describe, flatten, refuse_duplicates
from .held import HeldHandle, HeldHandles
from .loglater import LogLater
from .peers import PeerTokens

logger = logging.getLogger(__name__)

_EMPTY: Final = np.empty(0, np.int64)
NO_TRANSFERS: Final = Transfers(_EMPTY, _EMPTY, _EMPTY, _EMPTY)


class _Added(NamedTuple):
    req_id: str
    keys: list[int]
    handles: list[Handle]
    peer: str | None


class BaseTable:
    """Requests and their outstanding transfer handles.

    Parameters
    ----------
    ops : Ops
        What ``bind`` of the same backend returned.
    scan : {"watch", "all"}
        Which handles a sweep asks about.
    full_scan_s : float
        In ``watch``, the longest time in seconds between two full scans. 50 ms: failures and
        notifications of older handles wait no longer than that.
    quarantine : Quarantine
        How long failed handles are kept.
    clock : callable, optional
        Returns seconds; ``time.monotonic`` by default.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range; the message names it.
    """

    _store_type: ClassVar[type]
    _ops_types: ClassVar[tuple[type, ...]]
    # What the finaliser needs: at the interpreter's exit a module's names may be gone.
    _at_exit: ClassVar[tuple[Callable[[Handle], None], Callable[..., None]]] = (mark_released, warnings.warn)

    def __init__(
        self,
        ops: Ops,
        *,
        scan: str = "watch",
        full_scan_s: float = 0.05,
        quarantine: Quarantine = Quarantine(),
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not isinstance(ops, self._ops_types):
            raise TypeError(f"ops must come from bind() of the same backend, not {ops!r}")
        if scan not in SCANS:
            raise ValueError(f"scan must be one of {', '.join(SCANS)}, not {scan!r}")
        if not isinstance(quarantine, Quarantine):
            raise TypeError(f"quarantine must be a Quarantine, not {quarantine!r}")
        if clock is not None and not callable(clock):
            raise TypeError(f"clock must be callable, not {clock!r}")
        self.ops = ops
        self.scan = scan
        self._always_full = scan == "all"
        self._full_scan_s = check_seconds("full_scan_s", full_scan_s)
        self._clock = clock or time.monotonic
        self._store: HandleStore = self._store_type(ops)
        self._lines = LogLater()
        self._held = HeldHandles(quarantine, self._lines)
        self._peers = PeerTokens()
        self._failed: set[str] = set()
        self._clashes: list[tuple[str, Handle, str | None]] = []
        self._told_unsampled = False
        self._idle: set[str] = set()
        self._calm = True  # nothing is idle, held or unreported: a sweep without ends has no more to do
        self._next_full = -float("inf")
        self._feed = threading.RLock()
        self._sweeping = False
        self._inbox: list[_Added] = []
        self._swept: list[Swept] = []
        self._unreported: SweepResult | None = None

    # ---- feeding

    def open(self, req_id: str) -> None:
        """Make an entry without handles: it is done at the next sweep unless handles are added.

        Raises
        ------
        TypeError
            If `req_id` is not a str.
        DuplicateRequestError
            If it is in the table.
        """
        req_id = _plain_id(req_id)
        with self._feed:
            if req_id in self:
                raise DuplicateRequestError(f"request {req_id!r} is in the table already")
            self._feed_one(_Added(req_id, [], [], None))

    def add(self, req_id: str, *handles: Handle, peer: str | None = None) -> None:
        """Add outstanding handles to a request, newest last; make the request if it is new.

        All handles of a call become visible to the sweeping thread at once. The table keeps a
        strong reference to each handle object, since a ``nixl_xfer_handle`` releases itself when
        it is collected.

        Parameters
        ----------
        req_id : str
            The request.
        *handles : nixl_xfer_handle, int, or array of uint64
            Single handles, or typed arrays of raw ids (numpy, a CPU torch tensor, any buffer of
            8-byte unsigned ints), in any mix.
        peer : str, optional
            The remote agent's name. Without it, a dead peer's LOST handles stay in quarantine.

        Raises
        ------
        TypeError, ValueError
            If a request id, a handle or a peer is no such thing; nothing has been added then.
        DuplicateHandleError
            If a handle is in the table already; nothing has been added then.
        """
        req_id = _plain_id(req_id)
        if peer is not None and not isinstance(peer, str):
            raise TypeError(f"peer must be a str or None, not {peer!r}")
        keys: list[int] = []
        kept: list[Handle] = []
        for handle in flatten(handles):
            key, keep = self.ops.admit(handle)
            keys.append(key)
            kept.append(keep)
        if len(keys) > 1:
            refuse_duplicates(keys, kept)
        with self._feed:
            self._refuse_known(keys, kept)
            self._feed_one(_Added(req_id, keys, kept, peer))

    def admit(self, handle: Handle) -> int:
        """Return the id of a handle that is to be posted and added; raise what `add` would raise.

        During a sweep only that sweep can tell whether the handle is in the table: see `add`.
        """
        key, kept = self.ops.admit(handle)
        with self._feed:
            self._refuse_known([key], [kept])
        return key

    # ---- looking

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._store or any(added.req_id == req_id for added in self._inbox)

    def __len__(self) -> int:
        return len(self._store) + len(self._inbox_ids())

    def __iter__(self) -> Iterator[str]:
        return iter([*self._store, *self._inbox_ids()])

    def handles(self, req_id: str) -> list[Handle]:
        """Return the outstanding handles of a request, oldest first, held ones last.

        Raises
        ------
        UnknownRequestError
            If the request is not in the table.
        """
        req_id = _plain_id(req_id)
        with self._feed:
            if req_id not in self:
                raise UnknownRequestError(f"request {req_id!r} is not in the table")
            found = self._store.handles(req_id) if req_id in self._store else []
            for added in self._inbox:
                if added.req_id == req_id:
                    found += [_restored(k, h) for k, h in zip(added.keys, added.handles)]
            return found + [item.handle for item in self._aside() if item.req_id == req_id]

    @property
    def handle_count(self) -> int:
        """How many handles requests wait for: in flight, or failed and not yet released."""
        waiting = sum(len(added.keys) for added in self._inbox)
        return self._store.in_flight + waiting + sum(item.req_id is not None for item in self._aside())

    @property
    def handle_ids(self) -> npt.NDArray[np.uint64]:
        """The ids of those handles, a read-only uint64 array, in no particular order.

        It is a snapshot: the store may move under the next ``add``.
        """
        with self._feed:
            extra = [item.key for item in self._aside() if item.req_id is not None]
            extra += [key for added in self._inbox for key in added.keys]
            ids = np.concatenate([self._store.ids(), np.array(extra, np.uint64)])
        ids.flags.writeable = False
        return ids

    def outstanding_of(self, peer: str) -> int:
        """Return how many handles of a peer are in the table, held ones included."""
        with self._feed:
            tokens = self._peers.tokens_of(peer)
            count = sum(self._store.outstanding_of(token) for token in tokens)
            count += sum(item.peer in tokens for item in self._aside())
            return count + sum(len(added.keys) for added in self._inbox if added.peer == peer)

    @property
    def quarantined(self) -> set[str]:
        """Requests that wait for a LOST handle's quarantine."""
        return {item.req_id for item in self._held.items() if item.lost and item.req_id is not None}

    # ---- sweeping

    def _sweep(self) -> SweepResult:
        mine = False
        try:
            with self._feed:
                if self._sweeping:
                    raise ConcurrentSweepError("this table is being swept already: one sweep at a time")
                self._sweeping = mine = True
                self._empty_inbox()  # an interrupt may have left something there
            result = self._run()
            if self._inbox:
                with self._feed:
                    self._empty_inbox()
            self._sweeping, self._unreported = False, None  # no call comes behind it: the caller has it
            return result
        except BaseException:
            if mine:
                self._sweeping = False
            raise

    def _empty_inbox(self) -> None:
        while self._inbox:
            self._join(self._inbox[0])
            del self._inbox[0]

    def _run(self) -> SweepResult:
        now = self._clock()
        full = self._always_full or now >= self._next_full
        self._store.sweep(full, self._swept)
        if full:
            self._next_full = now + self._full_scan_s
        if self._calm and not self._swept and self._unreported is None:
            return SweepResult(NO_TRANSFERS, set(), set(), [])
        return self._settle(now)

    def _settle(self, now: float) -> SweepResult:
        self._calm = False
        if self._held and (gone := self._held.gone(now)):  # an interrupt came right after a release
            self._unreported = self._unreported or SweepResult(NO_TRANSFERS)
            self._let_go(gone, self._unreported)
        result = self._take_swept(now)
        if self._idle:
            self._finish_idle(result)
        if self._held:
            left, retries = self._held.release_due(now, self.ops.release)
            result.release_retries += retries
            self._let_go(left, result)
        result.retained = len(self._held)
        if self._peers.any_dead:
            self._forget_unused(self._peers.dead_tokens())
        self._failed -= result.done
        raise_interrupt(self.ops)
        self._lines.write()
        self._calm = not (self._held or self._peers.any_dead)
        return result

    def _take_swept(self, now: float) -> SweepResult:
        result, ended = self._unreported, list[Ended]()
        for swept in self._swept:
            result = merged(result, SweepResult(_transfers(swept), swept.drained, set(), []))
            ended += swept.ended
            self._tell_unsampled(swept.unsampled)
        failures = self._take_ended(ended, now) if ended else []
        failures += map(_clash, self._clashes)
        failed = {failure.req_id for failure in failures} - self._failed
        if failures or result is None:
            result = merged(result, SweepResult(NO_TRANSFERS, set(), failed, failures))
        failed = self._failed | failed
        self._unreported, self._failed, self._swept, self._clashes = result, failed, [], []
        return result

    def _take_ended(self, ended: list[Ended], now: float) -> list[HandleFailure]:
        failures = [item for item in ended if item.code != states.SUCCESS]
        for item in failures:
            if item.code == states.REMOTE_DISCONNECT:
                self._peers.died(item.peer)
        self._held.peer_died(self._peers.is_dead)
        failures.sort(key=lambda item: (item.req_id, item.key))
        told = [self._take_failure(item, now) for item in failures]
        for item in ended:
            if item.code == states.SUCCESS:
                self._held.hold_refused(item.handle, item.key, item.peer, now, item.error)
        return told

    def _take_failure(self, item: Ended, now: float) -> HandleFailure:
        lost = item.code == states.NOT_FOUND and not self._peers.is_dead(item.peer)
        peer = self._peers.name(item.peer)
        self._held.hold_failed(item.req_id, item.handle, item.key, item.peer, now, lost=lost)
        return HandleFailure(item.req_id, item.handle, states.name_of(item.code), item.error, peer, lost)

    def _tell_unsampled(self, count: int) -> None:
        if count and not self._told_unsampled:
            self._told_unsampled = True
            self._lines.add(
                logger,
                logging.WARNING,
                "no telemetry for %d DONE handles: %r. They count without a sample (not logged again)",
                count,
                self.ops.telemetry_error,
            )

    def _finish_idle(self, result: SweepResult) -> None:
        for req_id in self._idle:
            if req_id in self._store:
                self._store.drop(req_id)
        result.done, self._idle = result.done | self._idle, set()

    def _let_go(self, gone: list[HeldHandle], result: SweepResult) -> None:
        for item in gone:
            self._store.let_go(item, result.done)
            result.blind_releases += item.lost
            item.lost = False
            self._held.forget(item)

    def _token(self, peer: str | None) -> int:
        if self._peers.crowded:
            self._forget_unused(self._peers.tokens())
            self._peers.set_crowded()
        return self._peers.token(peer)

    def _forget_unused(self, tokens: list[int]) -> None:
        held = {item.peer for item in self._aside()}
        for token in tokens:
            if token not in held and not self._store.outstanding_of(token):
                self._peers.forget(token)

    # ---- inside

    def _refuse_known(self, keys: list[int], handles: list[Handle]) -> None:
        for key, handle in zip(keys, handles):
            # During a sweep NIXL may just have freed an id and given it out again; `_join` looks then.
            known = not self._sweeping and (key in self._held or self._store.find(key))
            if known or any(key in added.keys for added in self._inbox):
                named = describe(_restored(key, handle))
                raise DuplicateHandleError(f"handle {named} is in the table already")

    def _feed_one(self, added: _Added) -> None:
        if self._sweeping or self._inbox:
            self._inbox.append(added)
        else:
            self._join(added)

    def _join(self, added: _Added) -> None:
        if added.req_id not in self._store:
            self._store.open(added.req_id)
            self._idle.add(added.req_id)
        fresh = [(k, h) for k, h in zip(added.keys, added.handles) if not self._clashes_with(added, k, h)]
        if fresh:
            self._idle.discard(added.req_id)
            keys, handles = zip(*fresh)
            self._store.append(added.req_id, list(keys), list(handles), self._token(added.peer))
        elif self._idle:
            self._calm = False

    def _clashes_with(self, added: _Added, key: int, handle: Handle) -> bool:
        # Only what was added during a sweep can clash here; then it is too late to raise. The handle
        # stays where it is, and the second request fails: it must not pass for complete.
        if not (self._store.find(key) or key in self._held):
            return False
        self._clashes.append((added.req_id, _restored(key, handle), added.peer))
        self._calm = False
        text = "handle %s of request %s is in the table already"
        self._lines.add(logger, logging.ERROR, text, describe(handle or key), added.req_id)
        return True

    def _aside(self) -> list[HeldHandle | Ended]:
        # Neither in flight nor forgotten. After an interrupt one may be in both places.
        seen: dict[int, HeldHandle | Ended] = {i.key: i for swept in self._swept for i in swept.ended}
        return [*{**seen, **{item.key: item for item in self._held.items()}}.values()]

    def _inbox_ids(self) -> list[str]:
        # Not a set: the order of adding is kept.
        return [i for i in dict.fromkeys(added.req_id for added in self._inbox) if i not in self._store]

    def abandon(self) -> int:
        """See to it that nothing in the table is ever released; return how many handles that are.

        Dropping a handle object releases it, and what may still land must not be released. So it is
        marked as released: NIXL's own object stays until the agent goes. For whoever polls no more.
        """
        with self._feed:
            kept = [handle for req_id in self._store for handle in self._store.handles(req_id)]
            kept += [item.handle for item in self._aside()]
            kept += [handle for added in self._inbox for handle in added.handles]
        mark, _ = self._at_exit
        for handle in kept:
            mark(handle)
        return len(kept)

    def __del__(self) -> None:
        if getattr(self, "_store", None) is None:
            return
        kept = self.abandon()  # first: the warning may be made an error
        if not kept:
            return
        _, warn = self._at_exit
        warn(
            f"a transfer table was dropped with {kept} handles not released; their agent keeps them",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


def _transfers(swept: Swept) -> Transfers:
    rows = swept.samples
    return Transfers(rows[0], rows[1], rows[2], rows[3], swept.unsampled)


def _clash(clash: tuple[str, Handle, str | None]) -> HandleFailure:
    req_id, handle, peer = clash
    error = DuplicateHandleError(f"handle {describe(handle)} was in the table already")
    return HandleFailure(req_id, handle, "EXCEPTION", error, peer)


def _plain_id(req_id: object) -> str:
    if not isinstance(req_id, str):
        raise TypeError(f"a request id must be a str, not {req_id!r}")
    return str.__str__(req_id)  # of a subclass, its text: compiled code takes plain strings


def _restored(key: int, handle: Handle) -> Handle:
    return key if handle is None else handle
