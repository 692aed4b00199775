"""vLLM's pull worker (decode READs), with kvfast's polling."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from .agent import LockedAgentWorker
from .engines import EngineRemovalDeferred
from .transfers import TrackedTransfers
from .worker import KvfastWorkerMixin


class KvfastNixlPullConnectorWorker(KvfastWorkerMixin, NixlPullConnectorWorker, LockedAgentWorker):  # type: ignore[misc]
    """The pull worker."""

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        """Start a request's reads, or have it wait while its engine's state is to be removed."""
        state = self._kvfast
        if state.removing and meta.remote.engine_id in state.removing:
            state.parked_reads.append((req_id, meta))
            return
        # vLLM 0.33 removes an engine's state here, and goes on to read with what is left.
        state.reading.engine_id = meta.remote.engine_id
        try:
            super()._read_blocks_for_req(req_id, meta)
        except EngineRemovalDeferred:
            state.parked_reads.append((req_id, meta))
        finally:
            state.reading.engine_id = None

    def _read_blocks(self, *args: Any, **kwargs: Any) -> Any:
        transfers = self._recving_transfers
        spec, engine_id = kwargs.get("read_spec"), kwargs.get("dst_engine_id")
        if spec is None or not isinstance(transfers, TrackedTransfers):
            return super()._read_blocks(*args, **kwargs)
        agents = self._remote_agents.get(engine_id) or {}
        with transfers.of_peer(agents.get((0, spec.remote_rank))):
            return super()._read_blocks(*args, **kwargs)
