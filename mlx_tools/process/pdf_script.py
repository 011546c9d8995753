"""Reads a PDF into text, in a process of its own.

The question has ``data``, in base64; the answer ``title`` and ``pages``, or a ``problem``.
"""

from __future__ import annotations

import base64
import io
import logging
from typing import Any

from mlx_tools.process.isolated import Problem, or_problem, serve

MAX_CHARS = 10_000_000
MAX_PAGES = 20_000


def read_pdf(asked: dict[str, Any]) -> dict[str, Any]:
    """The title and the pages, as far as they are within bounds."""
    import pypdf

    logging.disable(logging.CRITICAL)
    reader = pypdf.PdfReader(io.BytesIO(base64.b64decode(asked["data"])), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise Problem("it is encrypted")
    pages, size = [], 0
    for number, page in enumerate(reader.pages):
        if number >= MAX_PAGES or size >= MAX_CHARS:
            break
        text = (page.extract_text() or "").encode("utf-8", "replace").decode()
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
        pages.append(text[: MAX_CHARS - size])
        size += len(text)
    try:
        title = str((reader.metadata and reader.metadata.title) or "")
    except Exception:  # the metadata may be broken where the pages are not
        title = ""
    return {"title": title[:500], "pages": pages}


if __name__ == "__main__":
    serve(or_problem(read_pdf), "pypdf")
