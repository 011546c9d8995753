"""Patterns, by which a policy names tools: exact, a glob where one is written, or a plugin.

    calculator            this tool and no other
    notes_*               a glob, because ``*``, ``?`` or ``[`` is written
    plugin:weather        every tool of the plugin ``weather``
    plugin:weather/get_*  of that plugin, the tools that match

A template of calls is such a name, and behind it what some of the arguments are, each a glob where
one is written: ``file_access operation=write "path=drafts/*"``, divided as a shell divides words.

Another name of a tool (`mlx_tools.messages.ALIASES`) means the tool. A pattern never gains a ``*``
that nobody wrote, and upper and lower case differ.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from mlx_tools.errors import UsageError
from mlx_tools.messages import TOOL_NAME, ToolSpec, names_of, own_name

PLUGIN: Final = "plugin:"
PLUGIN_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,100}", re.ASCII)
"""Plugins' names are ASCII, like tools'."""

_GLOB: Final = r"(?=[^*?\[/]*[*?\[])[A-Za-z0-9_.:@*?\[\]!-]{1,100}"
_TOOL: Final = f"(?:{TOOL_NAME.pattern}|{_GLOB})"
_PATTERN = re.compile(
    f"(?!{PLUGIN}){_TOOL}|{PLUGIN}(?:{PLUGIN_NAME.pattern}|{_GLOB})(?:/{_TOOL})?", re.ASCII
)


def is_glob(text: str) -> bool:
    """Return whether the text has a character that makes it a pattern."""
    return any(character in "*?[" for character in text)


def checked(patterns: object, field: str) -> tuple[str, ...]:
    """The patterns as a tuple; UsageError, naming ``field``, for one that could never match."""
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise UsageError(f"{field}: expected a list of tool names, not {patterns!r}")
    for pattern in patterns:
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            raise UsageError(
                f"{field}: {pattern!r} cannot name a tool",
                hint="write NAME, a glob such as notes_*, plugin:NAME or plugin:NAME/TOOL",
            )
    return tuple(patterns)


def first_match(patterns: Sequence[str], spec: ToolSpec) -> str | None:
    """The first pattern that means this tool, an exact name before all others, or None."""
    if spec.name in patterns:
        return spec.name
    return next((pattern for pattern in patterns if matches(pattern, spec)), None)


def matches(pattern: str, spec: ToolSpec) -> bool:
    """Return whether a checked pattern means this tool."""
    if not pattern.startswith(PLUGIN):
        return _means(pattern, spec.name)
    plugin, _, name = pattern.removeprefix(PLUGIN).partition("/")
    of_it = bool(spec.plugin) and _same(plugin, spec.plugin)
    return of_it and (not name or _means(name, spec.name))


def covers(pattern: str, name: str) -> bool:
    """Return whether an exact name means the tool that another one names."""
    return own_name(pattern) == own_name(name)


def _means(pattern: str, name: str) -> bool:
    """Return whether a pattern means the tool of this name, by any of its names."""
    if not is_glob(pattern):
        return covers(pattern, name)
    return any(fnmatchcase(one, pattern) for one in {name, *names_of(name)})


def _same(pattern: str, text: str) -> bool:
    return fnmatchcase(text, pattern) if is_glob(pattern) else text == pattern


# --- templates of calls --------------------------------------------------------------------------


def checked_templates(templates: object, field: str) -> tuple[str, ...]:
    """The templates as a tuple; UsageError, naming ``field``, for one that could never match."""
    if isinstance(templates, str) or not isinstance(templates, Sequence):
        raise UsageError(f"{field}: expected a list of calls, not {templates!r:.200}")
    for template in templates:
        try:
            words = shlex.split(template) if isinstance(template, str) else []
        except ValueError:
            words = []
        if not words:
            raise UsageError(f"{field}: {template!r:.200} cannot name a call", hint="write NAME")
        checked(words[:1], field)
        if wrong := [word for word in words[1:] if not word.partition("=")[0] or "=" not in word]:
            raise UsageError(
                f"{field}: {wrong[0]!r} in {template!r:.200} says nothing of an argument",
                hint='write NAME, or NAME ARGUMENT=VALUE, such as file_access "path=drafts/*"',
            )
    return tuple(templates)


def first_template(
    templates: Sequence[str], spec: ToolSpec, arguments: Mapping[str, Any] | None
) -> str | None:
    """The first checked template that means a call of this tool with these arguments, or None.
    Without arguments, the first that means every call of it."""
    for template in templates:
        name, *rest = shlex.split(template)
        wanted = [word.partition("=")[::2] for word in rest]
        if matches(name, spec) and (
            not wanted
            or (
                arguments is not None
                and all(key in arguments and _is(value, arguments[key]) for key, value in wanted)
            )
        ):
            return template
    return None


def tool_in(template: str) -> str:
    """Return how a checked template names its tool."""
    return shlex.split(template)[0]


def _is(pattern: str, value: Any) -> bool:
    """Return whether an argument is what a template says. No glob means a path that goes up."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text == pattern or (_same(pattern, text) and ".." not in re.split(r"[/\\]", text))
