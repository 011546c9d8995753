"""The arguments and results of plugins' hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from mlx_tools.store import FileFormat, Root, SessionStore
    from mlx_tools.tools import BoundSource, BoundTool, Tool
    from mlx_tools.transcript import Header


class ToolRequest(Struct, frozen=True):
    """The parts that a plugin can make its tools from."""

    roots: tuple[Root, ...] = ()
    """The open folders that file tools may see."""
    no_walk: str | None = None
    """The reason why no folder can be walked safely on this system, None if it can."""
    no_files: str | None = None
    """The reason why no file can be read, None if files can."""
    options: Mapping[str, Any] = {}
    """The options of `mlx_tools.builtin_tools`. A plugin reads those that it knows."""
    configuration: Any = None
    """The settings, a `Configuration`. None if a program lists tools without settings."""
    header: Header | None = None
    """The header of a session that continues."""


class Command(Struct, frozen=True):
    """A command of the command line, or a group of commands."""

    name: str
    """The word after ``mlx-tools``."""
    help: str
    """Its line in ``mlx-tools --help``."""
    app: str
    """Its `typer.Typer`, as ``module:name``. It is imported when the command is used."""


class StoreKind(Struct, frozen=True):
    """A kind of store for sessions."""

    schemes: tuple[str, ...]
    """The words before ``://`` in its addresses."""
    open: Callable[..., SessionStore]
    """Opens the store at an address, with the other arguments of `SessionStore`."""
    check: Callable[[str], object]
    """Raises `UsageError` for an address that is not valid, without connecting to it."""


class SourceMaker(Struct, frozen=True):
    """Makes the tools of bound sources of one kind."""

    make: Callable[[BoundSource, BoundTool], Tool]
    """Makes a tool that a person agreed to, without connecting to its source."""
    make_more: Callable[[Sequence[BoundSource]], Iterable[Tool]] | None = None
    """Makes further tools for all bound sources."""
    close: Callable[[], Awaitable[None]] | None = None
    """Closes the connections of the tools at the end."""


class SessionTable(Struct, frozen=True):
    """A plugin's table in the store of the sessions."""

    form: FileFormat
    """Its format. ``mlx-tools store copy`` copies the table too."""
    owner: Callable[[SessionStore], Callable[[str], bool]] | None = None
    """Returns for a store a function that returns True for the plugin's own sessions.

    These are no conversations of a person.
    """


BackendMaker = Callable[..., Any]
"""Makes a `Backend` for an address, a model's name or None, and ``api_key``."""
