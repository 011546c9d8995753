"""The profile for ``sandbox-exec``: what a program may do on macOS, everything else denied."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from mlx_tools.toolbox.command.sandbox_view import SandboxView

_READ: Final = (
    *("/usr/bin", "/bin", "/usr/lib", "/usr/libexec", "/usr/share", "/usr/local", "/opt/homebrew"),
    *("/System/Library", "/System/Cryptexes", "/private/var/db/dyld", "/private/var/db/timezone"),
    "/Library/Apple",
)
_RUN: Final = ("/usr/bin", "/bin", "/usr/libexec", "/usr/local", "/opt/homebrew")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def profile(program: str, view: SandboxView) -> str:
    """The profile in Apple's notation. A later rule goes over an earlier one, so what is hidden
    stands last."""
    lines = ["(version 1)", "(deny default)", "(allow sysctl-read)"]
    if view.starts:
        lines.append("(allow process-fork)")
        lines.append(f"(allow process-exec {_below(_RUN)})")
    else:
        lines.append(f"(allow process-exec (literal {_quoted(program)}))")
    roots = [path for path, _ in view.roots]
    above = sorted({str(p) for path in (*roots, *_READ) for p in PurePosixPath(path).parents})
    lines.append(f"(allow file-read-metadata {' '.join(f'(literal {_quoted(p)})' for p in above)})")
    lines.append(f"(allow file-read* {_below(_READ)})")
    devices = " ".join(f"(literal {_quoted(path)})" for path in _DEVICES)
    lines.append(f"(allow file-read* {devices})")
    lines.append('(allow file-write-data (literal "/dev/null"))')
    for path, writable in sorted(view.roots, key=lambda root: (root[0].count("/"), root[1])):
        lines.append(f"(allow file-read* {_below([path])})")
        lines.append(f"({'allow' if writable else 'deny'} file-write* {_below([path])})")
    lines += [f"(deny file-write* {_below([path])})" for path in view.hidden.repositories]
    private = (*view.hidden.folders, *view.hidden.files)
    lines += [f"(deny file-read* file-write* {_below([path])})" for path in private]
    return "\n".join([*lines, "(deny network*)", ""])


def _below(paths: tuple[str, ...] | list[str]) -> str:
    return " ".join(f"(subpath {_quoted(path)})" for path in paths)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
