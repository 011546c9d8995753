"""What a JSON object in the model's text is: a call, an answer, or something else (rules 5, 7)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, FinalAnswer, ToolCall
from mlx_tools.protocol.strict import Unreadable, loads

_CALL_KEYS: Final = frozenset(("type", "name", "arguments", "id"))
_ANSWER_KEYS: Final = frozenset(("type", "content", "sources"))
_ALIAS_KEYS: Final = frozenset(("name", "arguments", "parameters"))
_SHOWN_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Envelope:
    """An object, told apart.

    ``alias``: a call in a form that counts only where such objects are the whole output; one that
    is ``typed`` is an error elsewhere, any other is prose. ``faulty``: of a known type, but not as
    it must be. ``dropped`` are its unknown keys, each as JSON.
    """

    kind: Literal["call", "answer", "alias", "observation", "faulty", "other"]
    call: ToolCall | None = None
    answer: FinalAnswer | None = None
    error: ErrorInfo | None = None
    dropped: tuple[str, ...] = ()
    typed: bool = False


OTHER: Final = Envelope("other")


def envelope(value: Any, repairs: tuple[str, ...] = (), *, tagged: bool = False) -> Envelope:
    """What ``value`` is. ``tagged``: it stands in a tag that says that it is a call."""
    if not isinstance(value, Mapping):
        return OTHER
    match value.get("type"):
        case "tool_call":
            return _call(value, repairs)
        case "final_answer":
            return _answer(value, repairs)
        case "tool_observation":
            return Envelope("observation")
        case None if tagged and "type" not in value and "name" in value:
            return _call(value, repairs)
    return _alias(value, repairs)


def _faulty(message: str, code: ErrorCode = "invalid_json") -> Envelope:
    return Envelope("faulty", error=ErrorInfo(code, message))


def _dropped(value: Mapping[str, Any], known: frozenset[str]) -> tuple[str, ...]:
    if value.keys() <= known:
        return ()
    return tuple(
        json.dumps({key: item}, ensure_ascii=False)[1:-1][:_SHOWN_CHARS]
        for key, item in value.items()
        if key not in known
    )


def _call(value: Mapping[str, Any], repairs: tuple[str, ...]) -> Envelope:
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return _faulty("name: required" if name is None else "name: a string")
    arguments = value.get("arguments")
    if isinstance(arguments, str) or (arguments is None and "parameters" in value):
        return _typed_alias(value, name, repairs)
    known = _CALL_KEYS
    if arguments is None:
        arguments, repairs = {}, (*repairs, "missing_arguments")
    if not isinstance(arguments, Mapping):
        return _faulty("arguments: an object", "invalid_arguments")
    call_id, repairs, known = _id(value, repairs, known)
    call = ToolCall(name, arguments, call_id, repairs)
    return Envelope("call", call=call, dropped=_dropped(value, known), typed=True)


def _id(
    value: Mapping[str, Any], repairs: tuple[str, ...], known: frozenset[str]
) -> tuple[str | None, tuple[str, ...], frozenset[str]]:
    """The call's id; a number is taken as it is written, anything else is an unknown key."""
    call_id = value.get("id")
    if call_id is None or isinstance(call_id, str):
        return call_id, repairs, known
    if isinstance(call_id, int) and not isinstance(call_id, bool):
        return str(call_id), (*repairs, "id_string"), known
    return None, repairs, known - {"id"}


def _answer(value: Mapping[str, Any], repairs: tuple[str, ...]) -> Envelope:
    content = value.get("content")
    if not isinstance(content, str):
        return _faulty("content: required" if content is None else "content: a string")
    sources = value.get("sources")
    known = _ANSWER_KEYS
    if sources is not None and not isinstance(sources, list):
        sources, known = None, known - {"sources"}
    answer = FinalAnswer(content, tuple(sources or ()), repairs)
    return Envelope("answer", answer=answer, dropped=_dropped(value, known), typed=True)


def _alias(value: Mapping[str, Any], repairs: tuple[str, ...]) -> Envelope:
    """The forms in which other protocols write a call; with any other key it is none."""
    function = value.get("function")
    inner, keys = value, value.keys() - {"type", "id"}
    if isinstance(function, Mapping) and keys == {"function"}:
        inner, keys = function, set(function)
    name = inner.get("name")
    if value.get("type") not in (None, "function") or not keys <= _ALIAS_KEYS:
        return OTHER
    arguments, written = _arguments(inner)
    if not isinstance(name, str) or not name or arguments is None:
        return OTHER
    call_id, repairs, _ = _id(value, (*repairs, "envelope_alias", *written), frozenset())
    return Envelope("alias", call=ToolCall(name, arguments, call_id, repairs))


def _typed_alias(value: Mapping[str, Any], name: str, repairs: tuple[str, ...]) -> Envelope:
    """A call of the protocol's type whose arguments are written as other protocols do."""
    arguments, written = _arguments(value)
    if arguments is None:
        return _faulty("arguments: an object", "invalid_arguments")
    known = _CALL_KEYS
    if value.get("arguments") is None:
        known, repairs = known | {"parameters"}, (*repairs, "envelope_alias")
    call_id, repairs, known = _id(value, (*repairs, *written), known)
    call = ToolCall(name, arguments, call_id, repairs)
    return Envelope("alias", call=call, dropped=_dropped(value, known), typed=True)


def _arguments(value: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """The arguments under either key, as an object or as a string of one; and the repair made."""
    if value.get("arguments") is not None and "parameters" in value:
        return None, ()
    arguments = value.get("arguments")
    if arguments is None:
        arguments = value.get("parameters")
    written: tuple[str, ...] = ()
    if isinstance(arguments, str):
        written = ("arguments_string",)
        try:
            arguments = loads(arguments)
        except Unreadable:
            arguments = None
    return (arguments if isinstance(arguments, Mapping) else None), written


_NAMES: Final = ("name", "tool_name", "tool", "function", "action")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
_IDS: Final = ("id", "tool_call_id", "call_id")


def object_call(
    value: Mapping[str, Any], repairs: tuple[str, ...] = ()
) -> tuple[ToolCall | None, tuple[str, ...]]:
    """The call that an object between a dialect's marks is, under any family's keys.

    None where it names no tool, or where two keys hold arguments. Also its keys that say nothing.
    """
    if isinstance(inner := value.get("function"), Mapping):
        value = {**inner, **{key: value[key] for key in _IDS if key in value}}
    names = [key for key in _NAMES if isinstance(value.get(key), str)]
    held = [key for key in _ARGUMENTS if value.get(key) is not None]
    if not names or len(held) > 1 or value.get("type") in ("final_answer", "tool_observation"):
        return None, ()
    arguments: Any = value[held[0]] if held else {}
    if not held:
        repairs = (*repairs, "missing_arguments")
    elif isinstance(arguments, str):
        repairs = (*repairs, "arguments_string")
        try:
            arguments = loads(arguments)
        except Unreadable:
            return None, ()
    if not isinstance(arguments, Mapping):
        return None, ()
    ids = [str(value[key]) for key in _IDS if isinstance(value.get(key), str | int)]
    known = frozenset((*_IDS, "type", "index", names[0], *_ARGUMENTS))
    call = ToolCall(value[names[0]], arguments, ids[0] if ids else None, repairs)
    return call, _dropped(value, known)


def call_in(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """Name and arguments of the call that ``value`` would be in any form, or None (rule 12)."""
    found = envelope(value, tagged=True)
    if found.call is not None:
        return found.call.name, found.call.arguments
    name, (arguments, _) = value.get("name"), _arguments(value)
    if isinstance(name, str) and arguments is not None:
        return name, arguments
    return None
