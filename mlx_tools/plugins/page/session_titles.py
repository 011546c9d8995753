"""The titles that a person gave to sessions at the page, in one small file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.paths import locked, read_regular, write_whole

MAX_TITLE: Final = 200
"""Characters: a title is one line of a list."""

_MAX_BYTES: Final = 8 << 20
"""Bytes of the file: some 20,000 titles."""


class SessionTitles:
    """The titles of sessions, kept in the file ``path``. Methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> Mapping[str, str]:
        """Return the titles by session; none if they cannot be read."""
        try:
            return self._read()
        except UsageError:
            return {}

    def set(self, session: str, title: str) -> None:
        """Give a session a title, or take it away where that is empty.

        A file that cannot be read stays as it is: its titles can be restored by hand.

        Raises:
            UsageError: the titles cannot be read or written.
        """
        line = " ".join(title.split())[:MAX_TITLE]
        if self._read().get(session, "") == line:
            return  # nothing is written, which would fail on a full disk
        try:
            # Other gateways of this user store their titles in the same file.
            with locked(self._path):
                titles = {**self._read(), session: line}
                if not line:
                    del titles[session]
                text = json.dumps(titles, ensure_ascii=False, indent=0)
                data = text.encode(errors="surrogatepass")
                write_whole(self._path, data, max_bytes=_MAX_BYTES)
        except OSError as error:
            raise UsageError(
                f"the titles of sessions in {self._path} cannot be written: "
                f"{error.strerror or error}"
            ) from None

    def _read(self) -> dict[str, str]:
        """Return the titles by session; none if there is no file.

        Raises:
            UsageError: the file cannot be read as titles.
        """
        try:
            data = read_regular(self._path, _MAX_BYTES)
            titles = json.loads(data.decode(errors="surrogatepass"))
            if not isinstance(titles, dict) or not all(map(_is_text, titles.values())):
                raise ValueError("it holds no titles by session")
        except FileNotFoundError:
            return {}
        except OSError as error:
            fault = error.strerror or str(error)
        except (ValueError, RecursionError) as error:
            fault = f"it is damaged: {error}"
        else:
            return titles
        raise UsageError(
            f"the titles of sessions in {self._path} cannot be read: {fault}",
            hint="mend the file, or move it away",
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str)
