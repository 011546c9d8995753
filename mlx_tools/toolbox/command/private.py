"""What a program must not see below the roots that it sees: found before it runs."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from mlx_tools.store.roots import FOLDERS, Refused, Root, folded, private_part

MAX_ENTRIES: Final = 200_000
"""Files and folders below the roots: so many are looked through in about two seconds."""
MAX_HIDDEN: Final = 1_000

_STATE: Final = re.compile(
    r"^[ \t]*(repositoryformatversion|filemode|bare|ignorecase|precomposeunicode|symlinks"
    r"|objectformat|refstorage)[ \t]*=[ \t]*([A-Za-z0-9]{1,20})[ \t]*$"
)
_SECTION: Final = re.compile(r"^[ \t]*\[(core|extensions)\][ \t]*$", re.IGNORECASE)
_MAX_CONFIG_BYTES: Final = 100_000


@dataclass(slots=True)
class Hidden:
    """Absolute paths: files and folders to hide, and repositories not to be written to."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.files) + len(self.folders) + len(self.repositories)


def hidden(roots: Sequence[Root]) -> Hidden:
    """What is private below the roots. Raises Refused where it cannot all be looked through."""
    found = Hidden()
    left = MAX_ENTRIES
    waiting = [(str(root.path), _above((root.path.name,))) for root in roots]
    while waiting:
        folder, above = waiting.pop()
        for entry in _entries(folder):
            left -= 1
            is_folder = entry.is_dir(follow_symlinks=False)
            if _private(entry.name, above):
                if not entry.is_symlink():  # where it leads to is hidden by its own name, or unseen
                    (found.folders if is_folder else found.files).append(entry.path)
            elif is_folder:
                if folded(entry.name) == ".git":
                    found.repositories.append(entry.path)
                waiting.append((entry.path, _above((above, entry.name))))
            if left < 0 or found.count > MAX_HIDDEN:
                raise Refused(
                    f"below the roots are more than {MAX_ENTRIES} files, or {MAX_HIDDEN} private "
                    "ones: too many to be hidden; a smaller root would do"
                )
    return found


def repository_state(config: Path) -> bytes:
    """What git must know to read a repository, out of its configuration, and nothing else of it.

    Everything that names a program, a file or an address is left out, whatever it is called.
    """
    try:
        with config.open("rb") as file:
            text = file.read(_MAX_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return b""
    lines: list[str] = []
    within = False
    for line in text.splitlines():
        if line.lstrip().startswith("["):
            section = _SECTION.match(line)
            within = section is not None
            if section:
                lines.append(f"[{section[1].lower()}]")
        elif within and (found := _STATE.match(line.lower())):
            lines.append(f"\t{found[1]} = {found[2]}")
    return ("\n".join(lines) + "\n").encode() if lines else b""


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except OSError:  # the program runs as the same user: what we cannot open, it cannot
        return


@functools.lru_cache(maxsize=10_000)
def _above(names: tuple[str, ...]) -> str:
    """The last of the names that is such a folder's, else nothing."""
    fitting = [name for name in names if any(fnmatchcase(folded(name), p) for p in FOLDERS)]
    return fitting[-1] if fitting else ""


@functools.lru_cache(maxsize=100_000)
def _private(name: str, above: str) -> bool:
    return private_part((name,), above) is not None
