"""The demo's engines and fault in this process, against ranks in processes of their own."""

from __future__ import annotations

import base64
import itertools
import time
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any, Final

import numpy as np

from kvfast import Receiver, open_agent
from kvfast.demo.engine import Engine, Source, make_requests
from kvfast.demo.evidence import Problems
from kvfast.demo.fault import Fault
from kvfast.demo.process import Message
from kvfast.demo.pull import PullEngine
from kvfast.demo.push import PushEngine
from tests.nixl.rank import Rank, register

REQUESTS: Final = 12
BLOCK_BYTES: Final = 1024
PAUSE_S: Final = 0.0005
_BLOCKS: Final = 64
_names: Final = map("decode{}".format, itertools.count())


class Fleet:
    """Two ranks and a spare. They serve one stage after the other; who was killed is started again."""

    def __init__(self, module: str, *options: str) -> None:
        self.ranks = [self._rank(n, f"prefill{n}", module, options) for n in range(2)]
        self.spare = self._rank(1, "spare1", module, options)

    @staticmethod
    def _rank(rank: int, name: str, module: str, options: tuple[str, ...]) -> Rank:
        return Rank(rank, name=name, blocks=_BLOCKS, block_bytes=BLOCK_BYTES, module=module, options=options)

    def ready(self) -> None:
        """Start those that are not running."""
        down = [rank for rank in (*self.ranks, self.spare) if not rank.alive]
        for rank in down:
            rank.close()
            rank.launch()
        for rank in down:
            rank.wait_ready()

    def close(self) -> None:
        """End all."""
        for rank in (*self.ranks, self.spare):
            rank.close()


class Stage(ABC):
    """An engine over a Receiver of some class, two ranks and a spare, and a fault to do to them."""

    def __init__(
        self, fleet: Fleet, receiver: type[Receiver] = Receiver, backend: str | ModuleType = "auto"
    ) -> None:
        fleet.ready()
        self.fleet = fleet
        self.problems = Problems()
        self.agent: Any = open_agent(next(_names))
        self.memory = np.empty((2, _BLOCKS, BLOCK_BYTES), np.uint8)
        self.registered = register(self.agent, self.memory)
        sources = [self._connect(rank) for rank in fleet.ranks]
        self.receiver = receiver(self.agent, backend=backend, scan="all")
        self.engine = self.make_engine(sources)
        self.fault = Fault(
            self.engine, self.control, sources[1], self._connect(fleet.spare), sources[0], 0, PAUSE_S
        )

    def _connect(self, rank: Rank) -> Source:
        self.agent.add_remote_agent(rank.metadata)
        return Source(rank.rank, rank.name, rank.address)

    @abstractmethod
    def make_engine(self, sources: list[Source]) -> Engine:
        """Make the engine under test."""

    @abstractmethod
    def all_quiet(self) -> bool:
        """Tell whether no byte moves any more, whatever the Receiver says."""

    def control(self, verb: str, ranks: list[int]) -> None:
        """Do something to ranks' processes."""
        for rank in ranks:
            getattr(self.fleet.ranks[rank], verb)()

    def run(self, *, fault: bool = True) -> dict[str, int]:
        """Run until no byte moves any more; return the violations by check."""
        if fault:
            self.fault.carry_out()
        while self.engine.pending or len(self.receiver) or not self.all_quiet():
            self.engine.step()
            time.sleep(PAUSE_S)  # the ranks need the processor too
        self.left = self.engine.close(5.0)
        return self.violations

    @property
    def violations(self) -> dict[str, int]:
        """The violations so far, by check."""
        return {check: count for check, count in self.problems.counts.items() if count}


def _requests() -> Any:
    return make_requests(REQUESTS, _BLOCKS, 4, seed=0)


class PullStage(Stage):
    """The engine that READs."""

    def make_engine(self, sources: list[Source]) -> Engine:
        """Make the engine under test."""
        return PullEngine(self.agent, self.receiver, self.memory, sources, _requests(), self.problems)

    def all_quiet(self) -> bool:
        """Tell whether no READ runs: the Receiver keeps them all."""
        return True


class PushStage(Stage):
    """The engine that is written to."""

    def make_engine(self, sources: list[Source]) -> Engine:
        """Make the engine under test, and tell the ranks where its memory is."""
        addresses = [int(share.ctypes.data) for share in self.memory]
        self.before = {}
        for rank in (*self.fleet.ranks, self.fleet.spare):
            metadata = self._encoded(self.agent.get_agent_metadata())
            rank.ask({"ask": "meet", "name": self.agent.name, "metadata": metadata, "addresses": addresses})
            self.before[rank.name] = len(self._report(rank)["finished"])
        return PushEngine(self.agent, self.receiver, self.memory, sources, _requests(), self.problems)

    def all_quiet(self) -> bool:
        """Tell whether every living rank has written what it was told to."""
        reports = self.reports
        return all(
            len(report["finished"]) - self.before[name] == self.expected(name)
            for name, report in reports.items()
        )

    def expected(self, name: str) -> int:
        """Return how many requests a rank was to write to: all, but the spare, whom nobody asked."""
        return 0 if name == "spare1" else REQUESTS

    @property
    def reports(self) -> dict[str, Message]:
        """What each living rank says of its sends."""
        ranks = (*self.fleet.ranks, self.fleet.spare)
        return {rank.name: self._report(rank) for rank in ranks if rank.alive}

    @staticmethod
    def _report(rank: Rank) -> Message:
        return rank.ask({"ask": "report"})

    @staticmethod
    def _encoded(metadata: bytes) -> str:
        return base64.b64encode(metadata).decode()
