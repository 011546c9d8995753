"""``file_access``: what is below the roots, and nothing else, whatever the path and the tree."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from mlx_tools import builtin_tools
from mlx_tools.errors import UsageError
from mlx_tools.plugins.command.run_command import disabled_reason, run_command
from mlx_tools.store.roots import PathPatterns, Root, RootName, find_private_part
from mlx_tools.tools import Registry, ToolError
from tests.tables import table
from tests.tools.file_calls import SECRET, preview, run_and_read, run_and_refuse, write_files
from tests.waiting import HANG


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a bit of everything, and a secret beside it."""
    private = (".env", ".git/config", ".git/hooks/pre-commit", ".ssh/known_hosts")
    texts = {"a.txt": "first\nsecond\n", "sub/b.txt": "é 😀\r\n", "sub/deeper/c.txt": "c"}
    texts |= {
        ".git/HEAD": "ref: x",
        "empty/": "",
        "repo.git/": "",
        **dict.fromkeys(private, SECRET),
    }
    write_files(tmp_path, dict.fromkeys(("data-evil/a.txt", "secret.txt"), SECRET))
    return write_files(tmp_path / "data", texts)


@pytest.fixture
def files(folder: Path) -> Registry:
    return builtin_tools([str(folder)])


def test_a_file_is_read_as_it_is_and_marks_of_an_encoding_are_understood(
    files: Registry, folder: Path
) -> None:
    assert run_and_read(files, "read", "a.txt") == "first\nsecond\n"
    assert run_and_read(files, "read", "sub/b.txt") == "é 😀\r\n"
    assert run_and_read(files, "read", "./sub//./deeper/c.txt") == "c"
    assert run_and_read(files, "read", str(folder / "sub" / "b.txt")) == "é 😀\r\n"
    assert run_and_read(files, "read", ".git/HEAD") == "ref: x"
    for encoding in ("utf-8-sig", "utf-16"):
        (folder / "marked").write_text("é", encoding=encoding)
        assert run_and_read(files, "read", "marked") == "é"


def test_a_folder_is_listed_in_order_with_its_kinds(files: Registry, folder: Path) -> None:
    (folder / "link").symlink_to("a.txt")
    expected = ".env\n.git/\n.ssh/\na.txt\nempty/\nlink@\nrepo.git/\nsub/"
    for path in (".", "", "./", str(folder), f"{folder}/"):
        assert run_and_read(files, "list", path) == expected
    assert run_and_read(files, "list", "sub") == "b.txt\ndeeper/"
    assert "empty" in run_and_read(files, "list", "empty")


@pytest.mark.parametrize(
    ("operation", "path", "what"),
    [
        *(("read", "nothing.txt", "no nothing.txt"), ("read", "sub/nothing/x", "no nothing")),
        *(("read", "sub", "a folder; list it"), ("read", ".", "a folder; list it")),
        *(("read", "a.txt/x", "no folder"), ("list", "a.txt", "no folder")),
        ("list", "nothing", "no nothing"),
    ],
)
def test_a_mistake_is_told(files: Registry, operation: str, path: str, what: str) -> None:
    code, message = run_and_refuse(files, operation, path)
    assert code == "tool_error"
    assert what in message


def test_a_path_outside_is_not_allowed_rather_than_missing(files: Registry, folder: Path) -> None:
    for path in ("../secret.txt", f"{folder}-evil/a.txt", "/etc/passwd", "/no/such/thing"):
        assert run_and_refuse(files, "read", path)[0] == "not_allowed"


def test_links_files_with_other_names_and_what_is_no_file_are_refused(
    files: Registry, folder: Path
) -> None:
    (folder / "out").symlink_to(folder.parent / "secret.txt")
    (folder / "in").symlink_to("a.txt")
    (folder / "dir").symlink_to(folder.parent)
    (folder / "sub" / "up").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    for path, link in {
        "out": "out",
        "in": "in",
        "dir/secret.txt": "dir",
        "sub/up/a.txt": "up",
        "loop": "loop",
        "loop/x": "loop",
    }.items():
        assert run_and_refuse(files, "read", path) == (
            "not_allowed",
            f"{link} is a symbolic link, and links are not followed",
        )
    for path in ("dir", "sub/up"):
        assert run_and_refuse(files, "list", path)[0] == "not_allowed"
    os.link(folder.parent / "secret.txt", folder / "innocent.txt")
    code, message = run_and_refuse(files, "read", "innocent.txt")
    assert code == "not_allowed"
    assert "hard links" in message
    os.mkfifo(folder / "pipe")
    assert run_and_refuse(files, "read", "pipe")[0] == "not_allowed"
    assert run_and_refuse(files, "list", "pipe")[0] == "tool_error"
    assert "pipe" in run_and_read(files, "list", ".").split("\n")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc here")
