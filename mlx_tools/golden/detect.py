"""Tells golden transcripts from all other files, by the beginning of their first two lines.

pytest asks about every file below the folders that it collects from, whoever they belong to: no
other file may be read whole, waited for, or complained about.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import IO, Final

_LOOK: Final = 1 << 16
"""Bytes of a line that are looked at; one that is longer must say what it is at its beginning."""

_LONGEST: Final = 1 << 26
"""Bytes after which a first line is nobody's header."""

_BOM: Final = b"\xef\xbb\xbf"


def is_golden(path: Path) -> bool:
    """Whether a file's first line is a transcript's header and its second a golden record, as far
    as can be told without reading on: what is damaged after that, or within these, is one too."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return _says(file, "header") and _says(file, "golden", last=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _says(file: IO[bytes], kind: str, *, last: bool = False) -> bool:
    """Whether the line at which a file stands is a record of this kind; it then stands at the next
    one, but for the last."""
    line = file.readline(_LOOK).removeprefix(_BOM)
    if re.match(rb'\s*\{\s*"type"\s*:\s*"%s"' % kind.encode(), line):
        return last or line.endswith(b"\n") or _skip_line(file)
    if not line.lstrip().startswith(b"{") or b'"%s"' % kind.encode() not in line:
        return False
    try:  # another program may have written its keys in another order
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("type") == kind


def _skip_line(file: IO[bytes]) -> bool:
    """Reads to the end of a line; whether there is one."""
    for _ in range(_LONGEST // _LOOK):
        part = file.readline(_LOOK)
        if not part.endswith(b"\n"):
            if len(part) < _LOOK:
                return False
            continue
        return True
    return False
