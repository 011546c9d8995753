"""Find names and first lines of docstrings that break the rules of docs/glossary.md.

``python scripts/names.py ROOM`` lists what it finds in a room, ``--write`` lowers the numbers of
``scripts/names.toml`` to what is found.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Path = ROOT / "mlx_tools"
TABLE: Final = ROOT / "scripts" / "names.toml"

MAX_FIRST_LINE: Final = 80
"""Characters of a docstring's first line: what an editor shows of it in one row."""

OPENERS: Final = (
    *("What ", "Whether ", "How ", "Of ", "Have ", "The one that "),
    *("Which ", "Why ", "When ", "Where ", "Who ", "That "),
)
"""Beginnings of first lines that are no sentence and no noun phrase."""

NOUN_OPENERS: Final = (
    *("The ", "A ", "An ", "One ", "All ", "Both ", "Each ", "Every ", "Any ", "Some ", "No "),
    *("This ", "These ", "Those ", "Its ", "Their ", "Nothing ", "Everything "),
    *("Another ", "As ", "At ", "After ", "Behind ", "Past ", "So ", "Within ", "While "),
)
"""Beginnings that a function's first line may not have: it begins with a verb."""

NOUN_DECORATORS: Final = ("property", "fixture", "setter")
"""Decorators of functions that are used as values, and may be described by a noun."""

_OPENED: Final = re.compile(rf'^[ ]*r?"""(?:{"|".join(map(re.escape, OPENERS))}).*', re.MULTILINE)

Finding = tuple[str, int, str]
"""A file, a line in it, and the text that breaks a rule."""


@functools.cache
def read_table() -> dict[str, Any]:
    """Return the words, the allowed names and the numbers of ``scripts/names.toml``."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def room_of(path: Path) -> str:
    """Return the room that a file of the package belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def files() -> tuple[Path, ...]:
    """Return every Python file of the package."""
    return tuple(sorted(PACKAGE.rglob("*.py")))


@functools.cache
def parse(path: Path) -> ast.Module:
    """Return the tree of a file, which is parsed once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def definitions(tree: ast.AST) -> tuple[tuple[str, int], ...]:
    """Return the names that a module defines for others: no local variables."""
    return tuple(_definitions(tree))


def _definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
            spec = node.args
            arguments = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
            yield from ((arg.arg, arg.lineno) for arg in arguments if arg is not None)
        elif isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
            for part in node.body:
                yield from _targets(part)
        elif isinstance(node, ast.Module):
            for part in node.body:
                yield from _targets(part)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from _attributes(node)


def _targets(node: ast.stmt) -> Iterator[tuple[str, int]]:
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Name):
                yield part.id, part.lineno


def _attributes(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[str, int]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == "self":
                yield part.attr, part.lineno


def bad_names(room: str) -> list[Finding]:
    """Return the names of a room that are participles, pronouns or prepositions.

    Of constants, also those that begin with a superlative: a limit is ``MAX_`` or ``MIN_``.
    Names that end in ``_of`` are no verbs.
    """
    table = read_table()
    words = {word for key in ("participles", "pronouns", "prepositions") for word in table[key]}
    findings: set[Finding] = set()
    for path in files():
        if room_of(path) != room:
            continue
        name = path.relative_to(PACKAGE).as_posix()
        allowed = table["allowed"].get(name, [])
        for identifier, line in definitions(parse(path)):
            word = identifier.strip("_").lower()
            is_odd_limit = identifier.isupper() and word.split("_")[0] in table["superlatives"]
            is_bad = word in words or is_odd_limit or word.endswith("_of")
            if is_bad and identifier not in allowed:
                findings.add((name, line, identifier))
    return sorted(findings)


def bad_first_lines(room: str) -> list[Finding]:
    """Return the first lines of a room's docstrings that break the rules."""
    findings: list[Finding] = []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for path in files():
        if room_of(path) != room:
            continue
        for node in ast.walk(parse(path)):
            if not isinstance(node, kinds) or not (text := ast.get_docstring(node)):
                continue
            first = text.split("\n", 1)[0]
            is_bad = len(first) > MAX_FIRST_LINE or first.startswith(OPENERS)
            if is_bad or begins_with_noun(node, first):
                line = getattr(node, "lineno", 1)
                findings.append((path.relative_to(PACKAGE).as_posix(), line, first))
    return findings


def begins_with_noun(node: ast.AST, first_line: str) -> bool:
    """Return whether a first line is a function's and begins with a noun, not with a verb."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    is_value = any(word in decorator for decorator in decorators for word in NOUN_DECORATORS)
    return not is_value and first_line.startswith(NOUN_OPENERS)


def python_files(folder: str) -> list[Path]:
    """Return the Python files below a folder, without those of environments such as ``.venv``."""
    return [
        path
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]


def bad_openers(folder: str) -> list[Finding]:
    """Return the docstrings in a folder that begin as none may.

    Those of constants and attributes count, too. The files are searched as text, which takes a
    tenth of the time that reading them takes.
    """
    findings: list[Finding] = []
    for path in python_files(folder):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        for match in _OPENED.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            findings.append((name, line, match[0].strip()))
    return findings


def rooms() -> list[str]:
    """Return the rooms of the package."""
    return sorted({room_of(path) for path in files()})


def write_table() -> None:
    """Lower the numbers of ``scripts/names.toml`` to what is found; raise none."""
    text = TABLE.read_text(encoding="utf-8")
    table = read_table()
    head = text.split("[names]\n", 1)[0]
    parts = [head]
    for title, find in (("names", bad_names), ("first_lines", bad_first_lines)):
        rows = Counter({room: len(find(room)) for room in rooms()})
        old = table.get(title, {})
        lines = [
            f"{room} = {min(count, old.get(room, count))}"
            for room, count in sorted(rows.items())
            if count
        ]
        parts.append(f"[{title}]\n" + "".join(f"{line}\n" for line in lines))
    TABLE.write_text(parts[0] + "\n".join(parts[1:]), encoding="utf-8")


def main(arguments: list[str]) -> None:
    """List the findings of the rooms that are named, or of all."""
    if "--write" in arguments:
        write_table()
        return
    for room in arguments or rooms():
        for name, line, text in [*bad_names(room), *bad_first_lines(room)]:
            print(f"mlx_tools/{name}:{line}: {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
