"""The words that a model reads, as values: what the files of ``prompts/`` say.

Every text may hold ``{{name}}`` placeholders. Which ones a text may and must hold is fixed here, so
that a slip of an editor's hand is told by file and key, and not by a model that behaves oddly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, get_args

from mlx_tools.errors import ConfigError, ErrorCode
from mlx_tools.messages import Style

STYLES: Final[tuple[Style, ...]] = get_args(Style)
WRITTEN_STYLES: Final = tuple(style for style in STYLES if style != "native")
"""Those that we tell of; how a native call is written is the template's to tell."""

LOOK_UP_MODE: Final = "rag-first"
RESPONSE_MODES: Final = ("answer-first", LOOK_UP_MODE)

PERSONA: Final = "persona.txt"
MODE: Final = "mode-{}.txt"
PROTOCOL: Final = "protocol-{}.txt"
MESSAGES: Final = "messages.toml"
EXAMPLES: Final = "examples.toml"

FILES: Final = (
    PERSONA,
    *map(MODE.format, RESPONSE_MODES),
    *map(PROTOCOL.format, WRITTEN_STYLES),
    MESSAGES,
    EXAMPLES,
)
"""The files that are needed, relative to ``prompts/``."""

CODES: Final[tuple[str, ...]] = get_args(ErrorCode)
_PLACEHOLDER: Final = re.compile(r"\{\{(\w*)\}\}")
_NAMES: Final = frozenset(("name", "reason"))


@dataclass(frozen=True, slots=True)
class Example:
    """A natural example of one tool: used where its arguments fit the tool's schema.

    With an ``observation`` it is shown to its end, and ``answer`` is that end.
    """

    question: str
    arguments: Mapping[str, Any]
    observation: str | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ExampleWords:
    """The words of the examples; see ``prompts/examples.toml``."""

    direct: tuple[tuple[str, str], ...]
    questions: tuple[str, ...]
    question_without_arguments: str
    argument: str
    observation: str
    answer: str
    samples: Mapping[str, str]
    tools: Mapping[str, tuple[Example, ...]]
    foreign: tuple[tuple[str, Example], ...] = ()


@dataclass(frozen=True, slots=True)
class SummaryWords:
    """How a summary of a long output is asked for, and how it is shown."""

    system: str
    request: str
    notice: str
    part: str


@dataclass(frozen=True, slots=True)
class CompactionWords:
    """How a conversation that has grown too long is summed up, and what stands in its place."""

    request: str
    told: Mapping[str, str]
    summary: str
    turns: str
    turns_readable: str
    observation: str
    observation_readable: str


@dataclass(frozen=True, slots=True)
class PromptWords:
    """All texts, checked. Made by `parse_words`."""

    persona: str
    response_modes: Mapping[str, str]
    protocols: Mapping[str, str]
    catalog: str
    no_tools: str
    hidden: str
    search: str
    offered: str
    project_context: str
    unanswered: str
    go_on: str
    forged: str
    native_forged: str
    no_calls: str
    cut: str
    edited: str
    cut_readable: str
    cite: str
    summary: SummaryWords
    compaction: CompactionWords
    errors: Mapping[str, str]
    examples: ExampleWords
    corrections: Mapping[str, str] = field(default_factory=dict)
    native_corrections: Mapping[str, str] = field(default_factory=dict)

    def error(self, code: str, *, name: str = "", reason: str = "") -> str:
        """What the model is told with this error code; ``name`` is the tool's, at most 500
        characters in all."""
        reason = reason.strip()
        stop = "" if not reason or reason[-1] in ".!?…" else "."
        return _one_line(fill(self.errors[code], {"name": name, "reason": reason + stop}))

    def correction(self, code: str, style: str = "") -> str:
        """How to mend a line that was refused with this code; empty where there is no advice."""
        own = self.native_corrections if style == "native" else {}
        return _one_line(own.get(code, self.corrections.get(code, "")))

    def asked(self, question: str, tools: Sequence[str] = (), *, no_calls: bool = False) -> str:
        """A question as the model reads it, with the lines of the tools that it brings, and that
        none may be called where nothing else can say so."""
        if no_calls:
            question = fill(self.no_calls.strip("\n"), {"question": question})
        if not tools:
            return question
        values = {"tools": "\n".join(tools), "question": question}
        return fill(self.offered.strip("\n"), values)

    def cut_notice(self, omitted: int) -> str:
        """What stands where ``omitted`` characters of an observation were left out."""
        return fill(self.cut, {"omitted": str(omitted)})

    def cite_notice(self, number: int) -> str:
        """What stands after sources, of which ``number`` is the first one's."""
        return fill(self.cite, {"number": str(number)})

    def summary_request(self, question: str, *, name: str, text: str) -> str:
        """What the model is asked, for a summary of ``text``, of what the tool ``name`` gave."""
        return fill(self.summary.request, {"question": question, "name": name, "text": text})

    def summary_notice(self, parts: Sequence[tuple[int, str]]) -> str:
        """A summary as it is shown: of each part, where it begins and what it says."""
        lines = (
            fill(self.summary.part, {"offset": str(offset), "summary": said})
            for offset, said in parts
        )
        return self.summary.notice + "".join(lines)

    def told(self, who: str, text: str, *, name: str = "") -> str:
        """What the ``user``, the ``model`` or a ``tool`` (called ``name``) said, as it is told to
        whoever sums it up."""
        return fill(self.compaction.told[who], {"text": text, "name": name})

    def summing_up(self, text: str) -> str:
        """What the model is asked, for a summary of ``text``, a part of what was said."""
        return fill(self.compaction.request, {"text": text})

    def summed_up(self, summary: str) -> str:
        """What stands in place of turns that were summed up."""
        return fill(self.compaction.summary, {"summary": summary})

    def turns_gone(self, name: str = "", key: str = "") -> str:
        """What stands in place of turns, where it can be read with the tool ``name`` in the
        artifact ``key``."""
        said = self.compaction
        return fill(said.turns_readable if key else said.turns, {"name": name, "id": key})

    def observation_gone(self, name: str = "", key: str = "") -> str:
        """The same in place of an observation."""
        said = self.compaction
        text = said.observation_readable if key else said.observation
        return fill(text, {"name": name, "id": key})

    def edited_notice(self, arguments: Mapping[str, Any]) -> str:
        """What stands before the output of a call that a person gave these arguments."""
        written = json.dumps(dict(arguments), ensure_ascii=False)
        return fill(self.edited, {"arguments": written})

    def readable_cut_notice(self, omitted: int, offset: int, *, name: str, key: str) -> str:
        """The same where the model can read on with the tool ``name``: in the artifact ``key``,
        from the character ``offset`` on."""
        values = {"omitted": str(omitted), "offset": str(offset), "name": name, "id": key}
        return fill(self.cut_readable, values)


