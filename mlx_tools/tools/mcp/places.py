"""Where an MCP server is: a command, or an address, in the form that other programs keep it in.

The usual JSON has the servers by name under ``mcpServers`` (Claude Desktop, Cursor and others) or
``servers`` (VS Code). What it gives is a `BoundSource.at`: ``command``, ``env`` and ``cwd``, or
``url`` and ``headers``. A value may name a variable, ``${NAME}`` or ``${env:NAME}``: it is looked
up when the server is started.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import UsageError

_STRING: Final = r'"(?:\\.|[^"\\])*(?:\\?\Z|")'
_COMMENTS: Final = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAST_COMMAS: Final = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)

_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_INPUT: Final = re.compile(r"\$\{input:[^}]*\}")
_FOLDER: Final = re.compile(r"\$\{(?:workspaceFolder|userHome)\}")


def plain_json(text: str) -> str:
    """Return the JSON in a text in which VS Code also takes comments and commas before a closing
    bracket. Lines and columns stay as they are."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(r"\S", " ", match[0])

    return _LAST_COMMAS.sub(blank, _COMMENTS.sub(blank, text))


def servers_in(value: Any, name: str) -> dict[str, Mapping[str, Any]]:
    """The servers in the JSON of a file, which is called ``name`` in errors, each with its place.
    Raises UsageError for what is none."""
    found = None
    if isinstance(value, Mapping):
        inner = value.get("mcp")
        for one in (value, inner if isinstance(inner, Mapping) else {}):
            found = found or one.get("mcpServers") or one.get("servers")
    if not isinstance(found, Mapping):
        raise UsageError(f"{name}: it names no servers", hint='they stand under "mcpServers"')
    return {str(key): place_of(one, f"{name}: {key}") for key, one in found.items()}


def place_of(entry: Any, name: str) -> Mapping[str, Any]:
    """The place in one entry. Raises UsageError."""
    if not isinstance(entry, Mapping):
        raise UsageError(f"{name}: it is no object")
    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    if isinstance(url, str):
        if not re.match(r"https?://[^/]", url):
            raise UsageError(f"{name}: {url[:80]!r} is no address", hint="https://HOST/mcp")
        if entry.get("type") == "sse":
            raise UsageError(
                f"{name}: it speaks the older transport (SSE)", hint="ask for streamable HTTP"
            )
        return {"url": url, "headers": _texts(entry.get("headers"), f"{name}: headers")}
    command, arguments = entry.get("command"), entry.get("args", [])
    if not isinstance(command, str) or not command:
        raise UsageError(f"{name}: it has neither a command nor a url")
    if not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments):
        raise UsageError(f"{name}: args is no list of texts")
    folder = entry.get("cwd")
    return {
        "command": [command, *arguments],
        "env": _texts(entry.get("env"), f"{name}: env"),
        "cwd": folder if isinstance(folder, str) else None,
    }


def _texts(value: Any, name: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise UsageError(f"{name}: not an object of texts")
    return dict(value)


def fill_variables(text: str, environ: Mapping[str, str]) -> str:
    """A text with the variables that it names. Raises UsageError for one that is not set, and for
    what only another program can fill in."""
    if other := _INPUT.search(text) or _FOLDER.search(text):
        raise UsageError(
            f"{other[0]} is filled in by another program", hint="name a variable: ${NAME}"
        )

    def value(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise UsageError(f"the environment's variable {match[1]} is not set")
        return environ[match[1]]

    return _VARIABLE.sub(value, text)


def known_files(
    home: Path | None = None, folder: Path | None = None, platform: str = sys.platform
) -> Iterator[tuple[str, Path]]:
    """The files in which Claude Desktop, Claude Code, VS Code and Cursor keep their servers, those
    that are there, each with the program's name."""
    home, folder = home or Path.home(), folder or Path.cwd()
    apps = home / "Library" / "Application Support"
    if platform != "darwin":
        apps = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    for program, path in (
        ("Claude Desktop", apps / "Claude/claude_desktop_config.json"),
        ("Claude Code", home / ".claude.json"),
        ("VS Code", apps / "Code" / "User" / "mcp.json"),
        ("Cursor", home / ".cursor" / "mcp.json"),
        ("this folder's VS Code", folder / ".vscode" / "mcp.json"),
        ("this folder's Cursor", folder / ".cursor" / "mcp.json"),
        ("this folder's .mcp.json", folder / ".mcp.json"),
    ):
        if path.is_file():
            yield program, path


def masked(place: Mapping[str, Any]) -> str:
    """A place on one line, without the values of variables and headers, which may be secrets."""
    if "url" in place:
        names, what = place.get("headers", {}), str(place["url"])
        what = re.sub(r"//[^/@]*@", "//…@", what.partition("?")[0])
        return f"{what} with {', '.join(names)}" if names else what
    names = place.get("env", {})
    command = " ".join(place["command"])
    return f"{command} with {', '.join(names)}" if names else command
