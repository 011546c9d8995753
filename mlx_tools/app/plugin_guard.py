"""Guards for plugins' functions that are called after their hooks.

They are foreign code, so the message of any exception must name the plugin.
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
from mlx_tools.packages import must_pass

Refuse = Callable[[str], None]
"""Reports that a part of the plugin is left out, with the reason."""


def guard_part(plugin: str, hook: str, part: Any, refuse: Refuse, *, built_in: bool = False) -> Any:
    """Return a part of a hook's result with functions whose errors name the plugin.

    Args:
        plugin: the plugin's name.
        hook: the hook.
        part: a usable part of the result.
        refuse: called with the reason if a function fails that can be left out.
        built_in: True for a plugin of our own, whose backends are not guarded.
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
def name_plugin(plugin: str, place: str, *, awaited: bool = False) -> Iterator[None]:
    """Turn any foreign exception in the block into one that names the plugin.

    ``awaited`` is that of `must_pass`.

    Raises:
        PluginError: the block failed.
    """
    try:
        yield
    except MlxToolsError:
        raise
    except BaseException as error:  # somebody else's code: nothing is known of it
        if must_pass(error, awaited=awaited):
            raise
        raise PluginError(
            f"the plugin {plugin} failed: {place}: {describe_error(error)}"
        ) from error


def _guard(
    plugin: str,
    place: str,
    function: Callable[..., Any],
    check: Callable[[Any], str | None] | None = None,
) -> Callable[..., Any]:
    """Return the function with errors that name the plugin and a checked result."""

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **options: Any) -> Any:
        with name_plugin(plugin, place):
            result = function(*arguments, **options)
            if check is not None and (fault := check(result)) is not None:
                raise TypeError(fault)
            return result

    return call


def _guard_owner(plugin: str, owner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the guarded maker of a function that recognises the plugin's sessions."""

    def make(store: Any) -> Any:
        return _guard(plugin, "tables: owner", owner(store))

    return make


def _guard_maker(make: Callable[[Any], Any], refuse: Refuse) -> Callable[[Any], list[Any]]:
    """Return a maker of further tools that returns none if it fails."""

    def make_more(sources: Any) -> list[Any]:
        try:
            tools = list(make(sources))
            for tool in tools:
                if isinstance(tool, type) or not isinstance(tool.spec.name, str):
                    raise TypeError(f"it offers {type(tool).__name__}, which is no tool")
        except MlxToolsError as error:
            refuse(f"sources: {error}")
        except BaseException as error:  # somebody else's code: nothing is known of it
            if must_pass(error):
                raise
            refuse(f"sources: {describe_error(error)}")
        else:
            return tools
        return []

    return make_more


def tolerate_async(
    function: Callable[[], Awaitable[Any]], refuse: Refuse, place: str
) -> Callable[[], Awaitable[None]]:
    """Return the function with its exceptions reported instead of raised."""

    async def call() -> None:
        try:
            await function()
        except BaseException as error:  # somebody else's code: nothing is known of it
            if must_pass(error, awaited=True):
                raise
            refuse(f"{place}: {describe_error(error)}")

    return call


def tolerate(
    function: Callable[..., Any], refuse: Refuse, place: str, fallback: Any = None
) -> Callable[..., Any]:
    """Return the function, which reports an exception and then returns ``fallback``."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:  # somebody else's code: nothing is known of it
            if must_pass(error):
                raise
            refuse(f"{place}: {describe_error(error)}")
            return fallback

    return call


class PluginBackend:
    """A backend of a plugin, whose errors name the plugin.

    Errors of completions are translated by the callers of `complete`.
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
            with name_plugin(self._plugin, f"{name} of its backend", awaited=True):
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
"""The checks of results, by the backend's function."""


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
"""For each hook, the functions of its parts that are called later, each with a result check."""
