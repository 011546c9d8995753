"""Writing, deleting and making files: what they do below their roots, and what they refuse."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from mlx_tools import builtin_tools
from mlx_tools.controller import call_tool
from mlx_tools.policy import Policy
from mlx_tools.store.changes import MAX_NEW_FOLDERS, NameTaken, link_new, open_place, write_file
from mlx_tools.store.roots import PathAbsent, Root, RootName, find_private_part
from mlx_tools.toolbox.text_files import MAX_TEXT_BYTES
from mlx_tools.tools import Registry, ToolError
from mlx_tools.tools.context import CONTEXT, ToolContext
from tests.tables import table
from tests.tools.file_calls import (
    SECRET,
    list_names,
    read_tree,
    run,
    run_and_read,
    run_and_refuse,
    write_files,
)

CHANGES = (("write", "new"), ("delete", None), ("create", "new"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, dict.fromkeys(("data-evil/a.txt", "secret.txt"), SECRET))
    return write_files(tmp_path / "data", {"a.txt": "old\n", "sub/b.txt": "b"})


@pytest.fixture
def files(folder: Path) -> Registry:
    return builtin_tools([f"{folder}:rw"])


# --- what they do ---


def test_a_file_is_made_replaced_and_deleted(files: Registry, folder: Path) -> None:
    assert (
        run_and_read(files, "write", "new.txt", "é 😀\r\n") == "[new.txt was made, with 9 bytes.]"
    )
    assert (folder / "new.txt").read_bytes() == "é 😀\r\n".encode()
    assert run_and_read(files, "write", "new.txt", "") == "[new.txt was replaced, and has 0 bytes.]"
    assert (folder / "new.txt").read_bytes() == b""
    assert run_and_read(files, "delete", "new.txt") == "[new.txt was deleted.]"
    assert list_names(folder) == ["a.txt", "sub"]
    assert run_and_read(files, "write", str(folder / "sub" / "b.txt"), "c")
    assert (folder / "sub" / "b.txt").read_text() == "c"
    with (folder / "a.txt").open() as reader:
        run_and_read(files, "write", "a.txt", "new")
        assert reader.read() == "old\n"
    assert (folder / "a.txt").read_text() == "new"


def test_a_new_file_gets_its_folders(files: Registry, folder: Path) -> None:
    assert run_and_read(files, "create", "x/y/z.txt", "z") == "[x/y/z.txt was made, with 1 bytes.]"
    assert (folder / "x" / "y" / "z.txt").read_text() == "z"
    code, message = run_and_refuse(files, "write", "p/q.txt", "z")
    assert code == "tool_error" and "create_file does" in message
    assert not (folder / "p").exists()


def test_a_file_that_is_there_is_not_made_again(files: Registry, folder: Path) -> None:
    before = read_tree(folder)
    (folder / "dangling").symlink_to("nowhere")
    for path in ("a.txt", "sub", "./sub//b.txt", str(folder / "a.txt"), "dangling"):
        code, message = run_and_refuse(files, "create", path, "x")
        assert code == "tool_error" and "exists already" in message
        is_file = path not in ("sub", "dangling")  # file_access could not replace these either
        assert ("file_access can" in message) is is_file, message
    (folder / "dangling").unlink()
    assert {k: v[-1] for k, v in read_tree(folder).items()} == {k: v[-1] for k, v in before.items()}


def test_a_folder_is_not_changed_and_nobody_is_told_to_list_it(files: Registry) -> None:
    for operation in ("write", "delete"):
        assert run_and_refuse(files, operation, "sub", "x")[1] == "sub is a folder, not a file"


def test_modes_are_kept_and_new_ones_follow_the_mask(files: Registry, folder: Path) -> None:
    for mode in (0o600, 0o640, 0o755, 0o666):
        (folder / "a.txt").chmod(mode)
        run_and_read(files, "write", "a.txt", "x")
        assert (folder / "a.txt").stat().st_mode & 0o7777 == mode
    (folder / "a.txt").chmod(0o4755)
    run_and_read(files, "write", "a.txt", "x")
    assert (folder / "a.txt").stat().st_mode & 0o7777 == 0o755
    old = os.umask(0o027)
    try:
        run_and_read(files, "write", "w.txt", "x")
        run_and_read(files, "create", "n/c.txt", "x")
    finally:
        os.umask(old)
    assert (folder / "w.txt").stat().st_mode & 0o777 == 0o640
    assert (folder / "n" / "c.txt").stat().st_mode & 0o777 == 0o640
    assert (folder / "n").stat().st_mode & 0o777 == 0o750


# --- where they do it ---


def test_below_a_root_that_is_only_read_nothing_is_written_or_deleted(folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    files = builtin_tools([str(folder), f"{other}:rw"])
    before = read_tree(folder)
    for path in ("a.txt", str(folder / "a.txt"), "sub/b.txt", f"{folder}/sub/new.txt"):
        for operation in ("write", "delete") if "new" not in path else ("write",):
            code, message = run_and_refuse(files, operation, path, "x")
            assert code == "not_allowed" and ":rw" in message
    assert read_tree(folder) == before
    run_and_read(files, "write", "new.txt", "x")
    assert (other / "new.txt").read_text() == "x"
    run_and_read(files, "delete", "new.txt")
    assert list_names(other) == []


def test_where_no_root_is_writable_a_model_is_not_shown_that_it_could_write(folder: Path) -> None:
    files = builtin_tools([str(folder)])
    spec = files.specs()["file_access"]
    assert spec.parameters["properties"]["operation"]["enum"] == ["read", "list"]
    assert "content" not in spec.parameters["properties"]
    assert spec.possible_effects == {"read"}
    for operation in ("write", "delete"):
        code, message = run_and_refuse(files, operation, "a.txt", "x")
        assert code == "not_allowed" and ":rw" in message
        assert spec.mutates({"operation": operation})
    assert run_and_refuse(files, "", "a.txt")[0] == "not_allowed"
    assert (folder / "a.txt").read_text() == "old\n"


def test_where_a_root_is_writable_the_schema_says_what_is_needed(files: Registry) -> None:
    spec = files.specs()["file_access"]
    assert spec.parameters["properties"]["operation"]["enum"] == ["read", "list", "write", "delete"]
    assert spec.possible_effects == {"read", "write"}
    for operation, mutates in (("read", 0), ("list", 0), ("write", 1), ("delete", 1), ("x", 1)):
        assert spec.mutates({"operation": operation}) == bool(mutates)
    policy = Policy(preset="workspace", dry_run=True)
    for operation, more, valid in (
        ("write", {}, False),
        ("write", {"content": "x"}, True),
        ("delete", {}, True),
        ("read", {}, True),
        ("rename", {}, False),
    ):
        arguments = {"operation": operation, "path": "a.txt", **more}
        made = asyncio.run(call_tool(files, policy, "file_access", arguments))
        assert (made.decision is not None) == valid
    assert run_and_refuse(files, "write", "a.txt")[0] == "invalid_arguments"
    assert run_and_refuse(files, "create", "z.txt")[0] == "invalid_arguments"


def test_a_new_file_may_lie_below_either_kind_of_root(folder: Path) -> None:
    run_and_read(builtin_tools([str(folder)]), "create", "c/d.txt", "x")
    assert (folder / "c" / "d.txt").read_text() == "x"
    other = folder.parent / "other"
    (other / "both").mkdir(parents=True)
    files = builtin_tools([str(folder), f"{other}:rw"])
    for path, where in (
        ("plain.txt", other),  # one that is writable first
        ("sub/x.txt", folder),  # the one that has its folder first
        ("c/both/x.txt", other),  # neither has c/both
        ("new/x.txt", other),
        (f"{folder}/abs.txt", folder),
    ):
        text = run_and_read(files, "create", path, "x")
        made = where / path
        assert made.read_text() == "x", path
        assert "was made" in text
    assert run_and_refuse(files, "create", "a.txt", "x")[0] == "tool_error"


def test_the_innermost_root_decides(folder: Path) -> None:
    outer_only = builtin_tools([f"{folder}:rw", str(folder / "sub")])
    for path in ("sub/b.txt", str(folder / "sub" / "b.txt"), "b.txt"):
        assert run_and_refuse(outer_only, "write", path, "x")[0] == "not_allowed"
        assert run_and_refuse(outer_only, "delete", path)[0] == "not_allowed"
    run_and_read(outer_only, "write", "a.txt", "x")
    inner_only = builtin_tools([str(folder), f"{folder}/sub:rw"])
    assert run_and_refuse(inner_only, "write", "a.txt", "x")[0] == "not_allowed"
    for path in ("sub/b.txt", str(folder / "sub" / "b.txt"), "b.txt"):
        run_and_read(inner_only, "write", path, "x")
    twice = builtin_tools([str(folder), f"{folder}:rw"])
    assert run_and_refuse(twice, "write", "a.txt", "y")[0] == "not_allowed"


# --- what they refuse ---


@pytest.mark.parametrize(("operation", "content"), CHANGES)
def test_links_are_neither_followed_nor_replaced(
    files: Registry, folder: Path, operation: str, content: str | None
) -> None:
    (folder / "out").symlink_to(folder.parent / "secret.txt")
    (folder / "in").symlink_to("a.txt")
    (folder / "gone").symlink_to(folder.parent / "gone.txt")
    (folder / "dir").symlink_to(folder.parent)
    before = read_tree(folder.parent)
    for path in ("out", "in", "gone", "dir/secret.txt", "dir/new.txt", "dir/data/a.txt"):
        run_and_refuse(files, operation, path, content)
    assert read_tree(folder.parent) == before


def test_a_file_that_another_may_write_is_not_marked_read_only(
    files: Registry, folder: Path
) -> None:
    """The superuser, who may write anything, is held to what the mode says of anybody."""
    path = folder / "a.txt"
    path.chmod(0o464)
    if os.access(path, os.W_OK):
        run_and_read(files, "write", "a.txt", "new")
        assert path.read_text() == "new"
    else:
        assert run_and_refuse(files, "write", "a.txt", "new")[0] == "not_allowed"


def test_what_is_no_file_of_its_own_is_left_alone(files: Registry, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    os.link(folder.parent / "secret.txt", folder / "hard.txt")
    (folder / "locked.txt").write_text("x")
    (folder / "locked.txt").chmod(0o444)
    before = read_tree(folder.parent)
    for path, code in (
        *(("pipe", "not_allowed"), ("hard.txt", "not_allowed"), ("locked.txt", "not_allowed")),
        *(("sub", "tool_error"), (".", "tool_error"), ("", "tool_error"), ("a.txt/", "tool_error")),
        *(("sub/.", "tool_error"), ("a.txt/x", "tool_error")),
    ):
        assert run_and_refuse(files, "write", path, "x")[0] == code
        assert run_and_refuse(files, "delete", path)[0] == code
        assert run_and_refuse(files, "create", path, "x")[0] in (code, "tool_error")
    assert run_and_refuse(files, "delete", "nothing.txt") == (
        "tool_error",
        "there is no nothing.txt",
    )
    assert read_tree(folder.parent) == before


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc here")
def test_the_kernels_files_are_not_written() -> None:
    files = builtin_tools(["/:rw"])
    for path in ("/proc/self/comm", "proc/sys/kernel/hostname", "/dev/null", "/sys/x", "dev/x/y"):
        for operation, content in CHANGES:
            assert run_and_refuse(files, operation, path, content)[0] == "not_allowed"


@table(
    "path",
    [
        *(".git/config", ".GIT/config", ".Git/Hooks/pre-commit", ".git/HEAD", ".git", ".git/x/y"),
        *(".gi\u0074\u200c/config", ".g\ufe0fit/config", "．git/config", ".git./config"),
        *(".git /config", ".git::$INDEX_ALLOCATION/config", "GIT~1/config", "sub/.git"),
        *("x.git/config", "x.git/HEAD", "x.git/commondir", "x.git/hooks/update", ".hg/hgrc"),
        *(".env", ".ENV", ".env.local", ".ssh/authorized_keys", ".SSH/config", "id_rsa"),
        *(".bashrc", ".zshrc", ".profile", ".vimrc", ".config/autostart/x.desktop"),
        *(".config/mlx-tools/config.toml", "Library/LaunchAgents/x.plist", ".local/bin/ls"),
        *("Library/Application Support/mlx-tools/config.toml", "mlx-tools.toml", "MLX-TOOLS.TOML"),
        *(".vscode/tasks.json", ".idea/x.xml", "x.pth", "sitecustomize.py", ".npmrc", "k.pem"),
    ],
)
def test_private_names_are_not_changed_in_any_spelling(
    files: Registry, folder: Path, path: str
) -> None:
    before = read_tree(folder)
    for spelling in {path, *(unicodedata.normalize(f, path) for f in ("NFD", "NFKC"))}:
        for operation, content in CHANGES:
            assert run_and_refuse(files, operation, spelling, content)[0] == "not_allowed"
    assert read_tree(folder) == before


def test_what_decides_what_runs_may_be_read_and_not_changed() -> None:
    for name in (".git/HEAD", ".vscode/tasks.json", "mlx-tools.toml", ".config/app/x", ".vimrc"):
        assert find_private_part(name.split("/")) is None
        assert find_private_part(name.split("/"), writing=True) is not None
    for name in (".gitignore", ".github/x.yml", "config", "HEAD", "hooks/x", "git/x", "x.py"):
        assert find_private_part(name.split("/"), writing=True) is None


def test_no_folder_is_made_a_repository(files: Registry, folder: Path) -> None:
    """Git runs what the ``config`` of any folder names that has a ``HEAD``, whatever its name."""
    run_and_read(files, "create", "one/HEAD", "ref: refs/heads/main\n")
    for path in ("one/config", "one/CONFIG", "one/hooks/post-checkout", "one/config.worktree"):
        assert run_and_refuse(files, "create", path, "x")[0] == "not_allowed"
        assert run_and_refuse(files, "write", path, "x")[0] == "not_allowed"
    run_and_read(files, "create", "two/config", "[core]\n")
    run_and_read(files, "create", "three/hooks/update", "#!/bin/sh\n")
    for path in ("two/HEAD", "three/HEAD", "two/head"):
        assert run_and_refuse(files, "create", path, "x")[0] == "not_allowed"


@pytest.mark.parametrize(
    "path",
    [
        *("~/x.txt", "~", "~root/x", "file:///etc/x", "https://example.com/x", "sub\\x", "C:\\x"),
        *("a\nb", "a\tb", "a\x1b[31m", "a\u2028b", "evil\u202etxt.exe", "\u200fx", "a\x7f"),
        *("x" * 5000, "x" * 300, "é" * 200, "\0", "a\0b", "\ud800", "..", "../x", "sub/../../x"),
        *("/etc/x", "//etc/x", "{root}-evil/x", "{root}/../x", "{root}", "n/" * 2000 + "x"),
    ],
)
def test_names_that_mean_something_else_are_not_made(
    files: Registry, folder: Path, path: str
) -> None:
    before = read_tree(folder.parent)
    path = path.replace("{root}", str(folder))
    for operation in ("write", "create"):
        run_and_refuse(files, operation, path, "x")
    assert read_tree(folder.parent).keys() == before.keys()


def test_a_chain_of_new_folders_is_bounded_and_leaves_none_behind(
    files: Registry, folder: Path
) -> None:
    before = sorted(read_tree(folder))
    assert (
        run_and_refuse(files, "create", "d/" * (MAX_NEW_FOLDERS + 1) + "x", "x")[0] == "not_allowed"
    )
    (folder / "real").mkdir()
    run_and_refuse(files, "create", "real/p/q/" + "x" * 300, "x")
    (folder / "real").rmdir()
    assert sorted(read_tree(folder)) == before
    run_and_read(files, "create", "d/" * MAX_NEW_FOLDERS + "x", "x")


@pytest.mark.parametrize("operation", ["write", "create"])
def test_only_what_can_be_read_back_is_written(
    files: Registry, folder: Path, operation: str
) -> None:
    before = read_tree(folder)
    for text in ("\ud800", "a\udfff", "a\0b", "\ufeffa"):
        code, message = run_and_refuse(files, operation, "n.txt", text)
        assert code == "invalid_arguments" and "content holds" in message
    assert (
        run_and_refuse(files, operation, "n.txt", "é" * (MAX_TEXT_BYTES // 2 + 1))[0]
        == "payload_too_large"
    )
    assert read_tree(folder) == before
    largest = "x" * MAX_TEXT_BYTES
    run_and_read(files, operation, "n.txt", largest)
    assert run_and_read(files, "read", "n.txt") == largest


def test_a_group_that_cannot_be_kept_takes_no_rights_along(tmp_path: Path) -> None:
    """The mode of the old file spoke of its group; the new file's group gets no more than all."""
    code = """
import os, sys
from mlx_tools.store.changes import _copy_owner_and_mode
path, nobody = sys.argv[1], 65534
fd = os.open(path, os.O_RDWR)
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(nobody, nobody, nobody)
    os.setresuid(nobody, nobody, nobody)
own = os.fstat(fd)
for old in (0o600, 0o640, 0o660, 0o664, 0o646, 0o604, 0o670, 0o777, 0o750):
    for group in (own.st_gid, own.st_gid + 4321):
        before = os.stat_result((0o100000 | old, 0, 0, 1, own.st_uid, group, 0, 0, 0, 0))
        _copy_owner_and_mode(fd, before)
        print(f"{os.fstat(fd).st_mode & 0o777:o}", end=" ")
"""
    path = tmp_path / "file"
    path.write_text("x")
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    modes = "600 600 640 600 660 600 664 644 646 646 604 604 670 600 777 777 750 700"
    assert done.stdout.strip() == modes


