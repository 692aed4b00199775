"""The containers ``_recving_transfers`` and ``_sending_transfers``, over a transfer table.

They read as the dicts of lists that vLLM and its tests expect. The table is the truth; a list is a view
of it. A handle that has ended is in no list any more. One thread sweeps and edits; another may append
and extend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence
from contextlib import contextmanager
from typing import Any

from kvfast_ext.contract import SweepResult

from .ops import AgentOps, unwrap
from .tables import aside, give_up, in_flight_of, without_request


class HandleList(MutableSequence[Any]):
    """The outstanding handles of one request, as a list."""

    def __init__(self, transfers: TrackedTransfers, req_id: str) -> None:
        self._transfers = transfers
        self._req_id = req_id

    def _now(self) -> list[Any]:
        return self._transfers.outstanding(self._req_id)

    def __len__(self) -> int:
        return len(self._now())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._now())

    def __getitem__(self, index: Any) -> Any:
        return self._now()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        handles = self._now()
        handles[index] = value
        self._transfers[self._req_id] = handles

    def __delitem__(self, index: Any) -> None:
        handles = self._now()
        del handles[index]
        self._transfers[self._req_id] = handles

    def insert(self, index: int, value: Any) -> None:  # noqa: ARG002  # there is no order but that of adding
        """Add a handle."""
        self._transfers.add(self._req_id, [value])

    def append(self, value: Any) -> None:
        """Add a handle."""
        self._transfers.add(self._req_id, [value])

    def extend(self, values: Iterable[Any]) -> None:
        """Add handles; a sweep sees all of them or none."""
        self._transfers.add(self._req_id, list(values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, HandleList)):
            return NotImplemented
        return self._now() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._now())

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        return self._now() + list(other)

    def __radd__(self, other: Iterable[Any]) -> list[Any]:
        return list(other) + self._now()


class TrackedTransfers(MutableMapping[str, Any]):
    """Outstanding handles by request. As with vLLM's own, any request can be appended to."""

    def __init__(self, ops: AgentOps) -> None:
        self._ops = ops
        self._table = ops.make_table()
        self._peer: str | None = None
        self._peers: dict[int, str] = {}
        self._joining: set[str] = set()
        self._ended_joining: set[str] = set()

    # ---- the table

    def sweep(self) -> SweepResult:
        """Sweep; a request to which another thread has added meanwhile is not done."""
        if self._table.ops is not self._ops.bound and not len(self._table):
            self._table = self._ops.make_table()
        result = self._ops.sweep(self._table)
        ended = result.done | self._ended_joining if self._ended_joining else result.done
        if ended:
            # In this order: who is no longer joining has all its handles in the table, or had them there.
            self._ended_joining = {req_id for req_id in ended if req_id in self._joining}
            result.done = {req_id for req_id in ended - self._ended_joining if req_id not in self._table}
        return result

    def outstanding(self, req_id: str) -> list[Any]:
        """Return a request's outstanding handles; none if it is not here."""
        if req_id not in self._table:
            return []
        return [unwrap(handle) for handle in self._table.handles(req_id)]

    def outstanding_of(self, peer: Any) -> int:
        """Return how many handles of a peer are outstanding; a leak is none: nothing of it is in flight."""
        return in_flight_of(self._table, name_of(peer))

    @property
    def aside(self) -> list[Any]:
        """The handles that are in no list because their transfers are done, and that are not released."""
        return [unwrap(handle) for handle in aside(self._table)]

    @property
    def handle_count(self) -> int:
        """How many handles are outstanding."""
        return int(self._table.handle_count)

    @contextmanager
    def of_peer(self, peer: Any) -> Iterator[None]:
        """Take handles that the same thread adds meanwhile for this peer's."""
        self._peer = None if peer is None else name_of(peer)
        try:
            yield
        finally:
            self._peer = None

    def note_peer(self, handle: Any, peer: Any) -> None:
        """Say whose a handle is that is going to be added, maybe with those of other peers."""
        self._peers[id(handle)] = name_of(peer)

    def add(self, req_id: str, handles: list[Any]) -> None:
        """Add handles to a request, as one step for a sweep."""
        by_peer: dict[str | None, list[Any]] = {}
        for handle in handles:
            peer = self._peers.pop(id(handle), self._peer)
            by_peer.setdefault(peer, []).append(self._ops.wrap(handle))
        # The table takes one peer a call. In between, a sweep may find the first peer's handles done.
        self._joining.add(req_id)
        try:
            for peer, wrapped in by_peer.items():
                self._table.add(req_id, *wrapped, peer=peer)
        finally:
            self._joining.discard(req_id)

    # ---- a dict

    def __getitem__(self, req_id: str) -> HandleList:
        # Nothing is made yet: another thread's sweep would find an empty request, and call it done.
        return HandleList(self, req_id)

    def __setitem__(self, req_id: str, handles: Iterable[Any]) -> None:
        wanted = list(handles)
        known = self.outstanding(req_id)
        new = [handle for handle in wanted if not _holds(known, handle)]
        if any(not _holds(wanted, handle) for handle in known):
            self._table = without_request(self._table, self._ops.make_table, req_id)
            new = wanted
        if req_id not in self._table:
            self.setdefault(req_id, new)
        elif new:
            self.add(req_id, new)

    def __delitem__(self, req_id: str) -> None:
        if req_id not in self:
            raise KeyError(req_id)
        self._table = without_request(self._table, self._ops.make_table, req_id)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return repr({req_id: self.outstanding(req_id) for req_id in self})

    def setdefault(self, req_id: str, default: Any = ()) -> Any:
        """Return a request's list; make it if there is none."""
        if req_id not in self._table:
            self._table.open(req_id)
            handles = list(default)
            if handles:
                self.add(req_id, handles)
        return HandleList(self, req_id)

    def get(self, req_id: str, default: Any = None) -> Any:
        """Return a request's list, or `default`: nothing is made."""
        return HandleList(self, req_id) if req_id in self._table else default

    def clear(self) -> None:
        """Give all handles up: whoever clears has them now."""
        give_up(self._table)
        self._table = self._ops.make_table()

    def pop(self, req_id: str, *default: Any) -> Any:
        """Give a request's handles up: whoever asks has them now."""
        if req_id not in self._table:
            if default:
                return default[0]
            raise KeyError(req_id)
        handles = self.outstanding(req_id)
        del self[req_id]
        return handles


def name_of(agent: Any) -> str:
    """Return an agent's name as a str: NIXL's ``add_remote_agent`` gives bytes, which vLLM keeps."""
    return agent.decode(errors="surrogateescape") if isinstance(agent, bytes) else str(agent)


def _holds(handles: list[Any], wanted: Any) -> bool:
    return any(handle is wanted or handle == wanted for handle in handles)
