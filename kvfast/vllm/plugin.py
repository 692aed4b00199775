"""The ``vllm.general_plugins`` entry point: makes the connectors known by name.

vLLM runs it in each of its processes, also where nobody asks for kvfast, and does not expect it to
raise: whatever is wrong is logged here, and raises where a connector is asked for.
"""

from __future__ import annotations

import logging
from typing import Final

from .versions import UnsupportedVllmError, check_vllm

CONNECTORS: Final = ("KvfastNixlPullConnector", "KvfastNixlPushConnector", "KvfastNixlConnector")

logger: Final = logging.getLogger("vllm.kvfast")  # below vLLM's own: there its level and its format hold


def register() -> None:
    """Register kvfast's connectors with vLLM; once, however often it is called. Never raises.

    No connector is loaded: a vLLM that does not use them must not notice, whatever its version.
    """
    try:
        _register()
    except Exception:
        logger.exception("kvfast's connectors are not known by name to this vLLM; it starts without them")


def _register() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    for name in CONNECTORS:
        if name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, "kvfast.vllm", name)
    try:
        check_vllm()
    except UnsupportedVllmError as error:
        # No more than a hint: whoever chooses one of them gets the same words as an error.
        logger.info("kvfast's connectors can't be used here: %s", error)
