"""Whether a server's own function calling works with its model, found out by a few small requests.

It passes where every call that is due comes, fits, and is the right one, where a result is used,
and where nothing is called that need not be. Whether a tool choice is obeyed, and whether text can
be completed too, is found out beside.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, cast

from mlx_tools.backends.interface import Backend, CompletionRequest
from mlx_tools.backends.transport import Dropped, ServerFailed
from mlx_tools.backends.verdicts import NativeVerdict
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
)
from mlx_tools.messages import Style, ToolCall, ToolSpec
from mlx_tools.paths import read_data
from mlx_tools.process import clean
from mlx_tools.protocol import Reading, ReadingRules, judge, read

FILE: Final = "prompts/native_probe.toml"
PLAIN: Final[Style] = "jsonl"
MAX_TOKENS: Final = 512
MOST_SAID: Final = 600
"""Characters that a model may say in answer to what calls for a short sentence at most."""

Message = Mapping[str, Any]


class _Failed(Exception):
    """The server's own calling does not work; says why."""


@dataclass(slots=True)
class _Trial:
    """The questions, and who is asked."""

    backend: Backend
    asked: Mapping[str, Any]
    timeout: float
    tools: dict[str, ToolSpec] = field(init=False)

    def __post_init__(self) -> None:
        self.tools = {
            one["name"]: ToolSpec(
                name=one["name"],
                description=one["description"],
                parameters=one["parameters"],
                effects=frozenset(),
            )
            for one in self.asked["tools"]
        }

    async def ask(self, messages: Sequence[Message], choice: str = "auto") -> Reading:
        """How the model's turn is read."""
        request = CompletionRequest(
            prompt=messages[-1]["content"] or " ",
            max_tokens=MAX_TOKENS,
            timeout=self.timeout,
            messages=messages,
            tools=[{"type": "function", "function": dict(one)} for one in self.asked["tools"]],
            tool_choice=choice,
        )
        text, reason = "", None
        async with aclosing(cast(Any, self.backend.complete(request))) as chunks:
            async for chunk in chunks:
                text += chunk.text
                reason = chunk.finish_reason or reason
                if _rambles(text):
                    reason = "stop"
                    break
        if reason == "tool_calls":
            raise _Failed("the server says that there are calls, and gives none")
        rules = ReadingRules(
            style=PLAIN, catalog={name: one.parameters for name, one in self.tools.items()}
        )
        return read(text, reason or "length", rules)

    def call(self, reading: Reading) -> ToolCall | None:
        """The call that the server itself read, where it fits its tool."""
        judged = judge(reading, self.tools)
        if not judged or reading.error is not None:
            return None
        if judged[0].error is not None:
            raise _Failed(f"a call does not fit its tool: {judged[0].error.message}")
        if judged[0].call.repairs:
            raise _Failed("a call came as text, which its server did not read")
        return judged[0].call

    async def check_call(self, case: Mapping[str, Any]) -> None:
        """Asks for a call, and for an answer from its result."""
        asked: list[Message] = [{"role": "user", "content": case["question"]}]
        call = self.call(await self.ask(asked))
        if call is None:
            raise _Failed("the model was to call a tool, and no call came back")
        written = json.dumps(call.arguments, ensure_ascii=False)
        said = written.lower()
        if call.name != case["name"] or not all(word in said for word in case["words"]):
            raise _Failed(f"the wrong call came back: {clean(f'{call.name} {said}', 120)}")
        if "result" not in case:
            return
        given = call.id or "call_1"
        function = {"name": call.name, "arguments": written}
        calls = [{"id": given, "type": "function", "function": function}]
        asked += [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": given, "content": case["result"]},
        ]
        reading = await self.ask(asked)
        answer = str(getattr(reading.messages[0], "content", "")) if reading.messages else ""
        if not any(word in answer.lower() for word in case["answer"]):
            raise _Failed("the model did not answer from a call's result")

    async def check_answer(self) -> None:
        """Asks for what needs no call."""
        question = self.asked["greeting"]["question"]
        if self.call(await self.ask([{"role": "user", "content": question}])) is not None:
            raise _Failed("the model calls a tool where none is of use")

    async def obeys(self) -> bool:
        """Whether a tool choice is obeyed, by what needs no call."""
        greeting = self.asked["greeting"]
        asked = [{"role": "user", "content": greeting["question"]}]
        for choice in ("required", greeting["forced"]):
            try:
                call = self.call(await self.ask(asked, choice))
            except (_Failed, BackendRefused, BackendBroken):
                return False
            if call is None or (choice != "required" and call.name != choice):
                return False
        return True


def _rambles(text: str) -> bool:
    """Whether a model says so much that no call will follow. Its thoughts do not count."""
    said = text.rpartition("</think>")[2]
    return len(said) > MOST_SAID and not said.startswith("<think>") and "tool_call" not in said


async def probe_native(
    backend: Backend, *, server: str, model: str, at: str, timeout: float = 120.0
) -> NativeVerdict:
    """Asks the model behind ``backend`` to call tools by way of its server's chat interface.

    ``server`` and ``model`` are what the verdict is kept by, ``at`` is the wall clock, ``timeout``
    is that of one request in seconds. Raises `BackendError` where the server fails, but for one
    that refuses such requests or answers nonsense: that is a verdict.
    """
    probe = _Trial(backend, tomllib.loads(read_data(FILE)), timeout)
    passed, obeys, reason = False, False, ""
    try:
        for case in probe.asked["calls"]:
            await probe.check_call(case)
        await probe.check_answer()
        passed, obeys = True, await probe.obeys()
        reason = "its server's own calls came back right"
        reason += ", and a tool choice is obeyed" if obeys else "; a tool choice is not obeyed"
    except _Failed as error:
        reason = str(error)
    except (BackendTimeout, BackendDead, BackendUnreachable, Dropped, ServerFailed):
        raise
    except (BackendRefused, BackendBroken) as error:
        reason = f"tools are not taken: {clean(error.message, 160)}"
    return NativeVerdict(
        server=server,
        model=model,
        passed=passed,
        obeys=obeys,
        completes=passed and await completes_text(backend, timeout),
        reason=reason,
        measured_at=at,
    )


async def completes_text(backend: Backend, timeout: float = 30.0) -> bool:
    """Whether ``backend`` completes text besides: a token of it is asked for."""
    if not getattr(backend, "completes", True):
        return False
    request = CompletionRequest(prompt="1, 2,", max_tokens=1, timeout=timeout)
    try:
        async with aclosing(cast(Any, backend.complete(request))) as chunks:
            async for _ in chunks:
                pass
    except (BackendRefused, BackendBroken):
        return False
    return True
