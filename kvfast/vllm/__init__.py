"""kvfast in vLLM: its NIXL connectors, with kvfast's polling.

Choose one with ``kv_connector_module_path="kvfast.vllm"``, or by name alone: an installed kvfast
registers them. See docs/vllm.md. vLLM is imported when a connector is asked for, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import KvfastNixlConnector, KvfastNixlPullConnector, KvfastNixlPushConnector

__all__ = ["KvfastNixlConnector", "KvfastNixlPullConnector", "KvfastNixlPushConnector"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .versions import check_vllm

    check_vllm()
    from . import connector, plugin

    # Where plugins are off: a MultiConnector finds its children by module, and what their stats are by name.
    plugin.register()
    return getattr(connector, name)