def fill(text: str, values: Mapping[str, str]) -> str:
    """``text`` with its placeholders replaced, once: a value may hold braces of its own."""
    return "".join(values[part] if named else part for part, named in parts(text))


def parts(text: str) -> Iterator[tuple[str, bool]]:
    """``text`` cut at its placeholders: a piece, and whether it is the name of one."""
    for number, part in enumerate(_PLACEHOLDER.split(text)):
        if part or number % 2:
            yield part, number % 2 == 1


def parse_words(texts: Mapping[str, str]) -> PromptWords:
    """The words in ``texts``: file name to content. Raises `ConfigError`, which names the fault.

    ``texts`` must hold every one of `FILES`.
    """
    messages = _Table.parse(MESSAGES, texts)
    catalog = messages.table("catalog")
    turns = messages.table("turns")
    summary = messages.table("summary")
    compaction = messages.table("compaction")
    return PromptWords(
        persona=_whole(PERSONA, texts),
        response_modes=_by_name(RESPONSE_MODES, MODE, texts),
        protocols=_by_name(WRITTEN_STYLES, PROTOCOL, texts),
        catalog=catalog.text("tools", required=("tools",)),
        no_tools=catalog.text("none"),
        hidden=catalog.text("hidden", required=("count",)),
        search=catalog.text("search", required=("count", "name")),
        offered=catalog.text("offered", required=("tools", "question")),
        project_context=messages.text("project_context", required=("context",)),
        unanswered=turns.text("unanswered"),
        go_on=turns.text("go_on"),
        forged=turns.text("forged"),
        native_forged=turns.text("native_forged"),
        no_calls=turns.text("no_calls", required=("question",)),
        cut=turns.text("cut", required=("omitted",)),
        edited=turns.text("edited", required=("arguments",)),
        cut_readable=turns.text("cut_readable", required=("omitted", "name", "id", "offset")),
        cite=turns.text("cite", required=("number",)),
        summary=SummaryWords(
            system=summary.text("system"),
            request=summary.text("request", required=("question", "name", "text")),
            notice=summary.text("notice"),
            part=summary.text("part", required=("offset", "summary")),
        ),
        compaction=CompactionWords(
            request=compaction.text("request", required=("text",)),
            told={
                "user": compaction.text("user", required=("text",)),
                "model": compaction.text("model", required=("text",)),
                "tool": compaction.text("tool", required=("name", "text")),
            },
            summary=compaction.text("summary", required=("summary",)),
            turns=compaction.text("turns"),
            turns_readable=compaction.text("turns_readable", required=("name", "id")),
            observation=compaction.text("observation"),
            observation_readable=compaction.text("observation_readable", required=("name", "id")),
        ),
        errors=messages.table("errors").texts(CODES, allowed=_NAMES),
        corrections=messages.table("corrections").texts(CODES, complete=False),
        native_corrections=messages.table("native_corrections").texts(CODES, complete=False),
        examples=_examples(_Table.parse(EXAMPLES, texts)),
    )


