"""Every program that has rules, given every known way out: refused, or nothing comes of it.

Ways to make an ordinary program run, write or read something else are lists of words in which OUT
stands for a file that must not come to be, SECRET for one that must not be read, and LINK for a
symbolic link to it that lies below the root.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from mlx_tools.plugins.command.program_files import find_program, list_trusted_folders
from mlx_tools.plugins.command.rules import load_rules, make_plan
from mlx_tools.store.roots import PathAbsent, PathRefused, Root, RootName
from tests.tables import table
from tests.tools.file_calls import write_files
from tests.tools.sandboxed import make_tool, needs_sandbox, run_program

OPTIONS_WITH_A_FILE = (
    *("-o", "-O", "-T", "-f", "-m", "-M", "-X", "-D", "-C", "-S", "-I", "-P", "-t", "-g", "-r"),
    *("--output", "--output-file", "--outfile", "--temporary-directory", "--tmpdir", "--file"),
    *("--files0-from", "--files-from", "--from-file", "--to-file", "--exclude-from", "--config"),
    *("--include-from", "--random-source", "--reference", "--magic-file", "--rcfile", "--log-file"),
    *("--ignore-file", "--ignore-revs-file", "--contents", "--index-filter", "--pidfile"),
    *("--git-dir", "--work-tree", "--exec-path", "--namespace", "--super-prefix", "--template"),
    *("-fprint", "-fprint0", "-fls", "-files0-from", "--fromfile", "--gitfile", "--infofile"),
)
OPTIONS_WITH_A_PROGRAM = (
    *("--compress-program", "--use-compress-program", "--to-command", "--checkpoint-action=exec"),
    *("--rsh", "--rsh-command", "--pre", "--hostname-bin", "--open-files-in-pager", "--pager"),
    *("--upload-pack", "--receive-pack", "--exec", "--command", "--filter", "--eval", "--prompt"),
    *("--info-script", "--new-volume-script", "--rmt-command", "--editor", "--ssh-command"),
    *("-exec", "-execdir", "-ok", "-okdir", "-c", "-e", "-x", "-O", "-I"),
)
OPTIONS_ALONE = (
    *("-delete", "--delete", "--in-place", "-i.bak", "--paginate", "-p=", "--ext-diff", "--help"),
    *("--textconv", "--show-signature", "--no-index", "--search-zip", "--follow=name", "--compile"),
    *("--filters", "--batch", "--stdin", "--version", "--html-path", "--edit", "--interactive"),
    *("--recurse-submodules", "--submodule=diff", "--unsafe-paths", "--force", "--dereference"),
)
CONFIGURATION = (
    *("alias.x=!touch OUT", "core.pager=touch OUT", "core.fsmonitor=touch OUT", "core.editor=x"),
    *("diff.external=touch OUT", "core.sshCommand=touch OUT", "include.path=SECRET"),
    "core.hooksPath=x",
)
SPELLINGS = (
    ["–exec", "touch", "OUT", ";"],  # an en dash
    ["−o", "OUT"],  # a minus sign
    *(["—output=OUT"], ["﹣-output=OUT"], ["-‐output=OUT"]),
    ["--out=OUT"],  # abbreviated
    *(["--outp", "OUT"], ["--compress-prog=touch"], ["--files0=SECRET"]),
    ["-nooOUT"],  # bundled
    *(["-noOUT"], ["-rno", "OUT"], ["-laoOUT"], ["--", "-o", "OUT"], ["--", "--output=OUT"]),
    *(["--", "-exec", "touch", "OUT", ";"], ["-", "-o", "OUT"], ["--output", "--", "OUT"]),
    *(["--=OUT"], ["-\n-output=OUT"], ["--output\n=OUT"], [" --output=OUT"], ["--OUTPUT=OUT"]),
)
ELSEWHERE = (
    *(["SECRET"], ["LINK"], ["--", "SECRET"], ["--", "LINK"], ["../outside/secret.txt"]),
    *(["./../outside/secret.txt"], ["sub/../../outside/secret.txt"]),
    *(["sub/./..//../outside/secret.txt"], ["--", "../outside/secret.txt"]),
    *(["..%2foutside%2fsecret.txt"], ["../outside/*.txt"], ["*/../../outside/*"], ["/*/../SECRET"]),
    *(["file://SECRET"], ["@SECRET"], ["+SECRET"], ["<SECRET"], ["HEAD:../outside/secret.txt"]),
    *([":/../outside/secret.txt"], [":(top)../outside/secret.txt"], ["~/secret.txt"]),
    *(["$HOME/secret.txt"], ["${IFS}SECRET"], [".env"], ["./.env"], ["sub/../.env"], [".ENV"]),
    *([".e*"], [".git/config"], [".git/../.git/config"], ["HEAD:.env"], ["--", ".env"]),
    *(["/proc/self/environ"], ["/proc/1/root/SECRET"], ["/dev/fd/0"], ["/dev/tcp/127.0.0.1/9"]),
    ["/etc/passwd"],
)
SHELL = (
    *(["$(touch OUT)"], ["`touch OUT`"], [";", "touch", "OUT"], ["a.txt;touch OUT"]),
    *(["|", "touch", "OUT"], ["a.txt|touch OUT"], ["&&", "touch", "OUT"], ["&", "touch", "OUT"]),
    *([">", "OUT"], [">OUT"], ["a.txt", ">>", "OUT"], ["a.txt\ntouch OUT"], ["!touch OUT"]),
    *(["\\", "touch", "OUT"], ["--format=%G?"], ["--pretty=%GK"], ["--format=%(trailers)%G?"]),
    *(["LD_PRELOAD=OUT"], ["a.txt", "OUT"], ["a.txt", "a.txt", "OUT"]),
)


def escapes() -> list[list[str]]:
    """All of them, as lists of words that follow a program's ordinary arguments."""
    found: list[list[str]] = []
    for option in OPTIONS_WITH_A_FILE:
        for file in ("OUT", "SECRET"):
            joined = f"{option}={file}" if option.startswith("--") else f"{option}{file}"
            found += [[option, file], [joined]]
    for option in OPTIONS_WITH_A_PROGRAM:
        joined = f"{option}=touch OUT" if option.startswith("--") else f"{option}touch OUT"
        found += [[option, "touch", "OUT", ";"], [option, "touch OUT"], [joined]]
    found += [[option] for option in OPTIONS_ALONE]
    for setting in CONFIGURATION:
        found += [
            ["-c", setting],
            [f"-c{setting}"],
            [f"--config={setting}"],
            [f"--config-env={setting}"],
        ]
    return [*found, *SPELLINGS, *ELSEWHERE, *SHELL]


