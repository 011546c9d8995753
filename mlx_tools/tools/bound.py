"""Bound tools: specifications of remote tools, as a person agreed to them.

A remote tool is a tool of an MCP server, or an operation of an HTTP interface.

Each source is stored in one private file. The file has the location, the version, and the tools
with their descriptions, schemas and effects, as a person agreed to them. So a run knows its tools
without asking the source. A later change at the source has no effect until a person agrees again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import DecodeError, Struct, ValidationError, convert, field, to_builtins

from mlx_tools.errors import ConfigError, UsageError, translate_os_error
from mlx_tools.messages import ALL_EFFECTS, TOOL_NAME, Effect, ToolSpec
from mlx_tools.paths import data_dir, private_dir, read_private, write_whole
from mlx_tools.policy import PLUGIN
from mlx_tools.schema import check_parameters, drop_unmatchable
from mlx_tools.tools.tool import Preview, Run, Tool

SourceKind = Literal["mcp", "openapi"]

SOURCE_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]|_(?!_)){0,30}", re.ASCII)
MAX_SOURCE_BYTES: Final = 64_000_000
"""The limit of a file in bytes. A choice: 1,000 tools of 64 kB each."""
SEPARATOR: Final = "__"
"""Separates the source's name and its tool's name; no source's name contains it."""

_SHOW_COMMANDS: Final[Mapping[SourceKind, str]] = {"mcp": "mcp test", "openapi": "tools bind"}
"""The command that shows the changes of a source, by kind."""

MakeTool = Callable[["BoundSource", "BoundTool"], Tool]
"""Makes the tool that calls a bound tool. Raises ToolDefinitionError."""

_HINT: Final = "look at it, or remove it and add the source again"


