"""The place of an MCP server: a command or an address, as other programs write it.

The usual JSON has the servers by name under ``mcpServers`` (Claude Desktop, Cursor and others) or
``servers`` (VS Code). Each entry becomes a `BoundSource.location`: ``command``, ``env`` and
``cwd``, or ``url`` and ``headers``. A value may name a variable, ``${NAME}`` or ``${env:NAME}``. It
is looked up when the server is started.
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


def strip_comments(text: str) -> str:
    """Return the JSON in a text, with comments and trailing commas blanked out.

    VS Code allows both. Lines and columns stay as they are.
    """

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(r"\S", " ", match[0])

    return _LAST_COMMAS.sub(blank, _COMMENTS.sub(blank, text))


def read_servers(value: Any, name: str) -> dict[str, Any]:
    """Return the entry of each server in the JSON of a file, for `read_place`.

    Args:
        value: the JSON.
        name: the name of the file in messages.

    Raises:
        UsageError: it names no servers.
    """
    servers = None
    if isinstance(value, Mapping):
        inner = value.get("mcp")
        for entry in (value, inner if isinstance(inner, Mapping) else {}):
            servers = servers or entry.get("mcpServers") or entry.get("servers")
    if not isinstance(servers, Mapping):
        raise UsageError(f"{name}: it names no servers", hint='they stand under "mcpServers"')
    return {str(key): entry for key, entry in servers.items()}


def read_place(entry: Any, name: str) -> Mapping[str, Any]:
    """Return the place in one entry. Raises UsageError."""
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
        return {"url": url, "headers": _read_texts(entry.get("headers"), f"{name}: headers")}
    command, arguments = entry.get("command"), entry.get("args", [])
    if not isinstance(command, str) or not command:
        raise UsageError(f"{name}: it has neither a command nor a url")
    if not isinstance(arguments, list) or not all(
        isinstance(argument, str) for argument in arguments
    ):
        raise UsageError(f"{name}: args is no list of texts")
    folder = entry.get("cwd")
    return {
        "command": [command, *arguments],
        "env": _read_texts(entry.get("env"), f"{name}: env"),
        "cwd": folder if isinstance(folder, str) else None,
    }


def _read_texts(value: Any, name: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise UsageError(f"{name}: not an object of texts")
    return dict(value)


def fill_variables(text: str, environ: Mapping[str, str]) -> str:
    """Return a text with the variables that it names filled in.

    Raises:
        UsageError: a variable is not set, or only another program can fill it in.
    """
    if foreign := _INPUT.search(text) or _FOLDER.search(text):
        raise UsageError(
            f"{foreign[0]} is filled in by another program", hint="name a variable: ${NAME}"
        )

    def value(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise UsageError(f"the environment's variable {match[1]} is not set")
        return environ[match[1]]

    return _VARIABLE.sub(value, text)


def find_config_files(
    home: Path | None = None, folder: Path | None = None, platform: str = sys.platform
) -> Iterator[tuple[str, Path]]:
    """Yield the existing configuration files of other programs with MCP servers.

    These are Claude Desktop, Claude Code, VS Code and Cursor. Each comes with the program's name.
    """
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


def mask_place(place: Mapping[str, Any]) -> str:
    """Return a place on one line without the values of variables and headers.

    They may be secrets.
    """
    if "url" in place:
        names, what = place.get("headers", {}), str(place["url"])
        what = re.sub(r"//[^/@]*@", "//…@", what.partition("?")[0])
        return f"{what} with {', '.join(names)}" if names else what
    names = place.get("env", {})
    command = " ".join(place["command"])
    return f"{command} with {', '.join(names)}" if names else command
