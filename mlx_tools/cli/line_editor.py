"""Chat's line at a terminal: several lines, history, completion, an editor.

Importing this takes a while: it is imported where somebody is going to type.
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
from prompt_toolkit.application import run_in_terminal
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
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from mlx_tools.cli.inputs import EditFailed, in_editor, read_line
from mlx_tools.cli.output import PROSE, complain, for_terminal, stdout, steerable
from mlx_tools.cli.type_ahead import TypeAhead
from mlx_tools.errors import MlxToolsError
from mlx_tools.paths import private_dir

PROMPT: Final = "> "
QUOTES: Final = '"""'

HISTORY_CHARS: Final = 1_000_000
"""How much of what was typed is kept: the newest."""

LONG_LINE: Final = 8_000
"""Characters of a line that are shown; drawing takes long for what nobody looks at."""

_MENU_ROWS: Final = 8
_TAB: Final = "    "
_REST: Final = 0.05
"""Seconds within which the next line of a text that is pasted has come."""

Complete = Callable[[str, str], Iterable[str]]


class LineEditor:
    """Reads what a person types: a line, or a text of several.

    ``commands`` has a line of help for each slash command; ``complete`` gives what may stand
    after a command in the place of a beginning, or, where the command is empty, in the place of a
    question's last word; ``status`` is the text of the line below.
    ``type_ahead`` is what was typed before; None on a terminal that obeys nothing.
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
        if type_ahead is not None:
            self._keyboard = _Keyboard(sys.stdin)
            self._session: PromptSession[str] = PromptSession(
                PROMPT,
                multiline=True,
                completer=_Words(commands, complete),
                complete_in_thread=True,
                complete_while_typing=False,
                reserve_space_for_menu=_MENU_ROWS,
                history=_PrivateHistory(history),
                key_bindings=_keys(self._keyboard, type_ahead.screen),
                enable_suspend=True,
                input_processors=[_LineDisplay()],
                style=Style.from_dict({"status": "ansibrightblack"}),
                input=self._keyboard,
                output=_output(type_ahead.screen),
            )
            _put_below(self._session, status)

    def read(self) -> str | None:
        """The next text, None at the end of the input. Raises KeyboardInterrupt for Ctrl-C."""
        try:
            text = self._edited(self._type_ahead) if self._type_ahead else _plain()
        except (EOFError, OSError):  # Ctrl-D, or the terminal is gone
            return None
        return _unquoted(_sound(text))

    def _edited(self, type_ahead: TypeAhead) -> str:
        self._keyboard.vt100_parser.feed(type_ahead.take())
        store_typeahead(self._keyboard, self._keyboard.read_keys())
        return self._session.prompt()


def edit_line(keyboard: TextIO, screen: TextIO, question: str, text: str = "") -> str | None:
    """The line that is typed behind a question, where ``text`` stands already and can be changed;
    None at the end of the input. A dumb terminal shows no such text. Raises KeyboardInterrupt for
    Ctrl-C."""
    if not steerable(screen):
        print(question, end="", file=screen, flush=True)
        return read_line(keyboard)
    keys = _Keyboard(keyboard)
    line: PromptSession[str] = PromptSession(
        input=keys, output=_output(screen), enable_suspend=True
    )
    ahead = get_typeahead(keys)  # was typed as a next question, and answers nothing here
    try:
        return line.prompt(question, default=text)
    except EOFError:
        return None
    finally:
        store_typeahead(keys, ahead)


def _plain() -> str:
    """A text from a terminal that obeys nothing. Raises EOFError at the end of the input."""
    text = ""
    screen = stdout() if stdout().isatty() else sys.stderr
    say = partial(print, file=screen, flush=True)
    try:
        if screen.isatty():
            say(PROMPT, end="")
        while (line := read_line(sys.stdin)) is not None:
            text += line
            if not (_has_open_quotes(text) or select.select([sys.stdin], [], [], _REST)[0]):
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
    """Return whether a text began with quotes that are still to be closed."""
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
    output.enable_cpr = False  # the answer to a question for the cursor's place would be typed text
    return output


def _put_below(session: PromptSession[str], status: Callable[[], str]) -> None:
    """Have a line of status below the text; the session's own needs the cursor's place."""
    line = Window(
        FormattedTextControl(lambda: for_terminal(status())), height=1, style="class:status"
    )
    below = ConditionalContainer(line, ~is_done & Condition(lambda: bool(status())))
    session.layout = Layout(HSplit([session.layout.container, below]), session.default_buffer)
    session.app.layout = session.layout


def _keys(keyboard: Vt100Input, screen: TextIO) -> KeyBindings:
    """What keys do beside what they do in Emacs."""
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def enter(event: KeyPressEvent) -> None:
        text = event.current_buffer
        if text.complete_state is not None and text.complete_state.current_completion is not None:
            text.complete_state = None  # that word, and the text goes on
        elif _has_open_quotes(text.text) or event.key_processor.input_queue or _readable(keyboard):
            text.newline(copy_margin=False)  # it is in the midst of a text that is pasted
        else:
            text.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    @keys.add("c-j", filter=typing)
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-x", "c-e", filter=typing)
    @keys.add("escape", "e", filter=typing)
    def edit(event: KeyPressEvent) -> None:
        run_in_terminal(partial(_change, event.current_buffer, keyboard.stdin, screen))

    return keys


def _change(buffer: Buffer, keyboard: TextIO, screen: TextIO) -> None:
    """Have the user's editor change the text."""
    try:
        text = in_editor(_sound(buffer.text), "question.md", keyboard, screen)
    except EditFailed as error:
        complain(f"{error}; nothing was changed", kind="editor")
    else:
        buffer.document = Document(text)


