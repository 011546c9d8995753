"""The user's tools folder: what is in it, whether it may run, adding to it, removing from it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, ValidationError, convert, to_builtins

from mlx_tools.errors import (
    ConfigError,
    MlxToolsError,
    ToolDefinitionError,
    UsageError,
    translate_os_error,
)
from mlx_tools.messages import ALIASES, TOOL_NAME, replace
from mlx_tools.paths import data_dir, expand_user, private_dir, read_data, read_private, write_whole
from mlx_tools.process import clean
from mlx_tools.store import RootName, private_part
from mlx_tools.tools.folder.definition import ToolFolder, read_folder, write_files

PATIENCE: Final = 10.0
"""Seconds for which somebody else who changes the folder is waited for."""

UNKNOWN: Final = "nobody has said that it is trusted (mlx-tools tools trust {name})"
CHANGED: Final = (
    "its files are not those that were added: look at them (mlx-tools tools trust {name})"
)
OFF: Final = "switched off (mlx-tools tools enable {name})"
MISSING: Final = "it imports what is not installed: {packages}"


class CollectedTool(Struct, frozen=True):
    """A tool in the folder: what it is, where it could be read, and why it cannot run, None where
    it can. ``log``: it is used where it is made, and what its last call printed stands there."""

    name: str
    folder: ToolFolder | None
    reason: str | None = None
    log: Path | None = None


class ToolCollection:
    """The user's: the folder ``tools`` where data is kept, and the file ``tools.json`` that says
    what of it is trusted. ``patience``: for so many seconds whoever changes the folder waits for
    others, whoever looks, a tenth.

    A change is made beside a tool's folder, under a name that is passed over, and put in its place
    by renaming. Who changes something has all to itself meanwhile; what is left beside when nobody
    has it was left by somebody who was killed, and is put right by whoever comes next.
    """

    def __init__(self, data: Path | None = None, patience: float = PATIENCE) -> None:
        data = (data or data_dir()).absolute()
        self.folder, self.record = data / "tools", data / "tools.json"
        self._patience = patience

    def said(self) -> FolderRecord:
        """Return what the user said of tools. Raises ConfigError where that cannot be read."""
        return read_record(self.record)

    def tools(self) -> list[CollectedTool]:
        """Return what is in the folder, in order of names; what is wrong with one of them is a
        reason. Those that are being made come last, in place of any of their names. Raises
        ConfigError where the folder, or what the user said, cannot be read."""
        making = self.said().making  # also where there is no folder
        added = [one for one in self._collect() if one.name not in making]
        said = self.said()
        return added + [self._collected(name, said, Path(path)) for name, path in making.items()]

    def log_of(self, name: str) -> Path:
        """Return where what the last call of a tool that is being made printed is kept."""
        return self.record.parent / "making" / f"{name}.log"

    def make(self, name: str, path: Path | None) -> None:
        """Use a tool in the folder where somebody makes it, whatever is in it; with None no
        more."""
        self._change("making", name, None if path is None else str(path))
        if path is None:
            self.log_of(name).unlink(missing_ok=True)

    def _collect(self) -> list[CollectedTool]:
        try:
            if not self.folder.exists():
                return []
            with contextlib.ExitStack() as stack:
                with contextlib.suppress(OSError):  # it is changed for long, or is read-only
                    stack.enter_context(self._locked(self._patience / 10))
                    self._put_right()
                with os.scandir(self.folder) as found:
                    names = sorted(entry.name for entry in found if _may_be_tool(entry))
                said = self.said()
                return [self._collected(name, said) for name in names]
        except OSError as error:
            raise ConfigError(
                f"the tools folder {self.folder} cannot be read: {error.strerror}",
                hint="free its name or its permissions",
            ) from None

    def _collected(
        self, name: str, record: FolderRecord, making: Path | None = None
    ) -> CollectedTool:
        """A tool in the folder, or of the folder in which it is being made. Nothing is read of one
        that nobody trusts."""
        if not TOOL_NAME.fullmatch(name):
            return CollectedTool(clean(name, 64), None, f"{name!r:.80} cannot name a tool")
        trusted = record.trusted.get(str(self.folder / name))
        if making is None and trusted is None:
            return CollectedTool(name, None, UNKNOWN.format(name=name))
        try:
            found = self.read(name) if making is None else _read_named(making, name)
        except UsageError as error:
            return CollectedTool(name, None, str(error))
        if making is None and found.digest not in (trusted or "").split():
            return CollectedTool(name, None, CHANGED.format(name=name))
        reason = MISSING.format(packages=", ".join(found.missing)) if found.missing else None
        if not record.switched.get(name, found.enabled):
            reason = OFF.format(name=name)
        return CollectedTool(name, found, reason, None if making is None else self.log_of(name))

    def read(self, name: str) -> ToolFolder:
        """The tool of this name in the folder, trusted or not. Raises UsageError where there is
        none, ToolDefinitionError where it cannot be one."""
        path = self.must_have(name)
        if path.is_symlink():
            raise ToolDefinitionError(f"{path} is a symbolic link", hint="mlx-tools tools add DIR")
        if not path.is_dir():
            raise UsageError(f"there is no tool {name[:80]!r} in {self.folder}")
        return _read_named(path, name)

    def must_have(self, name: str) -> Path:
        """Return where the folder of this tool is, whatever is in it. Raises UsageError where there
        is none."""
        path = self.folder / name
        if not TOOL_NAME.fullmatch(name) or name.startswith(".") or not os.path.lexists(path):
            raise UsageError(f"there is no tool {name[:80]!r} in {self.folder}")
        return path

    def add(self, folder: ToolFolder) -> ToolFolder:
        """Copies a tool's files into the folder, in place of those it may have had, and trusts
        them. What is copied and trusted is what was read: the files may have changed since. Where
        it fails, what was there before is there again. Raises UsageError."""
        name, path = folder.spec.name, self.folder / folder.spec.name
        check_folder_name(name)
        private_dir(self.folder)
        draft = self._sibling_path(name, "draft")
        with translate_os_error(UsageError, f"{path} cannot be made"), self._changing():
            write_files(folder.contents, draft)
            added = replace(read_folder(draft), path=path)
            # not every file system keeps whether files may be executed
            now, then = ({n: f.data for n, f in one.contents.items()} for one in (added, folder))
            if now != then:
                raise UsageError(f"{path} was changed by somebody else", hint="add it again")
            before = self.said()
            was = before.trusted.get(str(path), "")
            # either is trusted until the new one is in its place: whoever is killed leaves both
            self._write(before.saying("trusted", str(path), f"{was} {added.digest}"))
            try:
                if os.path.lexists(path):
                    path.rename(self._sibling_path(name, "old"))
                draft.rename(path)
            except OSError:
                self._write(before)
                raise
            trusted = before.saying("trusted", str(path), added.digest)
            self._write(trusted.saying("making", name, None))
        return added

    def trust(self, folder: ToolFolder) -> None:
        """Let a tool's files run as they were read, and as long as they stay so."""
        self._change("trusted", str(folder.path), folder.digest)

    def switch(self, name: str, is_on: bool | None) -> None:
        """Has the tool of this name on or off, or with None as it is by itself."""
        self._change("switched", name, is_on)

    def remove(self, name: str) -> None:
        """Deletes the folder of a tool, whatever is in it, and forgets what was said of it. Raises
        UsageError where there is none, and where it cannot be moved away: all is then as it was."""
        path, gone = self.must_have(name), self._sibling_path(name, "gone")
        with translate_os_error(UsageError, f"{path} cannot be removed"), self._changing():
            path.rename(gone)
            try:
                unsaid = self.said().saying("trusted", str(path), None)
                self._write(unsaid.saying("switched", name, None))
            except MlxToolsError:  # nothing was forgotten: it is back
                gone.rename(path)
                raise
        if os.path.lexists(gone):
            raise UsageError(
                f"{name} is no tool any more, but {gone} cannot be deleted", hint="do so yourself"
            )

    # --- changes, one after the other ---

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Inside, nobody else changes anything; before and after, nothing is left of a change.
        Raises UsageError where somebody else is at it for long."""
        private_dir(self.record.parent)
        with contextlib.ExitStack() as held:
            with translate_os_error(ConfigError, f"{self.record} cannot be written"):
                try:
                    held.enter_context(self._locked(self._patience))
                except BlockingIOError:
                    why = "another program is changing the tools folder"
                    raise UsageError(f"{self.folder} cannot be changed: {why}") from None
            self._put_right()
            try:
                yield
            finally:
                self._put_right()

    @contextlib.contextmanager
    def _locked(self, seconds: float) -> Iterator[None]:
        """Holds the lock of the folder, which is waited for so long. Raises BlockingIOError where
        somebody else has it then."""
        path = self.record.with_name(f".{self.record.name}.lock")
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
                    time.sleep(_LOOK)
            yield
        finally:
            os.close(descriptor)

    def _sibling_path(self, name: str, kind: Literal["draft", "old", "gone"]) -> Path:
        """A path that is passed over as a tool: for what is not yet one, what is none while another
        takes its place, what is removed."""
        return self.folder / f".{name}.{kind}"

    def _put_right(self) -> None:
        """Deletes what a change left beside; a tool that nothing has taken the place of comes
        back. What the system refuses is left as it is."""
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.iterdir()):
                left = _LEFTOVER.fullmatch(path.name)
                if left is None:
                    continue
                with contextlib.suppress(OSError):
                    place = self.folder / left["name"]
                    if left["kind"] == "old" and not os.path.lexists(place):
                        path.rename(place)
                    elif path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink()

    def _change(self, record_field: SaidOf, key: str, value: str | bool | None) -> None:
        """Changes what the user said. Raises ConfigError where it cannot be read or written."""
        with self._changing():
            self._write(self.said().saying(record_field, key, value))

    def _write(self, record: FolderRecord) -> None:
        """Writes what the user said, whole or not at all. Raises ConfigError."""
        text = json.dumps(to_builtins(record, order="sorted"), indent=1)
        with translate_os_error(ConfigError, f"{self.record} cannot be written"):
            write_whole(self.record, text.encode() + b"\n")


_LEFTOVER: Final = re.compile(r"\.(?P<name>.+)\.(?P<kind>draft|old|gone)")
_LOOK: Final = 0.02
"""Seconds between two tries to get a lock."""


def exposed_by(
    record: Path, roots: Iterable[str], subject: str = "what says which of them are trusted"
) -> str | None:
    """Return why no tool that ``record`` vouches for may run beside these roots, None where they
    may: a tool that writes below a root could say itself what is trusted. ``subject`` it is."""
    record = record.resolve()
    for root in map(RootName.parse, roots):
        top = expand_user(root.path).resolve()
        below = record.is_relative_to(top)
        if not root.writable or not (below or top.is_relative_to(record)):
            continue
        parts = record.relative_to(top).parts if below else ()
        if private_part(parts, top.name, writing=True) is None:
            return f"{subject}, {record}, lies {'below' if below else 'above'} the root {root.path}"
    return None


def check_folder_name(name: str) -> None:
    """Raises UsageError for a tool's name that its folder cannot have: one that is passed over as
    hidden, or that a command would take for an option."""
    if name.startswith((".", "-")):
        raise UsageError(f"{name} cannot be the name of a tool's folder", hint="begin otherwise")


def _may_be_tool(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or what cannot be looked at."""
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:
        return True


