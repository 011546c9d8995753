"""Input: files, standard input, the JSON in them, and typed text.

Each error is one line.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import termios
import threading
import tty
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO, TypeVar

from mlx_tools.cli.call_text import escape_line
from mlx_tools.cli.output import count_columns, cut, note, steerable, wrap_line
from mlx_tools.errors import UsageError
from mlx_tools.parsing import HOOKS, Unreadable
from mlx_tools.paths import expand_user, file_exists, folder_exists, read_regular
from mlx_tools.store import find_private_part

T = TypeVar("T")

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of an input, at most: a larger one is a mistake, and no question, completion or list."""

_OPEN_FILE = re.compile(r"/dev/(?:stdin|fd/[0-9]+)|/proc/self/fd/[0-9]+")
"""Paths of files that this process was started with."""

_SILENCE_SECONDS = 3.0
"""Seconds of silence after which a person is told what the program waits for."""


def read_bytes(path: Path | None) -> bytes:
    """Return the bytes of a file, or of standard input if ``path`` is None or ``-``.

    Raises:
        UsageError: the file cannot be read.
    """
    if path is None or str(path) == "-":
        return _stdin_bytes()
    try:
        if _OPEN_FILE.fullmatch(str(path)):  # the shell's file for <(COMMAND) may be a pipe
            with path.open("rb") as file:
                return _read_bounded(file, str(path))
        return read_regular(path, MAX_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def read_text(path: Path | None = None) -> str:
    """Return the text of a file, or of standard input.

    Raises:
        UsageError: it is not UTF-8.
    """
    return decode_text(read_bytes(path), "standard input" if path is None else str(path))


_FILE_NAME: Final = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_LIKE_A_PATH: Final = re.compile(r"[\w./~-]*(?:/[\w.-]+|\.\w{1,5})")
"""In a typed line; pasted code has such words that mean something else."""
_END_MARKS: Final = ".,;:!?)"
"""Marks that end a sentence rather than a file's name."""

MAX_FILE_BYTES: Final = 200_000
"""Bytes of a file that goes with a question: some 50,000 tokens, more than most contexts take."""


def with_files(question: str) -> tuple[str, int]:
    """Add the text of each file that a question names as ``@PATH``.

    Returns the question, and how many characters were added.

    Raises `UsageError` for a file that is private, too large or no text, and for a folder. What
    names no file is left as it is; a note says so of what looks like a path.
    """
    texts = {}
    for quoted, bare in _FILE_NAME.findall(question):
        names = (quoted,) if quoted else (bare, bare.rstrip(_END_MARKS))
        paths = [path for path in map(expand_user, filter(None, names)) if file_exists(path)]
        if paths:
            texts[str(paths[0])] = _file_text(paths[0])
        elif "\n" not in question and (quoted or _LIKE_A_PATH.fullmatch(names[-1])):
            note(f"there is no file {escape_line(names[-1])}: the question was sent as it stands")
    added = "".join(f"\n\n{path}:\n{text}" for path, text in texts.items())
    for path, text in texts.items():
        note(f"with the {len(text):,} characters of {path}")
    return question + added, len(added)


def _file_text(path: Path) -> str:
    if folder_exists(path):
        raise UsageError(f"{path} is a folder", hint="/root DIR lets tools see it")
    real = path.resolve()
    if (private := find_private_part(real.parts)) is not None:
        raise UsageError(f"{path} is private ({private}), and nothing was sent")
    try:
        return decode_text(read_regular(real, MAX_FILE_BYTES), str(path))
    except OSError as error:
        hint = "/root DIR lets a tool read it in parts"
        raise UsageError(f"{path}: {error.strerror or error}", hint=hint) from None


def decode_text(data: bytes, name: str) -> str:
    """Return bytes as text.

    Raises:
        UsageError: they are not UTF-8; if they are an image, says what to do with one.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        position = error.start
    from mlx_tools.toolbox import guess_kind

    if (kind := guess_kind(data[:32], name)).startswith("image/"):
        raise UsageError(
            f"{name} is an image ({kind}), and the model reads text only",
            hint="the tool describe_image tells what is in one: name the file in the question, and "
            "give --tools describe_image --root DIR",
        )
    raise UsageError(f"{name}: not UTF-8 at byte {position}", hint="save it as UTF-8")


def _stdin_bytes() -> bytes:
    """Return all of standard input; after some silence, note that it is being read."""
    stream = sys.stdin.buffer if hasattr(sys.stdin, "buffer") else None
    if stream is None:
        return sys.stdin.read().encode("utf-8")
    with contextlib.suppress(OSError, ValueError):
        ready, _, _ = select.select([stream.fileno()], [], [], _SILENCE_SECONDS)
        if not ready:
            note("reading standard input (end it, or redirect it from /dev/null)")
    return _read_bounded(stream, "standard input")


def _read_bounded(stream: BinaryIO, name: str) -> bytes:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name}: larger than {MAX_BYTES >> 20} MB")
    return data


def stdin_is_piped() -> bool:
    """Return True if standard input is a pipe, a file or a socket."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def parse_json(text: str, name: str, hint: str | None = None) -> Any:
    """Return the JSON value in a text. A byte order mark before it is skipped.

    It is as strict as with a model's text: a key twice in one object, ``NaN`` and a number that
    overflows are errors, since their meaning is not certain.

    Raises:
        UsageError: has ``name``, line and column, and the ``hint``.
    """
    try:
        return json.loads(text.removeprefix("\N{BYTE ORDER MARK}"), **HOOKS)
    except json.JSONDecodeError as error:
        fault = f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
    except Unreadable as error:
        fault = str(error)
    except RecursionError:
        fault = "not JSON: nested too deep"
    raise UsageError(f"{name}: {fault}", hint=hint)


def parse_object(text: str, name: str, hint: str | None = None) -> dict[str, Any]:
    """Return the JSON object in a text; else as `parse_json`."""
    value = parse_json(text, name, hint)
    if not isinstance(value, dict):
        raise UsageError(f"{name}: expected an object", hint=hint)
    return value


def read_json(path: Path) -> Any:
    """Return the JSON value in a file."""
    return parse_json(read_text(path), str(path))


def as_question(text: str) -> str:
    """Return a typed question; ``-`` reads standard input. Raises as `as_text`."""
    return as_text(read_text() if text == "-" else text, "question")


def as_text(text: str, subject: str) -> str:
    """Return a typed text.

    Raises:
        UsageError: it is not UTF-8, or empty.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"the {subject} is not UTF-8") from None
    if not text.strip():
        raise UsageError(f"the {subject} is empty", hint="give it as an argument or by a pipe")
    return text


# --- at a terminal ------------------------------------------------------------------------------

_REST_SECONDS: Final = 0.05
"""Seconds within which the rest of the bytes of an arrow or function key has come."""

_CHUNK: Final = 4096


def is_at_terminal() -> bool:
    """Return True if there is a person with a keyboard and a screen."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def read_key(
    keyboard: TextIO,
    screen: TextIO,
    ask: Callable[[], None],
    show: Callable[[TextIO], None] | None = None,
) -> str | None:
    """Return the next key.

    A character, ``""`` for any other key, None at the end of the input.

    Text that was typed earlier is dropped before the question is on the screen, so it answers
    nothing. Ctrl-D ends the input. Pasted text, or several characters in one piece, count as
    another key: none of their letters answers. After Ctrl-Z and a continuation the question is
    shown again.

    Args:
        keyboard: the terminal to read from.
        screen: the terminal to write to.
        ask: writes the question.
        show: writes what the question is about to the given file.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    # slow, so it comes before the question
    from prompt_toolkit.input.vt100_parser import Vt100Parser

    keys: list[str] = []
    parser = Vt100Parser(lambda press: keys.append(press.key))
    file, asking, again = keyboard.fileno(), False, False
    pastes = "\x1b[?2004{}" if steerable(screen) else ""  # the terminal marks what is pasted

    def begin(*_: object) -> None:
        nonlocal asking, again
        again = True
        # A signal may come in the middle of this. Then it is all done again, after it.
        while again and not asking:
            asking, again = True, False
            tty.setcbreak(file)
            draft = _Draft(screen)
            if show is not None:
                show(draft)
            termios.tcflush(file, termios.TCIFLUSH)
            print(draft.getvalue(), end=pastes.format("h"), file=screen, flush=True)
            ask()
            asking = False

    try:
        with (
            restore_terminal(keyboard),
            handle_signal(signal.SIGCONT, begin),
            _wake_on_signals() as signals,
        ):
            try:
                begin()
                while not keys and (text := _read_available(file, signals)):
                    parser.feed(text)
                    parser.flush()
            finally:
                print(end=pastes.format("l"), file=screen, flush=True)
    except (OSError, termios.error):  # the terminal was closed
        return None
    while len(keys) > 1 and keys[-1] in ("c-m", "c-j"):  # Enter
        keys.pop()
    if not keys or keys == ["c-d"]:
        return None
    return keys[0] if len(keys) == 1 and len(keys[0]) == 1 and keys[0].isprintable() else ""


class _Draft(io.StringIO):
    """Text for a screen that is not shown yet."""

    def __init__(self, screen: TextIO) -> None:
        super().__init__()
        self.isatty = screen.isatty  # type: ignore[method-assign]
        self.fileno = screen.fileno  # type: ignore[method-assign]


def _read_available(file: int, signals: int) -> str:
    """Return the text that comes in one go; empty at the end of the input.

    Raises OSError.
    """
    data, patience = b"", None
    while ready := select.select([file, signals], [], [], patience)[0]:
        if signals in ready:
            os.read(signals, _CHUNK)
        elif chunk := os.read(file, _CHUNK):
            data, patience = data + chunk, _REST_SECONDS
        else:
            break
    return data.decode("utf-8", "replace")


@contextlib.contextmanager
def _wake_on_signals() -> Iterator[int]:
    """Provide a file that each signal makes readable.

    A signal just before a wait for input would otherwise be noticed only with the next key. Only
    the main thread receives signals.
    """
    signals, writer = os.pipe()
    os.set_blocking(writer, False)
    is_main = threading.current_thread() is threading.main_thread()
    old_file = signal.set_wakeup_fd(writer, warn_on_full_buffer=False) if is_main else -1
    try:
        yield signals
    finally:
        if is_main:
            signal.set_wakeup_fd(old_file)
        os.close(signals)
        os.close(writer)


def read_line(keyboard: TextIO, given_up: int | None = None) -> str | None:
    """Return the next typed line without its end; None at the end of the input.

    It is None too once the file ``given_up`` can be read or has ended.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    data = b""
    with contextlib.suppress(OSError), _wake_on_signals() as signals:
        file = keyboard.fileno()
        watched = [file, signals, *([] if given_up is None else [given_up])]
        while not data.endswith(b"\n"):
            ready = select.select(watched, [], [])[0]
            if given_up in ready:
                return None
            if signals in ready:
                os.read(signals, _CHUNK)
            elif chunk := os.read(file, _CHUNK):
                data += chunk
            else:
                break
    return data.decode("utf-8", "replace").rstrip("\r\n") if data else None


