"""The process of the decode side: the engine on real NIXL, and the fault on the engine."""

from __future__ import annotations

import base64
import importlib.metadata
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from kvfast.agent import open_agent
from kvfast.receive import Receiver

from .engine import Engine, Source, make_requests
from .evidence import Problems
from .fault import Fault
from .metrics import serve_metrics
from .prefill import register
from .process import Conversation, Message, converse
from .pull import PullEngine
from .push import PushEngine
from .settings import DemoSettings
from .sweeps import SweepTimes, describe

_PROGRESS_EVERY_S: Final = 0.05
_CLOSE_S: Final = 5.0  # nothing should be left by then


class DecodeProcess:
    """Builds the parts from the supervisor's first message, and runs them."""

    def __init__(self, parent: Conversation, task: Message) -> None:
        settings = self._settings = DemoSettings(**task["settings"])
        self._parent = parent
        self._problems = Problems()
        self._stats = SweepTimes()
        if settings.metrics_port is not None:
            # Before all else: a port that is taken should not cost a run.
            self._metrics = serve_metrics(self._stats, settings.metrics_port)
            parent.send({"metrics": "http://{}:{}/metrics".format(*self._metrics.address)})
        self._agent: Any = open_agent("decode")
        memory = np.empty((settings.ranks, settings.pool_blocks, settings.block_bytes), np.uint8)
        self._registered = register(self._agent, memory)
        self._receiver = Receiver(
            self._agent, backend=settings.backend, scan=settings.scan, stats=self._stats
        )
        self._sources = [self._connect(peer) for peer in task["ranks"]]
        self._spare = self._connect(task["spare"]) if task["spare"] else None
        requests = make_requests(
            settings.requests, settings.rank_blocks, settings.max_request_blocks, settings.seed
        )
        make = PushEngine if settings.push else PullEngine
        self._engine: Engine = make(
            self._agent, self._receiver, memory, self._sources, requests, self._problems
        )
        if settings.push:
            self._introduce(memory)

    def _connect(self, peer: Message) -> Source:
        self._agent.add_remote_agent(base64.b64decode(peer["metadata"]))
        return Source(peer["rank"], peer["name"], peer["address"])

    def _introduce(self, memory: Any) -> None:
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        addresses = [int(share.ctypes.data) for share in memory]
        self._parent.ask({"meet": {"name": "decode", "metadata": metadata, "addresses": addresses}})

    def run(self) -> Message:
        """Run every request to its end; return what the supervisor shows and goes on to check."""
        requests = self._settings.requests
        fault = None if self._spare is None else self._make_fault(self._spare)
        if fault is not None:
            self._run_until(lambda: self._reported >= requests // 2)
            fault.carry_out()
        self._run_until(lambda: self._reported == requests, keep_pending=0)
        return self._result(fault, left=self._engine.close(_CLOSE_S))

    @property
    def _reported(self) -> int:
        return self._engine.counts.reported

    def _make_fault(self, spare: Source) -> Fault:
        slow = self._settings.slow
        return Fault(
            self._engine,
            self._control,
            self._sources[spare.rank],
            spare,
            None if slow is None else self._sources[slow],
            self._settings.kept_for_spare,
            self._settings.step_s,
        )

    def _control(self, verb: str, ranks: list[int]) -> None:
        self._parent.ask({"do": verb, "ranks": ranks})

    def _run_until(self, reached: Callable[[], bool], keep_pending: int | None = None) -> None:
        kept = self._settings.held_back if keep_pending is None else keep_pending
        next_progress = 0.0
        while not reached():
            self._engine.step(kept)
            if time.monotonic() >= next_progress:
                next_progress = time.monotonic() + _PROGRESS_EVERY_S
                self._tell_progress()
            time.sleep(self._settings.step_s)
        self._tell_progress()

    def _tell_progress(self) -> None:
        counts = self._engine.counts
        self._parent.send({"progress": {"finished": counts.finished, "failed": len(counts.failed)}})

    def _result(self, fault: Fault | None, left: int) -> Message:
        counts = self._engine.counts
        numbers: Any = self._stats.snapshot()
        return {
            "finished": counts.finished,
            "failed": counts.failed,
            "bytes_from": counts.bytes_from,
            "landed_from": counts.landed_from,
            "finished_with": counts.finished_with,
            "blocks_given": self._engine.pool.given,
            "sweep_us": self._stats.summary(),
            "transfers": {
                "ended": numbers["transfers"],
                "unsampled": numbers["unsampled_transfers"],
                "bytes": numbers["bytes"],
            },
            "counters": self._stats.counters(),
            "fault": None if fault is None else asdict(fault.report),
            "dead": sorted(self._receiver.guard.dead),
            "left": left,
            "nixl": importlib.metadata.version("nixl"),
            "violations": self._problems.counts,
            "problems": self._problems.shown,
            **describe(self._receiver),
        }


def main(parent: str) -> None:
    """Do the task that the supervisor sends, and stay until it has seen the result."""
    with converse(int(parent)) as supervisor:
        task = next(iter(supervisor))
        supervisor.ask({"result": DecodeProcess(supervisor, task).run()})


if __name__ == "__main__":
    main(*sys.argv[1:])
