"""The process of the decode side: the engine on real NIXL, and the fault on the engine."""

from __future__ import annotations

import base64
import importlib.metadata
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from kvfast.agent import open_agent
from kvfast_ext import backend_name, select_backend

from .engine import Counts, DecodeEngine, Source, make_requests
from .evidence import BindingWitness, Problems
from .fault import Fault
from .prefill import register
from .process import Conversation, Message, converse
from .settings import DemoSettings

_PROGRESS_EVERY_S: Final = 0.05


class DecodeProcess:
    """Builds the parts from the supervisor's first message, and runs them."""

    def __init__(self, parent: Conversation, task: Message) -> None:
        self.settings = DemoSettings(**task["settings"])
        self._parent = parent
        self._problems = Problems()
        self._backend: Any = select_backend(self.settings.backend)
        self._agent: Any = open_agent("decode")
        shape = (self.settings.ranks, self.settings.pool_blocks, self.settings.block_bytes)
        memory = np.empty(shape, np.uint8)
        self._registered = register(self._agent, memory)
        self._ops = self._backend.bind(self._agent)
        self._sources = [self._connect(peer) for peer in task["ranks"]]
        self._spare = self._connect(task["spare"]) if task["spare"] else None
        self.engine = DecodeEngine(
            self._agent,
            memory,
            self._backend.TransferTable(self._ops, scan=self.settings.scan),
            self._backend.pop_done_transfers,
            self._sources,
            make_requests(
                self.settings.requests,
                self.settings.rank_blocks,
                self.settings.max_request_blocks,
                self.settings.seed,
            ),
            self._problems,
        )

    def _connect(self, peer: Message) -> Source:
        self._agent.add_remote_agent(base64.b64decode(peer["metadata"]))
        return Source(peer["rank"], peer["name"], peer["address"])

    def run(self) -> Message:
        """Run every request to its end; return what the supervisor shows and goes on to check."""
        fault = None if self._spare is None else self._make_fault(self._spare)
        if fault is not None:
            self._run_until(lambda: self.engine.reported >= self.settings.requests // 2)
            fault.carry_out()
        self._run_until(lambda: self.engine.reported == self.settings.requests, keep_pending=0)
        self.engine.pool.check_all_free()
        return self._result(fault)

    def _make_fault(self, spare: Source) -> Fault:
        slow = self.settings.slow
        return Fault(
            self.engine,
            BindingWitness(self._agent),
            self._control,
            self._sources[spare.rank],
            spare,
            None if slow is None else self._sources[slow],
            self.settings.step_s,
        )

    def _control(self, verb: str, ranks: list[int]) -> None:
        self._parent.ask({"do": verb, "ranks": ranks})

    def _run_until(self, reached: Callable[[], bool], keep_pending: int | None = None) -> None:
        kept = self.settings.held_back if keep_pending is None else keep_pending
        next_progress = 0.0
        while not reached():
            self.engine.step(kept)
            if time.monotonic() >= next_progress:
                next_progress = time.monotonic() + _PROGRESS_EVERY_S
                self._tell_progress()
            time.sleep(self.settings.step_s)
        self._tell_progress()

    def _tell_progress(self) -> None:
        counts = self.engine.counts
        self._parent.send({"progress": {"finished": counts.finished, "failed": counts.failed}})

    def _result(self, fault: Fault | None) -> Message:
        counts = self.engine.counts
        return {
            "finished": counts.finished,
            "failed": counts.failed,
            "bytes_checked": self.engine.witness.bytes_checked,
            "blocks_given": self.engine.pool.given,
            "sweeps": len(counts.sweep_ns),
            "sweep_us": _summary(counts),
            "transfers": {
                "sampled": counts.samples,
                "unsampled": counts.unsampled,
                "bytes": counts.sampled_bytes,
            },
            "fault": None if fault is None else asdict(fault.report),
            "left_in_table": self.engine.table.handle_count + len(self.engine.table),
            "backend": backend_name(self._backend),
            "scan": self.settings.scan,
            "ops": self._ops.kind,
            "ops_reason": self._ops.reason,
            "nixl": importlib.metadata.version("nixl"),
            "violations": self._problems.counts,
            "problems": self._problems.shown,
            "failing": sorted(counts.failing),
            "read_from": counts.read_from,
        }


def _summary(counts: Counts) -> dict[str, float]:
    times = [ns / 1000 for ns in counts.sweep_ns] or [0.0]
    return {"min": min(times), "median": statistics.median(times), "max": max(times)}


def main(parent: str) -> None:
    """Do the task that the supervisor sends, and stay until it has seen the result."""
    with converse(int(parent)) as supervisor:
        task = next(iter(supervisor))
        supervisor.ask({"result": DecodeProcess(supervisor, task).run()})


if __name__ == "__main__":
    main(*sys.argv[1:])
