"""A model of random weights, a few megabytes small, that mlx-lm's server loads in a moment.

Its tokenizer is the embedded model's. It writes digits alone, which that tokenizer reads one by
one: so text that it wrote, put into a prompt, becomes the very tokens that it wrote. ``9`` and the
model's end token end a completion.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

CODE = """
import json, sys
import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes
config = json.load(open(sys.argv[1] + "/config.json"))
mx.random.seed(7)
with mx.stream(mx.cpu):
    kind, arguments = _get_classes(config)
    model = kind(arguments.from_dict(config))
    weights = {k: mx.random.normal(v.shape) * 0.1 for k, v in tree_flatten(model.parameters())}
    head = mx.zeros(weights["lm_head.weight"].shape)
    allowed = json.loads(sys.argv[2])
    head[mx.array(allowed)] = mx.random.normal((len(allowed), head.shape[1])) * 4
    weights["lm_head.weight"] = head
    weights["model.norm.weight"] = mx.ones(weights["model.norm.weight"].shape)
    mx.save_safetensors(sys.argv[1] + "/model.safetensors", weights, metadata={"format": "mlx"})
"""

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
SLIDING = {
    "model_type": "gemma3_text",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 49152,
    "sliding_window": 8,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 16,
    "max_position_embeddings": 8192,
}


def make_tiny_model(folder: Path, tokenizer_of: Path, config: dict[str, object] = LLAMA) -> Path:
    """Write a tiny model into ``folder``."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_of / name, folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    ends = [2, vocabulary["9"]]
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": ends}))
    allowed = json.dumps([2, *(vocabulary[digit] for digit in "0123456789")])
    subprocess.run([sys.executable, "-P", "-c", CODE, str(folder), allowed], check=True)
    return folder
