"""The hooks by which plugins add to mlx-tools, and the plugins that are here.

A built-in plugin is a folder of ``mlx_tools/plugins``. It implements a hook by a function in the
file of the hook's name, which is imported when the hook is first called. Another package names a
module in the entry-point group ``mlx_tools``. Its functions with `hookimpl` implement the same
hooks, with the same rights.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pluggy
from msgspec import Struct

from mlx_tools.app.hook_results import filter_parts
from mlx_tools.app.hook_values import (
    BackendMaker,
    Command,
    SessionTable,
    SourceMaker,
    StoreKind,
    ToolRequest,
)
from mlx_tools.app.plugin_guard import guard_part
from mlx_tools.errors import MlxToolsError, UsageError, describe_error
from mlx_tools.packages import PLUGINS as GROUP
from mlx_tools.packages import find_offers, find_package, must_pass

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from starlette.routing import BaseRoute

    from mlx_tools.app.checks import Check
    from mlx_tools.app.setting_rows import Section
    from mlx_tools.controller import Observer
    from mlx_tools.tools import BoundSources, ToolLike, ToolOffer

PACKAGE: Final = "mlx_tools.plugins"
"""The package whose folders are the built-in plugins."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)
"""Marks a plugin's function as an implementation of the hook of its name."""

Exports = TypeVar("Exports", bound=Struct)

_log = logging.getLogger(__name__)
_MAX_FAULTS: Final = 20
"""Faults of one plugin that are reported."""


# --- the hooks ------------------------------------------------------------------------------------


@hookspec
def tools(request: ToolRequest) -> Iterable[ToolLike]:  # type: ignore[empty-body]
    """Return the plugin's tools, in the order of a listing.

    A tool that cannot work here is returned too, with a ``disabled_reason``. The results of another
    package's tool are checked, and a policy calls the tool ``plugin:PACKAGE``.

    Args:
        request: the roots, options and settings to make them from.

    Returns:
        The tools.

    Raises:
        UsageError: an option of the plugin is not valid.
    """


@hookspec
def offers(request: ToolRequest) -> Iterable[ToolOffer]:  # type: ignore[empty-body]
    """Return tools that a person added, each with a function that loads it.

    They come after all built-in tools, and cannot take the name of one. A tool that cannot run is
    offered too: loading it raises `ToolDefinitionError` with the reason. An offer of another
    package always belongs to ``plugin:PACKAGE``.

    Args:
        request: the roots, options and settings to make them from.

    Returns:
        The offers, not loaded yet.

    Raises:
        ConfigError: the list of the tools cannot be read.
    """


