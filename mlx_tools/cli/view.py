"""The live view of a run at a terminal: what the model asked, what ran, how long, what came back.

Steps go to standard error, the answer to standard output as it forms.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final, Self, TextIO

from mlx_tools.cli.call_text import ShownLine, as_name, diff, show, wrapped
from mlx_tools.cli.output import (
    PROSE,
    columns_of,
    complain,
    counted,
    cut,
    folded,
    note,
    ours,
    painted,
    print_json,
    print_text,
    shown,
    steerable,
    to_json,
)
from mlx_tools.transcript import Answered, GivenSource, Outcome, Paused, Stopped, events

_WIDTH: Final = 160
_FEW: Final = 40


class LiveView:
    """Shows events on two streams, each None where nothing is to be shown live."""

    def __init__(self, *, steps: TextIO | None, answer: TextIO | None) -> None:
        self._steps = steps
        self._answer = answer
        self._streamed = ""  # what the turn that goes on, or went last, wrote of an answer
        self._midline = False
        self._waiting = False

    @classmethod
    def here(cls, *, steps: bool | None = None, answer: bool = True) -> Self:
        """A view on this process's streams: ``steps`` by default at a terminal, the answer there
        alone, where it is wanted."""
        wanted = sys.stderr.isatty() if steps is None else steps
        live = answer and ours().isatty()
        return cls(steps=sys.stderr if wanted else None, answer=ours() if live else None)

    def show(self, event: events.Event) -> None:
        """Show one event."""
        match event:
            case events.AnswerPiece():
                self._piece(event.text)
            case events.TurnStarted():
                self._end_line()
                self._streamed = ""
                self._wait(f"· turn {event.turn} …")
            case events.ToolStarted():
                self._wait(f"  {event.name} runs …")
            case events.ToolProgress():
                self._wait(f"  {event.name}: {far(event.message, event.fraction)} …")
            case events.TurnEnded():
                self._step("dim", f"· turn {event.turn}: {_usage(event)}")
            case events.ContextFilling():
                self.end()
                share, of = 100 * event.used // event.size, f"{event.used} of {event.size} tokens"
                note(f"{share} % of the model's context is used: {of}")
            case events.Compacted():
                self._step("yellow", f"! {compacted(event)}")
            case events.Mended():
                said = f"{event.dropped or 'nothing'} → {event.put or 'written anew'}"
                self._step("yellow", f"! {_line(f'mended ({event.kind}): {said}')}")
            case events.FormatBroken():
                self._step("yellow", f"! {_line(event.error.message)}")
            case events.CallRead():
                repaired = f"  (repaired: {', '.join(event.repairs)})" if event.repairs else ""
                self._step("bold", f"→ {event.name} {_line(to_json(event.arguments))}{repaired}")
            case events.CallDecided() if event.decision != "allow":
                self._step("yellow", f"  {event.decision}: {_line(event.reason)}")
            case events.ToolEnded():
                self._tool_ended(event)
            case events.WouldChange():
                self.end()
                show_change(event.name, event.preview, self._steps or sys.stderr)
            case events.Finished():
                self._finish(event.outcome)
                self.end()

    def end(self) -> None:
        """Leave the terminal at the start of a line, whatever was shown last."""
        self._stop_waiting()
        self._end_line()

    def _piece(self, text: str) -> None:
        self._streamed += text
        self._write(text)

    def _finish(self, outcome: Outcome) -> None:
        if isinstance(outcome, Answered) and outcome.answer != self._streamed:
            self._end_line()
            self._write(outcome.answer)
        self._end_line()

    def _write(self, text: str) -> None:
        if self._answer is not None and text:
            self._stop_waiting()
            self._answer.write(shown(text, keep=PROSE))
            self._answer.flush()
            self._midline = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._midline:
            self._write("\n")

    def _wait(self, text: str) -> None:
        """A line that says what is waited for, and goes away when something comes."""
        if self._steps is not None and steerable(self._steps) and not self._midline:
            self._stop_waiting()
            self._steps.write(painted(text, "dim", self._steps))
            self._steps.flush()
            self._waiting = True

    def _stop_waiting(self) -> None:
        if self._waiting and self._steps is not None:
            self._steps.write("\r\x1b[K")
            self._steps.flush()
        self._waiting = False

    def _tool_ended(self, event: events.ToolEnded) -> None:
        took = "" if event.duration_ms is None else f" {_time(event.duration_ms)}"
        took = " (as before)" if event.cached else took
        if event.error is not None:
            said = f"{event.error.code}: {event.error.message}"
            self._step("red", f"← {event.name}{took}: {_line(said)}")
            return
        size = event.output_size_chars or 0
        more = f"  ({size} characters)" if size > _WIDTH else ""
        self._step("green", f"← {event.name}{took}: {_line(event.preview)}{more}")

    def _step(self, colour: str, text: str) -> None:
        if self._steps is None:
            return
        self._end_line()
        self._stop_waiting()
        rows = folded(shown(text, keep=PROSE), columns_of(self._steps), "  ")
        self._steps.write(painted(rows, colour, self._steps) + "\n")
        self._steps.flush()


def show_change(name: str, preview: str, screen: TextIO) -> None:
    """Show what a call would change, as an approval does."""
    head = ShownLine(f"{as_name(name)} would change:", "bold")
    columns = columns_of(screen) if screen.isatty() else None
    show(wrapped([head, *diff(preview)], columns), screen)


def ending(outcome: Outcome) -> str | None:
    """The end of a run without a whole answer, in words; None for one that has it."""
    where = f" (transcript: {outcome.transcript})" if outcome.transcript else ""
    if isinstance(outcome, Paused):
        names = ", ".join(call.name for call in outcome.pending)
        return f"an approval is due for {names} (mlx-tools sessions resume {outcome.session})"
    if isinstance(outcome, Stopped):
        said = f": {outcome.message}" if outcome.message else ""
        return f"{outcome.reason}{said}{where}"
    if isinstance(outcome, Answered) and outcome.truncated:
        return "the answer was cut off at the token limit (limits.max_tokens)"
    if isinstance(outcome, Answered) and outcome.call_like:
        return "the answer looks like a call that cannot be read; nothing ran"
    return None


def tell(outcome: Outcome, *, as_json: bool, include_outputs: bool, plain: bool) -> None:
    """Print the outcome to standard output, and to a person what there is besides an answer."""
    if as_json:
        print_json(outcome.to_json(include_outputs=include_outputs))
    elif plain and isinstance(outcome, Answered) and not ours().isatty():
        print_text(outcome.answer)
    if plain and isinstance(outcome, Answered):
        list_sources(outcome.sources)
    said = ending(outcome)
    if said is not None:
        complain(said, kind=outcome.status)


def list_sources(sources: Iterable[GivenSource]) -> None:
    """Tell a person at a terminal which sources an answer cites."""
    for source in sources if sys.stderr.isatty() else ():
        complain(f"[{source.n}] {source.title} ({source.location})", kind="source")


def compacted(event: events.Compacted) -> str:
    """The parts that left the prompt, in words."""
    gone = ((event.turns, "turn"), (event.observations, "observation"))
    parts = " and ".join(counted(number, what) for number, what in gone if number)
    before, after = event.before, event.after
    tokens = "" if before is None or after is None else f", from {before} to {after} tokens"
    return f"the prompt was compacted: {parts or 'nothing'} left out{tokens}"


def far(message: str, fraction: float | None) -> str:
    """A call's progress, in a few words: a line that goes away must fit into one row."""
    words = cut(" ".join(message.split()), _FEW)
    share = "" if fraction is None else f"{100 * fraction:.0f} %"
    return ", ".join(part for part in (words, share) if part) or "goes on"


def _line(text: str) -> str:
    """A text on one line, cut where it is long."""
    return cut(" ".join(text.split()), _WIDTH)


def _time(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _usage(event: events.TurnEnded) -> str:
    usage = event.usage
    took = _time(event.duration_ms) if event.duration_ms is not None else ""
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens is not None else ""
    read = f"{usage.prompt_tokens} prompt tokens{cached}" if usage.prompt_tokens is not None else ""
    wrote = f"{usage.completion_tokens} written" if usage.completion_tokens is not None else ""
    return ", ".join(part for part in (took, read, wrote) if part)
