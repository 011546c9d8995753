"""Every program that has rules, given every known way out: refused, or nothing comes of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlx_tools.store.roots import Absent, Refused, Root, RootName
from mlx_tools.toolbox.command_rules import plan, rules, trusted_folders
from tests.tools.command_escapes import escapes
from tests.tools.sandboxed import called, needs_sandbox, tool

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
        """Whether nothing was made or changed."""
        return not self.out.exists() and sorted(p.name for p in self.root.iterdir()) == FILES


FILES = [".env", ".git", "a.txt", "b.txt", "link.txt", "sub"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    base = tmp_path_factory.mktemp("escapes")
    root, outside = base / "root", base / "outside"
    (root / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text(f"{SECRET}\n")
    (root / "a.txt").write_text("one\ntwo\n")
    (root / "b.txt").write_text("one\nthree\n")
    (root / "sub" / "c.txt").write_text("one\n")
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
    for name, rule in rules().items():
        for word, sub in rule.subcommands.items():
            yield name, [word, *(["one"] if sub.first else []), *(["HEAD"] if sub.least else [])]
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
    """How many cases are refused before anything runs, and those that are not."""

    refused: int
    remaining: list[tuple[str, list[str]]]


@pytest.fixture(scope="module")
def tried(place: Place) -> Tried:
    root = Root(RootName(str(place.root)))
    folders = trusted_folders()
    refused, remaining = 0, []
    for name, before in programs():
        for words in cases(name, before, place):
            try:
                plan(rules(), folders, [root], name, words)
            except (Refused, Absent):
                refused += 1
            else:
                remaining.append((name, words))
    root.close()
    return Tried(refused, remaining)


def test_most_ways_out_are_refused_before_anything_runs(tried: Tried) -> None:
    assert tried.refused > 10_000


def check_harmless(place: Place, some: list[tuple[str, list[str]]]) -> None:
    callee = tool(place.root)

    def fault(case: tuple[str, list[str]]) -> str:
        result = called(callee, case[0], *case[1])
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


@needs_sandbox
def test_every_option_of_every_program_is_harmless(place: Place) -> None:
    """Each option that is allowed, with a value where it takes one, finds nothing outside."""
    values = {
        "count": "1",
        "integer": "1",
        "text": "%s%n",
        "key": "1",
        "list": "1",
        "when": "never",
        "type": "f",
        "size": "1",
        "perm": "644",
        "filter": "M",
        "pretty": "oneline",
        "revision": "HEAD",
        "reference": "refname",
        "lines": "1",
        "date": "2020-01-01",
        "path": "link.txt",
    }
    some: list[tuple[str, list[str]]] = []
    for name, rule in rules().items():
        for word, one in {"": rule, **rule.subcommands}.items():
            if one.subcommands:
                continue
            before = [word, *(["one"] if one.first else [])] if word else []
            after = ORDINARY.get(name, ["a.txt"]) if not word else ["HEAD"] if one.least else []
            taken = [[flag] for flag in (*one.flags, *one.optional)]
            taken += [[option, values[kind]] for option, kind in one.values.items()]
            for given in taken:
                words = [*after, *given] if one.form == "expression" else [*given, *after]
                some.append((name, [*before, *words]))
    assert len(some) > 500
    check_harmless(place, some[:: max(1, len(some) // 120)])


@pytest.mark.parametrize("name", UNLISTED)
def test_a_program_without_rules_is_refused(name: str, place: Place) -> None:
    root = Root(RootName(str(place.root)))
    with pytest.raises(Refused, match="not allowed"):
        plan(rules(), trusted_folders(), [root], name, [])
    root.close()
