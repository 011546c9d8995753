"""Adds a folder, and is killed by itself after a number of system calls of SQLite's.

Its arguments are FILE FOLDER COUNT: COUNT is of the statements that change something.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from mlx_tools.plugins.kb import knowledge_base
from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase
from mlx_tools.store import tables as module

knowledge_base.BATCH_FILES = 3  # type: ignore[misc]


class Counting(sqlite3.Connection):
    """Kills this process once so many statements were asked for."""

    left = int(sys.argv[3])

    def execute(self, *given: Any) -> sqlite3.Cursor:
        Counting.left -= 1
        if Counting.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(*given)

    def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
        for row in rows:
            cursor = self.execute(statement, row)
        return cursor


connect = sqlite3.connect


def counted(*given: Any, **rest: Any) -> sqlite3.Connection:
    return connect(*given, factory=Counting, **rest)


if __name__ == "__main__":
    module.sqlite3.connect = counted  # type: ignore[attr-defined]
    done = KnowledgeBase(Path(sys.argv[1])).add([sys.argv[2]])
    print(done.added_files, done.changed_files, done.unchanged, done.removed)
