"""Servers on loopback that answer as Anthropic's and Ollama's do, by a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from mlx_tools.plugins.vendors.vendors import AnthropicBackend, OllamaBackend
from tests.backends.loopback import SSE, Connection, Server

Part = dict[str, Any]
Turn = Callable[[Connection], None]


def script_anthropic_turn(
    text: str = "", *calls: tuple[str, dict[str, Any]], thought: str = ""
) -> Turn:
    """Return the events of a turn, as Anthropic's service sends them."""

    def send(to: Connection, kind: str, **more: Any) -> None:
        to.send(f"event: {kind}\n".encode())
        to.event({"type": kind, **more})

    def block(to: Connection, index: int, begun: Part, *deltas: Part) -> None:
        send(to, "content_block_start", index=index, content_block=begun)
        for delta in deltas:
            send(to, "content_block_delta", index=index, delta=delta)
        send(to, "content_block_stop", index=index)

    def answer(to: Connection) -> None:
        usage = {"input_tokens": 20, "cache_read_input_tokens": 80, "output_tokens": 1}
        base = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
        message = base | {"stop_reason": None, "stop_sequence": None, "usage": usage}
        to.send(SSE)
        send(to, "message_start", message=message)
        send(to, "ping")
        if thought:
            pieces = [{"type": "thinking_delta", "thinking": piece} for piece in thought]
            block(to, 0, {"type": "thinking", "thinking": "", "signature": ""}, *pieces)
        if text:
            pieces = [{"type": "text_delta", "text": piece} for piece in text]
            block(to, 1, {"type": "text", "text": ""}, *pieces)
        for number, (name, given) in enumerate(calls, start=2):
            pieces = [
                {"type": "input_json_delta", "partial_json": piece} for piece in json.dumps(given)
            ]
            begun = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
            block(to, number, begun, *pieces)
        delta = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        send(to, "message_delta", delta=delta, usage={"output_tokens": 7})
        send(to, "message_stop")

    return answer


def script_ollama_turn(
    text: str = "", *calls: tuple[str, dict[str, Any]], thought: str = ""
) -> Turn:
    """Return a turn as Ollama's server sends it, with one JSON object on each line."""

    def answer(to: Connection) -> None:
        to.send(b"HTTP/1.0 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n")

        def send(message: Part, **more: Any) -> None:
            line = {"model": "m", "created_at": "2026-11-23T00:00:00Z", "done": False}
            message = {"role": "assistant", "content": ""} | message
            to.send(json.dumps(line | {"message": message} | more).encode() + b"\n")

        for piece in thought:
            send({"thinking": piece})
        for piece in text:
            send({"content": piece})
        for name, given in calls:
            send({"tool_calls": [{"function": {"name": name, "arguments": given}}]})
        send({}, done=True, done_reason="stop", prompt_eval_count=100, eval_count=7)

    return answer


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the SDKs retry without a pause."""
    with suppress(ImportError):
        from anthropic import AsyncAnthropic

        monkeypatch.setattr(AsyncAnthropic, "_calculate_retry_timeout", lambda *given: 0.0)


VENDORS = {
    "anthropic": (AnthropicBackend, script_anthropic_turn),
    "ollama": (OllamaBackend, script_ollama_turn),
}


@contextmanager
def serve_turns(*turns: Turn) -> Iterator[Server]:
    left = [*turns]

    def handle(to: Connection) -> None:
        if to.method == "POST":
            left.pop(0)(to)
        else:
            to.answer(200, {"data": [], "models": [], "has_more": False})

    server = Server(handle)
    try:
        yield server
    finally:
        server.stop()


def list_requests(server: Server) -> list[dict[str, Any]]:
    return [one.body for one in server.requests if one.method == "POST"]
