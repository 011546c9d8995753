"""Tests of the abilities of a completions server, by short requests.

They do not use the server's name or version, only its answers.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, cast

from mlx_tools.backends.adapters import complete_one
from mlx_tools.backends.chat_wire import chat_body
from mlx_tools.backends.completions import CompletionsBackend
from mlx_tools.backends.grammar_option import short_request
from mlx_tools.backends.interface import Backend, CompletionRequest
from mlx_tools.backends.server_errors import ConnectionDropped, ServerFailed, json_object
from mlx_tools.backends.verdicts import NativeVerdict
from mlx_tools.backends.wire import read_usage
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    read_attribute,
)
from mlx_tools.messages import Style, ToolCall, ToolSpec, replace
from mlx_tools.paths import read_data
from mlx_tools.process import clean
from mlx_tools.prompt import NAMED_FORMATS, ChatFormat
from mlx_tools.protocol import Reading, ReadingRules, judge, read

_log = logging.getLogger(__name__)


async def find_single_tokens(
    backend: CompletionsBackend, tokens: Sequence[str]
) -> dict[str, bool] | None:
    """Return which of ``tokens`` the model's tokenizer reads as one token.

    It is None if the server does not count tokens.
    """
    start = short_request("x").prompt
    lengths = []
    for token in ("", *tokens):
        # Three in a row must add three tokens. With only one, its first character could be merged
        # with the text before it.
        request = CompletionRequest(prompt=start + token * 3, max_tokens=1, timeout=30.0)
        lengths.append((await backend.ask_whole(request)).usage.prompt_tokens)
        if lengths[-1] is None:
            return None
    return {t: (n or 0) - (lengths[0] or 0) == 3 for t, n in zip(tokens, lengths[1:], strict=True)}


async def has_logprobs(backend: CompletionsBackend) -> bool:
    """Return True if answers come with the likeliest next tokens."""
    request = replace(short_request("1, 2,"), top_logprobs=2)
    async with aclosing(backend.complete(request)) as chunks:
        return any([chunk.scores async for chunk in chunks])


async def honours_stop(backend: CompletionsBackend) -> Literal["yes", "edits", "no"] | None:
    """Return the effect of ``stop``, None if it cannot be found out.

    ``yes``: it ends the text. ``edits``: it is only removed from the text. ``no``: nothing. The
    stop text is a word from the middle of the text that the model writes without it.
    """
    request = short_request("\nOne, two, three, four, five, six, seven,", 16)
    full_text = (await backend.ask_whole(request)).chunk.text
    # A word that comes twice could end the text earlier than expected.
    words = [word for word in full_text.split() if full_text.count(word) == 1]
    if len(words) < 3:
        return None
    stop = words[len(words) // 2]
    stopped_text = (await backend.ask_whole(request, stop=[stop])).chunk.text
    if stopped_text.rstrip() == full_text[: full_text.index(stop)].rstrip():
        return "yes"
    return "no" if stopped_text == full_text else "edits"


async def reports_cache(backend: CompletionsBackend) -> bool:
    """Return True if the usage has the number of cached tokens."""
    request = short_request("one two three four five six seven eight")
    # The same request twice: a longer one could match a cached completion instead.
    await backend.ask_whole(request)
    return (await backend.ask_whole(request)).usage.cached_tokens is not None


# --- the chat format of a server that does not name its model ---------------------------------

PROBE_TIMEOUT: Final = 20.0
"""Seconds for one request. A choice: a server may load its model at the first request."""
_SYSTEM: Final = "Be brief."
_QUESTION: Final = "Is water wet?"


async def is_mlx_lm(backend: CompletionsBackend) -> bool:
    """Return True for mlx-lm's server."""
    return (await backend.health()).is_mlx_lm


async def hides_its_model(backend: CompletionsBackend) -> bool:
    """Return True if this is mlx-lm's server without a Hugging Face cache.

    Its list of models is then an empty answer, so it does not name the model that it serves.
    """
    try:
        status, headers, body = await backend.get("/v1/models", 5.0)
    except Exception as error:  # any other server, or none
        _log.debug("%s does not list its models: %s", backend.address, type(error).__name__)
        return False
    return status == 200 and not body and headers.get("server", "").startswith("BaseHTTP/")


