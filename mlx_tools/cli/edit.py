"""A text changed by hand: in the user's editor, or on a line where there is none."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from mlx_tools.cli import inputs
from mlx_tools.cli.escape import in_words
from mlx_tools.cli.keys import read_line, terminal_kept
from mlx_tools.errors import UsageError

_NAME: Final = "arguments.json"


class EditFailed(Exception):
    """Nothing was changed, and the message says why."""


def edited(text: str, keyboard: TextIO, screen: TextIO) -> str:
    """``text`` as the user leaves it.

    The editor is that of ``VISUAL`` (not on a dumb terminal) or ``EDITOR``; it is started without a
    shell, on a file that only the user can read. Without one a line is read. Raises `EditFailed`.
    """
    command = editor(os.environ)
    if command:
        return _in_editor(command, text, keyboard, screen)
    print(f"VISUAL and EDITOR name no editor. Now it is:\n{in_words(text)}", file=screen)
    print("The arguments, on one line: ", end="", file=screen, flush=True)
    line = read_line(keyboard)
    if not line or not line.strip():
        raise EditFailed("nothing was typed")
    return line


def editor(environ: Mapping[str, str]) -> list[str]:
    """The user's editor as a program and its arguments, empty where none is named.

    Raises `EditFailed` where what is named is no command.
    """
    names = ("EDITOR",) if environ.get("TERM") == "dumb" else ("VISUAL", "EDITOR")
    for name in names:
        if environ.get(name, "").strip():
            try:
                return shlex.split(environ[name])
            except ValueError as error:
                raise EditFailed(f"{name} is no command: {error}") from None
    return []


def as_arguments(text: str) -> dict[str, Any]:
    """The arguments that an edited text holds. Raises `UsageError` saying what is wrong with it."""
    value = inputs.parse_json(text, "the arguments")
    if not isinstance(value, dict):
        raise UsageError("the arguments: expected an object")
    return value


def _in_editor(command: list[str], text: str, keyboard: TextIO, screen: TextIO) -> str:
    try:
        folder = Path(tempfile.mkdtemp(prefix="mlx-tools-"))  # for the user alone
    except OSError as error:
        raise EditFailed(f"there is no place for a file to edit: {error.strerror}") from None
    try:
        path = folder / _NAME
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as out:
            out.write(text + "\n")
        with terminal_kept(keyboard), _interrupts_left_to_others():
            code = subprocess.run(  # noqa: S603 (the user's own command)
                [*command, str(path)], stdin=keyboard.fileno(), stdout=screen, stderr=screen
            ).returncode
        if code != 0:
            raise EditFailed(f"{command[0]} ended with exit code {code}")
        return path.read_bytes()[: inputs.MAX_BYTES].decode("utf-8-sig").removesuffix("\n")
    except OSError as error:
        raise EditFailed(f"{command[0]}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise EditFailed("what was saved is not UTF-8") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _interrupts_left_to_others() -> Iterator[None]:
    """Ctrl-C in an editor is the editor's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # a handler, unlike "ignored", is not inherited by the editor
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
