"""Turns of a strong model as text: the forms of calls, and going on from any beginning.

A turn is made of parts, words and JSON (`turn_parts`), spelled by a `Pen`. `Writer` is given what
is written already, by the model or by a host that began it with other values or spacing, and says
what is left to write: an object's members that are missing, the end of a string, whatever follows.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from mlx_tools.messages import ToolCall

Spacing = Literal["compact", "blank", "pretty"]


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON value within a text. ``fixed`` are its keys whose written values must not differ."""

    value: Mapping[str, Any]
    fixed: frozenset[str] = frozenset(("type", "name"))


Part = str | Body
"""The parts of a text: words as they stand, and JSON."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of a turn: each call, what stands between and around them, and an answer."""

    call: Callable[[ToolCall, int], Sequence[Part]]
    between: str = "\n"
    opening: str = ""
    closing: str = ""
    answer: Callable[[str], Sequence[Part]] = lambda text: (text,)


def _named(call: ToolCall, arguments: str = "arguments") -> Body:
    return Body({"name": call.name, arguments: call.arguments})


def _typed(call: ToolCall) -> Body:
    return Body({"type": "tool_call", "name": call.name, "arguments": call.arguments})


def _said(text: str) -> Body:
    return Body({"type": "final_answer", "content": text})


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _python(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _coder(call: ToolCall) -> str:
    parameters = (
        f"<parameter={key}>\n{_plain(value)}\n</parameter>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{''.join(parameters)}</function>\n</tool_call>"


def _glm(call: ToolCall) -> str:
    pairs = (
        f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>{call.name}\n{''.join(pairs)}</tool_call>"


def _around(before: str, body: Callable[[ToolCall], Body], after: str) -> Any:
    return lambda call, _: (before, body(call), after)


def _arguments(call: ToolCall) -> Body:
    return Body(call.arguments, frozenset())


_FENCED: Final = lambda text: ("```json\n", _said(text), "\n```")  # noqa: E731

DIALECTS: Final[Mapping[str, Dialect]] = {
    "jsonl": Dialect(lambda call, _: (_typed(call),), answer=lambda text: (_said(text),)),
    "markdown-json": Dialect(_around("```json\n", _typed, "\n```"), answer=_FENCED),
    "xml": Dialect(
        _around("<tool_call>", _named, "</tool_call>"),
        answer=lambda text: (f"<final_answer>{text}</final_answer>",),
    ),
    "hermes": Dialect(_around("<tool_call>\n", _named, "\n</tool_call>")),
    "bare": Dialect(lambda call, _: (_named(call),)),
    "llama3": Dialect(
        lambda call, number: ("" if number else "<|python_tag|>", _named(call, "parameters")),
        between="; ",
    ),
    "mistral": Dialect(
        lambda call, _: (_named(call),), between=", ", opening="[TOOL_CALLS] [", closing="]"
    ),
    "mistral-args": Dialect(
        lambda call, _: (f"[TOOL_CALLS]{call.name}[ARGS]", _arguments(call)), between=""
    ),
    "phi": Dialect(
        lambda call, _: (_named(call),),
        between=", ",
        opening="<|tool_call|>[",
        closing="]<|/tool_call|>",
    ),
    "granite": Dialect(
        lambda call, _: (_named(call),), between=", ", opening="<|tool_call|>[", closing="]"
    ),
    "deepseek": Dialect(
        lambda call, _: (
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n```json\n",
            _arguments(call),
            "\n```<｜tool▁call▁end｜>",
        ),
        opening="<｜tool▁calls▁begin｜>",
        closing="<｜tool▁calls▁end｜>",
    ),
    "kimi": Dialect(
        lambda call, number: (
            f"<|tool_call_begin|>functions.{call.name}:{number}<|tool_call_argument_begin|>",
            _arguments(call),
            "<|tool_call_end|>",
        ),
        between="",
        opening="<|tool_calls_section_begin|>",
        closing="<|tool_calls_section_end|>",
    ),
    "harmony": Dialect(
        lambda call, _: (
            f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>",
            _arguments(call),
            "<|call|>",
        ),
        between="<|start|>assistant",
    ),
    "python": Dialect(lambda call, _: (_python(call),), between=", ", opening="[", closing="]"),
    "tool-code": Dialect(
        lambda call, _: (_python(call),), opening="```tool_code\n", closing="\n```"
    ),
    "qwen3-coder": Dialect(lambda call, _: (_coder(call),)),
    "glm": Dialect(lambda call, _: (_glm(call),)),
    "react": Dialect(lambda call, _: (f"Action: {call.name}\nAction Input: ", _arguments(call))),
}
"""The forms in which models write calls. An answer is bare text where a form has no other."""

THOUGHTS: Final[Mapping[str, tuple[str, str]]] = {
    "": ("<think>\n", "\n</think>\n\n"),
    "OpenAI": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "Anthropic": ("<thinking>\n", "\n</thinking>\n\n"),
    "Gemma": ("<|channel>thought\n", "<channel|>"),
}
"""By whose form it is, what opens a thought and what closes it."""

BEGUN_BY_HOST: Final = ("jsonl", "markdown-json", "xml", "hermes", "bare")
"""Those that a host may begin, and that the model goes on with."""

FIXED: Final = (frozenset(("type", "name")), frozenset(("type",)))


@dataclass(frozen=True, slots=True)
class Pen:
    """The spelling of JSON: white space, and what is escaped."""

    spacing: Spacing = "compact"
    escapes: bool = False

    @property
    def comma(self) -> str:
        return "," if self.spacing == "compact" else ", "

    @property
    def colon(self) -> str:
        return ":" if self.spacing == "compact" else ": "

    def json(self, value: Any, *, pretty: bool = False) -> str:
        """A value. What goes on from another's beginning is not indented."""
        indent = 2 if pretty and self.spacing == "pretty" else None
        separators = (",", ": ") if indent else (self.comma, self.colon)
        return json.dumps(value, ensure_ascii=self.escapes, separators=separators, indent=indent)

    def parts(self, parts: Sequence[Part]) -> str:
        """The whole text of some parts."""
        return "".join(
            part if isinstance(part, str) else self.json(part.value, pretty=True) for part in parts
        )


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same value with the keys of its objects in another order, at every depth."""
    if isinstance(value, Mapping):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffled(value[key], chance) for key in keys}
    return [shuffled(one, chance) for one in value] if isinstance(value, list) else value


def in_order(value: Any, schema: Mapping[str, Any]) -> Any:
    """The same value with the keys of its objects in a schema's order, at every depth."""
    if isinstance(value, Mapping):
        properties = schema.get("properties") or {}
        keys = sorted(value, key=lambda key: [*properties, key].index(key))
        return {key: in_order(value[key], properties.get(key) or {}) for key in keys}
    if isinstance(value, list):
        items = schema.get("items")
        return [in_order(one, items if isinstance(items, Mapping) else {}) for one in value]
    return value


def turn_parts(dialect: Dialect, calls: Sequence[ToolCall], answer: str) -> list[Part]:
    """The parts of a whole turn."""
    if not calls:
        return list(dialect.answer(answer))
    parts: list[Part] = [dialect.opening]
    for number, call in enumerate(calls):
        parts += [dialect.between] if number else []
        parts += dialect.call(call, number)
    return [*parts, dialect.closing]


# --- going on from any beginning ----------------------------------------------------------------

_MISSING: Final = ""
"""The text for a value that nobody wished."""

_STRING: Final = re.compile(
    r'"((?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*)("|(\\(?:u[0-9a-fA-F]{0,3})?)?\Z)?'
)
_SCALAR: Final = re.compile(r"[A-Za-z0-9+.\-]+")
BETWEEN: Final = re.compile(r"[\s,;]*")

Ending = int | str | None
"""The end of a part in the text; or the rest of it to write; or None for another part."""


class Writer:
    """Goes on with a turn: what is left to write of some parts, given what is written."""

    def __init__(self, pen: Pen) -> None:
        self.pen = pen

    def parts(
        self, parts: Sequence[Part], text: str, at: int, fixed: frozenset[str] = FIXED[0]
    ) -> Ending:
        """The place where some parts that begin ``at`` end."""
        for number, part in enumerate(parts):
            end: Ending
            if isinstance(part, str):
                end = _words(part, text, at)
            else:
                end = self._body(part, text, at, fixed & part.fixed)
            if end is None:
                return None
            if isinstance(end, str):
                return end + self.pen.parts(parts[number + 1 :])
            at = end
        return at

    def _body(self, body: Body, text: str, at: int, fixed: frozenset[str]) -> Ending:
        at = _past_white(text, at)
        if at == len(text):
            return self.pen.json(body.value, pretty=True)
        return self._object(body.value, text, at, fixed) if text[at] == "{" else None

    def _value(self, wanted: Any, text: str, at: int) -> Ending:
        at = _past_white(text, at)
        if at == len(text):
            return self.pen.json(wanted)
        if text[at] == "{":
            return self._object(wanted if isinstance(wanted, Mapping) else {}, text, at)
        if text[at] == "[":
            return self._array(wanted if isinstance(wanted, list) else [], text, at)
        return self._string(wanted, text, at) if text[at] == '"' else self._scalar(wanted, text, at)

    def _object(
        self, wanted: Mapping[str, Any], text: str, at: int, fixed: frozenset[str] = frozenset()
    ) -> Ending:
        seen: list[str] = []
        at = _past_white(text, at + 1)
        if text[at : at + 1] == "}":
            return at + 1
        while True:
            at = _past_white(text, at)
            left = [key for key in wanted if key not in seen]
            if at == len(text):
                blank = self.pen.comma[1:] if seen and text.endswith(",") else ""
                return blank + self._members(wanted, left) + "}"
            if text[at] != '"':
                return None
            string = _STRING.match(text, at)
            if string is None or string[2] != '"':
                return self._key(wanted, left, string, bool(fixed))
            key = _decoded(string[1])
            if fixed and key not in wanted:
                return None
            seen.append(key)
            left = [other for other in left if other != key]
            after = self._after_key(wanted.get(key, _MISSING), text, string.end(), key in fixed)
            if isinstance(after, str):
                return (
                    after + "".join(self.pen.comma + self._members(wanted, [k]) for k in left) + "}"
                )
            if after is None:
                return None
            at = _past_white(text, after)
            if at == len(text):
                return "".join(self.pen.comma + self._members(wanted, [k]) for k in left) + "}"
            if text[at] == "}":
                return at + 1
            if text[at] != ",":
                return None
            at += 1

    def _members(self, wanted: Mapping[str, Any], keys: Sequence[str]) -> str:
        return self.pen.comma.join(
            self.pen.json(key) + self.pen.colon + self.pen.json(wanted[key]) for key in keys
        )

    def _key(
        self, wanted: Mapping[str, Any], left: list[str], string: re.Match[str] | None, strict: bool
    ) -> str | None:
        """The rest of an object that breaks off within a key."""
        if string is None:
            return None
        written = _decoded(string[1])
        found = next((key for key in left if key.startswith(written)), None)
        if strict and found is None:
            return None
        value = self.pen.json(_MISSING if found is None else wanted[found])
        key = "" if found is None else self.pen.json(found[len(written) :])[1:-1]
        rest = [other for other in left if other != found]
        members = "".join(self.pen.comma + self._members(wanted, [other]) for other in rest)
        return f'{key}"{self.pen.colon}{value}{members}}}'

    def _after_key(self, wanted: Any, text: str, at: int, fixed: bool) -> Ending:
        at = _past_white(text, at)
        if at == len(text):
            return self.pen.colon + self.pen.json(wanted)
        if text[at] != ":":
            return None
        if text[at + 1 :].strip() == "":
            return self.pen.colon[1:] * (text[-1] == ":") + self.pen.json(wanted)
        if fixed and not _agrees(wanted, text, _past_white(text, at + 1)):
            return None
        return self._value(wanted, text, at + 1)

    def _array(self, wanted: Sequence[Any], text: str, at: int) -> Ending:
        number = 0
        at = _past_white(text, at + 1)
        if text[at : at + 1] == "]":
            return at + 1
        while True:
            rest = [self.pen.json(one) for one in wanted[number:]]
            at = _past_white(text, at)
            if at == len(text):
                blank = self.pen.comma[1:] if number and text.endswith(",") else ""
                return blank + self.pen.comma.join(rest) + "]"
            after = self._value(wanted[number] if rest else _MISSING, text, at)
            more = "".join(self.pen.comma + one for one in rest[1:]) + "]"
            if after is None:
                return None
            if isinstance(after, str):
                return after + more
            at, number = _past_white(text, after), number + 1
            if at == len(text):
                return more
            if text[at] == "]":
                return at + 1
            if text[at] != ",":
                return None
            at += 1

    def _string(self, wanted: Any, text: str, at: int) -> Ending:
        string = _STRING.match(text, at)
        if string is None:
            return None
        if string[2] == '"':
            return string.end()
        if string[2] is None:
            return None
        wish = wanted if isinstance(wanted, str) else _plain(wanted)
        begun, written = string[3] or "", _decoded(string[1])
        if not wish.startswith(written):
            return _escape_end(begun) + '"'
        left = wish[len(written) :]
        if not begun:
            return self.pen.json(left)[1:-1] + '"'
        for char in left[:1]:
            for form in (
                json.dumps(char, ensure_ascii=False)[1:-1],
                f"\\u{ord(char):04x}",
                f"\\{char}",
            ):
                if form.startswith(begun) and len(form) > len(begun):
                    return form[len(begun) :] + self.pen.json(left[1:])[1:-1] + '"'
        return _escape_end(begun) + '"'

    def _scalar(self, wanted: Any, text: str, at: int) -> Ending:
        found = _SCALAR.match(text, at)
        if found is None:
            return None
        if found.end() < len(text):
            return found.end()
        for wish in (self.pen.json(wanted), "true", "false", "null"):
            if wish.startswith(found[0]):
                return wish[len(found[0]) :]
        return "0" if found[0][-1] in "-+.eE" else ""


def _words(part: str, text: str, at: int) -> Ending:
    """As `Writer.parts`, of words: white space may differ."""
    place = 0
    while place < len(part):
        if at == len(text):
            return part[place:]
        if part[place] == text[at]:
            place, at = place + 1, at + 1
        elif part[place].isspace():
            place += 1
        elif text[at].isspace():
            at += 1
        else:
            return None
    return at


def _past_white(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _agrees(wanted: Any, text: str, at: int) -> bool:
    """Return True if a string that is written, whole or not, is the one that is wanted."""
    string = _STRING.match(text, at)
    if string is None or not isinstance(wanted, str):
        return False
    written = _decoded(string[1])
    return written == wanted if string[2] == '"' else wanted.startswith(written)


def _decoded(raw: str) -> str:
    try:
        return str(json.loads(f'"{raw}"', strict=False))
    except ValueError:
        return raw


def _escape_end(begun: str) -> str:
    if not begun:
        return ""
    return "n" if begun == "\\" else "0041"[len(begun) - 2 :]
