"""Tools that installed packages offer: entry points of the group ``mlx_tools.tools``.

An entry point names a tool, a list of tools, or a function without parameters that returns either.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import PLUGIN_NAME, matches
from mlx_tools.tools.folder import PLUGIN as FOLDER
from mlx_tools.tools.tool import Callee, Tool
from mlx_tools.tools.tool_words import PLUGIN as BUILTIN

GROUP: Final = "mlx_tools.tools"


@dataclass(frozen=True, slots=True)
class Offer:
    """One entry point: the package's name, the entry point's own, and what imports it."""

    plugin: str
    name: str
    load: Callable[[], Any]

    @property
    def key(self) -> str:
        """What stands for the offer in listings where it came to no tool."""
        return f"plugin:{self.plugin}/{self.name}"

    def is_meant_by(self, pattern: str) -> bool:
        """Whether a pattern means everything that this package offers."""
        if "/" in pattern or not PLUGIN_NAME.fullmatch(self.plugin):
            return False
        return pattern.startswith("plugin:") and matches(
            pattern, ToolSpec("any", plugin=self.plugin)
        )


def installed() -> list[Offer]:
    """What is installed here, in order of package and name; nothing is imported yet."""
    from importlib.metadata import entry_points

    offers = {}
    for point in entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else None
        offers[str(package or point.module), point.name, point.value] = point.load
    return [Offer(plugin, name, offers[plugin, name, at]) for plugin, name, at in sorted(offers)]


def offered(offer: Offer) -> list[Any]:
    """Imports an offer and returns what it says are tools. Raises ToolDefinitionError, with the
    reason, whatever goes wrong in it."""
    if not PLUGIN_NAME.fullmatch(offer.plugin) or offer.plugin in (BUILTIN, FOLDER):
        raise ToolDefinitionError(f"{offer.plugin!r} cannot name a plugin")
    try:
        found = offer.load()
        if callable(found) and not is_tool(found):
            if _wants_arguments(found):
                raise _no_tool(f"the function {getattr(found, '__name__', offer.name)}")
            found = found()
        if is_tool(found):
            return [found]
        if isinstance(found, str | Mapping) or not isinstance(found, Iterable):
            raise _no_tool(type(found).__name__)
        return list(found)
    except (KeyboardInterrupt, ToolDefinitionError):
        raise
    except BaseException as error:  # somebody else's code: nothing is known of it
        text = f"{type(error).__name__}: {error}"
        raise ToolDefinitionError(f"it could not be loaded: {text[:300]}") from None


def _wants_arguments(function: Callable[..., Any]) -> bool:
    """Whether it is more likely meant as a tool than as what returns tools."""
    if inspect.iscoroutinefunction(function):
        return True
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # it has no signature that could be read
        return False
    return False


def _no_tool(what: str) -> ToolDefinitionError:
    return ToolDefinitionError(f"it offers {what}, which is no tool", hint="is @tool missing?")


def is_tool(value: Any) -> bool:
    """Whether the value has what a tool has. May raise what making its spec raises."""
    if isinstance(value, Tool):
        return True
    return isinstance(getattr(value, "spec", None), ToolSpec) and callable(
        getattr(value, "call", None)
    )


def of_plugin(tool: Any, plugin: str) -> Callee:
    """The tool, said to come from ``plugin``. Raises ToolDefinitionError for what is no tool."""
    try:
        if isinstance(tool, Tool):
            return tool.of_plugin(plugin)
        if is_tool(tool):
            return Tool(replace(tool.spec, plugin=plugin), tool.call)
    except ToolDefinitionError:
        raise
    except Exception as error:  # somebody else's code
        raise ToolDefinitionError(f"{type(error).__name__}: {error}"[:300]) from None
    raise _no_tool(type(tool).__name__)
