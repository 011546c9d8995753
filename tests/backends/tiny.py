"""Models that mlx-lm loads in a moment: of random weights, or writing what they are told to.

Their tokenizer is the embedded model's, a few megabytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlx_tools.backends.openblas import find_openblas, load_openblas

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 49152,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

# keeps no more than the last 8 positions, so its cache cannot be shortened
SLIDING = LLAMA | {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "sliding_window": 8,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 16,
    "max_position_embeddings": 8192,
}


def _write(folder: Path, config: Mapping[str, Any], fill: Callable[[Any, Any], Any]) -> Path:
    """Write a model of this kind into ``folder``, with the weights that ``fill`` gives."""
    load_openblas(find_openblas)  # which must come before MLX
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.utils import _get_classes

    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(7)
    with mx.stream(mx.cpu):
        kind, arguments = _get_classes(config)
        model: Any = kind(arguments.from_dict(config))
        weights = fill(mx, {name: one.shape for name, one in tree_flatten(model.parameters())})
        path = str(folder / "model.safetensors")
        mx.save_safetensors(path, weights, metadata={"format": "mlx"})
    return folder


def make_tiny_model(folder: Path, tokenizer_of: Path, config: dict[str, Any] = LLAMA) -> Path:
    """Write a model of random weights into ``folder``.

    It writes digits alone, which its tokenizer reads one by one: so text that it wrote, put into a
    prompt, becomes the very tokens that it wrote. ``9`` and the end token end a completion.
    """
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_of / name, folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    allowed = [2, *(vocabulary[digit] for digit in "0123456789")]

    def fill(mx: Any, shapes: Any) -> Any:
        weights = {name: mx.random.normal(shape) * 0.1 for name, shape in shapes.items()}
        head = mx.zeros(shapes["lm_head.weight"])
        head[mx.array(allowed)] = mx.random.normal((len(allowed), head.shape[1])) * 4
        norm = mx.ones(shapes["model.norm.weight"])
        return weights | {"lm_head.weight": head, "model.norm.weight": norm}

    return _write(folder, config | {"eos_token_id": [2, vocabulary["9"]]}, fill)


CHAIN = LLAMA | {
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "eos_token_id": [2],
}

END = "<|im_end|>"

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools:\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}Call one as <tool_call>{...}</tool_call>.<|im_end|>\n{% endif -%}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for tool_call in message.tool_calls or [] %}<tool_call>"
    '{"name": "{{ tool_call.name or tool_call.function.name }}", '
    '"arguments": {{ tool_call.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if messages[-1].role == 'tool' %}<result>{% elif tools %}<tools>{% endif %}{% endif -%}"
)
"""The last token decides the output: ``<tools>``, or ``<result>`` after one."""


def make_chain_model(folder: Path, tokenizer_of: Path, chain: Mapping[str, str]) -> Path:
    """Write a model into ``folder`` that writes, after each text of ``chain``, what stands there
    for it.

    Its layers do nothing, so the last token alone decides the next one: what real weights write for
    themselves. Tokenizer, template, tool parser and server are the real ones; texts of the chain
    that the tokenizer has no token for become tokens.
    """
    folder.mkdir()
    tokenizer = json.loads((tokenizer_of / "tokenizer.json").read_text())
    known = {**tokenizer["model"]["vocab"]}
    known |= {one["content"]: one["id"] for one in tokenizer["added_tokens"]}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for text in dict.fromkeys((*chain, *chain.values())):
        if text not in known:
            known[text] = max(known.values()) + 1
            added = {"id": known[text], "content": text, "special": False, **plain}
            tokenizer["added_tokens"].append(added)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((tokenizer_of / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"chat_template": TEMPLATE})
    )

    def fill(mx: Any, shapes: Any) -> Any:
        weights = {
            name: (mx.ones if name.endswith("norm.weight") else mx.zeros)(shape)
            for name, shape in shapes.items()
        }
        tokens, head = (
            mx.random.normal(shapes["model.embed_tokens.weight"]),
            weights["lm_head.weight"],
        )
        for before, after in chain.items():
            head[known[after]] = head[known[after]] + tokens[known[before]]
        return weights | {"model.embed_tokens.weight": tokens, "lm_head.weight": head}

    return _write(folder, CHAIN | {"vocab_size": max(known.values()) + 1}, fill)
