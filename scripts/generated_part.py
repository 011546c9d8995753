"""Generated parts of pages in docs/. A script replaces only the text between two marks."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def paragraph(text: str) -> str:
    """Return a paragraph or an item of a list, wrapped to the width of the pages."""
    indent = "  " if text.startswith("- ") else ""
    wrapper = textwrap.TextWrapper(138, subsequent_indent=indent, break_on_hyphens=False)
    return wrapper.fill(text)


@dataclass(frozen=True, slots=True)
class GeneratedPart:
    """A part of a page that a script writes.

    The marks are comments with its name and the name of the script.
    """

    page: str
    """The page's file name in ``docs/``."""
    name: str
    script: str
    make: Callable[[], str]
    """Returns the part as Markdown."""

    @property
    def path(self) -> Path:
        """The path of the page."""
        return ROOT / "docs" / self.page

    def render_page(self) -> tuple[str, str]:
        """Return the page as it is, and the page with the new part.

        Raises:
            SystemExit: the page has no marks.
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
        """Write the page; with ``--check``, only fail if it is out of date."""
        old, new = self.render_page()
        if "--check" in sys.argv[1:]:
            if old != new:
                raise SystemExit(f"docs/{self.page} is out of date: make docs")
        elif old != new:
            self.path.write_text(new, encoding="utf-8")