def _read_named(path: Path, name: str) -> ToolFolder:
    found = read_folder(path)
    if found.spec.name != name:
        raise ToolDefinitionError(f"{path} holds the tool {found.spec.name}, not {name}")
    return found


# --- what the user said of tools ------------------------------------------------------------------
#
# Kept in one file, apart from the tools' folders: whoever may write there cannot vouch for it.

MAX_RECORD_BYTES: Final = 4_000_000
_HINT: Final = "look at it; without it no tool's folder is trusted, and no tool is switched off"

SaidOf = Literal["trusted", "switched", "making"]


class FolderRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """``trusted`` has the digests of each folder that was added, one but while it is replaced, by
    its path; ``switched`` whether a tool is on or off, by its name, where the user said so;
    ``making`` the folders in which tools are made, by the tool's name."""

    version: Literal[1]
    trusted: dict[str, str]
    switched: dict[str, bool]
    making: dict[str, str] = {}

    def saying(self, record_field: SaidOf, key: str, value: str | bool | None) -> FolderRecord:
        """The same with this said of a folder or a tool, or with None nothing of the kind."""
        others = {other: was for other, was in getattr(self, record_field).items() if other != key}
        now: dict[str, Any] = {record_field: others if value is None else others | {key: value}}
        return replace(self, **now)