# --- what comes of them ---------------------------------------------------------------------------


SECRET = "the-secret-outside"
PRIVATE = "the-private-token"

ORDINARY = {
    "comm": ["a.txt", "b.txt"],
    "cmp": ["a.txt", "b.txt"],
    "diff": ["a.txt", "b.txt"],
    "find": ["."],
    "grep": ["one", "a.txt"],
    "rg": ["one"],
    "tree": [],
    "ls": [],
    "du": [],
    "pwd": [],
}
"""Arguments that a program takes; others take the path of a file."""

UNLISTED = Path(__file__).with_name("unlisted_programs.txt").read_text(encoding="utf-8").split()
"""Programs that can be made to start others, to read or to write; names that only look listed."""


@dataclass(frozen=True)
class Place:
    """A root with a repository, and a secret beside it."""

    root: Path
    secret: Path
    out: Path

    def words(self, escape: list[str]) -> list[str]:
        places = {"SECRET": self.secret, "LINK": "link.txt", "OUT": self.out}
        for name, path in places.items():
            escape = [word.replace(name, str(path)) for word in escape]
        return escape

    def clean(self) -> bool:
        """Return True if nothing was made or changed."""
        return not self.out.exists() and sorted(p.name for p in self.root.iterdir()) == FILES


FILES = [".env", ".git", "a.txt", "b.txt", "link.txt", "sub"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    base = tmp_path_factory.mktemp("escapes")
    root, outside = base / "root", base / "outside"
    write_files(outside, {"secret.txt": f"{SECRET}\n"})
    write_files(root, {"a.txt": "one\ntwo\n", "b.txt": "one\nthree\n", "sub/c.txt": "one\n"})
    quietly = {"cwd": root, "check": True, "capture_output": True}
    subprocess.run(["git", "init", "-q", "."], **quietly)  # type: ignore[call-overload]
    subprocess.run(["git", "add", "."], **quietly)  # type: ignore[call-overload]
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "commit", "-qm", "one"], **quietly)  # type: ignore[call-overload]
    (root / ".env").write_text(f"{PRIVATE}\n")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    with (root / ".git" / "config").open("a") as config:
        config.write(f"[x]\n\ttoken = {PRIVATE}\n")
    return Place(root, outside / "secret.txt", outside / "made")


