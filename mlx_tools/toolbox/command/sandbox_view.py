"""What a program may see, as every sandbox is told it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlx_tools.toolbox.command.private import Hidden


@dataclass(frozen=True, slots=True)
class SandboxView:
    """What a program sees: the roots, each with whether it may write there, and of what is below
    them not what is ``hidden``. ``replaced`` has other contents for some hidden files. It runs in
    ``folder``; ``starts`` is whether it may start other programs."""

    folder: str
    roots: Sequence[tuple[str, bool]]
    hidden: Hidden = field(default_factory=Hidden)
    replaced: Mapping[str, bytes] = field(default_factory=dict)
    starts: bool = True
