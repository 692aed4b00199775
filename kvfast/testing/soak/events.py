"""Faults of processes and peers, carried out while decode's loop goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from kvfast.demo.process import Message

from .network import NETWORK_FAULTS
from .plan import EventPlan
from .sources import GONE, REMOVING, UP, Source, Sources

logger = logging.getLogger(__name__)

_FILL_S: Final = 0.1  # a stopped rank gathers transfers for so long before it is killed or removed


class PeerRemover(Protocol):
    """The part of a policy that removes peers."""

    def remove_peer(self, peer: str) -> None: ...
    def is_removing(self, peer: str) -> bool: ...
    def peer_lost(self, peer: str) -> None: ...


class Events:
    """What is being done to the ranks.

    Parameters
    ----------
    agent : nixl_agent
        Decode's.
    policy : PeerRemover
        Removes peers as it does.
    sources : Sources
        The ranks.
    send : callable
        Tells the supervisor what to do to a process.
    """

    def __init__(
        self,
        agent: Any,
        policy: PeerRemover,
        sources: Sources,
        plans: Iterable[EventPlan],
        send: Callable[[Message], None],
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        push: bool = False,
    ) -> None:
        self._push = push
        self._agent = agent
        self._policy = policy
        self._sources = sources
        self._plans = iter(plans)
        self._next = next(self._plans, None)
        self._send = send
        self._sleep = sleep
        self._clock = clock
        self._begin = clock()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._arriving: list[Source] = []
        self.counts: dict[str, int] = {}
        self.log: list[Message] = []

    @property
    def idle(self) -> bool:
        """Tell whether nothing is going on."""
        busy = self._later or self._arriving or any(s.state != UP for s in self._sources)
        return not busy

    def step(self, posted: int) -> None:
        """Do what is due after so many requests, and what has to follow earlier faults."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            heappop(self._later)[2]()
        self._finish_removals()
        self._finish_arrivals()
        if self._next is not None and posted >= self._next.at_request:
            plan, self._next = self._next, next(self._plans, None)
            self._start(plan)

    def arrive(self, source: Source) -> None:
        """Take in a rank that was started to replace another."""
        self._arriving.append(source)

    # ---- the faults

    def _start(self, plan: EventPlan) -> None:
        up = self._sources.up
        if not up:
            self._note(plan, None, "skipped: no rank is up")
            return
        source = up[plan.pick % len(up)]
        self.counts[plan.kind] = self.counts.get(plan.kind, 0) + 1
        self._note(plan, source.name, "")
        if plan.kind in NETWORK_FAULTS:
            self._send({"do": "network", "fault": plan.kind, "seconds": plan.seconds})
            return
        method: Callable[[EventPlan, Source], None] = getattr(self, "_" + plan.kind.replace("-", "_"))
        method(plan, source)

    def _stop(self, plan: EventPlan, source: Source) -> None:
        self._tell("stop", source)
        self._after(plan.seconds, lambda: self._tell("cont", source))

    def _pause(self, plan: EventPlan, source: Source) -> None:
        del source
        self._sleep(plan.seconds)

    def _reload(self, plan: EventPlan, source: Source) -> None:
        del plan
        self._agent.add_remote_agent(source.metadata)

    def _kill_same(self, plan: EventPlan, source: Source) -> None:
        self._kill(plan, source, source.name)

    def _kill_new(self, plan: EventPlan, source: Source) -> None:
        self._kill(plan, source, f"prefill{source.column}-{plan.at_request}")

    def _kill(self, plan: EventPlan, source: Source, name: str) -> None:
        others = [s for s in self._sources.up if s is not source]
        self._tell("stop", source)
        if plan.beside and others:
            self._stop(plan, others[plan.pick % len(others)])

        def kill() -> None:
            if source.state == GONE:  # another fault was quicker
                return
            source.state = GONE
            self._send({"do": "replace", "key": source.key, "name": name})

        self._after(_FILL_S, kill)

    def _remove(self, plan: EventPlan, source: Source) -> None:
        self._stop(plan, source)

        def remove() -> None:
            if source.state == UP:
                source.state = REMOVING
                self._policy.remove_peer(source.name)

        self._after(_FILL_S, remove)

    def _stop_decode(self, plan: EventPlan, source: Source) -> None:
        del source
        self._send({"do": "stop-decode", "seconds": plan.seconds})

    def _remove_behind(self, plan: EventPlan, source: Source) -> None:
        if self._push:  # the transfers are the rank's: it removes decode, while that is stopped
            verb = {"do": "remove-decode", "key": source.key}
            self._send({**verb, "after": _FILL_S, "seconds": plan.seconds})
            return
        self._stop(plan, source)

        def remove() -> None:
            if source.state == UP:
                self._agent.remove_remote_agent(source.name)
                self._agent.add_remote_agent(source.metadata)

        self._after(_FILL_S, remove)

    # ---- what follows

    def _finish_removals(self) -> None:
        for source in self._sources:
            if source.state == REMOVING and not self._policy.is_removing(source.name):
                self._agent.add_remote_agent(source.metadata)
                source.state = UP

    def _finish_arrivals(self) -> None:
        for source in list(self._arriving):
            old = next((s for s in self._sources if s.column == source.column), None)
            if old is not None and old.state == GONE:
                # Under the same name it must be out of the agent first; under another it is only in the way.
                old.state = "removed"
                self._policy.remove_peer(old.name)
            if old is not None and old.name == source.name and self._policy.is_removing(old.name):
                continue
            self._arriving.remove(source)
            self._agent.add_remote_agent(source.metadata)
            self._sources.put(source)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._numbers += 1
        heappush(self._later, (self._clock() + seconds, self._numbers, action))

    def _tell(self, verb: str, source: Source) -> None:
        self._send({"do": verb, "key": source.key})

    def _note(self, plan: EventPlan, name: str | None, why: str) -> None:
        at = round(self._clock() - self._begin, 3)
        entry = {"at_s": at, "at_request": plan.at_request, "fault": plan.kind, "rank": name}
        self.log.append({**entry, "seconds": round(plan.seconds, 3), "note": why})