@hookspec
def commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Return the plugin's commands.

    A command whose name is already taken is left out, and reported.

    Returns:
        The commands, not imported yet.

    Raises:
        Exception: the plugin is faulty; it is left out.
    """


@hookspec
def checks(configuration: Any) -> Iterable[Check]:  # type: ignore[empty-body]
    """Return checks of the plugin, which ``mlx-tools doctor`` shows after its own.

    Args:
        configuration: the settings, a `Configuration`.

    Returns:
        The results, in the order that they are shown.

    Raises:
        Exception: the plugin is faulty; its checks are left out.
    """


@hookspec
def routes(gateway: Any) -> Iterable[BaseRoute]:  # type: ignore[empty-body]
    """Return the plugin's routes of the gateway.

    The gateway checks key, host and origin before them, as before its own routes. A plugin cannot
    replace a path that the gateway serves itself.

    Args:
        gateway: the parts that all routes of the gateway share, a `mlx_tools.gateway.Gateway`. It
            has the settings, the served models, counters, clocks, and lists of functions to call.

    Returns:
        The routes, as in Starlette.

    Raises:
        Exception: the plugin is faulty; its routes are left out.
    """


@hookspec
def settings() -> Mapping[str, type[Section]]:  # type: ignore[empty-body]
    """Return the plugin's tables of the configuration file, by name.

    Each field has a default, and is annotated with its type and a `Setting`, which has the rule for
    a project's file. A plugin cannot replace an existing table, option or variable, or a field of a
    run.

    Returns:
        The tables. ``Configuration.section(NAME)`` gives the values.

    Raises:
        Exception: the plugin is faulty; its settings are left out.
    """


@hookspec
def backends() -> Mapping[str, BackendMaker]:  # type: ignore[empty-body]
    """Return backends by the word before their addresses, such as ``ollama:URL``.

    Returns:
        For each interface, a function or class that makes the backend. The backend's ``kind`` is
        ``native`` if it takes messages and tools. `CompletionsBackend` shows its optional
        functions. Under ``local``, a function that loads a model into this process, from the
        model's folder and ``note``.

    Raises:
        Exception: the plugin is faulty; its interfaces are left out.
    """


@hookspec
def store() -> Iterable[StoreKind]:  # type: ignore[empty-body]
    """Return kinds of stores for sessions, which the setting ``sessions`` may name.

    Returns:
        The kinds. The first one of a scheme is used.

    Raises:
        Exception: the plugin is faulty; its kinds are left out.
    """


@hookspec
def sources(  # type: ignore[empty-body]
    sources: BoundSources, roots: Sequence[str]
) -> Mapping[str, SourceMaker]:
    """Return the makers of the tools of bound sources, by the kind of source.

    Args:
        sources: the sources that a person agreed to.
        roots: the open folders, as absolute paths.

    Returns:
        For each kind, its maker.

    Raises:
        Exception: the plugin is faulty; its tools are disabled.
    """


@hookspec
def tables() -> Iterable[SessionTable]:  # type: ignore[empty-body]
    """Return the tables that the plugin stores beside the sessions.

    Returns:
        The tables.

    Raises:
        Exception: the plugin is faulty; its tables are ignored.
    """


@hookspec
def observers() -> Iterable[Observer]:  # type: ignore[empty-body]
    """Return observers of runs.

    Each is called with the transcript when a run begins, and returns an object that gets the events
    of that run (`RunObserver`), or None. Its faults are logged, and do not affect the run.

    Returns:
        The observers.

    Raises:
        Exception: the plugin is faulty; its observers are left out.
    """


# --- the plugins ----------------------------------------------------------------------------------


class Plugins:
    """The plugins of one process, loaded hook by hook.

    If a plugin fails in a hook, it is left out there. Parts of a result that cannot be used are
    left out too. A warning names the plugin, once for each fault.

    Args:
        package: the package whose folders are the built-in plugins.
        find: finds the entry points of other packages in a group.
    """

    def __init__(
        self,
        package: str = PACKAGE,
        find: Callable[[str], Iterable[EntryPoint]] = find_offers,
    ) -> None:
        self.faults: dict[str, str] = {}
        """For each faulty plugin, by name, the parts that were left out with the reasons."""
        self.without_settings: set[str] = set()
        """The plugins whose tables of settings are unknown because of a fault."""
        self._reasons: dict[str, list[str]] = {}
        self._package, self._find = package, find
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(sys.modules[__name__])
        self._built_in: dict[str, dict[str, Any]] = {}
        self._installed: dict[str, Any] | None = None
        # Reentrant, because a plugin may call a hook while it is imported, in the same thread.
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """Return the names of the installed built-in plugins."""
        modules = pkgutil.iter_modules(self._places())
        return sorted(module.name for module in modules if module.ispkg)

    def exports(self, name: str, names: type[Exports]) -> Exports:
        """Return names that a built-in plugin offers to others, with their types.

        Args:
            name: the plugin.
            names: a Struct whose fields are the names, each with the type that the caller needs.

        Raises:
            UsageError: there is no such plugin, or it does not offer one of the names.
        """
        if name not in self.names():
            raise UsageError(f"this needs the plugin {name}, which is not here")
        package = import_module(f"{self._package}.{name}")
        try:
            return names(**{one: getattr(package, one) for one in names.__struct_fields__})
        except AttributeError as error:
            raise UsageError(f"the plugin {name} does not fit: {error}") from error

    def call(self, hook: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
        """Yield each plugin's name and the usable parts of its result for a hook.

        Built-in plugins come first, each kind by name. The parts are a list, or a dictionary if the
        hook returns values by name (`filter_parts`).

        Raises:
            MlxToolsError: a built-in plugin says that an argument is wrong.
        """
        for kind, found in ((True, self.built_in(hook)), (False, self.installed(hook))):
            for name in found:
                yield from self.call_one(name, hook, built_in=kind, **arguments)

    def call_one(
        self, name: str, hook: str, *, built_in: bool, **arguments: Any
    ) -> Iterator[tuple[str, Any]]:
        """Yield the name and the usable parts of one plugin's result, nothing if it fails.

        Raises:
            MlxToolsError: a built-in plugin says that an argument is wrong.
        """
        plugin = (self.built_in(hook) if built_in else self.installed(hook))[name]
        results: list[Any] = []
        with self._report(name, hook, built_in=built_in):
            parts, faults = filter_parts(hook, self._call_plugin(plugin, hook, arguments))
            results.append(self._guard_parts(name, hook, parts, built_in=built_in))
            if faults:
                self._leave_out(name, hook, "; ".join(faults))
        yield from ((name, result) for result in results)

    def built_in(self, hook: str) -> Mapping[str, Any]:
        """Return the files of built-in plugins for a hook, by the plugin's name."""
        if hook not in self._built_in:
            files: dict[str, Any] = {}
            for name in self.names():
                if not self._has_file(name, hook):
                    continue
                with self._report(name, hook):
                    plugin = import_module(f"{self._package}.{name}.{hook}")
                    self._register(plugin, f"{name}.{hook}")
                    files[name] = plugin
            self._built_in[hook] = files
        return self._built_in[hook]

    def installed(self, hook: str) -> Mapping[str, Any]:
        """Return the plugins of other packages for a hook, by the package's name."""
        with self._lock:  # another thread must not see an incomplete table
            if self._installed is None:
                self._installed = {}
                for point in self._find(GROUP):
                    package = find_package(point)
                    name = package if package not in self._installed else f"{package}:{point.name}"
                    with self._report(name):
                        plugin = point.load()
                        self._register(plugin, name)
                        self._installed[name] = plugin
            installed = dict(self._installed)
        callers = {
            name: {caller.name for caller in self._manager.get_hookcallers(plugin) or ()}
            for name, plugin in installed.items()
        }
        return {name: plugin for name, plugin in installed.items() if hook in callers[name]}

    def refuse(self, name: str, reason: str, *, whole: bool = False) -> None:
        """Leave out a part of a plugin, or all of it, and report the reason once."""
        reasons = self._reasons.setdefault(name, [])
        reason = "".join(char if char.isprintable() else " " for char in reason[:300])
        if reason in reasons or len(reasons) == _MAX_FAULTS:
            return
        reasons.append(reason)
        self.faults[name] = "; ".join(reasons)
        what = "the plugin" if whole else "a part of the plugin"
        _log.warning("mlx-tools: warning: %s %s is left out: %s", what, name, reason)

    def _places(self) -> Sequence[str]:
        """Return the folders of the built-in plugins."""
        parent, _, _ = self._package.rpartition(".")
        places = import_module(parent).__path__ if parent else None
        spec = PathFinder.find_spec(self._package, places)
        return [] if spec is None else spec.submodule_search_locations or []

    def _has_file(self, name: str, hook: str) -> bool:
        """Return True if a built-in plugin has a file for the hook. Nothing is imported."""
        folder = PathFinder.find_spec(f"{self._package}.{name}", self._places())
        places = None if folder is None else folder.submodule_search_locations
        return PathFinder.find_spec(f"{self._package}.{name}.{hook}", places) is not None

    def _register(self, plugin: Any, name: str) -> None:
        with self._lock:
            if self._manager.get_plugin(name) is plugin:
                return  # by another thread
            self._manager.register(plugin, name)
            for caller in self._manager.get_hookcallers(plugin) or ():
                if not caller.has_spec():
                    self._manager.unregister(plugin)
                    raise UsageError(f"there is no hook {caller.name}")

    def _call_plugin(self, plugin: Any, hook: str, arguments: Mapping[str, Any]) -> Any:
        # Not by the manager, which would also call plugins that another thread registers meanwhile.
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            is_wrapper = implementation.wrapper or implementation.hookwrapper
            if implementation.plugin is plugin and not is_wrapper:
                return implementation.function(*map(arguments.__getitem__, implementation.argnames))
        return None

    @contextlib.contextmanager
    def _report(self, name: str, hook: str = "", *, built_in: bool = False) -> Iterator[None]:
        """Report any exception in the block as a fault of this plugin or hook."""
        try:
            yield
        except BaseException as error:  # foreign code may raise anything
            if must_pass(error) or (built_in and isinstance(error, MlxToolsError)):
                raise
            where = f"{hook}: " if hook else ""
            self._leave_out(name, hook, f"{where}{describe_error(error)}")

    def _guard_parts(self, name: str, hook: str, parts: Any, *, built_in: bool) -> Any:
        """Return the parts with guarded functions, whose errors name the plugin."""
        refuse = functools.partial(self.refuse, name)
        guard = functools.partial(guard_part, name, hook, refuse=refuse, built_in=built_in)
        if isinstance(parts, dict):
            return {key: guard(part) for key, part in parts.items()}
        return [guard(part) for part in parts]

    def _leave_out(self, name: str, hook: str, reason: str) -> None:
        """Leave out a plugin's result for one hook, or the whole plugin."""
        if hook in ("", "settings"):
            self.without_settings.add(name)
        self.refuse(name, reason, whole=not hook)