def is_local(host: str | None) -> bool:
    """Return True if a host in an address is this machine."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


class BoundTool(Struct, frozen=True):
    """A remote tool, as its source describes it."""

    name: str
    """The name at its source."""
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    effects: tuple[Effect, ...] = tuple(sorted(ALL_EFFECTS))
    """The effects that were agreed to."""
    location: Mapping[str, Any] = field(name="at", default_factory=dict)
    """The data that a call needs to reach the tool, such as method and path."""

    @classmethod
    def from_description(
        cls,
        name: str,
        texts: Iterable[Any],
        max_chars: int,
        schema: Mapping[str, Any],
        **fields: Any,
    ) -> BoundTool:
        """Make a tool from its source's description.

        Args:
            name: the name at its source.
            texts: the tool's descriptions; equal ones are used once.
            max_chars: the description is cut to this length.
            schema: the schema of the arguments.
            fields: further fields of `BoundTool`.

        Raises:
            ToolDefinitionError: the schema cannot be used.
        """
        parameters, _ = drop_unmatchable(schema)
        check_parameters(parameters)
        lines = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
        return cls(name, "\n".join(dict.fromkeys(lines))[:max_chars], parameters, **fields)

    @property
    def pin(self) -> str:
        """The SHA-256 of its source's description, 64 hexadecimal digits.

        Effects are not part of it: the user declares them.
        """
        described = (self.name, self.description, self.parameters, self.location)
        text = json.dumps(described, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class BoundSource(Struct, frozen=True, kw_only=True):
    """A source of bound tools."""

    name: str
    kind: SourceKind
    location: Mapping[str, Any] = field(name="at")
    """The data that are needed to reach the source."""
    version: str = ""
    """The version that the source reports."""
    digest: str = ""
    """The digest of the document that describes the source, empty if there is none."""
    tools: tuple[BoundTool, ...] = ()
    """The tools that a person agreed to."""
    changed_tools: tuple[BoundTool, ...] = field(name="said", default=())
    """Tools that the source has changed or added since then. They are disabled until a person
    agrees to them."""

    def __post_init__(self) -> None:
        if not SOURCE_NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name[:80]!r} cannot name a source of tools",
                hint="use 1 to 31 of A-Z a-z 0-9 . - and single _",
            )

    @property
    def plugin(self) -> str:
        """The plugin name of all its tools, for policies."""
        return f"{self.kind}:{self.name}"

    def tool_name(self, name: str) -> str:
        """Return the registered name of a tool, by its name at the source.

        It begins with the source's name, so that it cannot be another tool's name. Characters that
        a tool's name cannot have become ``_``. A long name is cut, and a digest is added.
        """
        text = f"{self.name}{SEPARATOR}{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
        if not TOOL_NAME.fullmatch(text):
            text = f"{text[:55]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return text

    def key(self, tool: BoundTool) -> str:
        """Return the key under which a refused tool is listed: its plugin and name."""
        return f"{PLUGIN}{self.plugin}/{self.tool_name(tool.name)}"

    def tool(
        self,
        tool: BoundTool,
        run: Run,
        preview: Callable[[Mapping[str, Any]], Preview | None] | None = None,
    ) -> Tool:
        """Make the tool of a bound tool, disabled if its source has changed it.

        Args:
            tool: the bound tool.
            run: calls the remote tool.
            preview: returns the change that a call would make.

        Raises:
            ToolDefinitionError: its declaration cannot be used.
        """
        off = (
            self.disabled_reason
            if any(described.name == tool.name for described in self.changed_tools)
            else None
        )
        spec = ToolSpec(
            name=self.tool_name(tool.name),
            description=tool.description,
            parameters=tool.parameters,
            effects=frozenset(tool.effects),
            plugin=self.plugin,
            private=True,
            cache=False,
        )
        return Tool(spec, run, preview=preview, disabled_reason=lambda: off, pinned=tool.pin)

    @property
    def disabled_reason(self) -> str:
        """The reason why a tool that the source has changed is disabled."""
        command = f"mlx-tools {_SHOW_COMMANDS[self.kind]} {self.name}"
        return f"it is not what was agreed to ({command} shows the difference)"

    @property
    def new(self) -> list[BoundTool]:
        """The tools that the source has added since a person agreed."""
        agreed_names = {tool.name for tool in self.tools}
        return [tool for tool in self.changed_tools if tool.name not in agreed_names]


class BoundSources:
    """The sources that the user added, one file each.

    Args:
        folder: the folder of the files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or data_dir() / "bound"

    def names(self) -> list[str]:
        """Return the names of all sources, sorted.

        Raises:
            ConfigError: the folder cannot be read.
        """
        with translate_os_error(ConfigError, f"{self.folder} cannot be read"):
            try:
                files = [Path(name) for name in os.listdir(self.folder)]  # noqa: PTH208
            except FileNotFoundError:
                return []
        return sorted(
            p.stem for p in files if p.suffix == ".json" and SOURCE_NAME.fullmatch(p.stem)
        )

    def read(self, name: str) -> BoundSource:
        """Return the source of this name.

        Raises:
            UsageError: there is no such source.
            ConfigError: the file is damaged, so nobody knows what the user agreed to.
        """
        path = self._path(name)
        with translate_os_error(ConfigError, f"{path} cannot be read", _HINT):
            try:
                data = read_private(path, MAX_SOURCE_BYTES)
            except FileNotFoundError:
                hint = f"there is {', '.join(self.names()) or 'none'}"
                raise UsageError(f"there is no source of tools {name}", hint=hint) from None
        try:
            return convert(json.loads(data), BoundSource)
        except (ValidationError, UsageError, ValueError, RecursionError):
            raise ConfigError(f"{path} is damaged", hint=_HINT) from None

    def save(self, source: BoundSource) -> None:
        """Write a source; it replaces the source of the same name.

        Raises:
            ConfigError: the file cannot be written. The old file then stays unchanged.
        """
        text = json.dumps(to_builtins(source))
        with contextlib.suppress(DecodeError):  # half a surrogate pair, which json accepts
            text = msgspec.json.format(text, indent=1)
        path = self._path(source.name)
        private_dir(self.folder)
        with translate_os_error(ConfigError, f"{path} cannot be written"):
            data = text.encode("utf-8", "backslashreplace") + b"\n"
            write_whole(path, data, max_bytes=MAX_SOURCE_BYTES)

    def remove(self, name: str) -> None:
        """Delete a source.

        Raises:
            UsageError: there is no source of this name.
        """
        with translate_os_error(ConfigError, str(self._path(name))):
            try:
                self._path(name).unlink()
            except FileNotFoundError:
                raise UsageError(f"there is no source of tools {name}") from None

    def _path(self, name: str) -> Path:
        if not SOURCE_NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!r} cannot name a source of tools")
        return self.folder / f"{name}.json"
