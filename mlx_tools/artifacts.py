"""Whole outputs that were too long for a prompt, kept in files that expire."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

from mlx_tools.errors import TranscriptError

KEEP_SECONDS: Final = 3 * 24 * 3600
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class ArtifactStore:
    """A folder of artifacts, readable by its owner alone. Ids are random: none can be guessed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, text: str) -> str:
        """Keeps ``text`` and returns its id. Raises `TranscriptError` where it cannot."""
        key = secrets.token_hex(16)
        target = self.folder / key
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
                file.write(text.encode(errors="surrogatepass"))
        except OSError as error:
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)
            raise TranscriptError(
                f"an output could not be kept in {self.folder}: {error.strerror}",
                hint="free some space",
            ) from None
        return key

    def get(self, key: str) -> str | None:
        """The text of an artifact, or None where there is none (any more)."""
        if not _ID.fullmatch(key):
            return None
        try:
            return (self.folder / key).read_bytes().decode(errors="surrogatepass")
        except FileNotFoundError:
            return None

    def expire(self, *, now: float | None = None, keep: float = KEEP_SECONDS) -> int:
        """Removes artifacts older than ``keep`` seconds and returns how many there were."""
        if not self.folder.is_dir():
            return 0
        limit = (time.time() if now is None else now) - keep
        removed = 0
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                if _ID.fullmatch(path.name) and path.stat().st_mtime < limit:
                    path.unlink()
                    removed += 1
        return removed
