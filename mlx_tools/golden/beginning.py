"""How a recorded run would begin today: compares header, chat format and tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlx_tools.controller.session import Session
from mlx_tools.golden.comparing import Comparing
from mlx_tools.golden.file import Golden
from mlx_tools.golden.session_start import chat_format_today, opening_today
from mlx_tools.golden.texts import text, turns
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import BUILTIN
from mlx_tools.prompt import ChatFormat
from mlx_tools.store.transcript import FORMAT_VERSION
from mlx_tools.transcript.records import Header


def beginning(
    golden: Golden, session: Session, today: Mapping[str, ToolSpec], comparing: Comparing
) -> Header:
    """The header as it would be today. ``session`` has folded the recorded one and knows the
    recorded tools; ``today`` are those that exist. What differs goes to ``comparing``."""
    header, recorded = golden.header, session.chat_format
    chat_format = chat_format_today(golden) or recorded
    _compare_formats(recorded, chat_format, comparing)
    opening = opening_today(golden, session.specs, session.words, recorded)
    for what, was, now in (
        ("the system prompt", header.system, opening.system),
        ("the examples", turns(header.examples), turns(opening.examples)),
        ("the shortlist of tools", "\n".join(header.shortlist), "\n".join(opening.shortlist)),
    ):
        comparing.texts("prompt", what, was, now)
    _compare_tools(session.specs, today, comparing)
    return replace(
        header,
        version=FORMAT_VERSION,
        chat_format=chat_format.to_json(),
        tools=tuple(_tool_now(value, today) for value in header.tools),
        system=opening.system,
        examples=opening.examples,
        shortlist=opening.shortlist,
        shortlist_request=opening.request,
    )


def _compare_formats(recorded: ChatFormat, today: ChatFormat, comparing: Comparing) -> None:
    if recorded == today:
        return
    was, now = recorded.to_json(), today.to_json()
    keys = [key for key in was if was[key] != now[key]]
    texts = ("\n".join(f"{key}: {text(v[key])}" for key in keys) for v in (was, now))
    comparing.texts("prompt", f"the chat format {recorded.name}", *texts)


def _compare_tools(
    recorded: Mapping[str, ToolSpec], today: Mapping[str, ToolSpec], comparing: Comparing
) -> None:
    """Tools that were recorded and exist today must not have changed."""
    for name, spec in recorded.items():
        found = today.get(name)
        if found is None and spec.plugin == BUILTIN:
            comparing.texts("tools", f"the tool {name}", name, "")
        if found is None or found.plugin != spec.plugin:
            continue
        was, now = spec.to_json(), found.to_json()
        for key in [*now, *(key for key in was if key not in now)]:
            before, after = text(was.get(key, "")), text(now.get(key, ""))
            comparing.texts("tools", f"the {key} of the tool {name}", before, after)


def _tool_now(value: Mapping[str, Any], today: Mapping[str, ToolSpec]) -> Mapping[str, Any]:
    found = today.get(value["name"])
    return found.to_json() if found is not None and found.plugin == value["plugin"] else value
