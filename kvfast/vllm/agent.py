"""Makes the worker's NIXL agent with a lock.

vLLM makes it without one, though a handshake thread and, in push mode, a writer thread share it, and
kvfast polls it without the GIL. vLLM's constructor is run as it is; only the name it finds the
agent's configuration under is another one.
"""

from __future__ import annotations

import inspect
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker

from .borrow import with_names

_RW = "NIXL_THREAD_SYNC_RW"


class LockedAgentWorker(NixlBaseConnectorWorker):  # type: ignore[misc]
    """The base worker, with an agent that has a lock where this NIXL can make one.

    It stands between vLLM's pull or push worker and its base: their ``super().__init__`` comes here.
    """

    _kvfast_locked: bool | None = None

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        stock = NixlBaseConnectorWorker.__init__
        make_config = stock.__globals__["nixl_agent_config"]
        mode = _rw_mode(make_config)
        self._kvfast_locked = mode is not None
        if mode is None:
            stock(self, vllm_config, engine_id, kv_cache_config)
            return

        def config(*args: Any, **kwargs: Any) -> Any:
            return make_config(*args, **{"sync_mode": mode, **kwargs})

        with_names(stock, nixl_agent_config=config)(self, vllm_config, engine_id, kv_cache_config)


def _rw_mode(make_config: Any) -> Any | None:
    """Return NIXL's read-write lock mode, or None if its agents can't be given one."""
    try:
        if "sync_mode" not in inspect.signature(make_config).parameters:
            return None
    except (TypeError, ValueError):
        return None
    module = inspect.getmodule(make_config)
    modes = getattr(module, "nixl_thread_sync_t", None)
    return getattr(modes, _RW, None)