def test_a_folder_that_cannot_be_written_to_is_told(folder: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("the superuser may write anywhere")
    files = builtin_tools([f"{folder}:rw"])
    (folder / "sub").chmod(0o555)
    try:
        for operation, path in (("write", "sub/b.txt"), ("write", "sub/n"), ("create", "sub/n/m")):
            assert run_and_refuse(files, operation, path, "x")[0] == "not_allowed"
        assert run_and_refuse(files, "delete", "sub/b.txt")[0] == "not_allowed"
    finally:
        (folder / "sub").chmod(0o755)
    assert sorted(read_tree(folder)) == [".", "a.txt", "sub", "sub/b.txt"]


# --- when ---


def test_a_new_file_replaces_none_that_is_there_already(folder: Path) -> None:
    root = Root(RootName(str(folder), writable=True))
    with open_place(root, ["n.txt"], {}) as place, pytest.raises(PathAbsent, match="there is no n"):
        write_file(place, None, expected=None)
    with (
        open_place(root, ["a.txt"], {}) as place,
        pytest.raises(NameTaken, match=r"a\.txt already"),
    ):
        write_file(place, b"new", new=True, expected=None)
    assert (folder / "a.txt").read_text() == "old\n"
    assert list_names(folder) == ["a.txt", "sub"]
    root.close()


def test_where_there_are_no_hard_links_a_new_file_still_replaces_none(folder: Path) -> None:
    """As on FAT, whose answer to a hard link is EPERM."""

    def no_link(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    root = Root(RootName(str(folder), writable=True))
    (folder / "written").write_text("new")
    with open_place(root, ["a.txt"], {}) as place, pytest.raises(FileExistsError):
        link_new(place, "written", no_link)
    assert (folder / "a.txt").read_text() == "old\n"
    with open_place(root, ["n.txt"], {}) as place:
        link_new(place, "written", no_link)
    assert (folder / "n.txt").read_text() == "new"
    assert list_names(folder) == ["a.txt", "n.txt", "sub"]
    with open_place(root, ["m.txt"], {}) as place, pytest.raises(FileNotFoundError):
        link_new(place, "gone", no_link)
    assert list_names(folder) == ["a.txt", "n.txt", "sub"]
    root.close()


def test_a_call_that_nobody_waits_for_changes_nothing(files: Registry, folder: Path) -> None:
    before = read_tree(folder)
    context = ToolContext()
    context.cancelled = True
    token = CONTEXT.set(context)
    try:
        for name, arguments in (
            ("file_access", {"operation": "write", "path": "a.txt", "content": "x"}),
            ("file_access", {"operation": "delete", "path": "a.txt"}),
            ("create_file", {"path": "p/n.txt", "content": "x"}),
            ("edit_file", {"path": "a.txt", "old": "old", "new": "x"}),
        ):
            tool = files.get(name)
            with pytest.raises(ToolError, match="nothing was changed"):
                tool.blocking(arguments)  # type: ignore[attr-defined]
    finally:
        CONTEXT.reset(token)
    assert {k: v[-1] for k, v in read_tree(folder).items()} == {k: v[-1] for k, v in before.items()}


def test_calls_at_the_same_time_leave_one_whole_content(files: Registry, folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    texts = [chr(97 + number) * 50_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: run(files, "write", "a.txt", text), texts * 4))
        made = list(pool.map(lambda text: run(files, "create", "q/one.txt", text), texts))
    assert (folder / "a.txt").read_text() in texts
    assert sum(result.error is None for result in made) == 1
    assert (folder / "q" / "one.txt").read_text() in texts
    assert list_names(folder) == ["a.txt", "q", "sub"]
    assert list_names(folder / "q") == ["one.txt"]


# --- descriptors ---


def test_no_descriptor_is_left_open(files: Registry, folder: Path) -> None:
    (folder / "link").symlink_to("a.txt")
    before = len(list_names(Path("/dev/fd")))
    for path in ("a.txt", "sub/x/y/z", "link", "link/x", ".env", "..", "sub", "a.txt/x", "n" * 300):
        for operation, content in (*CHANGES, ("read", None), ("list", None)):
            run(files, operation, path, content)
    assert len(list_names(Path("/dev/fd"))) <= before
