"""What vLLM does for the name NixlConnector: refused, or the same, under kvfast's names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("vllm")

from vllm.config.kv_transfer import KVTransferConfig
from vllm.config.parallel import ParallelConfig
from vllm.config.vllm import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from kvfast.vllm import connector
from tests.vllm import rig
from tests.vllm.test_start import CONNECTORS, config_with

BLOCK = 64


def caches(*block_sizes: int) -> Any:
    groups = [SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=size)) for size in block_sizes]
    return SimpleNamespace(kv_cache_groups=groups)


def parallel(**sizes: int) -> Any:
    """Return a configuration of vLLM's, which must have all these fields, that it has not validated."""
    config = SimpleNamespace(tensor_parallel_size=4, prefill_context_parallel_size=1)
    config.decode_context_parallel_size = 4
    config.dcp_kv_cache_interleave_size = config.cp_kv_cache_interleave_size = 1
    for name, size in sizes.items():
        setattr(config, name, size)
    assert all(hasattr(ParallelConfig, name) for name in vars(config))
    return config


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a connector, with a worker that needs nothing."""
    for cls in rig.OURS.values():
        monkeypatch.setattr(cls, "__init__", lambda *_: None)

    def start(kv_cache_config: Any = None, mode: str = "pull", **given: Any) -> Any:
        config = config_with()
        for name, value in given.items():
            setattr(config, name, value)
        cls = getattr(connector, CONNECTORS[mode])
        return cls(config, KVConnectorRole.WORKER, kv_cache_config or MagicMock())

    return start


def test_an_interleave_that_is_not_the_block_size(start: Any) -> None:
    with pytest.raises(ValueError, match=r"interleave_size=1 .*--cp-kv-cache-interleave-size 64"):
        start(caches(BLOCK, 2 * BLOCK), parallel_config=parallel())
    with pytest.raises(ValueError, match="interleave_size=32 "):
        start(
            caches(BLOCK),
            parallel_config=parallel(dcp_kv_cache_interleave_size=32, cp_kv_cache_interleave_size=BLOCK),
        )
    start(caches(BLOCK, 2 * BLOCK), parallel_config=parallel(cp_kv_cache_interleave_size=BLOCK))
    start(caches(BLOCK), parallel_config=parallel(dcp_kv_cache_interleave_size=BLOCK))
    start(caches(BLOCK), parallel_config=parallel(decode_context_parallel_size=1))


def test_a_dcp_size_that_is_neither_1_nor_tp(start: Any) -> None:
    with pytest.raises(ValueError, match=r"decode_context_parallel_size=2 .* to 1 or to 4"):
        start(caches(2), parallel_config=parallel(decode_context_parallel_size=2))
    with pytest.raises(ValueError, match=r"to 1 or to 8"):
        start(caches(1), parallel_config=parallel(prefill_context_parallel_size=8))


def test_a_dcp_size_without_mla(start: Any) -> None:
    for use_mla in (True, False):
        model = SimpleNamespace(use_mla=use_mla)
        if use_mla:
            start(caches(1), parallel_config=parallel(), model_config=model)
            continue
        with pytest.raises(ValueError, match="without MLA"):
            start(caches(1), parallel_config=parallel(), model_config=model)


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_routed_experts(start: Any, mode: str) -> None:
    for asked in (False, True):
        aux = SimpleNamespace(enable_return_routed_experts=asked)
        if not asked:
            start(mode=mode, aux_output_config=aux)
            continue
        with pytest.raises(ValueError, match="--enable-return-routed-experts"):
            start(mode=mode, aux_output_config=aux)


def test_vllm_itself_refuses_to_push_with_dcp(start: Any) -> None:
    with pytest.raises(ValueError, match="NixlPushConnector does not support decode_context_parallel"):
        start(mode="push", parallel_config=parallel())


def test_a_partial_configuration_is_no_reason_to_refuse(start: Any) -> None:
    start(parallel_config=parallel(cp_kv_cache_interleave_size=1))  # nothing is known of the caches
    start(SimpleNamespace(kv_cache_groups=[]), parallel_config=parallel(), aux_output_config=None)


@pytest.mark.parametrize(
    "name", ["NixlConnector", "NixlPullConnector", "KvfastNixlConnector", "KvfastNixlPullConnector"]
)
def test_vllm_adjusts_the_interleave_for_one_name_alone(name: str) -> None:
    config = parallel()
    config._allow_auto_resolve_cp_interleave_size = True
    transfer = KVTransferConfig(kv_connector=name, kv_role="kv_consumer")
    given: Any = SimpleNamespace(parallel_config=config, kv_transfer_config=transfer)
    groups = caches(BLOCK)
    VllmConfig.adjust_dcp_kv_cache_interleave_size(given, Either(groups))
    assert config.cp_kv_cache_interleave_size == (BLOCK if name == "NixlConnector" else 1)


class Either(list[Any]):
    """What 0.33 is given, the groups, and what the others are given, which has them."""

    def __init__(self, caches: Any) -> None:
        super().__init__(caches.kv_cache_groups)
        self.kv_cache_groups = caches.kv_cache_groups
