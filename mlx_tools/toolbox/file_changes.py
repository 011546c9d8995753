"""What the tools that change files have in common: which root a path means, and what is told.

`file_access` writes and deletes below roots that were named with ``:rw``; `create_file` makes files
below any root. Each change can be told beforehand, as a `Preview`.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from mlx_tools.store import (
    ABSENT,
    MAX_KEPT_BYTES,
    Absent,
    Place,
    Refused,
    Root,
    Unfit,
    open_present,
    place_of,
    put,
    state_of,
)
from mlx_tools.toolbox.text_files import MAX_BYTES, decoded, encoded, one_line, unified_diff, up_to
from mlx_tools.tools import Preview, ToolError, current_context

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/", re.ASCII)
_DIRECTIONS: Final = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)

Candidate = tuple[Root, tuple[str, ...]]


class Changes:
    """Changes to files below some roots, and their previews. All raise ToolError."""

    def __init__(self, roots: Sequence[Root], notices: Mapping[str, str]) -> None:
        self._roots = roots
        self._notices = notices
        self._writable: dict[tuple[int, int], bool] = {}
        for root in roots:  # a folder named twice may be written to if it may be so both times
            may = self._writable.get(root.identity, True)
            self._writable[root.identity] = may and root.writable

    def write(self, path: str, content: object) -> str:
        """Makes a file, or replaces its content, below a root that is writable."""
        raw = encoded(content)
        with tool_errors(), self._changeable(path, making=True) as place:
            return self._made(place, path, raw)

    def create(self, path: str, content: object) -> str:
        """Makes a file that is not there yet, and its folders, below any root."""
        raw = encoded(content)
        with tool_errors():
            root, parts = self._free(path)
            with place_of(root, parts, self._writable, make=True) as place:
                return self._made(place, path, raw, new=True)

    def delete(self, path: str) -> str:
        with tool_errors(), self._changeable(path, making=False) as place:
            self._put(place, None)
            return self._notice("deleted", place, path)

    def preview_write(self, path: str, content: object) -> Preview:
        """The diff that `write` would make."""
        after = encoded(content).decode()
        with tool_errors(), self._changeable(path, making=True) as place:
            shown = self._shown(place.root, path)
            present = _present(place)
            if present is None:
                return Preview(_diff(None, after, shown), ABSENT)
            return Preview(_replacing(present, after, shown), present.state)

    def preview_create(self, path: str, content: object) -> Preview:
        """The content that `create` would make, as a diff from nothing."""
        after = encoded(content).decode()
        with tool_errors():
            root, _ = self._free(path)
        return Preview(_diff(None, after, self._shown(root, path)), ABSENT)

    def preview_delete(self, path: str) -> Preview:
        """The loss that `delete` would be: which file, its size and its first lines."""
        with tool_errors(), self._changeable(path, making=False) as place:
            present = _present(place)
            if present is None:
                raise Absent(f"there is no {place.name}")
            return Preview(_deleting(present, self._shown(place.root, path)), present.state)

    def _put(self, place: Place, raw: bytes | None, *, new: bool = False) -> bool:
        context = current_context()
        return put(
            place,
            raw,
            new=new,
            expected=context.expected,
            given_up=lambda: context.cancelled,
            undo=context.undo,
        )

    def _made(self, place: Place, path: str, raw: bytes, *, new: bool = False) -> str:
        key = "replaced" if self._put(place, raw, new=new) else "made"
        return self._notice(key, place, path, size=len(raw))

    def _notice(self, key: str, place: Place, path: str, **values: int) -> str:
        return self._notices[key].format(path=self._shown(place.root, path), **values)

    def _shown(self, root: Root, path: str) -> str:
        """The path for a reader, from the top of the file system where there are several roots."""
        whole = str(root.path / path) if len(self._roots) > 1 else path
        return one_line(whole, marks=True)

    def _candidates(self, path: str, *, making: bool) -> list[Candidate]:
        """The names to walk, for every root that the path may lie in."""
        if making:
            _check_meant(path)
        if path.endswith(("/", "/.")):
            raise Unfit("the path names a folder, not a file")
        found = [(root, root.parts(path, writing=True)) for root in self._roots]
        inside = [(root, parts) for root, parts in found if parts is not None]
        if not inside:
            raise Refused("the path lies outside the folders that may be changed")
        if making:
            for _, parts in inside:
                _check_names(parts)
        return inside

    @contextmanager
    def _changeable(self, path: str, *, making: bool) -> Iterator[Place]:
        """The place of the file that a path means: in the first root that has it; else, for making
        it, in the first writable root that has its folder. Raises Refused where that is below a
        root that is not writable."""
        with ExitStack() as opened:
            places, fault = [], None
            for root, parts in self._candidates(path, making=making):
                try:
                    place = opened.enter_context(place_of(root, parts, self._writable))
                except (Absent, Unfit) as error:
                    fault = error if fault is None or isinstance(fault, Absent) else fault
                    continue
                places.append(place)
                if place.exists():
                    break
            else:
                place = self._vacant(places, fault, making=making)
            if not place.writable:
                raise Refused(
                    f"{place.name} is below a folder that may only be read; "
                    "naming the folder with :rw (--root DIR:rw) allows to write and to delete"
                )
            yield place

    def _vacant(self, places: Sequence[Place], fault: Exception | None, *, making: bool) -> Place:
        """The place to make a file in, where no root has it."""
        if making and places:
            return next((place for place in places if place.writable), places[0])
        if making and isinstance(fault, Absent):
            raise Absent(f"{fault}; write makes no folders, create_file does")
        if places and not isinstance(fault, Unfit):
            raise Absent(f"there is no {places[0].name}")
        raise fault or Absent("there is no such file")

    def _free(self, path: str) -> Candidate:
        """The root and the names for a file that no root has yet: a root that has its folder
        already before one that does not, one that is writable before one that is not."""
        ranked: list[tuple[bool, bool, int, Candidate]] = []
        fault: Exception | None = None
        for number, (root, parts) in enumerate(self._candidates(path, making=True)):
            try:
                with place_of(root, parts, self._writable) as place:
                    missing, taken, may = False, place.exists(), place.writable
            except Absent:
                missing, taken, may = True, False, root.writable
            except Unfit as error:
                fault = fault or error
                continue
            if taken:
                raise Unfit(
                    f"{parts[-1]} exists already, and create_file replaces nothing; file_access "
                    "can, with write, below a folder that was named with :rw"
                )
            ranked.append((missing, not may, number, (root, parts)))
        if not ranked:
            raise fault or Absent("there is no such folder")
        return min(ranked, key=lambda rank: rank[:3])[3]


@contextmanager
def tool_errors(failed: str = "the file cannot be changed") -> Iterator[None]:
    """Makes of what a walk and a change raise what a model reads; ``failed`` is said of what the
    system raises."""
    try:
        yield
    except Refused as error:
        raise ToolError(str(error), code="not_allowed") from None
    except (Unfit, Absent) as error:
        raise ToolError(str(error)) from None
    except OSError as error:
        raise ToolError(f"{failed}: {error.strerror}") from None


def _check_meant(path: str) -> None:
    """Refuses what was meant as another place; it could be made all the same, below the root."""
    first, below, _ = path.partition("/")
    if first == "~" or (first.startswith("~") and below):
        raise Refused("~ means nothing here; paths go down from the top folder")
    if _URL.match(path):
        raise Refused("the path is a URL; paths go down from the top folder")


def _check_names(parts: Sequence[str]) -> None:
    """Refuses to make names that divide elsewhere, or that nobody could read."""
    for character in "".join(parts):
        if character == "\\":
            raise Refused("the path holds a backslash; names are divided by /")
        if unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in _DIRECTIONS:
            raise Refused("the path holds a character that ends a line or cannot be seen")


@dataclass(frozen=True, slots=True)
class _Present:
    """A file as it is: its size and state, and its content, None where it is not looked at."""

    content: bytes | None
    size: int
    state: str

    def text(self) -> str | None:
        """The content as text, None where it is none."""
        try:
            return None if self.content is None else decoded(self.content, "")
        except ToolError:
            return None

    def for_good(self) -> str:
        """A warning where the content is too large to be kept for undo."""
        much = f" (more than {MAX_KEPT_BYTES} bytes: this cannot be undone)"
        return much if self.size > MAX_KEPT_BYTES else ""

    def in_words(self) -> str:
        """The words for a content that is not shown."""
        no_text = self.content is not None
        return f"{self.size} bytes, " + ("which are no text" if no_text else "too many to be shown")


def _present(place: Place) -> _Present | None:
    """The file at the place. State and content are of the same bytes, whoever writes meanwhile."""
    fd = open_present(place)
    if fd is None:
        return None
    try:
        content = up_to(fd, MAX_BYTES + 1)
        if len(content) <= MAX_BYTES:
            return _Present(content, len(content), state_of(content))
        return _Present(None, os.fstat(fd).st_size, state_of(fd))
    finally:
        os.close(fd)


def _diff(before: str | None, after: str, path: str) -> str:
    if before is None and not after:
        return f"--- /dev/null\n+++ {path}\n(the new file is empty)"
    return unified_diff(before or "", after, "/dev/null" if before is None else path, path)


def _replacing(present: _Present, after: str, path: str) -> str:
    """A diff where the present content is a text, else words for it and the new content."""
    before = present.text()
    if before is None:
        head = f"{path}: {present.in_words()}, are replaced by{present.for_good()}:"
        return f"{head}\n{_diff(None, after, path)}"
    text = _diff(before, after, path)
    if before.encode() != present.content:
        text += "\n(the file changes to UTF-8 without a mark)"
    return text


def _deleting(present: _Present, path: str) -> str:
    head = f"{path} is deleted{present.for_good()}"
    text = present.text()
    if text is None:
        return f"{head}: {present.in_words()}"
    lost = f"\n{unified_diff(text, '', path, '/dev/null')}" if text else ""
    return f"{head}: {present.size} bytes{lost}"
