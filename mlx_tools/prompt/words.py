"""The words that a model reads, as values: what the files of ``prompts/`` say.

Every text may hold ``{{name}}`` placeholders. Which ones a text may and must hold is fixed here, so
that a slip of an editor's hand is told by file and key, and not by a model that behaves oddly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from msgspec import Struct

from mlx_tools.errors import ConfigError, ErrorCode
from mlx_tools.messages import Style

STYLES: Final[tuple[Style, ...]] = get_args(Style)
WRITTEN_STYLES: Final = tuple(style for style in STYLES if style != "native")
"""Those that we tell of; how a native call is written is the template's to tell."""

PERSONA: Final = "persona.txt"
MESSAGES: Final = "messages.toml"
EXAMPLES: Final = "examples.toml"
RESULT: Final = "result.toml"
_MODES: Final = {mode: f"mode-{mode}.txt" for mode in ("answer-first", "rag-first")}
_PROTOCOLS: Final = {style: f"protocol-{style}.txt" for style in WRITTEN_STYLES}

FILES: Final = (PERSONA, *_MODES.values(), *_PROTOCOLS.values(), MESSAGES, EXAMPLES, RESULT)
"""The files that are needed, relative to ``prompts/``."""

CODES: Final[tuple[str, ...]] = get_args(ErrorCode)
_PLACEHOLDER: Final = re.compile(r"\{\{(\w*)\}\}")

_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "project_context": ("context",),
    "catalog.tools": ("tools",),
    "catalog.none": (),
    "catalog.hidden": ("count",),
    "catalog.search": ("count", "name"),
    "catalog.offered": ("tools", "question"),
    "turns.unanswered": (),
    "turns.go_on": (),
    "turns.forged": (),
    "turns.native_forged": (),
    "turns.no_calls": ("question",),
    "turns.cut": ("omitted",),
    "turns.edited": ("arguments",),
    "turns.cut_readable": ("omitted", "name", "id", "offset"),
    "turns.cite": ("number",),
    "summary.system": (),
    "summary.request": ("question", "name", "text"),
    "summary.notice": (),
    "summary.part": ("offset", "summary"),
    "compaction.request": ("text",),
    "compaction.user": ("text",),
    "compaction.model": ("text",),
    "compaction.tool": ("name", "text"),
    "compaction.summary": ("summary",),
    "compaction.turns": (),
    "compaction.turns_readable": ("name", "id"),
    "compaction.observation": (),
    "compaction.observation_readable": ("name", "id"),
}
"""The single texts of ``messages.toml``, each with the placeholders that it must hold."""

_RESULT_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "description": (),
    **dict.fromkeys(("told", "finish", "wanted", "early"), ("name",)),
}
"""The same of ``result.toml``."""


class Example(Struct, frozen=True):
    """A natural example of one tool: used where its arguments fit the tool's schema.

    With an ``observation`` it is shown to its end, and ``answer`` is that end.
    """

    question: str
    arguments: Mapping[str, Any]
    observation: str | None = None
    answer: str = ""


class ExampleWords(Struct, frozen=True):
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


@dataclass(frozen=True, slots=True, eq=False)
class PromptWords:
    """All texts, checked. Made by `parse_words`; equal only to itself, and so a key of caches.

    ``texts`` are the single ones of ``messages.toml``, by table and key (``turns.cut``), and those
    of ``result.toml`` (``result.told``).
    """

    persona: str
    response_modes: Mapping[str, str]
    protocols: Mapping[str, str]
    texts: Mapping[str, str]
    errors: Mapping[str, str]
    corrections: Mapping[str, str]
    native_corrections: Mapping[str, str]
    examples: ExampleWords

    def text(self, key: str, **values: object) -> str:
        """A single text of ``messages.toml``, by table and key (``turns.cut``), or of
        ``result.toml`` (``result.told``), with its placeholders filled: with text as it is, with
        any other value as JSON.

        With the ``id`` of an artifact it is the text that says how to read on there.
        """
        key += "_readable" * bool(values.get("id"))
        texts = {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in values.items()
        }
        return fill(self.texts[key], texts)

    def error(self, code: str, *, name: str = "", reason: str = "") -> str:
        """The words for the model with this error code; ``name`` is the tool's, at most 500
        characters in all."""
        reason = reason.strip()
        stop = "" if not reason or reason[-1] in ".!?…" else "."
        return _one_line(fill(self.errors[code], {"name": name, "reason": reason + stop}))

    def correction(self, code: str, style: str = "") -> str:
        """Advice on a line that was refused with this code; empty where there is none."""
        own = self.native_corrections if style == "native" else {}
        return _one_line(own.get(code, self.corrections.get(code, "")))

    def asked(self, question: str, tools: Sequence[str] = (), *, no_calls: bool = False) -> str:
        """A question as the model reads it, with the lines of the tools that it brings, and that
        none may be called where nothing else can say so."""
        if no_calls:
            question = fill(self.texts["turns.no_calls"].strip("\n"), {"question": question})
        if not tools:
            return question
        values = {"tools": "\n".join(tools), "question": question}
        return fill(self.texts["catalog.offered"].strip("\n"), values)


