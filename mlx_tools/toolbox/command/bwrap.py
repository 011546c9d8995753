"""The options of ``bwrap``: what a program sees of the system, and what it does not.

It gets namespaces of its own (users, processes, network, mounts, messages, host name), no rights,
no terminal, and a file system that is put together here: the system's programs and libraries to
read, the roots, an empty ``/tmp``, and nothing else. It ends when its parent ends, with all that it
started: the namespace of processes goes, whatever they did to get out of their group.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mlx_tools.toolbox.command.sandbox_view import SandboxView

TEMPORARY_BYTES: Final = 64 << 20

SWITCHES: Final = (
    frozenset(("modern", "proc")),
    frozenset(("modern",)),
    frozenset(("proc",)),
    frozenset[str](),
)
"""What is tried, the best first. ``modern`` are options of bwrap 0.8; within some containers
``/proc`` cannot be mounted."""

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CONFIGURATION: Final = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")


def options(
    switches: frozenset[str], view: SandboxView, telling: int, replaced: Mapping[str, int]
) -> list[str]:
    """The options that make the view. ``telling`` is the descriptor that the state goes to;
    ``replaced`` has, for a hidden file's path, the descriptor of its other contents."""
    made = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    made += ["--hostname", "sandbox", "--json-status-fd", str(telling)]
    if "modern" in switches:
        made += ["--unshare-user", "--disable-userns"]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            made += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).is_dir():
            made += ["--ro-bind", path, path]
    for path in _CONFIGURATION:
        made += ["--ro-bind-try", path, path]
    made += ["--dev", "/dev"]
    if "proc" in switches:
        made += ["--proc", "/proc"]
    size = ["--size", str(TEMPORARY_BYTES)] if "modern" in switches else []
    made += [*size, "--tmpfs", "/tmp"] if size else ["--dir", "/tmp"]  # noqa: S108
    made += _roots(view) + _hidden(view, replaced)
    return [*made, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", view.folder]


def _roots(view: SandboxView) -> list[str]:
    """The folders above come first, so that one within another keeps its own rights."""
    made: list[str] = []
    for path, writable in sorted(view.roots, key=lambda root: (root[0].count("/"), root[1])):
        made += ["--bind" if writable else "--ro-bind", path, path]
    return made


def _hidden(view: SandboxView, replaced: Mapping[str, int]) -> list[str]:
    made: list[str] = []
    for path in view.hidden.repositories:
        made += ["--ro-bind", path, path]
    for path in view.hidden.folders:
        made += ["--tmpfs", path, "--remount-ro", path]
    for path in view.hidden.files:
        if path in replaced:
            made += ["--ro-bind-data", str(replaced[path]), path]
        else:
            made += ["--ro-bind", os.devnull, path]  # a device, and none may be opened there
    return made


def states(told: bytes) -> list[dict[str, Any]]:
    """What was told so far: objects with ``child-pid`` and namespaces, then with ``exit-code``."""
    found = []
    for line in told.split(b"\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [state for state in found if isinstance(state, dict)]


def namespace(told: bytes, kind: str) -> int | None:
    """The number of the program's namespace of a kind (``net``, ``pid``), None where it was not
    told."""
    for state in states(told):
        number = state.get(f"{kind}-namespace")
        if isinstance(number, int):
            return number
    return None
