"""The user's tools folder: lists, checks, adds and removes tools."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from mlx_tools.errors import (
    ConfigError,
    MlxToolsError,
    ToolDefinitionError,
    UsageError,
    translate_os_error,
)
from mlx_tools.messages import ALIASES, TOOL_NAME, replace
from mlx_tools.paths import data_dir, folder_exists, private_dir, read_data
from mlx_tools.plugins.folders.definition import ToolFolder, read_folder, write_files
from mlx_tools.process import clean
from mlx_tools.tools import LOCK_SECONDS, OFF_REASON, UserChoices, UserChoicesFile

UNTRUSTED_REASON: Final = "it is not trusted yet (mlx-tools tools trust {name})"
CHANGED_REASON: Final = (
    "its files have changed since they were added: check them (mlx-tools tools trust {name})"
)
NO_FOLDER_REASON: Final = "it is no folder (mlx-tools tools remove {name})"
MISSING_REASON: Final = "it needs packages that are not installed: {packages}"


class CollectedTool(Struct, frozen=True):
    """A tool in the folder."""

    name: str
    folder: ToolFolder | None
    """Its files, None if they could not be read."""
    reason: str | None = None
    """The reason why it cannot run, None if it can."""
    log: Path | None = None
    """The file with the output of its last call, for a tool in the making."""


class ToolCollection:
    """The user's folder ``tools``, and the user's choices about the tools in it.

    A change is made in a hidden folder next to that of the tool, and put in place by renaming. A
    lock keeps other programs out meanwhile. If there is a hidden folder while the lock is free, it
    was left by a program that was killed, and the next change cleans it up.

    Args:
        data: the folder with the user's data.
        patience: seconds that a change waits for the lock. Reading waits a tenth of it.
    """

    def __init__(self, data: Path | None = None, patience: float = LOCK_SECONDS) -> None:
        data = (data or data_dir()).absolute()
        self.folder, self.choices = data / "tools", UserChoicesFile(data, patience)

    def tools(self) -> list[CollectedTool]:
        """Return the tools in the folder, sorted by name; a faulty one has a reason.

        Tools in the making come last, and replace others of the same name.

        Raises:
            ConfigError: the folder or the user's choices cannot be read.
        """
        making = self.choices.load().making  # even if there is no tools folder
        added = [tool for tool in self._collect() if tool.name not in making]
        choices = self.choices.load()
        return added + [self._make_tool(name, choices, Path(path)) for name, path in making.items()]

    def log_path(self, name: str) -> Path:
        """Return the file with the output of the last call of a tool in the making."""
        return self.choices.path.parent / "making" / f"{name}.log"

    def make(self, name: str, path: Path | None) -> None:
        """Use a tool in the folder where it is being made; None ends that."""
        self._set_entry("making", name, None if path is None else str(path))
        if path is None:
            self.log_path(name).unlink(missing_ok=True)

    def _collect(self) -> list[CollectedTool]:
        try:
            if not self.folder.exists():
                return []
            with contextlib.ExitStack() as stack:
                with contextlib.suppress(OSError):  # another change takes long, or it is read-only
                    stack.enter_context(self.choices.lock(self.choices.patience / 10))
                    self._clean_up()
                with os.scandir(self.folder) as scanned:
                    names = sorted(entry.name for entry in scanned if _may_be_tool(entry))
                choices = self.choices.load()
                return [self._make_tool(name, choices) for name in names]
        except OSError as error:
            raise ConfigError(
                f"the tools folder {self.folder} cannot be read: {error.strerror}",
                hint="free its name or its permissions",
            ) from None

    def _make_tool(
        self, name: str, choices: UserChoices, making: Path | None = None
    ) -> CollectedTool:
        """Return a tool in the folder, or in the folder where it is being made.

        The files of a tool that is not trusted are not read.
        """
        if not TOOL_NAME.fullmatch(name):
            return CollectedTool(clean(name, 64), None, f"{name!r:.80} cannot name a tool")
        path = self.folder / name
        if making is None and os.path.lexists(path) and not folder_exists(path):
            return CollectedTool(name, None, NO_FOLDER_REASON.format(name=name))
        trusted = choices.trusted.get(str(path))
        if making is None and trusted is None:
            return CollectedTool(name, None, UNTRUSTED_REASON.format(name=name))
        try:
            folder = self.read(name) if making is None else _read_named(making, name)
        except UsageError as error:
            return CollectedTool(name, None, str(error))
        if making is None and folder.digest not in (trusted or "").split():
            return CollectedTool(name, None, CHANGED_REASON.format(name=name))
        reason = (
            MISSING_REASON.format(packages=", ".join(folder.missing)) if folder.missing else None
        )
        if not choices.switched.get(name, folder.enabled):
            reason = OFF_REASON.format(name=name)
        return CollectedTool(name, folder, reason, None if making is None else self.log_path(name))

    def read(self, name: str) -> ToolFolder:
        """Return the tool of this name in the folder, trusted or not.

        Raises:
            UsageError: there is no such tool.
            ToolDefinitionError: its files are not those of a tool.
        """
        path = self.find_folder(name)
        if path.is_symlink():
            raise ToolDefinitionError(f"{path} is a symbolic link", hint="mlx-tools tools add DIR")
        if not path.is_dir():
            raise UsageError(f"there is no tool {name[:80]!r} in {self.folder}")
        return _read_named(path, name)

    def find_folder(self, name: str) -> Path:
        """Return the path of this tool's folder, without reading its files.

        Raises:
            UsageError: there is no such folder.
        """
        path = self.folder / name
        if not TOOL_NAME.fullmatch(name) or name.startswith(".") or not os.path.lexists(path):
            raise UsageError(f"there is no tool {name[:80]!r} in {self.folder}")
        return path

    def add(self, folder: ToolFolder) -> ToolFolder:
        """Copy a tool's files into the folder, in place of older ones, and trust them.

        The copy is made from the content in memory, because the files may have changed since. If it
        fails, the old state is restored.

        Raises:
            UsageError: the tool cannot be added.
        """
        name, path = folder.spec.name, self.folder / folder.spec.name
        check_folder_name(name)
        private_dir(self.folder)
        draft = self._make_sibling_path(name, "draft")
        with translate_os_error(UsageError, f"{path} cannot be made"), self._hold_change():
            write_files(folder.contents, draft)
            added = replace(read_folder(draft), path=path)
            # not every file system stores the right to execute files
            now, then = (
                {n: f.data for n, f in tool_folder.contents.items()}
                for tool_folder in (added, folder)
            )
            if now != then:
                raise UsageError(f"{path} was changed by another program", hint="add it again")
            old_choices = self.choices.load()
            old_digest = old_choices.trusted.get(str(path), "")
            # The order matters if the process is killed. First both digests are trusted, then the
            # folders are exchanged, then only the new digest is trusted. So the folder in place is
            # trusted at every moment.
            self.choices.write(
                old_choices.with_entry("trusted", str(path), f"{old_digest} {added.digest}")
            )
            try:
                if os.path.lexists(path):
                    path.rename(self._make_sibling_path(name, "old"))
                draft.rename(path)
            except OSError:
                self.choices.write(old_choices)
                raise
            trusted = old_choices.with_entry("trusted", str(path), added.digest)
            self.choices.write(trusted.with_entry("making", name, None))
        return added

    def trust(self, folder: ToolFolder) -> None:
        """Trust a tool's files with their present content, until they change."""
        self._set_entry("trusted", str(folder.path), folder.digest)

    def remove(self, name: str) -> None:
        """Delete a tool's folder and the choices about it.

        Raises:
            UsageError: there is no such tool, or it cannot be moved. Then nothing has changed.
        """
        path, trash = self.find_folder(name), self._make_sibling_path(name, "gone")
        with translate_os_error(UsageError, f"{path} cannot be removed"), self._hold_change():
            path.rename(trash)
            try:
                choices = self.choices.load().with_entry("trusted", str(path), None)
                self.choices.write(choices.with_entry("switched", name, None))
            except MlxToolsError:  # the choices could not be changed, so the folder comes back
                trash.rename(path)
                raise
        if os.path.lexists(trash):
            raise UsageError(
                f"{name} was removed, but {trash} cannot be deleted", hint="delete it yourself"
            )

    # --- changes, one after the other ---

    @contextlib.contextmanager
    def _hold_change(self) -> Iterator[None]:
        """Lock the folder, and clean up before and after.

        Raises:
            UsageError: another program has the lock for too long.
        """
        with self.choices.hold_change():
            self._clean_up()
            try:
                yield
            finally:
                self._clean_up()

    def _make_sibling_path(self, name: str, kind: Literal["draft", "old", "gone"]) -> Path:
        """Return a hidden path next to a tool: for a new, a replaced or a removed one."""
        return self.folder / f".{name}.{kind}"

    def _clean_up(self) -> None:
        """Delete leftovers of a change; restore a tool that was moved and not replaced.

        Leftovers that the system does not let us delete stay.
        """
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.iterdir()):
                leftover = _LEFTOVER.fullmatch(path.name)
                if leftover is None:
                    continue
                with contextlib.suppress(OSError):
                    place = self.folder / leftover["name"]
                    # The program was killed between the two renames of `add`, so the old folder is
                    # the tool.
                    if leftover["kind"] == "old" and not os.path.lexists(place):
                        path.rename(place)
                    elif path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink()

    def _set_entry(
        self, choice_field: Literal["trusted", "making"], key: str, value: str | bool | None
    ) -> None:
        """Change one entry of the user's choices. Raises ConfigError."""
        with self._hold_change():
            self.choices.write(self.choices.load().with_entry(choice_field, key, value))