async def probe_chat_format(
    backend: CompletionsBackend, names: Iterable[str] = tuple(NAMED_FORMATS)
) -> ChatFormat | None:
    """Return the named format of the server's own chat endpoint, None if unknown.

    A short conversation is sent to that endpoint, then as a prompt in each named format. If a
    format is the right one, the prompts have the same tokens. The server's counts of tokens and of
    cached tokens show that.
    """
    for system in (_SYSTEM, ""):
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": _QUESTION})
        expected = await count_chat_tokens(backend, messages)
        if expected is None:
            continue
        for name in names:
            chat_format = NAMED_FORMATS[name]
            if name != "plain" and await _is_same(backend, chat_format, system, expected):
                return chat_format
    return None


async def count_chat_tokens(
    backend: CompletionsBackend, messages: Sequence[Mapping[str, Any]]
) -> int | None:
    """Return the number of tokens of messages in the server's own chat template.

    It is None if unknown.
    """
    request = CompletionRequest(prompt="-", max_tokens=1, messages=messages)
    body = json.dumps(chat_body(request, model=backend.model, stream=False)).encode()
    try:
        status, _, answer = await backend.get("/v1/chat/completions", PROBE_TIMEOUT, body)
    except Exception as error:  # without an answer the number is unknown
        _log.debug("%s does not count tokens: %s", backend.address, type(error).__name__)
        return None
    usage = read_usage(json_object(answer).get("usage"))
    return usage.prompt_tokens if usage is not None and status == 200 else None


async def _is_same(
    backend: CompletionsBackend, chat_format: ChatFormat, system: str, expected: int
) -> bool:
    turn_start, turn_end = chat_format.user
    text = f"{turn_start}{_QUESTION}{turn_end}"
    if system and chat_format.system is None:
        system_start, system_end = chat_format.system_in_user
        text = f"{turn_start}{system_start}{system}{system_end}{_QUESTION}{turn_end}"
    elif system and chat_format.system is not None:
        text = f"{chat_format.system[0]}{system}{chat_format.system[1]}{text}"
    prompt = f"{chat_format.bos}{text}{chat_format.assistant[0]}"
    request = CompletionRequest(prompt=prompt, max_tokens=1, timeout=PROBE_TIMEOUT)
    try:
        usage = (await backend.ask_whole(request)).usage
    except BackendError:
        return False
    cached = usage.cached_tokens
    return usage.prompt_tokens == expected and (cached is None or cached >= expected - 1)


# --- function calling -----------------------------------------------------------------------------

FILE: Final = "prompts/native_probe.toml"
PLAIN: Final[Style] = "jsonl"
MAX_TOKENS: Final = 512
"""The limit of an answer in tokens. A choice: the calls are short, and thoughts need some room."""
MAX_PROSE: Final = 600
"""The limit in characters of an answer that should be one short sentence.

A choice: a model that writes more will not make a call, so the rest need not be waited for.
"""

Message = Mapping[str, Any]


class _TrialFailure(Exception):
    """The server's own function calling does not work; the message says why."""