_ONE_AT_A_TIME: Final = threading.Lock()


def plugins() -> Plugins:
    """Return the plugins of this process."""
    with _ONE_AT_A_TIME:  # with a cache alone, two threads could each make one
        return _make_plugins()


@functools.cache
def _make_plugins() -> Plugins:
    return Plugins()


def collect(hook: str, **arguments: Any) -> list[Any]:
    """Return the results of all plugins for a hook, in one list.

    Args:
        hook: the name of a hook whose result is a list.
        arguments: the hook's arguments.
    """
    return [part for _, parts in plugins().call(hook, **arguments) for part in parts]


def find_store_kind(address: str) -> StoreKind:
    """Return the kind of store that an address names.

    Raises:
        UsageError: no plugin stores sessions at such an address, or it is not valid.
    """
    kinds: list[StoreKind] = collect("store")
    scheme = address.partition("://")[0].lower()
    kind = next((kind for kind in kinds if scheme in kind.schemes), None)
    if kind is None:
        for known in kinds[:1]:
            known.check(address)  # its error shows what a valid address looks like
        raise UsageError("no plugin that is here keeps sessions at such an address")
    kind.check(address)
    return kind


def list_backend_makers() -> dict[str, BackendMaker]:
    """Return the makers of plugins' backends, by interface."""
    return _collect_by_name("backends")


