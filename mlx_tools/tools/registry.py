"""The registry of tools: those of the caller, and those of packages and plugins.

Packages offer tools by entry points of the group ``mlx_tools.tools``. An entry point names a tool,
a list of tools, or a function without parameters that returns either.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from mlx_tools.errors import (
    MlxToolsError,
    ToolDefinitionError,
    UsageError,
    describe_error,
    for_message,
    read_attribute,
    require_instance,
    require_items,
    require_mapping,
    require_text,
)
from mlx_tools.messages import ToolSpec, list_names, tool_named
from mlx_tools.packages import find_offers, find_package, must_pass
from mlx_tools.policy import BUILTIN, PLUGIN, PLUGIN_NAME, Policy, always_asks, find_denial, matches
from mlx_tools.schema import check_parameters
from mlx_tools.tools.tool import ToolLike, check_declared, find_member, with_plugin

if TYPE_CHECKING:
    from mlx_tools.tools.bound import BoundSource, BoundSources, MakeTool

GROUP: Final = "mlx_tools.tools"
FOLDER: Final = "folder"
"""The plugin name of tools in the user's folder, for policies: ``plugin:folder``. No package can
have it."""

NO_SUCH: Final = "there is no such tool"
NOT_PERMITTED: Final = "it is not permitted"
_TOOL_HINT: Final = "is @tool missing?"
_NAME_HINT: Final = "give the name of a tool"
_SWITCHED_OFF_HINT: Final = "give names or globs of tools, each with the reason as a text"
_POLICY_HINT: Final = "write Policy(allow=[…])"


class Registry:
    """Tools by name, each enabled, or disabled with a reason.

    Args:
        tools: the caller's tools.
        switched_off: maps names, globs or ``plugin:NAME``, as in a policy, to the reason why these
            tools are disabled. It also applies to tools that are added later.

    Raises:
        ToolDefinitionError: a tool cannot be used, or its name is taken.
    """

    def __init__(
        self,
        tools: Iterable[ToolLike] | None = (),
        *,
        switched_off: Mapping[str, str] | None = None,
    ) -> None:
        self._tools: dict[str, ToolLike] = {}
        # the reasons why offers could not be added, by plugin:PACKAGE/NAME
        self._refusals: dict[str, str] = {}
        self._switched_off: dict[str, str] = {}
        for pattern, reason in require_mapping(
            "switched_off", switched_off, _SWITCHED_OFF_HINT
        ).items():
            self.disable(pattern, reason)
        self._offers: dict[str, ToolOffer] = {}
        self._pending: Callable[[], Iterable[ToolOffer]] | None = None
        self.offers: Callable[[], Iterable[ToolOffer]] = find_entry_points
        """Finds the tools of installed packages, by default their entry points
        (``mlx_tools.tools``)."""
        self.sources: list[BoundSource] = []
        """The sources of its bound tools."""
        self.closers: list[Callable[[], Awaitable[None]]] = []
        """Called by `aclose`."""
        for tool in require_items("tools", tools, "give a list of functions under @tool"):
            self.add(tool)

    def provide(self, tool: ToolLike) -> None:
        """Add a built-in tool, unless its name is taken. Its declaration is not checked."""
        self._tools.setdefault(tool.spec.name, tool)

    def with_entry_points(self, find: Callable[[], Iterable[ToolOffer]] | None = None) -> Self:
        """Add the tools of installed packages, which ``find`` or `offers` returns.

        They are loaded late: when the registry has to know all of its tools. An offer that cannot
        be loaded is disabled with the reason, under ``plugin:PACKAGE/NAME``. So is a tool that
        cannot be used or whose name is taken. Nothing is raised. If all tools of a package are
        switched off, it is not imported.
        """
        self._pending = find or self.offers
        return self

    def with_offers(self, offers: Iterable[ToolOffer]) -> Self:
        """Add the tools that a person added to built-in plugins.

        A tool that cannot be used, or whose name is taken, is disabled with the reason, under
        ``plugin:PLUGIN/NAME``.
        """
        for offer in offers:
            with self._record_refusal(f"{PLUGIN}{offer.plugin}/{offer.name}"):
                self._add_offered(offer)
        return self

    def find_offer(self, name: str) -> ToolOffer | None:
        """Return the offer of this name, also if its tool cannot be used; None if absent."""
        self.all_specs()
        return self._offers.get(name)

    def with_bound(
        self,
        sources: BoundSources,
        makers: Mapping[str, MakeTool],
        refusal: str | None = None,
    ) -> Self:
        """Add the tools of the user's sources.

        A tool is disabled with the reason, under ``plugin:KIND:SOURCE/NAME``, if it cannot be used,
        if the user did not agree to it, or if its name is taken.

        Args:
            sources: the sources that the user added.
            makers: for each kind of source, the function that makes its tools.
            refusal: the reason why no bound tool may run, None if they may.
        """
        for name in sources.names():
            try:
                source = sources.read(name)
            except MlxToolsError as error:
                self._refusals[f"{PLUGIN}bound:{name}/{name}"] = error.message
                continue
            self.sources.append(source)
            for tool in source.tools:
                with self._record_refusal(source.key(tool)):
                    if refusal is not None:
                        raise ToolDefinitionError(refusal)
                    if source.kind not in makers:
                        raise ToolDefinitionError(f"the plugin {source.kind} is not here")
                    self.add(makers[source.kind](source, tool), is_checked=True)
            self._refusals |= {source.key(tool): source.disabled_reason for tool in source.new}
        return self

    @contextlib.contextmanager
    def _record_refusal(self, key: str) -> Iterator[None]:
        """Store any exception of the block as the reason why this tool could not be added."""
        try:
            yield
        except ToolDefinitionError as error:
            self._refusals[key] = str(error)
        except BaseException as error:  # a package's code may raise anything
            if must_pass(error):
                raise
            reason = f"it could not be loaded: {describe_error(error)}"
            hint = f" ({_TOOL_HINT})" if isinstance(error, TypeError) else ""
            self._refusals[key] = reason + hint

    async def aclose(self) -> None:
        """Close resources of tools, such as connections."""
        for close in self.closers:
            await close()

    def add(self, tool: ToolLike, *, is_checked: bool = False) -> None:
        """Add a tool.

        Args:
            tool: the tool.
            is_checked: True if its schema was checked before, when the user agreed to it.

        Raises:
            ToolDefinitionError: the tool cannot be used, or its name is taken.
        """
        spec = read_attribute(tool, "spec")
        if not isinstance(spec, ToolSpec) or not callable(read_attribute(tool, "call")):
            hint = "decorate a function with @tool"
            raise ToolDefinitionError(f"{for_message(tool)} is no tool", hint=hint)
        if spec.name in self._tools:
            raise ToolDefinitionError(f"there is a tool {spec.name} already")
        if alias := next((name for name in list_names(spec.name) if name in self._tools), None):
            raise ToolDefinitionError(f"there is a tool {alias}, of which this is another name")
        check_declared(spec)
        try:
            spec.description.encode()
            if not is_checked:
                check_parameters(spec.parameters)
        except UnicodeEncodeError:
            what = "the description holds half of a surrogate pair"
            raise ToolDefinitionError(f"{spec.name}: {what}") from None
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"{spec.name}: {error.message}", hint=error.hint) from None
        self._tools[spec.name] = tool

    def disable(self, pattern: str, reason: str) -> None:
        """Switch off the tools that match a name, a glob or ``plugin:NAME``."""
        require_text("pattern", pattern, _SWITCHED_OFF_HINT)
        require_text("reason", reason, _SWITCHED_OFF_HINT)
        self._switched_off[pattern] = reason

    def get(self, name: str) -> ToolLike:
        """Return the enabled tool of this name or alias.

        Raises:
            UsageError: there is no such tool, or it is disabled.
        """
        if require_text("name", name, _NAME_HINT) not in self._tools:
            self.all_specs()
        tool = self._tools.get(tool_named(name, self._tools))
        reason = self._find_refusal(name) if tool is None else self._find_disabled_reason(tool.spec)
        if reason is not None:
            raise UsageError(f"{name} is disabled: {reason}")
        if tool is None:
            close = difflib.get_close_matches(name, self._tools, n=1)
            hint = f"did you mean {close[0]}?" if close else None
            raise UsageError(f"there is no tool {name[:100]!r}", hint=hint)
        return tool

    def __iter__(self) -> Iterator[ToolLike]:
        """Iterate over the enabled tools in order, as in ``[*builtin_tools(), mine]``."""
        return iter([self._tools[name] for name in self.specs()])

    def specs(self) -> dict[str, ToolSpec]:
        """Return the specifications of the enabled tools by name, in order of addition."""
        return {
            name: spec
            for name, spec in self.all_specs().items()
            if self._find_disabled_reason(spec) is None
        }

    def all_specs(self) -> dict[str, ToolSpec]:
        """Return the specifications of all tools, disabled ones too."""
        if self._pending is not None:
            self._load(self._pending)
        return {name: tool.spec for name, tool in self._tools.items()}

    def plugin_names(self) -> set[str]:
        """Return the plugin names that a policy can use."""
        names = {spec.plugin for spec in self.all_specs().values() if spec.plugin}
        names |= {source.plugin for source in self.sources}
        names |= {key.removeprefix(PLUGIN).partition("/")[0] for key in self._refusals}
        return names | {BUILTIN, FOLDER}

    def resolve_name(self, name: str) -> str:
        """Return the registered name of a tool, by this name or an alias."""
        return tool_named(require_text("name", name, _NAME_HINT), self.all_specs())

    def _find_refusal(self, name: str) -> str | None:
        """Return why an offered tool of this name could not be added, or None."""
        reasons = (reason for key, reason in self._refusals.items() if key.endswith(f"/{name}"))
        return next(reasons, None)

    @property
    def disabled(self) -> Mapping[str, str]:
        """The names of the disabled tools, each with the reason.

        An offer of a package that could not be added is listed under ``plugin:PACKAGE/NAME``.
        """
        reasons = {
            name: self._find_disabled_reason(spec) for name, spec in self.all_specs().items()
        }
        disabled = {name: reason for name, reason in reasons.items() if reason is not None}
        return MappingProxyType({**self._refusals, **disabled})

    def lacks(self, name: str, policy: Policy) -> str | None:
        """Return why a run under ``policy`` cannot call a tool, None if it can.

        The tool does not exist, is disabled (with the reason), or is not permitted by the policy.
        """
        require_instance("policy", policy, Policy, _POLICY_HINT)
        spec = self.all_specs().get(self.resolve_name(name))
        reason = self._find_refusal(name) if spec is None else self._find_disabled_reason(spec)
        if reason is not None:
            return f"it is disabled: {reason}"
        if spec is None:
            return NO_SUCH
        denied = find_denial(policy, spec)
        return None if denied is None else f"{NOT_PERMITTED}: {denied.reason}"

    def describe(self, name: str) -> dict[str, Any]:
        """Return the specification of a tool as JSON values.

        These are name, description, parameters, effects (all possible ones), plugin, timeout,
        retry, needs_approval, private and cache.
        """
        spec = self.all_specs().get(self.resolve_name(name))
        if spec is None:
            raise UsageError(f"there is no tool {name[:100]!r}")
        values = {field.name: getattr(spec, field.name) for field in fields(spec)}
        return values | {"effects": sorted(spec.possible_effects)}

    def listing(self, policy: Policy) -> list[dict[str, Any]]:
        """Return the rows of ``mlx-tools tools list --json``, one for each tool.

        Disabled tools, and offers that could not be added, are included. ``permitted`` is True if
        the policy may allow a call; otherwise ``denied_reason`` says why not. ``needs_approval`` is
        True if every call needs an approval. ``pinned`` is the digest of the version that the user
        agreed to, or None.
        """
        require_instance("policy", policy, Policy, _POLICY_HINT)
        rows = [self._make_row(spec, policy) for spec in self.all_specs().values()]
        for key, reason in self._refusals.items():
            plugin, _, name = key.removeprefix(PLUGIN).partition("/")
            rows.append(
                {
                    "name": name,
                    "description": "",
                    "effects": [],
                    "plugin": plugin,
                    "pinned": None,
                    "enabled": False,
                    "disabled_reason": reason,
                    "permitted": False,
                    "denied_reason": None,
                    "needs_approval": False,
                }
            )
        return rows

    def _find_disabled_reason(self, spec: ToolSpec) -> str | None:
        """Return why a tool is disabled, or None."""
        for pattern, why in self._switched_off.items():
            if matches(pattern, spec):
                return why
        ask = find_member(self._tools[spec.name], "disabled_reason")
        try:
            reason = None if ask is None else ask()
        except BaseException as error:  # a tool's code may raise anything
            if must_pass(error):
                raise
            return f"it cannot say whether it works: {describe_error(error)}"
        return reason if isinstance(reason, str) else None

    def _make_row(self, spec: ToolSpec, policy: Policy) -> dict[str, Any]:
        off, pinned = (
            self._find_disabled_reason(spec),
            getattr(self._tools[spec.name], "pinned", None),
        )
        denied = find_denial(policy, spec) if off is None else None
        return {
            "name": spec.name,
            "description": spec.description,
            "effects": sorted(spec.possible_effects),
            "plugin": spec.plugin,
            "pinned": pinned if isinstance(pinned, str) else None,
            "enabled": off is None,
            "disabled_reason": off,
            "permitted": off is None and denied is None,
            "denied_reason": denied and denied.reason,
            "needs_approval": always_asks(policy, spec),
        }

    def _load(self, find: Callable[[], Iterable[ToolOffer]]) -> None:
        """Load the tools that installed packages offer, once."""
        self._pending = None
        offers: list[ToolOffer] = []
        with self._record_refusal(f"{PLUGIN}any/entry_points"):  # packages' metadata may be broken
            offers += find()
        for offer in offers:
            with self._record_refusal(f"{PLUGIN}{offer.plugin}/{offer.name}"):
                off = next((p for p in self._switched_off if offer.is_meant_by(p)), None)
                if off is not None:
                    raise ToolDefinitionError(self._switched_off[off])
                if not PLUGIN_NAME.fullmatch(offer.plugin) or offer.plugin in (BUILTIN, FOLDER):
                    raise ToolDefinitionError(f"{offer.plugin!r} cannot name a plugin")
                self._add_offered(offer)

    def _add_offered(self, offer: ToolOffer) -> None:
        """Add the tools of an offer. If a tool cannot be used, store the reason."""
        self._offers.setdefault(offer.name, offer)
        for tool in offer.tools():
            name = getattr(tool, "__name__", offer.name)
            with self._record_refusal(f"{PLUGIN}{offer.plugin}/{name}"):
                if not _is_tool(tool):
                    raise _make_error(tool)
                self.add(with_plugin(tool, offer.plugin))


# --- offers of packages and plugins ---------------------------------------------------------------


class ToolOffer(Struct, frozen=True):
    """Tools that a package or plugin offers, not loaded yet."""

    plugin: str
    """The name of the package, or the plugin's name in policies."""
    name: str
    """The name of the tool, or of the entry point."""
    load: Callable[[], Any]
    """Returns the tools. Raises `ToolDefinitionError` with a reason if they cannot be used."""
    remove: Callable[[Callable[[str], bool]], str | None] | None = None
    """Deletes the tool for a person; None if that is not possible.

    It gets a function that asks the person a question. It returns a line that reports the deletion,
    None if the person said no."""
    last_output: Callable[[], tuple[str, str] | None] | None = None
    """Returns the folder of a tool that is being made, and the output of its last call."""

    def is_meant_by(self, pattern: str) -> bool:
        """Return True if a pattern covers all tools of this package."""
        if "/" in pattern or not PLUGIN_NAME.fullmatch(self.plugin):
            return False
        return pattern.startswith(PLUGIN) and matches(pattern, ToolSpec("any", plugin=self.plugin))

    def tools(self) -> list[Any]:
        """Load the tools and return them, unchecked.

        Raises:
            ToolDefinitionError: the offer is not a tool. The package may raise anything else, too.
        """
        offered = self.load()
        if callable(offered) and not _is_tool(offered) and not inspect.iscoroutinefunction(offered):
            offered = offered()
        if _is_tool(offered):
            return [offered]
        if isinstance(offered, str | Mapping) or not isinstance(offered, Iterable):
            raise _make_error(offered)
        return list(offered)


def find_entry_points() -> list[ToolOffer]:
    """Return the offers of installed packages, without importing them."""
    return [ToolOffer(find_package(point), point.name, point.load) for point in find_offers(GROUP)]


def _is_tool(value: Any) -> bool:
    """Return True if a value has a tool's members; its specification is not made."""
    if not callable(getattr(value, "call", None)) or isinstance(value, type):
        return False
    return hasattr(type(value), "spec") or isinstance(getattr(value, "spec", None), ToolSpec)


def _make_error(value: Any) -> ToolDefinitionError:
    return ToolDefinitionError(
        f"it offers {type(value).__name__}, which is no tool", hint=_TOOL_HINT
    )
