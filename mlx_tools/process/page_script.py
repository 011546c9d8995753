"""Reads HTML into text, in a process of its own.

Standard input has an object: ``html``, the page's ``url``, ``most`` characters, ``limits``.
Standard output gets ``title``, ``text`` and ``cut``.
"""

from __future__ import annotations

import json
import sys

from mlx_tools.process.resource_limits import answer, set_limits


def main() -> None:
    """Answers one question."""
    import justhtml  # noqa: F401 - before no file may be written: compiled, it comes quicker

    from mlx_tools.process.html_text import readable

    asked = json.load(sys.stdin.buffer)
    set_limits(asked["limits"])
    found = readable(asked["html"], asked["url"], int(asked["most"]))
    answer({"title": found.title, "text": found.text, "cut": found.cut})


if __name__ == "__main__":
    main()
