"""A few files for a knowledge base, PDFs made by hand, and how files are found in it."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase

TEXTS = {
    "tea.md": "# Tea\n\nBoil the water, then let the leaves stand for three minutes.\n",
    "milk/cold.txt": "Milk stands in the fridge, on the lower shelf.\n",
    "milk/warm.rst": "Warm milk\n=========\n\nHeat it slowly, it must not boil.\n",
    "code/kettle.py": '"""Drives the kettle."""\n\n\ndef heat_water(degree):\n    return degree\n',
    "page.html": "<title>Cups</title><p>Cups stand above the sink.</p>",
}


def paths(base: KnowledgeBase, question: str, **rest: Any) -> list[str]:
    return [Path(hit.path).name for hit in base.search(question, **rest)]


# --- PDF: the objects of a page, and a file of objects ------------------------------------------

CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGES = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
PAGE = (
    b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
    b"/Resources << /XObject << /X 5 0 R >> /Font << /F1 6 0 R >> >> >>"
)
FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def stream(data: bytes, more: bytes = b"", times: int = 1) -> bytes:
    for _ in range(times):
        data = zlib.compress(data, 9)
    filters = b"/FlateDecode " * times
    head = b"<< /Length %d /Filter [%s] %s >>" % (len(data), filters, more)
    return b"%s\nstream\n%s\nendstream" % (head, data)


def made_pdf(*objects: bytes, trailer: bytes = b"") -> bytes:
    out = bytearray(b"%PDF-1.7\n")
    places = []
    for number, one in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R %s >>\n" % (len(objects) + 1, trailer)
    return bytes(out + b"startxref\n%d\n%%%%EOF\n" % start)
