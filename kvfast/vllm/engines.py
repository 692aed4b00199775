"""When the state of a remote engine goes, in vLLM's workers: not under its transfers, and once it is dead.

vLLM removes an engine's state at once, from whichever thread finds a reason. Here it goes when nothing
of the engine is outstanding, and nothing begins with an engine that is about to go. Deciding and
beginning are one step each, under one lock, since the push worker has two threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvfast_ext.contract import HandleFailure

from .borrow import StandIn, after
from .transfers import TrackedTransfers, name_of
from .versions import check_vllm
from .watch import Tolerant

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker as _Next
else:
    _Next = object  # vLLM's pull or push worker stands behind in the ``__mro__``


class EngineRemovalDeferred(Exception):  # noqa: N818  # no error: it ends a read's start
    """An engine's removal has to wait, and what asked for it with it."""


class KvfastEnginesMixin(_Next):  # type: ignore[misc]
    """Which engines are dead, and when their state goes; common to pull and push."""

    # ---- whose is what

    def _kvfast_engine_of(self: Any, failure: HandleFailure) -> str | None:
        meta = getattr(self, "_recving_metadata", {}).get(failure.req_id)
        if meta is not None and meta.remote is not None:
            return str(meta.remote.engine_id)
        engine_id: str | None = self._kvfast_engine_of_agent(failure.peer)
        return engine_id

    def _kvfast_engine_of_agent(self: Any, agent_name: str | None) -> str | None:
        for engine_id, agents in list(self._remote_agents.items()):
            if agent_name in set(map(name_of, agents.values())):
                return str(engine_id)
        return None

    def _kvfast_agents_of(self: Any, engine_id: str) -> set[str]:
        return set(map(name_of, self._remote_agents.get(engine_id, {}).values()))

    # ---- who is dead

    def _kvfast_found_dead(self: Any, agent: Any, error: BaseException | None) -> None:
        state, agent_name = self._kvfast, name_of(agent)
        if agent_name not in state.dead_agents:
            state.dead_agents.add(agent_name)
            if agent_name not in state.counted_dead:  # it is seen again until its engine is removed
                state.counted_dead.add(agent_name)
                state.count("dead_peers")
                state.warn("dead", "agent %s is gone: %r", agent_name, error)

    def _kvfast_disconnected(self: Any, engine_id: str) -> None:
        """Have an engine's state removed when its handles have ended: its connection is gone."""
        if engine_id not in self._remote_agents:
            return
        if self._TRANSFER_MODE == "pull" and check_vllm().marks_invalid_engines:
            if engine_id not in self._invalid_remote_engines:
                self._mark_remote_engine_invalid(engine_id, time.perf_counter())
            return
        self._kvfast.retries.broke(engine_id)
        self._kvfast.removing.setdefault(engine_id, False)

    def _kvfast_fail_waiting(self: Any) -> None:
        """Draw the consequences for the engines all of whose agents are gone."""
        state = self._kvfast
        engines = {name: self._kvfast_engine_of_agent(name) for name in list(state.dead_agents)}
        state.dead_agents.difference_update(name for name, engine in engines.items() if engine is None)
        for engine_id in set(engines.values()) - {None}:
            if self._kvfast_fail_if_dead(engine_id):
                self._kvfast_disconnected(engine_id)
                state.dead_agents.difference_update(self._kvfast_agents_of(engine_id))

    def _kvfast_fail_if_dead(self: Any, engine_id: str) -> bool:
        """Fail the requests that wait for an engine's WRITEs, if all of its agents are gone.

        Return whether that is so, and none was left for the next poll.
        """
        agents = self._kvfast_agents_of(engine_id)
        if not agents or not agents <= self._kvfast.dead_agents:
            return False
        return self._TRANSFER_MODE != "push" or bool(self._kvfast_fail_writes_of(engine_id))

    def _nixl_handshake(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Shake hands. A process that lives has the same agents then: what was seen of them is no news."""
        agents, clock_offset = super()._nixl_handshake(*args, **kwargs)
        names = set(map(name_of, agents.values()))
        self._kvfast.dead_agents.difference_update(names)
        self._kvfast.counted_dead.difference_update(names)
        return agents, clock_offset

    # ---- whose state stays

    def _kvfast_enter(self: Any, engine_id: str) -> bool:
        """Have an engine's state stay until `_kvfast_leave`; not if it is about to go. Under the lock."""
        state = self._kvfast
        if engine_id in state.removing:
            return False
        state.in_use[engine_id] += 1
        return True

    def _kvfast_leave(self: Any, engine_id: str) -> None:
        state = self._kvfast
        with state.lock:
            state.in_use[engine_id] -= 1
            if not state.in_use[engine_id]:
                del state.in_use[engine_id]

    def _kvfast_busy(self: Any, engine_id: str) -> bool:
        """Tell whether a handle of an engine is outstanding, or may be in a moment. Under the lock."""
        state = self._kvfast
        if state.posting or state.in_use[engine_id]:
            return True  # what the writer thread posts is in no container yet
        for req_id, meta in list(self._recving_metadata.items()):
            remote = meta.remote
            if remote is not None and remote.engine_id == engine_id and req_id in self._recving_transfers:
                return True
        return any(
            transfers.outstanding_of(name)
            for transfers in self._kvfast_tracked()
            for name in self._kvfast_agents_of(engine_id)
        )

    def _kvfast_tracked(self: Any) -> list[TrackedTransfers]:
        containers = (getattr(self, "_recving_transfers", None), getattr(self, "_sending_transfers", None))
        return [transfers for transfers in containers if isinstance(transfers, TrackedTransfers)]

    # ---- whose state goes

    def _cleanup_remote_engine(self: Any, engine_id: str, **kwargs: Any) -> None:
        """Remove an engine's state, once no handle of it is outstanding."""
        state = self._kvfast
        with state.lock:
            if engine_id in state.cleaning or engine_id not in self._remote_agents:
                return  # another thread was quicker
            waits = not state.shutting_down and self._kvfast_busy(engine_id)
            state.removing[engine_id] = bool(kwargs.get("log_eviction", True))
            if not waits:
                state.cleaning.add(engine_id)
        if not waits:
            self._kvfast_clean_up(engine_id, **kwargs)
        elif getattr(state.reading, "engine_id", None) == engine_id:
            raise EngineRemovalDeferred(engine_id)

    def _kvfast_clean_up(self: Any, engine_id: str, **kwargs: Any) -> None:
        state = self._kvfast
        agents = self._kvfast_agents_of(engine_id)
        # What waits for it can be found by its agents now, and never again.
        self._kvfast_fail_if_dead(engine_id)
        tolerant = StandIn(self, nixl_wrapper=Tolerant(getattr(self, "nixl_wrapper", None), state))
        try:
            after(KvfastEnginesMixin, self)._cleanup_remote_engine(tolerant, engine_id, **kwargs)
        finally:
            state.dead_agents.difference_update(agents)  # the next connection to them is another one
            state.counted_dead.difference_update(agents)
            with state.lock:
                # Last: whoever finds the engine in neither shakes hands with it.
                state.cleaning.discard(engine_id)
                state.removing.pop(engine_id, None)

    def _kvfast_settle(self: Any) -> None:
        """Remove the engines that waited for their handles; start what waited for that."""
        state = self._kvfast
        for engine_id, log_eviction in list(state.removing.items()):
            if engine_id not in self._remote_agents:
                with state.lock:
                    if engine_id not in state.cleaning:
                        state.removing.pop(engine_id, None)
            elif not self._handshake_futures:
                # vLLM, too, removes nothing while its handshake thread may be loading metadata.
                self._cleanup_remote_engine(engine_id, log_eviction=log_eviction)
        if state.parked_reads:
            put = self._ready_requests.put
            self._kvfast_resume(state.parked_reads, lambda read: read[1].remote.engine_id, put)

    def _kvfast_resume(
        self, parked: deque[Any], engine_of: Callable[[Any], str], start: Callable[[Any], object]
    ) -> None:
        """Start what waited for an engine that is not being removed any more; the rest goes on waiting."""
        for _ in range(len(parked)):
            waiting = parked.popleft()
            if engine_of(waiting) in self._kvfast.removing:
                parked.append(waiting)
            else:
                start(waiting)
