"""Polling of any dict of lists, for whoever puts one where a worker's container was.

Each such dict has a table behind it for as long as it has handles, so that what a table knows of
a handle (that its failure was told, that it is in quarantine) is known here too.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from kvfast_ext.contract import SweepResult

from .ops import AgentOps, unwrap
from .tables import without_request

Transfers = MutableMapping[str, Any]


class PlainTransfers:
    """One dict of lists and the table behind it."""

    def __init__(self, transfers: Transfers, ops: AgentOps) -> None:
        self.transfers = transfers
        self._ops = ops
        self._table = ops.make_table()
        self._known: dict[str, list[Any]] = {}  # as the table knows them: wrapped
        self._retained = 0

    def sweep(self) -> SweepResult:
        """Take in what has changed in the dict, sweep, and change the dict accordingly."""
        for req_id in [req_id for req_id in self._known if req_id not in self.transfers]:
            self._forget(req_id)
        for req_id, handles in self.transfers.items():
            self._take_in(req_id, list(handles))
        result = self._ops.sweep(self._table)
        self._retained = result.retained
        for req_id in result.done:
            self._known.pop(req_id, None)
            self.transfers.pop(req_id, None)
        for req_id in self._known:
            left = self._table.handles(req_id)
            if len(left) != len(self._known[req_id]):
                self._known[req_id] = left
                self.transfers[req_id] = [unwrap(handle) for handle in left]
        return result

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing left to remember."""
        return not self._known and not self._retained

    def _take_in(self, req_id: str, handles: list[Any]) -> None:
        known = list(self._known.get(req_id, ()))
        new = []
        for handle in handles:
            match = next((kept for kept in known if _same(unwrap(kept), handle)), None)
            if match is None:
                new.append(handle)
            else:
                known.remove(match)
        if known:  # what is left of it is no longer in the dict's list
            self._forget(req_id)
            new = handles
        if req_id not in self._table:
            self._table.open(req_id)
        wrapped = [self._ops.wrap(handle) for handle in new]
        if wrapped:
            self._table.add(req_id, *wrapped)
        self._known.setdefault(req_id, []).extend(wrapped)

    def _forget(self, req_id: str) -> None:
        self._known.pop(req_id, None)
        self._table = without_request(self._table, self._ops.make_table, req_id)


def _same(one: Any, other: Any) -> bool:
    return one is other or one == other
