"""Tasks with programs, the web, notes, jobs, documents and tools of one's own."""

from __future__ import annotations

import json
from typing import Final

from tests.work.task import Step, Task, Turn, call, calls, says
from tests.work.texts import ORDERS, ORDERS_SUM, READ

CALC: Final = "def add(a, b):\n    return a - b\n"
TEST_CALC: Final = """\
import unittest

from calc import add


class Test(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)
"""
SUM: Final = (
    "import csv\nprint(sum(int(row['amount']) for row in csv.DictReader(open('orders.csv'))))"
)
AREA: Final = (
    "def area(width: float, height: float) -> float:\n"
    '    """Area of a rectangle."""\n    return width * height\n'
)
LOG: Final = (
    "def log() -> str:\n"
    '    """The log of today."""\n'
    "    return '\\n'.join(f'entry {n}: fine' for n in range(2000)) + '\\nentry 2000: on fire\\n'\n"
)
MCP_SERVER: Final = '''\
"""An MCP server with one tool, in lines of JSON."""
import json
import sys

SCHEMA = {"type": "object", "properties": {"article": {"type": "string"}}, "required": ["article"]}
TOOL = {"name": "stock", "description": "How many there are of an article.", "inputSchema": SCHEMA}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {}
    if message["method"] == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "shop", "version": "1"},
        }
    elif message["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif message["method"] == "tools/call":
        article = message["params"]["arguments"]["article"]
        result = {"content": [{"type": "text", "text": f"17 {article}s"}]}
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    sys.stdout.write(json.dumps(answer) + "\\n")
    sys.stdout.flush()
'''
TOOL_FOLDER: Final = {
    "counter/tool_definition.json": json.dumps(
        {
            "name": "count_words",
            "description": "Counts the words of a text.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
        }
    ),
    "counter/execute.py": "def execute(arguments):\n"
    "    return {'words': len(arguments['text'].split())}\n",
}
PAGES: Final = {
    "Starter": "How to: feed it daily.",
    "Dough": "How to: fold it thrice.",
    "Oven": "How to: bake it hot.",
    "Fourth": "How to: eat it.",
}
SUMMARY: Final = "Feed it daily. Fold it thrice. Bake it hot.\n"

