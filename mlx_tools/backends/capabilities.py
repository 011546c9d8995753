"""What a completions server can do, found out by asking it in one or two short requests each.

None of them relies on the server's name or version: what answers as wished has the ability.
"""

from __future__ import annotations

import json
import secrets
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, cast, get_args

from mlx_tools.backends.adapters import complete_one
from mlx_tools.backends.chat_wire import chat_body
from mlx_tools.backends.completions import CompletionsBackend
from mlx_tools.backends.interface import Backend, CompletionRequest, GrammarText
from mlx_tools.backends.transport import ConnectionDropped, ServerFailed, json_object
from mlx_tools.backends.verdicts import NativeVerdict
from mlx_tools.backends.wire import GRAMMAR_HINT, GrammarOption, grammar_fields, read_usage
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    UsageError,
    attribute_of,
)
from mlx_tools.messages import Style, ToolCall, ToolSpec, replace
from mlx_tools.paths import read_data
from mlx_tools.process import clean
from mlx_tools.prompt import NAMED_FORMATS, ChatFormat
from mlx_tools.protocol import Reading, ReadingRules, judge, read


def _request(prompt: str, max_tokens: int = 1) -> CompletionRequest:
    """A short one, of which the server's cache holds nothing."""
    prompt = f"{secrets.token_hex(4)} {prompt}"
    return CompletionRequest(prompt=prompt, max_tokens=max_tokens, timeout=30.0)


async def single_tokens(
    backend: CompletionsBackend, tokens: Sequence[str]
) -> dict[str, bool] | None:
    """Which of ``tokens`` the model's tokenizer reads as one token; None where it cannot be told.

    Three of them in a row must make the prompt three tokens longer.
    """
    start = _request("x").prompt
    lengths = []
    for more in ("", *tokens):
        request = CompletionRequest(prompt=start + more * 3, max_tokens=1, timeout=30.0)
        lengths.append((await backend.ask_whole(request)).usage.prompt_tokens)
        if lengths[-1] is None:
            return None
    return {t: (n or 0) - (lengths[0] or 0) == 3 for t, n in zip(tokens, lengths[1:], strict=True)}


async def has_logprobs(backend: CompletionsBackend) -> bool:
    """Whether the likeliest next tokens come with an answer."""
    request = replace(_request("1, 2,"), top_logprobs=2)
    async with aclosing(backend.complete(request)) as chunks:
        return any([chunk.scores async for chunk in chunks])


