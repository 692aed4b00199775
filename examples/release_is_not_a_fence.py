"""See on your own machine what docs/why-release-is-not-a-fence.md says.

    python examples/release_is_not_a_fence.py

Each experiment starts a peer process, stops it with SIGSTOP so that a transfer stays in flight, does
something to the transfer, lets the peer go on, and looks where the bytes went. Real NIXL, UCX over
TCP on this machine.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from kv_cache import Cache, Peer

from kvfast import open_agent

OLD, NEW, PEERS = 17, 34, 51  # bytes: ours before, ours later, the peer's
SOON_S = 1.0  # much longer than a notification takes that nobody holds up


def serve(pipe: Connection, name: str) -> None:
    """Be a peer: memory full of one byte, and answers about it."""
    cache = Cache(open_agent(name))
    cache.memory[:] = PEERS
    Peer(pipe, cache)
    heard: list[bytes] = []
    while True:
        question = pipe.recv()
        heard += [message for messages in cache.agent.get_new_notifs().values() for message in messages]
        pipe.send(set(np.unique(cache.memory[:4]).tolist()) if question == "memory" else heard)


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds, or it is plain that it never will."""
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.001)


class Bench:
    """Our side of an experiment, and the process at the other side."""

    def __init__(self, cache: Cache, name: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, name), daemon=True)
        self.process.start()
        self.cache, self.agent, self.blocks = cache, cache.agent, [0, 1, 2, 3]
        self.peer = Peer(self.pipe, cache)
        cache.memory[:] = OLD

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def ask(self, question: str) -> Any:
        self.pipe.send(question)
        return self.pipe.recv()

    def post(self, operation: str, notif: bytes = b"") -> Any:
        handle = self.cache.transfer(operation, self.blocks, self.peer, self.blocks, notif)
        self.agent.transfer(handle)
        return handle

    def state(self, handle: Any) -> str:
        try:
            return str(self.agent.check_xfer_state(handle))
        except Exception as error:
            return f"raises {type(error).__name__}"

    def wait(self, handle: Any) -> str:
        until(lambda: self.state(handle) != "PROC")
        return self.state(handle)

    @property
    def landed(self) -> str:
        return f"{self.share_landed():.0%} of the bytes have landed"

    def share_landed(self) -> float:
        return float((self.cache.memory[:4] == PEERS).mean())


def release_and_look(b: Bench, handle: Any) -> None:
    b.agent.release_xfer_handle(handle)
    print("   release returned without an error: the blocks look free")
    b.signal(signal.SIGCONT)
    until(lambda: b.share_landed() == 1)
    print(f"   afterwards {b.landed}")


def released(b: Bench) -> None:
    b.signal(signal.SIGSTOP)
    handle = b.post("READ")
    print(f"   state {b.state(handle)}, {b.landed}")
    release_and_look(b, handle)


def removed(b: Bench) -> None:
    b.signal(signal.SIGSTOP)
    handle = b.post("READ")
    b.agent.remove_remote_agent(b.peer.name)
    print(f"   state {b.state(handle)}, {b.landed}")
    release_and_look(b, handle)


def not_polled(b: Bench) -> None:
    handle = b.post("READ", notif=b"read it")
    until(lambda: b.share_landed() == 1)
    time.sleep(SOON_S)
    print(f"   {b.landed}, the peer has heard {b.ask('notifs')}")
    print(f"   state {b.wait(handle)}")
    until(lambda: bool(b.ask("notifs")))
    print(f"   and now the peer has heard {b.ask('notifs')}")
    b.agent.release_xfer_handle(handle)


def used_again(b: Bench) -> None:
    b.signal(signal.SIGSTOP)
    handle = b.post("WRITE")
    b.cache.memory[:] = NEW
    b.signal(signal.SIGCONT)
    print(f"   state {b.wait(handle)}; posted were {OLD}s, the peer has {sorted(b.ask('memory'))}")
    b.agent.release_xfer_handle(handle)


def killed(b: Bench) -> None:
    b.signal(signal.SIGSTOP)
    handle = b.post("READ")
    b.signal(signal.SIGKILL)
    print(f"   state {b.wait(handle)}, check_remote_metadata {b.agent.check_remote_metadata(b.peer.name)}")
    b.agent.release_xfer_handle(handle)


EXPERIMENTS = {
    "A READ in flight is released": released,
    "The peer is removed under a READ": removed,
    "A READ has landed, and nobody has polled it": not_polled,
    "Blocks are used again under a WRITE of them": used_again,
    "The peer is killed under a READ": killed,
}


def main() -> None:
    """Run all experiments with one agent."""
    os.environ.setdefault("UCX_TLS", "tcp")
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    cache = Cache(open_agent("decode"))
    for number, (title, experiment) in enumerate(EXPERIMENTS.items(), 1):
        print(f"\n{number}. {title}")
        b = Bench(cache, experiment.__name__)
        experiment(b)
        b.process.kill()
        b.process.join()


if __name__ == "__main__":
    main()