OTHER_TOOLS: Final = (
    Task(
        "run the tests and mend the program",
        "Run the tests with python3 -m unittest, and mend what fails.",
        (
            call("run_command", program="python3", arguments=["-m", "unittest"]),
            call("search_files", "FAILED", r"-1 != 5", pattern="def add"),
            call("file_access", r"calc\.py:1", **READ, path="calc.py"),
            call("edit_file", r"return a - b", path="calc.py", old="a - b", new="a + b  # not -"),
            call("run_command", r"calc\.py", program="python3", arguments=["-m", "unittest"]),
            says("The tests pass: add had subtracted.", r'\\nOK"'),
        ),
        files={"calc.py": CALC, "test_calc.py": TEST_CALC},
        after={"calc.py": CALC.replace("a - b", "a + b  # not -")},
        options=("--commands", "python3"),
        answer="pass",
        sandbox=True,
    ),
    Task(
        "sum up a table of 2,000 rows with a program",
        "What is the sum of the amounts in orders.csv? python3 may be used.",
        (
            call("file_access", **READ, path="orders.csv", lines=3),
            call("run_command", "order,amount", program="python3", arguments=["-c", SUM]),
            Step(says("It is <<sum>>.").text, (r"exit code 0\]\\n(?P<sum>\d+)",)),
        ),
        files={"orders.csv": ORDERS},
        options=("--commands", "python3"),
        answer=f"It is {ORDERS_SUM}\\.",
        sandbox=True,
    ),
    Task(
        "search the web, read three pages and save a summary",
        "Search for tutorials on sourdough, summarise the top three, and save the summary.",
        (
            call("web_search", query="sourdough tutorials", max_results=3),
            Step(
                calls(
                    *(("fetch_url", {"url": f"<<{name}>>"}) for name in PAGES if name != "Fourth")
                ).text,
                tuple(rf"(?P<{name}>http://localhost:\d+/{name})" for name in [*PAGES][:3]),
            ),
            call(
                "create_file",
                *(text for text in [*PAGES.values()][:3]),
                path="sourdough.md",
                content=SUMMARY,
            ),
            says("Saved in sourdough.md.", r"sourdough\.md"),
        ),
        pages=PAGES,
        after={"sourdough.md": SUMMARY},
        options=("--preset", "research"),
        root="ro",
        answer="sourdough",
    ),
    Task(
        "keep a note and find it again",
        "Make a note: Ada's number is 17.",
        (
            call("notes_create", title="Ada", content="Her number is 17."),
            says("Noted.", "Ada"),
        ),
        later=(
            Turn(
                "What do my notes say of Ada?",
                (call("notes_search", query="Ada"), says("Her number is 17.", "number is 17")),
                "17",
            ),
        ),
        options=("--preset", "notes"),
        root="",
    ),
    Task(
        "make a job",
        "Every day at nine, write down what is to be bought.",
        (
            call(
                "schedule_task", task="Write down what is to be bought.", when="every day at 9:00"
            ),
            says("It will be done every day at nine.", "9:00|09:00"),
        ),
        options=("--tools", "schedule_task"),
        leaves=((("schedule", "list", "--json"), "Write down what is to be bought"),),
        root="",
        answer="nine",
    ),
    Task(
        "ask an MCP server's tool",
        "How many lamps are in stock?",
        (call("shop__stock", article="lamp"), says("17 lamps.", "17 lamps")),
        files={"shop.py": MCP_SERVER},
        before=(("mcp", "add", "shop", "--yes", "--", "python", "-I", "-S", "HERE/shop.py"),),
        options=("--tools", "shop__stock"),
        root="",
        answer="17",
    ),
    Task(
        "a tool in a folder of one's own",
        "How many words has: to be or not to be?",
        (call("count_words", text="to be or not to be"), says("Six.", r"words\W+6")),
        files=TOOL_FOLDER,
        before=(("tools", "add", "counter", "--yes"),),
        options=("--tools", "count_words"),
        root="",
        answer="Six",
    ),
    Task(
        "a function of one's own",
        "How large is 3 by 4?",
        (call("area", width=3, height=4), says("12.", "12.0")),
        files={"mine.py": AREA},
        options=("--functions", "mine.py"),
        root="",
        answer="12",
    ),
    Task(
        "read on in a long output",
        "Is anything wrong in today's log?",
        (
            call("log"),
            Step(
                call("read_artifact", id="<<id>>", offset=20_000).text,
                (r"read_artifact\D+?(?P<id>[0-9a-f]{6,})",),
            ),
            says("Entry 2000 is on fire.", "entry 2000: on fire"),
        ),
        files={"mine.py": LOG},
        options=("--functions", "mine.py"),
        root="",
        answer="2000",
        absent={"gateway": "what is cut off, and how it is read on, is the client's matter"},
    ),
    Task(
        "a question about documents of one's own",
        "What does the handbook say about holidays?",
        (
            call("query_knowledge_base", query="holidays"),
            says("Thirty days.", "thirty days"),
        ),
        files={"docs/handbook.md": "# Holidays\n\nEverybody has thirty days of holidays.\n"},
        before=(("kb", "add", "docs"),),
        options=("--preset", "readonly_knowledge"),
        root="",
        answer="Thirty",
    ),
    Task(
        "an answer as JSON",
        "How much is due by bill.txt?",
        (
            call("file_access", **READ, path="bill.txt"),
            call("final_result", "due: 42", due=42),
        ),
        files={
            "bill.txt": "due: 42\n",
            "../schema.json": json.dumps(
                {"type": "object", "properties": {"due": {"type": "integer"}}, "required": ["due"]}
            ),
        },
        options=("--schema", "schema.json"),
        root="ro",
        answer='"due": ?42',
        absent={"chat": "answers are for a person", "gateway": "the schema is the client's"},
    ),
)
