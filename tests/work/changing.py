"""Tasks in which files are changed."""

from __future__ import annotations

import unicodedata
from typing import Final

from tests.work.task import Task, call, calls, says
from tests.work.texts import LIST, MODULES, READ, SETTINGS, program

LONG: Final = program(600)
OLD, NEW = "    total += 444 * factor", "    total += 445 * factor"
FUNCTION: Final = program(40, "price")
SHORTER: Final = "def price(factor):\n    return sum(range(37)) * factor\n"
SHOP: Final = program(60, "first") + "\n\n" + FUNCTION + "\n\n" + program(60, "last")
SCREENSHOT: Final = "Notes 10.30\u202fPM.txt"
"""As macOS names screenshots: with a narrow blank that no keyboard has."""

CHANGING: Final = (
    Task(
        "change one line of a file of 600 lines",
        "In long.py the factor 444 must be 445.",
        (
            call("search_files", pattern="444 \\* factor"),
            call("file_access", r"long\.py:447", **READ, path="long.py", from_line=440, lines=12),
            call("edit_file", r"444 \* factor", path="long.py", old=OLD, new=NEW),
            says("Changed line 447.", "447"),
        ),
        files={"long.py": LONG},
        after={"long.py": LONG.replace(OLD, NEW)},
        answer="447",
    ),
    Task(
        "change a file of three pages",
        "Make the function price in shop.py shorter.",
        (
            call("file_access", **READ, path="shop.py"),
            call("edit_file", "price 36", path="shop.py", old=FUNCTION, new=SHORTER),
            says("It has two lines now.", r"shop\.py"),
        ),
        files={"shop.py": SHOP},
        after={"shop.py": SHOP.replace(FUNCTION, SHORTER)},
        answer="two lines",
    ),
    Task(
        "change a line without reading the file first",
        "In app.ini rename the key port = 80 to tcp_port.",
        (
            call("edit_file", path="app.ini", old="port = 80", new="tcp_port = 80"),
            says("Renamed.", r"app\.ini"),
        ),
        files={"app.ini": SETTINGS},
        after={"app.ini": SETTINGS.replace("port", "tcp_port")},
    ),
    Task(
        "change all places of a word in one file",
        "Call x y everywhere in a.py.",
        (
            call("edit_file", path="a.py", old="x", new="y"),
            call("edit_file", "3 times", path="a.py", old="x", new="y", all=True),
            says("Done.", r"a\.py"),
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
                    ("edit_file", {"path": p, "old": "old_name", "new": "new_name", "all": True})
                    for p in MODULES
                ),
                sees=(r"shop/m4\.py:3",),
            ),
            call("search_files", r"shop/m4\.py", pattern="old_name"),
            says("Renamed in five files."),
        ),
        files=MODULES,
        after={p: text.replace("old_name", "new_name") for p, text in MODULES.items()},
        answer="five",
    ),
    Task(
        "find the right place after a wrong guess",
        "The greeting in hi.py must be polite.",
        (
            call(
                "edit_file",
                path="hi.py",
                old="print('hello')",
                new="print('Good day')",
                guesses=True,
            ),
            call(
                "edit_file",
                r'print\(\\*"hello',
                path="hi.py",
                old='print("hello")',
                new='print("Good day")',
            ),
            says("It is polite now.", r"hi\.py"),
        ),
        files={"hi.py": 'def greet():\n    print("hello")\n'},
        after={"hi.py": 'def greet():\n    print("Good day")\n'},
    ),
    Task(
        "add a line at the end of a file",
        "Add bread to list.txt.",
        (
            call("file_access", **READ, path="list.txt"),
            call("edit_file", "milk", path="list.txt", old="milk\n", new="milk\nbread\n"),
            says("Added.", r"list\.txt"),
        ),
        files={"list.txt": "eggs\nmilk\n"},
        after={"list.txt": "eggs\nmilk\nbread\n"},
    ),
    Task(
        "two edits of one file in one turn",
        "In app.ini set host = local to far and debug = no to yes.",
        (
            calls(
                ("edit_file", {"path": "app.ini", "old": "host = local", "new": "host = far"}),
                ("edit_file", {"path": "app.ini", "old": "debug = no", "new": "debug = yes"}),
            ),
            says("Set.", r"app\.ini"),
        ),
        files={"app.ini": SETTINGS},
        after={"app.ini": SETTINGS.replace("local", "far").replace("no", "yes")},
    ),
    Task(
        "change a file whose name cannot be typed",
        "Which notes are there? Call the cat Tom in them.",
        (
            call("file_access", **LIST, path="."),
            call("file_access", "PM", **READ, path=SCREENSHOT),
            call("edit_file", "The cat", path=SCREENSHOT, old="The cat", new="Tom"),
            says("Done.", "Notes 10"),
        ),
        files={SCREENSHOT: "The cat sleeps.\n"},
        after={SCREENSHOT: "Tom sleeps.\n"},
    ),
    Task(
        "read a name that the disk spells otherwise",
        "What does Résumé.txt say?",
        (call("file_access", **READ, path="Résumé.txt"), says("Twelve years.", "twelve years")),
        files={unicodedata.normalize("NFD", "Résumé.txt"): "Cook, twelve years.\n"},
        answer="Twelve",
        root="ro",
    ),
    Task(
        "move a function into another file",
        "Move the function price from shop.py into price.py.",
        (
            call("file_access", **READ, path="shop.py"),
            calls(
                ("create_file", {"path": "price.py", "content": FUNCTION}),
                ("edit_file", {"path": "shop.py", "old": FUNCTION, "new": ""}),
                sees=("price 36",),
            ),
            says("Moved.", r"price\.py", r"shop\.py"),
        ),
        files={"shop.py": SHOP},
        after={"shop.py": SHOP.replace(FUNCTION, ""), "price.py": FUNCTION},
    ),
)
