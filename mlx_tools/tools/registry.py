"""The tools that exist: those that were given, those of installed packages and of a folder.

Packages offer tools by entry points of the group ``mlx_tools.tools``. An entry point names a tool,
a list of tools, or a function without parameters that returns either.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from mlx_tools.errors import (
    MlxToolsError,
    ToolDefinitionError,
    UsageError,
    for_message,
    read_attribute,
    require_instance,
    require_items,
    require_mapping,
    require_text,
)
from mlx_tools.messages import ToolSpec, names_of, tool_named
from mlx_tools.policy import BUILTIN, PLUGIN, PLUGIN_NAME, Policy, always_asks, find_denial, matches
from mlx_tools.schema import check_parameters
from mlx_tools.tools.folder.collection import ToolCollection, exposed_by
from mlx_tools.tools.folder.definition import FOLDER
from mlx_tools.tools.folder.folder_tool import folder_tool
from mlx_tools.tools.tool import ToolLike, check_declared, member_of, of_plugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from mlx_tools.tools.bound import BoundSource, BoundSources, MakeTool, SourceKind

GROUP: Final = "mlx_tools.tools"
OWN: Final = "mlx-tools"
"""This package's own name."""
OWN_TOOLS: Final = "mlx_tools.toolbox:tools"
"""Its own entry point."""

NO_SUCH: Final = "there is no such tool"
NOT_PERMITTED: Final = "it is not permitted"
_MISSING: Final = "is @tool missing?"
_NAME: Final = "give the name of a tool"
_OFF: Final = "give names or globs of tools, each with the reason as a text"
_POLICY: Final = "write Policy(allow=[…])"


