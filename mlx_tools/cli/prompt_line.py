"""The line that a person types at a terminal: editing, and a history that is kept in private."""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType, TracebackType
from typing import Final, Self

from mlx_tools.app.own_output import given_back, ours
from mlx_tools.errors import MlxToolsError
from mlx_tools.paths import private_dir, state_dir

PROMPT: Final = "> "
HISTORY_LINES: Final = 1000


class PromptLine:
    """Reads lines. Inside ``with``, history is there; after it, it is saved."""

    def __init__(self) -> None:
        self._readline: ModuleType | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(ImportError, OSError, MlxToolsError):
            import readline

            self._path = private_dir(state_dir()) / "chat_history"
            # made here, so that it is never open to others, not even for a moment
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            self._path.chmod(0o600)
            readline.clear_history()
            readline.read_history_file(self._path)
            readline.set_history_length(HISTORY_LINES)
            self._readline = readline
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._readline is not None:
            with contextlib.suppress(OSError):
                self._readline.write_history_file(self._path)
                self._path.chmod(0o600)

    def read(self) -> str | None:
        """The next line, None at the end of the input."""
        if ours().isatty():
            with given_back():
                try:
                    return input(PROMPT)
                except EOFError:
                    print()
                    return None
        print(PROMPT, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline() or None
