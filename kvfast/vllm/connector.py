"""The connectors that vLLM makes: its own, with kvfast's workers.

vLLM's constructors are run as they are; only the name they find their worker under is another one.
So there is one worker, and one NIXL agent.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector, NixlPushConnector

from .borrow import with_names
from .metrics import KvfastPromMetrics, KvfastStats
from .named import refuse_routed_experts, refuse_sharding
from .options import Options
from .pull import KvfastNixlPullConnectorWorker
from .push import KvfastNixlPushConnectorWorker


class _Metrics:
    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Make stats out of what a worker sent."""
        return KvfastStats(data=data) if data is not None else KvfastStats()

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> Any:
        """Make the Prometheus metrics, vLLM's and kvfast's."""
        return KvfastPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _check(vllm_config: Any) -> None:
    Options.read(vllm_config.kv_transfer_config.kv_connector_extra_config)
    refuse_routed_experts(vllm_config)


class KvfastNixlPullConnector(_Metrics, NixlPullConnector):  # type: ignore[misc]
    """vLLM's pull connector (decode READs), polled by kvfast."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        _check(vllm_config)
        refuse_sharding(vllm_config, kv_cache_config)  # the push connector refuses all of it itself
        init = with_names(NixlPullConnector.__init__, NixlPullConnectorWorker=KvfastNixlPullConnectorWorker)
        init(self, vllm_config, role, kv_cache_config)


class KvfastNixlPushConnector(_Metrics, NixlPushConnector):  # type: ignore[misc]
    """vLLM's push connector (prefill WRITEs), polled by kvfast."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        _check(vllm_config)
        init = with_names(NixlPushConnector.__init__, NixlPushConnectorWorker=KvfastNixlPushConnectorWorker)
        init(self, vllm_config, role, kv_cache_config)


KvfastNixlConnector = KvfastNixlPullConnector
