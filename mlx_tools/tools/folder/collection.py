"""The user's tools folder: what is in it, whether it may run, adding to it, removing from it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlx_tools.errors import ConfigError, MlxToolsError, ToolDefinitionError, UsageError
from mlx_tools.messages import TOOL_NAME
from mlx_tools.paths import data_dir, private_dir
from mlx_tools.process import clean
from mlx_tools.store.roots import RootName, private_part
from mlx_tools.tools.folder.contents import write_files
from mlx_tools.tools.folder.definition import ToolFolder, read_folder
from mlx_tools.tools.folder.recovery import alone, any_left, drop, hidden, put_right
from mlx_tools.tools.folder.trust import FolderRecord, change_record, read_record

MAX_TOOLS: Final = 1000

PATIENCE: Final = 10.0
"""Seconds for which somebody else who changes the folder is waited for."""

UNKNOWN: Final = "nobody has said that it is trusted (mlx-tools tools trust {name})"
CHANGED: Final = (
    "its files are not those that were added: look at them (mlx-tools tools trust {name})"
)
OFF: Final = "switched off (mlx-tools tools enable {name})"
MISSING: Final = "it imports what is not installed: {packages}"


@dataclass(frozen=True, slots=True)
class Shelved:
    """A tool in the folder: what it is, where it could be read, and why it cannot run, None where
    it can."""

    name: str
    folder: ToolFolder | None
    reason: str | None = None


class Shelf:
    """The folder ``folder``, and the file ``record`` that says what of it is trusted. ``patience``:
    for so many seconds whoever changes the folder waits for others, whoever looks, a tenth.
    ``most``: so many tools are read."""

    def __init__(
        self, folder: Path, record: Path, patience: float = PATIENCE, most: int = MAX_TOOLS
    ) -> None:
        self.folder = folder.absolute()
        self.record = record
        self._patience = patience
        self._most = most

    @classmethod
    def of(cls, named: str | None = None) -> Shelf:
        """That of this user; ``named`` is another folder than the usual one."""
        data = data_dir()
        folder = data / "tools" if named is None else Path(named).expanduser()
        return cls(folder, data / "tools.json")

    def said(self) -> FolderRecord:
        """What the user said of tools. Raises ConfigError where that cannot be read."""
        return read_record(self.record)

    def tools(self) -> list[Shelved]:
        """What is in the folder, in order of names; what is wrong with one of them is a reason.
        Raises ConfigError where the folder, or what the user said, cannot be read."""
        self.said()  # also where there is no folder
        try:
            self._put_right()
            with self._unchanging():
                with os.scandir(self.folder) as found:
                    names = sorted(entry.name for entry in found if _may_be_tool(entry))
                said = self.said()
                shelved = [self._shelved(name, said) for name in names[: self._most]]
                return shelved + [_too_many(name, self._most) for name in names[self._most :]]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(
                f"the tools folder {self.folder} cannot be read: {error.strerror}",
                hint="free its name or its permissions, or name another as tools.folder",
            ) from None

    @contextlib.contextmanager
    def _unchanging(self) -> Iterator[None]:
        """Inside, nobody changes the folder, unless somebody does for long. Raises OSError."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(BlockingIOError):
                stack.enter_context(alone(self.folder, self._patience / 10, looks=True))
            yield

    def _shelved(self, name: str, said: FolderRecord) -> Shelved:
        path = self.path_of(name)
        if not TOOL_NAME.fullmatch(name):
            return Shelved(clean(name, 64), None, f"{name!r:.80} cannot name a tool")
        trusted = said.trusted.get(str(path))
        try:
            if os.path.islink(path):  # noqa: PTH114 - raises nothing
                raise ToolDefinitionError(f"{path} is a symbolic link")
            found = read_folder(path)
        except ToolDefinitionError as error:
            return Shelved(name, None, str(error))
        if found.spec.name != name:
            return Shelved(name, None, f"it holds the tool {found.spec.name}, not {name}")
        if trusted is None:
            return Shelved(name, None, UNKNOWN.format(name=name))
        if trusted != found.digest:
            return Shelved(name, None, CHANGED.format(name=name))
        if not said.switched.get(name, found.enabled):
            return Shelved(name, found, OFF.format(name=name))
        if found.missing:
            return Shelved(name, found, MISSING.format(packages=", ".join(found.missing)))
        return Shelved(name, found)

    def _put_right(self) -> None:
        """Has tools be whole again that somebody who was killed was about to replace. Raises
        OSError for a folder that cannot be read."""
        if not any_left(os.listdir(self.folder)):  # noqa: PTH208 - there may be very many
            return
        with contextlib.suppress(OSError), alone(self.folder, self._patience / 10) as sure:
            if sure:
                put_right(self.folder, self.said().trusted)

    def path_of(self, name: str) -> Path:
        """Where the folder of a tool is, or would be."""
        return self.folder / name

    def read(self, name: str) -> ToolFolder:
        """The tool of this name in the folder, trusted or not. Raises UsageError where there is
        none, ToolDefinitionError where it cannot be one."""
        path = self.path_of(name)
        if not TOOL_NAME.fullmatch(name) or name.startswith(".") or not path.is_dir():
            raise UsageError(f"there is no tool {name[:80]!r} in {self.folder}")
        if path.is_symlink():
            raise ToolDefinitionError(f"{path} is a symbolic link", hint="mlx-tools tools add DIR")
        found = read_folder(path)
        if found.spec.name != name:
            raise ToolDefinitionError(f"{path} holds the tool {found.spec.name}, not {name}")
        return found

    def add(self, found: ToolFolder) -> ToolFolder:
        """Copies a tool's files into the folder, in place of those it may have had, and trusts
        them. What is copied and trusted is what was read: the files may have changed since. Where
        it fails, what was there before is there again. Raises UsageError."""
        name, path = found.spec.name, self.path_of(found.spec.name)
        check_folder_name(name)
        private_dir(self.folder)
        draft = hidden(self.folder, name, "draft")
        try:
            with self._changing():
                try:
                    write_files(found.contents, draft)
                    with self._in_place(draft, path):
                        added = read_folder(path)
                        if _data(added) != _data(found):
                            raise UsageError(
                                f"{path} was changed by somebody else", hint="add it again"
                            )
                        self.trust(added)
                finally:
                    with contextlib.suppress(OSError):
                        drop(draft)
        except OSError as error:
            raise UsageError(f"{path} cannot be made: {error.strerror}") from None
        return added

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Inside, nobody else changes the folder, and nothing is left of those who did. Raises
        OSError."""
        with alone(self.folder, self._patience) as sure:
            if sure:
                put_right(self.folder, self.said().trusted)
            yield

    @contextlib.contextmanager
    def _in_place(self, draft: Path, path: Path) -> Iterator[None]:
        """Puts ``draft`` in the place of ``path``; where that, or what is done then, fails, all is
        as it was. Raises OSError."""
        old = hidden(self.folder, path.name, "old")
        if os.path.lexists(path):
            path.rename(old)
        try:
            draft.rename(path)
            yield
        except BaseException:
            if not os.path.lexists(draft):
                path.rename(draft)
            with contextlib.suppress(FileNotFoundError):
                old.rename(path)
            raise
        with contextlib.suppress(OSError):  # nobody sees it there
            drop(old)

    def trust(self, found: ToolFolder) -> None:
        """Lets a tool's files run as they were read, and as long as they stay so."""
        self._change(lambda said: said.trusting(found.path, found.digest))

    def switch(self, name: str, on: bool | None) -> None:
        """Has the tool of this name on or off, or with None as it is by itself."""
        self._change(lambda said: said.switching(name, on))

    def remove(self, name: str) -> None:
        """Deletes the folder of a tool, whatever is in it, and forgets what was said of it. Raises
        UsageError where there is none, and where it cannot be moved away: all is then as it was."""
        path, gone = self.must_have(name), hidden(self.folder, name, "gone")
        try:
            with self._changing():
                path.rename(gone)
                self._forget(path, gone)
                try:
                    drop(gone)
                except OSError as error:
                    where = error.filename or gone
                    raise UsageError(
                        f"{name} is no tool any more, but {where} cannot be deleted: "
                        f"{error.strerror}",
                        hint=f"delete {gone} yourself",
                    ) from None
        except OSError as error:
            raise UsageError(f"{path} cannot be removed: {error.strerror}") from None

    def _forget(self, path: Path, gone: Path) -> None:
        """Forgets what was said of the tool that was moved away; where that fails it is back."""
        try:
            self._change(lambda said: said.trusting(path, None).switching(path.name, None))
        except MlxToolsError:
            gone.rename(path)
            raise

    def must_have(self, name: str) -> Path:
        """Where the folder of this tool is, whatever is in it. Raises UsageError where there is
        none."""
        path = self.path_of(name)
        if not TOOL_NAME.fullmatch(name) or name.startswith(".") or not os.path.lexists(path):
            raise UsageError(f"there is no tool {name[:80]!r} in {self.folder}")
        return path

    def _change(self, change: Callable[[FolderRecord], FolderRecord]) -> None:
        change_record(self.record, change)


def exposed_by(shelf: Shelf, roots: Iterable[str]) -> str | None:
    """Why no tool of the folder may run beside these roots, None where they may: a tool that writes
    below a root could say itself which files are trusted."""
    record = shelf.record.resolve()
    for root in map(RootName.parse, roots):
        top = Path(root.path).expanduser().resolve()
        if not root.writable or not record.is_relative_to(top):
            continue
        if private_part(record.relative_to(top).parts, top.name, writing=True) is None:
            return f"what says which of them are trusted, {record}, lies below the root {root.path}"
    return None


def check_folder_name(name: str) -> None:
    """Raises UsageError for a tool's name that its folder cannot have: one that is passed over as
    hidden, or that a command would take for an option."""
    if name.startswith((".", "-")):
        raise UsageError(f"{name} cannot be the name of a tool's folder", hint="begin otherwise")


def _too_many(name: str, most: int) -> Shelved:
    return Shelved(clean(name, 64), None, f"it is not read: there are {most} others before it")


def _may_be_tool(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or what cannot be looked at."""
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:
        return True


def _data(folder: ToolFolder) -> dict[str, bytes]:
    """What is in its files. Not every file system keeps whether they may be executed."""
    return {name: file.data for name, file in folder.contents.items()}
