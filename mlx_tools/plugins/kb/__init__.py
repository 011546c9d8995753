"""The knowledge base and the notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.plugins.kb.knowledge import Knowledge
    from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase
    from mlx_tools.plugins.kb.notes import Notes, notes_create, notes_search

__getattr__, __dir__ = names_of(
    globals(),
    {
        "knowledge": ("Knowledge",),
        "knowledge_base": ("KnowledgeBase",),
        "notes": ("Notes", "notes_create", "notes_search"),
    },
)
