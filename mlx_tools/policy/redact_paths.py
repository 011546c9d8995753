"""Folders that are redacted: a path below one is shown with a placeholder for the folder."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlx_tools.errors import UsageError

_AFTER = r"(?![A-Za-z0-9_-]|\.[A-Za-z0-9_])"
"""What may not follow: the name would go on, and be another folder's."""
_LOOK_AHEAD = 2
_BEGIN = re.compile(r"[/\\%]")


class Folders:
    """The folders whose names are taken out of texts.

    ``paths`` are absolute. Each is found as it is, with its slashes escaped as in JSON, and
    escaped as in a URL. Raises UsageError for a path that is not absolute, or is the root.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        spellings: set[str] = set()
        for path in paths:
            spellings |= _spellings(path)
        self._longest_first = sorted(spellings, key=lambda text: (-len(text), text))
        wanted = "|".join(map(re.escape, self._longest_first))
        self._pattern = re.compile(f"(?:{wanted}){_AFTER}")

    def replaced(self, text: str, placeholder: str, *, closed: bool) -> tuple[str, str]:
        """The text with a placeholder for each folder, and the rest of it that is still open.

        The rest begins where a folder may begin that what follows will make or unmake; it is to
        be put before what follows. It is empty where the text is ``closed``.
        """
        if not self._longest_first:
            return text, ""
        out: list[str] = []
        at = looked = 0
        while begin := _BEGIN.search(text, looked):
            place = begin.start()
            if not closed and self._is_open(text, place):
                return "".join((*out, text[at:place])), text[place:]
            looked = place + 1
            if found := self._pattern.match(text, place):
                out += (text[at:place], placeholder)
                at = looked = found.end()
        return "".join((*out, text[at:])), ""

    def _is_open(self, text: str, start: int) -> bool:
        rest = len(text) - start
        return any(
            rest < len(path) + _LOOK_AHEAD and path.startswith(text[start : start + len(path)])
            for path in self._longest_first
        )


def _spellings(path: str) -> set[str]:
    if not isinstance(path, str) or not path.startswith("/") or not path.strip("/"):
        raise UsageError(
            f"a folder to redact must be an absolute path, not {path!r}",
            hint="name a folder below the root, as in /home/ann",
        )
    path = "/" + path.strip("/")
    escaped = path.replace("%", "%25").replace(" ", "%20")
    return {
        path,
        path.replace("/", "\\/"),
        escaped,
        escaped.replace("/", "%2F"),
        escaped.replace("/", "%2f"),
    }
