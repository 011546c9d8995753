"""The words that a model reads, as values: the texts of the files of ``prompts/``.

Every text may hold ``{{name}}`` placeholders. The placeholders that a text must and may hold are
fixed here. So an editor's slip is reported with file and key, and does not show as a model that
behaves oddly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from mlx_tools.errors import ConfigError, ErrorCode
from mlx_tools.messages import Style
from mlx_tools.prompt.catalog import one_line
from mlx_tools.transcript import MendKind

STYLES: Final[tuple[Style, ...]] = get_args(Style)
GAP: Final = "…"
"""Stands for a value that the model has to fill in, in the right form of a call. It is no JSON, so
a copy of it never runs."""

PROMPTED_STYLES: Final = tuple(style for style in STYLES if style != "native")
"""The styles with words in ``prompts/``; a native call is described by the template."""

PERSONA: Final = "persona.txt"
MESSAGES: Final = "messages.toml"
EXAMPLES: Final = "examples.toml"
RESULT: Final = "result.toml"
_MODES: Final = {mode: f"mode-{mode}.txt" for mode in ("answer-first", "rag-first")}
_PROTOCOLS: Final = {style: f"protocol-{style}.txt" for style in PROMPTED_STYLES}

FILES: Final = (PERSONA, *_MODES.values(), *_PROTOCOLS.values(), MESSAGES, EXAMPLES, RESULT)
"""The files that are needed, relative to ``prompts/``."""

CODES: Final[tuple[str, ...]] = get_args(ErrorCode)
_MAX_CHARS: Final = 500
"""Characters of an error, or of advice, in one line."""
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
    "turns.not_started": ("name",),
    "turns.refused_before": ("reason",),
    "turns.takes": ("tool",),
    "turns.wrote": ("text", "reason"),
    "turns.write": (),
    "turns.write_filled": (),
    "turns.forged": (),
    "turns.native_forged": (),
    "turns.no_calls": ("question",),
    "turns.too_many_calls": ("most",),
    "turns.cut": ("omitted",),
    "turns.would_change": ("counts", "change"),
    "turns.edited": ("arguments",),
    "turns.made_before": (),
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
    **dict.fromkeys((f"misfits.{kind}" for kind in get_args(MendKind)), ()),
}
"""The single texts of ``messages.toml``, each with the placeholders that it must hold."""

_RESULT_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "description": (),
    **dict.fromkeys(("told", "finish", "wanted", "early"), ("name",)),
}
"""The same for ``result.toml``."""

_GENERIC_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("generic.question", "generic.again"), ("arguments", "name")),
    "generic.question_without_arguments": ("name",),
    "generic.argument": ("name", "value"),
    "generic.observation": (),
}
"""The same for ``examples.toml``, for a tool without examples of its own."""


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """A question and its answer, or the call that it asks for.

    A call is shown if its arguments fit the tool's schema, and with an ``observation`` to its end,
    the ``answer``.
    """

    question: str
    name: str = ""
    arguments: dict[str, Any] = {}
    observation: str | None = None
    answer: str = ""


class ExampleWords(Struct, frozen=True):
    """The examples of ``prompts/examples.toml``.

    They are questions that need no tool, calls by tool, and the values of made-up arguments.
    """

    direct: tuple[Example, ...]
    tools: dict[str, tuple[Example, ...]]
    samples: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class PromptWords:
    """All texts, checked. Made by `parse_words`; equal only to itself.

    So it can be a key of caches. ``texts`` are the single ones of ``messages.toml``, by table and
    key (``turns.cut``), and those of ``result.toml`` (``result.told``).
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
        """Return a single text of ``messages.toml`` or ``result.toml``, filled.

        With the ``id`` of an artifact it is the text that says how to read on there.

        Args:
            key: table and key (``turns.cut``, ``result.told``).
            values: the values of its placeholders: texts as they are, other values as JSON.
        """
        key += "_readable" * bool(values.get("id"))
        texts = {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in values.items()
        }
        return fill(self.texts[key], texts)

    def error(self, code: str, *, name: str = "", reason: str = "") -> str:
        """Return the words for the model with this error code, at most 500 characters.

        ``name`` is the tool's.
        """
        reason = reason.strip()
        stop = "" if not reason or reason[-1] in ".!?…" else "."
        text = fill(self.errors[code], {"name": name, "reason": reason + stop})
        return one_line(text, _MAX_CHARS)

    def form_introduction(self, form: str) -> str:
        """Return the words before the form of a call that the model is asked for."""
        return self.texts["turns.write_filled" if GAP in form else "turns.write"]

    def correction(self, code: str, style: str = "") -> str:
        """Return advice on a line that was refused with this code, empty if there is none."""
        own = self.native_corrections if style == "native" else {}
        return one_line(own.get(code, self.corrections.get(code, "")), _MAX_CHARS)

    def render_question(
        self, question: str, tools: Sequence[str] = (), *, no_calls: bool = False
    ) -> str:
        """Return a question as the model reads it, with the lines of its tools.

        With ``no_calls`` it says that no tool may be called, if nothing else can say so.
        """
        if no_calls:
            question = fill(self.texts["turns.no_calls"].strip("\n"), {"question": question})
        if not tools:
            return question
        values = {"tools": "\n".join(tools), "question": question}
        return fill(self.texts["catalog.offered"].strip("\n"), values)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of ``text``, once: a value may hold braces of its own."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


def parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield ``text`` cut at its placeholders: a piece, and True if it names one."""
    for number, part in enumerate(_PLACEHOLDER.split(text)):
        if part or number % 2:
            yield part, number % 2 == 1


def parse_words(texts: Mapping[str, str]) -> PromptWords:
    """Return the words in ``texts``, by file name. All of `FILES` must be there.

    Raises:
        ConfigError: a text is missing or wrong; the message names it.
    """
    for file in FILES:
        if file not in texts:
            raise ConfigError(f"prompts/{file} is missing", hint="install mlx-tools again")

    def whole(file: str) -> str:
        return _check_placeholders(file, texts[file].strip())

    messages, result, examples = (_table(file, texts) for file in (MESSAGES, RESULT, EXAMPLES))
    known = {f"{kind}.{code}" for kind in _BY_CODE for code in CODES}
    _refuse_others(MESSAGES, [key for key in messages if key.partition(".")[0] in _BY_CODE], known)
    _refuse_others(RESULT, result, _RESULT_TEXTS)
    by_code = {}
    for kind, optional in _BY_CODE.items():
        codes = [one for one in CODES if kind == "errors" or f"{kind}.{one}" in messages]
        said = _texts(MESSAGES, messages, {f"{kind}.{one}": () for one in codes}, optional)
        by_code[kind] = dict(zip(codes, said.values(), strict=True))
    told = _texts(RESULT, result, _RESULT_TEXTS)
    return PromptWords(
        persona=whole(PERSONA),
        response_modes={mode: whole(file) for mode, file in _MODES.items()},
        protocols={style: whole(file) for style, file in _PROTOCOLS.items()},
        texts=_texts(MESSAGES, messages, _TEXTS)
        | _texts(EXAMPLES, examples, _GENERIC_TEXTS)
        | _texts(EXAMPLES, examples, {"generic.answer": ()}, ("name",))
        | {f"result.{key}": text for key, text in told.items()},
        examples=_examples(texts[EXAMPLES]),
        **by_code,
    )


_BY_CODE: Final[Mapping[str, tuple[str, ...]]] = {
    "errors": ("name", "reason"),
    "corrections": (),
    "native_corrections": (),
}
"""Tables of ``messages.toml`` whose keys are error codes, each with what its texts may hold."""


def _table(file: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a TOML file, with keys such as ``table.key``."""
    import tomllib

    try:
        tables = tomllib.loads(texts[file])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"prompts/{file} is not TOML: {error}") from None
    found: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            found[name] = value
    return found


def _refuse_others(file: str, keys: Iterable[str], known_names: Collection[str]) -> None:
    if unknown := sorted(set(keys).difference(known_names)):
        raise ConfigError(
            f"prompts/{file} has the unknown key {unknown[0]}",
            hint=f"known are {', '.join(sorted(known_names))}",
        )


def _texts(
    file: str,
    values: Mapping[str, Any],
    required_placeholders: Mapping[str, tuple[str, ...]],
    optional: Collection[str] = (),
) -> dict[str, str]:
    """Return the texts of the ``required_placeholders`` keys.

    Each must hold its placeholders.
    """
    for key in required_placeholders:
        if not isinstance(values.get(key), str):
            fault = "needs a text for" if key in values else "lacks the key"
            raise ConfigError(f"prompts/{file} {fault} {key}")
    return {
        key: _check_placeholders(f"{file}, {key}", values[key], required, optional)
        for key, required in required_placeholders.items()
    }


def _examples(text: str) -> ExampleWords:
    try:
        found = msgspec.toml.decode(text, type=ExampleWords)
    except msgspec.ValidationError as error:
        raise ConfigError(f"prompts/{EXAMPLES}: {error}") from None
    for one in (*found.direct, *chain.from_iterable(found.tools.values())):
        for said in (one.question, one.observation or "", one.answer):
            _check_placeholders(f"{EXAMPLES}, {one.question}", said)
    return found


def _check_placeholders(
    file_name: str, text: str, required: Collection[str] = (), optional: Collection[str] = ()
) -> str:
    """Return ``text`` if it has all required placeholders, and none that is unknown."""
    found = set(_PLACEHOLDER.findall(text))
    if missing := [name for name in required if name not in found]:
        raise ConfigError(
            f"prompts/{file_name}: the placeholder {{{{{missing[0]}}}}} is missing",
            hint="write it where the value belongs",
        )
    if unknown := sorted(found.difference(required, optional)):
        known = ", ".join(f"{{{{{name}}}}}" for name in sorted({*required, *optional})) or "none"
        raise ConfigError(
            f"prompts/{file_name}: the placeholder {{{{{unknown[0]}}}}} is unknown",
            hint=f"it may have: {known}",
        )
    return text
