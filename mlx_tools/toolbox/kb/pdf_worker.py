"""Reads a PDF from standard input, and writes its title and pages as JSON to standard output.

Started as a script, ``python -P pdf_worker.py SECONDS BYTES``: its limits of processor time and of
memory, set before anything is read. Imports nothing of mlx_tools.
"""

from __future__ import annotations

import io
import json
import logging
import resource
import sys

MAX_CHARS = 10_000_000
MAX_PAGES = 20_000


def main() -> None:
    """Set the limits, read, write."""
    seconds, memory = int(sys.argv[1]), int(sys.argv[2])
    for limit, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        try:
            resource.setrlimit(limit, (most, most))
        except (OSError, ValueError):  # macOS knows no limit of address space
            continue
    logging.disable(logging.CRITICAL)
    try:
        answer = read(sys.stdin.buffer.read())
    except MemoryError:
        answer = {"problem": "it needs more memory than it is given"}
    except RecursionError:
        answer = {"problem": "it is nested too deep"}
    except Exception as error:  # a broken file can raise anything
        answer = {"problem": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(answer))


def read(data: bytes) -> dict[str, object]:
    """The title and the pages, as far as they are within bounds."""
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        return {"problem": "it is encrypted"}
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
    main()
