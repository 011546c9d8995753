"""Arguments of the sandboxes; one which does not confine is not taken for one."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.plugins.command.checks import check_sandbox
from mlx_tools.plugins.command.program_files import find_trusted, list_trusted_folders
from mlx_tools.plugins.command.rules import MAX_HIDDEN, HiddenPaths, find_hidden
from mlx_tools.plugins.command.run_command import run_command
from mlx_tools.plugins.command.sandbox import (
    SWITCHES,
    NoSandbox,
    Sandbox,
    SandboxCommand,
    Seatbelt,
    build_bwrap_options,
    build_profile,
    find_sandbox,
    parse_status,
    probe,
    run,
)
from mlx_tools.plugins.command.sandbox_view import SandboxView
from mlx_tools.plugins.folders.folder_tool import offline_prefix
from mlx_tools.store.roots import PathRefused, Root, RootName
from tests.tables import table
from tests.tools.file_calls import write_files
from tests.tools.sandboxed import WHY_NOT, run_program
from tests.tools.sbpl import Malformed, Profile
from tests.waiting import HANG

FOLDERS = list_trusted_folders()


@dataclass(frozen=True)
class Unconfined:
    """A sandbox that confines nothing: it runs these words, and then those of the program."""

    words: tuple[str, ...] = ()

    name = "unconfined"
    hides_contents = True

    @contextlib.contextmanager
    def confine(self, argv: Sequence[str], view: SandboxView) -> Iterator[SandboxCommand]:
        yield SandboxCommand((*self.words, *argv))


def test_a_sandbox_that_does_not_confine_is_found_out() -> None:
    assert "does not confine" in str(probe(Unconfined(), FOLDERS))
    assert "does not work" in str(probe(Unconfined(("/usr/bin/false",)), FOLDERS))


@pytest.mark.parametrize("platform", ["linux", "darwin", "freebsd14"])
def test_without_the_program_there_is_no_sandbox(platform: str) -> None:
    with pytest.raises(NoSandbox, match="missing"):
        find_sandbox(platform, ())


def test_a_program_that_others_could_change_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "cat").write_text("#!/bin/sh\n")
    (tmp_path / "cat").chmod(0o755)
    tmp_path.chmod(0o777)
    assert find_trusted("cat", [str(tmp_path)]) is None
    assert list_trusted_folders([str(tmp_path), "relative", ".", ""]) == ()
    for name in ("", ".", "..", "../bin/cat", "/bin/cat", "no-such-program", "-cat", "c\0at"):
        assert find_trusted(name, FOLDERS) is None


@dataclass(frozen=True)
class Recording(Unconfined):
    """A sandbox that keeps what programs were to see."""

    views: list[SandboxView] = field(default_factory=list)

    @contextlib.contextmanager
    def confine(self, argv: Sequence[str], view: SandboxView) -> Iterator[SandboxCommand]:
        self.views.append(view)
        yield SandboxCommand(tuple(argv))


def test_only_programs_that_a_user_added_may_write_and_start_others(tmp_path: Path) -> None:
    box, root = Recording(), Root(RootName(str(write_files(tmp_path, {"a": "b"})), writable=True))
    callee = run_command([root], ["env"], find=lambda: box)
    assert run_program(callee, "cat", "a").error is None
    assert run_program(callee, "env", "true").error is None
    assert [(view.roots, view.starts) for view in box.views] == [
        ([(str(tmp_path), False)], False),
        ([(str(tmp_path), True)], True),
    ]


# --- bwrap ---


def pairs(options: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(options))


def test_bwrap_gets_namespaces_of_its_own_and_no_way_back() -> None:
    for switches in SWITCHES:
        options = build_bwrap_options(switches, SandboxView("/data/r", [("/data/r", False)]), 9, {})
        assert {"--unshare-all", "--die-with-parent", "--new-session"} <= set(options)
        assert "--share-net" not in options
        assert ("--cap-drop", "ALL") in pairs(options)
        assert options[-4:] == ["--remount-ro", "/", "--chdir", "/data/r"]
        bound = [b for a, b in pairs(options) if a in ("--ro-bind", "--bind", "--ro-bind-try")]
        assert not {"/", "/home", "/etc", "/var", "/run", "/proc", "/sys"} & set(bound)


def test_bwrap_binds_the_inner_root_after_the_outer_one_and_hides_after_both() -> None:
    private = HiddenPaths(["/data/.env"], ["/data/.ssh"], ["/data/.git"])
    view = SandboxView("/data", [("/data/in", True), ("/data", False)], private)
    options = build_bwrap_options(frozenset(), view, 9, {})
    order = [options.index(path) for path in ("/data", "/data/in", "/data/.git", "/data/.ssh")]
    assert order == sorted(order)
    assert options[options.index("/data/in") - 1] == "--bind"
    assert options[options.index("/data") - 1] == "--ro-bind"
    assert ["--ro-bind", os.devnull, "/data/.env"] == options[-9:-6]


def test_what_bwrap_tells_is_read_however_it_comes() -> None:
    told = b'{ "child-pid": 7, "net-namespace": 5 }\n{ "exit-code": 3 }\n{ "child'
    assert parse_status(told) == {"child-pid": 7, "net-namespace": 5, "exit-code": 3}
    assert parse_status(b"[]\n7\n") == {}


# --- sandbox-exec ---


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
    assert Profile(build_profile("/bin/cat", VIEW)).allows(operation, path) is allowed


@given(st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_no_path_says_anything_in_a_profile_but_itself(name: str) -> None:
    profile = Profile(build_profile("/bin/cat", SandboxView("/a", [(f"/a/{name}", True)])))
    assert profile.allows("file-write-data", f"/a/{name}")
    for path in ("/a", "/b", "/etc/passwd"):
        assert not profile.allows("file-write-data", path)
    assert not profile.allows("network-outbound")


@pytest.mark.parametrize("starts", [False, True])
def test_a_program_starts_under_the_profile(starts: bool) -> None:
    view = SandboxView("/data", [("/data", True)], starts=starts)
    profile = Profile(build_profile("/bin/cat", view))
    assert profile.starts("/bin/cat")
    assert profile.starts("/bin/sh") is starts


NEEDED = [
    # what the profiles of both Chromium and Codex allow, for programs as small as these
    *(("file-read-data", "/"), ("file-map-executable", "/usr/lib/libSystem.B.dylib")),
    ("file-map-executable", "/System/Library/Frameworks/Foundation.framework/Foundation"),
    ("file-read-data", "/System/Volumes/Preboot/Cryptexes/OS/System/Library/dyld/x"),
    ("file-map-executable", "/System/Volumes/Preboot/Cryptexes/OS/usr/lib/libobjc.A.dylib"),
    *(("file-read-data", "/dev/null"), ("file-read-data", "/dev/urandom")),
    ("file-read-data", "/private/var/db/timezone/zoneinfo/Europe/Bern"),
    ("mach-lookup", "com.apple.system.opendirectoryd.libinfo"),
    *(("signal", "same-sandbox"), ("sysctl-read", "hw.ncpu")),
    # what Codex's allows besides
    *(("file-read-data", "/dev/fd/3"), ("file-write-data", "/dev/fd/1")),
    *(("ipc-posix-sem", "/mp-1"), ("process-info-pidinfo", "same-sandbox")),
    ("file-read-metadata", "/private/etc/localtime"),
]
LEFT_OUT = [
    # what one of them allows, and these programs have no use for: terminals, the user's own
    # preferences and home, all of /etc and /Applications, a common /tmp, power, logs, the network
    *(("file-read-data", "/dev/ttys001"), ("file-ioctl", "/dev/ptmx"), ("pseudo-tty", "")),
    *(
        ("user-preference-read", ""),
        ("file-read-data", "/Users/preferences.plist"),
    ),
    *(("file-read-data", "/private/etc/passwd"), ("file-read-data", "/Applications/a.app/a")),
    *(("file-write-create", "/private/tmp/a"), ("file-write-create", "/private/var/tmp/a")),
    *(("mach-lookup", "com.apple.logd"), ("mach-lookup", "com.apple.PowerManagement.control")),
    *(("network-outbound", "/private/var/run/syslog"), ("iokit-open", "RootDomainUserClient")),
    *(("sysctl-write", "kern.grade_cputype"), ("signal", "others"), ("mach-register", "a")),
]


@table("operation, value", NEEDED)
def test_the_profile_allows_what_programs_need(operation: str, value: str) -> None:
    view = SandboxView("/data", [("/data", True)])
    assert Profile(build_profile("/bin/cat", view, "/private/var/t")).allows(operation, value)


@table("operation, value", LEFT_OUT)
def test_the_profile_allows_no_more_than_that(operation: str, value: str) -> None:
    view = SandboxView("/data", [("/data", True)])
    profile = Profile(build_profile("/bin/cat", view, "/private/var/t"))
    assert not profile.allows(operation, value)


def test_what_is_hidden_stays_hidden_whatever_is_renamed() -> None:
    private = HiddenPaths(
        ["/w/api/.env", "/w/api/.git/config", "/w/a.b/x.pem"], ["/w/api/.ssh"], ["/w/api/.git"]
    )
    view = SandboxView("/w", [("/w", True)], private)
    profile = Profile(build_profile("/bin/sh", view))
    for path in ("/w/api", "/w/a.b", "/w/api/.git"):  # a renamed folder is unlinked
        assert not profile.allows("file-write-unlink", path)
    assert profile.allows("file-write-unlink", "/w/other") and profile.allows(
        "file-write-create", "/w/api/new"
    )
    for path in ("/w/x/.env", "/w/x/y/.ssh/id", "/w/x/.git/config", "/w/a.b/x.pem"):
        assert not profile.allows("file-read-data", path), path
    assert not profile.allows("file-write-data", "/w/x/.git/hooks/post-commit")
    for path in ("/w/x/env", "/w/x/config", "/w/a.b/xypem", "/w/acb/ypem"):
        assert profile.allows("file-read-data", path), path


@table(
    "text",
    [
        "(deny default)",
        "(version 1)(deny default",
        "(version 1)(deny default))",
        "(version 1)(permit default)",
        '(version 1)(allow file-reads (literal "/"))',
        '(version 1)(allow file-read* (folder "/"))',
        '(version 1)(allow file-read* (literal "relative"))',
        '(version 1)(allow file-read* (subpath "/a/"))',
        '(version 1)(allow signal (literal "/"))',
        "(version 1)(allow signal (target everybody))",
        "(version 1)(allow file-read* (literal))",
    ],
)
def test_a_profile_that_macos_would_refuse_is_refused_here(text: str) -> None:
    with pytest.raises(Malformed):
        Profile(text)


# --- one contract for both ---


STAND_IN = """#!/bin/sh
# sandbox-exec without the sandbox: it takes the profile and starts the program
[ "$1" = -p ] || exit 64
shift 2
exec "$@"
"""


@pytest.fixture(params=["this system's", "macOS's"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    """The sandbox of this system; and that of macOS, with a stand-in for its program."""
    if request.param == "this system's":
        if WHY_NOT is not None:
            pytest.skip(WHY_NOT)
        return find_sandbox(sys.platform, FOLDERS)
    path = tmp_path / "sandbox-exec"
    path.write_text(STAND_IN, encoding="utf-8")
    path.chmod(0o755)
    return Seatbelt(str(path))


class TestContract:
    """The view of a program in either sandbox."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        folder = tmp_path / "root"
        folder.mkdir()
        (folder / "a.txt").write_text("hello")
        return folder.resolve()

    def output(self, box: Sandbox, root: Path, *words: str, starts: bool = True) -> str:
        program_path = find_trusted(words[0], FOLDERS)
        assert program_path is not None
        view = SandboxView(str(root), [(str(root), False)], starts=starts)
        with box.confine([program_path, *words[1:]], view) as confined:
            done = run(confined, {"PATH": ":".join(FOLDERS)}, HANG)
        assert (done.ending, done.code) == ("finished", 0), done
        return done.output.decode()

    def test_it_runs_in_the_folder_of_the_view(self, box: Sandbox, root: Path) -> None:
        assert self.output(box, root, "cat", "a.txt", starts=False) == "hello"
        assert self.output(box, root, "pwd").strip() == str(root)

    def test_its_temporary_folder_is_its_own_and_is_empty(self, box: Sandbox, root: Path) -> None:
        code = 'ls -A "$TMPDIR"; echo x >"$TMPDIR/made" && cat "$TMPDIR/made" && echo "$TMPDIR"'
        first, second = (self.output(box, root, "sh", "-c", code).split() for _ in range(2))
        assert first[0] == second[0] == "x" and len(first) == len(second) == 2
        assert not (Path(first[1]) / "made").exists()

    def test_it_runs_programs_of_a_folder_that_the_user_trusts(
        self, box: Sandbox, root: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "programs"
        folder.mkdir()
        (folder / "greet").write_text("#!/bin/sh\necho hello\n", encoding="utf-8")
        (folder / "greet").chmod(0o755)
        view = SandboxView(str(root), [(str(root), False)], programs=[str(folder)])
        with box.confine([str(folder / "greet")], view) as confined:
            assert run(confined, {}, HANG).output == b"hello\n"
        profile = Profile(build_profile(str(folder / "greet"), view))
        assert profile.starts(str(folder / "greet"))
        assert not profile.allows("file-write-create", f"{folder}/new")

    def test_it_reads_utf_8(self, box: Sandbox, root: Path) -> None:
        said = self.output(box, root, "env")
        assert "LC_ALL=C.UTF-8" in said or "LC_CTYPE=UTF-8" in said


def test_on_a_mac_no_locale_is_named_that_macos_lacks(tmp_path: Path) -> None:
    with Seatbelt("/usr/bin/sandbox-exec").confine(["/bin/ls"], VIEW) as confined:
        assert confined.folder == "/data"
        assert confined.environment["LC_CTYPE"] == "UTF-8"
        assert "LC_ALL" not in confined.environment
        temporary = confined.environment["TMPDIR"]
        assert Profile(confined.argv[2]).allows("file-write-create", f"{temporary}/a")
        assert Path(temporary).is_dir()
    assert not Path(temporary).exists()


def test_a_tool_without_network_has_all_but_that_on_a_mac() -> None:
    *_, profile = offline_prefix("darwin")
    assert Profile(profile).allows("file-read-data", "/any")
    assert not Profile(profile).allows("network-outbound")
    assert offline_prefix("linux") == ()


# --- what is hidden ---


def test_what_is_private_is_found_wherever_it_lies(tmp_path: Path) -> None:
    for names in (
        (".git/hooks/", "a/b/.ssh/", ".config/gh/", "node/.git/"),
        (".git/config", ".git/modules/m/config", "a/.ENV", "a/config", "k.pem", "x.txt"),
    ):
        write_files(tmp_path, dict.fromkeys(names, ""))
    (tmp_path / ".envrc").symlink_to("x.txt")
    root = Root(RootName(str(tmp_path)))
    found = find_hidden([root])
    root.close()
    below = [os.path.relpath(path, tmp_path) for path in found.files]
    assert sorted(below) == [".git/config", ".git/modules/m/config", "a/.ENV", "k.pem"]
    folders = sorted(os.path.relpath(path, tmp_path) for path in found.folders)
    assert folders == [".config/gh", ".git/hooks", "a/b/.ssh"]
    assert len(found.repositories) == 2


def test_too_many_private_files_are_refused_rather_than_shown(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{number}.pem": "" for number in range(MAX_HIDDEN + 1)})
    root = Root(RootName(str(tmp_path)))
    with pytest.raises(PathRefused, match="too many"):
        find_hidden([root])
    root.close()


@pytest.mark.skipif(sys.platform != "darwin", reason="sandbox-exec is macOS's")
def test_sandbox_exec_confines() -> None:
    assert probe(find_sandbox("darwin", FOLDERS), FOLDERS) is None


def test_a_sandbox_that_works_is_named_and_one_that_does_not_says_why() -> None:
    check = check_sandbox("darwin", find=lambda platform: ("sandbox-exec", ""))
    assert check.status == "ok" and "sandbox-exec" in check.detail
    check = check_sandbox("darwin", find=lambda platform: ("", "sandbox-exec is missing"))
    assert (check.status, check.detail) == ("warn", "sandbox-exec is missing")
    assert "run_command" in check.hint
