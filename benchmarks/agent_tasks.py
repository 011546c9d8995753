"""Tasks that every agent can do, and how each agent's tools are called for them.

A task says what is to be done: read, search, edit, run. An agent's dialect turns that into a call
of its own tools, as its prompt tells a model to use them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Call = tuple[str, dict[str, Any]]
"""A tool's name and the arguments."""


@dataclass(frozen=True)
class Read:
    """Reads a file, from a line on if one is given."""

    path: str
    first: int | None = None
    lines: int | None = None


@dataclass(frozen=True)
class Search:
    """Searches all files below a folder, or one file."""

    pattern: str
    path: str | None = None


@dataclass(frozen=True)
class Find:
    """Lists the files whose names end so."""

    ending: str


@dataclass(frozen=True)
class Write:
    """Makes a file."""

    path: str
    content: str


@dataclass(frozen=True)
class Edit:
    """Replaces a text that occurs once."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Replace:
    """Replaces a text everywhere; ``places`` are the same as edits of texts that occur once."""

    path: str
    old: str
    new: str
    places: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Add:
    """Adds numbers."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """Runs a program."""

    command: tuple[str, ...]


Act = Read | Search | Find | Write | Edit | Replace | Add | Run


def _set(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def ours(act: Act) -> Call:
    """A call of the tools that ``mlx-tools ask --root .:rw`` offers."""
    match act:
        case Read(path, first, lines):
            arguments = _set(operation="read", path=path, from_line=first, lines=lines)
            return "file_access", arguments
        case Search(pattern, path):
            return "search_files", _set(pattern=pattern, path=path)
        case Find(ending):
            return "file_access", {"operation": "list", "path": ".", "pattern": f"**/*{ending}"}
        case Write(path, content):
            return "create_file", {"path": path, "content": content}
        case Edit(path, old, new):
            return "edit_file", {"path": path, "old": old, "new": new}
        case Replace(path, old, new):
            return "edit_file", {"path": path, "old": old, "new": new, "all": True}
        case Add(numbers):
            return "calculator", {"expression": "+".join(map(str, numbers))}
        case Run((program, *arguments)):
            return "run_command", {"program": program, "arguments": arguments}
    raise TypeError(act)


def pi(act: Act) -> Call:
    """A call of pi's tools: its prompt wants ``bash`` for searching and listing."""
    match act:
        case Read(path, first, lines):
            return "read", _set(path=path, offset=first, limit=lines)
        case Search(pattern, path):
            where = path or "."
            flags = "-n" if path else "-rn"
            return "bash", {"command": f"grep {flags} {shlex.quote(pattern)} {where}"}
        case Find(ending):
            return "bash", {"command": f"find . -name '*{ending}'"}
        case Write(path, content):
            return "write", {"path": path, "content": content}
        case Edit(path, old, new):
            return "edit", {"path": path, "edits": [{"oldText": old, "newText": new}]}
        case Replace(path, _, _, places):
            edits = [{"oldText": old, "newText": new} for old, new in places]
            return "edit", {"path": path, "edits": edits}
        case Add(numbers):
            return "bash", {"command": f"echo $(({'+'.join(map(str, numbers))}))"}
        case Run(command):
            return "bash", {"command": shlex.join(command)}
    raise TypeError(act)


def opencode(act: Act) -> Call:
    """A call of opencode's tools. Relative paths are the shorter of those that it takes."""
    match act:
        case Read(path, first, lines):
            return "read", _set(filePath=path, offset=first, limit=lines)
        case Search(pattern, path):
            return "grep", _set(pattern=pattern, path=path)
        case Find(ending):
            return "glob", {"pattern": f"**/*{ending}"}
        case Write(path, content):
            return "write", {"content": content, "filePath": path}
        case Edit(path, old, new):
            return "edit", {"filePath": path, "oldString": old, "newString": new}
        case Replace(path, old, new):
            one = {"filePath": path, "oldString": old, "newString": new}
            return "edit", {**one, "replaceAll": True}
        case Add() | Run():
            return pi(act)
    raise TypeError(act)


@dataclass(frozen=True)
class Turn:
    """A turn of the model: calls, or an answer, once all patterns in ``sees`` are in the results of
    the turn before."""

    acts: tuple[Act, ...] = ()
    answer: str = ""
    sees: tuple[str, ...] = ()


def do(*acts: Act, sees: tuple[str, ...] = ()) -> Turn:
    return Turn(acts, sees=sees)


def say(answer: str, *sees: str) -> Turn:
    return Turn(answer=answer, sees=sees)


