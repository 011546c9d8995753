"""Errors of macOS are told as what they are, and its ways with files are followed.

Nothing here needs a Mac: the platform and the system's calls are given.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlx_tools.backends.address import parse_address
from mlx_tools.backends.transport import find_network_hint
from mlx_tools.cli.chat_commands import copy
from mlx_tools.macos import (
    is_dataless,
    network_hint,
    permission_hint,
    raise_open_files,
    real_case,
    sync_fully,
)
from mlx_tools.process import Pipes
from tests.tables import table

FORBIDDEN = PermissionError(errno.EPERM, "Operation not permitted")
DENIED = PermissionError(errno.EACCES, "Permission denied")


@table(
    "path, error, platform, hinted",
    [
        ("/h/Documents/a.txt", FORBIDDEN, "darwin", True),
        ("/h/Documents", FORBIDDEN, "darwin", True),
        ("/h/Desktop/x/y", FORBIDDEN, "darwin", True),
        ("/h/Downloads", FORBIDDEN, "darwin", True),
        ("/h/Library/Mobile Documents/com~apple~CloudDocs/a", FORBIDDEN, "darwin", True),
        ("/Volumes/stick/a", FORBIDDEN, "darwin", True),
        ("/h/projects/Documents", FORBIDDEN, "darwin", False),
        ("/h/Documents/a.txt", DENIED, "darwin", False),
        ("/h/Documents/a.txt", FORBIDDEN, "linux", False),
    ],
)
def test_what_the_privacy_settings_forbid_is_told_with_where_they_are(
    path: str, error: OSError, platform: str, hinted: bool
) -> None:
    hint = permission_hint(error, path, platform=platform, home="/h")
    assert (hint is not None and "Privacy & Security" in hint) is hinted


@table(
    "url, number, platform, hinted",
    [
        ("http://192.168.1.7:8080", errno.EHOSTUNREACH, "darwin", True),
        ("http://studio.local:8080", errno.EHOSTUNREACH, "darwin", True),
        ("http://10.0.0.3:1", errno.EHOSTUNREACH, "darwin", True),
        ("http://127.0.0.1:8080", errno.EHOSTUNREACH, "darwin", False),
        ("http://93.184.216.34", errno.EHOSTUNREACH, "darwin", False),
        ("http://192.168.1.7:8080", errno.ECONNREFUSED, "darwin", False),
        ("http://192.168.1.7:8080", errno.EHOSTUNREACH, "linux", False),
    ],
)
def test_a_neighbour_that_cannot_be_reached_is_told_with_the_setting(
    url: str, number: int, platform: str, hinted: bool
) -> None:
    error = RuntimeError("connect failed")
    error.__cause__ = OSError(number, os.strerror(number))
    hint = find_network_hint(parse_address(url), error, platform)
    assert (hint is not None and "Local Network" in hint) is hinted
    assert network_hint(None, is_local=True, platform="darwin") is None


def test_a_file_whose_contents_are_in_icloud_is_known() -> None:
    assert is_dataless(SimpleNamespace(st_flags=0x4000_0020))  # type: ignore[arg-type]
    assert not is_dataless(SimpleNamespace(st_flags=0x20))  # type: ignore[arg-type]
    assert not is_dataless(Path("/").stat())


def test_a_folder_has_the_case_that_is_on_the_disk() -> None:
    def control(fd: int, command: int, room: bytes) -> bytes:
        assert command == 50 and len(room) >= 1024
        return b"/Volumes/Data/Work".ljust(len(room), b"\0")

    def failing(*_: Any) -> Any:
        raise OSError(errno.ENOTSUP, "no")

    typed = Path("/volumes/data/WORK")
    assert real_case(3, typed, platform="darwin", control=control) == Path("/Volumes/Data/Work")
    assert real_case(3, typed, platform="darwin", control=failing) == typed
    assert real_case(3, typed, platform="linux", control=failing) == typed


@pytest.mark.parametrize(
    ("platform", "works", "calls"),
    [
        ("darwin", True, [("control", 51)]),
        ("darwin", False, [("control", 51), ("sync", 7)]),
        ("linux", True, [("sync", 7)]),
    ],
)
def test_what_must_outlast_a_power_cut_gets_to_the_disk_itself(
    platform: str, works: bool, calls: list[tuple[str, int]]
) -> None:
    made: list[tuple[str, int]] = []

    def control(fd: int, command: int) -> int:
        made.append(("control", command))
        if not works:
            raise OSError(errno.ENOTTY, "no")
        return 0

    sync_fully(7, platform=platform, control=control, sync=lambda fd: made.append(("sync", fd)))
    assert made == calls


class Limits:
    """The limits of a process, as the module ``resource`` has them."""

    RLIMIT_NOFILE = 7
    RLIM_INFINITY = -1

    def __init__(self, soft: int, hard: int, *, refuses: bool = False) -> None:
        self.now, self.refuses = (soft, hard), refuses

    def getrlimit(self, which: int) -> tuple[int, int]:
        return self.now

    def setrlimit(self, which: int, wanted: tuple[int, int]) -> None:
        if self.refuses:
            raise ValueError("not allowed to raise maximum limit")
        self.now = wanted


@table(
    "soft, hard, after",
    [(256, -1, 4096), (256, 1024, 1024), (8192, -1, 8192), (-1, -1, -1)],
)
def test_more_files_than_256_may_be_open(soft: int, hard: int, after: int) -> None:
    limits = Limits(soft, hard)
    raise_open_files(limits)
    assert limits.now == (after, hard)
    stubborn = Limits(256, -1, refuses=True)
    raise_open_files(stubborn)
    assert stubborn.now == (256, -1)


def test_the_clipboard_of_a_mac_is_told_the_encoding(tmp_path: Path) -> None:
    program = tmp_path / "pbcopy"
    program.write_text(f'#!/bin/sh\necho "$LC_CTYPE" >"{tmp_path}/said"\ncat >>"{tmp_path}/said"\n')
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin"
    assert copy("é — 北京", {"PATH": path}) == "with pbcopy"
    assert (tmp_path / "said").read_text(encoding="utf-8") == "UTF-8\né — 北京"


def test_no_terminal_is_waited_for_by_what_is_kqueue_on_a_mac() -> None:
    """kqueue takes no /dev/tty: only pipes are given to `selectors`."""
    package = Path(Pipes.__module__.replace(".", "/")).parent
    users = [
        path.name
        for path in package.rglob("*.py")
        if "DefaultSelector" in path.read_text(encoding="utf-8")
        or "add_reader" in path.read_text(encoding="utf-8")
    ]
    assert users == ["process.py"]
