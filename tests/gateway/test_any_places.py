"""A body in which any place holds what a client sent by mistake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from mlx_tools.gateway import ApiError
from mlx_tools.gateway.anthropic_messages import read_anthropic_messages, read_count_tokens
from mlx_tools.gateway.chat_completions import read_chat_completion, read_completion
from mlx_tools.gateway.responses import read_responses
from mlx_tools.plugins.runs.body import read_run

PARAMETERS = {"type": "object", "properties": {"c": {"type": "string"}}, "required": ["c"]}
FUNCTION = {"name": "w", "description": "d", "parameters": PARAMETERS}
GRAMMAR = {"syntax": "lark", "definition": "x"}
CUSTOM = {"name": "patch", "description": "d", "format": {"type": "grammar", "grammar": GRAMMAR}}
CALL = {"id": "a", "type": "function", "function": {"name": "w", "arguments": '{"c":"x"}'}}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "r"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
    ],
    "tools": [{"type": "function", "function": FUNCTION}, {"type": "custom", "custom": CUSTOM}],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "w"}]},
    },
    "stop": ["z"],
    "stream_options": {"include_usage": True},
    "max_tokens": 5,
    "logit_bias": {"1": 2},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS}},
    "metadata": {"a": "b"},
    "temperature": 1,
    "top_k": 1,
}
COMPLETION = {"prompt": ["hi"], "stop": ["z"], "logprobs": True, "top_logprobs": 1, "n": 1}
RESPONSE = {
    "model": "m",
    "instructions": "i",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "a", "name": "w", "namespace": "ns", "arguments": ""},
        {"type": "function_call_output", "call_id": "a", "output": "x"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "t"},
        {"type": "web_search_call", "id": "q", "action": {"type": "search", "query": "x"}},
        {"type": "mcp_call", "id": "q", "server_label": "l", "output": [{"type": "text"}]},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "late"}]},
    ],
    "tools": [
        {"type": "function", **FUNCTION, "strict": False},
        {
            "type": "namespace",
            "name": "ns",
            "description": "d",
            "tools": [{"type": "function", **FUNCTION}],
        },
        {"type": "web_search"},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", **GRAMMAR}},
    ],
    "tool_choice": {"type": "function", "name": "w"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS}},
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "low"},
    "metadata": {"a": "b"},
    "max_output_tokens": 5,
}
PICTURE = {"type": "base64", "media_type": "image/png", "data": "aGk="}
MESSAGES = {
    "model": "m",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "image", "source": PICTURE}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "x"},
                {"type": "tool_use", "id": "a", "name": "w", "input": {"c": 1}},
                {"type": "server_tool_use", "id": "q", "name": "web_search", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "text", "text": "r"}],
                    "is_error": False,
                }
            ],
        },
    ],
    "tools": [
        {"name": "w", "description": "d", "input_schema": PARAMETERS},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    ],
    "tool_choice": {"type": "tool", "name": "w", "disable_parallel_tool_use": True},
    "stop_sequences": ["z"],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "mcp_servers": [{"type": "url", "url": "x"}],
    "output_config": {"format": {"type": "json_schema", "schema": PARAMETERS}},
}
RUN = {
    "messages": CHAT["messages"],
    "tools": ["calculator"],
    "roots": ["x"],
    "client_tools": [{"type": "function", "function": FUNCTION}, {"type": "custom", **CUSTOM}],
    "limits": {"max_iterations": 2},
    "schema": PARAMETERS,
}
MISTAKES = (None, True, 1, "x", [], {}, [[]], [None], {"type": []}, {"type": "x"}, {"": {}})
MADE: dict[str, Any] = {"new_id": lambda: "1", "now": lambda: 0.0}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all places in a body."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))


def mistaken_bodies(body: Mapping[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """The bodies that have one of the mistakes at one place, with that place."""
    text = json.dumps(body)
    for *path, last in places(body):
        for mistake in MISTAKES:
            wrong = json.loads(text)
            part = wrong
            for key in path:
                part = part[key]
            part[last] = mistake
            yield (*path, last), mistake, wrong


@pytest.mark.parametrize(
    ("read_body", "body"),
    [
        (partial(read_chat_completion, **MADE), CHAT),
        (partial(read_completion, **MADE), COMPLETION),
        (partial(read_responses, **MADE), RESPONSE),
        (partial(read_anthropic_messages, new_id=MADE["new_id"]), MESSAGES),
        (read_count_tokens, MESSAGES),
        (read_run, RUN),
    ],
    ids=["chat", "completion", "responses", "messages", "count", "run"],
)
def test_a_body_with_a_mistake_at_any_place_is_read_or_refused(
    read_body: Callable[[Any], Any], body: Mapping[str, Any]
) -> None:
    read_body(dict(body))
    failures = []
    for place, mistake, wrong in mistaken_bodies(body):
        try:
            read_body(wrong)
        except ApiError as error:
            assert 400 <= error.status < 500, (place, mistake)
        except Exception as error:
            failures.append((place, mistake, error))
    assert not failures
