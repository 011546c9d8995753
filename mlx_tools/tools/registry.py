"""The tools that exist: the built-in ones, those of installed packages, those of the caller."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self

from mlx_tools import given
from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.policy import Policy, asks, check_presets, denial, matches, permitted
from mlx_tools.prompt import READER, SEARCH
from mlx_tools.spec import ToolSpec
from mlx_tools.tools.builtin.rooted import Root, RootName, supported
from mlx_tools.tools.entry_points import Offer, installed, is_tool, of_plugin, offered
from mlx_tools.tools.schema import check_parameters
from mlx_tools.tools.tool import Callee, check_declared


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
        for tool in given.items("tools", tools, "give a list of functions under @tool"):
            self.add(tool)

    @classmethod
    def builtin(
        cls,
        roots: Iterable[str | os.PathLike[str] | RootName] = (),
        *,
        switched_off: Mapping[str, str] | None = None,
        commands: Iterable[str] = (),
    ) -> Self:
        """The built-in tools. ``roots`` are folders that file tools may see (``DIR`` or
        ``DIR:rw``); without one, the file tools and ``run_command`` are disabled. ``commands`` are
        programs that ``run_command`` may run besides its own, with any arguments. Raises UsageError
        for a root that is no folder and a program that is no name, ToolDefinitionError where a
        preset does not hold for these tools."""
        from mlx_tools.tools.builtin.calculator import calculator
        from mlx_tools.tools.builtin.clock import clock
        from mlx_tools.tools.builtin.create_file import create_file
        from mlx_tools.tools.builtin.file_access import file_access
        from mlx_tools.tools.builtin.read_artifact import read_artifact
        from mlx_tools.tools.builtin.run_command import run_command, unusable
        from mlx_tools.tools.builtin.tool_search import tool_search

        registry = cls(switched_off=switched_off)
        usable = supported()
        names = [_root(root) for root in given.items("roots", roots, "give a list of folders")]
        opened = [Root(name) for name in names] if usable else []
        of_files = (file_access(opened), create_file(opened))
        others = (tool_search(registry), read_artifact())
        for tool in (calculator(), clock(), *of_files, *others):
            registry._put(tool)
        if not opened:
            no_roots = "no folder was named that it may see (--root DIR)"
            reason = no_roots if usable else "this system cannot open files safely (openat)"
            registry._disabled |= {tool.spec.name: reason for tool in of_files}
        further = given.items("commands", commands, "give a list of programs")
        registry._put(run_command(opened, further))
        registry._unusable["run_command"] = functools.partial(unusable, opened)
        check_presets({tool.spec.name: tool.spec for tool in registry._tools.values()})
        return registry

    def with_entry_points(self, find: Callable[[], Iterable[Offer]] = installed) -> Self:
        """Adds the tools of installed packages: entry points of the group ``mlx_tools.tools``.

        They are looked for and loaded when the registry is first asked for anything but a tool it
        has. An offer that cannot be loaded, and a tool that cannot be used or whose name is taken,
        is disabled with the reason, under ``plugin:PACKAGE/NAME``; nothing is raised. A package
        that is switched off as a whole is not imported.
        """
        self._pending = find
        return self

    def add(self, tool: Callee) -> None:
        """Adds a tool. Raises ToolDefinitionError for one that cannot be used, and where its name
        is taken."""
        if not is_tool(tool):
            raise ToolDefinitionError(f"{tool!r} is no tool", hint="decorate a function with @tool")
        spec = tool.spec
        if spec.name in self._tools:
            raise ToolDefinitionError(f"there is a tool {spec.name} already")
        try:
            check_declared(spec)
            check_parameters(spec.parameters)
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"{spec.name}: {error.message}", hint=error.hint) from None
        self._put(tool)

    def add_search(self) -> None:
        """Adds ``tool_search``, which looks through these tools, unless that name is taken."""
        from mlx_tools.tools.builtin.tool_search import tool_search

        if SEARCH not in self.all_specs():
            self._put(tool_search(self))

    def add_reader(self) -> None:
        """Adds ``read_artifact``, which reads on in outputs that were cut, unless that name is
        taken."""
        from mlx_tools.tools.builtin.read_artifact import read_artifact

        if READER not in self.all_specs():
            self._put(read_artifact())

    def disable(self, pattern: str, reason: str) -> None:
        """Switches off the tools that a name, a glob or ``plugin:NAME`` means."""
        self._switched_off[pattern] = reason

    def get(self, name: str) -> Callee:
        """The enabled tool of this name. Raises UsageError where there is none."""
        if name not in self._tools:
            self._load()
        tool = self._tools.get(name)
        if tool is None:
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
        spec = self.all_specs().get(name)
        if spec is None:
            offers = (why for key, why in self._disabled.items() if key.endswith(f"/{name}"))
            reason = next(offers, None)
            return "there is no such tool" if reason is None else f"it is disabled: {reason}"
        reason = self._reason(spec)
        if reason is not None:
            return f"it is disabled: {reason}"
        denied = denial(policy, spec)
        return None if denied is None else f"it is not permitted: {denied.reason}"

    def describe(self, name: str) -> dict[str, Any]:
        """Everything that is known of a tool before it runs, as JSON values: name, description,
        parameters, effects (all that are possible), plugin, timeout, retry, needs_approval,
        private."""
        spec = self.all_specs().get(name)
        if spec is None:
            raise UsageError(f"there is no tool {name[:100]!r}")
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
        }

    def listing(self, policy: Policy) -> list[dict[str, Any]]:
        """What ``mlx-tools tools list --json`` prints, an object a tool.

        ``permitted`` says whether the policy may allow a call at all, ``needs_approval`` whether
        every call is asked about. Disabled tools, and offers that could not be added, come along.
        """
        rows = []
        for name, spec in self.all_specs().items():
            reason = self._reason(spec)
            rows.append(
                {
                    "name": name,
                    "description": spec.description,
                    "effects": sorted(spec.possible_effects),
                    "plugin": spec.plugin,
                    "enabled": reason is None,
                    "disabled_reason": reason,
                    "permitted": reason is None and permitted(policy, spec),
                    "needs_approval": asks(policy, spec),
                }
            )
        return rows + [
            {
                "name": key.partition("/")[2],
                "description": "",
                "effects": [],
                "plugin": key.removeprefix("plugin:").partition("/")[0],
                "enabled": False,
                "disabled_reason": reason,
                "permitted": False,
                "needs_approval": False,
            }
            for key, reason in self._disabled.items()
            if key not in self._tools
        ]

    def _put(self, tool: Callee) -> None:
        self._tools[tool.spec.name] = tool

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


def _root(root: str | os.PathLike[str] | RootName) -> RootName:
    if isinstance(root, os.PathLike):
        return RootName(os.fspath(root))
    if isinstance(root, RootName):
        return root
    return RootName.parse(given.instance("a root", root, str, "write DIR, or DIR:rw"))
