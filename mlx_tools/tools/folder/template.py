"""A new tool to begin with, from the files in ``prompts/new-tool/``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.messages import ALIASES, TOOL_NAME
from mlx_tools.paths import read_data
from mlx_tools.tools.folder.collection import check_folder_name

_FILES: Final = {
    "config.json": "config.json",
    "tool_definition.json": "tool_definition.json",
    "execute.py": "execute.txt",
    "test_{name}.py": "test.txt",
}
"""The files of a tool, each with the one it is made of."""


def write_template(folder: Path, name: str) -> Path:
    """Makes the folder ``name`` in ``folder``: a tool of that name that works, and a test of it.

    Returns its path. Raises UsageError where the name cannot be a tool's, or is taken.
    """
    if not TOOL_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r:.80} cannot name a tool", hint="use 1 to 64 of A-Z a-z 0-9 _ . -"
        )
    check_folder_name(name)
    if name in ALIASES:
        raise UsageError(f"{name} is another name of {ALIASES[name]}", hint="give yours another")
    made = folder.absolute() / name
    try:
        made.mkdir()
    except FileExistsError:
        raise UsageError(f"{made} is there already", hint="name another, or remove it") from None
    except OSError as error:
        raise UsageError(f"{made} cannot be made: {error.strerror}") from None
    try:
        _write(made)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)  # half a tool would only be in the way
        raise UsageError(f"{made} cannot be made: {error.strerror}") from None
    return made


def _write(made: Path) -> None:
    for file, source in _FILES.items():
        text = read_data(f"prompts/new-tool/{source}").replace("{{name}}", made.name)
        file = file.format(name=re.sub(r"\W", "_", made.name))
        (made / file).write_text(text, encoding="utf-8")
