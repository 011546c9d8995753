"""Paths as people and models spell them: ``~``, links, other Unicode forms, other blanks."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlx_tools import builtin_tools
from mlx_tools.tools import Registry
from tests.tools.file_calls import (
    SECRET,
    execute_call,
    make_fast_folder,
    read_tree,
    run_and_read,
    run_and_refuse,
    write_files,
)

NARROW = "Screenshot 9.41\u202fAM.png.txt"
PLAIN = "Screenshot 9.41 AM.png.txt"
WRITING = ("write", "create", "delete", "edit")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with make_fast_folder(tmp_path) as made:
        yield made


@pytest.fixture
def files(folder: Path) -> Registry:
    return builtin_tools([f"{folder}:rw"])


def told(files: Registry, operation: str, path: str) -> str:
    """The message of a change that is refused."""
    if operation != "edit":
        return run_and_refuse(files, operation, path, None if operation == "delete" else "x")[1]
    error = execute_call(files.get("edit_file"), path=path, old="a", new="b").error
    assert error is not None
    return error.message


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (NARROW, PLAIN),
        ("a\u00a0b.txt", "a b.txt"),
        ("a b.txt", "a\u00a0b.txt"),
        ("a\u3000b", "a b"),
        ("a  b", "a b"),
        (unicodedata.normalize("NFD", "café.txt"), "café.txt"),
        ("café.txt", unicodedata.normalize("NFD", "café.txt")),
        ("ｆｕｌｌ.txt", "full.txt"),
        (f"sub\u2009folder/{NARROW}", f"sub folder/{PLAIN}"),
    ],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="the file system takes some for the same")
def test_a_name_in_another_form_is_read_and_named_and_for_changes_suggested(
    files: Registry, folder: Path, name: str, asked: str
) -> None:
    write_files(folder, {name: "a text\n"})
    text = run_and_read(files, "read", asked)
    assert text.startswith("a text\n[This is ") and text.endswith("not written as in the call.]")
    assert run_and_read(files, "read", name) == "a text\n"
    before = read_tree(folder)
    for operation in WRITING:
        assert "did you mean " in told(files, operation, asked)
    assert read_tree(folder) == before


def test_the_suggestion_can_be_written(files: Registry, folder: Path) -> None:
    write_files(folder, {NARROW: "a\n"})
    message = told(files, "edit", PLAIN)
    assert r"9.41\u202fAM" in message
    suggested = message.partition("did you mean ")[2].rstrip("?")
    run_and_read(files, "write", suggested.encode("ascii").decode("unicode_escape"), "b\n")
    assert (folder / NARROW).read_text() == "b\n"


@pytest.mark.skipif(sys.platform == "darwin", reason="the file system takes some for the same")
def test_where_several_are_equal_none_is_opened(files: Registry, folder: Path) -> None:
    write_files(folder, {"a\u00a0b": "1", "a\u202fb": "2"})
    message = run_and_refuse(files, "read", "a b")[1]
    assert r"a\u00a0b or a\u202fb" in message


def test_no_private_name_is_reached_by_another_form(files: Registry, folder: Path) -> None:
    write_files(
        folder, {" .env": SECRET, "id_rsa ": SECRET, ".ssh/x": SECRET, "\u00a0.netrc": SECRET}
    )
    for path in (".env", "id_rsa", ".ssh/x", "．ssh/x", ".netrc", "id＿rsa"):
        assert run_and_refuse(files, "read", path)[0] == "not_allowed"


def test_links_and_patterns_hold_for_other_forms_too(folder: Path) -> None:
    write_files(folder, {"out/x": SECRET, "in/a\u00a0b.txt": SECRET, "in/c\u00a0d.md": "c"})
    (folder / "in" / "l\u00a0k.md").symlink_to(folder / "out" / "x")
    files = builtin_tools([f"{folder}/in:ro:*.md"])
    assert run_and_read(files, "read", "c d.md").startswith("c\n[This is ")
    assert run_and_refuse(files, "read", "l k.md")[0] == "not_allowed"
    assert run_and_refuse(files, "read", "a b.txt")[0] == "not_allowed"


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("reciept.txt", "receipt.txt"),
        ("Receipt.TXT", "receipt.txt"),
        ("sub/harbor.md", "sub/harbour.md"),
        ("harbour.md", "sub/harbour.md"),
        ("sbu/harbour.md", "sub/harbour.md"),
    ],
)
def test_a_name_that_is_not_there_gets_a_suggestion(
    files: Registry, folder: Path, asked: str, meant: str
) -> None:
    write_files(folder, {"receipt.txt": "a", "sub/harbour.md": "b", ".env": SECRET, "env": "x"})
    for operation in ("read", "delete", "edit"):
        message = (
            run_and_refuse(files, "read", asked)[1]
            if operation == "read"
            else told(files, operation, asked)
        )
        assert message.endswith(f"did you mean {meant}?"), message
    assert ".env" not in run_and_refuse(files, "read", ".enw")[1].partition("did you mean")[2]
    assert "did you mean" not in run_and_refuse(files, "read", "zzzzzzz")[1]


# --- the home folder, and a working directory that a link leads to ---


def test_the_home_folder_may_be_written_as_people_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, link = folder / "real", folder / "home"
    write_files(home, {"project/a.txt": "a", ".ssh/x": SECRET, "other.txt": SECRET})
    link.symlink_to(home)
    monkeypatch.setenv("HOME", str(link))
    files = builtin_tools([f"{home}/project:rw"])
    assert run_and_read(files, "read", "~/project/a.txt") == "a"
    assert run_and_read(files, "read", f"{link}/project/a.txt") == "a"
    run_and_read(files, "create", "~/project/b.txt", "b")
    assert (home / "project" / "b.txt").read_text() == "b"
    before = read_tree(folder)
    for path in ("~/other.txt", "~/.ssh/x", "~", "~root/x", "~/project/../other.txt"):
        run_and_refuse(files, "read", path)
        run_and_refuse(files, "write", path, "x")
        run_and_refuse(files, "create", path, "x")
    assert read_tree(folder).keys() == before.keys()


def test_a_working_directory_is_known_as_the_shell_spells_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(folder, {"real/project/sub/a.txt": "a", "outside": SECRET})
    (folder / "link").symlink_to(folder / "real")
    monkeypatch.chdir(folder / "link" / "project")
    monkeypatch.setenv("PWD", f"{folder}/link/project")
    for root in (".", "sub", f"{folder}/real"):
        files = builtin_tools([root])
        assert run_and_read(files, "read", f"{folder}/link/project/sub/a.txt") == "a"
        assert run_and_read(files, "read", f"{folder}/real/project/sub/a.txt") == "a"
        assert run_and_refuse(files, "read", f"{folder}/link/../outside")[0] == "not_allowed"
    monkeypatch.setenv("PWD", f"{folder}/elsewhere")
    assert run_and_read(builtin_tools(["sub"]), "read", "a.txt") == "a"


@pytest.mark.parametrize("asked", [" .env", "\u2003.env", "\u3000id_rsa", "sub/ .env"])
def test_no_other_spelling_of_a_private_name_opens_it(
    files: Registry, folder: Path, asked: str
) -> None:
    write_files(folder, dict.fromkeys((".env", "id_rsa", "sub/.env"), SECRET))
    code, message = run_and_refuse(files, "read", asked)
    assert (code, "private" in message) == ("not_allowed", True)
