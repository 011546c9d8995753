"""A stand-in of mlx-lm's server: lists a cache of models, and runs one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from mlx_tools.prompt import render_template
from tests.backends.loopback import Connection, Server, serving

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1].strip() }}")
HEADERS = (
    "{% for m in messages %}<|header|>{{ m.role }}<|end|>{{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|header|>assistant<|end|>{% endif %}"
)
"""Templates of three families; the first two write everything but an earlier thought alike."""


def put_model(cache: Path, name: str, template: str | None, tokens: Sequence[str]) -> Path:
    """Put a model into a Hugging Face cache, with a tokenizer of single bytes and ``tokens``."""
    folder = cache / f"models--{name.replace('/', '--')}" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "model.safetensors").write_bytes(b"x")
    settings = {} if template is None else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


class MlxServer:
    """Answers as mlx-lm's server that runs the model in ``folder``; None: it runs none that is
    known. ``listed`` is its list of models. ``usage`` False: it counts no tokens."""

    def __init__(
        self,
        folder: Path | None,
        listed: Sequence[str],
        template: str | None,
        *,
        usage: bool = True,
    ) -> None:
        self._tokenizer = None
        if folder is not None:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._listed, self._template, self._usage = listed, template, usage
        self._cached: list[list[int]] = []

    def serve(self) -> AbstractContextManager[Server]:
        """The server, while it runs."""
        return serving(self._complete, chat=self._chat, health=self._health, models=self._models)

    def _ids(self, text: str) -> list[int]:
        return list(map(ord, text)) if self._tokenizer is None else self._tokenizer.encode(text).ids

    def _answer(self, request: Connection, prompt: str, **choice: Any) -> None:
        ids = self._ids(prompt)
        cached = 0
        for earlier in self._cached:
            same = 0
            while same < min(len(ids), len(earlier)) and ids[same] == earlier[same]:
                same += 1
            cached = max(cached, same)
        self._cached.append(ids)
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        value: dict[str, Any] = {"choices": [{"index": 0, "finish_reason": "length", **choice}]}
        request.answer(200, value | ({"usage": usage} if self._usage else {}), head=_HEAD)

    def _complete(self, request: Connection) -> None:
        self._answer(request, request.body["prompt"], text="x")

    def _chat(self, request: Connection) -> None:
        if self._template is None:
            request.answer(404, {"error": "no chat template"}, head=_HEAD)
            return
        prompt = render_template(self._template, request.body["messages"])
        self._answer(request, prompt, message={"role": "assistant", "content": "x"})

    def _health(self, request: Connection) -> None:
        request.answer(200, {"status": "ok"}, head=_HEAD)

    def _models(self, request: Connection) -> None:
        rows = [{"id": name, "object": "model"} for name in self._listed]
        request.answer(200, {"object": "list", "data": rows}, head=_HEAD)


_HEAD = "Server: BaseHTTP/0.6 Python/3.12\r\n"
