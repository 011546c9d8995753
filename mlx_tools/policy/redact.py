"""Redaction: secrets, and paths if asked, become placeholders such as ``[redacted:jwt]``.

The same text always gives the same result, whole or in pieces (`mlx_tools.policy.secret_scan`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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
    """Takes secrets out of texts, unless ``secrets`` is False, and with ``paths`` absolute paths.

    ``folders`` are absolute: of a path that leads below one the rest is left, so that it can still
    be told what it means. Raises UsageError for a folder that is not absolute, or is the root.
    """

    def __init__(
        self, *, secrets: bool = True, paths: bool = False, folders: Iterable[str] = ()
    ) -> None:
        self._secrets = secrets
        spellings = {spelling for folder in folders for spelling in _spellings(folder)}
        longest_first = sorted(spellings, key=lambda text: (-len(text), text))
        known = "|".join(map(re.escape, longest_first))
        self._folders = re.compile(f"(?:{known}){_AFTER}") if known else None
        self._paths = paths

    def text(self, text: str) -> Redacted:
        """The text with placeholders."""
        kinds: set[str] = set()
        if self._secrets:
            text = _shown(Scanner().feed(text, closed=True), kinds)
        shown = self._without_paths(text) if self._paths else text
        kinds |= {PATH} if shown != text else set()
        return Redacted(shown, tuple(sorted(kinds)))

    def _without_paths(self, text: str) -> str:
        if self._folders is not None:
            text = self._folders.sub(placeholder(PATH), text)
        return _PATH.sub(_hidden, text)

    def stream(self) -> RedactedStream:
        """Takes one text in pieces."""
        return RedactedStream(self._secrets, self._without_paths if self._paths else None)


class RedactedStream:
    """A text that arrives in pieces: what `feed` and `close` return, put together, is what
    `Redactor.text` makes of the whole, wherever it was cut.

    Held back is what could still become part of a secret: the last word, at most 8,192 characters
    of it, and up to 1,200 characters behind a line that could begin a private key; where paths are
    taken out, the last line.
    """

    def __init__(self, secrets: bool, without_paths: Callable[[str], str] | None) -> None:
        self._scanner = Scanner() if secrets else None
        self._without_paths = without_paths
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
        if self._without_paths is None:
            return piece
        text = self._rest + piece
        whole = len(text) if closed else text.rfind("\n") + 1
        shown, self._rest = self._without_paths(text[:whole]), text[whole:]
        if shown != text[:whole]:
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


# --- paths --------------------------------------------------------------------------------------

_AFTER: Final = r"(?![A-Za-z0-9_-]|\.[A-Za-z0-9_])"
"""What may not follow: the name would go on, and be another folder's."""

_NAME: Final = r"[\w.+@~/-]|\\[ /]|%[0-9A-Fa-f]{2}"
_PATH: Final = re.compile(
    rf"""
    (?<=["'`]) (?:~|\\?/) [\w.@] (?:{_NAME}|[ ]){{0,1000}} (?=\\?["'`])  # quoted: with blanks
    | (?: (?<=file://) / | (?:(?<=\s-[A-Za-z]) | (?<=^-[A-Za-z])) /  # an option's: -I/usr/include
        | (?<![\w.+@~/<>)\]}}*%\\-]) (?: \\?/ (?=[\w.~@]) | ~[\w.-]{{0,64}}/ | %2[Ff](?=\w) )
        | (?<![\w.+@~/<>)\]}}*%:\\-]) // (?=[\w.~@-]{{1,255}}/\w)
      ) (?:{_NAME})*
    | (?<![A-Za-z0-9]) [A-Za-z]: (?:\\{{1,2}}|/) (?=\w) (?:[\w.+@~/\\-]|%[0-9A-Fa-f]{{2}})*
    """,
    re.VERBOSE | re.MULTILINE,
)
"""A path from the root, or from a home. What stands below a variable, a pattern or a placeholder
(``$HOME/x``, ``*/x``) is none, nor is the rest of an address (``https://host/x``)."""


def _hidden(found: re.Match[str]) -> str:
    """A placeholder, and the full stop of the sentence that the path stands at the end of."""
    path = found[0].rstrip(".-+@")
    return placeholder(PATH) + found[0][len(path) :]


def _spellings(path: str) -> set[str]:
    if not isinstance(path, str) or not path.startswith("/") or not path.strip("/"):
        raise UsageError(
            f"a folder to redact must be an absolute path, not {path!r}",
            hint="name a folder below the root, as in /home/ann",
        )
    path = "/" + path.strip("/")
    url = path.replace("%", "%25").replace(" ", "%20")
    return {path, path.replace("/", "\\/"), url, url.replace("/", "%2F"), url.replace("/", "%2f")}
