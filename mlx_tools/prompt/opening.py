"""The beginning of a session: system prompt and examples.

The system prompt is persona, response mode, protocol, catalog and project context, in this order.
It has nothing that changes from run to run, so a server's cache can keep it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mlx_tools.errors import ConfigError
from mlx_tools.messages import ToolObservation, ToolSpec, replace
from mlx_tools.prompt.catalog import build_catalog, count_tokens, signature, whole_signature
from mlx_tools.prompt.chat_format import ToolFormat
from mlx_tools.prompt.known_tools import RankTools, ToolRanking
from mlx_tools.prompt.neutralise import Composer, Neutraliser
from mlx_tools.prompt.result_tool import ResultTool
from mlx_tools.prompt.words import Example, PromptWords, parts
from mlx_tools.protocol import (
    Style,
    write_answer,
    write_call,
    write_observation,
)
from mlx_tools.schema import fits, sample_arguments
from mlx_tools.transcript import Header

CATALOG_BUDGET: Final = 1500
"""Tokens that the catalog may take by default."""

Message = Mapping[str, str]
"""A turn of an example: ``{"role": role, "content": text}``. The role is ``user``, ``assistant`` or
``observation``, which is written in the user's."""

RESULT_NAME: Final = "final_result"


def result_tool(schema: Mapping[str, Any], names: Container[str], words: PromptWords) -> ResultTool:
    """Return the tool whose call is an answer that fits ``schema``.

    Its name is none of ``names``.

    Raises:
        ToolDefinitionError: the schema cannot be used.
    """
    name = RESULT_NAME
    while name in names:
        name += "_"
    said, own = words.texts["result.description"], schema.get("description")
    return ResultTool.from_schema(schema, name, f"{said} {own}" if isinstance(own, str) else said)


class Frame(Struct, frozen=True, kw_only=True):
    """The parts that all openings of a program share.

    ``tools`` may be called; they are in order, without ``search``, the tool that searches them
    (None if it may not be called). ``persona`` replaces the one in ``prompts/``; without a
    ``response_mode`` nothing is added to it. ``catalog_budget`` is in tokens. The style ``native``
    uses ``native``. ``output_schema`` is the schema of answers, None for text. ``weak_model``: the
    model needs many examples. ``whole_descriptions``: the catalog has all descriptions of tools and
    parameters.
    """

    words: PromptWords
    tools: Sequence[ToolSpec]
    neutraliser: Neutraliser
    style: Style = "jsonl"
    native: ToolFormat | None = None
    response_mode: str = "answer-first"
    project_context: str = ""
    persona: str | None = None
    catalog_budget: int = CATALOG_BUDGET
    output_schema: Mapping[str, Any] | None = None
    weak_model: bool = False
    whole_descriptions: bool = False

    @property
    def result(self) -> ToolSpec | None:
        """The tool whose call is the answer."""
        if self.output_schema is None:
            return None
        names = [tool.name for tool in self.tools]
        return result_tool(self.output_schema, names, self.words).spec


class Opening(Struct, frozen=True):
    """A session's beginning, as its header holds it.

    ``shortlist`` names the tools that are shown, empty if all are; ``request`` is the question by
    which they were chosen.
    """

    system: str
    examples: tuple[Message, ...]
    shortlist: tuple[str, ...] = ()
    request: str = ""


class _FrameParts(NamedTuple):
    """The parts that are made once for a frame."""

    whole: SystemPrompt
    examples: tuple[Message, ...]
    ranking: ToolRanking
    tools: tuple[Mapping[str, Any], ...]


_MAX_CACHED: Final = 64
_parts_cache: dict[Any, _FrameParts] = {}
"""A cache by all inputs: the sessions of a program mostly begin alike."""


