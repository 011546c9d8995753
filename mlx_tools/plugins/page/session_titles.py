"""The titles that a person gave to sessions at the page, in one small file."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.paths import private_dir, read_regular, write_whole

MAX_TITLE: Final = 200
"""Characters: a title is one line of a list."""

_MAX_BYTES: Final = 8 << 20
"""Of the file: some 20,000 titles."""


class SessionTitles:
    """The titles of sessions, kept in the file ``path``. Methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def all(self) -> Mapping[str, str]:
        """Return the titles by session; none if they cannot be read."""
        try:
            titles = json.loads(read_regular(self._path, _MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(titles, dict):
            return {}
        return {name: title for name, title in titles.items() if isinstance(title, str)}

    def set(self, session: str, title: str) -> None:
        """Give a session a title, or take it away where that is empty.

        Raises:
            UsageError: it cannot be written.
        """
        with self._lock:
            titles = {**self.all()}
            titles.pop(session, None)
            if line := " ".join(title.split())[:MAX_TITLE]:
                titles[session] = line
            try:
                private_dir(self._path.parent)
                text = json.dumps(titles, ensure_ascii=False, indent=0)
                write_whole(self._path, text.encode(errors="surrogatepass"))
            except OSError as error:
                raise UsageError(f"{self._path}: {error.strerror or error}") from None
