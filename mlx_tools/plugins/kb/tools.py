"""The tools of this plugin."""

from __future__ import annotations

from pathlib import Path

from mlx_tools.app import ToolRequest, hookimpl
from mlx_tools.plugins.kb.knowledge import Knowledge
from mlx_tools.plugins.kb.notes import NO_FOLDER, Notes, notes_create, notes_search
from mlx_tools.tools import Tool, disable_tool


@hookimpl
def tools(request: ToolRequest) -> list[Tool]:
    """Return the tools of the knowledge base, then those of the notes."""
    file, folder = request.options.get("knowledge_base"), request.options.get("notes")
    knowledge = Knowledge(None if file is None else Path(file))
    notes = Notes(None if folder is None else Path(folder))
    no_notes = request.no_walk or (NO_FOLDER if folder is None else None)
    return [
        *(disable_tool(tool, knowledge.disabled_reason) for tool in knowledge.tools()),
        disable_tool(notes_create(notes), no_notes),
        disable_tool(notes_search(notes), no_notes),
    ]