class Openings:
    """A maker of openings; equal frames share what does not depend on the questions.

    ``find_search`` returns the tool that searches the tools, None if there is none that may be
    called; it is called only if not all tools fit into the catalog. ``rank_tools`` then ranks those
    that are shown. ``tools`` describes those that
    the model can know, as JSON values, and ``catalog_hash`` is a digest of that.
    """

    def __init__(
        self, frame: Frame, find_search: Callable[[], ToolSpec | None], rank_tools: RankTools
    ) -> None:
        self.frame = frame
        self.search: ToolSpec | None = None
        described = json.dumps([spec.to_json() for spec in frame.tools])
        key = (
            *(described, frame.words, frame.neutraliser.control_tokens, frame.style),
            *(frame.native, frame.response_mode, frame.project_context, frame.persona),
            *(
                frame.catalog_budget,
                json.dumps(frame.output_schema),
                frame.weak_model,
                frame.whole_descriptions,
            ),
        )
        if (kept := _parts_cache.get(key)) is None:
            whole = build_system(frame)
            examples = () if whole.hidden_names else _examples(frame, frame.tools)
            if len(_parts_cache) >= _MAX_CACHED:
                _parts_cache.clear()
            kept = _parts_cache[key] = _FrameParts(
                whole, examples, rank_tools(frame.tools), tuple(json.loads(described))
            )
        self._parts = kept
        self.tools = kept.tools
        if kept.whole.hidden_names and (search := find_search()) is not None:
            self.search = search
            self.tools += (json.loads(json.dumps(search.to_json())),)

    @property
    def catalog_hash(self) -> str:
        """A digest of the tools."""
        catalog = json.dumps(self.tools, sort_keys=True)
        return hashlib.sha256(catalog.encode()).hexdigest()

    def opening(self, question: str, *, first: Sequence[str] = ()) -> Opening:
        """Return the opening of a session that begins with ``question``.

        A shortlist is chosen by that question, and the later ones bring what it lacks. So a
        conversation that is sent again with each question, as stateless clients do, begins with the
        same bytes each time. ``first`` are tools that stand in the shortlist in any case.
        """
        whole, shown, ranking, _ = self._parts
        if not whole.hidden_names:
            return Opening(whole.text, shown)
        best = partial(ranking.shortlist, question, first)
        system = build_system(self.frame, best=best, search=self.search)
        by_name = {tool.name: tool for tool in self.frame.tools}
        shown = _examples(self.frame, [by_name[n] for n in system.shown_names if n in by_name])
        return Opening(system.text, shown, system.shown_names, question)


