"""``edit_file``: replaces a text in a file below a writable root."""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from mlx_tools.messages import Effects
from mlx_tools.plugins.files.access import Changes
from mlx_tools.plugins.files.known_files import count_lines, record_edit
from mlx_tools.plugins.files.text_edit import MAX_RESULT_CHARS, EditResult, edit_text
from mlx_tools.store import (
    PathRefused,
    Root,
    WrongFileKind,
    digest_content,
    open_present,
    write_file,
)
from mlx_tools.toolbox import decode_text, encode_text, one_line, read_up_to
from mlx_tools.tools import Preview, Tool, ToolError, current_context, load_words

EFFECTS: Final[Effects] = frozenset(("read", "write"))
"""It also reads: an error shows lines of the file."""

MAX_EDITED_BYTES: Final = MAX_RESULT_CHARS
"""Bytes of a file that can be edited: a person must be able to see the whole change."""

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
        """Decode a file. Raises ToolError if it is binary."""
        text = decode_text(content, path)
        encodings = ((mark, name) for mark, name in _MARKS if content.startswith(mark))
        return cls(text, *next(encodings, (b"", "utf-8")))

    def encode(self, text: str) -> bytes:
        """Encode another text like this file.

        Raises:
            ToolError: it would read back as a different text.
        """
        nul_allowed = "\0" in self.text
        raw = self.mark + encode_text(text, "new", self.encoding, nul_allowed=nul_allowed)
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
    replace_all: bool

    @classmethod
    def read(cls, arguments: Mapping[str, Any]) -> _Edit:
        old, new = arguments["old"], arguments["new"]
        return cls(arguments["path"], old, new, arguments.get("all") is True)

    def apply(self, content: bytes) -> tuple[_FileText, EditResult, bytes]:
        """Return the old text, the edited text, and its bytes. Raises ToolError."""
        if len(content) > MAX_EDITED_BYTES:
            raise ToolError(
                f"the file has more than {MAX_EDITED_BYTES} bytes, too many to be edited",
                code="payload_too_large",
            )
        old_text = _FileText.read(content, self.path)
        name = one_line(self.path.rpartition("/")[2] or self.path, marks=True)
        edited = edit_text(old_text.text, self.old, self.new, name, replace_all=self.replace_all)
        return old_text, edited, old_text.encode(edited.text)


def edit_file(roots: Sequence[Root]) -> Tool:
    """Return the tool for these roots; it changes only files below writable ones."""
    words = load_words("edit_file")
    changes = Changes(roots, words.notices)

    def run(arguments: Mapping[str, Any]) -> str:
        edit, context = _Edit.read(arguments), current_context()
        with changes.open_existing(edit.path) as (place, shown):
            content = _read_content(open_present(place), place.name)
            state = digest_content(content)
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
                is_cancelled=lambda: context.cancelled,
                undo=context.undo,
            )
            more_lines = count_lines(edited.text) - count_lines(before.text)
            record_edit(place.root, place.names, state, digest_content(raw), more_lines)
        numbers = ", ".join(map(str, edited.lines[:20])) + (", …" if edited.lines[20:] else "")
        key = "edited" if len(edited.lines) == 1 else "edited_often"
        values = {"path": shown, "count": len(edited.lines), "lines": numbers, "size": len(raw)}
        return words.notices[key].format(**values)

    def preview(arguments: Mapping[str, Any]) -> Preview:
        edit = _Edit.read(arguments)
        with changes.open_existing(edit.path) as (place, shown):
            content = _read_content(open_present(place), place.name)
            before, edited, _ = edit.apply(content)
            return changes.preview_edit(
                place, shown, before.text, edited.text, digest_content(content)
            )

    return Tool(words.spec(EFFECTS, private=True), run, preview=preview)


def _read_content(fd: int | None, name: str) -> bytes:
    """Read a file, at most one byte more than can be edited, and close it."""
    if fd is None:
        raise WrongFileKind(f"there is no {name} any more")
    try:
        return read_up_to(fd, MAX_EDITED_BYTES + 1)
    finally:
        os.close(fd)
