"""Reads HTML into text, in a process of its own.

The question has ``html``, the page's ``url`` and ``most`` characters; the answer ``title``,
``text`` and ``cut``.
"""

from __future__ import annotations

from mlx_tools.process.isolated import answer, question


def main() -> None:
    import justhtml  # noqa: F401 - before no file may be written: compiled, it comes quicker

    from mlx_tools.process.html_text import read_html

    asked = question()
    page = read_html(asked["html"], asked["url"], int(asked["most"]))
    answer({"title": page.title, "text": page.text, "cut": page.cut})


if __name__ == "__main__":
    main()
