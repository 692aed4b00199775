"""What vLLM does for the name NixlConnector alone, and has not done for kvfast's names.

vLLM looks at a connector's name where it reads its configuration: it refuses what NIXL can't transfer,
and adjusts one size without which a decode would read the wrong KV. Here the same is refused, with
what to set. A configuration may be partial, or of a version without some of these: then what is not
there is not looked at.
"""

from __future__ import annotations

from typing import Any


def refuse_routed_experts(vllm_config: Any) -> None:
    """Refuse routed experts, as vLLM does for all of its NIXL connectors.

    Raises
    ------
    ValueError
        With the value that can't be used, and what to do.
    """
    aux_output = getattr(vllm_config, "aux_output_config", None)
    if getattr(aux_output, "enable_return_routed_experts", False) is True:
        raise ValueError(
            "enable_return_routed_experts=True can't be used with a NIXL connector, which does not transfer "
            "routed experts: leave --enable-return-routed-experts out"
        )


def refuse_sharding(vllm_config: Any, kv_cache_config: Any) -> None:
    """Refuse sizes of decode context parallelism that vLLM refuses, or adjusts, for reads.

    Raises
    ------
    ValueError
        With the value that can't be used, and what to set.
    """
    parallel = getattr(vllm_config, "parallel_config", None)
    dcp_size = _size(parallel, "decode_context_parallel_size")
    if dcp_size > 1:
        _check_dcp(vllm_config, parallel, dcp_size)
        _check_interleave(parallel, kv_cache_config, dcp_size)


def _check_dcp(vllm_config: Any, parallel: Any, dcp_size: int) -> None:
    tp_size = max(_size(parallel, "tensor_parallel_size"), _size(parallel, "prefill_context_parallel_size"))
    if dcp_size != tp_size:
        raise ValueError(
            f"decode_context_parallel_size={dcp_size} can't be used with a NIXL connector: "
            f"set --decode-context-parallel-size to 1 or to {tp_size}, the size of tensor parallelism, or "
            "of prefill context parallelism where that is larger"
        )
    if getattr(getattr(vllm_config, "model_config", None), "use_mla", None) is False:
        raise ValueError(
            f"decode_context_parallel_size={dcp_size} can't be used with a NIXL connector and a model "
            "without MLA: set --decode-context-parallel-size to 1"
        )


def _check_interleave(parallel: Any, kv_cache_config: Any, dcp_size: int) -> None:
    # As vLLM has it, the older of the two options comes first where it is given.
    interleave = _size(parallel, "dcp_kv_cache_interleave_size")
    if interleave <= 1:
        interleave = _size(parallel, "cp_kv_cache_interleave_size")
    groups = getattr(kv_cache_config, "kv_cache_groups", None)
    if not isinstance(groups, (list, tuple)) or not groups:
        return
    block_size = min(_size(group.kv_cache_spec, "block_size") for group in groups)
    if interleave != block_size:
        raise ValueError(
            f"cp_kv_cache_interleave_size={interleave} can't be used with a NIXL connector and "
            f"decode_context_parallel_size={dcp_size}, which needs whole blocks: set "
            f"--cp-kv-cache-interleave-size {block_size}, the block size"
        )


def _size(config: Any, name: str) -> int:
    value = getattr(config, name, 1)
    return value if isinstance(value, int) else 1
