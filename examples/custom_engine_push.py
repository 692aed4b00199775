"""A serving engine of your own that pushes KV blocks: a prefill process, a decode process, real NIXL.

    python examples/custom_engine_push.py [requests]

The decode engine tells the prefill where to write. When the prefill has both that and the blocks, it
WRITEs, and NIXL tells the decode when the bytes are there. Every tenth request is aborted by its user
after the prefill was told: its blocks are held until the prefill has written them, or they would be
somebody else's by then.
"""

from __future__ import annotations

import os
import uuid
from multiprocessing.connection import Connection
from typing import Any

from kv_cache import BLOCKS, LEASE_S, Cache, Peer, run

from kvfast import PushRendezvous, Receiver, Sender, notifs, open_agent
from kvfast.rendezvous import PushMatch

Match = PushMatch[list[int], list[int]]


class Prefill:
    """Fill blocks, write them where the decode wants them, and keep them until that is done."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.agent: Any = open_agent("prefill")
        self.cache, self.sender = Cache(self.agent), Sender(self.agent)
        self.meeting: PushRendezvous[list[int], list[int]] = PushRendezvous(stats=self.sender.stats)
        self.decode = Peer(pipe, self.cache)
        self.wanted: list[str] = []
        self.held: dict[str, list[int]] = {}
        self.stopping = False

    def step(self) -> None:
        """Run one engine step."""
        if self.pipe.poll(0.0001):
            decode_id, remote_blocks = self.pipe.recv()
            self.stopping = decode_id is None
            if not self.stopping:
                self.wanted.append(decode_id[:-9])  # the request itself would come from a router
                self.write(self.meeting.register(decode_id, remote_blocks))
        while self.wanted and self.cache.has_room:
            self.compute(self.wanted.pop(0))
        results = self.sender.poll()
        self.meeting.ended(results)
        for req_id in results.finished | results.expired:
            self.cache.free += self.held.pop(req_id)  # only now may anybody else have them

    def compute(self, name: str) -> None:
        req_id = f"{name}-{uuid.uuid4().hex[:8]}"  # each engine has a suffix of its own
        blocks = self.held[req_id] = self.cache.take()
        self.cache.compute(req_id, blocks)
        self.sender.track(req_id, [blocks], lease_s=LEASE_S, peer=self.decode.name)
        self.write(self.meeting.finished_blocks(req_id, blocks))

    def write(self, match: Match | None) -> None:
        """Write a request whose two halves have met."""
        if match is None:
            return
        told = notifs.consumed(match.decode_req_id, 1)  # this is the only producer
        blocks, remote_blocks = match.blocks, match.registration
        self.sender.post(
            match.req_id, [lambda: self.cache.transfer("WRITE", blocks, self.decode, remote_blocks, told)]
        )


class Decode:
    """Say where to write, wait for it, use the blocks, give them back."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.agent: Any = open_agent("decode")
        self.cache, self.receiver = Cache(self.agent), Receiver(self.agent, stall_after_s=10)
        self.reader = notifs.NotifReader(self.receiver.stats)  # what a peer gets wrong can't stop us
        self.prefill = Peer(pipe, self.cache)
        self.held: dict[str, list[int]] = {}
        self.finished = self.aborted = 0

    def start(self, number: int) -> None:
        req_id = f"req-{number}-{uuid.uuid4().hex[:8]}"
        blocks = self.held[req_id] = self.cache.take()
        self.receiver.track(req_id, [blocks], peer=self.prefill.name)
        self.receiver.expect_writes(req_id)  # before the peer can know: from now on it may write
        self.pipe.send((req_id, blocks))
        if number % 10 == 9:
            self.receiver.abort(req_id)

    def step(self) -> None:
        """Run one engine step."""
        for producer, told in self.reader.read(self.agent.get_new_notifs()):
            if isinstance(told, notifs.Consumed):
                self.receiver.notified(told.req_id, told.count, peer=producer)
        results = self.receiver.poll()
        for req_id in results.finished:
            self.cache.check(req_id, self.held[req_id])
        self.finished += len(results.finished)
        self.aborted += len(results.aborted)
        if results.failed:
            raise RuntimeError(f"{results.failed}: compute what was in {results.invalid_block_ids}")
        for req_id in results.finished | results.failed | results.aborted:
            self.cache.free += self.held.pop(req_id)  # only now may anybody else have them


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
    started = 0
    while engine.finished + engine.aborted < requests:
        while started < requests and engine.cache.has_room:
            engine.start(started)
            started += 1
        engine.step()
    assert engine.receiver.close(timeout_s=5).left == ()
    pipe.send((None, []))
    assert pipe.recv() == BLOCKS, "the prefill has lost blocks"
    print(f"{engine.finished} requests finished, every byte right; {engine.aborted} aborted")


if __name__ == "__main__":
    run(prefill, decode)
