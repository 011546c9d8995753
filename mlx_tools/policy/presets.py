"""Named sets of tools, frozen here so that no configuration can change what a name grants.

A preset names tools and the effects it grants them. The ceiling on effects holds for each call: a
tool that reads or writes, as its arguments say, is admitted by a ``readonly_`` preset for its reads
alone. A tool of a plugin is never meant, whatever its name: its words about itself are its own.

No preset grants ``execute``. What a call executes is not held to the policy (it might change the
configuration, or start a run under another policy), so such a tool can widen a policy, and is
allowed by name or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import MUTATING, Effects, ToolSpec

READ_ONLY: Final = "readonly_"
"""A preset whose name starts so grants no effect that changes anything."""

BUILTIN: Final = "builtin"
"""The plugin of the built-in tools."""


@dataclass(frozen=True, slots=True)
class Preset:
    """What a name grants: these tools, by exact name, and of their effects no more than these."""

    name: str
    tools: tuple[str, ...]
    effects: Effects

    def __post_init__(self) -> None:
        if self.name.startswith(READ_ONLY) and not MUTATING.isdisjoint(self.effects):
            raise ToolDefinitionError(f"preset {self.name} grants effects that change things")
        if "execute" in self.effects:
            raise ToolDefinitionError(
                f"preset {self.name} grants execute, which can widen a policy"
            )

    def names(self, spec: ToolSpec) -> bool:
        """Whether this tool is one that the preset means, whatever it may do."""
        return spec.name in self.tools and spec.plugin in ("", BUILTIN)


def _frozen(*presets: Preset) -> Mapping[str, Preset]:
    return MappingProxyType({preset.name: preset for preset in presets})


_READ: Effects = frozenset(("read",))
_FILES: Effects = frozenset(("read", "write"))

PRESETS: Final[Mapping[str, Preset]] = _frozen(
    Preset("readonly_basic", ("calculator", "clock", "file_access", "read_artifact"), _READ),
    Preset("readonly_files", ("file_access", "format_xml", "read_artifact"), _READ),
    Preset(
        "readonly_knowledge",
        ("query_knowledge_base", "list_corpora", "calculator", "clock", "read_artifact"),
        _READ,
    ),
    Preset(
        "workspace",
        ("calculator", "clock", "file_access", "create_file", "format_xml", "read_artifact"),
        _FILES,
    ),
    Preset("notes", ("clock", "notes_create", "notes_search", "read_artifact"), _FILES),
)

DEFAULT_PRESET: Final = "readonly_basic"
"""What holds where nobody said which tools may be called."""


def check_presets(
    specs: Mapping[str, ToolSpec], presets: Iterable[Preset] = tuple(PRESETS.values())
) -> None:
    """Holds the presets to the tools that are registered; a program starts with this.

    ``specs`` are all registered tools, disabled ones too. Raises ToolDefinitionError where a preset
    names a tool that is not registered or belongs to a plugin, or a tool that always has effects
    beyond the preset's, as when a tool in a ``readonly_`` preset has come to write. A tool whose
    effects depend on its arguments is held to the preset's effects at every call instead.
    """
    for preset in presets:
        for name in preset.tools:
            spec = specs.get(name)
            if spec is None:
                raise ToolDefinitionError(f"preset {preset.name}: no tool {name} is registered")
            if not preset.names(spec):
                raise ToolDefinitionError(
                    f"preset {preset.name}: {name} belongs to the plugin {spec.plugin}, "
                    "and a preset's tools are built in"
                )
            beyond = spec.possible_effects - preset.effects
            if beyond and not callable(spec.effects):
                raise ToolDefinitionError(
                    f"preset {preset.name}: {name} has the effects {', '.join(sorted(beyond))}, "
                    "which the preset does not grant"
                )
