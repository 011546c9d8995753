"""The live view of a run at a terminal.

Calls of the model, their times and results.

Steps go to standard error, the answer to standard output as it forms.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final, Self, TextIO

from mlx_tools.cli.call_text import (
    TextLine,
    diff,
    escape_name,
    exact,
    get_screen_size,
    show,
    wrap_lines,
)
from mlx_tools.cli.markdown import MarkdownScreen, PlainScreen
from mlx_tools.cli.output import (
    PROSE,
    cells,
    color_text,
    colourful,
    complain,
    count_columns,
    count_noun,
    cut,
    escape_for_terminal,
    note,
    print_text,
    stdout,
    steerable,
    wrap_line,
)
from mlx_tools.messages import json_line
from mlx_tools.policy import TEMPLATE
from mlx_tools.transcript import (
    EMPTY_ANSWER,
    Answered,
    Outcome,
    Paused,
    Stopped,
    cut_in_words,
    events,
    stopped_in_words,
)

RESUME_COMMAND: Final = "mlx-tools sessions resume"
"""The command that goes on with a session, before its id."""
_WIDTH: Final = 160
"""Characters of a step's text. A choice: two lines of a terminal."""
_HEAD_SHARE: Final = (3, 4)
"""The share of a row for a call and its arguments, the rest is its result. At 80 columns the end of
a path, two numbers and a search term fit there."""
_MIN_VALUE: Final = 8
"""Columns of an argument below which nothing can be told by it."""
_MAX_PROGRESS_CHARS: Final = 40
"""Characters of a progress message: its line must fit into one row."""
_FULL: Final = 80
"""Percent of the context from which on the status line says how to make room."""

_MIN_SECONDS: Final = 1.0
"""Seconds that a model must have written before its speed is shown: below that it is noise."""


_REFUSALS: Final = frozenset(
    (
        *("not_allowed", "disabled", "requires_confirmation", "denied"),
        *("rate_limited", "payload_too_large", "echoed_call"),
    )
)
"""Codes of calls that were not run: their reason is shown whole."""


