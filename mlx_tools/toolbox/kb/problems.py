"""What SQLite says when it refuses, in words that help."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mlx_tools.errors import KnowledgeBaseError
from mlx_tools.process import clean

_PROBLEMS: Final = (
    ("full", "the disk is full", "free some space and try again: what was finished is kept"),
    ("locked", "another program writes to it", "wait until that has ended"),
    ("readonly", "it may not be written to", "check the permissions of the file and its folder"),
    ("unable to open", "it cannot be opened", "check the permissions of the file and its folder"),
    ("not a database", "it is no knowledge base", "move the file away and add again"),
    ("malformed", "it is damaged", "move the file away and add again"),
    ("could not decode", "it is damaged", "move the file away and add again"),
    ("parse error", "it is damaged", "move the file away and add again"),
    ("disk I/O", "the disk failed, or is full", "check the disk and try again"),
    ("no such module: fts5", "this Python's SQLite has no FTS5", "use another build of Python"),
    ("interrupted", "it took too long", "ask with fewer words"),
)


def translated(path: Path, said: str) -> KnowledgeBaseError:
    """What SQLite said of the knowledge base at ``path``, as an error with a hint."""
    for part, why, hint in _PROBLEMS:
        if part.lower() in said.lower():
            return KnowledgeBaseError(f"the knowledge base {path}: {why}", hint=hint)
    return KnowledgeBaseError(
        f"the knowledge base {path}: {clean(said, 200)}",
        hint="try again; where that does not help, move the file away and add again",
    )
