"""A client of the gateway that brings tools and runs them itself, as agents do.

The tools are those that ``mlx-tools tools call`` would have with the same options. The client
speaks chat completions (streamed), responses or messages; its loop ends with an answer.
"""

from __future__ import annotations

import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx

from mlx_tools.app import config, load_registry
from mlx_tools.app.settings import table
from mlx_tools.controller import call_tool
from mlx_tools.messages import ToolSpec
from mlx_tools.testing import ScriptedApprover
from mlx_tools.tools import Registry
from mlx_tools.tools.exports import to_anthropic, to_openai
from tests.waiting import HANG
from tests.work.doors import Outcome, list_options
from tests.work.task import Task

MOST_REQUESTS: Final = 40
"""A client gives up after so many requests for one question."""

NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""It asks loopback alone; to read the system's certificates takes longer than a task."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A call that the client is to run."""

    id: str
    name: str
    arguments: Json


@dataclass(frozen=True)
class Reply:
    """A turn of the model: its text, its calls, and whether it was cut off."""

    text: str
    calls: tuple[Call, ...] = ()
    truncated: bool = False


class Conversation(ABC):
    """A conversation in the words of one interface."""

    path: str

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.specs = specs
        self.messages: list[Json] = []

    @abstractmethod
    def ask(self, question: str) -> None:
        """Add a question."""

    @abstractmethod
    def add_results(self, results: Iterable[tuple[Call, str]]) -> None:
        """Add what came of the calls."""

    @abstractmethod
    def body(self) -> Json:
        """The request."""

    @abstractmethod
    def read(self, text: str) -> Reply:
        """Read the answer to it, and add the model's turn."""


class ChatCompletions(Conversation):
    """OpenAI's chat completions, streamed."""

    path = "/chat/completions"

    def ask(self, question: str) -> None:
        self.messages.append({"role": "user", "content": question})

    def add_results(self, results: Iterable[tuple[Call, str]]) -> None:
        for call, text in results:
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

    def body(self) -> Json:
        tools = {"tools": to_openai(self.specs)} if self.specs else {}
        return {"model": "default", "messages": self.messages, "stream": True, **tools}

    def read(self, text: str) -> Reply:
        content, finish, calls = "", "", dict[int, Json]()
        for chunk in events(text):
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                finish = choice["finish_reason"] or finish
                delta = choice["delta"]
                content += delta.get("content") or ""
                for piece in delta.get("tool_calls", ()):
                    call = calls.setdefault(piece["index"], {"id": "", "name": "", "text": ""})
                    call["id"] += piece.get("id") or ""
                    call["name"] += piece["function"].get("name") or ""
                    call["text"] += piece["function"].get("arguments") or ""
        made = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["text"]},
            }
            for call in calls.values()
        ]
        own: Json = {"role": "assistant", "content": content or None}
        self.messages.append(own | ({"tool_calls": made} if made else {}))
        read = (Call(call["id"], call["name"], json.loads(call["text"])) for call in calls.values())
        return Reply(content, tuple(read), finish == "length")


class Responses(Conversation):
    """OpenAI's responses."""

    path = "/responses"

    def ask(self, question: str) -> None:
        self.messages.append({"role": "user", "content": question})

    def add_results(self, results: Iterable[tuple[Call, str]]) -> None:
        for call, text in results:
            result = {"type": "function_call_output", "call_id": call.id, "output": text}
            self.messages.append(result)

    def body(self) -> Json:
        tools = [{"type": "function", **tool["function"]} for tool in to_openai(self.specs)]
        return {"model": "default", "input": self.messages, "tools": tools}

    def read(self, text: str) -> Reply:
        response = json.loads(text)
        self.messages += response["output"]
        content = "".join(
            part["text"]
            for item in response["output"]
            if item["type"] == "message"
            for part in item["content"]
        )
        calls = tuple(
            Call(item["call_id"], item["name"], json.loads(item["arguments"]))
            for item in response["output"]
            if item["type"] == "function_call"
        )
        return Reply(content, calls, response["status"] == "incomplete")


class Messages(Conversation):
    """Anthropic's messages."""

    path = "/messages"

    def ask(self, question: str) -> None:
        self.messages.append({"role": "user", "content": question})

    def add_results(self, results: Iterable[tuple[Call, str]]) -> None:
        parts = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in results
        ]
        self.messages.append({"role": "user", "content": parts})

    def body(self) -> Json:
        tools = to_anthropic(self.specs)
        return {"model": "default", "max_tokens": 16_384, "messages": self.messages, "tools": tools}

    def read(self, text: str) -> Reply:
        message = json.loads(text)
        self.messages.append({"role": "assistant", "content": message["content"]})
        content = "".join(part["text"] for part in message["content"] if part["type"] == "text")
        calls = tuple(
            Call(part["id"], part["name"], part["input"])
            for part in message["content"]
            if part["type"] == "tool_use"
        )
        return Reply(content, calls, message["stop_reason"] == "max_tokens")


INTERFACES: Final[Mapping[str, type[Conversation]]] = {
    "chat completions": ChatCompletions,
    "responses": Responses,
    "messages": Messages,
}


def events(text: str) -> Iterable[Json]:
    """The data of server-sent events."""
    for row in text.splitlines():
        data = row.removeprefix("data: ")
        if data not in (row, "[DONE]"):
            yield json.loads(data)


def run_in_gateway(task: Task, url: str, interface: str = "chat completions") -> Outcome:
    """Ask a gateway, run the calls that it hands out, and hand in what came of them."""
    return anyio.run(_talk, task, url, interface)


async def _talk(task: Task, url: str, interface: str) -> Outcome:
    loaded = config.load(options=_settings(list_options(task)))
    registry, policy = load_registry(loaded), loaded.policy()
    names = {row["name"] for row in registry.listing(policy) if row["permitted"]}
    names -= {"read_artifact"}  # the client keeps none
    permitted = Registry([registry.get(name) for name in sorted(names)])
    conversation = INTERFACES[interface]([*permitted.specs().values()])

    async def run(call: Call) -> str:
        asked = ScriptedApprover(True)
        limits = loaded.limits()
        done = await call_tool(
            permitted, policy, call.name, call.arguments, limits=limits, approver=asked
        )
        if done.error is not None:
            return json.dumps({"error": done.error.code, "message": done.error.message})
        assert done.result is not None
        return done.result.content or ""

    answers: list[str] = []
    try:
        async with httpx.AsyncClient(timeout=HANG, verify=NO_CERTIFICATES) as client:
            for turn in task.turns:
                conversation.ask(turn.question)
                for _ in range(MOST_REQUESTS):
                    response = await client.post(
                        f"{url}{conversation.path}", json=conversation.body()
                    )
                    assert response.status_code == 200, response.text
                    reply = conversation.read(response.text)
                    if not reply.calls:
                        break
                    conversation.add_results([(call, await run(call)) for call in reply.calls])
                answers.append(reply.text)
    finally:
        await registry.aclose()
    return Outcome(tuple(answers), "answered", reply.truncated)


def _settings(options: Sequence[str]) -> dict[str, str | list[str]]:
    """The settings that options of the command line mean."""
    keys = {flag: key for key, row in table().items() for flag in row.setting.flags}
    settings: dict[str, str | list[str]] = {}
    roots: list[str] = []
    for flag, value in zip(options[::2], options[1::2], strict=True):
        if flag == "--root":
            roots.append(value)
        else:
            settings[keys[flag]] = value
    return settings | ({"tools.roots": roots} if roots else {})
