"""Converts the embedded model's GGUF file into a folder that mlx-lm loads.

It is run as a script, ``python -P convert.py FILE.gguf FOLDER float32|4bit``, in a separate
process, because it needs MLX and much memory. It prints ``shard DONE TOTAL`` as its progress. It
imports nothing of mlx_tools.

The GGUF file has affine 4-bit weights in groups of 32 (the embedding in 8 bits), which is also
MLX's format. ``4bit`` keeps them unchanged, for Metal; ``float32`` unpacks them, which is faster on
a CPU. In both, scales and computations are in float32. In float16 the logits change by up to 0.4,
which changes this model's answers ("The capital of France is" became "L'Étoile").
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

GROUP = 32
BITS = 4
CONTROL = 3  # the type of a special token in tokenizer.ggml.token_type

_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def main(source: str, folder: str, precision: str) -> None:
    """Read ``source``, and write config, tokenizer and weights into ``folder``."""
    import mlx.core as mx

    with mx.stream(mx.cpu):
        loaded: Any = mx.load(source, return_metadata=True)
        weights, metadata = loaded
        out = Path(folder)
        quantised = _write_weights(mx, weights, out, keep=precision == "4bit")
    _dump(out / "config.json", _config(metadata, quantised))
    _dump(out / "tokenizer.json", _tokenizer(metadata))
    _dump(out / "tokenizer_config.json", _tokenizer_config(metadata))


def _name(gguf: str) -> str:
    parts = gguf.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}"
    return _TOP[parts[0]]


def _write_weights(mx: Any, weights: dict[str, Any], folder: Path, *, keep: bool) -> dict[str, Any]:
    """Write the weights. Return group size and bits of each quantised layer."""
    tensors: dict[str, Any] = {}
    quantised: dict[str, Any] = {}
    names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    for done, name in enumerate(names, 1):
        weight, scales = weights[f"{name}.weight"], weights.get(f"{name}.scales")
        target = _name(name)
        if scales is None:
            tensors[f"{target}.weight"] = weight.astype(mx.float32)
        else:
            biases = weights[f"{name}.biases"]
            bits = weight.shape[1] * 32 // (scales.shape[1] * GROUP)
            if keep:
                quantised[target] = {"group_size": GROUP, "bits": bits}
                tensors[f"{target}.weight"] = weight
                tensors[f"{target}.scales"] = scales.astype(mx.float32)
                tensors[f"{target}.biases"] = biases.astype(mx.float32)
            else:
                plain = mx.dequantize(weight, scales, biases, group_size=GROUP, bits=bits)
                tensors[f"{target}.weight"] = plain.astype(mx.float32)
                mx.eval(tensors[f"{target}.weight"])
        print("shard", done, len(names), flush=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    return quantised


def _config(metadata: dict[str, Any], quantised: dict[str, Any]) -> dict[str, Any]:
    def number(key: str) -> int:
        return int(metadata[key].item())

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": number("llama.embedding_length"),
        "num_hidden_layers": number("llama.block_count"),
        "intermediate_size": number("llama.feed_forward_length"),
        "num_attention_heads": number("llama.attention.head_count"),
        "num_key_value_heads": number("llama.attention.head_count_kv"),
        "rms_norm_eps": float(metadata["llama.attention.layer_norm_rms_epsilon"].item()),
        "vocab_size": number("llama.vocab_size"),
        "rope_theta": float(metadata["llama.rope.freq_base"].item()),
        "rope_traditional": True,  # GGUF stores q and k for interleaved positions
        "max_position_embeddings": number("llama.context_length"),
        "tie_word_embeddings": True,
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": number("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }
    if quantised:
        exceptions = {name: value for name, value in quantised.items() if value["bits"] != BITS}
        config["quantization"] = {"group_size": GROUP, "bits": BITS, **exceptions}
    return config


def _tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return ``tokenizer.json``: byte-level BPE, single digits, special tokens."""
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special = [
        {"id": number, "content": token, **plain, "special": True}
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == CONTROL
    ]
    digits = {"type": "Digits", "individual_digits": True}
    level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [digits, {**level, "add_prefix_space": False}],
        },
        "post_processor": None,
        "decoder": {**level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]

    def token(key: str) -> str:
        return str(tokens[int(metadata[f"tokenizer.ggml.{key}_token_id"].item())])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(metadata["llama.context_length"].item()),
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _dump(path: Path, value: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)


if __name__ == "__main__":
    main(*sys.argv[1:4])
