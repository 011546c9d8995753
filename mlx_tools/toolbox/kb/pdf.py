"""PDF as text, by pypdf, in a process of its own with limits of time, memory and output.

A PDF can be a bomb: streams that unpack without end, objects that hold themselves. What it does to
the reader, it does to a process that is ended then.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

SECONDS: Final = 60.0
"""What one file may take."""

MEMORY_BYTES: Final = 1_500_000_000
PAGE_END: Final = "\n\n"

_WORKER: Final = Path(__file__).with_name("pdf_worker.py")


@functools.cache
def pdf_reader() -> str:
    """What reads a PDF here: ``pypdf`` and its version, empty where it is missing."""
    try:
        return f"pypdf {metadata.version('pypdf')}"
    except metadata.PackageNotFoundError:
        return ""


def read_pdf(data: bytes, seconds: float = SECONDS) -> tuple[str, list[str]]:
    """The title, which may be empty, and the text of each page.

    Raises ValueError, whose text says why, where pypdf is missing, and where it cannot read the
    file, or not within the limits.
    """
    if not pdf_reader():
        raise ValueError("reading it takes pypdf: pip install 'mlx-tools[pdf]'")
    child = subprocess.Popen(  # noqa: S603 - an argument list, no shell
        [sys.executable, "-P", str(_WORKER), str(int(seconds) + 1), str(MEMORY_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ},
    )
    try:
        output, _ = child.communicate(data, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ValueError(f"it could not be read within {seconds:g} s") from None
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    try:
        answer = json.loads(output)
    except ValueError:
        raise ValueError("pypdf cannot read it within the memory it is given") from None
    if "problem" in answer:
        raise ValueError(f"pypdf cannot read it: {answer['problem']}")
    return answer["title"], answer["pages"]
