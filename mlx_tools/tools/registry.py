"""The tools that exist: those that were given, those of installed packages and of a folder."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from mlx_tools.errors import ToolDefinitionError, UsageError, require_items
from mlx_tools.messages import ToolSpec, names_of, tool_named
from mlx_tools.policy import PLUGIN, Policy, asks, denial, matches, permitted
from mlx_tools.prompt import READER, SEARCH
from mlx_tools.schema.resolve import check_parameters
from mlx_tools.tools.declaration import check_declared
from mlx_tools.tools.entry_points import Offer, installed, is_tool, of_plugin, offered
from mlx_tools.tools.folder import PLUGIN as FOLDER
from mlx_tools.tools.tool import Callee

if TYPE_CHECKING:
    from mlx_tools.tools.folder.collection import Shelf


def described(spec: ToolSpec) -> dict[str, Any]:
    """All that a tool declares."""
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "effects": sorted(spec.possible_effects),
        "plugin": spec.plugin,
        "timeout": spec.timeout,
        "retry": spec.retry,
        "needs_approval": spec.needs_approval,
        "private": spec.private,
        "cache": spec.cache,
    }


def row(spec: ToolSpec, off: str | None, policy: Policy) -> dict[str, Any]:
    """A tool in a list. ``off`` is why it is disabled, None where it is not."""
    return {
        "name": spec.name,
        "description": spec.description,
        "effects": sorted(spec.possible_effects),
        "plugin": spec.plugin,
        "enabled": off is None,
        "disabled_reason": off,
        "permitted": off is None and permitted(policy, spec),
        "needs_approval": asks(policy, spec),
    }


def row_of_offer(key: str, why: str) -> dict[str, Any]:
    """What stands in the list for an offer, ``plugin:PACKAGE/NAME``, that came to no tool."""
    plugin, _, name = key.removeprefix(PLUGIN).partition("/")
    return {
        "name": name,
        "description": "",
        "effects": [],
        "plugin": plugin,
        "enabled": False,
        "disabled_reason": why,
        "permitted": False,
        "needs_approval": False,
    }


NO_SUCH: Final = "there is no such tool"
NOT_PERMITTED: Final = "it is not permitted"


class Registry:
    """Tools by name, each enabled, or disabled with the reason.

    ``tools`` are the caller's. ``switched_off`` maps names, globs or ``plugin:NAME`` (as a policy
    writes them) to the reason why such tools do not run; it holds for tools that are added later.
    Raises ToolDefinitionError for a tool that cannot be used, and for a name that is taken.
    """

    def __init__(
        self, tools: Iterable[Callee] | None = (), *, switched_off: Mapping[str, str] | None = None
    ) -> None:
        self._tools: dict[str, Callee] = {}
        self._disabled: dict[str, str] = {}
        self._switched_off = dict(switched_off or {})
        self._unusable: dict[str, Callable[[], str | None]] = {}
        self._pending: Callable[[], Iterable[Offer]] | None = None
        for tool in require_items("tools", tools, "give a list of functions under @tool"):
            self.add(tool)

    def provide(
        self, tool: Callee, off: str | None = None, unusable: Callable[[], str | None] | None = None
    ) -> None:
        """Adds a tool that comes with the package, disabled where ``off`` says why; ``unusable``
        says so too, each time somebody asks."""
        self._put(tool, unusable=unusable)
        if off is not None:
            self._disabled[tool.spec.name] = off

    def with_entry_points(self, find: Callable[[], Iterable[Offer]] = installed) -> Self:
        """Adds the tools of installed packages: entry points of the group ``mlx_tools.tools``.

        They are looked for and loaded when the registry is first asked for anything but a tool it
        has. An offer that cannot be loaded, and a tool that cannot be used or whose name is taken,
        is disabled with the reason, under ``plugin:PACKAGE/NAME``; nothing is raised. A package
        that is switched off as a whole is not imported.
        """
        self._pending = find
        return self

    def with_folder(self, shelf: Shelf, refused: str | None = None) -> Self:
        """Adds the tools of the user's folder that are trusted as they are.

        A tool that is not, that cannot be used or whose name is taken is disabled with the reason,
        under ``plugin:folder/NAME``; no word of its files is read as a tool's. ``refused`` is why
        none of them may run. Raises ConfigError where it cannot be read what is trusted.
        """
        from mlx_tools.tools.folder.folder_tool import folder_tool

        for found in shelf.tools():
            key = f"{PLUGIN}{FOLDER}/{found.name}"
            if found.folder is None or refused is not None:
                self._disabled[key] = refused or found.reason or ""
                continue
            try:
                self.add(folder_tool(found.folder))
            except ToolDefinitionError as error:
                self._disabled[key] = str(error)
                continue
            if found.reason is not None:
                self._disabled[found.name] = found.reason
        return self

    def add(self, tool: Callee) -> None:
        """Adds a tool. Raises ToolDefinitionError for one that cannot be used, and where its name
        is taken."""
        if not is_tool(tool):
            raise ToolDefinitionError(f"{tool!r} is no tool", hint="decorate a function with @tool")
        spec = tool.spec
        if spec.name in self._tools:
            raise ToolDefinitionError(f"there is a tool {spec.name} already")
        if other := next((name for name in names_of(spec.name) if name in self._tools), None):
            raise ToolDefinitionError(f"there is a tool {other}, of which this is another name")
        try:
            check_declared(spec)
            check_parameters(spec.parameters)
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"{spec.name}: {error.message}", hint=error.hint) from None
        self._put(tool)

    def add_search(self) -> None:
        """Adds ``tool_search``, which looks through these tools, unless that name is taken."""
        from mlx_tools.tools.tool_search import tool_search

        if SEARCH not in self.all_specs():
            self._put(tool_search(self))

    def add_reader(self) -> None:
        """Adds ``read_artifact``, which reads on in outputs that were cut, unless that name is
        taken."""
        from mlx_tools.tools.read_artifact import read_artifact

        if READER not in self.all_specs():
            self._put(read_artifact())

    def disable(self, pattern: str, reason: str) -> None:
        """Switches off the tools that a name, a glob or ``plugin:NAME`` means."""
        self._switched_off[pattern] = reason

    def get(self, name: str) -> Callee:
        """The enabled tool of this name, or of which it is another one. Raises UsageError where
        there is none."""
        if name not in self._tools:
            self._load()
        tool = self._tools.get(tool_named(name, self._tools))
        if tool is None:
            reason = self._refused_offer(name)
            if reason is not None:
                raise UsageError(f"{name} is disabled: {reason}")
            close = difflib.get_close_matches(name, self._tools, n=1)
            hint = f"did you mean {close[0]}?" if close else None
            raise UsageError(f"there is no tool {name[:100]!r}", hint=hint)
        reason = self._reason(tool.spec)
        if reason is not None:
            raise UsageError(f"{name} is disabled: {reason}")
        return tool

    def specs(self) -> dict[str, ToolSpec]:
        """The specs of the enabled tools by name, in the order in which they came."""
        return {name: spec for name, spec in self.all_specs().items() if self._reason(spec) is None}

    def all_specs(self) -> dict[str, ToolSpec]:
        """The specs of all tools, disabled ones too."""
        self._load()
        return {name: tool.spec for name, tool in self._tools.items()}

    def named(self, name: str) -> str:
        """The name of the tool that is meant: ``name``, or of which it is another one."""
        return tool_named(name, self.all_specs())

    def _refused_offer(self, name: str) -> str | None:
        """Why a tool of this name was offered and could not be added, None where none was."""
        offers = (why for key, why in self._disabled.items() if key.endswith(f"/{name}"))
        return next(offers, None)

    @property
    def disabled(self) -> Mapping[str, str]:
        """The names of the disabled tools, each with the reason. What a package offers and could
        not be added stands under ``plugin:PACKAGE/NAME``."""
        reasons = {name: self._reason(spec) for name, spec in self.all_specs().items()}
        found = {name: reason for name, reason in reasons.items() if reason is not None}
        return MappingProxyType({**self._disabled, **found})

    def lacks(self, name: str, policy: Policy) -> str | None:
        """Why a run under ``policy`` can call no tool of this name: there is none, it is disabled
        (with the reason), or the policy does not permit it. None where it may."""
        spec = self.all_specs().get(self.named(name))
        if spec is None:
            reason = self._refused_offer(name)
            return NO_SUCH if reason is None else f"it is disabled: {reason}"
        reason = self._reason(spec)
        if reason is not None:
            return f"it is disabled: {reason}"
        denied = denial(policy, spec)
        return None if denied is None else f"{NOT_PERMITTED}: {denied.reason}"

    def describe(self, name: str) -> dict[str, Any]:
        """Everything that is known of a tool before it runs, as JSON values: name, description,
        parameters, effects (all that are possible), plugin, timeout, retry, needs_approval,
        private, cache."""
        spec = self.all_specs().get(self.named(name))
        if spec is None:
            raise UsageError(f"there is no tool {name[:100]!r}")
        return described(spec)

    def listing(self, policy: Policy) -> list[dict[str, Any]]:
        """What ``mlx-tools tools list --json`` prints, an object a tool.

        ``permitted`` says whether the policy may allow a call at all, ``needs_approval`` whether
        every call is asked about. Disabled tools, and offers that could not be added, come along.
        """
        own = [row(spec, self._reason(spec), policy) for spec in self.all_specs().values()]
        refused = {key: why for key, why in self._disabled.items() if key not in self._tools}
        return own + [row_of_offer(key, why) for key, why in refused.items()]

    def _put(self, tool: Callee, *, unusable: Callable[[], str | None] | None = None) -> None:
        """Takes in a tool; ``unusable`` says when asked why it cannot be used then."""
        self._tools[tool.spec.name] = tool
        if unusable is not None:
            self._unusable[tool.spec.name] = unusable

    def _reason(self, spec: ToolSpec) -> str | None:
        """Why a tool is disabled, None where it is not."""
        off = (why for pattern, why in self._switched_off.items() if matches(pattern, spec))
        reason = next(off, None) or self._disabled.get(spec.name)
        late = self._unusable.get(spec.name) if reason is None else None
        return reason if late is None else late()

    def _offers(self, find: Callable[[], Iterable[Offer]]) -> list[Offer]:
        try:
            return list(find())
        except Exception as error:  # the metadata of installed packages can be in any state
            reason = f"installed packages cannot be looked through: {error}"
            self._disabled["plugin:any/entry_points"] = reason[:300]
            return []

    def _load(self) -> None:
        """Loads what installed packages offer, once."""
        find, self._pending = self._pending, None
        for offer in self._offers(find) if find is not None else ():
            off = next((p for p in self._switched_off if offer.is_meant_by(p)), None)
            if off is not None:
                self._disabled[offer.key] = self._switched_off[off]
                continue
            try:
                tools = offered(offer)
            except ToolDefinitionError as error:
                self._disabled[offer.key] = str(error)
                continue
            for tool in tools:
                try:
                    self.add(of_plugin(tool, offer.plugin))
                except ToolDefinitionError as error:
                    name = getattr(tool, "__name__", offer.name)
                    self._disabled[f"plugin:{offer.plugin}/{name}"] = str(error)
