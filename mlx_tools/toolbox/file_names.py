"""Equal and similar names: other Unicode forms, other blanks, typing errors.

A model often writes a name in another Unicode form or with other blanks than on disk. Two names are
equal here if their NFKC forms are equal, with one space in place of any blanks.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from mlx_tools.store import PathAbsent, PathRefused, PrivateNames, Root, WrongFileKind, get_status
from mlx_tools.toolbox.tree_walk import TreeWalk
from mlx_tools.unseen import FOR_PATHS, as_json_escape, escape_unseen

MAX_NAMES: Final = 20_000
"""Names in a folder that are compared. This number takes a tenth of a second."""

MAX_LIKENED: Final = 2_000  # names that difflib compares, which takes longer
MAX_WALKED: Final = 20_000
"""Entries that are searched for a file of the same name in other folders."""

MAX_SUGGESTED: Final = 3
_MIN_LIKENESS: Final = 0.7
"""The similarity (`difflib`) of a suggestion: a letter or two of a short name may be wrong."""
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")

Place = tuple[Root, Sequence[str]]


def find_equal_names(
    root: Root, parts: Sequence[str], *, partly: bool = False
) -> tuple[str, ...] | None:
    """Return the names on disk that are equal to these.

    None if they do not differ, or if several names are equal. With ``partly`` the last parts need
    not exist: the parts up to there are replaced.
    """

    def find(folder: int, part: str) -> str | None:
        if get_status(folder, part) is not None:
            return part
        equal_names = [
            name for name in _list_names(folder) if _normalize_entry(name) == _normalize_name(part)
        ]
        return equal_names[0] if len(equal_names) == 1 else None

    names, _ = _walk_names(root, parts, find)
    if partly:
        names += parts[len(names) :]
    return None if len(names) < len(parts) or names == [*parts] else tuple(names)


def escape_path(names: Sequence[str]) -> str:
    """Return a path that a model can write, with unusual characters escaped."""
    return escape_unseen("/".join(names), FOR_PATHS, as_json_escape)


def did_you_mean(places: Sequence[Place]) -> str:
    """Return the end of an error message, with similar names; empty if there are none."""
    suggestions: list[str] = []
    for root, parts in places:
        if parts:
            suggestions += (path for path in _suggest(root, parts) if path not in suggestions)
    if not suggestions:
        return ""
    return f"; did you mean {' or '.join(suggestions[:MAX_SUGGESTED])}?"


def _suggest(root: Root, parts: Sequence[str]) -> Iterator[str]:
    """Yield visible similar paths, those in the same folder first."""
    depth = _find_depth(root, parts)
    if depth == len(parts):
        return
    parents, name, remaining = parts[:depth], parts[depth], parts[depth + 1 :]
    try:
        folder = root.open_folder(parents)
    except (PathRefused, WrongFileKind, PathAbsent):
        return
    try:
        listed = sorted(itertools.islice(_list_names(folder), MAX_LIKENED))
    finally:
        os.close(folder)
    private = PrivateNames(parents, root.path.name)
    forms: dict[str, list[str]] = {}
    for entry_name in listed:
        names = (*parents, entry_name)
        is_visible = root.patterns.match(names) or root.patterns.match_below(names)
        if entry_name not in private and is_visible:
            forms.setdefault(_normalize_entry(entry_name).casefold(), []).append(entry_name)
    close_forms = difflib.get_close_matches(
        _normalize_name(name).casefold(), forms, n=MAX_SUGGESTED, cutoff=_MIN_LIKENESS
    )
    any_near = False
    for form in close_forms:
        for entry_name in forms[form]:
            any_near = True
            yield escape_path((*parents, entry_name, *remaining))
    if not any_near:
        yield from _suggest_elsewhere(root, parts[-1])


def _suggest_elsewhere(root: Root, name: str) -> Iterator[str]:
    """Yield files of the same name in other folders."""
    walk: TreeWalk
    walk = TreeWalk(root, lambda: walk.entry_count > MAX_WALKED)
    sought = _normalize_name(name).casefold()
    try:
        entries = (
            entry
            for entry in walk.iter_entries(())
            if _normalize_entry(entry.name).casefold() == sought
        )
        for entry in itertools.islice(entries, MAX_SUGGESTED):
            yield escape_path(entry.path.split("/"))
    except (PathRefused, WrongFileKind, PathAbsent):
        return


def _find_depth(root: Root, parts: Sequence[str]) -> int:
    """Return the number of names that exist; all of them if a folder cannot be opened."""

    def find(folder: int, part: str) -> str | None:
        return None if get_status(folder, part) is None else part

    names, refused = _walk_names(root, parts, find)
    return len(parts) if refused else len(names)


def _walk_names(
    root: Root, parts: Sequence[str], find: Callable[[int, str], str | None]
) -> tuple[list[str], bool]:
    """Return the names on disk of the first parts.

    Args:
        root: the root.
        parts: the names.
        find: returns the name of a part in an open folder. None ends the walk.

    Returns:
        The names, and True if a folder could not be opened.
    """
    names: list[str] = []
    folder = os.dup(root.fd)
    try:
        for part in parts:
            name = find(folder, part)
            if name is None:
                break
            names.append(name)
            if len(names) < len(parts):
                next_folder = root.enter(folder, name)
                os.close(folder)
                folder = next_folder
    except (PathRefused, WrongFileKind, PathAbsent):
        return names, True
    finally:
        os.close(folder)
    return names, False


def _list_names(folder: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MAX_NAMES):
                if not _has_half_characters(entry.name):
                    yield entry.name
    except OSError:
        return


def _has_half_characters(name: str) -> bool:
    return not name.isascii() and _HALF_CHARACTER.search(name) is not None


def _normalize_name(name: str) -> str:
    """Return the form in which names are compared."""
    return name if name.isascii() and " " not in name else " ".join(_normal(name).split())


_normalize_entry: Final = lru_cache(maxsize=4096)(_normalize_name)
"""`_normalize_name` of a name in a folder, cached since each name is compared several times."""


def _normal(name: str) -> str:
    return unicodedata.normalize("NFKC", name)