def _sound(text: str) -> str:
    """A text as UTF-8 can say it: bytes that were none are read as surrogates."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _readable(keyboard: Vt100Input) -> bool:
    return bool(select.select([keyboard.fileno()], [], [], 0)[0])


class _Keyboard(Vt100Input):
    """Tells that a terminal is gone: reading from it fails for ever, which it takes for a signal
    that came in between."""

    @property
    def closed(self) -> bool:
        try:
            termios.tcgetattr(self.fileno())
        except termios.error:
            return True
        return super().closed


class _LineDisplay(Processor):
    """Shows a line with tabs as blanks, what a terminal would obey spelled out, and of a long one
    what stands around the cursor."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """The line as it is shown, and which place is which."""
        document, number = transformation_input.document, transformation_input.lineno
        line = document.lines[number]
        if len(line) <= LONG_LINE and line.isprintable():
            return Transformation(transformation_input.fragments)
        at = document.cursor_position_col if number == document.cursor_position_row else 0
        first = max(0, min(at - LONG_LINE // 2, len(line) - LONG_LINE))
        last = first + LONG_LINE
        drawn: StyleAndTextTuples = []
        places = [0] * first
        for style, char in _slice_fragments(transformation_input.fragments, first, last):
            places.append(len(drawn))
            text = _TAB if char == "\t" else for_terminal(char, keep=PROSE)
            drawn += [(style, one) for one in text]
        places += [len(drawn)] * (len(line) - last + 1 if last < len(line) else 1)
        return Transformation(
            drawn,
            lambda place: places[min(place, len(places) - 1)],
            lambda place: bisect_right(places, place) - 1,
        )


def _slice_fragments(
    fragments: StyleAndTextTuples, first: int, last: int
) -> Iterator[tuple[str, str]]:
    """The characters from one place to another, each with its style."""
    place = 0
    for style, text, *_ in fragments:
        for char in text[max(0, first - place) : max(0, last - place)]:
            yield style, char
        place += len(text)


class _Words(Completer):
    """Completes commands, what follows them, and words of a question."""

    def __init__(self, commands: Mapping[str, str], complete: Complete) -> None:
        self._commands = commands
        self._complete = complete

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
        """What may stand in the place of the beginning before the cursor."""
        command, blank, beginning = document.text_before_cursor.partition(" ")
        if command.startswith("/") and not blank:
            for name, help_text in self._commands.items():
                if name.startswith(command):
                    yield Completion(name, -len(command), display_meta=for_terminal(help_text))
            return
        if not command.startswith("/"):
            command, beginning = "", document.get_word_before_cursor(WORD=True)
        with suppress(MlxToolsError, OSError):  # then nothing is offered
            for text in self._complete(command, beginning):
                if for_terminal(text) == text:  # what the terminal would obey is left to be typed
                    yield Completion(text, -len(beginning))


class _PrivateHistory(FileHistory):
    """What was typed, in a file for its owner alone, the newest `HISTORY_CHARS`; in memory where
    there can be no file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """The newest come first."""
        try:
            private_dir(self._path.parent)
            # made here, so that it is never open to others, not even for a moment
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
        kept = texts[: bisect_right([*accumulate(map(len, texts))], HISTORY_CHARS)]
        os.truncate(self._path, 0)
        for text in reversed(kept):
            self.store_string(text)
        return kept
