"""Redaction: secrets, and folders if asked, become placeholders such as ``[redacted:jwt]``.

The same text always gives the same result, whole or in pieces (`mlx_tools.policy.secret_scan`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.policy.secret_kinds import KIND_NAMES, PATH
from mlx_tools.policy.secret_scan import Scanner, Segment, found_in

_PLACEHOLDER = re.compile(r"\[redacted:([a-z0-9_]{1,60})\]")


@dataclass(frozen=True, slots=True)
class SecretSpan:
    """A secret in a text: ``text[start:end]``, the encoded stretch where it was encoded."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text without its secrets, and the kinds of what was taken out: sorted, each once."""

    text: str
    kinds: tuple[str, ...]


def find_secrets(text: str) -> tuple[SecretSpan, ...]:
    """The secrets in the text, in order, none overlapping another; encoded ones too."""
    return tuple(SecretSpan(*span) for span in found_in(text))


def placeholder(kind: str) -> str:
    """Return what stands for a secret of this kind."""
    return f"[redacted:{kind}]"


def holds_placeholder(text: str) -> bool:
    """Return whether the text holds a placeholder of ours: it was read redacted, and must not be
    written back over what it was read from."""
    return any(found[1] in KIND_NAMES for found in _PLACEHOLDER.finditer(text))


class Redactor:
    """Takes secrets out of texts, unless ``secrets`` is False, and the names of folders.

    ``paths`` are absolute folders: where a path leads below one, or is one, that beginning of it
    becomes ``[redacted:path]``. Raises UsageError for one that is not absolute, or is the root.
    """

    def __init__(self, *, secrets: bool = True, paths: Sequence[str] = ()) -> None:
        self._secrets = secrets
        self._folders = _Folders(paths) if paths else None

    def text(self, text: str) -> Redacted:
        """The text with placeholders."""
        kinds: set[str] = set()
        if self._secrets:
            text = _shown(Scanner().feed(text, closed=True), kinds)
        if self._folders is not None:
            shown, _ = self._folders.replaced(text, closed=True)
            kinds |= {PATH} if shown != text else set()
            text = shown
        return Redacted(text, tuple(sorted(kinds)))

    def stream(self) -> RedactedStream:
        """Takes one text in pieces."""
        return RedactedStream(self._secrets, self._folders)


class RedactedStream:
    """A text that arrives in pieces: what `feed` and `close` return, put together, is what
    `Redactor.text` makes of the whole, wherever it was cut.

    Held back is what could still become part of a secret or of a folder's name: the last
    word, at most 8,192 characters of it, and up to 1,200 characters behind a line that could begin
    a private key.
    """

    def __init__(self, secrets: bool, folders: _Folders | None) -> None:
        self._scanner = Scanner() if secrets else None
        self._folders = folders
        self._rest = ""
        self._kinds: set[str] = set()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of what was taken out so far: sorted, each once."""
        return tuple(sorted(self._kinds))

    def feed(self, piece: str, *, closed: bool = False) -> str:
        """Return what may be shown now: all, where the text is ``closed``, as no more of it
        follows."""
        if self._scanner is not None:
            piece = _shown(self._scanner.feed(piece, closed=closed), self._kinds)
        if self._folders is None:
            return piece
        text = self._rest + piece
        shown, self._rest = self._folders.replaced(text, closed=closed)
        if shown + self._rest != text:
            self._kinds.add(PATH)
        return shown

    def close(self) -> str:
        """The rest of what may be shown: the text has ended. Feed nothing after it."""
        return self.feed("", closed=True)


def _shown(parts: Iterable[Segment], kinds: set[str]) -> str:
    """The segments as they are shown; their kinds are added to ``kinds``."""
    out: list[str] = []
    for part in parts:
        if part.kind is None:
            out.append(part.text)
        elif not part.joined:
            kinds.add(part.kind)
            out.append(placeholder(part.kind))
    return "".join(out)


# --- folders --------------------------------------------------------------------------------------

_AFTER: Final = r"(?![A-Za-z0-9_-]|\.[A-Za-z0-9_])"
"""What may not follow: the name would go on, and be another folder's."""
_LOOK_AHEAD: Final = 2
_BEGIN = re.compile(r"[/\\%]")


class _Folders:
    """The folders whose names are taken out of texts.

    ``paths`` are absolute. Each is found as it is, with its slashes escaped as in JSON, and
    escaped as in a URL. Raises UsageError for a path that is not absolute, or is the root.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        spellings = {spelling for path in paths for spelling in _spellings(path)}
        self._longest_first = sorted(spellings, key=lambda text: (-len(text), text))
        wanted = "|".join(map(re.escape, self._longest_first))
        self._pattern = re.compile(f"(?:{wanted}){_AFTER}")

    def replaced(self, text: str, *, closed: bool) -> tuple[str, str]:
        """The text with a placeholder for each folder, and the rest of it that is still open.

        The rest begins where a folder may begin that what follows will make or unmake; it is to
        be put before what follows. It is empty where the text is ``closed``.
        """
        out: list[str] = []
        at = looked = 0
        while begin := _BEGIN.search(text, looked):
            place = begin.start()
            if not closed and self._is_open(text, place):
                return "".join((*out, text[at:place])), text[place:]
            looked = place + 1
            if found := self._pattern.match(text, place):
                out += (text[at:place], placeholder(PATH))
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
    url = path.replace("%", "%25").replace(" ", "%20")
    return {path, path.replace("/", "\\/"), url, url.replace("/", "%2F"), url.replace("/", "%2f")}
