"""Tools that installed packages offer: entry points of the group ``mlx_tools.tools``.

An entry point names a tool, a list of tools, or a function without parameters that returns either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.policy import matches
from mlx_tools.policy.patterns import PLUGIN_NAME
from mlx_tools.spec import ToolSpec
from mlx_tools.tools.builtin.words import PLUGIN as BUILTIN
from mlx_tools.tools.folder import PLUGIN as FOLDER
from mlx_tools.tools.tool import Callee, Tool

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
            found = found()
        return [found] if is_tool(found) else list(found)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # somebody else's code: nothing is known of it
        text = f"{type(error).__name__}: {error}"
        raise ToolDefinitionError(f"it could not be loaded: {text[:300]}") from None


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
    raise ToolDefinitionError(f"it offers {type(tool).__name__}, which is no tool")
