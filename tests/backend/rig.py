"""A table on an engine, with a clock that tests move."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kvfast_ext import Quarantine, SweepResult
from tests.backend.doubles import DONE, Clock
from tests.backend.engines import Engine, as_handles


class Rig:
    """A table under test and what it works with."""

    def __init__(
        self,
        backend: ModuleType,
        engine: Engine,
        scan: str = "all",
        *,
        form: str = "ints",
        full_scan_s: float = 0.0,
        quarantine: Quarantine = Quarantine(),
    ) -> None:
        self.backend = backend
        self.engine = engine
        self.form = form
        self.clock = Clock()
        self.ops = backend.bind(engine.agent)
        self.table = backend.TransferTable(
            self.ops, scan=scan, full_scan_s=full_scan_s, quarantine=quarantine, clock=self.clock
        )
        self.added: list[int] = []

    def add(self, req_id: str, *ids: int, peer: str | None = None) -> list[Any]:
        """Add handles by their ids, in the rig's form; return them."""
        handles = as_handles(self.engine, ids, self.form)
        self.table.add(req_id, *handles, peer=peer)
        self.added += ids
        return handles

    def sweep(self, after: float = 0.0) -> SweepResult:
        """Sweep `after` seconds later."""
        self.clock.advance(after)
        result: SweepResult = self.backend.pop_done_transfers(self.table)
        return result

    def released(self, *ids: int) -> list[int]:
        """Return how often each handle was released."""
        return [self.engine.released(handle) for handle in ids]

    def end(self) -> None:
        """Let all transfers land. Whatever a test did, nothing may stay and all is released once."""
        for handle in self.table.handle_ids.tolist():
            self.engine.set(handle, DONE)
        for handle in self.added:
            self.engine.refuse(handle, None)
        for _ in range(3):
            result = self.sweep(after=1000.0)
        assert (list(self.table), self.table.handle_count, result.retained) == ([], 0, 0)
        assert {handle: self.engine.released(handle) for handle in self.added} == dict.fromkeys(self.added, 1)


def failures(result: SweepResult) -> list[tuple[str, Any, str, bool]]:
    """Return a sweep's failures in a form that compares."""
    return [(f.req_id, getattr(f.handle, "_handle", f.handle), f.status, f.lost) for f in result.failures]
