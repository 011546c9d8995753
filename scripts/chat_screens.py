"""Draws the pictures of docs/chat.md: screens of the command itself, asked a scripted model.

python scripts/chat_screens.py            draw those that are out of date
python scripts/chat_screens.py --check    exit 1 where one shows what is not shown any more

Numbers (how long a call took, tokens a second, a session's) differ each time: they make no picture
out of date.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from pyte.screens import Char
from rich.console import Console
from rich.style import Style
from rich.text import Text

from mlx_tools.testing import Completion, ScriptedServer, answer, call
from scripts.generated_part import ROOT
from tests.cli.terminal import Screen, Terminal

FOLDER: Final = ROOT / "docs" / "screens"
COLUMNS: Final = 84
VARYING: Final = r"\d{8}-\d{6}-[0-9a-f]{8}|( · \d+ tokens/s)|\d[\d.,]*( m?s\b)?"

PLAN: Final = "# Beds\n\n1. beans\n2. kale\n3. carrots\n"
MOVED: Final = PLAN.replace("kale", "lettuce")
ADVICE: Final = """\
## Before the frost

1. **Lift** the carrots, and store them in *dry sand*.
2. Cut the beans at the ground: the roots feed the bed.

| bed | then | cover |
| --- | --- | --- |
| 1 | rye | none |
| 3 | garlic | straw |

```python
frost = [day for day in forecast if day.low < 0]
```
"""


def screens() -> Iterator[tuple[str, Terminal]]:
    """The name of a picture, and the terminal that shows what is on it."""
    script = (
        call("file_access", operation="read", path="plan.md"),
        answer("Kale grows in bed 2, between the beans and the carrots."),
        answer(ADVICE),
        call("file_access", operation="write", path="plan.md", content=MOVED),
        answer("Bed 2 has lettuce now."),
        answer("Bed 2: it has lettuce instead of kale."),
    )
    usage = {"prompt_tokens": 700, "completion_tokens": 60}
    # one is slow enough for the line below to say how fast it is
    scripts = [
        Completion(text, usage=usage, delay=0.02 if ADVICE[:9] in text else 0) for text in script
    ]
    with ScriptedServer(*scripts, model="qwen3-4b") as server, tempfile.TemporaryDirectory() as at:
        home = Path(at).resolve()
        (home / "garden").mkdir()
        (home / "garden" / "plan.md").write_text(PLAN, encoding="utf-8")
        with closing(_chat(home, server.url, "--root", ".:rw", "-t", "file_access")) as terminal:
            yield from _first_day(terminal)
        with closing(_chat(home, server.url, "--continue")) as terminal:
            _ask(terminal, "Which bed did we change?", "instead of kale")
            yield "continue", terminal


PROMPT: Final = "^>$(?s:.*)qwen3-4b$"
"""The prompt and the line below it, which is drawn last."""


def _chat(home: Path, url: str, *arguments: str) -> Terminal:
    kinds = ("CONFIG", "DATA", "STATE", "CACHE")
    places = {f"MLX_TOOLS_{kind}_DIR": str(home / kind) for kind in kinds}
    return Terminal(
        *("chat", "--url", url, *arguments),
        environ=places | {"HOME": str(home), "MLX_TOOLS_MODEL_CONTEXT": "32768"},
        columns=COLUMNS,
        rows=40,
        folder=home / "garden",
    )


def _first_day(terminal: Terminal) -> Iterator[tuple[str, Terminal]]:
    _ask(terminal, "What grows in bed 2 of plan.md?", "beans and the carrots")
    yield "question", terminal
    _clear(terminal)
    _ask(terminal, "What is to be done before the first frost?", "day.low < 0")
    yield "markdown", terminal
    _clear(terminal)
    _say(terminal, "Put lettuce into bed 2.")
    terminal.see("y yes(?s:.*)p pause")
    yield "approval", terminal
    terminal.type("y")
    terminal.see(f"lettuce now(?s:.*)\n{PROMPT}")
    _clear(terminal)
    _ask(terminal, "/help", "/quit")
    yield "commands", terminal
    terminal.press("ctrl-d")
    terminal.end()


def _ask(terminal: Terminal, question: str, told: str) -> None:
    """Until it is answered, and the next may be asked."""
    _say(terminal, question)
    terminal.see(rf"{told}(?s:.*)\n{PROMPT}")


def _say(terminal: Terminal, question: str) -> None:
    terminal.see("^>$")
    terminal.type(question)
    terminal.press("enter")


def _clear(terminal: Terminal) -> None:
    terminal.press("ctrl-l")
    terminal.see(rf"\A{PROMPT}")


# --- a screen as a picture -----------------------------------------------------------------------


def picture(screen: Screen, name: str) -> str:
    """The screen as SVG."""
    console = Console(record=True, file=io.StringIO(), width=screen.columns, force_terminal=True)
    rows = [_row(screen, y) for y in range(screen.lines)]
    while rows and not rows[-1].plain.strip():
        rows.pop()
    console.print(*rows, sep="\n", no_wrap=True, highlight=False)
    drawn = console.export_svg(title="mlx-tools chat", unique_id=name)
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # fetched from elsewhere
    return "\n".join(line.rstrip() for line in drawn.split("\n")) + "\n"


def _row(screen: Screen, y: int) -> Text:
    row = Text()
    for style, chars in groupby((screen.buffer[y][x] for x in range(screen.columns)), _style):
        row.append("".join(char.data for char in chars), style)
    return row


def _style(char: Char) -> Style:
    return Style(
        color=_colour(char.fg),
        bgcolor=_colour(char.bg),
        bold=char.bold,
        italic=char.italics,
        underline=char.underscore,
        reverse=char.reverse,
    )


def _colour(name: str) -> str | None:
    """A colour of pyte's in rich's words."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("bfight", "bright").replace("brown", "yellow").replace("bright", "bright_")


def read_shown_text(drawn: str) -> list[str]:
    """Return the readable text of a picture, row by row, without numbers."""
    rows: dict[str, str] = {}
    for text in ElementTree.fromstring(drawn).iterfind(".//{*}g/{*}text"):
        rows[text.get("y", "")] = rows.get(text.get("y", ""), "") + (text.text or "")
    spaced = (" ".join(row.split()) for row in rows.values())
    return [re.sub(VARYING, "", row) for row in spaced]


def main() -> None:
    """Draw what is out of date; with ``--check``, only say so, by the exit code too."""
    FOLDER.mkdir(exist_ok=True)
    for name, terminal in screens():
        new, path = picture(terminal.drawn, name), FOLDER / f"{name}.svg"
        old = path.read_text(encoding="utf-8") if path.exists() else "<svg/>"
        if read_shown_text(new) == read_shown_text(old):
            continue
        if "--check" in sys.argv[1:]:
            raise SystemExit(f"{path} is out of date: python scripts/chat_screens.py")
        path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
