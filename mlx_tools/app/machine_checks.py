"""The checks of this machine for ``mlx-tools doctor``: memory, open files, ports.

Values that depend on the system are parameters, so that tests can replace them.
"""

from __future__ import annotations

import os
import platform as machine
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from mlx_tools.app.autostart import Autostart
from mlx_tools.app.checks import Check
from mlx_tools.backends import GPU_SHARE, HEADROOM, folder_bytes, listening_command, memory_bytes

GB: Final = 10**9

MIN_MACOS: Final = 14
"""MLX's wheels are built for macOS 14 and later."""

MIN_OPEN_FILES: Final = 1024
"""Open files that a gateway with some hundred clients needs."""

_SECONDS: Final = 5.0
"""Seconds for `sysctl`, `launchctl` and `xcode-select`, which answer at once."""

Output = Callable[[Sequence[str]], str | None]
"""Runs a program of the system and returns its output, None if it fails."""


def run_program(words: Sequence[str]) -> str | None:
    """Return the output of a program of the system, None if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - an argument list, no shell
            words, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def check_machine(
    folder: Path | None = None,
    autostarts: Sequence[Autostart] = (),
    *,
    port: int,
    platform: str = sys.platform,
) -> list[Check]:
    """Make all checks of this machine.

    Args:
        folder: the files of the model in use, None if they are not here.
        autostarts: the commands that the system may start.
        port: the port of the gateway.
        platform: the system, as in `sys.platform`.
    """
    checks = [
        *check_system(platform),
        check_memory(folder, memory_bytes(), platform),
        check_open_files(),
        check_port(port),
    ]
    for autostart in autostarts:
        checks += check_autostart(autostart)
    return checks


def check_system(
    platform: str = sys.platform,
    *,
    version: str | None = None,
    processor: str | None = None,
    output: Output = run_program,
) -> list[Check]:
    """Check that MLX runs on this Mac, and that it has command line tools."""
    if platform != "darwin":
        return []
    version = machine.mac_ver()[0] if version is None else version
    processor = machine.machine() if processor is None else processor
    if processor != "arm64":
        emulated = (output(["/usr/sbin/sysctl", "-n", "sysctl.proc_translated"]) or "").strip()
        if emulated == "1":
            detail = "this Python is for Intel, and runs in Rosetta: MLX has no version for it"
            hint = "install mlx-tools with a Python for Apple silicon (brew install python@3.13)"
        else:
            detail = "this Mac has an Intel processor: MLX has no version for it"
            hint = "use a model server that is not MLX, here or elsewhere: --url"
        system = Check("macOS", "warn", detail, hint)
    elif int(re.match(r"\d*", version)[0] or 0) < MIN_MACOS:  # type: ignore[index]
        detail = f"macOS {version}: MLX needs {MIN_MACOS} or later"
        system = Check("macOS", "warn", detail, "update macOS, or name another server: --url")
    else:
        system = Check("macOS", "ok", f"macOS {version} on Apple silicon")
    if output(["/usr/bin/xcode-select", "-p"]) is None:
        said = "Apple's command line tools are not installed: git, make and python3 are theirs"
        return [system, Check("command line tools", "warn", said, "xcode-select --install")]
    return [system, Check("command line tools", "ok", "Apple's command line tools are installed")]


def check_memory(
    folder: Path | None,
    memory: int | None,
    platform: str = sys.platform,
    *,
    size: Callable[[Path], int] = folder_bytes,
    output: Output = run_program,
) -> Check:
    """Compare the weights of a model with the memory that they must fit into."""
    if memory is None:
        return Check("memory", "skip", "the size of the memory is not known")
    limit = memory
    if platform == "darwin":
        limit = int(memory * GPU_SHARE)
        raised = (output(["/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb"]) or "").strip()
        if raised.isdecimal() and int(raised):
            limit = int(raised) << 20
    has = f"{memory / 2**30:.0f} GB of memory"
    if platform == "darwin":
        has += f", {limit / 2**30:.0f} GB of it for Metal"
    if folder is None:
        return Check("memory", "ok", f"{has}; the model's weights are not on this machine")
    weights = size(folder)
    detail = f"{has}; the model's weights have {weights / GB:.1f} GB"
    if weights + HEADROOM > limit:
        hint = "take a smaller model, or fewer bits: mlx-tools models list suggests one"
        return Check("memory", "warn", f"{detail}, which leaves no room for prompts", hint)
    return Check("memory", "ok", detail)


def check_open_files(limits: Any = None) -> Check:
    """Check that this process may open as many files as a gateway needs."""
    if limits is None:
        import resource as limits
    soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    if soft != limits.RLIM_INFINITY and soft < MIN_OPEN_FILES:
        detail = f"{soft} files may be open at once, and no more than {hard}"
        return Check("open files", "warn", detail, "raise it before the start: ulimit -n 4096")
    said = "any number of" if soft == limits.RLIM_INFINITY else str(soft)
    return Check("open files", "ok", f"{said} files may be open at once")


def check_port(port: int, *, command_on: Callable[[int], str | None] = listening_command) -> Check:
    """Check that the gateway's port is free, or find the program that listens on it."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            command = command_on(port)
        else:
            return Check("port", "ok", f"{port} is free for mlx-tools serve")
    if command is not None and re.search(r"\bmlx[-_]tools\b.*\bserve\b", command):
        return Check("port", "ok", f"mlx-tools serve listens on {port}")
    program = "another program" if command is None else Path(command.split(" ")[0]).name
    hint = "give the gateway another: mlx-tools serve --port NUMBER"
    return Check("port", "warn", f"{program} listens on {port}, the gateway's port", hint)


def check_autostart(autostart: Autostart, *, output: Output = run_program) -> list[Check]:
    """Check that launchd knows a command, and gives it the present variables."""
    if not autostart.installed:
        return []
    name, again = f"{autostart.name} at log-in", f"mlx-tools {autostart.name} install"
    if autostart.platform == "darwin":
        printed = output(["/bin/launchctl", "print", f"gui/{os.getuid()}/{autostart.label}"])
        if printed is None:
            said = "its file is there, but launchd does not know it"
            return [Check(name, "warn", said, again)]
        code = re.search(r"last exit code = (\d+)", printed)
        if code is not None and code[1] not in ("0", "4"):  # 4: a job waits for a person
            said = f"launchd knows it; it ended last with exit code {code[1]}"
            return [Check(name, "warn", said, f"its log: {autostart.log}")]
    if names := autostart.differences():
        said = f"it has other values than this shell of {', '.join(names)}"
        return [Check(name, "warn", said, f"{again} gives it these")]
    return [Check(name, "ok", "installed, with the folders and settings seen here")]
