"""A serving engine of your own that pulls KV blocks: a prefill process, a decode process, real NIXL.

    python examples/custom_engine_pull.py [requests]

The decode engine READs each request's blocks from the prefill's memory. The prefill keeps them under
a lease until the decode has said that it has read them. Both reuse their few blocks all the time.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from typing import Any

from kv_cache import BLOCKS, LEASE_S, Cache, Peer, run

from kvfast import Receiver, Sender, notifs, open_agent


class Prefill:
    """Fill blocks when asked to, and keep them as long as they are needed."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.agent: Any = open_agent("prefill")
        self.cache, self.sender = Cache(self.agent), Sender(self.agent)
        self.reader = notifs.NotifReader(self.sender.stats)  # what a peer gets wrong can't stop us
        self.decode = Peer(pipe, self.cache)
        self.wanted: list[str] = []
        self.held: dict[str, list[int]] = {}
        self.stopping = False

    def step(self) -> None:
        """Run one engine step."""
        if self.pipe.poll(0.0001):
            order = self.pipe.recv()
            self.stopping = order is None
            self.wanted += [] if order is None else [order]
        while self.wanted and self.cache.has_room:
            self.compute(self.wanted.pop(0))
        for _, told in self.reader.read(self.agent.get_new_notifs()):
            if isinstance(told, notifs.Consumed):
                self.sender.notified(told.req_id, told.count)
            else:
                self.sender.heartbeat(told.req_ids, LEASE_S)
        results = self.sender.poll()
        for req_id in results.finished | results.expired:
            self.cache.free += self.held.pop(req_id)  # only now may anybody else have them

    def compute(self, req_id: str) -> None:
        blocks = self.held[req_id] = self.cache.take()
        self.cache.compute(req_id, blocks)
        self.sender.track(req_id, [blocks], lease_s=LEASE_S, peer=self.decode.name)
        self.pipe.send((req_id, blocks))


class Decode:
    """Read blocks, use them, give them back."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.agent: Any = open_agent("decode")
        self.cache, self.receiver = Cache(self.agent), Receiver(self.agent, stall_after_s=10)
        self.prefill = Peer(pipe, self.cache)
        self.ready: list[tuple[str, list[int]]] = []
        self.held: dict[str, list[int]] = {}
        self.finished = 0

    def step(self) -> None:
        """Run one engine step."""
        if self.pipe.poll(0):
            self.ready.append(self.pipe.recv())
        while self.ready and self.cache.has_room:
            self.read(*self.ready.pop(0))
        results = self.receiver.poll()
        for req_id in results.finished:
            self.cache.check(req_id, self.held[req_id])
            self.finished += 1
        if results.failed:
            raise RuntimeError(f"{results.failed}: compute what was in {results.invalid_block_ids}")
        for req_id in results.finished | results.failed | results.aborted:
            self.cache.free += self.held.pop(req_id)  # only now may anybody else have them

    def read(self, req_id: str, remote_blocks: list[int]) -> None:
        blocks = self.held[req_id] = self.cache.take()
        peer = self.prefill
        # Half the lease: what is posted later might read another request's blocks.
        self.receiver.track(req_id, [blocks], peer=peer.name, read_before=time.monotonic() + LEASE_S / 2)
        self.receiver.add_notif(req_id, peer.name, notifs.consumed(req_id, 1))
        self.receiver.post(req_id, lambda: self.cache.transfer("READ", blocks, peer, remote_blocks))


def prefill(pipe: Connection) -> None:
    """Serve until the decode has had enough."""
    engine = Prefill(pipe)
    while engine.held or not engine.stopping:
        engine.step()
    engine.sender.close(timeout_s=5)
    pipe.send(len(engine.cache.free))
    os._exit(0)  # the decode may be gone already; NIXL's own shutdown would look for it


def decode(pipe: Connection, requests: int) -> None:
    """Serve so many requests."""
    engine = Decode(pipe)
    for number in range(requests):
        pipe.send(f"req-{number}")
    while engine.finished < requests:
        engine.step()
    counts = engine.receiver.stats.snapshot()
    assert engine.receiver.close(timeout_s=5).left == ()
    pipe.send(None)
    assert pipe.recv() == BLOCKS, "the prefill has lost blocks"
    print(f"{requests} requests, {counts['transfers']} READs, {counts['bytes']} bytes, every byte right")


if __name__ == "__main__":
    run(prefill, decode)
