"""The user's choices about tools: which are trusted, switched on or off.

They are kept in one file, apart from the tools: whoever may write there cannot vouch for a tool.
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
"""Seconds that a change waits for another program that changes the file."""
OFF_REASON: Final = "switched off (mlx-tools tools enable {name})"

MAX_FILE_BYTES: Final = 4_000_000
"""Bytes of the largest file: tens of thousands of tools."""
_HINT: Final = "look at it; without it no tool's folder is trusted, and no tool is switched off"
_LOCK_INTERVAL: Final = 0.02
"""Seconds between two tries to get the lock."""

ChoiceField = Literal["trusted", "switched", "making"]


class UserChoices(Struct, frozen=True, forbid_unknown_fields=True):
    """The user's choices about tools."""

    version: Literal[1]
    trusted: dict[str, str]
    """The digests of each added folder by its path; two while one is being replaced."""
    switched: dict[str, bool]
    """For each tool that the user switched, whether it is on."""
    making: dict[str, str] = {}
    """For each tool in the making, its folder."""

    def with_entry(
        self, choice_field: ChoiceField, key: str, value: str | bool | None
    ) -> UserChoices:
        """Return the choices with this entry; None removes it."""
        others = {
            entry_key: was
            for entry_key, was in getattr(self, choice_field).items()
            if entry_key != key
        }
        now: dict[str, Any] = {choice_field: others if value is None else others | {key: value}}
        return replace(self, **now)


NO_CHOICES: Final = UserChoices(1, {}, {})


class UserChoicesFile:
    """The file ``tools.json`` with the user's choices about tools.

    Args:
        data: the folder with the user's data.
        patience: seconds that a change waits for another program.
    """

    def __init__(self, data: Path | None = None, patience: float = LOCK_SECONDS) -> None:
        self.path = (data or data_dir()).absolute() / "tools.json"
        self.patience = patience

    def load(self) -> UserChoices:
        """Return the choices, none if there is no file.

        Raises:
            ConfigError: it cannot be read. Tools that were switched off must not come back.
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
            UsageError: another program is changing the tools for long.
            ConfigError: the file cannot be read or written.
        """
        with self.hold_change():
            self.write(self.load().with_entry("switched", name, is_on))

    def write(self, choices: UserChoices) -> None:
        """Write the choices, completely or not at all. The caller holds the lock.

        Raises:
            ConfigError: they cannot be written.
        """
        text = json.dumps(to_builtins(choices, order="sorted"), indent=1)
        with translate_os_error(ConfigError, f"{self.path} cannot be written"):
            write_whole(self.path, text.encode() + b"\n")

    @contextlib.contextmanager
    def hold_change(self) -> Iterator[None]:
        """Hold the lock for a change.

        Raises:
            UsageError: another program holds the lock for long.
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
        """Hold the lock, after waiting for at most ``seconds``.

        Raises:
            BlockingIOError: another program still holds it.
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

    A tool that writes below a root that holds the record could declare itself trusted.

    Args:
        record: the file or folder that must be out of reach.
        roots: folders that tools may see.
        subject: its name in the message.
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