def test_the_kernels_files_are_refused_even_under_a_root_that_holds_them() -> None:
    files = builtin_tools(["/"])
    for path in ("/proc/self/environ", "proc/self/mem", "/dev/zero", "/sys/kernel", "dev/null"):
        assert run_and_refuse(files, "read", path)[0] == "not_allowed"
    assert run_and_refuse(files, "list", "/proc")[0] == "not_allowed"
    for root in ("/proc", "/proc/self", "/dev", "/sys"):
        with pytest.raises(UsageError, match="kernel"):
            builtin_tools([root])


@table(
    "path",
    [
        *(".env", ".ENV", ".Env", ".env.local", "sub/.env", ".\u200cenv", "．env"),
        *(".ssh/known_hosts", ".SSH/known_hosts", ".ſsh/known_hosts", ".gnupg/x"),
        *(".aws/credentials", ".netrc", ".bashrc", ".zshenv", ".profile", ".bash_history"),
        *(".python_history", "id_rsa", "sub/ID_ED25519", "server.pem", "Server.KEY"),
        *("Library/Keychains/login.keychain-db", "x.kdbx", ".git/config", ".GIT/CONFIG"),
        *(".git/hooks/pre-commit", ".git/hooks", ".git/modules/x/config", "repo.git/config"),
        *("repo.git/hooks/x", ".config/gh/hosts.yml", ".config/fish/config.fish", ".npmrc"),
        *(".docker/config.json", ".kube/config", ".vol/1/2"),
    ],
)
def test_private_names_are_refused_in_any_spelling(files: Registry, path: str) -> None:
    for operation in ("read", "list"):
        assert run_and_refuse(files, operation, path)[0] == "not_allowed"


@table(
    "path",
    [
        *("environment.txt", "env", "my.env.txt", "config", "hooks/x", "src/config/x.py"),
        *(".github/workflows/ci.yml", ".gitignore", "git/config", "keys.txt", "ssh/x", "profile"),
        *("history.txt", "id_rsa.pub", "monkey", ".config/app/x", "Schlüssel", "tasks.keys"),
    ],
)
def test_other_names_are_not(path: str) -> None:
    assert find_private_part(path.split("/")) is None


def test_a_private_folder_that_was_named_is_let_in(folder: Path) -> None:
    files = builtin_tools([str(folder / ".ssh")])
    assert run_and_read(files, "read", "known_hosts") == SECRET
    (folder / ".ssh" / "id_rsa").write_text(SECRET)
    assert run_and_refuse(files, "read", "id_rsa")[0] == "not_allowed"
    assert (
        run_and_refuse(builtin_tools([str(folder / ".git")]), "read", "config")[0] == "not_allowed"
    )


def test_a_large_file_and_a_large_folder_are_cut_with_a_notice(
    files: Registry, folder: Path
) -> None:
    (folder / "long.txt").write_text("a" * 999_999 + "é" * 10)
    text = run_and_read(files, "read", "long.txt")
    assert text.startswith("a" * 999_999 + "\n[")
    assert "1000019" in text
    (folder / "exact.txt").write_text("a" * 1_000_000)
    assert run_and_read(files, "read", "exact.txt") == "a" * 1_000_000
    write_files(folder / "many", {f"{number:05}": "" for number in range(1001)})
    lines = run_and_read(files, "list", "many").split("\n")
    assert lines[:2] == ["00000", "00001"]
    assert lines[999] == "00999"
    assert len(lines) == 1001
    assert "1000" in lines[1000]


@pytest.mark.parametrize(
    ("name", "raw", "kind"),
    [
        ("a.bin", b"\x00\x01", "application/octet-stream"),
        ("a.txt", b"caf\xe9", "application/octet-stream"),
        ("a.png", b"\x89PNG\r\n\x1a\n" + b"\0" * 10, "image/png"),
        ("evil.png", b"\x7fELF\xff", "application/x-executable"),
        ("a.jar", b"PK\x03\x04\xff", "application/java-archive"),
        ("a.mp3", b"ID3\xff\0", "audio/mpeg"),
        ("large.gif", b"GIF89a\xff" + bytes(1_500_000), "image/gif"),
    ],
)
def test_what_is_no_text_is_told_of_with_its_kind_and_its_size(
    files: Registry, folder: Path, name: str, raw: bytes, kind: str
) -> None:
    (folder / name).write_bytes(raw)
    assert run_and_read(files, "read", name) == f"[{name} is no text: {kind}, {len(raw)} bytes.]"


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes exist on Linux alone")
def test_no_name_breaks_a_line_of_a_list(files: Registry, folder: Path) -> None:
    odd = folder / "odd"
    odd.mkdir()
    (odd / "a\nb\x1b[31m").touch()
    (odd / "line\u2028end").touch()
    (odd / "nbsp\u202fname 😀").touch()
    os.close(os.open(os.fsencode(odd) + b"/\xff", os.O_CREAT))
    lines = run_and_read(files, "list", "odd").split("\n")
    assert sorted(lines) == sorted(
        ["a\\nb\\x1b[31m", "line\\u2028end", "nbsp\u202fname 😀", "\\udcff"]
    )


