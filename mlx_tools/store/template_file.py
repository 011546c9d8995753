"""The user's approval templates on disk.

They are in one file, outside any project. Each template is sealed with the key of approvals, so
that nothing but this program adds one.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from mlx_tools.errors import StorageError, UsageError, translate_os_error
from mlx_tools.messages import replace
from mlx_tools.paths import locked, read_private, write_whole
from mlx_tools.policy import ApprovalTemplate, CallContext, equal_digests, seal

_VERSION: Final = 1
_MAX_BYTES: Final = 1_000_000
_MAX_TEMPLATES: Final = 1_000
"""Templates that are kept; a person reads no more."""


class TemplateFile:
    """The templates in the file ``path``, which need not exist.

    ``secret`` gives the key. The file is read anew each time, so a revoked template covers no call
    that has not started. Methods raise `StorageError` if the file cannot be read, trusted or
    written.
    """

    def __init__(self, path: Path, secret: Callable[[], bytes]) -> None:
        self.path = path
        self._secret = secret

    def templates(self, now: datetime) -> list[ApprovalTemplate]:
        """Return the templates that hold now or later, the oldest first.

        An expired template is removed for good, so that a clock that is set back does not bring it
        back.
        """
        entries = self._entries()
        known = [made for one in entries if (made := self._verify(one)) is not None]
        gone = {one.id for one in known if not now < datetime.fromisoformat(one.expires_at)}
        if gone:
            with contextlib.suppress(StorageError, UsageError):
                self.revoke(gone)
        return [one for one in known if one.id not in gone]

    @property
    def foreign_count(self) -> int:
        """The number of entries that were not made with this key: they cover nothing."""
        return sum(self._verify(one) is None for one in self._entries())

    def find(self, call: CallContext) -> ApprovalTemplate | None:
        """Return the first template that covers a call.

        It is None if none does, or if the file cannot be read.
        """
        with contextlib.suppress(StorageError):
            return next((one for one in self.templates(call.now) if one.covers(call)), None)
        return None

    def add(self, template: ApprovalTemplate) -> ApprovalTemplate:
        """Store a template under a new id."""
        with self._locked():
            entries = self._entries()
            if len(entries) >= _MAX_TEMPLATES:
                raise StorageError(
                    f"{self.path} holds {_MAX_TEMPLATES} templates",
                    hint="revoke some: approvals revoke ID",
                )
            # The id is part of what is sealed: an entry cannot be copied under another id.
            made = replace(template, id=secrets.token_hex(4))
            made = replace(made, seal=seal(self._secret(), "template", to_builtins(made)))
            self._write([*entries, to_builtins(made)])
        return made

    def revoke(self, ids: Collection[str] | None) -> int:
        """Remove templates by their ids, or all. Return how many there were."""
        with self._locked():
            entries = self._entries()
            kept = [one for one in entries if ids is not None and one.get("id") not in ids]
            if len(kept) < len(entries):
                self._write(kept)
        return len(entries) - len(kept)

    def _verify(self, entry: Mapping[str, Any]) -> ApprovalTemplate | None:
        """Return the template of an entry whose seal is valid, else None."""
        # Every read checks the seal: whoever can write the file cannot approve anything by it.
        if not equal_digests(seal(self._secret(), "template", entry), str(entry.get("seal"))):
            return None
        return ApprovalTemplate(**{**entry, "roots": tuple(entry["roots"])})

    def _entries(self) -> list[dict[str, Any]]:
        with translate_os_error(StorageError, f"{self.path} cannot be read"):
            try:
                data = read_private(self.path, _MAX_BYTES + 1)
            except FileNotFoundError:
                return []
        try:
            value = json.loads(data) if len(data) <= _MAX_BYTES else None
        except (ValueError, RecursionError):
            value = None
        entries: Any = None
        if isinstance(value, dict) and value.get("version") == _VERSION:
            entries = value.get("templates")
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise StorageError(
                f"{self.path} is damaged: no approval template holds",
                hint="remove the file, and add them anew",
            )
        return entries

    def _write(self, entries: Collection[Mapping[str, Any]]) -> None:
        text = json.dumps({"version": _VERSION, "templates": list(entries)}, indent=1)
        hint = "revoke some: approvals revoke ID" if len(text) > _MAX_BYTES else None
        with translate_os_error(StorageError, f"{self.path} cannot be written", hint):
            write_whole(self.path, text.encode(), max_bytes=_MAX_BYTES)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (
            translate_os_error(StorageError, f"{self.path} cannot be written"),
            locked(self.path),
        ):
            yield
