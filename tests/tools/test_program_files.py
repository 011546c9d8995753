"""Programs that are trusted: the system's, Homebrew's, those that the user names."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_tools import builtin_tools
from mlx_tools.errors import UsageError
from mlx_tools.plugins.command.program_files import (
    HOMEBREW,
    ProgramFile,
    find_program,
    list_trusted_folders,
)
from mlx_tools.plugins.command.rules import load_rules, make_plan
from mlx_tools.store import PathAbsent, PathRefused, Root, RootName
from tests.tables import table

FOLDERS = list_trusted_folders()


def put_program(folder: Path, name: str = "greet") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\necho hello\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_homebrew_is_looked_through_on_a_mac_alone() -> None:
    assert HOMEBREW[0] == "/opt/homebrew/bin"
    with pytest.raises(PathAbsent, match=r"is not installed in /usr/bin$"):
        find_program("no-such-program", ["/usr/bin"], platform="darwin", developer=())


def test_a_program_that_others_could_change_is_not_run(tmp_path: Path) -> None:
    put_program(tmp_path / "bin")
    (tmp_path / "bin").chmod(0o777)
    with pytest.raises(PathAbsent):
        find_program("greet", FOLDERS, [str(tmp_path / "bin")])


def test_a_program_below_a_root_that_may_be_written_to_is_refused() -> None:
    """Its folders belong to the system here, so that nothing but the root speaks against it."""
    with pytest.raises(PathRefused, match=":rw"):
        find_program("cat", (), ["/usr/bin"], [Path("/usr")])
    assert find_program("cat", (), ["/usr/bin"], [Path("/home")]).path == "/usr/bin/cat"


def test_a_shim_of_apples_is_the_program_of_the_developer_tools() -> None:
    """Here the system's own folders stand for Apple's tools: ``/`` has ``usr/bin``."""
    names = ("make", "git", "python3", "ld", "strings")
    name = next((n for n in names if find_or_none(n) is not None), None)
    assert name is not None, f"none of {names} is in /usr/bin"
    found = find_program(name, ["/usr/bin"], platform="darwin", developer=["/"])
    assert found == ProgramFile(f"/usr/bin/{name}", "bsd", ("/usr",))
    with pytest.raises(PathAbsent, match="xcode-select --install"):
        find_program(name, ["/usr/bin"], platform="darwin", developer=["/no/such"])
    assert find_program(name, ["/usr/bin"], platform="linux").folders == ()


def find_or_none(name: str) -> ProgramFile | None:
    try:
        return find_program(name, ["/usr/bin"], platform="linux")
    except PathAbsent:
        return None


@table("platform, make", [("linux", "gnu"), ("darwin", "bsd")])
def test_the_programs_of_macos_take_bsds_options(platform: str, make: str) -> None:
    assert find_program("cat", FOLDERS, platform=platform, developer=()).make == make


def test_bsds_tables_have_no_program_of_their_own_and_no_option_that_writes() -> None:
    gnu, bsd = load_rules(), load_rules("bsd")
    assert set(gnu) == set(bsd)
    assert "--show-all" in gnu["cat"].flags and "--show-all" not in bsd["cat"].flags
    assert "-o" not in {*bsd["sort"].flags, *bsd["sort"].values}
    assert not {"-exec", "-delete", "-fprint", "-ok"} & {*bsd["find"].flags, *bsd["find"].values}
    assert not {"-C", "-m"} & {*bsd["file"].flags, *bsd["file"].values}
    assert not {"-f", "-F"} & {*bsd["tail"].flags, *bsd["tail"].values}


def test_a_call_is_held_to_the_options_of_the_programs_make(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    root = Root(RootName(str(tmp_path)))

    def on_a_mac(*given: object) -> ProgramFile:
        return ProgramFile("/bin/cat", "bsd")

    def on_linux(*given: object) -> ProgramFile:
        return ProgramFile("/usr/bin/cat")

    try:
        words = ["--show-all", "a"]
        assert (
            make_plan(load_rules(), FOLDERS, [root], "cat", words, on_linux).argv[1] == "--show-all"
        )
        with pytest.raises(PathRefused, match="--show-all"):
            make_plan(load_rules(), FOLDERS, [root], "cat", words, on_a_mac)
        assert (
            make_plan(load_rules(), FOLDERS, [root], "cat", ["-v", "a"], on_a_mac).argv[1] == "-v"
        )
    finally:
        root.close()


@table("folder", ["relative", "/", "bin/.."])
def test_a_folder_of_programs_is_named_by_its_whole_path(folder: str) -> None:
    with pytest.raises(UsageError, match="program_folders"):
        builtin_tools(["/usr"], program_folders=[folder])
