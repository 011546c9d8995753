"""``edit_file``: replaces a text in a file below a root that may be written to."""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from mlx_tools.messages import Effects
from mlx_tools.store import PathRefused, Root, WrongFileKind, open_present, state_of, write_file
from mlx_tools.toolbox.file_access import Changes
from mlx_tools.toolbox.known_files import count_lines, note_edited
from mlx_tools.toolbox.text_edit import MAX_RESULT_CHARS, EditResult, edit_text
from mlx_tools.toolbox.text_files import decode_text, one_line, up_to
from mlx_tools.tools import Preview, Tool, ToolError, current_context, words_of

EFFECTS: Final[Effects] = frozenset(("read", "write"))
"""It reads, too: an error shows lines of the file."""

MAX_EDITED_BYTES: Final = MAX_RESULT_CHARS
"""Largest file that is edited: a person is shown the whole change of so many bytes."""

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class _FileText(Struct, frozen=True):
    """The text of a file, its encoding and its byte order mark."""

    text: str
    mark: bytes
    encoding: str

    @classmethod
    def read(cls, content: bytes, path: str) -> _FileText:
        """Raises ToolError for bytes that are no text."""
        text = decode_text(content, path)
        found = ((mark, name) for mark, name in _MARKS if content.startswith(mark))
        return cls(text, *next(found, (b"", "utf-8")))

    def with_text(self, text: str) -> bytes:
        """The bytes of another text in the same encoding. Raises ToolError for what would not be
        read back as it was."""
        fault = None
        if "\0" in text and "\0" not in self.text:
            fault = "a NUL character, which no text has"
        elif text.startswith("\ufeff"):
            fault = (
                "a byte order mark (U+FEFF) at the start of the file, which is no part of a text"
            )
        try:
            raw = self.mark + text.encode(self.encoding)
        except UnicodeEncodeError:
            fault, raw = "half a character (a lone surrogate)", b""
        if fault is not None:
            raise ToolError(f"new holds {fault}", code="invalid_arguments")
        if len(raw) > MAX_EDITED_BYTES:
            raise ToolError(
                f"the edited file would have {len(raw)} bytes, at most {MAX_EDITED_BYTES}",
                code="payload_too_large",
            )
        return raw


class _Edit(Struct, frozen=True):
    """The arguments of one call."""

    path: str
    old: str
    new: str
    every: bool

    @classmethod
    def read(cls, arguments: Mapping[str, Any]) -> _Edit:
        old, new = arguments["old"], arguments["new"]
        return cls(arguments["path"], old, new, arguments.get("all") is True)

    def apply(self, content: bytes) -> tuple[_FileText, EditResult, bytes]:
        """The text before, the edited text, and its bytes. Raises ToolError."""
        if len(content) > MAX_EDITED_BYTES:
            raise ToolError(
                f"the file has more than {MAX_EDITED_BYTES} bytes, too many to be edited",
                code="payload_too_large",
            )
        before = _FileText.read(content, self.path)
        name = one_line(self.path.rpartition("/")[2] or self.path, marks=True)
        edited = edit_text(before.text, self.old, self.new, name, replace_all=self.every)
        return before, edited, before.with_text(edited.text)


def edit_file(roots: Sequence[Root]) -> Tool:
    """The tool for these roots; it changes files below those that were named with ``:rw``."""
    words = words_of("edit_file")
    changes = Changes(roots, words.notices)

    def run(arguments: Mapping[str, Any]) -> str:
        edit, context = _Edit.read(arguments), current_context()
        with changes.present(edit.path) as (place, shown):
            content = _content(open_present(place), place.name)
            state = state_of(content)
            if context.expected not in (None, state):
                raise PathRefused(
                    f"{place.name} has changed since it was approved; nothing was changed"
                )
            before, edited, raw = edit.apply(content)
            write_file(
                place,
                raw,
                expected=state,
                old_state="it was read",
                given_up=lambda: context.cancelled,
                undo=context.undo,
            )
            more = count_lines(edited.text) - count_lines(before.text)
            note_edited(place.root, place.names, state, state_of(raw), more)
        numbers = ", ".join(map(str, edited.lines[:20])) + (", …" if edited.lines[20:] else "")
        key = "edited" if len(edited.lines) == 1 else "edited_often"
        done = {"path": shown, "count": len(edited.lines), "lines": numbers, "size": len(raw)}
        return words.notices[key].format(**done)

    def preview(arguments: Mapping[str, Any]) -> Preview:
        edit = _Edit.read(arguments)
        with changes.present(edit.path) as (place, shown):
            content = _content(open_present(place), place.name)
            before, edited, _ = edit.apply(content)
            return changes.preview_of(place, shown, before.text, edited.text, state_of(content))

    return Tool(words.spec(EFFECTS, private=True), run, preview=preview)


def _content(fd: int | None, name: str) -> bytes:
    """The bytes of a file, one more than may be edited at most. Closes it."""
    if fd is None:
        raise WrongFileKind(f"there is no {name} any more")
    try:
        return up_to(fd, MAX_EDITED_BYTES + 1)
    finally:
        os.close(fd)
