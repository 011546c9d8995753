"""The program that listens on a port of this machine, and its model."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

from mlx_tools.backends.address import Address

_LISTENS: Final = "0A"
"""The state TCP_LISTEN in Linux's tables of sockets."""

_LSOF_SECONDS: Final = 5.0
"""Seconds for lsof. A choice: enough for a busy machine; a network folder can hang it for ever."""

_MODEL: Final = re.compile(r"(?:^|\s)--model(?:=|\s+)(.+?)(?=\s+--?[a-z]|\s*$)")
_MLX_LM: Final = re.compile(r"\bmlx_lm\b")


def listening_command(
    port: int,
    *,
    platform: str = sys.platform,
    processes: Path = Path("/proc"),
    output: Callable[[Sequence[str]], str] | None = None,
) -> str | None:
    """Return the command line of the program that listens on a TCP port.

    Args:
        port: the port.
        platform: the platform, as in `sys.platform`. On Linux ``/proc`` is read, on others lsof and
            ps are run.
        processes: the folder ``/proc``.
        output: runs a program and returns its output.

    Returns:
        The words of the command, with blanks between them. None if no program listens, or it is
        another user's.
    """
    if platform.startswith("linux"):
        return _find_by_proc(port, processes)
    output = output or _output
    # -n and -P: do not look up names on the network.
    words = ["lsof", "-nP", "-a", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fp"]
    match = re.search(r"(?m)^p(\d+)$", output(words))
    if match is None:
        return None
    return output(["ps", "-ww", "-o", "command=", "-p", match[1]]).strip() or None


def find_model_argument(command: str | None) -> str | None:
    """Return the ``--model`` in a command of mlx-lm's server; None for other programs."""
    if command is None or not _MLX_LM.search(command):
        return None
    match = _MODEL.search(command)
    return match[1].strip() if match else None


def is_path(name: str) -> bool:
    """Return True if a model's name is an absolute path on some system."""
    return PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()


async def find_started_model(
    address: Address,
    model_names: Sequence[str],
    *,
    command_on: Callable[[int], str | None] = listening_command,
) -> str | None:
    """Return the model that mlx-lm's server was started with, without a request.

    It is None if neither the list nor the server's command has it, and for other servers.

    Args:
        address: the server's address.
        model_names: the models that it lists.
        command_on: returns the command line of the program that listens on a port.
    """
    # The folder that the server was started with is the last in its list.
    if model_names and is_path(model_names[-1]):
        return model_names[-1]
    if not address.loopback:
        return None
    import anyio

    from mlx_tools.backends.models.hub import REPOSITORY

    # Reading the process table blocks for some milliseconds, so a thread does it.
    name = find_model_argument(await anyio.to_thread.run_sync(command_on, address.port))
    return name if name is not None and (REPOSITORY.fullmatch(name) or is_path(name)) else None


def _find_by_proc(port: int, processes: Path) -> str | None:
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port, processes)}
    if not sockets:
        return None
    for number in filter(str.isdecimal, os.listdir(processes)):  # noqa: PTH208
        with contextlib.suppress(OSError):  # another user's process, or it has ended
            if _has_open(f"{processes}/{number}/fd", sockets):
                words = (processes / number / "cmdline").read_bytes().split(b"\0")
                return " ".join(word.decode("utf-8", "replace") for word in words).strip()
    return None


def _has_open(folder: str, sockets: set[str]) -> bool:
    """Return True if one of the sockets is among a process's open files.

    A process may have thousands of them; with `Path` this would take several times as long.
    """
    for name in os.listdir(folder):  # noqa: PTH208
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"{folder}/{name}") in sockets:  # noqa: PTH115
                return True
    return False


def _listening_inodes(port: int, processes: Path) -> list[str]:
    """Return the inode numbers of the sockets that listen on a port."""
    inodes: list[str] = []
    for table in ("tcp", "tcp6"):
        try:
            # Closed sockets are listed for a while, too: thousands on a busy machine.
            lines = (processes / "net" / table).read_text().splitlines()[1:]
            rows = [line for line in lines if f":{port:04X} " in line]
        except OSError:
            continue
        inodes += [
            row[9]
            for row in map(str.split, rows)
            if len(row) > 9 and row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port
        ]
    return inodes


def _output(words: Sequence[str]) -> str:
    try:
        result = subprocess.run(  # noqa: S603 - an argument list, no shell
            words, capture_output=True, timeout=_LSOF_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.decode("utf-8", "replace")
