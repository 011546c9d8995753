"""``create_file``: makes a new text file below a root, after approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlx_tools.messages import Effects
from mlx_tools.store.roots import Root
from mlx_tools.toolbox.file_changes import Changes
from mlx_tools.tools.tool import Preview, Tool
from mlx_tools.tools.tool_words import words_of

EFFECTS: Final[Effects] = frozenset(("write",))


def create_file(roots: Sequence[Root]) -> Tool:
    """The tool for these roots. A relative path is made in the first root that has its folder, one
    that is writable before one that is not."""
    words = words_of("create_file")
    changes = Changes(roots, words.notices)

    def run(arguments: Mapping[str, Any]) -> str:
        return changes.create(arguments["path"], arguments.get("content"))

    def preview(arguments: Mapping[str, Any]) -> Preview:
        return changes.preview_create(arguments["path"], arguments.get("content"))

    return Tool(words.spec(EFFECTS, needs_approval=True), run, preview=preview)