_LEFTOVER: Final = re.compile(r"\.(?P<name>.+)\.(?P<kind>draft|old|gone)")


def check_folder_name(name: str) -> None:
    """Raise UsageError for a tool's name that its folder cannot have.

    Such a name would be hidden, or look like an option to a command.
    """
    if name.startswith((".", "-")):
        raise UsageError(f"{name} cannot be the name of a tool's folder", hint="begin otherwise")


def _may_be_tool(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, has a tool's name, or cannot be examined."""
    if entry.name.startswith("."):
        return False
    try:
        return TOOL_NAME.fullmatch(entry.name) is not None or entry.is_dir()
    except OSError:
        return True


def _read_named(path: Path, name: str) -> ToolFolder:
    folder = read_folder(path)
    if folder.spec.name != name:
        raise ToolDefinitionError(f"{path} holds the tool {folder.spec.name}, not {name}")
    return folder


# --- a new tool to begin with, from the files in prompts/new-tool/ --------------------------------

_TEMPLATE: Final = {
    "config.json": "config.json",
    "tool_definition.json": "tool_definition.json",
    "execute.py": "execute.txt",
    "test_{name}.py": "test.txt",
}
"""The files of a new tool, each with its template."""


def write_template(folder: Path, name: str) -> Path:
    """Create a new tool in ``folder``, which works, with a test. Return its path.

    Raises:
        UsageError: the name cannot be a tool's, or is taken.
    """
    if not TOOL_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r:.80} cannot name a tool", hint="use 1 to 64 of A-Z a-z 0-9 _ . -"
        )
    check_folder_name(name)
    if name in ALIASES:
        raise UsageError(f"{name} is another name of {ALIASES[name]}", hint="give yours another")
    path = folder.absolute() / name
    with translate_os_error(UsageError, f"{path} cannot be made"):
        try:
            path.mkdir()
        except FileExistsError:
            hint = "name another, or remove it"
            raise UsageError(f"{path} is there already", hint=hint) from None
        try:
            for file, source in _TEMPLATE.items():
                text = read_data(f"prompts/new-tool/{source}").replace("{{name}}", name)
                file = file.format(name=re.sub(r"\W", "_", name))
                (path / file).write_text(text, encoding="utf-8")
        except OSError:
            shutil.rmtree(path, ignore_errors=True)  # an incomplete tool would block the name
            raise
    return path
