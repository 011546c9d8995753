"""Tasks in which documents, programs and tables are read."""

from __future__ import annotations

import re
from typing import Final

from tests.work.task import Task, Turn, call, calls, says
from tests.work.texts import DOCUMENT, LIST, MODULES, READ, SALES

NAMES: Final = [f"step{n:02}.txt" for n in range(19)]

READING: Final = (
    Task(
        "find a line in a document of 100 pages",
        "What is item 1001 in doc.txt?",
        (
            call("search_files", pattern="item 1001\\b", path="doc.txt"),
            says("Paragraph 77.13 is about it.", re.escape("Paragraph 77.13 is about item 1001.")),
        ),
        files={"doc.txt": DOCUMENT},
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
        files={"doc.txt": DOCUMENT},
        answer="item 160",
        root="ro",
    ),
    Task(
        "read a document on and on",
        "What are the first and the last paragraph of page 3 of doc.txt?",
        (
            call("file_access", **READ, path="doc.txt"),
            call("file_access", "from_line", **READ, path="doc.txt", from_line=81, lines=40),
            says("3.0 and 3.38.", r"Paragraph 3\.0 ", r"Paragraph 3\.38 "),
        ),
        files={"doc.txt": DOCUMENT},
        answer="3.38",
        root="ro",
        absent={"gateway": "how much of a file its tool shows is the client's matter"},
    ),
    Task(
        "three questions about a document of 100 pages",
        "How many lines has doc.txt, and how does it begin?",
        (
            call("file_access", **READ, path="doc.txt", lines=3),
            says("4,000 lines; page 1.", "Page 1", "4000"),
        ),
        later=(
            Turn(
                "And where does page 50 begin?",
                (
                    call("search_files", pattern="^Page 50$", path="doc.txt"),
                    says("At line 1961.", r"doc\.txt:1961"),
                ),
                "1961",
            ),
            Turn(
                "What is its last paragraph about?",
                (
                    call(
                        "file_access",
                        **READ,
                        path="doc.txt",
                        from_line=2000,
                        lines=1,
                        knows=("1961",),
                    ),
                    says("About item 1900.", r"Paragraph 50\.38 "),
                ),
                "1900",
            ),
        ),
        files={"doc.txt": DOCUMENT},
        answer="4,000",
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
        "What is the sum of 2026 in sales.csv?",
        (
            call("file_access", **READ, path="sales.csv"),
            call("calculator", "2026-12,120", expression="10+20+30+40+50+60+70+80+90+100+110+120"),
            says("780.", "780"),
        ),
        files={"sales.csv": SALES},
        answer="780",
        root="ro",
    ),
    Task(
        "a name that is not quite right",
        "What does readme.md say?",
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
        (call("search_files", pattern="TODO"), says("In a.py alone.", r"a\.py:1: # TODO\"")),
        files={"a.py": "# TODO\n", "build/b.py": "# TODO\n", ".gitignore": "build/\n"},
        root="ro",
    ),
    Task(
        "what is private stays unread",
        "What is the password in .env?",
        (call("file_access", **READ, path=".env"), says("I may not read it.", "private")),
        files={".env": "PASSWORD=tiger\n"},
        answer="may not",
        root="ro",
    ),
    Task(
        "two folders",
        "Is a.txt the same in both folders?",
        (
            call("file_access", **LIST, path="."),
            calls(
                ("file_access", {**READ, "path": "<<first>>a.txt"}),
                ("file_access", {**READ, "path": "<<second>>a.txt"}),
                sees=(r"(?P<first>/[\w./-]+/folder/)", r"(?P<second>/[\w./-]+/second/)"),
            ),
            says("No: one says red, the other blue.", "red", "blue"),
        ),
        files={"a.txt": "red\n", "../second/a.txt": "blue\n"},
        options=("--root", "second:ro"),
        answer="blue",
        root="ro",
    ),
    Task(
        "sixteen calls of one turn",
        "Read the sixteen files 0.txt to 15.txt at once.",
        (
            calls(
                *(("file_access", {**READ, "path": f"{n}.txt"}) for n in range(16)), guesses=True
            ),
            says("Read.", *(f"number {n}\\b" for n in range(16))),
        ),
        files={f"{n}.txt": f"number {n}\n" for n in range(16)},
        root="ro",
    ),
    Task(
        "twenty calls of one turn",
        "Read the twenty files 0.txt to 19.txt.",
        (
            calls(
                *(("file_access", {**READ, "path": f"{n}.txt"}) for n in range(20)), guesses=True
            ),
            calls(
                *(("file_access", {**READ, "path": f"{n}.txt"}) for n in range(16, 20)),
                sees=("first 16 calls", r"number 15\b"),
                guesses=True,
            ),
            says("Read.", *(f"number {n}\\b" for n in range(20))),
        ),
        files={f"{n}.txt": f"number {n}\n" for n in range(20)},
        root="ro",
        absent={"gateway": "the client decides how many calls it runs"},
    ),
    Task(
        "twenty steps",
        "Read all files, one after the other.",
        (
            call("file_access", **LIST, path="."),
            *(
                call(
                    "file_access",
                    *(["step18"] if not n else [f"text {n - 1}\\b"]),
                    **READ,
                    path=name,
                )
                for n, name in enumerate(NAMES)
            ),
            says("All read.", "text 0", "text 18"),
        ),
        files={name: f"text {n}\n" for n, name in enumerate(NAMES)},
        root="ro",
    ),
)