NOTHING_SAID: Final = FolderRecord(1, {}, {})


def read_record(path: Path) -> FolderRecord:
    """Return what stands in the file; nothing where there is none. Raises ConfigError where it
    cannot be read as one: what was switched off must not come back."""
    with translate_os_error(ConfigError, f"{path} cannot be read", _HINT):
        try:
            data = read_private(path, MAX_RECORD_BYTES)
        except FileNotFoundError:
            return NOTHING_SAID
    try:
        return convert(json.loads(data), FolderRecord)
    except (ValidationError, ValueError, RecursionError):
        raise ConfigError(f"{path} is damaged", hint=_HINT) from None


# --- a new tool to begin with, from the files in prompts/new-tool/ --------------------------------

_TEMPLATE: Final = {
    "config.json": "config.json",
    "tool_definition.json": "tool_definition.json",
    "execute.py": "execute.txt",
    "test_{name}.py": "test.txt",
}
"""The files of a tool, each with the one it is made of."""


def write_template(folder: Path, name: str) -> Path:
    """Makes the folder ``name`` in ``folder``: a tool of that name that works, and a test of it.

    Returns its path. Raises UsageError where the name cannot be a tool's, or is taken.
    """
    if not TOOL_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r:.80} cannot name a tool", hint="use 1 to 64 of A-Z a-z 0-9 _ . -"
        )
    check_folder_name(name)
    if name in ALIASES:
        raise UsageError(f"{name} is another name of {ALIASES[name]}", hint="give yours another")
    made = folder.absolute() / name
    with translate_os_error(UsageError, f"{made} cannot be made"):
        try:
            made.mkdir()
        except FileExistsError:
            hint = "name another, or remove it"
            raise UsageError(f"{made} is there already", hint=hint) from None
        try:
            for file, source in _TEMPLATE.items():
                text = read_data(f"prompts/new-tool/{source}").replace("{{name}}", name)
                file = file.format(name=re.sub(r"\W", "_", name))
                (made / file).write_text(text, encoding="utf-8")
        except OSError:
            shutil.rmtree(made, ignore_errors=True)  # half a tool would only be in the way
            raise
    return made