class Registry:
    """Tools by name, each enabled, or disabled with the reason.

    ``tools`` are the caller's. ``switched_off`` maps names, globs or ``plugin:NAME`` (as a policy
    writes them) to the reason why such tools do not run; it holds for tools that are added later.
    ``sources`` are those of its bound tools, ``closers`` what `aclose` calls.
    Raises ToolDefinitionError for a tool that cannot be used, and for a name that is taken.
    """

    def __init__(
        self,
        tools: Iterable[ToolLike] | None = (),
        *,
        switched_off: Mapping[str, str] | None = None,
    ) -> None:
        self._tools: dict[str, ToolLike] = {}
        # what was offered and is no tool, as plugin:PACKAGE/NAME
        self._refusals: dict[str, str] = {}
        self._switched_off: dict[str, str] = {}
        for pattern, reason in require_mapping("switched_off", switched_off, _OFF).items():
            self.disable(pattern, reason)
        self._pending: Callable[[], Iterable[EntryPointTools]] | None = None
        self.sources: list[BoundSource] = []
        self.closers: list[Callable[[], Awaitable[None]]] = []
        for tool in require_items("tools", tools, "give a list of functions under @tool"):
            self.add(tool)

    def with_builtin(self, **options: Any) -> Self:
        """Adds the tools that come with the package: what its own entry point names, made with
        these options."""
        from importlib.metadata import EntryPoint

        for tool in EntryPoint(BUILTIN, OWN_TOOLS, GROUP).load()(**options):
            self.provide(tool)
        return self

    def provide(self, tool: ToolLike) -> None:
        """Adds a tool that comes with the package, whose declaration its tests look at, unless its
        name is taken."""
        self._tools.setdefault(tool.spec.name, tool)

    def with_entry_points(
        self, find: Callable[[], Iterable[EntryPointTools]] | None = None
    ) -> Self:
        """Adds the tools of installed packages: entry points of the group ``mlx_tools.tools``.

        They are looked for and loaded when the registry is first asked for anything but a tool it
        has. An offer that cannot be loaded, and a tool that cannot be used or whose name is taken,
        is disabled with the reason, under ``plugin:PACKAGE/NAME``; nothing is raised. A package
        that is switched off as a whole is not imported.
        """
        self._pending = find or installed
        return self

    def with_folder(
        self, collection: ToolCollection, refusal: str | None = None, roots: Iterable[str] = ()
    ) -> Self:
        """Adds the tools of the user's folder that are trusted as they are.

        A tool that is not, that cannot be used or whose name is taken is disabled with the reason,
        under ``plugin:folder/NAME``; no word of its files is read as a tool's. ``refusal`` is why
        none of them may run; one that is being made may not where tools may write into it, below
        one of the ``roots``, below which a tool's whitelist holds. Raises ConfigError where it
        cannot be read what is trusted.
        """
        roots = tuple(roots)
        for found in collection.tools():
            with self._refusing(f"{PLUGIN}{FOLDER}/{found.name}"):
                if found.folder is None or refusal is not None:
                    raise ToolDefinitionError(refusal or found.reason or "")
                if found.log is not None:
                    what = "the folder in which it is made"
                    if exposed := exposed_by(found.folder.path, roots, what):
                        raise ToolDefinitionError(exposed)
                self.add(folder_tool(found.folder, found.reason, found.log, roots))
        return self

    def with_bound(
        self,
        sources: BoundSources,
        makers: Mapping[SourceKind, MakeTool],
        refusal: str | None = None,
    ) -> Self:
        """Adds the tools of these sources, each made by what makes such ones.

        One that cannot be used, that was not agreed to, or whose name is taken is disabled with the
        reason, under ``plugin:KIND:SOURCE/NAME``. ``refusal`` is why none of them may run.
        """
        for name in sources.names():
            try:
                source = sources.read(name)
            except MlxToolsError as error:
                self._refusals[f"{PLUGIN}bound:{name}/{name}"] = error.message
                continue
            self.sources.append(source)
            for tool in source.tools:
                with self._refusing(source.key(tool)):
                    if refusal is not None:
                        raise ToolDefinitionError(refusal)
                    self.add(makers[source.kind](source, tool), is_checked=True)
            self._refusals |= {source.key(tool): source.changed for tool in source.new}
        return self

    @contextlib.contextmanager
    def _refusing(self, key: str) -> Iterator[None]:
        """What is raised of a tool in it is why there is none of this key, whatever it is."""
        try:
            yield
        except ToolDefinitionError as error:
            self._refusals[key] = str(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # somebody else's code: nothing is known of it
            reason = f"it could not be loaded: {type(error).__name__}: {error}"[:300]
            hint = f" ({_MISSING})" if isinstance(error, TypeError) else ""
            self._refusals[key] = reason + hint

    async def aclose(self) -> None:
        """Ends what tools have kept open, such as connections."""
        for close in self.closers:
            await close()

    def add(self, tool: ToolLike, *, is_checked: bool = False) -> None:
        """Adds a tool. Raises ToolDefinitionError for one that cannot be used, and where its name
        is taken. ``is_checked``: its schema was found sound when it was agreed to."""
        spec = read_attribute(tool, "spec")
        if not isinstance(spec, ToolSpec) or not callable(read_attribute(tool, "call")):
            hint = "decorate a function with @tool"
            raise ToolDefinitionError(f"{for_message(tool)} is no tool", hint=hint)
        if spec.name in self._tools:
            raise ToolDefinitionError(f"there is a tool {spec.name} already")
        if other := next((name for name in names_of(spec.name) if name in self._tools), None):
            raise ToolDefinitionError(f"there is a tool {other}, of which this is another name")
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
        """Switches off the tools that a name, a glob or ``plugin:NAME`` means."""
        require_text("pattern", pattern, _OFF)
        require_text("reason", reason, _OFF)
        self._switched_off[pattern] = reason

    def get(self, name: str) -> ToolLike:
        """The enabled tool of this name, or of which it is another one. Raises UsageError where
        there is none."""
        if require_text("name", name, _NAME) not in self._tools:
            self.all_specs()
        tool = self._tools.get(tool_named(name, self._tools))
        reason = self._why_refused(name) if tool is None else self._reason(tool.spec)
        if reason is not None:
            raise UsageError(f"{name} is disabled: {reason}")
        if tool is None:
            close = difflib.get_close_matches(name, self._tools, n=1)
            hint = f"did you mean {close[0]}?" if close else None
            raise UsageError(f"there is no tool {name[:100]!r}", hint=hint)
        return tool

    def __iter__(self) -> Iterator[ToolLike]:
        """The enabled tools, in the order in which they came: ``[*builtin_tools(), mine]``."""
        return iter([self._tools[name] for name in self.specs()])

    def specs(self) -> dict[str, ToolSpec]:
        """The specs of the enabled tools by name, in the order in which they came."""
        return {name: spec for name, spec in self.all_specs().items() if self._reason(spec) is None}

    def all_specs(self) -> dict[str, ToolSpec]:
        """The specs of all tools, disabled ones too."""
        if self._pending is not None:
            self._load(self._pending)
        return {name: tool.spec for name, tool in self._tools.items()}

    def named(self, name: str) -> str:
        """The name of the tool that is meant: ``name``, or of which it is another one."""
        return tool_named(require_text("name", name, _NAME), self.all_specs())

    def _why_refused(self, name: str) -> str | None:
        """Return why a tool of this name was offered and could not be added, None where none
        was."""
        offers = (why for key, why in self._refusals.items() if key.endswith(f"/{name}"))
        return next(offers, None)

    @property
    def disabled(self) -> Mapping[str, str]:
        """The names of the disabled tools, each with the reason. What a package offers and could
        not be added stands under ``plugin:PACKAGE/NAME``."""
        reasons = {name: self._reason(spec) for name, spec in self.all_specs().items()}
        found = {name: reason for name, reason in reasons.items() if reason is not None}
        return MappingProxyType({**self._refusals, **found})

    def lacks(self, name: str, policy: Policy) -> str | None:
        """Return why a run under ``policy`` can call no tool of this name: there is none, it is
        disabled (with the reason), or the policy does not permit it. None where it may."""
        require_instance("policy", policy, Policy, _POLICY)
        spec = self.all_specs().get(self.named(name))
        reason = self._why_refused(name) if spec is None else self._reason(spec)
        if reason is not None:
            return f"it is disabled: {reason}"
        if spec is None:
            return NO_SUCH
        denied = find_denial(policy, spec)
        return None if denied is None else f"{NOT_PERMITTED}: {denied.reason}"

    def describe(self, name: str) -> dict[str, Any]:
        """Everything that is known of a tool before it runs, as JSON values: name, description,
        parameters, effects (all that are possible), plugin, timeout, retry, needs_approval,
        private, cache."""
        spec = self.all_specs().get(self.named(name))
        if spec is None:
            raise UsageError(f"there is no tool {name[:100]!r}")
        known = {one.name: getattr(spec, one.name) for one in fields(spec)}
        return known | {"effects": sorted(spec.possible_effects)}

    def listing(self, policy: Policy) -> list[dict[str, Any]]:
        """Return what ``mlx-tools tools list --json`` prints, an object a tool.

        ``permitted`` says whether the policy may allow a call at all, ``needs_approval`` whether
        every call is asked about, ``pinned`` what it is held to, None where it is to nothing,
        ``denied_reason`` why no call of one that works is permitted.
        Disabled tools, and offers that could not be added, come along.
        """
        require_instance("policy", policy, Policy, _POLICY)
        rows = [self._row(spec, policy) for spec in self.all_specs().values()]
        for key, why in self._refusals.items():
            plugin, _, name = key.removeprefix(PLUGIN).partition("/")
            rows.append(
                {
                    "name": name,
                    "description": "",
                    "effects": [],
                    "plugin": plugin,
                    "pinned": None,
                    "enabled": False,
                    "disabled_reason": why,
                    "permitted": False,
                    "denied_reason": None,
                    "needs_approval": False,
                }
            )
        return rows

    def _reason(self, spec: ToolSpec) -> str | None:
        """Return why a tool is disabled, None where it is not."""
        for pattern, why in self._switched_off.items():
            if matches(pattern, spec):
                return why
        ask = member_of(self._tools[spec.name], "disabled_reason")
        try:
            reason = None if ask is None else ask()
        except Exception as error:  # somebody else's code
            return f"it cannot say whether it works: {type(error).__name__}: {error}"[:300]
        return reason if isinstance(reason, str) else None

    def _row(self, spec: ToolSpec, policy: Policy) -> dict[str, Any]:
        off, pinned = self._reason(spec), getattr(self._tools[spec.name], "pinned", None)
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

    def _load(self, find: Callable[[], Iterable[EntryPointTools]]) -> None:
        """Loads what installed packages offer, once."""
        self._pending = None
        offers: list[EntryPointTools] = []
        with self._refusing(f"{PLUGIN}any/entry_points"):  # metadata can be in any state
            offers += find()
        for offer in offers:
            with self._refusing(f"{PLUGIN}{offer.plugin}/{offer.name}"):
                off = next((p for p in self._switched_off if offer.is_meant_by(p)), None)
                if off is not None:
                    raise ToolDefinitionError(self._switched_off[off])
                for tool in offer.tools():
                    name = getattr(tool, "__name__", offer.name)
                    with self._refusing(f"{PLUGIN}{offer.plugin}/{name}"):
                        if not _is_tool(tool):
                            raise _no_tool(tool)
                        self.add(of_plugin(tool, offer.plugin))


# --- what installed packages offer ----------------------------------------------------------------


class EntryPointTools(Struct, frozen=True):
    """One entry point: the package's name, the entry point's own, and what imports it."""

    plugin: str
    name: str
    load: Callable[[], Any]

    def is_meant_by(self, pattern: str) -> bool:
        """Return whether a pattern means everything that this package offers."""
        if "/" in pattern or not PLUGIN_NAME.fullmatch(self.plugin):
            return False
        return pattern.startswith(PLUGIN) and matches(pattern, ToolSpec("any", plugin=self.plugin))

    def tools(self) -> list[Any]:
        """Imports it and returns what it says are tools. Raises whatever it raises, and
        ToolDefinitionError for what can be none."""
        if not PLUGIN_NAME.fullmatch(self.plugin) or self.plugin in (BUILTIN, FOLDER):
            raise ToolDefinitionError(f"{self.plugin!r} cannot name a plugin")
        found = self.load()
        if callable(found) and not _is_tool(found) and not inspect.iscoroutinefunction(found):
            found = found()
        if _is_tool(found):
            return [found]
        if isinstance(found, str | Mapping) or not isinstance(found, Iterable):
            raise _no_tool(found)
        return list(found)


def installed() -> list[EntryPointTools]:
    """Return what other packages offer here, in order of package and name; nothing is imported
    yet."""
    offers = {}
    for point in _entry_points(tuple(map(_state_of, sys.path))):
        package = point.dist.name if point.dist is not None else None
        if package != OWN:
            offers[str(package or point.module), point.name, point.value] = point.load
    return [
        EntryPointTools(plugin, name, offers[plugin, name, at])
        for plugin, name, at in sorted(offers)
    ]


def _state_of(place: str) -> tuple[str, int]:
    """The place on the import path, and when something was last installed or removed there."""
    with contextlib.suppress(OSError):
        return place, os.stat(place or ".").st_mtime_ns  # noqa: PTH116
    return place, 0


@functools.lru_cache(maxsize=4)
def _entry_points(places: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """The entry points of packages at these places. Each registry asks, and to read those of a
    hundred packages takes as long as a short command."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _is_tool(value: Any) -> bool:
    """Return whether the value has what a tool has; its spec is not made for that."""
    if not callable(getattr(value, "call", None)) or isinstance(value, type):
        return False
    return hasattr(type(value), "spec") or isinstance(getattr(value, "spec", None), ToolSpec)


def _no_tool(value: Any) -> ToolDefinitionError:
    return ToolDefinitionError(f"it offers {type(value).__name__}, which is no tool", hint=_MISSING)
