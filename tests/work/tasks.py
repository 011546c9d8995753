"""A day's work as data: what a model that knows what to do reads and writes, and what comes of it.

Each task is asked at the defaults, with the documented options alone. A step of the script is what
the model writes, and what it must have been shown before: a model can only do what it can see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One completion: ``text``, once all patterns in ``sees`` are in the prompt."""

    text: str
    sees: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        name: in words.
        question: what the person asks.
        steps: what the model writes, in order.
        files: what stands in the folder before.
        after: what must stand there afterwards: the whole text, None for a file that is gone.
        answer: a pattern that the answer fits.
        options: of the command line, besides the folder.
        root: ``rw``, ``ro`` or empty for no folder.
        tokens: the most tokens of all prompts together, at three characters each.
        status: how the run ends.
    """

    name: str
    question: str
    steps: tuple[Step, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str | None] = field(default_factory=dict)
    answer: str = "."
    options: tuple[str, ...] = ()
    root: str = "rw"
    tokens: int = 20_000
    status: str = "answered"


def call(tool: str, *sees: str, **arguments: Any) -> Step:
    """A step that calls one tool."""
    return Step(_line({"type": "tool_call", "name": tool, "arguments": arguments}), sees)


def calls(*made: tuple[str, Mapping[str, Any]], sees: tuple[str, ...] = ()) -> Step:
    """A step that calls several tools."""
    lines = ({"type": "tool_call", "name": tool, "arguments": dict(a)} for tool, a in made)
    return Step("\n".join(map(_line, lines)), sees)


def says(content: str, *sees: str) -> Step:
    """A step that answers."""
    return Step(_line({"type": "final_answer", "content": content}), sees)


def _line(message: Mapping[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))


def program(lines: int, name: str = "part") -> str:
    """A program of so many lines, no two of them alike."""
    body = (f"    total += {number} * factor  # {name} {number}\n" for number in range(lines - 3))
    return f"def {name}(factor):\n    total = 0\n{''.join(body)}    return total\n"


def pages(count: int) -> str:
    """A document of pages of 40 lines."""
    return "".join(
        f"Page {page}\n"
        + "".join(f"Paragraph {page}.{line} is about item {page * line}.\n" for line in range(39))
        for page in range(1, count + 1)
    )


READ, LIST = {"operation": "read"}, {"operation": "list"}
MODULES = {
    f"shop/m{n}.py": f"from shop import old_name\n\nprint(old_name({n}))\n" for n in range(5)
}
CSV = "".join(f"2026-{m:02},{m * 10}\n" for m in range(1, 13))
LONG = program(600)
CHANGED = LONG.replace("    total += 444 * factor", "    total += 445 * factor")
DOC = pages(100)
CONFIG = "host = local\r\nport = 80\r\ndebug = no\r\n"


def _writing() -> list[Task]:
    return [
        Task(
            f"write a program of {lines} lines",
            "Write the program into main.py.",
            (
                call("create_file", path="main.py", content=program(lines)),
                says("Written.", r"main\.py"),
            ),
            after={"main.py": program(lines)},
        )
        for lines in (20, 350, 600)
    ] + [
        Task(
            "write a file of equal lines",
            "Write 1,000 times the same line into same.txt.",
            (
                call("create_file", path="same.txt", content="all work and no play\n" * 1_000),
                says("Written."),
            ),
            after={"same.txt": "all work and no play\n" * 1_000},
        ),
        Task(
            "write into a folder that is not there yet",
            "Put a plan into docs/plan/first.md.",
            (
                call("create_file", path="docs/plan/first.md", content="# Plan\n"),
                says("It is in docs/plan/first.md."),
            ),
            after={"docs/plan/first.md": "# Plan\n"},
        ),
        Task(
            "answer in two thousand words",
            "Tell me all about tea.",
            (says(" ".join(f"Fact {n} of tea is worth a line." for n in range(290))),),
            answer="Fact 289",
            root="",
        ),
        Task(
            "write three files in one turn",
            "Make a, b and c.",
            (
                calls(*(("create_file", {"path": f"{n}.txt", "content": n}) for n in "abc")),
                says("Made.", r"a\.txt", r"c\.txt"),
            ),
            after={"a.txt": "a", "b.txt": "b", "c.txt": "c"},
        ),
        Task(
            "replace a whole file",
            "Replace notes.txt by one line.",
            (
                call("file_access", **READ, path="notes.txt"),
                call("file_access", "old", operation="write", path="notes.txt", content="new\n"),
                says("Replaced."),
            ),
            files={"notes.txt": "old\n"},
            after={"notes.txt": "new\n"},
        ),
        Task(
            "delete a file",
            "Delete junk.txt.",
            (call("file_access", operation="delete", path="junk.txt"), says("Deleted.")),
            files={"junk.txt": "x\n"},
            after={"junk.txt": None},
        ),
    ]


def _changing() -> list[Task]:
    old, new = "    total += 444 * factor", "    total += 445 * factor"
    return [
        Task(
            "change one line of a file of 600 lines",
            "In long.py the factor 444 must be 445.",
            (
                call("search_files", pattern="444 \\* factor"),
                call(
                    "file_access", r"long\.py:447", **READ, path="long.py", from_line=440, lines=12
                ),
                call("edit_file", "445", path="long.py", old=old, new=new),
                says("Changed line 447.", "447"),
            ),
            files={"long.py": LONG},
            after={"long.py": CHANGED},
        ),
        Task(
            "change a line without reading the file first",
            "Rename the key port to tcp_port.",
            (
                call("edit_file", path="app.ini", old="port = 80", new="tcp_port = 80"),
                says("Renamed."),
            ),
            files={"app.ini": CONFIG},
            after={"app.ini": CONFIG.replace("port", "tcp_port")},
        ),
        Task(
            "change all places of a word in one file",
            "Call x y everywhere in a.py.",
            (
                call("edit_file", path="a.py", old="x", new="y"),
                call("edit_file", "3 times", path="a.py", old="x", new="y", all=True),
                says("Done."),
            ),
            files={"a.py": "x = 1\nprint(x)\nx += 2\n"},
            after={"a.py": "y = 1\nprint(y)\ny += 2\n"},
        ),
        Task(
            "change a name in five files",
            "Rename old_name to new_name in shop.",
            (
                call("search_files", pattern="old_name"),
                calls(
                    *(
                        (
                            "edit_file",
                            {"path": p, "old": "old_name", "new": "new_name", "all": True},
                        )
                        for p in MODULES
                    ),
                    sees=(r"shop/m4\.py:3",),
                ),
                call("search_files", pattern="old_name"),
                says("Renamed in five files."),
            ),
            files=MODULES,
            after={p: t.replace("old_name", "new_name") for p, t in MODULES.items()},
        ),
        Task(
            "find the right place after a wrong guess",
            "The greeting must be polite.",
            (
                call("edit_file", path="hi.py", old="print('hello')", new="print('Good day')"),
                call(
                    "edit_file",
                    r'print\(\\?\\"hello',
                    path="hi.py",
                    old='print("hello")',
                    new='print("Good day")',
                ),
                says("It is polite now."),
            ),
            files={"hi.py": 'def greet():\n    print("hello")\n'},
            after={"hi.py": 'def greet():\n    print("Good day")\n'},
        ),
        Task(
            "add a line at the end of a file",
            "Add bread to the list.",
            (
                call("file_access", **READ, path="list.txt"),
                call("edit_file", "milk", path="list.txt", old="milk\n", new="milk\nbread\n"),
                says("Added."),
            ),
            files={"list.txt": "eggs\nmilk\n"},
            after={"list.txt": "eggs\nmilk\nbread\n"},
        ),
        Task(
            "two edits of one file in one turn",
            "Set host to remote and debug to yes.",
            (
                calls(
                    ("edit_file", {"path": "app.ini", "old": "host = local", "new": "host = far"}),
                    ("edit_file", {"path": "app.ini", "old": "debug = no", "new": "debug = yes"}),
                ),
                says("Set."),
            ),
            files={"app.ini": CONFIG},
            after={"app.ini": CONFIG.replace("local", "far").replace("no", "yes")},
        ),
    ]


def _reading() -> list[Task]:
    line = "Paragraph 77.13 is about item 1001."
    return [
        Task(
            "find a line in a document of 100 pages",
            "What is item 1001?",
            (
                call("search_files", pattern="item 1001\\b", path="doc.txt"),
                says("Paragraph 77.13 is about it.", re.escape(line)),
            ),
            files={"doc.txt": DOC},
            answer="77.13",
            root="ro",
        ),
        Task(
            "read line 611 of a document",
            "What does line 611 of doc.txt say?",
            (
                call("file_access", **READ, path="doc.txt", from_line=611, lines=1),
                says("It is about item 160.", r"Paragraph 16\.9 "),
            ),
            files={"doc.txt": DOC},
            answer="item 160",
            root="ro",
        ),
        Task(
            "read a document on and on",
            "What are the first and the last paragraph of page 3?",
            (
                call("file_access", **READ, path="doc.txt"),
                call("file_access", "from_line", **READ, path="doc.txt", from_line=81, lines=40),
                says("3.0 and 3.38.", r"Paragraph 3\.0 ", r"Paragraph 3\.38 "),
            ),
            files={"doc.txt": DOC},
            answer="3.38",
            root="ro",
        ),
        Task(
            "list the programs of a folder",
            "Which Python files are there?",
            (
                call("file_access", **LIST, path=".", pattern="**/*.py"),
                says("Five, all in shop.", r"shop/m0\.py", r"shop/m4\.py"),
            ),
            files={**MODULES, "readme.txt": "x\n"},
            answer="Five",
            root="ro",
        ),
        Task(
            "sum up a table",
            "What is the sum of 2026?",
            (
                call("file_access", **READ, path="sales.csv"),
                call(
                    "calculator", "2026-12,120", expression="10+20+30+40+50+60+70+80+90+100+110+120"
                ),
                says("780.", "780"),
            ),
            files={"sales.csv": CSV},
            answer="780",
            root="ro",
        ),
        Task(
            "a name that is not quite right",
            "What does the readme say?",
            (
                call("file_access", **READ, path="readme.md"),
                call("file_access", r"README\.md", **READ, path="README.md"),
                says("Hello.", "Welcome"),
            ),
            files={"README.md": "Welcome\n"},
            root="ro",
        ),
        Task(
            "a search that is no regular expression",
            "Where is f( called?",
            (call("search_files", pattern="f("), says("In a.py, line 2.", r"a\.py:2")),
            files={"a.py": "def g():\n    return f(1)\n"},
            answer="line 2",
            root="ro",
        ),
        Task(
            "what git ignores is not searched",
            "Where is TODO?",
            (call("search_files", pattern="TODO"), says("In a.py alone.", r"a\.py:1")),
            files={"a.py": "# TODO\n", "build/b.py": "# TODO\n", ".gitignore": "build/\n"},
            root="ro",
        ),
    ]


def _long() -> list[Task]:
    names = [f"step{n:02}.txt" for n in range(19)]
    looks = tuple(call("file_access", **READ, path=name) for name in names)
    return [
        Task(
            "twenty steps",
            "Read all files, one after the other.",
            (*looks, says("All read.", "text 18")),
            files={name: f"text {n}\n" for n, name in enumerate(names)},
            root="ro",
            tokens=60_000,
        ),
        Task(
            "ten steps of writing",
            "Make ten files, one after the other.",
            (
                *(call("create_file", path=f"{n}.txt", content=f"{n}\n") for n in range(10)),
                says("Made."),
            ),
            after={f"{n}.txt": f"{n}\n" for n in range(10)},
            tokens=40_000,
        ),
        Task(
            "sixteen calls of one turn",
            "Read sixteen files at once.",
            (
                calls(*(("file_access", {**READ, "path": f"{n}.txt"}) for n in range(16))),
                says("Read.", *(f"number {n}" for n in range(16))),
            ),
            files={f"{n}.txt": f"number {n}\n" for n in range(16)},
            root="ro",
        ),
        Task(
            "a tool that fails twice",
            "What is 1/0, or else 1/1?",
            (
                call("calculator", expression="1/0"),
                call("calculator", expression="1 +"),
                call("calculator", expression="1/1"),
                says("1."),
            ),
            root="",
        ),
        Task(
            "a model that thinks before it acts",
            "What is 6 times 7?",
            (
                Step("<think>I multiply.</think>" + call("calculator", expression="6*7").text),
                says("42.", "42"),
            ),
            root="",
            answer="42",
        ),
        Task(
            "a model that loops in an answer",
            "Go on and on.",
            (Step('{"type":"final_answer","content":"' + "over and over " * 5_000),),
            root="",
            answer="over and over",
        ),
        Task(
            "a model that loops in a thought",
            "What is 6 times 7?",
            (Step("<think>" + "hm, " * 5_000), says("42.")),
            root="",
            answer="42",
        ),
        Task(
            "a model that stops in the middle of a call",
            "What is 6 times 7?",
            (
                Step('{"type":"tool_call","name":"calculator","arguments":{"expression":"6*'),
                Step('6*7"}}', (r'"expression":"$',)),
                says("42.", "42"),
            ),
            root="",
            answer="42",
        ),
        Task(
            "a folder that may only be read",
            "Write a file.",
            (
                call("create_file", path="a.txt", content="x"),
                Step('"final_answer","content":"I may not write here."}', (r'{"type":$',)),
            ),
            root="ro",
            after={"a.txt": None},
        ),
        Task(
            "a function of one's own",
            "How large is 3 by 4?",
            (call("area", width=3, height=4), says("12.", "12.0")),
            files={
                "mine.py": "def area(width: float, height: float) -> float:\n"
                '    """Area of a rectangle."""\n    return width * height\n'
            },
            options=("--functions", "mine.py"),
            root="",
            answer="12",
        ),
    ]


TASKS = (*_writing(), *_changing(), *_reading(), *_long())
