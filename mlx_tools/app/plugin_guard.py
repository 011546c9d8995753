"""The guard of functions that plugins give, called after their hooks.

They are somebody else's code: whatever they raise must name the plugin.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import convert, structs

from mlx_tools.app.hook_values import SourceMaker
from mlx_tools.errors import MlxToolsError, PluginError, describe_error
from mlx_tools.messages import replace

Refuse = Callable[[str], None]
"""Reports that a part of the plugin is left out, with the reason."""


def guard_part(plugin: str, hook: str, part: Any, refuse: Refuse, *, built_in: bool = False) -> Any:
    """Return a part of a hook's result whose functions name the plugin if they fail.

    Args:
        plugin: the plugin's name.
        hook: the hook.
        part: a usable part of the result.
        refuse: called for what can be left out instead.
        built_in: True for a plugin of our own, whose backends are taken as they are.
    """
    if hook == "backends":
        make = _guard(plugin, "its backend cannot be made", part, _check_backend)
        return make if built_in else _guard_backend(plugin, make)
    if isinstance(part, SourceMaker):
        return replace(
            part,
            make_more=part.make_more and _guard_maker(part.make_more, refuse),
            close=part.close and tolerate_async(part.close, refuse, "sources: close"),
        )
    guarded = {
        name: _guard(plugin, f"{hook}: {name}", function, check)
        for name, check in _CALLBACKS.get(hook, {}).items()
        if (function := getattr(part, name)) is not None
    }
    if hook == "tables" and guarded:
        return replace(part, owner=_guard_owner(plugin, guarded["owner"]))
    return replace(part, **guarded) if guarded else part


@contextlib.contextmanager
def name_plugin(plugin: str, place: str) -> Iterator[None]:
    """Raise any foreign exception in the block as one that names the plugin.

    Raises:
        PluginError: the block failed.
    """
    try:
        yield
    except MlxToolsError:
        raise
    except (Exception, SystemExit) as error:  # somebody else's code: nothing is known of it
        raise PluginError(
            f"the plugin {plugin} failed: {place}: {describe_error(error)}"
        ) from error


def _guard(
    plugin: str,
    place: str,
    function: Callable[..., Any],
    check: Callable[[Any], str | None] | None = None,
) -> Callable[..., Any]:
    """Return the function with its exceptions named, and its result checked."""

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **options: Any) -> Any:
        with name_plugin(plugin, place):
            result = function(*arguments, **options)
            if check is not None and (fault := check(result)) is not None:
                raise TypeError(fault)
            return result

    return call


def _guard_owner(plugin: str, owner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the maker of a function that says which sessions are the plugin's."""

    def make(store: Any) -> Any:
        return _guard(plugin, "tables: owner", owner(store))

    return make


def _guard_maker(make: Callable[[Any], Any], refuse: Refuse) -> Callable[[Any], list[Any]]:
    """Return a maker of further tools that gives none if it fails."""

    def make_more(sources: Any) -> list[Any]:
        try:
            tools = list(make(sources))
            for tool in tools:
                if isinstance(tool, type) or not isinstance(tool.spec.name, str):
                    raise TypeError(f"it offers {type(tool).__name__}, which is no tool")
        except MlxToolsError as error:
            refuse(f"sources: {error}")
        except (Exception, SystemExit) as error:  # somebody else's code: nothing is known of it
            refuse(f"sources: {describe_error(error)}")
        else:
            return tools
        return []

    return make_more


def tolerate_async(
    function: Callable[[], Awaitable[Any]], refuse: Refuse, place: str
) -> Callable[[], Awaitable[None]]:
    """Return the function such that a failure of it is reported, and all goes on."""

    async def call() -> None:
        try:
            await function()
        except (Exception, SystemExit) as error:  # somebody else's code: nothing is known of it
            refuse(f"{place}: {describe_error(error)}")

    return call


def tolerate(
    function: Callable[..., Any], refuse: Refuse, place: str, fallback: Any = None
) -> Callable[..., Any]:
    """Return the function such that a failure is reported, and gives ``fallback``."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:  # somebody else's code: nothing is known of it
            refuse(f"{place}: {describe_error(error)}")
            return fallback

    return call


class PluginBackend:
    """A backend of a plugin; whatever else than a completion fails names the plugin.

    Failures of completions are translated where they are asked for.
    """

    def __init__(self, plugin: str, backend: Any) -> None:
        names = {"_plugin": plugin, "_backend": backend}
        names["name_in_errors"] = f"{type(backend).__name__} of the plugin {plugin}"
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._backend, name)
        if name not in ("health", "models", "start", "aclose") or not callable(value):
            return value

        async def call(*arguments: Any, **options: Any) -> Any:
            with name_plugin(self._plugin, f"{name} of its backend"):
                result = await value(*arguments, **options)
                return _BACKEND_RESULTS[name](result) if name in _BACKEND_RESULTS else result

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._backend, name, value)


def _guard_backend(plugin: str, make: Callable[..., Any]) -> Callable[..., PluginBackend]:
    def call(*arguments: Any, **options: Any) -> PluginBackend:
        return PluginBackend(plugin, make(*arguments, **options))

    return call


def _check_backend(value: Any) -> str | None:
    needed = ("complete", "health", "models", "aclose") if value.kind == "native" else ("complete",)
    missing = [name for name in needed if not callable(getattr(value, name, None))]
    if value.kind not in ("native", "local", "completions"):
        return f"{type(value).__name__} has the kind {value.kind!r:.40}, which is none"
    return f"{type(value).__name__} has no function {missing[0]}" if missing else None


def _as_health(value: Any) -> Any:
    """Return the result of a backend's ``health``.

    Raises:
        TypeError: it is no `Health`.
        ValidationError: a field of it has a wrong type.
    """
    from mlx_tools.backends import Health

    if not isinstance(value, Health):
        raise TypeError(f"it gives {type(value).__name__}, which is no Health")
    convert(structs.asdict(value), Health)
    return value


def _as_model_names(value: Any) -> tuple[str, ...]:
    """Return the result of a backend's ``models`` as a tuple.

    Raises:
        TypeError: it is no list of texts.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"it gives {type(value).__name__}, which is no list of models' names")
    return tuple(value)


_BACKEND_RESULTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "health": _as_health,
    "models": _as_model_names,
}
"""For functions of a backend, the check of the result."""


def _check_store(value: Any) -> str | None:
    from mlx_tools.store import SessionStore

    is_store = isinstance(value, SessionStore)
    return None if is_store else f"it gives {type(value).__name__}, which is no SessionStore"


def _check_function(value: Any) -> str | None:
    return None if callable(value) else f"it gives {type(value).__name__}, which is no function"


_CALLBACKS: Final[Mapping[str, Mapping[str, Callable[[Any], str | None] | None]]] = {
    "store": {"open": _check_store, "check": None},
    "tables": {"owner": _check_function},
    "offers": {"remove": None, "last_output": None},
}
"""For each hook, the functions of its parts that are called later, with the check of the result."""
