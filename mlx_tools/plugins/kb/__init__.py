"""The knowledge base and the notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.plugins.kb.knowledge import Knowledge
    from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase
    from mlx_tools.plugins.kb.notes import Notes, notes_create, notes_search

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "knowledge": ("Knowledge",),
        "knowledge_base": ("KnowledgeBase",),
        "notes": ("Notes", "notes_create", "notes_search"),
    },
)
