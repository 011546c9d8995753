"""The profile of ``sandbox-exec`` on macOS, in Apple's notation: what it does not name is denied.

Of several rules that fit an operation the last one counts, so what is hidden stands last. Rules are
about paths, not about files: whoever renames a folder takes what is in it out of the rules on its
path. So the folders above what is hidden cannot be renamed, and it is denied by its name as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from mlx_tools.store import private_part

if TYPE_CHECKING:
    from mlx_tools.toolbox.sandbox_view import SandboxView

_SYSTEM: Final = (
    *("/usr/lib", "/usr/share", "/System/Library", "/Library/Apple"),
    # since macOS 13 the loader's cache of the system's libraries lies in images of their own
    *("/System/Cryptexes", "/System/Volumes/Preboot/Cryptexes"),
)
_PROGRAMS: Final = (
    *("/usr/bin", "/bin", "/usr/libexec", "/usr/local", "/opt/homebrew"),
    "/Library/Developer/CommandLineTools",
)
_DATA: Final = (
    *("/private/var/db/dyld", "/private/var/db/timezone"),
    "/private/var/select",  # which shell /bin/sh is
)
_LINKS: Final = ("/etc", "/tmp", "/var", "/private/etc/localtime")  # noqa: S108 - links to /private
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

_USERS: Final = "com.apple.system.opendirectoryd.libinfo"
"""The service that tells the names of users, without which ``ls -l`` waits or fails."""


def seatbelt_profile(program: str, view: SandboxView, temporary: str = "") -> str:
    """Return the profile that gives a program this view of the system.

    Args:
        program: the program's absolute path.
        view: what it sees, and may write to.
        temporary: a folder that it may write to, its own; empty for none.
    """
    real = os.path.realpath(program)
    places = [*dict.fromkeys((program, real))]
    roots = [path for path, _ in view.roots]
    programs = (*_PROGRAMS, *view.programs)
    lines = ["(version 1)", "(deny default)"]
    lines += [
        "(allow sysctl-read)",
        "(allow signal (target same-sandbox))",
        "(allow process-info* (target same-sandbox))",
        "(allow ipc-posix-sem)",  # locks between processes, as Python's
        f"(allow mach-lookup (global-name {_quoted(_USERS)}))",
    ]
    executable = f"(allow process-exec {_each('literal', places)})"
    if view.starts:
        lines.append("(allow process-fork)")
        executable = (
            f"(allow process-exec {_each('literal', places)} "
            f"{_each('subpath', (*programs, *roots))})"
        )
    lines.append(executable)
    readable = (*_SYSTEM, *programs, *_DATA)
    above = _above((*roots, *readable, *places, *([temporary] if temporary else [])))
    lines += [
        # without the first no program starts at all: it is looked up with every path
        '(allow file-read* (literal "/"))',
        f"(allow file-read-metadata {_each('literal', (*above, *_LINKS))})",
        f"(allow file-read* {_each('subpath', readable)} {_each('literal', places)})",
        f"(allow file-map-executable {_each('subpath', (*_SYSTEM, *programs))})",
        f"(allow file-read* {_each('literal', _DEVICES)})",
        '(allow file-read-data file-write-data (subpath "/dev/fd"))',
        '(allow file-write-data (literal "/dev/null") (literal "/dev/zero"))',
    ]
    for path, writable in view.outermost_first:
        lines.append(f"(allow file-read* {_each('subpath', [path])})")
        lines.append(f"({'allow' if writable else 'deny'} file-write* {_each('subpath', [path])})")
    if view.starts and roots:
        lines.append(f"(allow file-map-executable {_each('subpath', roots)})")
    if temporary:
        lines.append(f"(allow file-read* file-write* {_each('subpath', [temporary])})")
    return "\n".join([*lines, *_hiding(view), "(deny network*)", ""])


def _hiding(view: SandboxView) -> list[str]:
    """The rules on what is hidden, and on repositories, which nothing may write to."""
    roots = [PurePosixPath(path) for path, _ in view.roots]
    private = (*view.hidden.folders, *view.hidden.files)
    lines = []
    for path in view.hidden.repositories:
        by_name = _by_name(roots, path, parts=1)
        lines.append(f"(deny file-write* {_each('subpath', [path])} {by_name})")
    for path in private:
        # with the folder's name if that makes it private: ``config`` is only so in ``.git``
        alone = private_part((PurePosixPath(path).name,)) is not None
        by_name = _by_name(roots, path, parts=1 if alone else 2)
        lines.append(f"(deny file-read* file-write* {_each('subpath', [path])} {by_name})")
    holding = {
        str(parent)
        for path in (*private, *view.hidden.repositories)
        for parent in PurePosixPath(path).parents
        if any(root in parent.parents for root in roots)
    }
    if holding:  # a folder that is renamed is unlinked from the one above it
        lines.append(f"(deny file-write-unlink {_each('literal', sorted(holding))})")
    return lines


def _by_name(roots: Sequence[PurePosixPath], path: str, *, parts: int) -> str:
    """A filter for the last parts of a path anywhere below the roots, and all that is in there."""
    pure = PurePosixPath(path)
    within = [root for root in roots if root in pure.parents]
    if not within:
        return ""
    inner = pure.relative_to(within[0]).parts
    name = "/".join(map(_escaped, inner[-parts:]))
    places = [f"^{_escaped(str(root))}/(.*/)?{name}(/.*)?$" for root in within]
    return " ".join(f"(regex {_quoted(place)})" for place in places)


def _escaped(text: str) -> str:
    """A text as a regular expression that fits it alone."""
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", text)


def _above(paths: Iterable[str]) -> list[str]:
    """The folders above these paths."""
    return sorted({str(parent) for path in paths for parent in PurePosixPath(path).parents})


def _each(kind: str, paths: Iterable[str]) -> str:
    return " ".join(f"({kind} {_quoted(path)})" for path in paths)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
