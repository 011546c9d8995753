"""The model's knowledge of files: lines that it has seen, and their state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mlx_tools.messages import replace
from mlx_tools.store import Root
from mlx_tools.toolbox import one_line
from mlx_tools.tools import current_context
from mlx_tools.transcript import FileView


def identify(root: Root, names: Sequence[str]) -> str:
    """Return a short text that identifies a file below a root."""
    path = "\0".join((str(root.path), *names)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(path).hexdigest()[:16]


def find_view(root: Root, names: Sequence[str]) -> FileView | None:
    """Return what the model knows of a file from earlier calls."""
    look_up = current_context().known_file
    return None if look_up is None else look_up(identify(root, names))


def record_lines(
    root: Root,
    names: Sequence[str],
    state: str,
    first: int,
    last: int,
    total: int,
    *,
    is_cut: bool = False,
) -> None:
    """Record that the model sees lines of a file.

    They are added to the lines that it saw before, if the file has not changed since.
    """
    known = find_view(root, names)
    is_same = known is not None and known.state == state and not (known.is_cut or is_cut)
    if is_same and known is not None and first <= known.last + 1 and known.first <= last + 1:
        first, last = min(first, known.first), max(last, known.last)
    view = FileView(
        file=identify(root, names), state=state, first=first, last=last, total=total, is_cut=is_cut
    )
    current_context().files.append(view)


def record_write(root: Root, names: Sequence[str], state: str, text: str) -> None:
    """Record that the model wrote a complete file."""
    total = count_lines(text)
    record_lines(root, names, state, 1, total, total)


def record_edit(
    root: Root, names: Sequence[str], old_text: str, new_text: str, extra_lines: int
) -> None:
    """Record that the model changed a file in the state ``old_text`` to ``new_text``.

    The file has ``extra_lines`` more lines now.
    """
    view = find_view(root, names)
    if view is not None and view.state == old_text:
        last, total = view.last + extra_lines, view.total + extra_lines
        new_view = replace(view, state=new_text, last=max(last, view.first), total=max(total, 1))
        current_context().files.append(new_view)


def count_lines(text: str) -> int:
    """Return the number of lines of a text, as `file_access` counts them."""
    separator = "\r" if "\r" in text and "\n" not in text else "\n"
    return text.count(separator) + (not text.endswith(separator))


def make_warning(root: Root, names: Sequence[str], path: str, state: str, *, replaces: bool) -> str:
    """Return a warning for a person before a change of a file, or an empty text.

    It is one line. ``replaces`` is True if the whole file is replaced, with lines that the model
    has not seen.
    """
    view = find_view(root, names)
    if view is None:
        return ""
    name = one_line(path, marks=True)
    if view.state != state:
        return f"{name} has changed on disk since the model read it.\n"
    if replaces and not view.is_whole:
        part = "a part of " if view.is_cut else ""
        lines = f"lines {view.first:,} to {view.last:,} of {view.total:,}"
        return f"The model has seen {part}{lines} of {name}.\n"
    return ""
