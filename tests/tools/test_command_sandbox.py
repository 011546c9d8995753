"""What the sandboxes are told, and that one which does not confine is not taken for one."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.store.roots import PathRefused, Root, RootName
from mlx_tools.toolbox.command_rules import (
    MAX_HIDDEN,
    HiddenPaths,
    hidden,
    program,
    trusted_folders,
)
from mlx_tools.toolbox.run_command import run_command
from mlx_tools.toolbox.sandbox import (
    SWITCHES,
    NoSandbox,
    SandboxCommand,
    SandboxView,
    bwrap_options,
    find,
    probe,
    seatbelt_profile,
    status_of,
)
from mlx_tools.tools.folder.folder_tool import without_network
from tests.tables import table
from tests.tools.file_calls import written
from tests.tools.sandboxed import called

FOLDERS = trusted_folders()


@dataclass(frozen=True)
class Unconfined:
    """A sandbox that confines nothing: it runs these words, and then those of the program."""

    words: tuple[str, ...] = ()

    name = "unconfined"
    hides_contents = True

    @contextlib.contextmanager
    def confined(self, argv: Sequence[str], view: SandboxView) -> Iterator[SandboxCommand]:
        yield SandboxCommand((*self.words, *argv))


def test_a_sandbox_that_does_not_confine_is_found_out() -> None:
    assert "does not confine" in str(probe(Unconfined(), FOLDERS))
    assert "does not work" in str(probe(Unconfined(("/usr/bin/false",)), FOLDERS))


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


@dataclass(frozen=True)
class Recording(Unconfined):
    """A sandbox that keeps what programs were to see."""

    views: list[SandboxView] = field(default_factory=list)

    @contextlib.contextmanager
    def confined(self, argv: Sequence[str], view: SandboxView) -> Iterator[SandboxCommand]:
        self.views.append(view)
        yield SandboxCommand(tuple(argv))


def test_only_programs_that_a_user_added_may_write_and_start_others(tmp_path: Path) -> None:
    box, root = Recording(), Root(RootName(str(written(tmp_path, {"a": "b"})), writable=True))
    callee = run_command([root], ["env"], find=lambda: box)
    assert called(callee, "cat", "a").error is None
    assert called(callee, "env", "true").error is None
    assert [(view.roots, view.starts) for view in box.views] == [
        ([(str(tmp_path), False)], False),
        ([(str(tmp_path), True)], True),
    ]


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
    private = HiddenPaths(["/data/.env"], ["/data/.ssh"], ["/data/.git"])
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


class Seatbelt:
    """Decides as the system does by a profile: a list of rules in Scheme's notation, the last that
    fits an operation and a path counts."""

    TOKENS = re.compile(r'\s*(?:(?P<mark>[()])|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<word>[^\s()"]+))')

    def __init__(self, profile: str) -> None:
        self.rules: list[Any] = []
        open_lists, at, text = [self.rules], 0, profile.rstrip()
        while at < len(text):
            token = self.TOKENS.match(text, at)
            assert token is not None, text[at : at + 40]
            at = token.end()
            if token["mark"] == "(":
                open_lists.append([])
            elif token["mark"] == ")":
                done = open_lists.pop()
                open_lists[-1].append(done)
            elif token["text"] is not None:
                open_lists[-1].append(("text", re.sub(r"\\(.)", r"\1", token["text"], flags=re.S)))
            else:
                open_lists[-1].append(token["word"])
        assert len(open_lists) == 1

    def allows(self, operation: str, path: str = "") -> bool:
        decision = "allow"
        for rule in self.rules:
            if rule[0] in ("allow", "deny") and self._fits(rule[1:], operation, path):
                decision = rule[0]
        return bool(decision == "allow")

    @staticmethod
    def _fits(rule: list[Any], operation: str, path: str) -> bool:
        names = [one for one in rule if isinstance(one, str)]
        places = [one for one in rule if isinstance(one, list)]
        if not any(fnmatchcase(operation, "*" if name == "default" else name) for name in names):
            return False
        inside = {"literal": str.__eq__, "subpath": lambda a, b: f"{a}/".startswith(f"{b}/")}
        return not places or any(inside[kind](path, text[1]) for kind, text in places)


VIEW = SandboxView(
    "/data",
    [("/data", False), ("/data/w", True)],
    HiddenPaths(["/data/w/.env"], ["/data/.ssh"], ["/data/w/.git"]),
    starts=False,
)


@table(
    ("operation", "path", "allowed"),
    [
        *(("file-read-data", "/data/a", True), ("file-read-data", "/database", False)),
        *(("file-read-data", "/data/w/.env", False), ("file-read-data", "/data/.ssh/id", False)),
        ("file-read-data", "/elsewhere/Documents/a", False),
        *(("file-read-data", "/usr/lib/dyld", True), ("file-read-metadata", "/", True)),
        *(("file-read-metadata", "/Users", False), ("file-write-create", "/data/a", False)),
        ("file-write-create", "/data/w/a", True),
        ("file-write-data", "/data/w/.git/config", False),
        ("file-write-data", "/data/w/.env", False),
        ("file-write-data", "/dev/null", True),
        ("file-write-data", "/usr/local/bin/cat", False),
        *(("process-exec", "/bin/cat", True), ("process-exec", "/bin/sh", False)),
        *(("process-fork", "", False), ("network-outbound", "", False), ("mach-lookup", "", False)),
    ],
)
def test_the_profile_decides_as_the_view_says(operation: str, path: str, allowed: bool) -> None:
    assert Seatbelt(seatbelt_profile("/bin/cat", VIEW)).allows(operation, path) is allowed


@given(st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_no_path_says_anything_in_a_profile_but_itself(name: str) -> None:
    profile = Seatbelt(seatbelt_profile("/bin/cat", SandboxView("/a", [(f"/a/{name}", True)])))
    assert profile.allows("file-write-data", f"/a/{name}")
    for path in ("/a", "/b", "/etc/passwd"):
        assert not profile.allows("file-write-data", path)
    assert not profile.allows("network-outbound")


def test_a_tool_without_network_has_all_but_that_on_a_mac() -> None:
    *_, profile = without_network("darwin")
    assert Seatbelt(profile).allows("file-read-data", "/any")
    assert not Seatbelt(profile).allows("network-outbound")
    assert without_network("linux") == ()


# --- what is hidden ---


def test_what_is_private_is_found_wherever_it_lies(tmp_path: Path) -> None:
    for names in (
        (".git/hooks/", "a/b/.ssh/", ".config/gh/", "node/.git/"),
        (".git/config", ".git/modules/m/config", "a/.ENV", "a/config", "k.pem", "x.txt"),
    ):
        written(tmp_path, dict.fromkeys(names, ""))
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
    written(tmp_path, {f"{number}.pem": "" for number in range(MAX_HIDDEN + 1)})
    root = Root(RootName(str(tmp_path)))
    with pytest.raises(PathRefused, match="too many"):
        hidden([root])
    root.close()


@pytest.mark.skipif(sys.platform != "darwin", reason="sandbox-exec is macOS's")
def test_sandbox_exec_confines() -> None:
    assert probe(find("darwin", FOLDERS), FOLDERS) is None
