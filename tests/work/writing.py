"""Tasks in which files and answers are written."""

from __future__ import annotations

from typing import Final

from tests.work.task import Task, call, calls, says
from tests.work.texts import READ, program

SAME: Final = "all work and no play\n" * 1_000
LETTER: Final = 'Liebe Zoë,\n\n„Bücher" sind da: 日本語, العربية, 🍞 und C:\\neu\\t.txt.\n'

PROGRAMS = tuple(
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
)

WRITING: Final = (
    *PROGRAMS,
    Task(
        "write a file of equal lines",
        "Write 1,000 times the same line into same.txt.",
        (call("create_file", path="same.txt", content=SAME), says("Written.", r"same\.txt")),
        after={"same.txt": SAME},
    ),
    Task(
        "write into a folder that is not there yet",
        "Put a plan into docs/plan/first.md.",
        (
            call("create_file", path="docs/plan/first.md", content="# Plan\n"),
            says("It is in docs/plan/first.md.", r"docs/plan/first\.md"),
        ),
        after={"docs/plan/first.md": "# Plan\n"},
    ),
    Task(
        "write names and text of many scripts",
        "Write the letter to Zoë into Briefe/Zoë – März.txt.",
        (
            call("create_file", path="Briefe/Zoë – März.txt", content=LETTER),
            call("file_access", "Zoë – März", **READ, path="Briefe/Zoë – März.txt"),
            says("It is written: 🍞.", "日本語", "العربية", "🍞"),
        ),
        after={"Briefe/Zoë – März.txt": LETTER},
        answer="🍞",
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
            says("Replaced.", r"notes\.txt"),
        ),
        files={"notes.txt": "old\n"},
        after={"notes.txt": "new\n"},
    ),
    Task(
        "delete a file",
        "Delete junk.txt.",
        (
            call("file_access", operation="delete", path="junk.txt"),
            says("Deleted.", r"junk\.txt"),
        ),
        files={"junk.txt": "x\n"},
        after={"junk.txt": None},
    ),
    Task(
        "ten steps of writing",
        "Make ten files, one after the other.",
        (
            *(call("create_file", path=f"{n}.txt", content=f"{n}\n") for n in range(10)),
            says("Made.", r"0\.txt", r"9\.txt"),
        ),
        after={f"{n}.txt": f"{n}\n" for n in range(10)},
    ),
    Task(
        "a folder that may only be read",
        "Write a file.",
        (
            call("create_file", path="a.txt", content="x", guesses=True),
            says("I may not write here.", knows=(r'{"type":$',)),
        ),
        root="ro",
        after={"a.txt": None},
        answer="may not",
        absent={"gateway": "the client decides what its tools may do"},
    ),
    Task(
        "a dry run",
        "In app.py the port must be 81.",
        (
            call("file_access", **READ, path="app.py"),
            call("edit_file", "port = 80", path="app.py", old="port = 80", new="port = 81"),
            says("One line would change.", r"dry_run", r"port = 81"),
        ),
        files={"app.py": "port = 80\n"},
        after={"app.py": "port = 80\n"},
        answer="would",
        options=("--dry-run",),
        absent={"gateway": "the client decides what its tools may do"},
    ),
    Task(
        "a change that the person refuses for a reason",
        "In app.py the port must be 81.",
        (
            call("file_access", **READ, path="app.py"),
            call("edit_file", "port = 80", path="app.py", old="port = 80", new="port = 81"),
            says("I left it, since 81 is taken.", "81 is taken"),
        ),
        files={"app.py": "port = 80\n"},
        after={"app.py": "port = 80\n"},
        answer="81 is taken",
        reason="81 is taken",
        absent={"gateway": "the client asks its own user"},
    ),
)
