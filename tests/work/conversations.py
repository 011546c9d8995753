"""Tasks of many questions."""

from __future__ import annotations

from typing import Final

from tests.work.task import Task, Turn, call, calls, says
from tests.work.texts import DOCUMENT, READ, program

HAIKU: Final = "An old silent pond\n"


def page_question(page: int) -> Turn:
    """A question about a page of the document, and 700 characters of an answer."""
    first = page * 40 - 39
    answer = f"Page {page} begins with {page}.0. " + " ".join(
        f"Item {page * line} is in {page}.{line}." for line in range(1, 30)
    )
    return Turn(
        f"What is on page {page} of doc.txt?",
        (
            call("file_access", **READ, path="doc.txt", from_line=first, lines=40),
            says(answer, rf"Paragraph {page}\.0 ", rf"Paragraph {page}\.38 "),
        ),
        rf"begins with {page}\.0",
    )


THIRTY: Final = [page_question(page) for page in range(1, 31)]

CONVERSATIONS: Final = (
    Task(
        "thirty questions in a context of 8,192 tokens",
        THIRTY[0].question,
        THIRTY[0].steps,
        answer=THIRTY[0].answer,
        later=tuple(THIRTY[1:]),
        files={"doc.txt": DOCUMENT},
        root="ro",
        context=8_192,
        absent={"gateway": "the client decides what it leaves out of a conversation"},
        heavy=("ask",),
    ),
    Task(
        "change what was just written",
        "Write the first line of a haiku into haiku.txt.",
        (
            call("create_file", path="haiku.txt", content=HAIKU),
            says("Written.", r"haiku\.txt"),
        ),
        later=(
            Turn(
                "Call the pond a lake.",
                (
                    call("edit_file", path="haiku.txt", old="pond", new="lake"),
                    says("It is a lake now.", r"haiku\.txt"),
                ),
                "lake",
            ),
            Turn("Thank you!", (says("You are welcome."),), "welcome"),
        ),
        after={"haiku.txt": HAIKU.replace("pond", "lake")},
    ),
    Task(
        "a call that does not fit into the context",
        "Write the program into main.py.",
        (
            call("create_file", path="main.py", content=program(600)),
            call("create_file", "cut off", path="main.py", content=program(100)),
            says("I wrote a shorter one.", r"main\.py"),
        ),
        after={"main.py": program(100)},
        context=8_192,
        answer="shorter",
        absent={"gateway": "the client is told that the turn was cut off, and decides"},
    ),
    Task(
        "take back what was changed",
        "Replace notes.txt by one line, and delete junk.txt.",
        (
            call("file_access", **READ, path="notes.txt"),
            calls(
                ("file_access", {"operation": "write", "path": "notes.txt", "content": "new\n"}),
                ("file_access", {"operation": "delete", "path": "junk.txt"}),
                sees=("old",),
            ),
            says("Done.", r"notes\.txt", r"junk\.txt"),
        ),
        files={"notes.txt": "old\n", "junk.txt": "x\n"},
        leaves=((("undo", "last", "--yes", "--json"), "notes.txt"),),
        after={"notes.txt": "old\n", "junk.txt": "x\n"},
        absent={"gateway": "the client changes files itself"},
    ),
)
