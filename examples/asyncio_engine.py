"""An asyncio engine: `await` a request's KV blocks, with polling in the event loop.

    python examples/asyncio_engine.py [requests]

The prefill process is that of custom_engine_pull.py. Here each request is a task of its own: it
awaits its READ and gives its blocks back. One more task polls. A poll takes microseconds and never
waits, so the loop goes on serving; between two polls it sleeps for a millisecond, which is how long a
producer may wait for news. Every tenth request is cancelled with its READ in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from typing import Any

from custom_engine_pull import prefill
from kv_cache import BLOCKS, BLOCKS_A_REQUEST, LEASE_S, Cache, Peer, run

from kvfast import Receiver, notifs, open_agent

POLL_S = 0.001


class ReadFailedError(Exception):
    """The blocks of a request can't be used: compute them."""


class AsyncReceiver:
    """A Receiver whose requests can be awaited. It belongs to the loop's thread."""

    def __init__(self, agent: Any) -> None:
        self.receiver = Receiver(agent)
        self._ends: dict[str, asyncio.Future[str]] = {}

    async def read(self, req_id: str, blocks: list[int], peer: str, prepare: Callable[[], Any]) -> None:
        """Return when the blocks are filled. However this ends, nothing can land in them any more."""
        self.receiver.track(req_id, [blocks], peer=peer, read_before=time.monotonic() + LEASE_S / 2)
        end = self._ends[req_id] = asyncio.get_running_loop().create_future()
        self.receiver.add_notif(req_id, peer, notifs.consumed(req_id, 1))
        self.receiver.post(req_id, prepare)
        try:
            how = await asyncio.shield(end)
        except asyncio.CancelledError:
            # The user has gone; the READ has not. The blocks are held until it ends.
            if not end.done():
                self.receiver.abort(req_id)
            await end
            raise
        if how != "finished":
            raise ReadFailedError(req_id)

    @contextlib.asynccontextmanager
    async def polling(self) -> AsyncIterator[None]:
        """Poll as long as the block runs."""
        task = asyncio.create_task(self._poll_for_ever())
        try:
            yield
        finally:
            task.cancel()
            self.receiver.close(timeout_s=5)

    async def _poll_for_ever(self) -> None:
        while True:
            results = self.receiver.poll()
            for how in ("finished", "failed", "aborted"):
                for req_id in getattr(results, how):
                    self._ends.pop(req_id).set_result(how)
            await asyncio.sleep(POLL_S)


class Decode:
    """One task a request, as many at once as there are blocks for."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.agent: Any = open_agent("decode")
        self.cache, self.reader = Cache(self.agent), AsyncReceiver(self.agent)
        self.prefill = Peer(pipe, self.cache)
        self.room = asyncio.Semaphore(BLOCKS // BLOCKS_A_REQUEST)
        self.finished = self.cancelled = 0

    async def serve(self, req_id: str, remote_blocks: list[int]) -> None:
        """Serve one request, in room that was acquired for it."""
        blocks, peer = self.cache.take(), self.prefill
        try:
            await self.reader.read(
                req_id,
                blocks,
                peer.name,
                lambda: self.cache.transfer("READ", blocks, peer, remote_blocks),
            )
            self.cache.check(req_id, blocks)
            self.finished += 1
        except asyncio.CancelledError:
            self.cancelled += 1
        finally:
            self.cache.free += blocks
            self.room.release()

    async def ask(self, req_id: str) -> tuple[str, list[int]]:
        """Have a request computed; return its id and where its blocks are."""
        self.pipe.send(req_id)
        while not self.pipe.poll():
            await asyncio.sleep(POLL_S)
        found: tuple[str, list[int]] = self.pipe.recv()
        return found


async def serve_all(pipe: Connection, requests: int) -> None:
    """Serve so many requests."""
    engine = Decode(pipe)
    tasks: list[asyncio.Task[None]] = []
    async with engine.reader.polling():
        for number in range(requests):
            req_id, remote_blocks = await engine.ask(f"req-{number}")
            await engine.room.acquire()
            tasks.append(asyncio.create_task(engine.serve(req_id, remote_blocks)))
            if number % 10 == 9:
                await asyncio.sleep(0)  # it runs up to its first await: the READ is posted
                tasks[-1].cancel()
        await asyncio.gather(*tasks)
    pipe.send(None)
    assert pipe.recv() == BLOCKS, "the prefill has lost blocks"
    print(f"{engine.finished} requests finished, every byte right; {engine.cancelled} cancelled")


def decode(pipe: Connection, requests: int) -> None:
    """Run the event loop."""
    asyncio.run(serve_all(pipe, requests))


if __name__ == "__main__":
    run(prefill, decode)
