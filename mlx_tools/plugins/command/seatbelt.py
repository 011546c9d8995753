"""The profile of ``sandbox-exec`` on macOS. It denies what it does not allow.

If several rules match an operation, the last one wins, so hidden paths come last. Rules are about
paths, not about files. If a folder is renamed, the rules on its old path no longer apply to its
contents. So the folders above a hidden path cannot be renamed, and the path is also denied by its
name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from mlx_tools.store import find_private_part

if TYPE_CHECKING:
    from mlx_tools.plugins.command.sandbox_view import SandboxView

_SYSTEM: Final = (
    *("/usr/lib", "/usr/share", "/System/Library", "/Library/Apple"),
    # since macOS 13 the loader's cache of the system's libraries is in separate disk images
    *("/System/Cryptexes", "/System/Volumes/Preboot/Cryptexes"),
)
_PROGRAMS: Final = (
    *("/usr/bin", "/bin", "/usr/libexec", "/usr/local", "/opt/homebrew"),
    "/Library/Developer/CommandLineTools",
)
_DATA: Final = (
    *("/private/var/db/dyld", "/private/var/db/timezone"),
    "/private/var/select",  # it selects the shell of /bin/sh
)
_LINKS: Final = ("/etc", "/tmp", "/var", "/private/etc/localtime")  # noqa: S108 - links to /private
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

_USERS: Final = "com.apple.system.opendirectoryd.libinfo"
"""The service for names of users. Without it ``ls -l`` waits or fails."""


def build_profile(program: str, view: SandboxView, temporary: str = "") -> str:
    """Return the profile that gives a program this view of the system.

    Args:
        program: the program's absolute path.
        view: the part of the system that it can see and write to.
        temporary: its own temporary folder, which it may write to; empty for none.
    """
    real_path = os.path.realpath(program)
    places = [*dict.fromkeys((program, real_path))]
    roots = [path for path, _ in view.roots]
    programs = (*_PROGRAMS, *view.programs)
    lines = ["(version 1)", "(deny default)"]
    lines += [
        "(allow sysctl-read)",
        "(allow signal (target same-sandbox))",
        "(allow process-info* (target same-sandbox))",
        "(allow ipc-posix-sem)",  # locks between processes, as Python's
        f"(allow mach-lookup (global-name {_quote(_USERS)}))",
    ]
    executable = f"(allow process-exec {_to_filters('literal', places)})"
    if view.starts:
        lines.append("(allow process-fork)")
        executable = (
            f"(allow process-exec {_to_filters('literal', places)} "
            f"{_to_filters('subpath', (*programs, *roots))})"
        )
    lines.append(executable)
    readable = (*_SYSTEM, *programs, *_DATA)
    parents = _list_parents((*roots, *readable, *places, *([temporary] if temporary else [])))
    lines += [
        # without the first rule no program starts: every path begins with /
        '(allow file-read* (literal "/"))',
        f"(allow file-read-metadata {_to_filters('literal', (*parents, *_LINKS))})",
        f"(allow file-read* {_to_filters('subpath', readable)} {_to_filters('literal', places)})",
        f"(allow file-map-executable {_to_filters('subpath', (*_SYSTEM, *programs))})",
        f"(allow file-read* {_to_filters('literal', _DEVICES)})",
        '(allow file-read-data file-write-data (subpath "/dev/fd"))',
        '(allow file-write-data (literal "/dev/null") (literal "/dev/zero"))',
    ]
    for path, writable in view.outermost_first:
        lines.append(f"(allow file-read* {_to_filters('subpath', [path])})")
        lines.append(
            f"({'allow' if writable else 'deny'} file-write* {_to_filters('subpath', [path])})"
        )
    if view.starts and roots:
        lines.append(f"(allow file-map-executable {_to_filters('subpath', roots)})")
    if temporary:
        lines.append(f"(allow file-read* file-write* {_to_filters('subpath', [temporary])})")
    return "\n".join([*lines, *_make_hiding_rules(view), "(deny network*)", ""])


def _make_hiding_rules(view: SandboxView) -> list[str]:
    """Return the rules on hidden paths, and on repositories, which are read-only."""
    roots = [PurePosixPath(path) for path, _ in view.roots]
    private = (*view.hidden.folders, *view.hidden.files)
    lines = []
    for path in view.hidden.repositories:
        by_name = _filter_by_name(roots, path, parts=1)
        lines.append(f"(deny file-write* {_to_filters('subpath', [path])} {by_name})")
    for path in private:
        # with the folder's name if that makes it private: ``config`` is private only in ``.git``
        alone = find_private_part((PurePosixPath(path).name,)) is not None
        by_name = _filter_by_name(roots, path, parts=1 if alone else 2)
        lines.append(f"(deny file-read* file-write* {_to_filters('subpath', [path])} {by_name})")
    holding = {
        str(parent)
        for path in (*private, *view.hidden.repositories)
        for parent in PurePosixPath(path).parents
        if any(root in parent.parents for root in roots)
    }
    if holding:  # to rename a folder is to unlink it from the one above it
        lines.append(f"(deny file-write-unlink {_to_filters('literal', sorted(holding))})")
    return lines


def _filter_by_name(roots: Sequence[PurePosixPath], path: str, *, parts: int) -> str:
    """Return a filter for the last parts of a path anywhere below the roots.

    It also matches everything below such a path.
    """
    pure = PurePosixPath(path)
    roots_above = [root for root in roots if root in pure.parents]
    if not roots_above:
        return ""
    inner = pure.relative_to(roots_above[0]).parts
    name = "/".join(map(_escape, inner[-parts:]))
    places = [f"^{_escape(str(root))}/(.*/)?{name}(/.*)?$" for root in roots_above]
    return " ".join(f"(regex {_quote(place)})" for place in places)


def _escape(text: str) -> str:
    """Escape a text as a regular expression that matches only it."""
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", text)


def _list_parents(paths: Iterable[str]) -> list[str]:
    """Return the folders above these paths."""
    return sorted({str(parent) for path in paths for parent in PurePosixPath(path).parents})


def _to_filters(kind: str, paths: Iterable[str]) -> str:
    return " ".join(f"({kind} {_quote(path)})" for path in paths)


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
