"""Completions by Ollama's own interface: its ``/v1/completions`` changes prompts.

It puts a prompt into a template. `OllamaExchange` uses ``/api/generate`` with ``raw``,
which leaves the prompt unchanged, and converts the answer to the form of ``/v1/completions``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

from mlx_tools.backends.server_errors import json_object
from mlx_tools.backends.transport import Exchange

_OPTIONS: Final = (
    *("temperature", "seed", "top_k", "top_p", "min_p", "stop"),
    *("presence_penalty", "frequency_penalty", "repeat_penalty"),
)
"""Fields of a request that have the same name in Ollama's interface."""

FORMAT_TIMEOUT: Final = 5.0
"""Seconds to wait for a model's template. A choice: Ollama reads it from the disk."""

_MAX_LINE: Final = 1 << 20
"""The limit of a line in bytes. The longest correct line is the last one, with some hundred bytes.
"""

_FORMATS: Final = (
    ("<|im_start|>", "chatml"),
    ("<|start_header_id|>", "llama3"),
    ("<start_of_turn>", "gemma"),
    ("[INST]", "mistral"),
    ("<|end|>", "phi"),
)
"""Marks in Ollama's templates, each with the named chat format that it shows."""


class JsonServer(Protocol):
    """A server that answers a path with a JSON object: a `CompletionsBackend`."""

    async def get_object(
        self, path: str, timeout: float, content: bytes | None = None, /
    ) -> dict[str, Any]: ...


class OllamaExchange(Exchange):
    """Sends completion requests to Ollama's own interface, and chats to OpenAI's."""

    def target(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the path and the body of a request for Ollama."""
        if "messages" in body:
            return super().target(body)
        options = {name: body[name] for name in _OPTIONS if name in body}
        return "/api/generate", {
            "model": body.get("model", ""),
            "prompt": body["prompt"],
            "raw": True,
            "stream": body.get("stream", False),
            "options": {**options, "num_predict": body["max_tokens"]},
        }

    def decode_stream(self, path: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return the answer in the form of ``/v1/completions``."""
        return _as_events(stream) if path == "/api/generate" else stream


async def _as_events(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield an event for each line, then the event that ends a stream."""
    open_line, is_thinking = b"", False
    async for piece in stream:
        *lines, open_line = (open_line + piece).split(b"\n")
        # A server that never sends a line end must not fill the memory.
        if len(open_line) > _MAX_LINE:
            break
        for line in lines:
            event, is_thinking = _event(line, is_thinking)
            yield event
    if open_line.strip():
        event, _ = _event(open_line, is_thinking)
        yield event
    yield b"data: [DONE]\n\n"


def _event(line: bytes, thinks: bool) -> tuple[bytes, bool]:
    """Return a line as an event, and True if a thought is open after it."""
    if not line.strip():
        return b"", thinks
    value = json_object(line)
    if "response" not in value:
        return b"data: " + line + b"\n\n", thinks  # an error, or another server's answer
    text, thought = str(value["response"] or ""), str(value.get("thinking") or "")
    if thought:
        # Ollama sends thoughts in a separate field; the protocol reads them between these marks.
        thought = thought if thinks else f"<think>{thought}"
    if thinks and text:
        text = f"</think>{text}"
    choice: dict[str, Any] = {"index": 0, "text": thought + text, "finish_reason": None}
    answer: dict[str, Any] = {"choices": [choice]}
    if value.get("done"):
        choice["finish_reason"] = value.get("done_reason") or "stop"
        counts = value.get("prompt_eval_count"), value.get("eval_count")
        answer["usage"] = {"prompt_tokens": counts[0], "completion_tokens": counts[1]}
    open_thought = (thinks or bool(thought)) and not text
    return f"data: {json.dumps(answer)}\n\n".encode(), open_thought


# --- queries about Ollama and its models ----------------------------------------------------------


async def is_ollama(server: JsonServer, timeout: float) -> bool:
    """Return True if a server is Ollama, by its ``/api/version``."""
    version_row = await server.get_object("/api/version", timeout)
    return isinstance(version_row.get("version"), str)


async def list_loaded_models(server: JsonServer, timeout: float) -> dict[str, int | None]:
    """Return the models in Ollama's memory, with their contexts in tokens."""
    rows = (await server.get_object("/api/ps", timeout)).get("models")
    sizes = {}
    for row in rows if isinstance(rows, list) else []:
        name = row.get("model") or row.get("name") if isinstance(row, dict) else None
        if isinstance(name, str):
            size = row.get("context_length")
            sizes[name] = size if isinstance(size, int) and size > 0 else None
    return sizes


async def format_name(server: JsonServer, model: str, timeout: float) -> str | None:
    """Return the name of the chat format of an Ollama model, None if unknown."""
    content = json.dumps({"model": model}).encode()
    details = await server.get_object("/api/show", timeout, content)
    template = str(details.get("template") or "")
    return next((name for mark, name in _FORMATS if mark in template), None)
