"""Chat formats: the delimiters of turns, and how a template writes tools.

They are plain data, kept in a transcript's header: what they write needs no template any more.
`mlx_tools.prompt.chat_template` and `mlx_tools.prompt.tool_probe` read them from the model's own
template. The named formats are for servers that do not say which template their model has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from mlx_tools.errors import ChatFormatError, wrong_argument
from mlx_tools.messages import ToolSpec, replace
from mlx_tools.prompt.neutralise import KNOWN_TOKENS, Composer, Neutraliser
from mlx_tools.protocol import DIALECTS, Dialect

HINT: Final = "choose a format with --chat-format chatml|llama3|gemma|mistral|phi|plain"

# --- how a template tells of tools --------------------------------------------------------------

Slots = tuple[str, ...]
"""Text with slots: words as they stand and the name of what belongs between them, in turn."""

_BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}
_ALLOWED_SLOTS: Final = {
    "opening": frozenset(("system", "tools")),
    "toolless": frozenset(("system",)),
    "results_prefix": frozenset(("next_id", "next_name")),
    "results_separator": frozenset(("id", "name", "next_id", "next_name")),
    "results_suffix": frozenset(("id", "name")),
}
MAX_DESCRIPTION: Final = 1000


class TemplateRefused(Exception):
    """The template itself refuses a conversation, by ``raise_exception``."""


class ToolFormat(Struct, frozen=True, kw_only=True):
    """The texts that a template writes around tools, calls and results."""

    opening: Slots
    """The text before the first question, with slots for the system text and the tools."""
    toolless: Slots
    """The same without tools."""
    is_wrapped: bool = msgspec.field(name="wrapped")
    """True if a tool is all of OpenAI's object, False if it is its function alone."""
    indent: int
    """The blanks for a level of its JSON, 0 for one line."""
    compact: bool
    margin: str
    """The text at the beginning of each further line."""
    separator: str
    """The text between two tools."""
    dialect: str
    """The dialect of `DIALECTS` in which the model calls, empty if its calls are bare objects."""
    call: tuple[str, str]
    """The text of a turn that calls up to the name, and the text between name and arguments."""
    close: str
    """The text after the last call's own closing bracket."""
    results_prefix: Slots = msgspec.field(name="before")
    """The text from the end of the model's turn to the first result."""
    results_separator: Slots = msgspec.field(name="between")
    """The text between two results of a turn."""
    results_suffix: Slots = msgspec.field(name="after")
    """The text after the last result, up to what asks the model to write."""
    is_json_string: bool = msgspec.field(name="encoded")
    """True if a result is a JSON string there."""

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED_SLOTS.items():
            slots: Slots = getattr(self, name)
            if len(slots) % 2 == 0 or not {*slots[1::2]} <= allowed:
                raise ValueError(f"{name} has slots that it may not have")
        if self.dialect and self.dialect not in _BY_NAME:
            raise ValueError(f"{self.dialect!r} is no known form of calls")
        if len(self.call) != 2 or not 0 <= self.indent <= 16:
            raise ValueError("call must be a pair, and indent at most 16")

    @property
    def family(self) -> Dialect | None:
        """The dialect in which the model calls, None if its calls are bare objects."""
        return _BY_NAME.get(self.dialect)

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks of that dialect."""
        family = self.family
        if family is None:
            return ()
        return tuple(filter(None, (family.open, family.close, *family.inner)))

    def render_tool(self, spec: ToolSpec, *, brief: bool = False) -> str:
        """Return a tool as the template writes it.

        With ``brief`` the descriptions of its arguments are left out.
        """
        description = spec.description[:MAX_DESCRIPTION]
        if brief:
            description = " ".join(description[:160].split())
        parameters = _without_words(spec.parameters) if brief else spec.parameters
        return self.render_json(
            {"name": spec.name, "description": description, "parameters": parameters}
        )

    def render_json(self, function: Mapping[str, Any]) -> str:
        """Return a function's object as the template writes it."""
        return render_function(function, self.is_wrapped, self.indent, self.compact, self.margin)

    def begin(self, system: str, tools: Sequence[str], neutraliser: Neutraliser) -> str:
        """Return the text before the first question.

        ``system`` is neutralised already, ``tools`` are not.
        """
        text = Composer(neutraliser)
        for part, named in split_slots(self.opening if tools else self.toolless):
            if not named:
                text.host(part)
            elif part == "system":
                text.untrusted(system)
            else:
                for number, tool in enumerate(tools):
                    text.host(self.separator if number else "")
                    text.untrusted(neutraliser.in_json(tool))
        return str(text)

    def result(self, text: str, neutraliser: Neutraliser) -> str:
        """Return the text of a result between its delimiters."""
        if self.is_json_string:
            return neutraliser.in_json(json.dumps(text, ensure_ascii=False))
        return neutraliser.plain(text)