@contextlib.contextmanager
def restore_terminal(keyboard: TextIO) -> Iterator[None]:
    """Restore the terminal's modes at the end.

    Raises:
        OSError: the terminal was closed.
    """
    file = keyboard.fileno()
    try:
        old_modes = termios.tcgetattr(file)
    except termios.error as error:
        raise OSError(*error.args) from None
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(file, termios.TCSADRAIN, old_modes)


@contextlib.contextmanager
def handle_signal(number: int, handler: Callable[..., None]) -> Iterator[None]:
    """Handle a signal by ``handler`` within the block.

    In other threads than the main one, do nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old_handler = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, old_handler)


@contextlib.contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block.

    It protects steps that must not be left half done, such as starting work that Ctrl-C then ends.
    """
    pressed: list[int] = []
    with handle_signal(signal.SIGINT, lambda number, frame: pressed.append(number)):
        yield
    if pressed:
        signal.raise_signal(signal.SIGINT)


def run_loop(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Return the result of an asynchronous function, run in an event loop of its own.

    A signal wakes the loop. One just before the loop's wait would otherwise be noticed only with
    the next event.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    import asyncio

    import anyio

    async def run() -> T:
        if threading.current_thread() is threading.main_thread():
            # With a handler for any signal, asyncio wakes up by all signals. This one is not used.
            asyncio.get_running_loop().add_signal_handler(signal.SIGURG, lambda: None)
        return await function(*arguments)

    return anyio.run(run)


def confirm(
    question: str,
    yes: bool = False,
    *,
    warning: str = "nothing was changed",
    no_terminal_hint: str = "",
    hint: str = "add --yes",
) -> bool:
    """Return True if ``yes`` is set, or the user at the terminal presses y.

    Any other key prints ``warning``. Text typed before the question answers nothing.

    Raises:
        UsageError: there is no terminal; has ``no_terminal_hint`` and ``hint``.
        KeyboardInterrupt: Ctrl-C.
    """
    if yes:
        return True
    if not is_at_terminal():
        raise UsageError(f"{no_terminal_hint}there is no terminal to confirm on", hint=hint)
    prompt = wrap_line(f"{escape_line(question)} [y/N]", count_columns(sys.stderr), "  ")
    ask = partial(print, prompt, end=" ", file=sys.stderr, flush=True)
    key = read_key(sys.stdin, sys.stderr, ask) or ""
    print(key, file=sys.stderr)
    if key.lower() != "y":
        note(warning)
        return False
    return True


async def pick_in_thread(question: str, answers: Sequence[str]) -> str | None:
    """Return the answer that the user chooses, from an event loop; see `picked`.

    A Ctrl-C that cancels this ends the wait for the line.
    """
    import anyio  # slow, and seldom needed

    given_up, end = os.pipe()

    def ask() -> str | None:
        try:
            return picked(question, answers, given_up)
        finally:
            os.close(given_up)

    try:
        return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
    finally:
        os.close(end)


def picked(question: str, answers: Sequence[str], given_up: int | None = None) -> str | None:
    """Return the answer that the user chooses by its number or its beginning.

    None for an empty line. A line that is none of the answers is asked for again.

    Args:
        question: the question.
        answers: the answers.
        given_up: as for `read_line`.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    width = count_columns(sys.stderr)
    print(wrap_line(escape_line(question), width), file=sys.stderr)
    for number, answer in enumerate(answers, start=1):
        print(wrap_line(f"  {number}. {escape_line(answer)}", width, "     "), file=sys.stderr)
    while True:
        print(f"1-{len(answers)}:", end=" ", file=sys.stderr, flush=True)
        line = (read_line(sys.stdin, given_up) or "").strip()
        if not line:
            return None
        number = int(line) if line.isdecimal() and len(line) < 10 else 0
        if 0 < number <= len(answers):
            return answers[number - 1]
        matches = [answer for answer in answers if answer.startswith(line)]
        if line in answers or len(matches) == 1:
            return line if line in answers else matches[0]
        numbers = f"a number from 1 to {len(answers)}" if len(answers) > 1 else "1"
        problem = (
            f"several begin with {cut(line, 40)}" if matches else f"there is no {cut(line, 40)}"
        )
        note(f"{problem}: type {numbers}, or Enter for none")


# --- the user's editor ----------------------------------------------------------------------------


class EditFailed(Exception):
    """Nothing was changed; the message says why."""


def find_editor(environ: Mapping[str, str]) -> list[str]:
    """Return the user's editor as a program and its arguments.

    Empty if there is none, or the terminal cannot show one.

    Raises:
        EditFailed: the variable holds no command.
    """
    is_dumb = environ.get("TERM") == "dumb"
    for name in ("EDITOR",) if is_dumb else ("VISUAL", "EDITOR"):
        if environ.get(name, "").strip():
            try:
                return shlex.split(environ[name])
            except ValueError as error:
                raise EditFailed(f"{name} is no command: {error}") from None
    program = None if is_dumb else shutil.which("nano") or shutil.which("vi")
    return [program] if program else []


def edit_in_editor(text: str, name: str, keyboard: TextIO, screen: TextIO) -> str:
    """Return ``text`` as the user leaves it in an editor.

    The file is called ``name`` and only the user can read it. The editor is started without a
    shell.

    Raises:
        EditFailed: there is no editor, or it failed.
    """
    command = find_editor(os.environ)
    if not command:
        raise EditFailed("there is no editor (set EDITOR)")
    try:
        folder = Path(tempfile.mkdtemp(prefix="mlx-tools-"))  # only the user may enter it
    except OSError as error:
        raise EditFailed(f"there is no place for a file to edit: {error.strerror}") from None
    try:
        path = folder / name
        path.touch(mode=0o600)
        path.write_text(text + "\n", encoding="utf-8")
        # Ctrl-C is for the editor. A handler is not inherited by it, while "ignored" would be.
        with restore_terminal(keyboard), handle_signal(signal.SIGINT, lambda *_: None):
            code = subprocess.run(  # noqa: S603 (the user's own command)
                [*command, str(path)], stdin=keyboard.fileno(), stdout=screen, stderr=screen
            ).returncode
        if code != 0:
            raise EditFailed(f"{command[0]} ended with exit code {code}")
        return read_regular(path, MAX_BYTES).decode("utf-8-sig").removesuffix("\n")
    except OSError as error:
        raise EditFailed(f"{command[0]}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise EditFailed("what was saved is not UTF-8") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
