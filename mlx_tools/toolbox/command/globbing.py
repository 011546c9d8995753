"""Expands ``*.py`` as a shell would, below a root and nowhere else, and without one.

Folders are walked as `mlx_tools.store.roots` walks them, never through a link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from mlx_tools.store.roots import Absent, Refused, Root, Unfit, private_part

MAX_MATCHES: Final = 1_000
MAX_LOOKED_AT: Final = 100_000
"""Entries of folders that one pattern may have us look at."""
MAX_DEPTH: Final = 100

_MAGIC: Final = re.compile(r"[*?\[]")
_ANY_DEPTH: Final = "**"


def is_pattern(text: str) -> bool:
    """Whether a text has a character that makes it a pattern."""
    return _MAGIC.search(text) is not None


def expand(root: Root, pattern: Sequence[str]) -> list[tuple[str, ...]]:
    """The paths below the root, as names, that the names of a pattern match, in order.

    ``*``, ``?`` and ``[…]`` match no name that starts with a dot unless the pattern's name does;
    ``**`` as a whole name matches any number of folders that are not hidden. Private names are not
    matched. Raises Refused where there are too many.
    """
    found: dict[tuple[str, ...], None] = {}
    for path in _Search(root).below((), tuple(pattern)):
        found[path] = None
        if len(found) > MAX_MATCHES:
            raise Refused(f"the pattern matches more than {MAX_MATCHES} files")
    return sorted(found)


class _Search:
    def __init__(self, root: Root) -> None:
        self._root = root
        self._looked_at = 0

    def below(self, at: tuple[str, ...], pattern: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """What matches in the folder ``at``, which holds what came before in the pattern."""
        name, rest = pattern[0], pattern[1:]
        if name == _ANY_DEPTH:
            yield from self._at_any_depth(at, rest)
            return
        for entry, is_folder in self._matching(at, name):
            path = (*at, entry)
            if not rest:
                yield path
            elif is_folder:
                yield from self.below(path, rest)

    def _at_any_depth(
        self, at: tuple[str, ...], rest: tuple[str, ...]
    ) -> Iterator[tuple[str, ...]]:
        while rest and rest[0] == _ANY_DEPTH:  # more of them mean the same, and cost more
            rest = rest[1:]
        yield from self.below(at, rest or ("*",))
        for entry, is_folder in self._matching(at, "*"):
            if is_folder and len(at) < MAX_DEPTH:
                yield from self._at_any_depth((*at, entry), rest)

    def _matching(self, at: tuple[str, ...], name: str) -> Iterator[tuple[str, bool]]:
        """The entries of a folder that one name of a pattern matches, and which are folders."""
        hidden = name.startswith(".")
        for entry, is_folder in self._entries(at):
            if entry.startswith(".") and not hidden:
                continue
            if entry != name and not (is_pattern(name) and fnmatchcase(entry, name)):
                continue
            if private_part((*at, entry), self._root.path.name) is None:
                yield entry, is_folder

    def _entries(self, at: tuple[str, ...]) -> list[tuple[str, bool]]:
        try:
            fd = self._root.open_folder(at)
        except (Absent, Unfit, Refused):  # gone meanwhile, or not to be seen: it has no matches
            return []
        entries: list[tuple[str, bool]] = []
        try:
            with os.scandir(fd) as found:
                for entry in found:
                    self._looked_at += 1
                    if self._looked_at > MAX_LOOKED_AT:
                        raise Refused(f"the pattern looks at more than {MAX_LOOKED_AT} files")
                    entries.append((entry.name, entry.is_dir(follow_symlinks=False)))
        except OSError:
            return []
        finally:
            os.close(fd)
        return entries
