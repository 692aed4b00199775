"""The process of a prefill rank that pushes: it writes where decode says, and keeps its blocks until then.

Its own blocks are poisoned while nobody needs them, and again in the moment in which the Sender says
that a send has ended. A send that is reported while NIXL still reads its blocks would carry poison to
decode, which looks at every byte.
"""

from __future__ import annotations

import base64
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from kvfast import notifs
from kvfast.agent import open_agent
from kvfast.notifs import NotifReader
from kvfast.send import Sender

from .evidence import EARLY, BindingWitness, MemoryWitness, Problems
from .messages import Registration, decode_registration, new_notifs
from .pattern import pattern
from .pool import BlockPool
from .prefill import register
from .process import Message, converse
from .sweeps import SweepTimes, describe

LEASE_S: Final = 30.0
_STEP_S: Final = 0.0002


@dataclass(frozen=True, slots=True)
class _Decode:
    """Where our share of decode's memory is."""

    name: str
    address: int


@dataclass(slots=True)
class _Send:
    """A send, with the handle to ask NIXL about it; who posts and releases it is the Sender."""

    blocks: list[int]
    handles: list[Any] = field(default_factory=list)


class Writer:
    """A rank's agent, memory and sends."""

    def __init__(
        self, name: str, rank: int, blocks: int, block_bytes: int, backend: str = "auto", scan: str = "watch"
    ) -> None:
        self._rank = rank
        self._agent: Any = open_agent(name)
        self._memory = np.empty((blocks, block_bytes), np.uint8)
        self._registered = register(self._agent, self._memory)
        self._problems = Problems()
        self._pool = BlockPool(blocks, MemoryWitness(self._memory[None], self._problems), self._problems)
        self._binding = BindingWitness(self._agent)
        self._stats = SweepTimes()
        self._sender = Sender(self._agent, backend=backend, scan=scan, stats=self._stats)
        self._reader = NotifReader(self._stats)
        self._decode: _Decode | None = None
        self._waiting: deque[Registration] = deque()
        self._sends: dict[str, _Send] = {}
        self._finished: list[str] = []
        self._expired: list[str] = []

    def introduce(self) -> Message:
        """Say what decode must know."""
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "address": self._memory.ctypes.data}

    def step(self) -> None:
        """Do one step: hear where to write, write, and free what has been written."""
        self._take_notifs()
        while self._waiting and len(self._pool) >= len(self._waiting[0].content):
            self._write(self._waiting.popleft())
        if len(self._sender):
            results = self._sender.poll()
            self._end(results.finished, self._finished)
            self._end(results.expired, self._expired)

    def answer(self, question: Message) -> Message:
        """Answer ``{"ask": "meet", ...}`` (this is decode) or ``{"ask": "report"}``."""
        if question["ask"] == "meet":
            self._agent.add_remote_agent(base64.b64decode(question["metadata"]))
            self._decode = _Decode(question["name"], question["addresses"][self._rank])
            return {"met": question["name"]}
        return self._report()

    def _take_notifs(self) -> None:
        others: dict[str, list[bytes]] = {}
        for name, messages in new_notifs(self._agent).items():
            for message in messages:
                asked = decode_registration(message)
                if asked is None:
                    others.setdefault(name, []).append(message)
                else:
                    self._waiting.append(asked)
        for _, notif in self._reader.read(others):
            if isinstance(notif, notifs.Heartbeat):
                self._sender.heartbeat(notif.req_ids, LEASE_S)

    def _write(self, asked: Registration) -> None:
        if self._decode is None:
            raise RuntimeError(f"asked to write {asked.req_id} before decode is known")
        send = self._sends[asked.req_id] = _Send(self._pool.take(len(asked.content)))
        self._memory[send.blocks] = pattern(self._rank, asked.content, self._memory.shape[1])
        self._sender.track(asked.req_id, [send.blocks], lease_s=LEASE_S, peer=self._decode.name)
        self._sender.post(asked.req_id, [partial(self._prepare, asked, send, self._decode)])

    def _prepare(self, asked: Registration, send: _Send, decode: _Decode) -> Any:
        own = self._descriptors(self._memory.ctypes.data, send.blocks)
        remote = self._descriptors(decode.address, asked.blocks)
        told = notifs.consumed(asked.req_id, asked.producers)
        handle = self._agent.initialize_xfer("WRITE", own, remote, decode.name, told)
        send.handles.append(handle)
        return handle

    def _descriptors(self, address: int, blocks: list[int]) -> Any:
        size = self._memory.shape[1]
        return self._agent.get_xfer_descs([(address + b * size, size, 0) for b in blocks], "DRAM")

    def _end(self, req_ids: frozenset[str], ended: list[str]) -> None:
        for req_id in sorted(req_ids):
            send = self._sends.pop(req_id)
            if self._binding.any_in_flight(send.handles):
                self._problems.add(EARLY, f"{req_id} was reported while a WRITE of it was running")
            self._pool.give_back(send.blocks)
            ended.append(req_id)

    def _report(self) -> Message:
        numbers: Any = self._stats.snapshot()
        return {
            "finished": sorted(self._finished),
            "expired": sorted(self._expired),
            "left": len(self._sender) + len(self._waiting),
            "bytes": numbers["bytes"],
            "unsampled": numbers["unsampled_transfers"],
            "sweep_us": self._stats.summary(),
            "counters": self._stats.counters(),
            "violations": self._problems.counts,
            "problems": self._problems.shown,
            **describe(self._sender),
        }


def main(parent: str, name: str, rank: str, blocks: str, block_bytes: str, backend: str, scan: str) -> None:
    """Serve until the parent has gone."""
    with converse(int(parent)) as parent_says:
        writer = Writer(name, int(rank), int(blocks), int(block_bytes), backend, scan)
        parent_says.send(writer.introduce())
        while True:
            writer.step()
            question = parent_says.poll()
            if question is not None:
                parent_says.send(writer.answer(question))
            time.sleep(_STEP_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
