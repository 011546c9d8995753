"""Globs with braces, which models and shells write: ``*.{ts,tsx}``."""

from __future__ import annotations

from typing import Final

from mlx_tools.tools import ToolError

MAX_GLOBS: Final = 100
"""Patterns of one glob. Several pairs of braces multiply."""


def expand_glob(glob: str) -> list[str]:
    """Return the patterns that a glob with braces means.

    Raises:
        ToolError: there are more than 100.
    """
    patterns: list[str] = []
    pending = [glob]
    while pending:
        if len(patterns) + len(pending) > MAX_GLOBS:
            raise ToolError(
                f"the glob stands for more than {MAX_GLOBS} patterns", code="invalid_arguments"
            )
        pattern = pending.pop()
        start = pattern.rfind("{")  # the innermost
        stop = pattern.find("}", start)
        if start < 0 or stop < 0:
            patterns.append(pattern)
            continue
        inner = pattern[start + 1 : stop].split(",")
        if len(inner) == 1:  # no alternatives: the braces are ordinary characters
            patterns.append(pattern)
            continue
        pending += [
            pattern[:start] + alternative + pattern[stop + 1 :] for alternative in reversed(inner)
        ]
    return patterns