async def honours_stop(backend: CompletionsBackend) -> Literal["yes", "edits", "no"] | None:
    """What ``stop`` does: ``yes``, or it edits the text and runs on, or nothing. None: no telling.

    The stop text is a piece from the middle of what the model writes without it.
    """
    request = _request("\nOne, two, three, four, five, six, seven,", 16)
    free = (await backend.ask_whole(request)).chunk.text
    words = [word for word in free.split() if free.count(word) == 1]
    if len(words) < 3:
        return None
    stop = words[len(words) // 2]
    held = (await backend.ask_whole(request, stop=[stop])).chunk.text
    if held.rstrip() == free[: free.index(stop)].rstrip():
        return "yes"
    return "no" if held == free else "edits"


async def reports_cache(backend: CompletionsBackend) -> bool:
    """Whether usage says how much of the prompt was cached."""
    request = _request("one two three four five six seven eight")
    await backend.ask_whole(request)  # the same again: text appended could be what it wrote
    return (await backend.ask_whole(request)).usage.cached_tokens is not None


async def obeys_grammar(backend: CompletionsBackend) -> GrammarOption | None:
    """Which option holds the model to a grammar: llama.cpp's, vLLM's, or None. The backend knows it
    from then on. Raises `BackendError` where the server cannot be asked."""
    request = _request("The sky is", 4)
    only = GrammarText('root ::= "zq7"', 'start: "zq7"')
    option: GrammarOption
    for option in get_args(GrammarOption):
        try:
            answer = await backend.ask_whole(request, **grammar_fields(option, only))
        except (BackendRefused, BackendBroken):
            continue
        if answer.chunk.text.strip() == "zq7":
            backend.grammar_option = option
            return option
    return None


async def find_grammar_option(backend: CompletionsBackend) -> None:
    """As `obeys_grammar`.

    Raises:
        UsageError: the server takes none.
        BackendError: the server cannot be asked.
    """
    if await obeys_grammar(backend) is None:
        said = f"the server at {backend.address} does not take grammars"
        raise UsageError(said, hint=GRAMMAR_HINT)


# --- the chat format of a server that does not say its model ----------------------------------

PROBE_TIMEOUT: Final = 20.0
_SYSTEM: Final = "Be brief."
_QUESTION: Final = "Is water wet?"


async def is_mlx_lm(backend: CompletionsBackend) -> bool:
    """Return whether this is mlx-lm's server."""
    return (await backend.health()).is_mlx_lm


async def hides_its_model(backend: CompletionsBackend) -> bool:
    """Whether this is mlx-lm's server without a Hugging Face cache: it lists its models with an
    empty answer, and so says nothing of the one it serves."""
    try:
        status, headers, body = await backend.get("/v1/models", 5.0)
    except Exception:  # whatever it is, it is not that
        return False
    return status == 200 and not body and headers.get("server", "").startswith("BaseHTTP/")


async def probe_chat_format(
    backend: CompletionsBackend, names: Iterable[str] = tuple(NAMED_FORMATS)
) -> ChatFormat | None:
    """The named format that the server's own chat endpoint writes; None if none of ``names`` is.

    A short conversation is sent to that endpoint, then, as plain text, in each named format. The
    one that comes to the same tokens is the model's; the server's count of cached tokens says so,
    since the second prompt is then the first.
    """
    for system in (_SYSTEM, ""):
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": _QUESTION})
        expected = await chat_tokens(backend, messages)
        if expected is None:
            continue
        for name in names:
            chat_format = NAMED_FORMATS[name]
            if name != "plain" and await _is_same(backend, chat_format, system, expected):
                return chat_format
    return None


async def chat_tokens(
    backend: CompletionsBackend, messages: Sequence[Mapping[str, Any]]
) -> int | None:
    """Return how many tokens the server's own template makes of messages; None if unknown."""
    request = CompletionRequest(prompt="-", max_tokens=1, messages=messages)
    sent = json.dumps(chat_body(request, model=backend.model, stream=False)).encode()
    try:
        status, _, answer = await backend.get("/v1/chat/completions", PROBE_TIMEOUT, sent)
    except Exception:  # a probe: what does not answer does not say
        return None
    usage = read_usage(json_object(answer).get("usage"))
    return usage.prompt_tokens if usage is not None and status == 200 else None


async def _is_same(
    backend: CompletionsBackend, chat_format: ChatFormat, system: str, expected: int
) -> bool:
    opened, closed = chat_format.user
    asked = f"{opened}{_QUESTION}{closed}"
    if system and chat_format.system is None:
        before, after = chat_format.system_in_user
        asked = f"{opened}{before}{system}{after}{_QUESTION}{closed}"
    elif system and chat_format.system is not None:
        asked = f"{chat_format.system[0]}{system}{chat_format.system[1]}{asked}"
    prompt = f"{chat_format.bos}{asked}{chat_format.assistant[0]}"
    request = CompletionRequest(prompt=prompt, max_tokens=1, timeout=PROBE_TIMEOUT)
    try:
        usage = (await backend.ask_whole(request)).usage
    except BackendError:
        return False
    cached = usage.cached_tokens
    return usage.prompt_tokens == expected and (cached is None or cached >= expected - 1)


# --- function calling -----------------------------------------------------------------------------

# Whether a server's own function calling works with its model, found out by a few small requests.
#
# It passes where every call that is due comes, fits, and is the right one, where a result is
# used, and where nothing is called that need not be. Whether a tool choice is obeyed, and whether
# text can be completed too, is found out beside.


FILE: Final = "prompts/native_probe.toml"
PLAIN: Final[Style] = "jsonl"
MAX_TOKENS: Final = 512
MOST_SAID: Final = 600
"""Characters that a model may say in answer to what calls for a short sentence at most."""

Message = Mapping[str, Any]


class _Failed(Exception):
    """The server's own calling does not work; says why."""


class _NativeTrial:
    """The questions, and who is asked."""

    def __init__(self, backend: Backend, timeout: float) -> None:
        self.cases: Mapping[str, Any] = tomllib.loads(read_data(FILE))
        self._backend, self._timeout = backend, timeout
        self._tools = {
            one["name"]: ToolSpec(**one, effects=frozenset()) for one in self.cases["tools"]
        }

    async def ask(self, messages: Sequence[Message], choice: str = "auto") -> Reading:
        """How the model's turn is read."""
        request = CompletionRequest(
            prompt=messages[-1]["content"] or " ",
            max_tokens=MAX_TOKENS,
            timeout=self._timeout,
            messages=messages,
            tools=[{"type": "function", "function": dict(one)} for one in self.cases["tools"]],
            tool_choice=choice,
        )
        text, reason = "", None
        async with aclosing(cast(Any, self._backend.complete(request))) as chunks:
            async for chunk in chunks:
                text += chunk.text
                reason = chunk.finish_reason or reason
                said = text.rpartition("</think>")[2]  # a thought may be as long as it likes
                rambles = len(said) > MOST_SAID and not said.startswith("<think>")
                if rambles and "tool_call" not in said:  # no call will follow
                    reason = "stop"
                    break
        if reason == "tool_calls":
            raise _Failed("the server says that there are calls, and gives none")
        rules = ReadingRules(
            style=PLAIN, catalog={name: one.parameters for name, one in self._tools.items()}
        )
        return read(text, reason or "length", rules)

    def call(self, reading: Reading) -> ToolCall | None:
        """The call that the server itself read, where it fits its tool."""
        judged = judge(reading, self._tools)
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
        question = self.cases["greeting"]["question"]
        if self.call(await self.ask([{"role": "user", "content": question}])) is not None:
            raise _Failed("the model calls a tool where none is of use")

    async def obeys(self) -> bool:
        """Whether a tool choice is obeyed, by what needs no call."""
        greeting = self.cases["greeting"]
        asked = [{"role": "user", "content": greeting["question"]}]
        for choice in ("required", greeting["forced"]):
            try:
                call = self.call(await self.ask(asked, choice))
            except (_Failed, BackendRefused, BackendBroken):
                return False
            if call is None or (choice != "required" and call.name != choice):
                return False
        return True


async def probe_native(
    backend: Backend, *, server: str, model: str, measured_at: str, timeout: float = 120.0
) -> NativeVerdict:
    """Asks the model behind ``backend`` to call tools by way of its server's chat interface.

    ``server`` and ``model`` are what the verdict is kept by, ``measured_at`` is the wall clock,
    ``timeout`` is that of one request in seconds. Raises `BackendError` where the server fails, but
    for one that refuses such requests or answers nonsense: that is a verdict.
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
    except _Failed as error:
        reason = str(error)
    except (BackendTimeout, BackendDead, BackendUnreachable, ConnectionDropped, ServerFailed):
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
        measured_at=measured_at,
    )


async def completes_text(backend: Backend, timeout: float = 30.0) -> bool:
    """Whether ``backend`` completes text besides: a token of it is asked for."""
    if not attribute_of(backend, "completes", True):
        return False
    try:
        await complete_one(backend, timeout)
    except (BackendRefused, BackendBroken):
        return False
    return True