# --- roots ---


def test_a_root_is_written_with_what_may_be_done_and_where(folder: Path, tree: Path) -> None:
    assert RootName.parse("data") == RootName("data", writable=False)
    assert RootName.parse("data:ro") == RootName("data", writable=False)
    assert RootName.parse("data:rw") == RootName("data", writable=True)
    assert RootName.parse("a:b") == RootName("a:b", writable=False)
    assert run_and_read(builtin_tools([f"{folder}:rw"]), "read", "a.txt")
    named = RootName.parse(f"{tree}:rw:**/*.md:*.txt")
    assert named == RootName(str(tree), True, ("**/*.md", "*.txt"))
    assert RootName.parse(named.absolute()) == named


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files, two of which are Markdown, and links that lead around."""
    top = write_files(
        tmp_path / "tree", {name: name for name in ("top.md", "docs/a.md", "docs/deep/b.md")}
    )
    write_files(
        top, dict.fromkeys(("plan.txt", "docs/key.txt", "src/c.py", "../outside.md"), SECRET)
    )
    (top / "docs" / "link.md").symlink_to(top / "docs" / "key.txt")
    (top / "docs" / "out.md").symlink_to(tmp_path / "outside.md")
    (top / "docs" / "src.md").symlink_to(top / "src")
    return top


SEEN = {
    "**/*.md": {"top.md", "docs/a.md", "docs/deep/b.md"},
    "*.md": {"top.md"},
    "docs/**/*.md": {"docs/a.md", "docs/deep/b.md"},
    "docs/**": {"docs/a.md", "docs/deep/b.md", "docs/key.txt"},
    "docs/[ab].md:src/?.py": {"docs/a.md", "src/c.py"},
    "**/**/**/deep/**/*": {"docs/deep/b.md"},
}


@pytest.mark.parametrize("patterns", SEEN)
def test_of_a_root_with_patterns_only_what_fits_is_listed_and_read(
    tree: Path, patterns: str
) -> None:
    files, seen = builtin_tools([f"{tree}:ro:{patterns}"]), SEEN[patterns]
    every = {str(one.relative_to(tree)) for one in tree.rglob("*") if one.is_file()}
    for name in every:
        if name in seen:
            assert run_and_read(files, "read", name) == (tree / name).read_text()
        else:
            assert run_and_refuse(files, "read", name)[0] == "not_allowed"
            assert run_and_refuse(files, "read", f"{tree}/{name}")[0] == "not_allowed"
    listed, folders = set(), [""]
    for above in folders:
        for name in run_and_read(files, "list", above or ".").split("\n"):
            folders += [above + name] if name.endswith("/") else []
            listed |= {above + name} if not name.endswith(("/", "@", "]")) else set()
    assert listed == seen


def test_no_detour_leads_past_the_patterns(tree: Path) -> None:
    files = builtin_tools([f"{tree}:rw:docs/**/*.md"])
    for name in ("docs/link.md", "docs/out.md", "docs/src.md/c.py", "docs/src.md"):
        assert run_and_refuse(files, "read", name)[0] == "not_allowed"
    for name in ("docs/../plan.txt", "docs/deep/../key.txt", "./plan.txt", "docs//key.txt"):
        assert run_and_refuse(files, "read", name)[0] == "not_allowed"
    for name in ("docs/none.txt", "src/none.py", "none"):  # nor is it told what there is
        assert run_and_refuse(files, "read", name)[0] == "not_allowed"
    assert run_and_refuse(files, "list", "src")[0] == "not_allowed"


def test_writing_and_deleting_keep_to_the_patterns(tree: Path) -> None:
    files = builtin_tools([f"{tree}:rw:docs/**/*.md"])
    for operation in ("write", "delete", "create"):
        for name in ("plan.txt", "new.md", "docs/new.txt", "src/new.md", "docs/x.md/y.txt"):
            content = None if operation == "delete" else "x"
            assert run_and_refuse(files, operation, name, content)[0] == "not_allowed", (
                operation,
                name,
            )
            with pytest.raises(ToolError):
                preview(files, operation, name, content)
    assert not (tree / "docs" / "x.md").exists()
    for operation in ("write", "create"):
        run_and_read(files, operation, f"docs/{operation}.md", "x")
    run_and_read(files, "delete", "docs/a.md")
    assert not (tree / "docs" / "a.md").exists()


def test_another_root_may_hold_what_the_patterns_of_one_leave_out(tree: Path) -> None:
    files = builtin_tools([f"{tree}:ro:**/*.md", str(tree / "src")])
    assert run_and_read(files, "read", "c.py") == SECRET
    assert run_and_read(files, "read", "docs/a.md") == "docs/a.md"
    assert run_and_refuse(files, "read", "plan.txt")[0] == "not_allowed"


def test_programs_are_not_run_where_patterns_hold(tree: Path) -> None:
    roots = [Root(RootName.parse(f"{tree}:ro:**/*.md")), Root(RootName(str(tree / "src")))]
    assert "patterns" in str(disabled_reason(roots))
    with pytest.raises(ToolError, match="patterns"):
        run_command(roots).preview({"program": "cat", "arguments": ["c.py"]})


@pytest.mark.parametrize(
    "text", ["", ":ro", "a:ro:", "a:ro::b", "a:ro:/etc/*", "a:ro:../*", "a:ro:b/../c", "a:rw:~/x"]
)
def test_a_root_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="root "):
        RootName.parse(text)


def test_a_pattern_takes_no_more_than_linear_time() -> None:
    pattern = PathPatterns(["/".join(["**", "*a*"] * 40 + ["b"])])
    assert not pattern.match(["a" * 50] * 200)


def test_a_root_may_be_named_through_a_link_and_stays_the_folder_it_was(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    files = builtin_tools([str(link)])
    for path in ("a.txt", f"{link}/a.txt", f"{folder}/a.txt"):
        assert run_and_read(files, "read", path) == "first\nsecond\n"
    files = builtin_tools([str(folder)])
    folder.rename(folder.parent / "moved")
    folder.symlink_to(folder.parent / "data-evil")
    assert run_and_read(files, "read", "a.txt") == "first\nsecond\n"


def test_several_roots_are_searched_in_order(folder: Path) -> None:
    texts = {"a.txt": "other", "only.txt": "only", "empty": "a file here"}
    other = write_files(folder.parent / "other", texts)
    files = builtin_tools([str(folder), f"{other}:rw"])
    assert run_and_read(files, "read", "a.txt") == "first\nsecond\n"
    assert run_and_read(files, "read", f"{other}/a.txt") == "other"
    assert run_and_read(files, "read", "only.txt") == "only"
    assert run_and_read(files, "read", "empty") == "a file here"
    assert run_and_read(files, "list", ".") == f"{folder}/\n{other}/"
    assert run_and_refuse(files, "read", "nowhere.txt")[0] == "tool_error"
    assert run_and_refuse(files, "list", "..")[0] == "not_allowed"


# --- what an attacker tries ---


def test_a_link_swapped_in_while_reading_is_never_followed(folder: Path) -> None:
    """A thread puts links to the secret in the place of a file and of a folder, again and again."""
    victim, house = folder / "victim", folder / "house"
    write_files(folder, dict.fromkeys(("real/f", "fake/f", "victim"), "mine"))
    (folder.parent / "data-evil" / "f").write_text(SECRET)
    stop = threading.Event()

    def swap() -> None:
        spare, link = folder / "spare", folder / "swapped"
        while not stop.is_set():
            link.symlink_to(folder.parent / "secret.txt")
            link.replace(victim)
            spare.write_text("mine")
            spare.replace(victim)
            link.symlink_to(folder.parent / "data-evil")
            link.replace(house)
            house.unlink()
            (folder / "fake").rename(house)
            house.rename(folder / "fake")

    root = Root(RootName(str(folder)))
    seen: dict[str, int] = {}
    hangs = time.monotonic() + HANG
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for turn in itertools.count():
            if turn >= 3000 and (seen.get("read") or time.monotonic() > hangs):
                break  # on a busy machine the other thread may not have had its turn yet
            path = ("victim",) if turn % 2 else ("house", "f")
            try:
                fd = root.open_file(path)
            except Exception as error:
                kind = type(error).__name__
            else:
                with os.fdopen(fd) as file:
                    text = file.read()
                assert text != SECRET
                assert text in ("mine", "")
                kind = "read"
            seen[kind] = seen.get(kind, 0) + 1
    finally:
        stop.set()
        thread.join()
    root.close()
    assert seen.get("read", 0) > 0
    assert seen.keys() <= {"read", "PathRefused", "PathAbsent", "WrongFileKind"}
