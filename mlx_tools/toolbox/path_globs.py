"""Globs as models and shells write them: ``*.{ts,tsx}`` stands for two patterns of paths."""

from __future__ import annotations

from typing import Final

from mlx_tools.tools import ToolError

MAX_GLOBS: Final = 100


def expanded_globs(glob: str) -> list[str]:
    """The patterns that a glob with alternatives in braces stands for. Raises ToolError for more
    than 100."""
    done: list[str] = []
    waiting = [glob]
    while waiting:
        if len(done) + len(waiting) > MAX_GLOBS:
            raise ToolError(
                f"the glob stands for more than {MAX_GLOBS} patterns", code="invalid_arguments"
            )
        pattern = waiting.pop()
        start = pattern.rfind("{")  # the innermost
        stop = pattern.find("}", start)
        if start < 0 or stop < 0:
            done.append(pattern)
            continue
        inner = pattern[start + 1 : stop].split(",")
        if len(inner) == 1:  # no alternatives: the braces stand for themselves
            done.append(pattern)
            continue
        waiting += [pattern[:start] + one + pattern[stop + 1 :] for one in reversed(inner)]
    return done
