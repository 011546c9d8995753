"""Replacement of the stretch between two marks of a page of docs/, and of nothing else."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def paragraph(text: str) -> str:
    """A text, or a point of a list, in lines as long as those of the pages."""
    inner = "  " if text.startswith("- ") else ""
    made = textwrap.TextWrapper(138, subsequent_indent=inner, break_on_hyphens=False)
    return made.fill(text)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of ``docs/PAGE`` with what is made by ``make``, Markdown.

    The marks are comments: they tell its name, and the script that writes it.
    """

    page: str
    name: str
    script: str
    make: Callable[[], str]

    @property
    def path(self) -> Path:
        return ROOT / "docs" / self.page

    def written(self) -> tuple[str, str]:
        """The page as it is, and as it ought to be.

        Raises:
            SystemExit: the marks are not there.
        """
        begin = f"<!-- {self.name}: written by scripts/{self.script} -->"
        end = f"<!-- end of the {self.name} -->"
        old = self.path.read_text(encoding="utf-8")
        before, begins, rest = old.partition(begin)
        _, ends, after = rest.partition(end)
        if not begins or not ends:
            raise SystemExit(f"docs/{self.page}: the marks of the {self.name} are missing")
        return old, f"{before}{begin}\n\n{self.make()}\n\n{end}{after}"

    def main(self) -> None:
        """Write it; with ``--check``, only say whether it is up to date, by the exit code too."""
        old, new = self.written()
        if "--check" in sys.argv[1:]:
            if old != new:
                raise SystemExit(f"docs/{self.page} is out of date: make docs")
        elif old != new:
            self.path.write_text(new, encoding="utf-8")
