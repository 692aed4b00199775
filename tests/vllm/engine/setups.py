"""The pairs of servers that are tested: one prefill, one decode, and how each is told to transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class Setup:
    """A pair's configuration.

    ``chosen`` says how the connector is found: vLLM's own, kvfast's by its module, or kvfast's by its
    name alone, which its entry point has registered.
    """

    name: str
    mode: Literal["pull", "push"]
    chosen: Literal["stock", "module", "name"]
    policy: Literal["recompute", "fail"] = "recompute"
    prefill_ranks: int = 1
    backend: str | None = None
    scan: str | None = None

    @property
    def ours(self) -> bool:
        """Tell whether kvfast polls."""
        return self.chosen != "stock"

    @property
    def reader(self) -> Literal["prefill", "decode"]:
        """Whose handles the transfers are."""
        return "decode" if self.mode == "pull" else "prefill"

    def transfer_config(self, role: Literal["prefill", "decode"]) -> dict[str, Any]:
        """Return the ``--kv-transfer-config`` of one side."""
        extra = {"kvfast_backend": self.backend, "kvfast_scan": self.scan}
        config: dict[str, Any] = {
            "kv_connector": f"{'Kvfast' if self.ours else ''}Nixl{self.mode.capitalize()}Connector",
            "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": self.policy,
            "kv_connector_extra_config": {key: value for key, value in extra.items() if value is not None},
        }
        if self.chosen == "module":
            config["kv_connector_module_path"] = "kvfast.vllm"
        return config


STOCK_PULL: Final = Setup("stock pull", "pull", "stock")
STOCK_PUSH: Final = Setup("stock push", "push", "stock")
STOCK_PULL_TP2: Final = Setup("stock pull, TP 2 to 1", "pull", "stock", prefill_ranks=2)
STOCK_PUSH_TP2: Final = Setup("stock push, TP 2 to 1", "push", "stock", prefill_ranks=2)
PULL: Final = Setup("kvfast pull", "pull", "module")
PULL_TP2: Final = Setup("kvfast pull, TP 2 to 1", "pull", "name", "fail", prefill_ranks=2, scan="all")
PUSH: Final = Setup("kvfast push", "push", "module")
PUSH_TP2: Final = Setup("kvfast push, TP 2 to 1", "push", "name", "fail", prefill_ranks=2, backend="python")

STOCK: Final = (STOCK_PULL, STOCK_PULL_TP2, STOCK_PUSH, STOCK_PUSH_TP2)
OURS: Final = (PULL, PULL_TP2, PUSH, PUSH_TP2)
SETUPS: Final = (*OURS, *STOCK)
