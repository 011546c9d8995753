"""How a recorded session would begin today: its opening, its chat format, its tools."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlx_tools.backends import ModelFiles, find_chat_format
from mlx_tools.errors import ChatFormatError
from mlx_tools.golden.file import Golden
from mlx_tools.messages import ALL_EFFECTS, Effects, ToolCall, ToolSpec
from mlx_tools.prompt import (
    CATALOG_BUDGET,
    ChatFormat,
    Frame,
    Neutraliser,
    Opening,
    Openings,
    PromptWords,
    is_search,
    told_when_needed,
)
from mlx_tools.protocol import canonical
from mlx_tools.toolbox import builtin_tools
from mlx_tools.toolbox.file_access import file_access_spec
from mlx_tools.transcript.records import UserRecord


def recorded_specs(golden: Golden) -> dict[str, ToolSpec]:
    """The tools as they were recorded, by name: those of the catalog, then the others."""
    found: dict[str, ToolSpec] = {}
    for value in (*golden.header.tools, *golden.golden.known):
        spec = _spec(json.dumps(value))
        if value.get("by_arguments"):
            effects = RecordedEffects(spec.name, golden.golden.effects, value["effects"])
            spec = replace(spec, effects=effects)
        found.setdefault(spec.name, spec)
    return found


@functools.lru_cache(maxsize=512)
def _spec(text: str) -> ToolSpec:
    """The tool of a header's JSON. One object for all transcripts, since what is made of its
    parameters, such as their validator, is kept with them."""
    return ToolSpec.from_json(json.loads(text))


class RecordedEffects:
    """The effects that the calls of a tool had when they were recorded; any other call has all that
    are ``possible``."""

    def __init__(self, name: str, recorded: Mapping[str, Any], possible: Any) -> None:
        self._name = name
        self._recorded = recorded
        self.possible: Effects = frozenset(possible) & ALL_EFFECTS

    def __call__(self, arguments: Mapping[str, Any]) -> Effects:
        found = self._recorded.get(canonical(self._name, arguments))
        return self.possible if found is None else frozenset(found)


def effects_of(specs: Mapping[str, ToolSpec], calls: list[ToolCall]) -> dict[str, list[str]]:
    """What `RecordedEffects` needs to know of these calls."""
    return {
        canonical(call.name, call.arguments): sorted(spec.effects_of(call.arguments))
        for call in calls
        if (spec := specs.get(call.name)) is not None and callable(spec.effects)
    }


@functools.cache
def builtin_specs(*, writable: bool) -> Mapping[str, ToolSpec]:
    """The built-in tools as they are today; ``writable``: with a folder that may be changed."""
    specs = builtin_tools().all_specs()
    if writable:
        spec = file_access_spec(writable=True)
        specs[spec.name] = spec
    return specs


def specs_today(golden: Golden) -> Mapping[str, ToolSpec]:
    """The built-in tools as this session would have them today."""
    return builtin_specs(writable=any(root.endswith(":rw") for root in golden.header.roots))


def opening_today(
    golden: Golden, specs: Mapping[str, ToolSpec], words: PromptWords, chat_format: ChatFormat
) -> Opening:
    """The opening that the recorded tools and settings have with today's words."""
    header = golden.header
    tools = tuple(specs[tool["name"]] for tool in header.tools if tool["name"] in specs)
    frame = Frame(
        words=words,
        tools=tuple(spec for spec in tools if not told_when_needed(spec)),
        neutraliser=Neutraliser(chat_format.control_tokens),
        style=header.style,
        native=chat_format.tools,
        response_mode=header.response_mode,
        project_context=header.project_context,
        persona=header.persona,
        catalog_budget=CATALOG_BUDGET if header.catalog_budget is None else header.catalog_budget,
    )
    search = next((spec for spec in tools if is_search(spec)), None)
    first = next(r for r in golden.records if isinstance(r, UserRecord))
    choice = first.tool_choice or header.tool_choice
    return _openings(frame, lambda: search).opening(
        first.content,
        history=tuple((said["role"], said["content"]) for said in header.history),
        first=(choice, *header.require_tools),
    )


_kept: dict[Any, Openings] = {}
_KEPT = 64


def _openings(frame: Frame, find_search: Callable[[], ToolSpec | None]) -> Openings:
    """What makes the openings of a frame: golden transcripts share a few."""
    tools = tuple(spec.digest() for spec in frame.tools)
    search = find_search()
    key = (
        *(id(frame.words), tools, search and search.digest(), frame.neutraliser.control_tokens),
        *(frame.style, frame.response_mode, frame.project_context, frame.persona),
        *(frame.catalog_budget, frame.native),
    )
    if (found := _kept.get(key)) is None:
        if len(_kept) >= _KEPT:
            _kept.clear()
        found = _kept[key] = Openings(frame, find_search)
    return found


def chat_format_today(golden: Golden) -> ChatFormat | None:
    """The chat format as today's code finds it, None where the transcript does not say of what."""
    known = golden.golden.template
    if not known:
        return None
    return _found_format(_frozen(known), golden.header.model)


@functools.lru_cache(maxsize=32)
def _found_format(known: Any, model: str | None) -> ChatFormat:
    values = _thawed(known)
    files = values.get("files")
    read = None
    if files is not None:
        read = ModelFiles(path=Path(), **{k: _tuples(v) for k, v in files.items()})
    return find_chat_format(values["wanted"], files=read, model=model).chat_format


def template_of(files: ModelFiles | None, chat_format: ChatFormat, model: str | None) -> Any:
    """What ``chat_format`` was found by, for a golden record; empty where nothing here gives it."""
    read = None
    if files is not None:
        read = {
            "name": files.name,
            "chat_template": files.chat_template,
            "bos_token": files.bos_token,
            "eos_token": files.eos_token,
            "adds_bos": files.adds_bos,
            "special_tokens": list(files.special_tokens),
            "end_tokens": list(files.end_tokens),
        }
    for wanted in ("auto", chat_format.name):
        for known in (read, None):
            value = {"wanted": wanted, "files": known}
            try:
                found = _found_format(_frozen(value), model)
            except ChatFormatError:
                continue
            if found == chat_format:
                return value
    return {}


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ("{}", *((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return ("[]", *map(_frozen, value))
    return value


def _thawed(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    if value[0] == "{}":
        return {key: _thawed(item) for key, item in value[1:]}
    return [_thawed(item) for item in value[1:]]
