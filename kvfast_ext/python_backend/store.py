"""Handles in flight, kept in dicts: the reference for the compiled store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import states
from ..agent_ops import PythonOps, Sample
from ..coded_ops import CodedOps
from ..contract import Ended, Handle, Swept
from ..held import HeldHandle


@dataclass(slots=True)
class _Flight:
    key: int
    handle: Handle
    peer: int


@dataclass(slots=True)
class _Request:
    flights: dict[int, _Flight] = field(default_factory=dict)  # by key, newest last
    held: int = 0


class PythonStore:
    """The store of the ``python`` backend."""

    def __init__(self, ops: PythonOps | CodedOps) -> None:
        self._ops = ops
        self._requests: dict[str, _Request] = {}
        self._owner: dict[int, str] = {}
        self._of_peer: Counter[int] = Counter()
        self.in_flight = 0

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._requests))

    def open(self, req_id: str) -> None:
        """Make an entry without handles."""
        self._requests[req_id] = _Request()

    def append(self, req_id: str, keys: list[int], handles: list[Handle], peer: int) -> None:
        """Add handles in flight, newest last; None stands for the key as a raw id."""
        flights = self._requests[req_id].flights
        for key, handle in zip(keys, handles):
            flights[key] = _Flight(key, key if handle is None else handle, peer)
            self._owner[key] = req_id
        self._of_peer[peer] += len(keys)
        self.in_flight += len(keys)

    def drop(self, req_id: str) -> None:
        """Drop a request that waits for nothing."""
        del self._requests[req_id]

    def let_go(self, item: HeldHandle, done: set[str]) -> None:
        """Take a held handle from its request, if it has one; that is `done` if it waits no more."""
        req_id, item.req_id = item.req_id, None
        if req_id is not None:
            self._requests[req_id].held -= 1
            self._tell_drained(req_id, done)

    def find(self, key: int) -> bool:
        """Tell whether a handle with this id is in flight."""
        return key in self._owner

    def handles(self, req_id: str) -> list[Handle]:
        """Return a request's handles in flight, oldest first."""
        return [flight.handle for flight in self._requests[req_id].flights.values()]

    def ids(self) -> npt.NDArray[np.uint64]:
        """Return the ids of all handles in flight."""
        return np.fromiter(self._owner, np.uint64, len(self._owner))

    def outstanding_of(self, peer: int) -> int:
        """Return how many handles in flight carry this peer token."""
        return self._of_peer[peer]

    def sweep(self, full: bool, out: list[Swept]) -> None:
        """Ask for states; take out what has ended and add it to `out`. Failed handles make requests wait."""
        # All checks come before anything is changed: an interrupt in a check leaves all as it was.
        seen = [answer for req_id in self._requests for answer in self._ask(req_id, full)]
        if not seen:
            return
        drained: set[str] = set()
        ended: list[Ended] = []
        samples: list[Sample | None] = []
        try:
            for req_id, flight, code, error in seen:
                # Taken out first: an interrupt here may then leak a handle, but never free it twice.
                self._take_out(req_id, flight)
                if code == states.SUCCESS:
                    samples.append(self._ops.telemetry(flight.handle))
                    error = self._ops.release(flight.handle)
                else:
                    self._requests[req_id].held += 1
                if error is not None or code != states.SUCCESS:
                    ended.append(Ended(req_id, flight.handle, flight.key, flight.peer, code, error))
                self._tell_drained(req_id, drained)
        finally:
            rows = [sample for sample in samples if sample is not None]
            table = np.array(rows, np.int64).reshape(-1, 4).T
            out.append(Swept(drained, ended, table, len(samples) - len(rows)))

    def _ask(self, req_id: str, full: bool) -> Iterator[tuple[str, _Flight, int, Any]]:
        for flight in reversed(self._requests[req_id].flights.values()):
            code, error = self._ops.status(flight.handle)
            if code != states.IN_PROG:
                yield req_id, flight, code, error
            elif not full:
                return

    def _take_out(self, req_id: str, flight: _Flight) -> None:
        del self._requests[req_id].flights[flight.key]
        del self._owner[flight.key]
        self._of_peer[flight.peer] -= 1
        if not self._of_peer[flight.peer]:
            del self._of_peer[flight.peer]
        self.in_flight -= 1

    def _tell_drained(self, req_id: str, drained: set[str]) -> None:
        request = self._requests[req_id]
        if not (request.flights or request.held):
            del self._requests[req_id]
            drained.add(req_id)