@dataclass(frozen=True)
class Task:
    """A task: what is asked, the model's turns, the files before, and those after it.

    ``programs`` are what it must be allowed to run.
    """

    name: str
    question: str
    turns: tuple[Turn, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    programs: str = ""


def program(lines: int) -> str:
    """A program of so many lines, no two of them alike."""
    body = (f"    total += {number} * factor  # part {number}\n" for number in range(lines - 3))
    return f"def part(factor):\n    total = 0\n{''.join(body)}    return total\n"


def document(pages: int) -> str:
    """A document of pages of 40 lines."""
    return "".join(
        f"Page {page}\n"
        + "".join(f"Paragraph {page}.{line} is about item {page * line}.\n" for line in range(39))
        for page in range(1, pages + 1)
    )


MODULES: Final = {
    f"shop/m{n}.py": f"from shop import old_name\n\nprint(old_name({n}))\n" for n in range(5)
}
RENAMES: Final = (
    ("import old_name", "import new_name"),
    ("print(old_name", "print(new_name"),
)
LONG: Final = program(600)
SALES: Final = "".join(f"2026-{month:02},{month * 10}\n" for month in range(1, 13))
TESTS: Final = """import unittest

from sums import add


class TestSums(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(add(1, 2), 3)
"""
WRONG: Final = "def add(a, b):\n    return a - b\n"
UNITTEST: Final = Run(("python3", "-m", "unittest", "-q"))

TASKS: Final = (
    Task(
        "answer without a tool",
        "What is the capital of Portugal?",
        (say("Lisbon."),),
    ),
    Task(
        "write a program of 350 lines",
        "Write the program into main.py.",
        (do(Write("main.py", program(350))), say("Written.", r"main\.py")),
        after={"main.py": program(350)},
    ),
    Task(
        "change one line of a file of 600 lines",
        "In long.py the factor 444 must be 445.",
        (
            do(Search("444 \\* factor")),
            do(Read("long.py", 440, 12), sees=("447",)),
            do(
                Edit("long.py", "    total += 444 * factor", "    total += 445 * factor"),
                sees=(r"444 \* factor",),
            ),
            say("Changed line 447."),
        ),
        files={"long.py": LONG},
        after={"long.py": LONG.replace("total += 444 *", "total += 445 *")},
    ),
    Task(
        "rename in five files",
        "Rename old_name to new_name in shop.",
        (
            do(Search("old_name")),
            do(
                *(Replace(path, "old_name", "new_name", RENAMES) for path in MODULES),
                sees=(r"m0\.py", r"m4\.py"),
            ),
            do(Search("new_name")),
            say("Renamed in five files.", r"m0\.py", r"m4\.py"),
        ),
        files=MODULES,
        after={path: text.replace("old_name", "new_name") for path, text in MODULES.items()},
    ),
    Task(
        "search a folder",
        "Where is old_name called with 3?",
        (do(Search("old_name.3")), say("In shop/m3.py, line 3.", r"m3\.py")),
        files=MODULES,
    ),
    Task(
        "list the programs of a folder",
        "Which Python files are there?",
        (do(Find(".py")), say("Five, all in shop.", r"m0\.py", r"m4\.py")),
        files={**MODULES, "readme.txt": "x\n"},
    ),
    Task(
        "sum up a table",
        "What is the sum of 2026?",
        (
            do(Read("sales.csv")),
            do(Add(tuple(range(10, 121, 10))), sees=("2026-12,120",)),
            say("780.", "780"),
        ),
        files={"sales.csv": SALES},
    ),
    Task(
        "read one page of a document of 100",
        "What are the first and the last paragraph of page 50?",
        (
            do(Search("Page 50", "doc.txt")),
            do(Read("doc.txt", 1961, 40), sees=("1961",)),
            say("50.0 and 50.38.", r"Paragraph 50\.0 ", r"Paragraph 50\.38 "),
        ),
        files={"doc.txt": document(100)},
    ),
    Task(
        "begin to read a long document",
        "What is the second paragraph of doc.txt about?",
        (do(Read("doc.txt")), say("It is about item 1.", r"Paragraph 1\.1 is about item 1\.")),
        files={"doc.txt": document(100)},
    ),
    Task(
        "run the tests and mend the fault",
        "Run the unit tests and mend what fails.",
        (
            do(UNITTEST),
            do(Read("sums.py"), sees=("-1 != 3",)),
            do(Edit("sums.py", "a - b", "a + b"), sees=("a - b",)),
            do(UNITTEST),
            say("The tests pass.", "OK"),
        ),
        files={"sums.py": WRONG, "test_sums.py": TESTS},
        after={"sums.py": WRONG.replace("-", "+")},
        programs="python3",
    ),
    Task(
        "ten steps of writing",
        "Make ten files, one after the other.",
        (*(do(Write(f"{n}.txt", f"{n}\n")) for n in range(10)), say("Made.")),
        after={f"{n}.txt": f"{n}\n" for n in range(10)},
    ),
    Task(
        "ten steps of reading",
        "Read all files, one after the other.",
        (*(do(Read(f"step{n}.txt")) for n in range(10)), say("All read.", "text 9")),
        files={f"step{n}.txt": f"text {n}\n" for n in range(10)},
    ),
)