def render_function(
    function: Mapping[str, Any], is_wrapped: bool, indent: int, compact: bool, margin: str
) -> str:
    """Return a function's object as a template writes it, by a `ToolFormat`'s values."""
    value = {"type": "function", "function": function} if is_wrapped else function
    separators = (",", ": " if indent else ":") if compact else None
    text = json.dumps(value, ensure_ascii=False, indent=indent or None, separators=separators)
    return text.replace("\n", f"\n{margin}")


def split_slots(slots: Slots) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text with slots, each with True if it is a slot's name."""
    return ((part, bool(number % 2)) for number, part in enumerate(slots))


def fill_slots(slots: Slots, values: Mapping[str, str]) -> str:
    """Return the text with values in its slots."""
    return "".join(values[part] if named else part for part, named in split_slots(slots))


def insert_slots(text: str, values: Mapping[str, str]) -> Slots:
    """Return ``text`` with slots in place of ``values``, by their names."""
    parts: tuple[str, ...] = (text,)
    for name, value in values.items():
        cut: list[str] = []
        for number, part in enumerate(parts):
            if number % 2:
                cut.append(part)
                continue
            for place, piece in enumerate(part.split(value)):
                cut += [name, piece] if place else [piece]
        parts = tuple(cut)
    return parts


def gaps(text: str, parts: Sequence[str]) -> list[str] | None:
    """Return the texts around ``parts``; None unless each is there once, in order."""
    gaps, rest = [], text
    for part in parts:
        before, found, rest = rest.partition(part)
        if not found or part in rest:
            return None
        gaps.append(before)
    return None if any(part in gap for gap in gaps for part in parts) else [*gaps, rest]


_TEXT_KEYS: Final = frozenset(("description", "title", "examples", "$comment", "default"))
_NAME_KEYS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions"))


