"""The ``vllm.general_plugins`` entry point: makes the connectors known by name."""

from __future__ import annotations

from typing import Final

CONNECTORS: Final = ("KvfastNixlPullConnector", "KvfastNixlPushConnector", "KvfastNixlConnector")


def register() -> None:
    """Register kvfast's connectors with vLLM; once, however often it is called.

    Nothing else is loaded: a vLLM that does not use them must not notice, whatever its version.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    for name in CONNECTORS:
        if name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, "kvfast.vllm", name)