def _examples(table: _Table) -> ExampleWords:
    generic = table.table("generic")
    return ExampleWords(
        direct=tuple((one.text("question"), one.text("answer")) for one in table.array("direct")),
        questions=tuple(
            generic.text(key, required=("arguments", "name")) for key in ("question", "again")
        ),
        question_without_arguments=generic.text("question_without_arguments", required=("name",)),
        argument=generic.text("argument", required=("name", "value")),
        observation=generic.text("observation"),
        answer=generic.text("answer", allowed={"name"}),
        samples=table.table("samples").all_texts(),
        tools=MappingProxyType(
            {
                name: tuple(map(_example, tools.array(name)))
                for tools in (table.table("tools"),)
                for name in tools.values
            }
        ),
        foreign=tuple((one.text("name"), _example(one)) for one in table.array("foreign")),
    )


def _example(table: _Table) -> Example:
    shown = "observation" in table.values or "answer" in table.values
    return Example(
        question=table.text("question"),
        arguments=table.mapping("arguments"),
        observation=table.text("observation") if shown else None,
        answer=table.text("answer") if shown else "",
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a TOML file, which knows where it stands."""

    file: str
    path: str
    values: Mapping[str, Any]

    @classmethod
    def parse(cls, file: str, texts: Mapping[str, str]) -> _Table:
        import tomllib

        try:
            return cls(file, "", tomllib.loads(_content(file, texts)))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"prompts/{file} is not TOML: {error}") from None

    def table(self, key: str) -> _Table:
        return _Table(self.file, f"{self.path}{key}.", self.mapping(key))

    def array(self, key: str) -> list[_Table]:
        """The tables of an array, which know their number."""
        tables = self._get(key, list, "an array of tables ([[...]])")
        if not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"prompts/{self.file} needs tables ([[...]]) for {self.path}{key}")
        path = f"{self.path}{key}"
        return [_Table(self.file, f"{path}[{n}].", one) for n, one in enumerate(tables)]

    def mapping(self, key: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._get(key, dict, "a table")
        return found

    def text(
        self,
        key: str,
        *,
        required: tuple[str, ...] = (),
        allowed: frozenset[str] | set[str] = frozenset(),
    ) -> str:
        text = str(self._get(key, str, "a text"))
        _check(f"{self.file}, {self.path}{key}", text, required, {*required, *allowed})
        return text

    def texts(
        self, keys: tuple[str, ...], *, allowed: frozenset[str] = frozenset(), complete: bool = True
    ) -> Mapping[str, str]:
        """The texts of ``keys``, all of them or those that are there, and no other."""
        if unknown := sorted(set(self.values) - set(keys)):
            raise ConfigError(
                f"prompts/{self.file} has the unknown key {self.path}{unknown[0]}",
                hint=f"known are {', '.join(keys)}",
            )
        wanted = keys if complete else tuple(key for key in keys if key in self.values)
        return MappingProxyType({key: self.text(key, allowed=allowed) for key in wanted})

    def all_texts(self) -> Mapping[str, str]:
        return MappingProxyType({key: self.text(key) for key in self.values})

    def _get(self, key: str, kind: type[Any], what: str) -> Any:
        value = self.values.get(key)
        if not isinstance(value, kind):
            fault = "lacks the key" if value is None else f"needs {what} for"
            raise ConfigError(f"prompts/{self.file} {fault} {self.path}{key}")
        return value


def _content(file: str, texts: Mapping[str, str]) -> str:
    if file not in texts:
        raise ConfigError(f"prompts/{file} is missing", hint="install mlx-tools again")
    return texts[file]


def _whole(file: str, texts: Mapping[str, str]) -> str:
    text = _content(file, texts).strip()
    _check(file, text, (), set())
    return text


def _by_name(names: tuple[str, ...], file: str, texts: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: _whole(file.format(name), texts) for name in names})


def _check(where: str, text: str, required: tuple[str, ...], allowed: set[str]) -> None:
    found = {part for part, named in parts(text) if named}
    if missing := [name for name in required if name not in found]:
        raise ConfigError(
            f"prompts/{where}: the placeholder {{{{{missing[0]}}}}} is missing",
            hint="write it where the value belongs",
        )
    if unknown := sorted(found - allowed):
        known = ", ".join(f"{{{{{name}}}}}" for name in sorted(allowed)) or "none"
        raise ConfigError(
            f"prompts/{where}: the placeholder {{{{{unknown[0]}}}}} is unknown",
            hint=f"it may have: {known}",
        )


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 500 else line[:499] + "…"