class LiveView:
    """Shows events on two streams.

    Args:
        steps: the stream for steps, None to show none.
        answer: the stream for the answer, None to show none.
        every_step: show all steps and thoughts; else one line for each call.
        makes_room: what a person can do about a full context.
        clock: returns seconds.
    """

    def __init__(
        self,
        *,
        steps: TextIO | None,
        answer: TextIO | None,
        every_step: bool = True,
        makes_room: str = "",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._steps = steps
        self._answer: MarkdownScreen | PlainScreen | None = None
        if answer is not None:
            fine = colourful(answer)
            self._answer = MarkdownScreen(answer, clock) if fine else PlainScreen(answer)
        self._every_step = every_step
        self._makes_room = makes_room
        self._clock = clock
        self._streamed: list[str] = []  # the answer's text of the last turn
        self._speaks = False
        # the model ("") and running calls by id: their text, and since when they run
        self._awaited: dict[str, tuple[str, float]] = {}
        self._row = ""  # the line that is shown while waiting
        self._is_starting = False
        self._arguments: dict[str, Mapping[str, Any]] = {}
        self._refusals: dict[str, str] = {}  # the reason by the call's id
        self._calls: list[tuple[str, str]] = []  # rows that a question to the user would repeat
        self._thought = 0  # characters
        self._open_name, self._open_chars = "", 0  # of the call that the model writes
        self._thoughts: PlainScreen | None = None

    @classmethod
    def for_process(cls, *, steps: bool = False, answer: bool = True, makes_room: str = "") -> Self:
        """Return a view on this process's streams.

        With ``steps`` every step is shown, wherever standard error goes. Else each call has a line,
        at a terminal only. The answer is shown live at a terminal only, if it is wanted.
        """
        shows_steps = steps or sys.stderr.isatty()
        shows_answer = answer and stdout().isatty()
        return cls(
            steps=sys.stderr if shows_steps else None,
            answer=stdout() if shows_answer else None,
            every_step=steps,
            makes_room=makes_room,
        )

    def start(self) -> None:
        """Show that time passes before the first event: a server may have to be started."""
        self._is_starting = True
        self._awaited[""] = "· the model gets ready …", self._clock()

    def show(self, event: events.Event) -> None:
        """Show one event."""
        if self._is_starting:
            self._is_starting = False
            del self._awaited[""]
        if not isinstance(event, events.CallRead | events.CallEdited | events.CallDecided):
            for colour, text in self._calls:
                self._detail(colour, text)
            self._calls.clear()
        match event:
            case events.AnswerPiece():
                self._end_thought()
                self._streamed.append(event.text)
                self._write(event.text)
            case events.ThoughtPiece():
                self._think(event.text)
            case events.TurnStarted():
                self._end_answer()
                self._streamed.clear()
                self._wait("", "· the model …")
                if isinstance(self._answer, MarkdownScreen):
                    self._answer.prepare()
            case events.ToolStarted():
                self._wait(event.call, f"  {event.name} runs …")
            case events.ToolProgress():
                progress = describe_progress(event.message, event.fraction)
                self._wait(event.call, f"  {event.name}: {progress} …")
            case events.TurnEnded():
                self._end_thought()
                self._awaited.pop("", None)
                self._detail("dim", f"· turn {event.turn}: {_usage(event)}")
            case events.ContextFilling():
                self.end()
                share = f"{100 * event.used_tokens // event.size} % of the model's context is used"
                room = f"; {self._makes_room}" if self._makes_room else ""
                note(f"{share}: {event.used_tokens} of {event.size} tokens{room}")
            case events.Compacted():
                self._step("yellow", f"! {describe_compaction(event)}")
            case events.Mended():
                text = f"{event.dropped or 'nothing'} → {event.replacement or 'written anew'}"
                self._detail("yellow", f"! {_line(f'mended ({event.kind}): {text}')}")
            case events.FormatBroken():
                self._detail("yellow", f"! {_line(event.error.message)}")
            case events.CallOpened():
                self._open_call(event.name)
            case events.ArgumentsPiece():
                self._add_arguments(event.text)
            case events.CallRead():
                repaired = f"  (repaired: {', '.join(event.repairs)})" if event.repairs else ""
                self._note_call(event, repaired)
            case events.CallEdited():
                self._note_call(event, "  (edited)")
            case events.CallDecided() if event.rule.startswith(TEMPLATE):
                self._step("yellow", f"! {_line(event.reason)}")
            case events.CallDecided() if event.decision != "allow":
                self._note_decision(event)
            case events.ToolEnded():
                self._awaited.pop(event.call, None)
                self._tool_ended(event)
            case events.WouldChange():
                self.end()
                arguments = self._arguments.get(event.call)
                show_change(event.name, event.preview, self._steps or sys.stderr, arguments)
            case events.Finished(outcome=outcome):
                self._awaited.clear()
                if isinstance(outcome, Answered) and outcome.answer != "".join(self._streamed):
                    self._end_answer()
                    self._write(outcome.answer)
                self.end()

    @property
    def moves(self) -> bool:
        """True if it shows that time passes."""
        return self._speaks or bool(self._row) or self._is_starting

    def tick(self) -> None:
        """Show that time passes."""
        if not self._speaks:
            self._show_awaited()
        elif isinstance(self._answer, MarkdownScreen):
            self._answer.tick()

    def reset_position(self, *_: object) -> None:
        """Keep what others wrote to the terminal meanwhile, as after Ctrl-Z."""
        self._row = ""
        if self._answer is not None:
            self._answer.reset_position()

    def prepare_question(self) -> None:
        """Make room for a question to the user, which shows the calls that were read last."""
        self._calls.clear()
        self.end()

    def end(self) -> None:
        """Leave the cursor at the start of a line, whatever was shown last."""
        self._end_thought()
        self._clear_row()
        self._end_answer()

    # --- a call that the model writes ---

    def _open_call(self, name: str) -> None:
        self._end_thought()
        self._open_name, self._open_chars = name, 0
        self._wait("", f"· the model calls {name} …")

    def _add_arguments(self, text: str) -> None:
        self._open_chars += len(text)
        hundreds = self._open_chars // 100 * 100
        size = f", {count_noun(hundreds, 'character')}" if hundreds else ""
        self._wait("", f"· the model calls {self._open_name}{size} …")

    # --- the answer, and the thoughts before it ---

    def _write(self, text: str) -> None:
        if self._answer is not None and text:
            self._clear_row()
            self._speaks = True
            self._answer.write(text)

    def _end_answer(self) -> None:
        if self._speaks and self._answer is not None:
            self._answer.finish()
        self._speaks = False

    def _think(self, text: str) -> None:
        if not self._thought:
            self._awaited[""] = "· the model thinks …", self._clock()
        self._thought += len(text)
        if self._every_step and self._steps is not None:
            if self._thoughts is None:
                self._clear_row()
                self._thoughts = PlainScreen(self._steps, "dim")
            self._thoughts.write(text)
        else:
            self._show_awaited()

    def _end_thought(self) -> None:
        """Replace the thought by one line about it."""
        if not self._thought:
            return
        if self._thoughts is not None:
            self._thoughts.finish()
        size, self._thought, self._thoughts = self._thought, 0, None
        seconds = self._clock() - self._awaited.pop("")[1]
        self._step(
            "dim", f"· thought: {count_noun(size, 'character')}, {_time(round(1000 * seconds))}"
        )

    # --- what is waited for: a line that goes away when something comes ---

    def _wait(self, subject: str, text: str) -> None:
        _, since = self._awaited.pop(subject, ("", self._clock()))
        self._awaited[subject] = text, since
        self._show_awaited()

    def _show_awaited(self) -> None:
        """Show what is waited for, and for how long."""
        if self._steps is None or not steerable(self._steps) or self._speaks or self._thoughts:
            return
        if not self._awaited:
            return
        text, since = [*self._awaited.values()][-1]
        seconds = int(self._clock() - since)
        row = text + (f" {seconds} s" if seconds else "")
        if row != self._row:
            self._clear_row()
            shown = _fit(escape_for_terminal(row), get_screen_size(self._steps).columns - 1)
            self._steps.write(color_text(shown, "dim", self._steps))
            self._steps.flush()
            self._row = row

    def _clear_row(self) -> None:
        if self._row and self._steps is not None:
            self._steps.write("\r\x1b[K")
            self._steps.flush()
        self._row = ""

    # --- steps ---

    def _note_call(self, event: events.CallRead | events.CallEdited, mark: str) -> None:
        """Note a call's arguments, and the line that shows them."""
        self._arguments[event.call] = event.arguments
        text = f"→ {event.name} {_line(json_line(event.arguments))}{mark}"
        self._calls.append(("bold", text))

    def _note_decision(self, event: events.CallDecided) -> None:
        """Note the reason of a call that does not run at once."""
        permit = f"  (permit it: /allow {event.name}, or --tools +{event.name})"
        permit = permit if event.rule == "default" else ""
        reason = f"{_join_lines(event.reason)}{permit}"
        self._calls.append(("yellow", f"  {event.decision}: {reason}"))
        if event.decision == "deny":
            self._refusals[event.call] = reason

    def _tool_ended(self, event: events.ToolEnded) -> None:
        duration = "" if event.duration_ms is None else _time(event.duration_ms)
        duration = "as before" if event.cached else duration
        error = event.error
        text = _line(event.preview if error is None else f"{error.code}: {error.message}")
        if error is not None and error.code in _REFUSALS:
            reason = self._refusals.pop(event.call, error.message)
            text = _join_lines(f"{error.code}: {error.message if self._every_step else reason}")
        if not self._every_step:
            self._call_line(event, text, duration)
            return
        size = event.output_size_chars or 0
        size_note = f"  ({size} characters)" if error is None and size > _WIDTH else ""
        head = (
            f"← {event.name} ({duration})"
            if event.cached
            else f"← {event.name} {duration}".rstrip()
        )
        self._step("green" if error is None else "red", f"{head}: {text}{size_note}")

    def _call_line(self, event: events.ToolEnded, text: str, took: str) -> None:
        """Show a call in one row: its name and arguments, its result, its time.

        Only the reason of a refusal or an error may take more.
        """
        if self._steps is None:
            return
        name = escape_for_terminal(f"· {event.name} ")
        arguments = self._arguments.pop(event.call, {})
        took = f" · {took}" if took else ""
        room = get_screen_size(self._steps).columns - 1 - cells(took)
        head_room = room * _HEAD_SHARE[0] // _HEAD_SHARE[1]
        head = _fit(name + _fit_arguments(arguments, head_room - cells(name)), head_room).rstrip()
        mark, colour = ("→", "dim") if event.error is None else ("✗", "red")
        result = escape_for_terminal(f" {mark} {text}")
        if event.error is None:
            result = _fit(result, room - cells(head))
        self._step(colour, head + result + took)

    def _detail(self, colour: str, text: str) -> None:
        if self._every_step:
            self._step(colour, text)
        else:
            self._clear_row()

    def _step(self, colour: str, text: str) -> None:
        if self._steps is None:
            return
        self._end_answer()
        self._clear_row()
        rows = wrap_line(escape_for_terminal(text, keep=PROSE), count_columns(self._steps), "  ")
        self._steps.write(color_text(rows, colour, self._steps) + "\n")
        self._steps.flush()


class StatusLine:
    """The line below the input.

    The model, how full its context is, how fast it writes.

    It follows the events of a conversation, and leaves out what they do not say. ``context`` is the
    size of the model's context, and the tokens that are used in it. They are an estimate after a
    compaction, until the server has counted the next prompt. ``clock`` returns seconds.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        context: tuple[int | None, int | None] = (None, None),
        is_estimate: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._model = model
        self._is_estimate = is_estimate
        self._clock = clock
        self._context = context
        self._speed: float | None = None
        self._started_at: float | None = None

    def update(self, event: events.Event) -> None:
        """Update the line by an event."""
        match event:
            case events.TurnStarted():
                self._started_at = None
            case (
                events.AnswerPiece()
                | events.ThoughtPiece()
                | events.CallOpened()
                | events.ArgumentsPiece()
            ):
                self._started_at = self._clock() if self._started_at is None else self._started_at
            case events.TurnEnded(usage=usage):
                seconds = 0.0 if self._started_at is None else self._clock() - self._started_at
                if usage.completion_tokens is not None and seconds >= _MIN_SECONDS:
                    self._speed = usage.completion_tokens / seconds
            case events.ContextFilling():
                self._context, self._is_estimate = (event.size, event.used_tokens), False
            case events.Compacted():
                self._context, self._is_estimate = (self._context[0], event.tokens_after), True
            case events.Finished(outcome=outcome):
                self._context = (outcome.context.size, outcome.context.used_tokens)
                self._is_estimate = False
                self._model = outcome.model or self._model

    def text(self) -> str:
        """Return the line, empty if nothing is known."""
        size, used = self._context
        share = 100 * used // size if size and used is not None else None
        about = "about " if self._is_estimate else ""
        parts = [] if share is None else [f"context {about}{share} % of {size:,}"]
        if self._speed is not None:
            parts.append(f"{self._speed:.0f} tokens/s")
        if share is not None and share >= _FULL:
            parts.append("/compact makes room")
        if self._model is not None:  # last: on a narrow terminal a long name is cut, and no number
            parts.append(escape_for_terminal(self._model))
        return " · ".join(parts)


def show_change(
    name: str, preview: str, screen: TextIO, arguments: Mapping[str, Any] | None = None
) -> None:
    """Show what a call would change, as an approval does.

    If that is unknown, the call.
    """
    head = TextLine(f"{escape_name(name)} would change:", "bold")
    lines = diff(preview)
    if not preview:
        head = TextLine(f"{escape_name(name)} would be called with:", "bold")
        lines = (TextLine(line, foreign=True) for line in exact(arguments or {}).split("\n"))
    show(wrap_lines([head, *lines], count_columns(screen)), screen)


def _ending(outcome: Outcome, resume_command: str) -> str | None:
    """Return in words how a run ended without a complete answer; None if it has one."""
    if isinstance(outcome, Paused):
        names = ", ".join(call.name for call in outcome.pending)
        return f"an approval is due for {names} ({resume_command} {outcome.session})"
    if isinstance(outcome, Stopped):
        return stopped_in_words(outcome.records)
    if isinstance(outcome, Answered) and outcome.truncated:
        return cut_in_words(outcome.records, repeated=outcome.truncated_by == "repetition")
    if isinstance(outcome, Answered) and not outcome.answer.strip():
        return f"{EMPTY_ANSWER} (ask in other words, or /retry in chat)"
    if isinstance(outcome, Answered) and outcome.call_like:
        return "the answer looks like a call that cannot be read; nothing ran"
    return None


def tell(
    outcome: Outcome,
    *,
    plain: bool = True,
    show_location: bool = True,
    resume_command: str = RESUME_COMMAND,
) -> None:
    """Print what there is besides an answer: why there is none, or not all of it.

    Args:
        outcome: the outcome.
        plain: print the answer too if it was not shown live, then its sources on standard error.
        show_location: name the transcript of a run that stopped.
        resume_command: the command that goes on with a paused session.
    """
    if plain and isinstance(outcome, Answered):
        if not stdout().isatty():
            print_text(outcome.answer, exact=True)
        for source in outcome.sources:
            complain(f"[{source.n}] {source.title} ({source.location})", kind="source")
    text = _ending(outcome, resume_command)
    if text is not None:
        is_stopped = isinstance(outcome, Stopped)
        is_cut_off = isinstance(outcome, Answered) and outcome.truncated
        location = f" (transcript: {outcome.transcript or f'session {outcome.session}'})"
        kind = "" if is_stopped else "truncated" if is_cut_off else outcome.status
        complain(f"{text}{location if show_location and is_stopped else ''}", kind=kind)


def describe_compaction(event: events.Compacted) -> str:
    """Return in words which parts left the prompt."""
    counts = ((event.turns, "turn"), (event.observations, "observation"))
    parts = " and ".join(count_noun(number, noun) for number, noun in counts if number)
    old_tokens, new_tokens = event.tokens_before, event.tokens_after
    tokens = (
        ""
        if old_tokens is None or new_tokens is None
        else f", from {old_tokens:,} to about {new_tokens:,} tokens"
    )
    return f"the prompt was compacted{parts and f': {parts} left out'}{tokens}"


def describe_progress(message: str, fraction: float | None) -> str:
    """Return a call's progress in a few words: its line must fit into one row."""
    words = cut(" ".join(message.split()), _MAX_PROGRESS_CHARS)
    share = "" if fraction is None else f"{100 * fraction:.0f} %"
    return ", ".join(part for part in (words, share) if part) or "goes on"


def _fit(text: str, columns: int) -> str:
    """Return as much of a text as fits into ``columns``."""
    if cells(text) <= columns:
        return text
    text = text[: max(0, columns)]
    while text and cells(text) >= columns:
        text = text[:-1]
    return f"{text}…"


def _fit_arguments(arguments: Mapping[str, Any], columns: int) -> str:
    """Return the values of a call's arguments in about ``columns``.

    The longest are cut, a path at its beginning: its end tells it from others.
    """
    texts = [escape_for_terminal(_line(_write_argument(value))) for value in arguments.values()]
    room = columns - 2 * (len(texts) - 1)
    widths = [min(cells(text), columns) for text in texts]
    longest = max(widths, default=0)
    while longest > _MIN_VALUE and sum(min(width, longest) for width in widths) > room:
        longest -= 1
    return ", ".join(_fit_value(text, longest) for text in texts)


def _write_argument(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return shlex.join(value)
    return json_line(value)


def _fit_value(text: str, columns: int) -> str:
    if cells(text) <= columns:
        return text
    room = columns - 1  # an ellipsis takes up to two columns
    is_path = "/" in text and " " not in text
    return _fit(text[::-1], room)[::-1] if is_path else _fit(text, room)


def _join_lines(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


def _line(text: str) -> str:
    """Return a text on one line, cut if it is long."""
    return cut(_join_lines(text), _WIDTH)


def _time(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _usage(event: events.TurnEnded) -> str:
    usage = event.usage
    duration = _time(event.duration_ms) if event.duration_ms is not None else ""
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens is not None else ""
    prompt_part = (
        f"{usage.prompt_tokens} prompt tokens{cached}" if usage.prompt_tokens is not None else ""
    )
    completion_part = (
        f"{usage.completion_tokens} written" if usage.completion_tokens is not None else ""
    )
    return ", ".join(part for part in (duration, prompt_part, completion_part) if part)