def _without_words(schema: Any) -> Any:
    """Return a schema without descriptions; the names of properties stay."""
    if isinstance(schema, list | tuple):
        return [_without_words(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: {name: _without_words(item) for name, item in value.items()}
        if key in _NAME_KEYS and isinstance(value, Mapping)
        else value
        if key in ("enum", "const", "required")
        else _without_words(value)
        for key, value in schema.items()
        if key not in _TEXT_KEYS
    }


# --- turns ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """The text before and after each turn.

    ``assistant[0]`` asks the model to write. ``answer_header`` and ``history_header`` both go on
    from it, so that a prompt only grows. If they are None they close an empty thought, provided
    that the format has ``reasoning``: ``answering`` and ``remembered`` hold the result.
    """

    name: str
    bos: str = ""
    """The beginning-of-text, if the tokenizer does not add it itself."""
    system: tuple[str, str] | None
    """The delimiters of the system text; None if it goes into the first user turn."""
    user: tuple[str, str]
    assistant: tuple[str, str]
    """The text that asks the model to write, with an opened thought, and the end of its turn."""
    reasoning: tuple[str, str] | None = None
    """The markers of a thought."""
    opens_thought: bool = False
    """True if the text that asks the model to write opens a thought."""
    control_tokens: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ()
    """The tokens that end the model's turn."""
    system_in_user: tuple[str, str] = ("", "\n\n")
    """The texts around the system text in the first user turn."""
    default_system: str = ""
    """The text that the template writes by itself if there is no system text."""
    answer_header: str | None = None
    """The opening of an answer if the model must not think, or the host begins its text."""
    history_header: str | None = None
    """The opening of an earlier turn, whose thought is not sent again."""
    trims: tuple[str, ...] = ()
    """The roles whose text the template strips of outer white space."""
    dialects: tuple[str, ...] = ()
    """The marks in the template with which its model opens a call of its own."""
    tools: ToolFormat | None = None
    """The form in which the template writes tools, None if unknown."""
    toolless: str = field(default="its own template is not at hand", compare=False)
    """The reason why ``tools`` is None."""
    answering: str = field(default="", init=False, compare=False)
    remembered: str = field(default="", init=False, compare=False)
    turn_ends: tuple[str, ...] = field(default=(), init=False, compare=False)
    """Texts that end the model's turn: its end tokens, and the opening of the next turn."""

    def __post_init__(self) -> None:
        for name, kind in _FORMAT_FIELDS.items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError:
                raise wrong_argument(f"{name} of a chat format", value, HINT) from None
            except UnicodeEncodeError:  # half of a surrogate pair: a text of the right type
                pass
        if self.opens_thought and self.reasoning is None:
            raise ChatFormatError(
                f"the chat format {self.name!r} opens a thought and names no markers", hint=HINT
            )
        asking, answering = self.assistant[0], self.answer_header
        if answering is None:
            answering = asking
            if self.reasoning is not None:
                after = asking if self.opens_thought else None
                answering += empty_thought(self.reasoning, text_after=after)
        remembered = self.history_header
        if remembered is None:
            remembered = answering if self.opens_thought else asking
        for header in (answering, remembered):
            if not header.startswith(asking):
                raise ChatFormatError(
                    f"in the chat format {self.name!r} {header!r} does not go on from {asking!r}",
                    hint=HINT,
                )
        opening = self.user[0].strip()
        if opening and not opening.startswith(("<", "[")):
            opening = f"\n{opening}"  # words open a turn at the start of a line
        ends = dict.fromkeys(end for end in (*self.end_tokens, opening) if end)
        object.__setattr__(self, "answering", answering)
        object.__setattr__(self, "remembered", remembered)
        object.__setattr__(self, "turn_ends", tuple(ends))

    def to_json(self) -> dict[str, Any]:
        """Return the format as a JSON object, for a transcript's header."""
        left_out = _UNWRITTEN if self.tools is not None else _UNWRITTEN | {"tools"}
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return {name: value for name, value in found.items() if name not in left_out}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ChatFormat:
        """Return the format that `to_json` wrote, else raise `ChatFormatError`."""
        try:
            return msgspec.convert(dict(value), ChatFormat)
        except (TypeError, ValueError, RecursionError) as error:
            said = " ".join(str(error).split())[:200]
            raise ChatFormatError(f"this is no chat format: {said}", hint=HINT) from None


_MARKS: Final = tuple[str, str]
_FORMAT_FIELDS: Final[Mapping[str, Any]] = {
    "name": str,
    "bos": str,
    "system": _MARKS | None,
    "user": _MARKS,
    "assistant": _MARKS,
    "reasoning": _MARKS | None,
    "opens_thought": bool,
    "control_tokens": tuple[str, ...],
    "end_tokens": tuple[str, ...],
    "system_in_user": _MARKS,
    "default_system": str,
    "answer_header": str | None,
    "history_header": str | None,
    "trims": tuple[str, ...],
    "dialects": tuple[str, ...],
}

_UNWRITTEN: Final = {"toolless", "answering", "remembered", "turn_ends"}


def empty_thought(reasoning: tuple[str, str], text_after: str | None = None) -> str:
    """Return an empty thought, or the end of the one that ``text_after`` opened."""
    opening, closing = reasoning
    if text_after is None:
        return f"{opening}\n\n{closing}\n\n"
    breaks = len(text_after) - len(text_after.rstrip("\n"))
    return "\n" * max(0, 2 - breaks) + f"{closing}\n\n"


def _turns(opening: str, closing: str) -> dict[str, tuple[str, str]]:
    """Return the delimiters of each role's turn, for a format with roles in openings."""
    roles = ("system", "user", "assistant")
    return {role: (opening.replace("ROLE", role), closing) for role in roles}


# A tokenizer that has a beginning-of-text token nearly always adds it to a prompt itself, and a
# second one does more harm than a missing one: the named formats write none.
_FORMATS: Final[Mapping[str, Mapping[str, Any]]] = {
    "chatml": {
        **_turns("<|im_start|>ROLE\n", "<|im_end|>\n"),
        "end_tokens": ("<|im_end|>", "<|endoftext|>"),
    },
    "llama3": {
        **_turns("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>"),
        "end_tokens": ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
        "trims": ("system", "user"),
    },
    "gemma": {
        "system": None,
        "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
        "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
        "end_tokens": ("<end_of_turn>", "<eos>"),
        "trims": ("system", "user"),
    },
    "mistral": {
        "system": None,
        "user": ("[INST] ", "[/INST]"),
        "assistant": ("", "</s>"),
        "answer_header": " ",
        "history_header": " ",
        "end_tokens": ("</s>",),
    },
    "phi": {
        **_turns("<|ROLE|>\n", "<|end|>\n"),
        "end_tokens": ("<|end|>", "<|endoftext|>"),
    },
    "plain": {
        "system": ("", "\n\n"),
        "user": ("User: ", "\n\n"),
        "assistant": ("Assistant:", "\n\n"),
        "answer_header": "Assistant: ",
        "history_header": "Assistant: ",
        "control_tokens": (*KNOWN_TOKENS, "\nUser:", "\nAssistant:", "\nSystem:"),
        "end_tokens": ("\nUser:",),
        "trims": ("system", "user"),
    },
}
NAMED_FORMATS: Final[Mapping[str, ChatFormat]] = MappingProxyType(
    {
        name: ChatFormat(name=name, **{"control_tokens": KNOWN_TOKENS, **parts})
        for name, parts in _FORMATS.items()
    }
)
"""The formats that ``--chat-format`` knows by name. Their control tokens are the built-in list."""

_FAMILIES: Final = (
    (r"gemma-?4", "plain"),
    (r"(smollm-?3|qwen-?3(?!.*(instruct|thinking|coder))|qwen-?3\.5)", "chatml+think"),
    (r"(deepseek-?r1|r1-distill|thinking|qwq)", "plain"),
    (
        r"(smollm|qwen|hermes|chatml|dolphin|internlm|yi-\d|openhermes|starcoder2.*instruct)",
        "chatml",
    ),
    (r"llama-?3", "llama3"),
    (r"gemma", "gemma"),
    (r"(mistral|mixtral|ministral|codestral)", "mistral"),
    (r"phi-?(3|3\.5|4-mini)", "phi"),
)


@lru_cache(maxsize=32)
def format_for_name(model_name: str) -> ChatFormat:
    """Return the known format of models of this name, else ``plain``.

    It is a guess for servers that do not show their model's template. A base model, or a family
    whose format is none of the named ones, gets ``plain``, which any model can follow.
    """
    name = model_name.lower().replace("_", "-").rstrip("/").rpartition("/")[2]
    family = next((known for pattern, known in _FAMILIES if re.search(pattern, name)), "plain")
    if family == "chatml+think":
        return replace(NAMED_FORMATS["chatml"], reasoning=("<think>", "</think>"))
    return NAMED_FORMATS["plain" if "base" in re.split(r"[-.]", name) else family]
