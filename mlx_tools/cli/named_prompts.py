"""Questions with a name and blanks, which ``ask -p`` asks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Final

from mlx_tools.errors import UsageError, did_you_mean
from mlx_tools.paths import config_dir, private_dir, read_regular, write_whole

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SUFFIX: Final = ".md"
QUESTION: Final = "question"
"""The blank that the question itself fills."""

MAX_BYTES: Final = 1 << 20


class NamedPrompts:
    """The prompts in a folder, a file each."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or config_dir() / "prompts"

    def names(self) -> list[str]:
        """Return the names, in order."""
        try:
            files = [path for path in self._folder.iterdir() if path.suffix == _SUFFIX]
        except OSError:
            return []
        return sorted(path.stem for path in files if _NAME.fullmatch(path.stem))

    def read(self, name: str) -> str:
        """Return a prompt's text.

        Raises:
            UsageError: there is none of this name, or it cannot be read.
        """
        path = self._path(name)
        try:
            return read_regular(path, MAX_BYTES).decode()
        except FileNotFoundError:
            raise self._unknown(name) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"{path} cannot be read: {reason}") from None

    def write(self, name: str, text: str) -> Path:
        """Write a prompt's text, and return its file.

        Raises:
            UsageError: its blanks cannot be read, or it cannot be written.
        """
        find_blanks(text)
        path = self._path(name)
        try:
            private_dir(self._folder)
            write_whole(path, f"{text.rstrip()}\n".encode(), max_bytes=MAX_BYTES)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
        return path

    def remove(self, name: str) -> None:
        """Remove a prompt, also one that cannot be read.

        Raises:
            UsageError: there is none of this name, or it cannot be removed.
        """
        path = self._path(name)
        try:
            path.unlink()
        except FileNotFoundError:
            raise self._unknown(name) from None
        except OSError as error:
            raise UsageError(f"{path} cannot be removed: {error.strerror or error}") from None

    def _unknown(self, name: str) -> UsageError:
        hint = did_you_mean(name, self.names(), "mlx-tools prompts list") or None
        return UsageError(f"there is no prompt {name}", hint=hint)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!r} is no name", hint="letters, digits, - and _")
        return self._folder / f"{name}{_SUFFIX}"


def find_blanks(text: str) -> list[str]:
    """Return the names of a prompt's blanks, ``$NAME`` or ``${NAME}``, each once.

    Raises:
        UsageError: a ``$`` begins no name.
    """
    template = Template(text)
    if not template.is_valid():
        raise UsageError("a $ is not followed by a name", hint="write $NAME, and $$ for a $")
    return template.get_identifiers()


def fill_prompt(name: str, words: Sequence[str], prompts: NamedPrompts | None = None) -> str:
    """Return what a named prompt asks.

    Args:
        name: the prompt's name.
        words: ``KEY=VALUE`` for its blanks, and the words of the question.
        prompts: where the prompts are.

    Raises:
        UsageError: there is no such prompt, or a blank has no value.
    """
    text = (prompts or NamedPrompts()).read(name)
    blanks = find_blanks(text)
    values: dict[str, str] = {}
    rest = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in blanks and key != QUESTION:
            values[key] = value
        else:
            rest.append(word)
    question = " ".join(rest)
    if lacking := [blank for blank in blanks if blank not in values and blank != QUESTION]:
        wanted = " ".join(f"{blank}=…" for blank in lacking)
        raise UsageError(
            f"the prompt {name} lacks values", hint=f"as in mlx-tools ask -p {name} {wanted}"
        )
    asked = Template(text).substitute(values | {QUESTION: question}).rstrip()
    return asked if QUESTION in blanks or not question else f"{asked}\n\n{question}"
