"""Names that a person sees and a model cannot write: other Unicode forms, other kinds of blanks.

Two names are equal here if they are so in the form NFKC and with one space for any blanks. Besides,
names that are like one that is not there.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from mlx_tools.store import PathAbsent, PathRefused, PrivateNames, Root, WrongFileKind, status_of
from mlx_tools.toolbox.text_files import one_line
from mlx_tools.toolbox.tree_walk import TreeWalk

MAX_NAMES: Final = 20_000
"""Names in a folder that are compared; so many take a tenth of a second."""

MAX_LIKENED: Final = 2_000  # by difflib, which takes longer
MAX_WALKED: Final = 20_000
"""Entries that are looked at for a file of the same name in another folder."""

MOST_SUGGESTED: Final = 3
_LEAST_LIKENESS: Final = 0.7
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")

Place = tuple[Root, Sequence[str]]


def equal_names(
    root: Root, parts: Sequence[str], *, partly: bool = False
) -> tuple[str, ...] | None:
    """The names on disk that are equal to these; None if they are these, or it is not clear which.

    With ``partly`` the last ones need not be there: as far as there is one equal name, it is given.
    """
    names: list[str] = []
    folder = os.dup(root.fd)
    try:
        for part in parts:
            name: str | None = part
            if status_of(folder, part) is None:
                equal = [one for one in _names_in(folder) if _entry_form(one) == _form(part)]
                name = equal[0] if len(equal) == 1 else None
            if name is None:
                break
            names.append(name)
            if len(names) < len(parts):
                below = root.enter(folder, name)
                os.close(folder)
                folder = below
    except (PathRefused, WrongFileKind, PathAbsent):
        pass
    finally:
        os.close(folder)
    if partly:
        names += parts[len(names) :]
    return None if len(names) < len(parts) or names == [*parts] else tuple(names)


def escape_path(names: Sequence[str]) -> str:
    """A path that a model can write: other blanks and lone accents are escaped as in JSON."""
    return "".join(
        one_line(c) if c.isascii() or not _is_unclear(c) else f"\\u{ord(c):04x}"
        for c in "/".join(names)
    )


def did_you_mean(places: Sequence[Place]) -> str:
    """The end of a message that nothing is at these places: names that are like those asked for;
    empty if none is."""
    found: list[str] = []
    for root, parts in places:
        if parts:
            found += (path for path in _suggestions(root, parts) if path not in found)
    if not found:
        return ""
    return f"; did you mean {' or '.join(found[:MOST_SUGGESTED])}?"


def _suggestions(root: Root, parts: Sequence[str]) -> Iterator[str]:
    """Paths that may be seen, those in the same folder first."""
    depth = _depth_there(root, parts)
    if depth == len(parts):
        return
    above, name, rest = parts[:depth], parts[depth], parts[depth + 1 :]
    try:
        folder = root.open_folder(above)
    except (PathRefused, WrongFileKind, PathAbsent):
        return
    try:
        listed = sorted(itertools.islice(_names_in(folder), MAX_LIKENED))
    finally:
        os.close(folder)
    private = PrivateNames(above, root.path.name)
    forms: dict[str, list[str]] = {}
    for one in listed:
        names = (*above, one)
        seen = root.patterns.fit(names) or root.patterns.lead_on(names)
        if one not in private and seen:
            forms.setdefault(_entry_form(one).casefold(), []).append(one)
    near = difflib.get_close_matches(
        _form(name).casefold(), forms, n=MOST_SUGGESTED, cutoff=_LEAST_LIKENESS
    )
    any_near = False
    for form in near:
        for one in forms[form]:
            any_near = True
            yield escape_path((*above, one, *rest))
    if not any_near:
        yield from _elsewhere(root, parts[-1])


def _elsewhere(root: Root, name: str) -> Iterator[str]:
    """Files of the same name in other folders."""
    walk: TreeWalk
    walk = TreeWalk(root, lambda: walk.seen > MAX_WALKED)
    sought = _form(name).casefold()
    try:
        entries = (
            entry for entry in walk.below(()) if _entry_form(entry.name).casefold() == sought
        )
        for entry in itertools.islice(entries, MOST_SUGGESTED):
            yield escape_path(entry.path.split("/"))
    except (PathRefused, WrongFileKind, PathAbsent):
        return


def _depth_there(root: Root, parts: Sequence[str]) -> int:
    """How many of the names lead to something."""
    folder = os.dup(root.fd)
    try:
        for depth, part in enumerate(parts):
            if status_of(folder, part) is None:
                return depth
            if depth + 1 < len(parts):
                below = root.enter(folder, part)
                os.close(folder)
                folder = below
    except (PathRefused, WrongFileKind, PathAbsent):
        pass
    finally:
        os.close(folder)
    return len(parts)


def _names_in(folder: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MAX_NAMES):
                if not _has_half_characters(entry.name):
                    yield entry.name
    except OSError:
        return


def _has_half_characters(name: str) -> bool:
    return not name.isascii() and _HALF_CHARACTER.search(name) is not None


def _form(name: str) -> str:
    """The form in which names are compared."""
    return name if name.isascii() and " " not in name else " ".join(_normal(name).split())


_entry_form: Final = lru_cache(maxsize=4096)(_form)
"""`_form` of a name in a folder, which is short: each is compared with all that is sought."""


def _normal(name: str) -> str:
    return unicodedata.normalize("NFKC", name)


def _is_unclear(character: str) -> bool:
    """True for a blank that is no space, an accent that stands alone, and what nobody sees."""
    return character.isspace() or unicodedata.category(character)[0] in "MC"
