"""Bound tools: specs that stand for what is elsewhere, an MCP server's tool or an operation of an
HTTP interface, held to what a person agreed to.

A source is kept in one private file: where it is, which version, and its tools with their
descriptions, schemas and effects as they were agreed to. So a run needs nobody elsewhere to know
its tools, and what is said otherwise later changes nothing until a person agrees again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import ValidationError, convert, to_builtins

from mlx_tools.errors import ConfigError, UsageError, translate_os_error
from mlx_tools.messages import ALL_EFFECTS, TOOL_NAME, Effect, ToolSpec
from mlx_tools.paths import data_dir, private_dir, read_private, write_whole
from mlx_tools.policy import PLUGIN
from mlx_tools.schema import check_parameters, matchable
from mlx_tools.tools.tool import Preview, Run, Tool

SourceKind = Literal["mcp", "openapi"]

SOURCE_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]|_(?!_)){0,30}", re.ASCII)
MAX_SOURCE_BYTES: Final = 64_000_000
SEPARATOR: Final = "__"
"""Between a source's name and its tool's, which is why no source has it in its name."""

_SHOWN_BY: Final[Mapping[SourceKind, str]] = {"mcp": "mcp test", "openapi": "tools bind"}
"""The command that shows what a source says otherwise."""

MakeTool = Callable[["BoundSource", "BoundTool"], Tool]
"""Makes what calls a bound tool. Raises ToolDefinitionError."""

_HINT: Final = "look at it, or remove it and add the source again"


def is_here(host: str | None) -> bool:
    """Whether a host, as an address names it, is this machine."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool as it is elsewhere. ``name`` is its name there; ``at`` is what a call of it needs to
    know, such as method and path. ``effects`` are what was agreed to."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    effects: tuple[Effect, ...] = tuple(sorted(ALL_EFFECTS))
    at: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def told(
        cls,
        name: str,
        texts: Iterable[Any],
        max_chars: int,
        schema: Mapping[str, Any],
        **fields: Any,
    ) -> BoundTool:
        """A tool as it is described elsewhere: by these texts, of which ``max_chars`` characters
        count, and a schema. Raises ToolDefinitionError where that cannot be used."""
        parameters, _ = matchable(schema)
        check_parameters(parameters)
        lines = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
        return cls(name, "\n".join(dict.fromkeys(lines))[:max_chars], parameters, **fields)

    @property
    def pin(self) -> str:
        """SHA-256 of what is said of the tool elsewhere, 64 hexadecimal digits; not of its effects,
        which are said here."""
        said = (self.name, self.description, self.parameters, self.at)
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundSource:
    """Where bound tools come from. ``at`` is what is needed to get there; ``version`` is what it
    calls itself, ``digest`` is of the document that says what it offers, where there is one.

    ``tools`` are those that were agreed to. ``said`` are those that it was seen to describe
    otherwise since, or to have beyond them: they are off until a person agrees.
    """

    name: str
    kind: SourceKind
    at: Mapping[str, Any]
    version: str = ""
    digest: str = ""
    tools: tuple[BoundTool, ...] = ()
    said: tuple[BoundTool, ...] = ()

    def __post_init__(self) -> None:
        if not SOURCE_NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name[:80]!r} cannot name a source of tools",
                hint="use 1 to 31 of A-Z a-z 0-9 . - and single _",
            )

    @property
    def plugin(self) -> str:
        """The name by which a policy means all of its tools."""
        return f"{self.kind}:{self.name}"

    def tool_name(self, name: str) -> str:
        """The name here of the tool that has this name there: with the source's before it, so that
        it can take no other's place. Characters that no tool's name has here are ``_``; a long name
        is cut, with a digest in place of the rest."""
        text = f"{self.name}{SEPARATOR}{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
        if not TOOL_NAME.fullmatch(text):
            text = f"{text[:55]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return text

    def key(self, tool: BoundTool) -> str:
        """What stands for one of its tools that cannot be had: its plugin and name."""
        return f"{PLUGIN}{self.plugin}/{self.tool_name(tool.name)}"

    def tool(
        self,
        tool: BoundTool,
        run: Run,
        preview: Callable[[Mapping[str, Any]], Preview | None] | None = None,
    ) -> Tool:
        """One of its tools, which ``run`` calls; off where it is not what was agreed to. Raises
        ToolDefinitionError where it can be none."""
        off = self.changed if any(one.name == tool.name for one in self.said) else None
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
    def changed(self) -> str:
        """Why a tool is off that the source describes otherwise by now."""
        command = f"mlx-tools {_SHOWN_BY[self.kind]} {self.name}"
        return f"it is not what was agreed to ({command} shows the difference)"

    @property
    def new(self) -> list[BoundTool]:
        """The tools that the source was seen to have beyond those that were agreed to."""
        known = {tool.name for tool in self.tools}
        return [tool for tool in self.said if tool.name not in known]


class BoundSources:
    """The sources that the user added, a file each, in ``folder``."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or data_dir() / "bound"

    def names(self) -> list[str]:
        """The names of all sources, in order. Raises ConfigError where the folder cannot be
        read."""
        with translate_os_error(ConfigError, f"{self.folder} cannot be read"):
            try:
                found = [Path(name) for name in os.listdir(self.folder)]  # noqa: PTH208
            except FileNotFoundError:
                return []
        return sorted(
            p.stem for p in found if p.suffix == ".json" and SOURCE_NAME.fullmatch(p.stem)
        )

    def read(self, name: str) -> BoundSource:
        """The source of this name. Raises UsageError where there is none, ConfigError where it
        cannot be read as one: what was agreed to is then not known."""
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

    def put(self, source: BoundSource) -> None:
        """Keep a source, in place of the one of its name. Raises ConfigError where it cannot be
        written: what was there is there then."""
        text = json.dumps(to_builtins(source), indent=1)
        path = self._path(source.name)
        private_dir(self.folder)
        with translate_os_error(ConfigError, f"{path} cannot be written"):
            write_whole(path, text.encode("utf-8", "backslashreplace") + b"\n")

    def remove(self, name: str) -> None:
        """Forget a source. Raises UsageError where there is none of this name."""
        with translate_os_error(ConfigError, str(self._path(name))):
            try:
                self._path(name).unlink()
            except FileNotFoundError:
                raise UsageError(f"there is no source of tools {name}") from None

    def _path(self, name: str) -> Path:
        if not SOURCE_NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!r} cannot name a source of tools")
        return self.folder / f"{name}.json"
