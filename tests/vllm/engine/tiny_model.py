"""A Llama of two layers and its tokenizer, written to a folder: seeded, so the same on every machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

VOCABULARY: Final = 512
MAX_TOKENS: Final = 512
_LAYERS: Final = 2
_HIDDEN: Final = 128
_HEAD: Final = 32
_HEADS: Final = 4
_KV_HEADS: Final = 2  # one for each rank of a prefill with tensor parallel size 2
_MLP: Final = 256
_SEED: Final = 20
# Above 1, so that what comes out depends on what attention read: see test_tokens.py's control.
_GAIN: Final = 1.6


def write_model(folder: Path) -> Path:
    """Write weights, configuration and tokenizer; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config()))
    _write_weights(folder / "model.safetensors")
    _write_tokenizer(folder)
    return folder


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _MLP,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_TOKENS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, _HIDDEN)}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (_HIDDEN,),
            prefix + "self_attn.q_proj.weight": (_HEADS * _HEAD, _HIDDEN),
            prefix + "self_attn.k_proj.weight": (_KV_HEADS * _HEAD, _HIDDEN),
            prefix + "self_attn.v_proj.weight": (_KV_HEADS * _HEAD, _HIDDEN),
            prefix + "self_attn.o_proj.weight": (_HIDDEN, _HEADS * _HEAD),
            prefix + "post_attention_layernorm.weight": (_HIDDEN,),
            prefix + "mlp.gate_proj.weight": (_MLP, _HIDDEN),
            prefix + "mlp.up_proj.weight": (_MLP, _HIDDEN),
            prefix + "mlp.down_proj.weight": (_HIDDEN, _MLP),
        }
    return shapes | {"model.norm.weight": (_HIDDEN,), "lm_head.weight": (VOCABULARY, _HIDDEN)}


def _write_weights(path: Path) -> None:
    import torch
    from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]

    generator = torch.Generator().manual_seed(_SEED)
    weights = {}
    for name, shape in _shapes().items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
        else:
            weights[name] = torch.randn(shape, generator=generator) * (_GAIN / shape[1] ** 0.5)
    save_file(weights, path, metadata={"format": "pt"})


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]
    from tokenizers.models import WordLevel  # type: ignore[import-not-found, unused-ignore]
    from tokenizers.pre_tokenizers import Whitespace  # type: ignore[import-not-found, unused-ignore]

    words = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t2"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "t0",
                "eos_token": "t1",
                "unk_token": "t2",
                "model_max_length": MAX_TOKENS,
            }
        )
    )
