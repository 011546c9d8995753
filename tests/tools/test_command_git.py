"""Repositories that are made to run something when git reads them: nothing runs.

Each sets a trap which, when it is sprung, makes a file below the root. Git is given the right to
write there, so that only what keeps git from running the trap is tested.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mlx_tools.messages import replace
from mlx_tools.plugins.command.program_files import list_trusted_folders
from mlx_tools.plugins.command.rules import (
    find_hidden,
    keep_repository_lines,
    load_rules,
    make_plan,
)
from mlx_tools.plugins.command.sandbox import detect_sandbox, run
from mlx_tools.plugins.command.sandbox_view import SandboxView
from mlx_tools.store.roots import Root, RootName
from tests.tools.sandboxed import make_tool, needs_sandbox, read_output, read_refusal, run_program

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(root: Path, *words: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", *words], cwd=root, check=check, capture_output=True, text=True, env=ENVIRONMENT
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q", ".")
    (root / "a.txt").write_text("one\n")
    (root / "b.bin").write_text("two\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    (root / "a.txt").write_text("one\nmore\n")
    (root / "b.bin").write_text("two, changed\n")
    git(root, "commit", "-qam", "second")
    (root / "a.txt").write_text("one\nmore still\n")
    (root / "b.bin").write_text("TWO, CHANGED\n")
    return root


def script(root: Path) -> str:
    """A program that makes the file."""
    path = root / "trap.sh"
    path.write_text(f'#!/bin/sh\n: > {root}/sprung\ncat "$@" 2>/dev/null\n')
    path.chmod(0o755)
    return str(path)


Trap = Callable[[Path], None]


def configured(*keys: str, attributes: str = "", before: str = "") -> Trap:
    """These keys of the configuration name the program."""

    def trap(root: Path) -> None:
        for key in keys:
            git(root, "config", key, before + script(root))
        if attributes:
            (root / ".gitattributes").write_text(attributes)

    return trap


def hooks(root: Path) -> None:
    for name in ("post-index-change", "fsmonitor-watchman", "post-checkout", "query-watchman"):
        path = root / ".git" / "hooks" / name
        path.write_text(Path(script(root)).read_text())
        path.chmod(0o755)
    git(root, "config", "core.fsmonitor", ".git/hooks/query-watchman")


def hooks_path(root: Path) -> None:
    (root / "hooks").mkdir()
    path = root / "hooks" / "post-index-change"
    path.write_text(Path(script(root)).read_text())
    path.chmod(0o755)
    git(root, "config", "core.hooksPath", "hooks")


def included(root: Path) -> None:
    (root / "more").write_text(f"[core]\n\tfsmonitor = {script(root)}\n\tpager = {script(root)}\n")
    git(root, "config", "include.path", "../more")
    git(root, "config", "includeIf.gitdir:**.path", "../more")


def signature(root: Path) -> None:
    git(root, "config", "gpg.program", script(root))
    git(root, "config", "log.showSignature", "true")
    text = git(root, "cat-file", "commit", "HEAD")
    head, _, body = text.partition("\n\n")
    mark = "PGP SIGNATURE-----"
    signed = f"{head}\ngpgsig -----BEGIN {mark}\n \n aa\n -----END {mark}\n\n{body}"
    made = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"],
        cwd=root,
        input=signed,
        check=True,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    ).stdout.strip()
    git(root, "update-ref", "HEAD", made)


def worktree_configuration(root: Path) -> None:
    git(root, "config", "extensions.worktreeConfig", "true")
    (root / ".git" / "config.worktree").write_text(f"[core]\n\tfsmonitor = {script(root)}\n")


def submodule(root: Path) -> None:
    """A folder in the index as another repository, whose own configuration is the trap."""
    inner = root / "inner"
    inner.mkdir()
    git(inner, "init", "-q", ".")
    (inner / "x").write_text("x\n")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "inner")
    git(root, "add", "inner", check=False)
    (inner / "x").write_text("changed\n")
    git(inner, "config", "core.fsmonitor", script(root))
    git(inner, "config", "diff.external", script(root))
    git(root, "config", "diff.submodule", "diff")
    git(root, "config", "status.submoduleSummary", "true")


PAGED = ("log", "diff", "show", "status", "blame", "grep", "branch", "tag")
TRAPS: dict[str, Trap] = {
    "fsmonitor": configured("core.fsmonitor"),
    "external_diff": configured("diff.external"),
    "driver": configured("diff.x.command", attributes="* diff=x\n"),
    "textconv": configured("diff.x.textconv", attributes="* diff=x\n"),
    "clean_filter": configured("filter.x.clean", "filter.x.smudge", attributes="* filter=x\n"),
    "process_filter": configured("filter.x.process", attributes="* filter=x\n"),
    "pager": configured("core.pager", *(f"pager.{name}" for name in PAGED)),
    "alias": configured(*(f"alias.{name}" for name in (*PAGED, "st", "ls-files")), before="!"),
    **{
        trap.__name__: trap
        for trap in (hooks, hooks_path, included, signature, worktree_configuration, submodule)
    },
}
WORDS = [
    *(["status"], ["status", "-s", "-b", "--ignored"], ["diff"], ["diff", "--stat", "HEAD~1"]),
    *(["diff", "--cached"], ["log", "-p", "-3"], ["log", "--stat", "--oneline"], ["show", "HEAD"]),
    *(["show", "HEAD:a.txt"], ["blame", "a.txt"], ["grep", "one"], ["grep", "one", "HEAD"]),
    *(["ls-files", "-m", "--eol"], ["cat-file", "-p", "HEAD"], ["branch", "-v"], ["tag", "-n3"]),
    *(["describe", "--always"], ["shortlog", "-s", "HEAD"], ["rev-list", "--count", "HEAD"]),
    ["reflog", "-n", "2"],
]


def with_the_right_to_write(root: Path, words: list[str]) -> int:
    """Runs git as the tool does, but so that it could write below the root."""
    opened = Root(RootName(str(root)))
    made = make_plan(load_rules(), list_trusted_folders(), [opened], "git", words)
    config = str(root / ".git" / "config")
    private = replace(find_hidden([opened]), repositories=[])
    view = SandboxView(
        str(root), [(str(root), True)], private, {config: keep_repository_lines(Path(config))}
    )
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **made.environment}
    with detect_sandbox().confine(made.argv, view) as confined:
        ran = run(confined, environment, 60)
    opened.close()
    assert ran.was_started, ran.errors
    return ran.code


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("trap", TRAPS)
def test_no_trap_is_sprung(repository: Path, trap: str) -> None:
    TRAPS[trap](repository)
    sprung = repository / "sprung"
    sprung.unlink(missing_ok=True)
    for words in WORDS:
        code = with_the_right_to_write(repository, words)
        assert not sprung.exists(), words
        assert code in (0, 1), words
    result = run_program(make_tool(repository), "git", "status")
    assert result.content is not None and result.content.startswith("[exit code 0]")


@pytest.mark.parametrize(
    ("trap", "words"),
    [
        *(("fsmonitor", ["status"]), ("external_diff", ["diff"]), ("driver", ["diff"])),
        *(("textconv", ["diff"]), ("clean_filter", ["status"]), ("hooks", ["status"])),
        *(("included", ["status"]), ("signature", ["log"]), ("submodule", ["status"])),
    ],
)
def test_the_traps_are_sprung_by_git_alone(repository: Path, trap: str, words: list[str]) -> None:
    TRAPS[trap](repository)
    sprung = repository / "sprung"
    sprung.unlink(missing_ok=True)
    os.utime(repository / "a.txt", (1, 1))
    git(repository, *words, check=False)
    assert sprung.exists()


@needs_sandbox
def test_no_repository_is_taken_but_the_folder_of_that_name_in_the_root(repository: Path) -> None:
    git(repository, "config", "core.fsmonitor", script(repository))
    (repository / ".git").rename(repository / "evil")
    (repository / ".git").write_text("gitdir: evil\n")
    assert "no repository" in read_refusal(make_tool(repository), "git", "status")[1]
    (repository / ".git").unlink()
    (repository / ".git").symlink_to("evil")
    assert "no repository" in read_refusal(make_tool(repository), "git", "status")[1]
    assert not (repository / "sprung").exists()


@needs_sandbox
def test_a_bare_repository_in_the_root_and_a_common_folder_are_not_taken(
    repository: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(bare))
    assert "no repository" in read_refusal(make_tool(bare), "git", "log")[1]
    (repository / ".git" / "commondir").write_text(f"{bare}\n")
    assert "worktree" in read_refusal(make_tool(repository), "git", "log")[1]


@needs_sandbox
def test_a_repository_is_read(repository: Path) -> None:
    callee = make_tool(repository)
    assert read_output(callee, "git", "log", "--format=%s") == "second\nfirst"
    assert read_output(callee, "git", "show", "HEAD~1:a.txt") == "one"
    assert read_output(callee, "git", "status", "-s").split() == ["M", "a.txt", "M", "b.bin"]
    assert "+more still" in read_output(callee, "git", "diff", "--", "*.txt")
    assert read_output(callee, "git", "ls-files") == "a.txt\nb.bin"


@needs_sandbox
def test_a_private_file_that_was_committed_does_not_come_out_by_chance(repository: Path) -> None:
    (repository / ".env").write_text("committed-token\n")
    git(repository, "add", ".env")
    git(repository, "commit", "-qm", "oh")
    callee = make_tool(repository)
    for words in (["diff"], ["diff", "HEAD"], ["status"], ["show", "HEAD"], ["grep", "token"]):
        told = run_program(callee, "git", *words)
        assert told.content is not None
        assert "committed-token" not in told.content
        assert ".env" not in told.content
    assert read_refusal(callee, "git", "show", "HEAD:.env")[0] == "not_allowed"


def test_of_a_configuration_only_what_git_must_know_is_left(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[core]\n\trepositoryformatversion = 1\n\tfsmonitor = /bin/x\n\tbare = false\n"
        "\tworktree = /\n\tpager = x\n[include]\n\tpath = x\n[alias]\n\tbare = !x\n"
        '[filter "x"]\n\tclean = x\n[extensions]\n\tobjectFormat = sha256\n'
        "\tworktreeConfig = true\n"
        "[core] fsmonitor = x\n\tfilemode = true; x\n\tignorecase = x\\\n\tfsmonitor = y\n"
    )
    assert keep_repository_lines(config).decode().split("\n") == [
        *("[core]", "\trepositoryformatversion = 1", "\tbare = false", "[extensions]"),
        *("\tobjectformat = sha256", ""),
    ]
    assert keep_repository_lines(tmp_path / "missing") == b""
