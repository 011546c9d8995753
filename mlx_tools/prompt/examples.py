"""Examples as turns of a conversation, made from the tools' own schemas.

Shown as turns rather than told, they take a small model from no valid line in ten to nine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, Final, Literal, cast

from mlx_tools.errors import UsageError
from mlx_tools.messages import ToolObservation, ToolSpec
from mlx_tools.prompt.words import STYLES, PromptWords, fill
from mlx_tools.protocol.reading import Style
from mlx_tools.protocol.styles import write_answer, write_call, write_observation
from mlx_tools.schema.sample import sample_arguments
from mlx_tools.schema.validator import fits

MAX_TOOLS: Final = 4
"""How many tools are shown."""

MAX_WHOLE: Final = 2
"""How many examples go on to the observation and the answer."""

MAX_CALLS: Final = 6
"""How many more stop at the call."""


@dataclass(frozen=True, slots=True)
class ExampleTurn:
    """One turn of a conversation. An observation is written in the user's role."""

    role: Literal["user", "assistant", "observation"]
    content: str

    @classmethod
    def from_json(cls, value: Mapping[str, str]) -> ExampleTurn:
        """A turn from a transcript's header. Raises `UsageError` for a role that is unknown."""
        role, content = value.get("role"), value.get("content")
        if role not in ("user", "assistant", "observation") or not isinstance(content, str):
            raise UsageError(f"this is no turn of a conversation: {dict(value)!r}")
        return cls(cast(Any, role), content)


def style_named(name: str) -> Style:
    """A prompt style by its name. Raises `UsageError` for one that is unknown."""
    if name not in STYLES:
        raise UsageError(f"{name!r} is no prompt style", hint=f"choose one of {', '.join(STYLES)}")
    return name


def build_examples(
    words: PromptWords, tools: Sequence[ToolSpec], style: str
) -> tuple[ExampleTurn, ...]:
    """What begins a conversation.

    First an example or two to the end: question, call, observation, answer. Then direct answers,
    and calls of each tool in turn, which stop at the call: a small model does what it saw most and
    last, so most of what it sees after a question must be a call, and observations, which it would
    write itself, stand far back. Tools with examples of their own in ``prompts/`` come first, then
    those whose schemas have the most parts; one for whose arguments no fitting values can be made
    up is left out.

    Where no tool has examples of its own, natural ones of tools that are not in the catalog come
    last: a small model copies the made-up values of what it saw last into its own call.
    """
    written = style_named(style)
    shown = list(islice(_by_worth(words, tools), MAX_TOOLS))
    if shown and not any(tool.name in words.examples.tools for tool in tools):
        return _with_foreign(words, shown, {tool.name for tool in tools}, written)
    turns: list[ExampleTurn] = []
    for calls in shown[:MAX_WHOLE]:
        turns += _whole(calls.pop(0), written)
    rest = [call for calls in zip_longest(*reversed(shown)) for call in calls if call is not None]
    direct = [
        (ExampleTurn("user", question), ExampleTurn("assistant", write_answer(answer, written)))
        for question, answer in words.examples.direct
    ]
    for number, call in enumerate(rest[:MAX_CALLS]):
        if number % len(shown) == 0 and direct:
            turns += direct.pop(0)
        turns += _asked(call, written)
    if not rest:
        turns += [turn for pair in direct[: 1 if shown else None] for turn in pair]
    return tuple(turns)


def _with_foreign(
    words: PromptWords, shown: Sequence[list[_Call]], known: set[str], style: Style
) -> tuple[ExampleTurn, ...]:
    turns = [*_whole(shown[0][0], style)]
    for calls in shown[1:MAX_WHOLE]:
        turns += _asked(calls[0], style)
    for question, answer in words.examples.direct[:1]:
        turns += (
            ExampleTurn("user", question),
            ExampleTurn("assistant", write_answer(answer, style)),
        )
    for name, example in words.examples.foreign:
        if name not in known:
            turns += _asked(_Call(example.question, name, dict(example.arguments), "", ""), style)
    return tuple(turns)


@dataclass(frozen=True, slots=True)
class _Call:
    """A question, the call that it asks for, and how it ends."""

    question: str
    name: str
    arguments: dict[str, Any]
    observation: str
    answer: str


def _by_worth(words: PromptWords, tools: Sequence[ToolSpec]) -> Iterator[list[_Call]]:
    """The calls that can be shown, a list for each tool, the most telling tool first.

    The first of each list is one that goes on to its answer.
    """
    others = []
    for tool in tools:
        if natural := _natural(words, tool):
            yield natural
        else:
            others.append(tool)
    for tool in sorted(others, key=lambda tool: -_parts(tool.parameters)):
        if generic := _generic(words, tool):
            yield generic


def _natural(words: PromptWords, tool: ToolSpec) -> list[_Call]:
    said = words.examples
    fitting = [
        example
        for example in said.tools.get(tool.name, ())
        if fits(dict(example.arguments), tool.parameters)
    ]
    fitting.sort(key=lambda example: example.observation is None)
    return [
        _Call(
            example.question,
            tool.name,
            dict(example.arguments),
            said.observation if example.observation is None else example.observation,
            example.answer or fill(said.answer, {"name": tool.name}),
        )
        for example in fitting
    ]


def _generic(words: PromptWords, tool: ToolSpec) -> list[_Call]:
    said = words.examples
    arguments = sample_arguments(tool.parameters, said.samples)
    if arguments is None:
        return []
    listed = ", ".join(
        fill(said.argument, {"name": name, "value": _spelled(value)})
        for name, value in arguments.items()
    )
    questions = said.questions if arguments else (said.question_without_arguments,)
    return [
        _Call(
            fill(question, {"name": tool.name, "arguments": listed}),
            tool.name,
            arguments,
            said.observation,
            fill(said.answer, {"name": tool.name}),
        )
        for question in questions
    ]


def _asked(call: _Call, style: Style) -> tuple[ExampleTurn, ExampleTurn]:
    written = write_call(call.name, call.arguments, style=style)
    return ExampleTurn("user", call.question), ExampleTurn("assistant", written)


def _whole(call: _Call, style: Style) -> tuple[ExampleTurn, ...]:
    observed = write_observation(ToolObservation(call.name, call.observation), style)
    return (
        *_asked(call, style),
        ExampleTurn("observation", observed),
        ExampleTurn("assistant", write_answer(call.answer, style)),
    )


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parts(schema: Any) -> int:
    """How many parts a schema has, up to a bound."""
    count, waiting = 0, [schema]
    while waiting and count < 1000:
        item = waiting.pop()
        count += 1
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return count
