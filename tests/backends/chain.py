"""A model that mlx-lm's server loads in a moment, and that writes what it is told to.

Its layers do nothing, so the last token alone decides the next one, as ``chain`` has it: what real
weights write for themselves. Tokenizer, template, tool parser and server are the real ones. The
tokenizer is the embedded model's; texts of the chain that it has no token for become tokens.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
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
    weights = {k: mx.zeros(v.shape) for k, v in tree_flatten(model.parameters())}
    for name in weights:
        if name.endswith("norm.weight"):
            weights[name] = mx.ones(weights[name].shape)
    tokens = weights["model.embed_tokens.weight"]
    tokens = mx.random.normal(tokens.shape)
    weights["model.embed_tokens.weight"] = tokens
    head = weights["lm_head.weight"]
    for before, after in json.loads(sys.argv[2]):
        head[after] = head[after] + tokens[before]
    weights["lm_head.weight"] = head
    mx.save_safetensors(sys.argv[1] + "/model.safetensors", weights, metadata={"format": "mlx"})
"""

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
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
"""What it writes is decided by the last token: ``<tools>``, or ``<result>`` after one."""


def make_chain_model(folder: Path, tokenizer_of: Path, chain: Mapping[str, str]) -> Path:
    """Write a model into ``folder`` that writes, after each text of ``chain``, what stands there
    for it."""
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
    shutil.copy(tokenizer_of / "tokenizer_config.json", folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = CONFIG | {"vocab_size": max(known.values()) + 1}
    (folder / "config.json").write_text(json.dumps(config))
    pairs = json.dumps([[known[before], known[after]] for before, after in chain.items()])
    subprocess.run([sys.executable, "-P", "-c", CODE, str(folder), pairs], check=True)
    return folder
