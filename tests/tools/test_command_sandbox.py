"""What the sandboxes are told, and that one which does not confine is not taken for one."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlx_tools.store.roots import Refused, Root, RootName
from mlx_tools.toolbox.command_plan import MAX_HIDDEN, Hidden, hidden, program, trusted_folders
from mlx_tools.toolbox.sandbox import (
    SWITCHES,
    Confined,
    NoSandbox,
    SandboxView,
    bwrap_options,
    find,
    probe,
    seatbelt_profile,
    status_of,
)

FOLDERS = trusted_folders()


@dataclass(frozen=True)
class Open:
    """A sandbox that confines nothing."""

    name = "open"
    hides_contents = True

    @contextlib.contextmanager
    def confined(self, argv: Sequence[str], view: SandboxView) -> Iterator[Confined]:
        yield Confined(tuple(argv))


@dataclass(frozen=True)
class Broken:
    """A sandbox in which nothing runs."""

    name = "broken"
    hides_contents = True

    @contextlib.contextmanager
    def confined(self, argv: Sequence[str], view: SandboxView) -> Iterator[Confined]:
        yield Confined(("/usr/bin/false",))


def test_a_sandbox_that_does_not_confine_is_found_out() -> None:
    assert "does not confine" in str(probe(Open(), FOLDERS))
    assert "does not work" in str(probe(Broken(), FOLDERS))


@pytest.mark.parametrize("platform", ["linux", "darwin", "freebsd14"])
def test_without_the_program_there_is_no_sandbox(platform: str) -> None:
    with pytest.raises(NoSandbox, match="missing"):
        find(platform, ())


def test_a_program_that_others_could_change_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "cat").write_text("#!/bin/sh\n")
    (tmp_path / "cat").chmod(0o755)
    tmp_path.chmod(0o777)
    assert program("cat", [str(tmp_path)]) is None
    assert trusted_folders([str(tmp_path), "relative", ".", ""]) == ()
    for name in ("", ".", "..", "../bin/cat", "/bin/cat", "no-such-program", "-cat", "c\0at"):
        assert program(name, FOLDERS) is None


# --- bwrap ---


def pairs(options: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(options))


def test_bwrap_gets_namespaces_of_its_own_and_no_way_back() -> None:
    for switches in SWITCHES:
        options = bwrap_options(switches, SandboxView("/data/r", [("/data/r", False)]), 9, {})
        assert {"--unshare-all", "--die-with-parent", "--new-session"} <= set(options)
        assert "--share-net" not in options
        assert ("--cap-drop", "ALL") in pairs(options)
        assert options[-4:] == ["--remount-ro", "/", "--chdir", "/data/r"]
        bound = [b for a, b in pairs(options) if a in ("--ro-bind", "--bind", "--ro-bind-try")]
        assert not {"/", "/home", "/etc", "/var", "/run", "/proc", "/sys"} & set(bound)


def test_bwrap_binds_the_inner_root_after_the_outer_one_and_hides_after_both() -> None:
    private = Hidden(["/data/.env"], ["/data/.ssh"], ["/data/.git"])
    view = SandboxView("/data", [("/data/in", True), ("/data", False)], private)
    options = bwrap_options(frozenset(), view, 9, {})
    order = [options.index(path) for path in ("/data", "/data/in", "/data/.git", "/data/.ssh")]
    assert order == sorted(order)
    assert options[options.index("/data/in") - 1] == "--bind"
    assert options[options.index("/data") - 1] == "--ro-bind"
    assert ["--ro-bind", os.devnull, "/data/.env"] == options[-9:-6]


def test_what_bwrap_tells_is_read_however_it_comes() -> None:
    told = b'{ "child-pid": 7, "net-namespace": 5 }\n{ "exit-code": 3 }\n{ "child'
    assert status_of(told) == {"child-pid": 7, "net-namespace": 5, "exit-code": 3}
    assert status_of(b"[]\n7\n") == {}


# --- sandbox-exec ---


def test_the_profile_denies_what_it_does_not_name() -> None:
    private = Hidden(["/data/.env"], ["/data/.ssh"], ["/data/.git"])
    view = SandboxView("/data", [("/data", False), ("/data/w", True)], private, starts=False)
    lines = seatbelt_profile("/bin/cat", view).splitlines()
    assert lines[:2] == ["(version 1)", "(deny default)"]
    assert lines[-1] == "(deny network*)"
    assert '(allow process-exec (literal "/bin/cat"))' in lines
    assert not any("process-fork" in line or "allow network" in line for line in lines)
    writes = [line for line in lines if line.startswith("(allow") and "file-write*" in line]
    assert writes == ['(allow file-write* (subpath "/data/w"))']
    hiding = lines.index('(deny file-read* file-write* (subpath "/data/.env"))')
    assert hiding > lines.index('(allow file-read* (subpath "/data"))')
    assert '(deny file-write* (subpath "/data/.git"))' in lines
    assert all(line.count("(") == line.count(")") for line in lines)


def test_a_path_cannot_end_the_profiles_string() -> None:
    text = seatbelt_profile("/bin/cat", SandboxView("/a", [('/a"))(allow default)\\', False)]))
    assert '(subpath "/a\\"))(allow default)\\\\")' in text
    assert "\n(allow default)" not in text


# --- what is hidden ---


def test_what_is_private_is_found_wherever_it_lies(tmp_path: Path) -> None:
    for name in (".git/hooks", ".git/modules/m", "a/b/.ssh", ".config/gh", "node/.git"):
        (tmp_path / name).mkdir(parents=True)
    for name in (".git/config", ".git/modules/m/config", "a/.ENV", "a/config", "k.pem", "x.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / ".envrc").symlink_to("x.txt")
    root = Root(RootName(str(tmp_path)))
    found = hidden([root])
    root.close()
    below = [os.path.relpath(path, tmp_path) for path in found.files]
    assert sorted(below) == [".git/config", ".git/modules/m/config", "a/.ENV", "k.pem"]
    folders = sorted(os.path.relpath(path, tmp_path) for path in found.folders)
    assert folders == [".config/gh", ".git/hooks", "a/b/.ssh"]
    assert len(found.repositories) == 2


def test_too_many_private_files_are_refused_rather_than_shown(tmp_path: Path) -> None:
    for number in range(MAX_HIDDEN + 1):
        (tmp_path / f"{number}.pem").write_text("")
    root = Root(RootName(str(tmp_path)))
    with pytest.raises(Refused, match="too many"):
        hidden([root])
    root.close()


@pytest.mark.skipif(sys.platform != "darwin", reason="sandbox-exec is macOS's")
def test_sandbox_exec_confines() -> None:
    assert probe(find("darwin", FOLDERS), FOLDERS) is None
