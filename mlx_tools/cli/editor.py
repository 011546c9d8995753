"""The user's own editor, for what is changed by hand."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from mlx_tools.cli import inputs
from mlx_tools.cli.inputs import handled, terminal_kept


class EditFailed(Exception):
    """Nothing was changed, and the message says why."""


def editor_of(environ: Mapping[str, str]) -> list[str]:
    """The user's editor as a program and its arguments, empty where there is none, or the terminal
    can show none.

    Raises `EditFailed` where what is named is no command.
    """
    dumb = environ.get("TERM") == "dumb"
    for name in ("EDITOR",) if dumb else ("VISUAL", "EDITOR"):
        if environ.get(name, "").strip():
            try:
                return shlex.split(environ[name])
            except ValueError as error:
                raise EditFailed(f"{name} is no command: {error}") from None
    found = None if dumb else shutil.which("nano") or shutil.which("vi")
    return [found] if found else []


def in_editor(command: list[str], text: str, name: str, keyboard: TextIO, screen: TextIO) -> str:
    """``text`` as the user leaves it, in a file of this name that only the user can read.

    The editor is started without a shell. Raises `EditFailed`.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="mlx-tools-"))  # for the user alone
    except OSError as error:
        raise EditFailed(f"there is no place for a file to edit: {error.strerror}") from None
    try:
        path = folder / name
        path.touch(mode=0o600)
        path.write_text(text + "\n", encoding="utf-8")
        # Ctrl-C in an editor is the editor's; a handler, unlike "ignored", is not inherited by it
        with terminal_kept(keyboard), handled(signal.SIGINT, lambda *_: None):
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