def programs() -> Iterator[tuple[str, list[str]]]:
    """Every program, and of git every subcommand, with ordinary arguments."""
    for name, rule in load_rules().items():
        for word, sub in rule.subcommands.items():
            yield (
                name,
                [word, *(["one"] if sub.first else []), *(["HEAD"] if sub.min_operands else [])],
            )
        if not rule.subcommands:
            yield name, ORDINARY.get(name, ["a.txt"])


def cases(name: str, before: list[str], place: Place) -> Iterator[list[str]]:
    """The escapes after a program's ordinary arguments, and before them."""
    for escape in escapes():
        words = place.words(escape)
        yield [*before, *words]
        yield [*words, *before]
        if name == "git":
            yield [*before[:1], *words]


@dataclass(frozen=True)
class Tried:
    """The number of cases that are refused before anything runs, and those that are not."""

    refused: int
    remaining: list[tuple[str, list[str]]]


@pytest.fixture(scope="module")
def tried(place: Place) -> Tried:
    root = Root(RootName(str(place.root)))
    folders = list_trusted_folders()
    found = cache(lambda name: find_program(name, folders))  # else most of the time is spent here
    refused, remaining = 0, []
    for name, before in programs():
        for words in map(list, dict.fromkeys(map(tuple, cases(name, before, place)))):
            try:
                make_plan(load_rules(), folders, [root], name, words, lambda name, *_: found(name))
            except (PathRefused, PathAbsent):
                refused += 1
            else:
                remaining.append((name, words))
    root.close()
    return Tried(refused, remaining)


def test_most_ways_out_are_refused_before_anything_runs(tried: Tried) -> None:
    assert tried.refused > 10_000


def check_harmless(place: Place, some: list[tuple[str, list[str]]]) -> None:
    callee = make_tool(place.root)

    def fault(case: tuple[str, list[str]]) -> str:
        result = run_program(callee, case[0], *case[1])
        told = result.content or (result.error.message if result.error else "")
        seen = [word for word in (SECRET, PRIVATE, "root:") if word in told]
        return f"{case}: {seen}" if seen or not place.clean() else ""

    with ThreadPoolExecutor(4) as pool:
        assert [*filter(None, pool.map(fault, some))] == []


@needs_sandbox
@pytest.mark.parametrize("most", [60, pytest.param(10**6, marks=pytest.mark.slow)])
def test_what_is_not_refused_comes_to_nothing(place: Place, tried: Tried, most: int) -> None:
    assert len(tried.remaining) > 300
    check_harmless(place, tried.remaining[:: max(1, len(tried.remaining) // most)])


@table("name", UNLISTED)
def test_a_program_without_rules_is_refused(name: str, place: Place) -> None:
    root = Root(RootName(str(place.root)))
    with pytest.raises(PathRefused, match="not allowed"):
        make_plan(load_rules(), list_trusted_folders(), [root], name, [])
    root.close()