class _NativeTrial:
    """A trial of a server's function calling: the questions, and the backend."""

    def __init__(self, backend: Backend, timeout: float) -> None:
        self.cases: Mapping[str, Any] = tomllib.loads(read_data(FILE))
        self._backend, self._timeout = backend, timeout
        self._tools = {
            row["name"]: ToolSpec(**row, effects=frozenset()) for row in self.cases["tools"]
        }

    async def ask(self, messages: Sequence[Message], choice: str = "auto") -> Reading:
        """Ask the model. Return the reading of its turn."""
        request = CompletionRequest(
            prompt=messages[-1]["content"] or " ",
            max_tokens=MAX_TOKENS,
            timeout=self._timeout,
            messages=messages,
            tools=[{"type": "function", "function": dict(row)} for row in self.cases["tools"]],
            tool_choice=choice,
        )
        text, reason = "", None
        async with aclosing(cast(Any, self._backend.complete(request))) as chunks:
            async for chunk in chunks:
                text += chunk.text
                reason = chunk.finish_reason or reason
                prose = text.rpartition("</think>")[2]  # a thought may have any length
                is_rambling = len(prose) > MAX_PROSE and not prose.startswith("<think>")
                if is_rambling and "tool_call" not in prose:  # no call will follow
                    reason = "stop"
                    break
        if reason == "tool_calls":
            raise _TrialFailure("the server says that there are calls, and gives none")
        rules = ReadingRules(
            style=PLAIN, catalog={name: row.parameters for name, row in self._tools.items()}
        )
        return read(text, reason or "length", rules)

    def call(self, reading: Reading) -> ToolCall | None:
        """Return the call that the server parsed, None if there is none.

        Raises:
            _TrialFailure: the call does not fit its tool, or came as text.
        """
        judged = judge(reading, self._tools)
        if not judged or reading.error is not None:
            return None
        if judged[0].error is not None:
            raise _TrialFailure(f"a call does not fit its tool: {judged[0].error.message}")
        if judged[0].call.repairs:
            raise _TrialFailure("a call came as text, which its server did not read")
        return judged[0].call

    async def check_call(self, case: Mapping[str, Any]) -> None:
        """Test a call, and an answer from its result.

        Raises:
            _TrialFailure: the call or the answer is wrong.
        """
        messages: list[Message] = [{"role": "user", "content": case["question"]}]
        call = self.call(await self.ask(messages))
        if call is None:
            raise _TrialFailure("the model was to call a tool, and no call came back")
        arguments_text = json.dumps(call.arguments, ensure_ascii=False)
        lowered = arguments_text.lower()
        if call.name != case["name"] or not all(word in lowered for word in case["words"]):
            raise _TrialFailure(f"the wrong call came back: {clean(f'{call.name} {lowered}', 120)}")
        if "result" not in case:
            return
        call_id = call.id or "call_1"
        function = {"name": call.name, "arguments": arguments_text}
        calls = [{"id": call_id, "type": "function", "function": function}]
        messages += [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": call_id, "content": case["result"]},
        ]
        reading = await self.ask(messages)
        answer = str(getattr(reading.messages[0], "content", "")) if reading.messages else ""
        if not any(word in answer.lower() for word in case["answer"]):
            raise _TrialFailure("the model did not answer from a call's result")

    async def check_answer(self) -> None:
        """Test a question that needs no call.

        Raises:
            _TrialFailure: the model calls a tool.
        """
        question = self.cases["greeting"]["question"]
        if self.call(await self.ask([{"role": "user", "content": question}])) is not None:
            raise _TrialFailure("the model calls a tool where none is of use")

    async def obeys(self) -> bool:
        """Return True if the server obeys a tool choice, even if no call is needed."""
        greeting = self.cases["greeting"]
        messages = [{"role": "user", "content": greeting["question"]}]
        for choice in ("required", greeting["forced"]):
            try:
                call = self.call(await self.ask(messages, choice))
            except (_TrialFailure, BackendRefused, BackendBroken):
                return False
            if call is None or (choice != "required" and call.name != choice):
                return False
        return True


async def probe_native(
    backend: Backend, *, server: str, model: str, measured_at: str, timeout: float = 120.0
) -> NativeVerdict:
    """Test the function calling of a model through its server's chat interface.

    It passes if every expected call comes and is right, if the model answers from a result, and if
    it makes no needless call. The verdict also says whether the server obeys a tool choice, and
    whether it completes text.

    Args:
        backend: the model's backend.
        server: the server's name in the verdict.
        model: the model's identity in the verdict.
        measured_at: the time by the wall clock.
        timeout: seconds for one request.

    Raises:
        BackendError: the server fails. If it only refuses such requests, or its answers cannot be
            read, that is a verdict.
    """
    probe = _NativeTrial(backend, timeout)
    passed, obeys, reason = False, False, ""
    try:
        for case in probe.cases["calls"]:
            await probe.check_call(case)
        await probe.check_answer()
        passed, obeys = True, await probe.obeys()
        reason = "its server's own calls came back right"
        reason += ", and a tool choice is obeyed" if obeys else "; a tool choice is not obeyed"
    except _TrialFailure as error:
        reason = str(error)
    # The server itself failed, which shows nothing about function calling.
    except (BackendTimeout, BackendDead, BackendUnreachable, ConnectionDropped, ServerFailed):
        raise
    except (BackendRefused, BackendBroken) as error:
        reason = f"its server does not take tools: {clean(error.message, 160)}"
    return NativeVerdict(
        server=server,
        model=model,
        passed=passed,
        obeys=obeys,
        completes=passed and await completes_text(backend, timeout),
        reason=reason,
        measured_at=measured_at,
    )


async def completes_text(backend: Backend, timeout: float = 30.0) -> bool:
    """Return True if ``backend`` also completes text, by a request for one token."""
    if not read_attribute(backend, "completes", True):
        return False
    try:
        await complete_one(backend, timeout)
    except (BackendRefused, BackendBroken):
        return False
    return True
