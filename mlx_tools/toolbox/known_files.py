"""What the model knows of a file: what it was shown of it, and whether that still is so."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mlx_tools.messages import replace
from mlx_tools.store import Root
from mlx_tools.toolbox.text_files import one_line
from mlx_tools.tools import current_context
from mlx_tools.transcript import FileView


def identify(root: Root, names: Sequence[str]) -> str:
    """A short text that stands for a file below a root."""
    path = "\0".join((str(root.path), *names)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(path).hexdigest()[:16]


def find_view(root: Root, names: Sequence[str]) -> FileView | None:
    """What the model knows of a file from earlier calls."""
    look_up = current_context().known_file
    return None if look_up is None else look_up(identify(root, names))


def note_lines(
    root: Root,
    names: Sequence[str],
    state: str,
    first: int,
    last: int,
    total: int,
    *,
    is_cut: bool = False,
) -> None:
    """Note that the model is shown lines of a file, besides those of the same state before."""
    before = find_view(root, names)
    is_same = before is not None and before.state == state and not (before.is_cut or is_cut)
    if is_same and before is not None and first <= before.last + 1 and before.first <= last + 1:
        first, last = min(first, before.first), max(last, before.last)
    seen = FileView(
        file=identify(root, names), state=state, first=first, last=last, total=total, is_cut=is_cut
    )
    current_context().files.append(seen)


def note_written(root: Root, names: Sequence[str], state: str, text: str) -> None:
    """Note that the model wrote all of a file."""
    total = count_lines(text)
    note_lines(root, names, state, 1, total, total)


def note_edited(
    root: Root, names: Sequence[str], old_text: str, new_text: str, extra_lines: int
) -> None:
    """Note that the model changed a file in the state ``old_text``, which has ``extra_lines`` lines
    now."""
    seen = find_view(root, names)
    if seen is not None and seen.state == old_text:
        last, total = seen.last + extra_lines, seen.total + extra_lines
        changed = replace(seen, state=new_text, last=max(last, seen.first), total=max(total, 1))
        current_context().files.append(changed)


def count_lines(text: str) -> int:
    """The lines of a text, as `file_access` counts them."""
    separator = "\r" if "\r" in text and "\n" not in text else "\n"
    return text.count(separator) + (not text.endswith(separator))


def warning(root: Root, names: Sequence[str], path: str, state: str, *, replaces: bool) -> str:
    """What a person must know before a change of a file, as a line; empty if nothing.

    ``replaces``: all of the file is replaced, also what the model has not seen.
    """
    seen = find_view(root, names)
    if seen is None:
        return ""
    name = one_line(path, marks=True)
    if seen.state != state:
        return f"{name} has changed on disk since the model read it.\n"
    if replaces and not seen.is_whole:
        part = "a part of " if seen.is_cut else ""
        lines = f"lines {seen.first:,} to {seen.last:,} of {seen.total:,}"
        return f"The model has seen {part}{lines} of {name}.\n"
    return ""
