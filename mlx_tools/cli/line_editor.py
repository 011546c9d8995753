"""The input line of a chat at a terminal.

Several lines, history, completion, an editor.

Importing this is slow, so it is imported only when somebody is going to type.
"""

from __future__ import annotations

import os
import select
import sys
import termios
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus, is_done
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from mlx_tools.cli.inputs import EditFailed, edit_in_editor, read_line
from mlx_tools.cli.output import PROSE, complain, escape_for_terminal, stdout, steerable
from mlx_tools.cli.pastes import Pastes
from mlx_tools.cli.type_ahead import TypeAhead
from mlx_tools.errors import MlxToolsError
from mlx_tools.paths import private_dir

PROMPT: Final = "> "
QUOTES: Final = '"""'

HISTORY_CHARS: Final = 1_000_000
"""Characters of typed text that are stored, the newest. A choice: years of questions."""

LONG_LINE: Final = 8_000
"""Characters of a line that are shown: drawing more is slow, and no screen shows them."""

_MENU_ROWS: Final = 8
_TAB: Final = "    "
_REST_SECONDS: Final = 0.05
"""Seconds within which the next line of a pasted text has come."""

Complete = Callable[[str, str], Iterable[tuple[str, str]]]


class LineEditor:
    """Reads typed text: a line, or several.

    Args:
        history: the file of earlier inputs.
        commands: a line of help for each slash command.
        complete: returns completions of a command's argument, each with its meaning; for an empty
            command, of the last word of a question.
        status: returns the text of the line below.
        type_ahead: text typed before; None on a terminal that obeys nothing.
    """

    def __init__(
        self,
        history: Path,
        commands: Mapping[str, str],
        complete: Complete,
        status: Callable[[], str],
        type_ahead: TypeAhead | None,
    ) -> None:
        self._type_ahead = type_ahead
        self._pastes = Pastes()
        if type_ahead is not None:
            self._keyboard = _Keyboard(sys.stdin)
            self._session: PromptSession[str] = PromptSession(
                PROMPT,
                multiline=True,
                completer=_Words(commands, complete),
                complete_in_thread=True,
                complete_while_typing=False,
                reserve_space_for_menu=_MENU_ROWS,
                history=_PrivateHistory(history, self._pastes),
                key_bindings=_keys(self._keyboard, type_ahead.screen, self._pastes),
                enable_suspend=True,
                input_processors=[_LineDisplay(self._pastes)],
                style=Style.from_dict({"status": "ansibrightblack"}),
                input=self._keyboard,
                output=_output(type_ahead.screen),
            )
            _put_below(self._session, status)

    def read(self) -> str | None:
        """Return the next text, None at the end of the input.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        try:
            text = self._read_edited(self._type_ahead) if self._type_ahead else _plain()
        except (EOFError, OSError):  # Ctrl-D, or the terminal was closed
            return None
        return _unquoted(_repair_text(text))

    def _read_edited(self, type_ahead: TypeAhead) -> str:
        self._keyboard.vt100_parser.feed(type_ahead.take())
        store_typeahead(self._keyboard, self._keyboard.read_keys())
        return self._pastes.unfold(self._session.prompt())


def edit_line(keyboard: TextIO, screen: TextIO, question: str, text: str = "") -> str | None:
    """Return the line typed after a question; None at the end of the input.

    ``text`` is in the line already and can be changed; a dumb terminal does not show it.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    if not steerable(screen):
        print(question, end="", file=screen, flush=True)
        return read_line(keyboard)
    keys = _Keyboard(keyboard)
    line: PromptSession[str] = PromptSession(
        input=keys, output=_output(screen), enable_suspend=True
    )
    ahead = get_typeahead(keys)  # text for the next question must not answer this one
    try:
        return line.prompt(question, default=text)
    except EOFError:
        return None
    finally:
        store_typeahead(keys, ahead)


