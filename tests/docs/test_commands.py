"""Every documented command can be typed at zsh, the shell of a Mac's terminal.

Interactive zsh takes no comments: in ``pipx install x  # from a checkout`` it passes ``#``,
``from``, ``a`` and ``checkout`` to the program. It refuses a pattern that matches no file, such as
``mlx-tools[mlx]``, and replaces ``!`` by words of its history.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from mlx_tools.cli.command_table import list_commands
from mlx_tools.cli.root import app
from tests.docs.test_readme import PAGES, ROOT, commands, sections
from tests.tables import table
from tests.waiting import HANG

PROGRAMS = (
    *(
        "mlx-tools",
        "mlx_lm.server",
        "mlx_lm.lora",
        "mlx.launch",
        "pip",
        "pipx",
        "uv",
        "make",
        "brew",
    ),
    *(
        "xcode-select",
        "cat",
        "codex",
        "curl",
        "vllm",
        "git",
        "npx",
        "docker",
        "python",
        "sh",
        "sudo",
        "launchctl",
    ),
)
"""Programs that are replaced by a stand-in, and that a command in running text begins with."""

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
NO_COMMAND = re.compile(r"git log \*")
"""A rule of the policy, which looks like a command."""

STAND_IN = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" >"$RECORDS/$$"
"""


def commands_in_text(page: str) -> Iterator[str]:
    """The commands that stand in backquotes in a page's running text."""
    for span in SPAN.findall(FENCE.sub("", page)):
        words = iter(span.replace("\\|", "|").split())
        first = next((word for word in words if not ASSIGNMENT.match(word)), "")
        if first in PROGRAMS and next(words, None) is not None and not NO_COMMAND.fullmatch(span):
            yield span.replace("\\|", "|")


@cache
def documented() -> list[tuple[str, str]]:
    """Each documented command with its page, those of blocks that are not run among them."""
    found: dict[str, str] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in (block for section in sections(text) for block in section.blocks):
            if block.kind == "console":
                for command in commands(block.body):
                    found.setdefault(command.text, page.name)
        for command in commands_in_text(text):
            found.setdefault(command, page.name)
    return [(page, command) for command, page in found.items()]


DEPENDENCIES = ("mlx", "mlx-lm", "huggingface-hub", "transformers")
"""Packages that bring commands, which pipx and uv do not put on PATH beside ours."""


def test_no_command_is_one_that_only_a_dependency_brings() -> None:
    brought = {"mlx_lm.server", "mlx_lm.generate", "mlx_lm.lora", "mlx_lm.convert", "hf"}
    for name in DEPENDENCIES:
        with contextlib.suppress(PackageNotFoundError):
            brought |= {entry.name for entry in distribution(name).entry_points}
    wrong = [(page, command) for page, command in documented() if command.split()[0] in brought]
    # it runs on several machines, in an environment of Python's
    assert [command for _, command in wrong if not command.startswith("mlx.launch ")] == []


