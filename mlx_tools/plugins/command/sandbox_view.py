"""The view that a sandboxed program has of the system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from mlx_tools.plugins.command.rules import HiddenPaths


class SandboxView(Struct, frozen=True):
    """The part of the system that a program sees."""

    folder: str
    """The folder that it runs in."""
    roots: Sequence[tuple[str, bool]]
    """The folders that it sees, each with True if it may write there."""
    hidden: HiddenPaths = field(default_factory=HiddenPaths)
    """The paths below the roots that it does not see."""
    replaced_files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents that replace those of some hidden files."""
    starts: bool = True
    """True if it may start other programs."""
    programs: Sequence[str] = ()
    """Folders with programs that it may read and run besides the system's."""

    @property
    def outermost_first(self) -> list[tuple[str, bool]]:
        """The roots, outer ones first, so that an inner root keeps its own rights."""
        return sorted(self.roots, key=lambda root: (root[0].count("/"), root[1]))
