"""``notes_create``: writes a new note, and never over one that is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mlx_tools.messages import Effects
from mlx_tools.toolbox.notes import Notes, body_of
from mlx_tools.toolbox.text_files import encoded
from mlx_tools.toolbox.unified import unified_diff
from mlx_tools.tools import Preview, Tool, current_context, words_of

EFFECTS: Final[Effects] = frozenset(("write",))
_NEW: Final = "new note "


def notes_create(notes: Notes) -> Tool:
    """The tool for these notes."""
    words = words_of("notes_create")

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()
        expected = context.expected
        name, size = notes.create(
            arguments["title"],
            arguments["content"],
            session=context.session,
            expected=expected.removeprefix(_NEW) if expected is not None else None,
            given_up=lambda: context.cancelled,
            undo=context.undo,
        )
        return words.notices["made"].format(name=name, size=size)

    def preview(arguments: Mapping[str, Any]) -> Preview:
        name = notes.free_name(arguments["title"])
        body = body_of(arguments["title"], arguments["content"])
        encoded(body)
        return Preview(unified_diff("", body, "/dev/null", name), f"{_NEW}{name}")

    return Tool(words.spec(EFFECTS), run, preview=preview)