def _plain() -> str:
    """Return a text from a terminal that obeys nothing.

    Raises:
        EOFError: the end of the input.
    """
    text = ""
    screen = stdout() if stdout().isatty() else sys.stderr
    say = partial(print, file=screen, flush=True)
    try:
        if screen.isatty():
            say(PROMPT, end="")
        while (line := read_line(sys.stdin)) is not None:
            text += line
            if not (_has_open_quotes(text) or select.select([sys.stdin], [], [], _REST_SECONDS)[0]):
                return text
            text += "\n"
    except KeyboardInterrupt:
        say()
        raise
    if not text:
        say()
        raise EOFError
    return text


def _has_open_quotes(text: str) -> bool:
    """Return True if a text began with quotes that are still open."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) % 2 == 1


def _unquoted(text: str) -> str:
    bare = text.strip()
    if bare.startswith(QUOTES) and bare.endswith(QUOTES) and bare.count(QUOTES) == 2:
        return bare.removeprefix(QUOTES).removesuffix(QUOTES)
    return text


def _output(screen: TextIO) -> Vt100_Output:
    output = Vt100_Output.from_pty(
        screen, os.environ.get("TERM"), default_color_depth=ColorDepth.from_env()
    )
    output.enable_cpr = False  # a terminal's answer about its cursor would be read as typed text
    return output


def _put_below(session: PromptSession[str], status: Callable[[], str]) -> None:
    """Put a line of status below the text.

    The session's own needs the cursor's position.
    """
    line = Window(
        FormattedTextControl(lambda: escape_for_terminal(status())), height=1, style="class:status"
    )
    below = ConditionalContainer(line, ~is_done & Condition(lambda: bool(status())))
    session.layout = Layout(HSplit([session.layout.container, below]), session.default_buffer)
    session.app.layout = session.layout


def _keys(keyboard: Vt100Input, screen: TextIO, pastes: Pastes) -> KeyBindings:
    """Return the key bindings besides those of Emacs."""
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def enter(event: KeyPressEvent) -> None:
        text = event.current_buffer
        if text.complete_state is not None and text.complete_state.current_completion is not None:
            text.complete_state = None  # Enter takes the completion, and the text continues
        elif (
            _has_open_quotes(pastes.unfold(text.text))
            or event.key_processor.input_queue
            or _readable(keyboard)
        ):
            text.newline(copy_margin=False)  # in the middle of pasted text
        else:
            text.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    @keys.add("c-j", filter=typing)
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add(Keys.BracketedPaste, filter=typing)
    def paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(pastes.fold(text))

    @keys.add("tab", filter=typing & Condition(lambda: pastes.ends(_text_before_cursor())))
    def unfold(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(pastes.unfold(event.current_buffer.delete_before_cursor()))

    @keys.add("c-x", "c-e", filter=typing)
    @keys.add("escape", "e", filter=typing)
    def edit(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = pastes.unfold(buffer.text)
        run_in_terminal(partial(_change, buffer, text, keyboard.stdin, screen))

    return keys


def _text_before_cursor() -> str:
    return get_app().current_buffer.document.text_before_cursor


def _change(buffer: Buffer, old_text: str, keyboard: TextIO, screen: TextIO) -> None:
    """Let the user's editor change the text."""
    try:
        text = edit_in_editor(_repair_text(old_text), "question.md", keyboard, screen)
    except EditFailed as error:
        complain(f"{error}; nothing was changed", kind="editor")
    else:
        buffer.document = Document(text)


