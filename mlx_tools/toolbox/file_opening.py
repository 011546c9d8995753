"""Opens files that a call names, and translates errors for a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from mlx_tools.macos import permission_hint
from mlx_tools.store import PathAbsent, PathRefused, PathUnlisted, Root, WrongFileKind
from mlx_tools.toolbox.file_names import Place, did_you_mean, find_equal_names
from mlx_tools.tools import ToolError


def open_below(roots: Sequence[Root], path: str) -> int:
    """Open a file in the first root that has the path. Raises ToolError."""
    return open_first(roots, path, Root.open_file)[0]


def open_first(
    roots: Sequence[Root], path: str, open_path: Callable[[Root, Sequence[str]], int]
) -> tuple[int, Root, Sequence[str]]:
    """Open a path in the first root that has it; return descriptor, root and names.

    If none has it, but one entry has an equal name (`find_equal_names`), that entry is opened.

    Raises:
        ToolError: there is no such entry, or it may not be opened.
    """
    fault: Exception | None = None
    absent: list[Place] = []
    for root in roots:
        try:
            parts = root.split(path)
            if parts is not None:
                absent.append((root, parts))
                return open_path(root, parts), root, parts
        except (PathUnlisted, WrongFileKind, PathAbsent) as error:  # another root may have it
            fault = error if fault is None or isinstance(fault, PathAbsent) else fault
        except PathRefused as error:
            raise ToolError(str(error), code="not_allowed") from None
    if isinstance(fault, PathUnlisted):
        raise ToolError(str(fault), code="not_allowed")
    if isinstance(fault, PathAbsent):
        for root, requested in absent:
            names = find_equal_names(root, requested)
            if names is not None:
                with tool_errors("it cannot be opened"):
                    root.split("/".join(names))  # raises for private names
                    return open_path(root, names), root, names
        raise ToolError(f"{fault}{did_you_mean(absent)}")
    if fault is not None:
        raise ToolError(str(fault))
    raise ToolError("the path lies outside the folders that may be seen", code="not_allowed")


@contextlib.contextmanager
def tool_errors(error_context: str = "the file cannot be changed") -> Iterator[None]:
    """Translate exceptions of walks and changes into errors that a model reads.

    ``error_context`` is put before the system's messages.
    """
    try:
        yield
    except PathRefused as error:
        raise ToolError(str(error), code="not_allowed") from None
    except (WrongFileKind, PathAbsent) as error:
        raise ToolError(str(error)) from None
    except OSError as error:
        hint = permission_hint(error, error.filename or ".")
        raise ToolError(
            f"{error_context}: {error.strerror}{f' ({hint})' if hint else ''}"
        ) from None
