"""The process of the decode side of a soak."""

from __future__ import annotations

import base64
import gc
import importlib.metadata
import logging
import sys
import time
from typing import Any, Final, cast

import numpy as np

from kvfast.agent import open_agent
from kvfast.demo.prefill import register
from kvfast.demo.process import Conversation, Message, converse
from kvfast.notifs import Consumed, parse
from kvfast_ext import backend_name, select_backend

from .agents import FaultyAgent, NotifFaults
from .events import Events
from .imports import leave_torch_out
from .loop import DecodeLoop
from .mailbox import Mailbox
from .network import enter_namespace
from .plan import event_plans, request_plan
from .policies import make_policy
from .pull import PullLoop
from .push import PushLoop
from .rss import peak_rss_mb
from .settings import SoakSettings, settings_from
from .sources import Sources

_STEP_S: Final = 0.0002
_PROGRESS_S: Final = 0.25
_FOR_EVER_S: Final = 1e6
_DRAIN_S: Final = 30.0  # beyond the quarantine


class Decode:
    """The loop, the faults, and what is told to the supervisor."""

    def __init__(self, settings: SoakSettings, network: list[str], mailbox: Mailbox) -> None:
        self._settings = settings
        self._network = network
        self._mailbox = mailbox
        self._agent = cast(Any, open_agent("decode"))
        self._memory = np.zeros((settings.ranks, settings.pool_blocks, settings.block_bytes), np.uint8)
        self._registered = register(self._agent, self._memory)
        self._send_notif = self._agent.send_notif
        self._notif_faults = NotifFaults(self._send_notif, self._faults_of)
        # What the policy sends goes through the faults; what the soak itself has to say does not.
        self._agent.send_notif = self._notif_faults.send_notif
        self._faulty = FaultyAgent(self._agent)
        self.sources = Sources(settings.rank_blocks)
        self._begin = time.monotonic()
        self._stuck = False

    def introduce(self) -> Message:
        """Say what the ranks must know."""
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "address": self._memory.ctypes.data}

    def run(self, ranks: list[Message]) -> Message:
        """Run all requests to their end; return what was seen."""
        for message in ranks:
            source = self.sources.make(message)
            self._agent.add_remote_agent(source.metadata)
            self.sources.put(source)
        policy = make_policy(self._agent, self._faulty, self._settings)
        kind: type[DecodeLoop] = PullLoop if self._settings.mode == "pull" else PushLoop
        self.loop = kind(
            self._settings,
            self._agent,
            self._faulty,
            policy,
            self._memory,
            self.sources,
            self._send_notif,
            self._notif_faults,
        )
        plans = event_plans(self._settings, self._network)
        push = self._settings.mode == "push"
        self.events = Events(self._agent, policy, self.sources, plans, self._mailbox.send, push=push)
        self._begin = time.monotonic()
        self._run()
        return self._result()

    def _run(self) -> None:
        settings, counts = self._settings, self.loop.counts
        until = float("inf") if settings.minutes is None else self._begin + 60 * settings.minutes
        next_progress, moved, ended_at = 0.0, (0, 0), time.monotonic()
        while True:
            now = time.monotonic()
            more = counts.posted < settings.requests and now < until
            self._step(more)
            if (counts.posted, counts.reported) != moved:
                moved, ended_at = (counts.posted, counts.reported), now
            if now >= next_progress:
                next_progress = now + _PROGRESS_S
                self._mailbox.send({"progress": self._progress(now)})
            if not more and not self.loop.outstanding and not self.loop.witness.watching:
                break
            if now - ended_at > (settings.timeout_s if more else settings.lost_s + _DRAIN_S):
                self._stuck = more
                break
            time.sleep(_STEP_S)
        self._settle(time.monotonic() + _DRAIN_S)

    def _step(self, more: bool) -> None:
        for message in self._mailbox.take():
            if "killed" in message:
                self.loop.policy.peer_lost(message["killed"])
            elif "rank" in message:
                self.events.arrive(self.sources.make(message["rank"]))
        self.loop.step(self.events, more)

    def _settle(self, deadline: float) -> None:
        """Step until every handle has been released, or the time is up."""
        while time.monotonic() < deadline:
            self._step(False)
            self.loop.unreleased = [h for h in self.loop.unreleased if not h._released]
            if not self.loop.unreleased and not self.loop.policy.left_handles:
                break
            time.sleep(_STEP_S)

    def _faults_of(self, message: bytes) -> frozenset[str]:
        notif = parse(message)
        if not isinstance(notif, Consumed):
            return frozenset()
        return request_plan(self._settings, int(notif.req_id.rpartition(":")[2])).faults

    def _progress(self, now: float) -> Message:
        loop, counts = self.loop, self.loop.counts
        return {
            "seconds": now - self._begin,
            "posted": counts.posted,
            "finished": counts.finished,
            "failed": counts.failed,
            "aborted": counts.aborted,
            "in_flight": len(loop.outstanding),
            "quarantined": len(loop.policy.quarantine.held),
            "faults": sum(self._injected().values()),
            "corrupted": loop.witness.corruptions.total,
            "twice": counts.twice,
            "leaked": len(loop.unreleased),
            "free_blocks": len(loop.pool),
        }

    def _injected(self) -> dict[str, int]:
        return {**self.events.counts, **self.loop.counts.injected, **self._notif_faults.counts}

    def _result(self) -> Message:
        gc.collect()
        loop, corruptions = self.loop, self.loop.witness.corruptions
        backend: Any = select_backend(self._settings.backend)
        return {
            **self._progress(time.monotonic()),
            "corrupted_requests": len(corruptions.requests),
            "corrupted_by_kind": corruptions.counts,
            "corruptions": corruptions.as_list(),
            "lost": sorted(loop.outstanding),
            "leaked": len(loop.unreleased),
            "left_handles": loop.policy.left_handles,
            "handles": loop.counts.handles,
            "bytes_checked": loop.witness.bytes_checked,
            "canaries_checked": loop.witness.canaries_checked,
            "injected": self._injected(),
            "events": self.events.log,
            "bad_notifs": loop.counts.bad_notifs,
            "unsent": loop.counts.unsent,
            "undelivered": self._notif_faults.undelivered,
            "stuck": self._stuck,
            "quarantine": loop.policy.quarantine.summary(),
            "counters": loop.policy.counters(),
            "backend": backend_name(backend),
            "ops": [backend.bind(self._agent).kind, backend.bind(self._faulty).kind],
            "nixl": importlib.metadata.version("nixl"),
            "rss_mb": peak_rss_mb(),
        }


def serve(parent: Conversation) -> None:
    """Do the task that the supervisor sends, and stay until it has seen the result."""
    mailbox = Mailbox(parent)
    task = mailbox.wait(_FOR_EVER_S)
    decode = Decode(settings_from(task["settings"]), task["network"], mailbox)
    mailbox.send({"decode": decode.introduce()})
    mailbox.send({"result": decode.run(mailbox.wait(_FOR_EVER_S)["ranks"])})
    mailbox.wait(_FOR_EVER_S)


def main(parent: str) -> None:
    """Run decode."""
    enter_namespace()
    leave_torch_out()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    with converse(int(parent)) as supervisor:
        serve(supervisor)


if __name__ == "__main__":
    main(*sys.argv[1:])