def named_in_code() -> Iterator[tuple[str, str]]:
    """Each ``mlx-tools …`` in a message of the package, with its file."""
    for path in sorted((ROOT / "mlx_tools").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "mlx-tools " in text else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for match in re.findall(r"mlx-tools [a-z-]+(?: [a-z-]+)?", node.value):
                    yield path.name, match


def test_every_command_that_is_documented_or_hinted_at_exists() -> None:
    root = get_command(app)
    inside = re.compile(r"mlx-tools (?=[a-z]).+")  # behind pipes and variables too
    spans = [(page, m) for page, command in documented() for m in inside.findall(command)]
    assert len(spans) > 100
    wrong = [
        (place, text)
        for place, text in spans
        if unknown_part(root, text.split()[1:]) and text.split()[1] not in added_by(place)
    ]
    wrong += [
        (place, text)
        for place, text in named_in_code()
        if text.split()[1] in list_commands() and unknown_part(root, text.split()[1:])
    ]
    assert wrong == []
    assert unknown_part(root, ["models", "sevre", "NAME"]) == "sevre"
    assert unknown_part(root, ["models", "serve", "NAME", "--prot", "1"]) == "--prot"


def added_by(page: str) -> list[str]:
    """The commands of a plugin that a page shows."""
    text = (ROOT / "docs" / page).read_text("utf-8") if (ROOT / "docs" / page).exists() else ""
    return re.findall(r'Command\("(\w+)"', text)


def unknown_part(command: Any, words: list[str], context: Any = None) -> str:
    """Return the first subcommand or option of these words that is not there; empty if all are."""
    if context is None:  # the root's has the names of its options for help, which others inherit
        context = command.make_context("mlx-tools", [], resilient_parsing=True)
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    for index, word in enumerate(words):
        if word == "--":
            return ""
        if word.startswith("--") and word.partition("=")[0] not in options | {"--help"}:
            return word
        if hasattr(command, "list_commands") and re.fullmatch(r"[a-z-]+", word):
            if word in command.list_commands(context):
                sub = command.get_command(context, word)
                inner = type(context)(sub, parent=context, info_name=word)
                return unknown_part(sub, words[index + 1 :], inner)
            if not command.invoke_without_command:
                return word
    return ""


def test_no_command_installs_this_package_by_its_name() -> None:
    """It is on no index: what stands there under the name is another program."""
    wrong = [
        (page, command)
        for page, command in documented()
        if re.search(r"\binstall .*(?<![\w./-])mlx-tools\b", command)
    ]
    assert wrong == []


def has_comment(command: str) -> bool:
    """Return whether a shell that takes comments would pass over the end of this command."""
    read = []
    for takes_comments in (False, True):
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = "#" if takes_comments else ""
        read.append(list(lexer))
    return read[0] != read[1] and re.search(r"(^|\s)#", command) is not None


@table("page, command", documented())
def test_no_command_has_a_comment_behind_it(page: str, command: str) -> None:
    assert not has_comment(command), page


def test_a_comment_is_told_from_a_quoted_number_sign() -> None:
    assert has_comment('pipx install ".[mlx]"   # from a checkout')
    assert not has_comment("mlx-tools ask 'what is # in C?'")
    assert not has_comment("mlx-tools ask http://127.0.0.1/#top")


class Shells:
    """Runs a command by a shell in a folder of its own, with stand-ins for the programs."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        self._bin.mkdir()
        self._folder = folder
        for program in PROGRAMS:
            path = self._bin / program
            path.write_text(STAND_IN, encoding="utf-8")
            path.chmod(0o755)

    def run(self, command: str, *shell: str) -> tuple[int, str, list[list[str]]]:
        """Return the exit code, what the shell wrote, and the argument lists it called with."""
        work = self._folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for name in re.findall(r"(?<!<)<\s*([\w.]+)", command):  # files that it reads
            (work / name).touch()
        if "mkdir" not in command:
            for name in re.findall(r">\s*([\w.]+)/", command):  # folders that it writes to
                (work / name).mkdir()
        records = self._folder / "records"  # a file for each call: those of a pipe run at once
        shutil.rmtree(records, ignore_errors=True)
        records.mkdir()
        done = subprocess.run(
            shell,
            input=command + "\n",
            cwd=work,
            env={
                "HOME": str(self._folder),
                "PATH": f"{self._bin}{os.pathsep}/usr/bin{os.pathsep}/bin",
                "RECORDS": str(records),
                "LANG": "C.UTF-8",
                "TERM": "dumb",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG,
        )
        calls = [call.read_text(encoding="utf-8").split("\0")[:-1] for call in records.iterdir()]
        return done.returncode, done.stdout, sorted(calls)


@pytest.mark.heavy
def test_every_documented_command_means_the_same_to_zsh_as_to_bash(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is missing")
    shells = Shells(tmp_path)
    wrong = []
    for page, command in documented():
        wanted = shells.run(command, "bash", "--norc", "-s")
        code, said, calls = shells.run(command, "zsh", "-f", "-i", "-s")
        if (code, calls) != (wanted[0], wanted[2]) or code == 127 or wanted[0] != 0:
            wrong.append(f"{page}: {command}\n  bash: {wanted}\n  zsh: {(code, said, calls)}")
    assert not wrong, "\n".join(wrong)


@table(
    "command",
    [
        'pipx install ".[mlx]"        # from a checkout; or: uv tool install ".[mlx]"',
        "pip install mlx-tools[web]",
        'mlx-tools ask "hello!you"',
    ],
)
def test_a_command_that_zsh_reads_otherwise_is_noticed(command: str, tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is missing")
    folder = tmp_path / str(abs(hash(command)))
    folder.mkdir()
    shells = Shells(folder)
    code, _, calls = shells.run(command, "zsh", "-f", "-i", "-s")
    wanted = shells.run(command, "bash", "--norc", "-s")
    assert (code, calls) != (wanted[0], wanted[2])