def list_source_makers(sources: BoundSources, roots: Sequence[str]) -> dict[str, SourceMaker]:
    """Return the makers of the tools of bound sources, by the kind of source."""
    return _collect_by_name("sources", sources=sources, roots=roots)


def _collect_by_name(hook: str, **arguments: Any) -> dict[str, Any]:
    """Return the results of all plugins for a hook, by name. The first of a name wins."""
    hooks, found, owners = plugins(), dict[str, Any](), dict[str, str]()
    for plugin, offered in hooks.call(hook, **arguments):
        for name, value in offered.items():
            if name in found:
                hooks.refuse(plugin, f"{hook}: {name} is there already, from {owners[name]}")
            else:
                found[name], owners[name] = value, plugin
    return found


def check_server_address(url: str) -> None:
    """Check the address of a model server and its interface.

    Raises:
        UsageError: the address is not valid, or no plugin has its interface.
    """
    from mlx_tools.backends import check_interface, parse_address

    address = parse_address(url)
    if address.interface:
        check_interface(address, list_backend_makers())


def list_plugin_commands(reserved: Iterable[str] = ()) -> dict[str, tuple[str, Command]]:
    """Return the commands of all plugins by name, each with its plugin.

    Args:
        reserved: the names of other commands. A plugin's command with such a name is left out.
    """
    hooks = plugins()
    owners = dict.fromkeys((*reserved, "help"), "mlx-tools")
    commands: dict[str, tuple[str, Command]] = {}
    for plugin, offered in hooks.call("commands"):
        for command in offered:
            if (owner := owners.setdefault(command.name, plugin)) != plugin:
                reason = f"there is a command {command.name} already, from {owner}"
                hooks.refuse(plugin, reason)
            elif command.name in commands:
                hooks.refuse(plugin, f"it has the command {command.name} twice")
            else:
                commands[command.name] = plugin, command
    return commands
