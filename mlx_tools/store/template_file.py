"""The user's approval templates on disk.

They are in one file, outside any project. Each template is sealed with the key of approvals, so
that only mlx-tools can add one.
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
"""The limit of templates: nobody would read a longer list."""


class TemplateFile:
    """The templates in a file.

    The file is read again each time, so a revoked template covers no call that has not started.
    Methods raise `StorageError` if the file cannot be read, trusted or written.

    Args:
        path: the path of the file, which may be absent.
        secret: returns the key of approvals.
    """

    def __init__(self, path: Path, secret: Callable[[], bytes]) -> None:
        self.path = path
        self._secret = secret

    def templates(self, now: datetime) -> list[ApprovalTemplate]:
        """Return the templates that have not expired, the oldest first.

        Expired templates are removed from the file: if the clock is set back, they do not count
        again.
        """
        entries = self._read_entries()
        valid = [template for entry in entries if (template := self._verify(entry)) is not None]
        expired = {t.id for t in valid if not now < datetime.fromisoformat(t.expires_at)}
        if expired:
            with contextlib.suppress(StorageError, UsageError):
                self.revoke(expired)
        return [template for template in valid if template.id not in expired]

    @property
    def foreign_count(self) -> int:
        """The number of entries that were not made with this key: they cover no call."""
        return sum(self._verify(entry) is None for entry in self._read_entries())

    def find(self, call: CallContext) -> ApprovalTemplate | None:
        """Return the first template that covers a call.

        It is None if none does, or if the file cannot be read.
        """
        with contextlib.suppress(StorageError):
            return next((t for t in self.templates(call.now) if t.covers(call)), None)
        return None

    def add(self, template: ApprovalTemplate) -> ApprovalTemplate:
        """Store a template under a new id."""
        with self._locked():
            entries = self._read_entries()
            if len(entries) >= _MAX_TEMPLATES:
                raise StorageError(
                    f"{self.path} has {_MAX_TEMPLATES} templates already",
                    hint="revoke some: approvals revoke ID",
                )
            # The id is sealed, too: an entry cannot be copied under another id.
            template = replace(template, id=secrets.token_hex(4))
            sealed = seal(self._secret(), "template", to_builtins(template))
            template = replace(template, seal=sealed)
            self._write([*entries, to_builtins(template)])
        return template

    def revoke(self, ids: Collection[str] | None) -> int:
        """Remove templates by their ids, or all if ``ids`` is None. Return their number."""
        with self._locked():
            entries = self._read_entries()
            others = [e for e in entries if ids is not None and e.get("id") not in ids]
            if len(others) < len(entries):
                self._write(others)
        return len(entries) - len(others)

    def _verify(self, entry: Mapping[str, Any]) -> ApprovalTemplate | None:
        """Return the template of an entry, None if its seal is not valid."""
        # Each read checks the seal: nobody can approve a call by writing to the file.
        if not equal_digests(seal(self._secret(), "template", entry), str(entry.get("seal"))):
            return None
        return ApprovalTemplate(**{**entry, "roots": tuple(entry["roots"])})

    def _read_entries(self) -> list[dict[str, Any]]:
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
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise StorageError(
                f"{self.path} is damaged: no approval template counts",
                hint="remove the file, and add the templates again",
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
