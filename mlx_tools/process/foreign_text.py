"""Words that come from outside: a server's, a program's."""

from __future__ import annotations

import re

_UNSHOWN = re.compile("[\U000e0000-\U000e01ef]")
"""Tags and selectors."""


def clean(text: str, limit: int = 300) -> str:
    """Foreign text on one line, fit to be shown: no control or invisible characters, cut short."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def visible(text: str) -> str:
    """Foreign text without the letters that nothing shows, and that a model reads."""
    return _UNSHOWN.sub("", text)