def fill(text: str, values: Mapping[str, str]) -> str:
    """``text`` with its placeholders replaced, once: a value may hold braces of its own."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


def parts(text: str) -> Iterator[tuple[str, bool]]:
    """``text`` cut at its placeholders: a piece, and whether it is the name of one."""
    for number, part in enumerate(_PLACEHOLDER.split(text)):
        if part or number % 2:
            yield part, number % 2 == 1


def parse_words(texts: Mapping[str, str]) -> PromptWords:
    """The words in ``texts``: file name to content. Raises `ConfigError`, which names the fault.

    ``texts`` must hold every one of `FILES`.
    """
    for file in FILES:
        if file not in texts:
            raise ConfigError(f"prompts/{file} is missing", hint="install mlx-tools again")

    def whole(file: str) -> str:
        return _checked(file, texts[file].strip())

    messages = _Table.parse(MESSAGES, texts)
    errors = messages.table("errors")
    errors.refuse_others(CODES)
    result = _Table.parse(RESULT, texts)
    result.refuse_others([*_RESULT_TEXTS])
    corrections = {}
    for key in ("corrections", "native_corrections"):
        table = messages.table(key)
        table.refuse_others(CODES)
        corrections[key] = {code: table.text(code) for code in table.values}
    return PromptWords(
        persona=whole(PERSONA),
        response_modes={mode: whole(file) for mode, file in _MODES.items()},
        protocols={style: whole(file) for style, file in _PROTOCOLS.items()},
        texts={key: messages.text(key, placeholders) for key, placeholders in _TEXTS.items()}
        | {f"result.{key}": result.text(key, named) for key, named in _RESULT_TEXTS.items()},
        errors={code: errors.text(code, optional=("name", "reason")) for code in CODES},
        examples=_examples(_Table.parse(EXAMPLES, texts)),
        **corrections,
    )


def _examples(table: _Table) -> ExampleWords:
    samples, tools = table.table("samples"), table.table("tools")
    return ExampleWords(
        direct=tuple((one.text("question"), one.text("answer")) for one in table.array("direct")),
        questions=tuple(
            table.text(f"generic.{key}", ("arguments", "name")) for key in ("question", "again")
        ),
        question_without_arguments=table.text("generic.question_without_arguments", ("name",)),
        argument=table.text("generic.argument", ("name", "value")),
        observation=table.text("generic.observation"),
        answer=table.text("generic.answer", optional=("name",)),
        samples={key: samples.text(key) for key in samples.values},
        tools={name: tuple(map(_example, tools.array(name))) for name in tools.values},
        foreign=tuple((one.text("name"), _example(one)) for one in table.array("foreign")),
    )


def _example(table: _Table) -> Example:
    shown = "observation" in table.values or "answer" in table.values
    return Example(
        question=table.text("question"),
        arguments=table.table("arguments").values,
        observation=table.text("observation") if shown else None,
        answer=table.text("answer") if shown else "",
    )


class _Table(Struct, frozen=True):
    """A table of a TOML file, which knows where it stands."""

    file: str
    path: str
    values: Mapping[str, Any]

    @classmethod
    def parse(cls, file: str, texts: Mapping[str, str]) -> _Table:
        import tomllib

        try:
            return cls(file, "", tomllib.loads(texts[file]))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"prompts/{file} is not TOML: {error}") from None

    def table(self, key: str) -> _Table:
        return _Table(self.file, f"{self.path}{key}.", self._get(key, dict, "a table"))

    def array(self, key: str) -> list[_Table]:
        """The tables of an array, which know their number."""
        tables = self._get(key, list, "tables ([[...]])")
        path = f"{self.path}{key}"
        if not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"prompts/{self.file} needs tables ([[...]]) for {path}")
        return [_Table(self.file, f"{path}[{n}].", one) for n, one in enumerate(tables)]

    def text(self, key: str, required: Collection[str] = (), optional: Collection[str] = ()) -> str:
        """A text, by its key or ``table.key``, that holds the placeholders ``required``."""
        above, _, own = key.rpartition(".")
        if above:
            return self.table(above).text(own, required, optional)
        where = f"{self.file}, {self.path}{key}"
        return _checked(where, self._get(key, str, "a text"), required, optional)

    def refuse_others(self, known: Sequence[str]) -> None:
        """Raises `ConfigError` where there is another key than these."""
        if unknown := sorted(set(self.values) - set(known)):
            raise ConfigError(
                f"prompts/{self.file} has the unknown key {self.path}{unknown[0]}",
                hint=f"known are {', '.join(known)}",
            )

    def _get(self, key: str, kind: type[Any], what: str) -> Any:
        value = self.values.get(key)
        if not isinstance(value, kind):
            fault = "lacks the key" if value is None else f"needs {what} for"
            raise ConfigError(f"prompts/{self.file} {fault} {self.path}{key}")
        return value


def _checked(
    where: str, text: str, required: Collection[str] = (), optional: Collection[str] = ()
) -> str:
    """``text``, where its placeholders are all that it must hold and none that it may not."""
    found = set(_PLACEHOLDER.findall(text))
    if missing := [name for name in required if name not in found]:
        raise ConfigError(
            f"prompts/{where}: the placeholder {{{{{missing[0]}}}}} is missing",
            hint="write it where the value belongs",
        )
    if unknown := sorted(found.difference(required, optional)):
        known = ", ".join(f"{{{{{name}}}}}" for name in sorted({*required, *optional})) or "none"
        raise ConfigError(
            f"prompts/{where}: the placeholder {{{{{unknown[0]}}}}} is unknown",
            hint=f"it may have: {known}",
        )
    return text


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 500 else line[:499] + "…"