def _repair_text(text: str) -> str:
    """Return a text that UTF-8 can write.

    Bytes that were not UTF-8 were read as surrogates.
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _readable(keyboard: Vt100Input) -> bool:
    return bool(select.select([keyboard.fileno()], [], [], 0)[0])


class _Keyboard(Vt100Input):
    """A keyboard that notices that its terminal was closed.

    Reading then fails for ever, which the base class takes for a signal in between.
    """

    @property
    def closed(self) -> bool:
        try:
            termios.tcgetattr(self.fileno())
        except termios.error:
            return True
        return super().closed


class _LineDisplay(Processor):
    """Shows tabs as spaces, escapes what a terminal would obey, and cuts long lines.

    Of a long line the part around the cursor is shown. A folded text is shown by its size.
    """

    def __init__(self, pastes: Pastes) -> None:
        self._pastes = pastes

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Return the line as it is shown, and the mapping of positions in both directions."""
        document, number = transformation_input.document, transformation_input.lineno
        line = document.lines[number]
        if len(line) <= LONG_LINE and line.isprintable():
            return Transformation(transformation_input.fragments)
        cursor = document.cursor_position_col if number == document.cursor_position_row else 0
        first = max(0, min(cursor - LONG_LINE // 2, len(line) - LONG_LINE))
        last = first + LONG_LINE
        drawn: StyleAndTextTuples = []
        places = [0] * first
        for style, char in _slice_fragments(transformation_input.fragments, first, last):
            places.append(len(drawn))
            text = _TAB if char == "\t" else escape_for_terminal(char, keep=PROSE)
            text = self._pastes.label(char) or text
            drawn += [(style, drawn_char) for drawn_char in text]
        places += [len(drawn)] * (len(line) - last + 1 if last < len(line) else 1)
        return Transformation(
            drawn,
            lambda place: places[min(place, len(places) - 1)],
            lambda place: bisect_right(places, place) - 1,
        )


def _slice_fragments(
    fragments: StyleAndTextTuples, first: int, last: int
) -> Iterator[tuple[str, str]]:
    """Yield the characters between two positions, each with its style."""
    place = 0
    for style, text, *_ in fragments:
        for char in text[max(0, first - place) : max(0, last - place)]:
            yield style, char
        place += len(text)


class _Words(Completer):
    """Completes commands, their arguments, and words of a question."""

    def __init__(self, commands: Mapping[str, str], complete: Complete) -> None:
        self._commands = commands
        self._complete = complete

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
        """Yield completions of the text before the cursor."""
        command, blank, beginning = document.text_before_cursor.partition(" ")
        if command.startswith("/") and not blank:
            for name, help_text in self._commands.items():
                if name.startswith(command):
                    yield Completion(
                        name, -len(command), display_meta=escape_for_terminal(help_text)
                    )
            return
        if command.startswith("!") and not blank:
            command, beginning = "!", command
        elif not command.startswith("/"):
            command, beginning = "", document.get_word_before_cursor(WORD=True)
        with suppress(MlxToolsError, OSError):  # an error offers no completions
            for text, meaning in self._complete(command, beginning):
                if escape_for_terminal(text) == text:  # never complete what a terminal would obey
                    meta = escape_for_terminal(meaning) or None
                    yield Completion(text, -len(beginning), display_meta=meta)


class _PrivateHistory(FileHistory):
    """The newest `HISTORY_CHARS` of typed text, in a file only for its owner.

    If the file cannot be used the history is in memory.
    """

    def __init__(self, path: Path, pastes: Pastes) -> None:
        super().__init__(path)
        self._path = path
        self._pastes = pastes

    def append_string(self, string: str) -> None:
        """Add a text, with what was pasted into it."""
        super().append_string(self._pastes.unfold(string))

    def load_history_strings(self) -> Iterable[str]:
        """Return the stored texts, the newest first."""
        try:
            private_dir(self._path.parent)
            # created with this mode, so that others cannot open it even for a moment
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            self._path.chmod(0o600)
            texts = list(super().load_history_strings())
            if self._path.stat().st_size > 2 * HISTORY_CHARS:
                texts = self._limit_history(texts)
        except (OSError, MlxToolsError):
            return []
        return texts

    def store_string(self, string: str) -> None:
        """Add a text to the file."""
        with suppress(OSError):
            super().store_string(string)

    def _limit_history(self, texts: list[str]) -> list[str]:
        newest = texts[: bisect_right([*accumulate(map(len, texts))], HISTORY_CHARS)]
        os.truncate(self._path, 0)
        for text in reversed(newest):
            self.store_string(text)
        return newest
