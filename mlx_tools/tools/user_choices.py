"""The user's choices about tools: which are trusted, switched on, or switched off.

They are in one file, outside the folder of tools. So a tool that may write to that folder cannot
make itself trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, ValidationError, convert, to_builtins

from mlx_tools.errors import ConfigError, UsageError, translate_os_error
from mlx_tools.messages import replace
from mlx_tools.paths import data_dir, expand_user, private_dir, read_private, write_whole
from mlx_tools.store import RootName, find_private_part

LOCK_SECONDS: Final = 10.0
"""Seconds to wait for another program that changes the file."""
OFF_REASON: Final = "switched off (mlx-tools tools enable {name})"

MAX_FILE_BYTES: Final = 4_000_000
"""The limit of the file in bytes: room for tens of thousands of tools."""
_HINT: Final = "look at it; without it no tool's folder is trusted, and no tool is switched off"
_LOCK_INTERVAL: Final = 0.02
"""Seconds between two attempts to get the lock."""

ChoiceField = Literal["trusted", "switched", "making"]


class UserChoices(Struct, frozen=True, forbid_unknown_fields=True):
    """The user's choices about tools."""

    version: Literal[1]
    trusted: dict[str, str]
    """The digest of each added folder, by its path; two digests while it is being replaced."""
    switched: dict[str, bool]
    """True or False for each tool that the user switched on or off."""
    making: dict[str, str] = {}
    """The folder of each tool that is being made, by its name."""

    def with_entry(
        self, choice_field: ChoiceField, key: str, value: str | bool | None
    ) -> UserChoices:
        """Return the choices with this entry; None as value removes it."""
        entries = dict(getattr(self, choice_field))
        entries.pop(key, None)
        if value is not None:
            entries[key] = value
        changes: dict[str, Any] = {choice_field: entries}
        return replace(self, **changes)


NO_CHOICES: Final = UserChoices(1, {}, {})


class UserChoicesFile:
    """The file ``tools.json`` with the user's choices about tools.

    Args:
        data: the folder with the user's data.
        patience: seconds to wait for another program that changes the file.
    """

    def __init__(self, data: Path | None = None, patience: float = LOCK_SECONDS) -> None:
        self.path = (data or data_dir()).absolute() / "tools.json"
        self.patience = patience

    def load(self) -> UserChoices:
        """Return the choices; they are empty if there is no file.

        Raises:
            ConfigError: the file cannot be read. Without it, tools that were switched off would be
                on again.
        """
        with translate_os_error(ConfigError, f"{self.path} cannot be read", _HINT):
            try:
                data = read_private(self.path, MAX_FILE_BYTES)
            except FileNotFoundError:
                return NO_CHOICES
        try:
            return convert(json.loads(data), UserChoices)
        except (ValidationError, ValueError, RecursionError):
            raise ConfigError(f"{self.path} is damaged", hint=_HINT) from None

    def switch(self, name: str, is_on: bool | None) -> None:
        """Switch a tool on or off; None restores its own default.

        Raises:
            UsageError: another program changes the tools for too long.
            ConfigError: the file cannot be read or written.
        """
        with self.hold_change():
            self.write(self.load().with_entry("switched", name, is_on))

    def write(self, choices: UserChoices) -> None:
        """Write the choices, completely or not at all. The caller must have the lock.

        Raises:
            ConfigError: the file cannot be written.
        """
        text = json.dumps(to_builtins(choices, order="sorted"), indent=1)
        with translate_os_error(ConfigError, f"{self.path} cannot be written"):
            write_whole(self.path, text.encode() + b"\n")

    @contextlib.contextmanager
    def hold_change(self) -> Iterator[None]:
        """Lock the file while the block changes it.

        Raises:
            UsageError: another program has the lock for too long.
            ConfigError: the file cannot be locked.
        """
        private_dir(self.path.parent)
        with contextlib.ExitStack() as stack:
            with translate_os_error(ConfigError, f"{self.path} cannot be written"):
                try:
                    stack.enter_context(self.lock(self.patience))
                except BlockingIOError:
                    folder, why = self.path.parent / "tools", "another program is changing"
                    raise UsageError(
                        f"{folder} cannot be changed: {why} the tools folder"
                    ) from None
            yield

    @contextlib.contextmanager
    def lock(self, seconds: float) -> Iterator[None]:
        """Lock the file while the block runs; wait for the lock for at most ``seconds``.

        Raises:
            BlockingIOError: another program still has the lock.
        """
        path = self.path.with_name(f".{self.path.name}.lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        until = time.monotonic() + seconds
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(_LOCK_INTERVAL)
            yield
        finally:
            os.close(descriptor)


def find_exposure(
    record: Path, roots: Iterable[str], subject: str = "what says which of them are trusted"
) -> str | None:
    """Return why no tool in ``record`` may run with these roots, or None.

    If tools may write to the record, a tool could make itself trusted.

    Args:
        record: the file or folder that tools must not be able to write to.
        roots: the folders that tools may see.
        subject: the record's name in the message.
    """
    record = record.resolve()
    for root in map(RootName.parse, roots):
        top = expand_user(root.path).resolve()
        below = record.is_relative_to(top)
        if not root.writable or not (below or top.is_relative_to(record)):
            continue
        parts = record.relative_to(top).parts if below else ()
        if find_private_part(parts, top.name, writing=True) is None:
            return f"{subject}, {record}, lies {'below' if below else 'above'} the root {root.path}"
    return None