def _examples(frame: Frame, tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
    if frame.style == "native":  # the model was trained on its form
        return ()
    return build_examples(
        frame.words, tools, frame.style, frame.result, weak_model=frame.weak_model
    )


# --- the system prompt --------------------------------------------------------------------------


class SystemPrompt(Struct, frozen=True):
    """The text, and the names of tools that its catalog shows and hides."""

    text: str
    shown_names: tuple[str, ...]
    hidden_names: tuple[str, ...]


def build_system(
    frame: Frame,
    *,
    best: Callable[[], Sequence[ToolSpec]] | None = None,
    search: ToolSpec | None = None,
) -> SystemPrompt:
    """Return the system prompt of a session.

    What is not the project's own text (tools, project context, a persona) is neutralised. In style
    ``native`` the text is all that stands before the first question: what the template itself
    writes, by ``frame.native``, with the system text and the tools in it.

    Args:
        frame: what the session is made of.
        best: past the catalog's budget, the tools of a shortlist (`build_catalog`).
        search: past the catalog's budget, the tool that finds the others.

    Raises:
        ConfigError: the response mode is unknown.
    """
    words, neutraliser = frame.words, frame.neutraliser
    native = frame.native if frame.style == "native" else None
    modes = {"": "", **words.response_modes}
    if frame.response_mode not in modes:
        raise ConfigError(
            f"{frame.response_mode!r} is no response mode",
            hint=f"choose one of {', '.join(sorted(words.response_modes))}",
        )

    def cost(line: str) -> int:
        return count_tokens(neutraliser.plain(line))  # as it stands in the prompt

    forms: tuple[Callable[[ToolSpec], str], ...] = ()
    if native is not None:
        forms = (native.render_tool, partial(native.render_tool, brief=True))
    elif frame.whole_descriptions:
        forms = (whole_signature,)
    catalog = build_catalog(
        *(frame.tools, frame.catalog_budget, cost), best=best, search=search, write=forms
    )
    lines, result = [*catalog.lines], frame.result
    if result is not None:
        lines.append(signature(result) if native is None else native.render_tool(result))
    persona = words.persona if frame.persona is None else "{{persona}}"
    sections = [("", persona), (" ", modes[frame.response_mode])]
    if native is None:
        sections.append(("\n\n", words.protocols[frame.style]))
    if lines and native is None:
        sections.append(("\n\n", words.texts["catalog.tools"]))
    if catalog.hidden_names:
        more = "catalog.search" if catalog.search else "catalog.hidden"
        sections.append(("\n", words.texts[more]))
    if not lines:
        sections.append(("\n\n", words.texts["catalog.none"]))
    if result is not None:
        sections.append(("\n\n", words.text("result.told", name=result.name)))
    if frame.project_context.strip():
        sections.append(("\n\n", words.texts["project_context"]))
    values = {
        "persona": (frame.persona or "").strip(),
        "tools": "\n".join(lines),
        "count": str(len(catalog.hidden_names)),
        "name": catalog.shown_names[-1] if catalog.shown_names else "",
        "context": frame.project_context.strip(),
    }
    written = _compose(sections, values, neutraliser)
    if native is not None:
        written = native.begin(written, lines, neutraliser)
    return SystemPrompt(written, catalog.shown_names, catalog.hidden_names)


def plain_system(
    header: Header, words: PromptWords, neutraliser: Neutraliser, result: str = ""
) -> str:
    """Return the system text for a server that tells its model about the tools itself.

    It has nothing of a protocol or a catalog. ``result`` is the tool whose call is the answer,
    empty if there is none.
    """
    sections = [
        ("", words.persona if header.persona is None else "{{persona}}"),
        (" ", words.response_modes.get(header.response_mode, "")),
        ("\n\n", words.text("result.told", name=result) if result else ""),
        ("\n\n", words.texts["project_context"] if header.project_context.strip() else ""),
    ]
    values = {"persona": (header.persona or "").strip(), "context": header.project_context.strip()}
    return _compose(sections, values, neutraliser).strip()


def _compose(
    sections: Sequence[tuple[str, str]], values: Mapping[str, str], neutraliser: Neutraliser
) -> str:
    """Join the sections that are not empty, each after its gap.

    The texts in their placeholders may come from anybody.
    """
    text = Composer(neutraliser)
    for number, (gap, section) in enumerate(one for one in sections if one[1]):
        text.host(gap if number else "")
        for part, named in parts(section.strip("\n")):
            if named:
                text.untrusted(neutraliser.plain(values[part]))
            else:
                text.host(part)
    return str(text)


# --- examples, made from the tools' own schemas -------------------------------------------------
# Examples are shown as turns of a conversation. A strong model needs to see the form once. A weak
# model goes from no valid line to nine of ten with many examples, which are half of its first
# prompt.

MAX_TOOLS: Final = 4
"""Tools that are shown in examples, at most."""

MAX_WHOLE: Final = 2
"""Examples that go on to the observation and the answer, at most."""

MAX_CALLS: Final = 6
"""Further examples that stop at the call, at most."""


class _ExampleTurns:
    """Examples, written as turns in a style.

    ``results`` are the calls that stand in place of every answer, where an answer is a call: one
    with made-up values, or none if no values fit the schema.
    """

    def __init__(self, words: PromptWords, style: Style, result: ToolSpec | None) -> None:
        self.turns: list[Message] = []
        self._style = style
        self._results = None if result is None else _generic(words, result)[:1]

    def _add(self, role: str, content: str) -> None:
        self.turns.append({"role": role, "content": content})

    def add_call(self, call: Example) -> None:
        """Add a question and the call that it needs."""
        self._add("user", call.question)
        self._add("assistant", write_call(call.name, call.arguments, style=self._style))

    def add_answers(self, examples: Sequence[Example]) -> None:
        """Add questions that are answered at once."""
        if self._results is None:
            for example in examples:
                self._add("user", example.question)
                self._add("assistant", write_answer(example.answer, self._style))
        elif examples:
            for call in self._results:
                self.add_call(call)

    def add_whole(self, call: Example) -> None:
        """Add a question, its call, the observation and the answer."""
        self.add_call(call)
        answers = [write_answer(call.answer, self._style)]
        if self._results is not None:
            answers = [write_call(r.name, r.arguments, style=self._style) for r in self._results]
        observation = ToolObservation(call.name, call.observation)
        for answer in answers:
            self._add("observation", write_observation(observation, self._style))
            self._add("assistant", answer)


def build_examples(
    words: PromptWords,
    tools: Sequence[ToolSpec],
    style: Style,
    result: ToolSpec | None = None,
    *,
    weak_model: bool = False,
) -> tuple[Message, ...]:
    """Return the example turns that a conversation begins with: an answer, and a call.

    Args:
        words: the questions and answers of ``prompts/``.
        tools: the tools on offer; no other appears in an example. The first of them that has an
            example of its own in ``prompts/`` is called, else one is with made-up arguments.
        style: how messages are written.
        result: the tool whose call is the answer. A call of it with made-up values then stands in
            place of every answer, if values can be made up.
        weak_model: show many examples.
    """
    turns = _ExampleTurns(words, style, result)
    if weak_model:
        _add_many(turns, words, tools)
    else:
        turns.add_answers(words.examples.direct[:1])
        for calls in islice(_rank_examples(words, tools), 1):
            turns.add_call(calls[0])  # last: a question without a result follows it anyway
    return tuple(turns.turns)


def _add_many(turns: _ExampleTurns, words: PromptWords, tools: Sequence[ToolSpec]) -> None:
    """Add the examples of a weak model.

    First an example or two to the end: question, call, observation, answer. Then direct answers,
    and calls of each tool in turn, which stop at the call: a small model does what it saw most and
    last, so most of what it sees after a question must be a call, and observations, which it would
    write itself, stand far back. Tools with examples of their own in ``prompts/`` come first, then
    those whose schemas have the most parts; one for whose arguments no fitting values can be made
    up is left out.

    If no tool has examples of its own, a direct answer stands last: a small model copies the
    made-up values of what it saw last into its own call.
    """
    direct = words.examples.direct
    shown = list(islice(_rank_examples(words, tools), MAX_TOOLS))
    if shown and not any(tool.name in words.examples.tools for tool in tools):
        turns.add_whole(shown[0][0])
        for calls in shown[1:MAX_WHOLE]:
            turns.add_call(calls[0])
        turns.add_answers(direct[:1])
        return
    for calls in shown[:MAX_WHOLE]:
        turns.add_whole(calls.pop(0))
    rest = [call for calls in zip_longest(*reversed(shown)) for call in calls if call is not None]
    for number, call in enumerate(rest[:MAX_CALLS]):
        if number % len(shown) == 0:
            place = number // len(shown)
            turns.add_answers(direct[place : place + 1])
        turns.add_call(call)
    if not rest:
        turns.add_answers(direct[: 1 if shown else None])


def _rank_examples(words: PromptWords, tools: Sequence[ToolSpec]) -> Iterator[list[Example]]:
    """Yield the calls that can be shown, a list for each tool, best tools first.

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


def _natural(words: PromptWords, tool: ToolSpec) -> list[Example]:
    own = words.examples.tools.get(tool.name, ())
    fitting = [example for example in own if fits(example.arguments, tool.parameters)]
    return [
        replace(
            example,
            name=tool.name,
            observation=example.observation or words.texts["generic.observation"],
            answer=example.answer or words.text("generic.answer", name=tool.name),
        )
        for example in sorted(fitting, key=lambda example: example.observation is None)
    ]


def _generic(words: PromptWords, tool: ToolSpec) -> list[Example]:
    arguments = sample_arguments(tool.parameters, words.examples.samples)
    if arguments is None:
        return []
    listed = (words.text("generic.argument", name=n, value=v) for n, v in arguments.items())
    values = {"name": tool.name, "arguments": ", ".join(listed)}
    whole = {
        "observation": words.texts["generic.observation"],
        "answer": words.text("generic.answer", name=tool.name),
    }
    kinds = ("question", "again") if arguments else ("question_without_arguments",)
    return [
        Example(words.text(f"generic.{kind}", **values), tool.name, arguments, **whole)
        for kind in kinds
    ]


def _parts(schema: Any) -> int:
    """Count the parts of a schema, up to a bound."""
    count, waiting = 0, [schema]
    while waiting and count < 1000:
        item = waiting.pop()
        count += 1
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return count
