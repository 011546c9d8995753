"""Words that come from outside: a server's, a program's."""

from __future__ import annotations


def clean(text: str, limit: int = 300) -> str:
    """Foreign text on one line, fit to be shown: no control or invisible characters, cut short."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
