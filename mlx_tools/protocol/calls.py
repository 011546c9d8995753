"""The steps that read calls in dialects, and that tell what is only quoted (rules 8a to 8c)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlx_tools.protocol import lexis
from mlx_tools.protocol.bodies import Run
from mlx_tools.protocol.candidate import may_mutate
from mlx_tools.protocol.canonical import compact
from mlx_tools.protocol.dialects import DIALECTS, Dialect
from mlx_tools.protocol.draft import Wrapping, writable
from mlx_tools.protocol.objects import ObjectSteps
from mlx_tools.protocol.reading import ArgumentsDelta, CallStarted, ReadingRules
from mlx_tools.protocol.source import Steps, TextSource

_BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}
HARMONY: Final = _BY_NAME["harmony"]
_TO: Final = "to="
_REREADS: Final = 4
_SPARE: Final = 2_000
"""So many times the text before, and so many characters more, are read again of forms that need no
mark, where they were no call."""


class CallSteps(ObjectSteps):
    """What a reader does from a dialect's mark on, and the state that tells quoted text."""

    def __init__(self, rules: ReadingRules, *, whole: bool) -> None:
        super().__init__(rules, whole=whole)
        self._ticks = 0  # backticks that opened the code that stands here
        self._ticking = 0  # backticks that were read just now, more may follow
        self._told = False  # speech is for the user by its header: nothing in it is a call
        self._struck = False
        self._tried = -1  # where in the kept text a form without a mark was tried last
        self._failed = 0  # characters of such forms that were no call
        self._weak = False
        self._in_thought = False  # the text leaves a thought open, and a call ends it
        self._run_of_calls: Run
        self._source: TextSource
        self._steps: Steps[None]

    @property
    def open_message(self) -> str | None:
        """As for `ObjectSteps`; in a dialect, whose objects are read as a run, a brace for each."""
        if self._step == self._dialect and not (self._fence or self._weak):
            return "{"
        return super().open_message

    # --- quoted text --------------------------------------------------------------------------

    @property
    def _quoted(self) -> bool:
        """Whether what stands here is shown, not said: within code, or in a fence beside text."""
        return bool(self._ticks) or self._told or (self._fence and self._spoken)

    def _backticks(self) -> None:
        """The run of backticks before this is over: it opens code, or closes what it opened."""
        run, self._ticking = self._ticking, 0
        if self._ticks == run or (self._ticks >= 3 and run > self._ticks):
            self._ticks = 0
        elif not self._ticks and not (self._fence and run >= 3):
            self._ticks = run

    def _end_of_line(self) -> None:
        if self._ticks < 3:  # a fence that began within a line goes on
            self._ticks = 0

    # --- the turn's end -----------------------------------------------------------------------

    def _turn_ends(self, what: str) -> bool | None:
        """Whether the mark ends the turn; where it does not, it is text."""
        if what == lexis.STRUCK:
            self._struck = True
            return False
        if what == "</s>" and self._struck:
            self._struck = False
            return False
        return what in self._marks.own_ends or not (self._ticks or self._fence)

    # --- runs of calls ------------------------------------------------------------------------

    def _begin_run(self, dialect: Dialect, *, skip: int | None = None, weak: bool = False) -> bool:
        self._place = self._here(inline=not self._lead)
        self._source = TextSource(self._cursor)
        rules = self._rules
        run = Run(self._source, dialect, rules.catalog, rules.max_calls, skip)
        self._run_of_calls, self._steps, self._weak = run, run.steps(), weak
        self._step = self._dialect
        return True

    def _line_form(self, char: str) -> bool | None:
        """Begins to read a form whose mark counts at a line's start alone, where one may stand.

        None where none does, False where more text is needed.
        """
        text, pos, draft = self._cursor.text, self._cursor.pos, self._draft
        tired = self._failed > _REREADS * draft.size + _SPARE
        if draft.messages or self._tried == draft.size or tired or self._quoted:
            return None
        for dialect in self._marks.by_line:
            opening = dialect.open
            if char != opening[0]:
                continue
            if text.startswith(opening, pos):
                return self._begin_run(dialect, weak=True)
            if not self._cursor.final and opening.startswith(text[pos : pos + len(opening)]):
                return False
        if self._spoken:
            return None
        if char == _TO[0] and (_TO.startswith(ahead := text[pos : pos + 3])):
            if ahead == _TO:
                return self._begin_run(HARMONY, skip=0, weak=True)
            if not self._cursor.final:
                return False
        if any(name[0] == char for name in self._rules.catalog if name):
            return self._begin_run(_BY_NAME["functionary"], skip=0, weak=True)
        return None

    def _dialect(self) -> bool:
        """Goes on with the run of calls; when it is over, does what came of it."""
        for _ in self._steps:
            return False
        run = self._run_of_calls
        self._step = self._speech
        if run.header is not None:
            return self._take_header(run)
        if run.calls and run.cut is None and self._fence and not run.quoted:
            self._step = self._after_fenced
            return True
        return self._take_run()

    def _after_fenced(self) -> bool:
        """After calls in a fence: they count where nothing else follows."""
        cursor, run = self._cursor, self._run_of_calls
        found = lexis.AFTER_MESSAGES.match(cursor.text, cursor.pos)
        if not cursor.final and found is not None and found.end() == len(cursor.text):
            if len(cursor.text) - cursor.pos > _MOST_WRAPPING:
                run.quoted = True
            else:
                return False
        elif found is None or found.end() < len(cursor.text):
            run.quoted = True
        self._step = self._speech
        return self._take_run()

    def _take_header(self, run: Run) -> bool:
        """A message's header is no text; it may say that a thought follows, or speech."""
        header = run.header
        assert header is not None
        self._source.put_back(run.end)
        if header.channel == "analysis" and not header.recipient:
            return self._open_thought(_MESSAGE_END)
        self._told = header.channel == "final" or header.recipient == "user"
        return self._begin_line(self._draft.size)

    def _take_run(self) -> bool:
        run, source, draft = self._run_of_calls, self._source, self._draft
        if self._in_thought and (not run.calls or run.cut or not self._ends_text()):
            self._end_cut()
            return False
        if not run.calls or run.quoted:
            return self._no_call()
        if run.cut is not None and not self._may_close():
            self._end_cut()
            return False
        source.put_back(run.end)
        size = draft.size
        native = run.opening in self._rules.native or run.typed
        text = "".join(source.taken)
        done = 0
        for call, end in zip(run.calls, run.ends, strict=True):
            last = end == run.ends[-1]
            draft.keep(text[done : run.end if last else end])
            done = end
            repairs = call.repairs if native else (*call.repairs, "dialect")
            index = len(draft.messages)
            draft.add(replace(call, repairs=repairs), self._place.begin, Wrapping())
            if not self._whole:
                arguments = writable(compact(call.arguments))
                self._deltas += (CallStarted(index, call.name), ArgumentsDelta(index, arguments))
            if last:
                break
        if draft.size < size + run.end:
            draft.keep(text[draft.size - size :])
            draft.end = draft.size
        draft.dropped += [dropped for dropped in run.dropped if dropped]
        draft.unclean = draft.unclean or bool(run.dropped) or run.cut is not None
        if run.fault:
            draft.fail("invalid_json", run.fault)
        return self._stop(wrapping_may_follow=True)

    def _ends_text(self) -> bool:
        """Whether nothing but wrapping and the turn's end follows the run."""
        self._source.put_back(self._run_of_calls.end)
        rest = self._cursor.text[self._cursor.pos :]
        ending = self._marks.turn_end.match(rest)
        return not rest[ending.end() if ending else 0 :].strip(lexis.WHITE)

    def _may_close(self) -> bool:
        """Whether the calls, the last without its closing brackets, count (rule 7)."""
        calls = self._run_of_calls.calls
        if self._reason != "stop" or "missing_closers" not in calls[-1].repairs:
            return False
        return not any(may_mutate(self._rules.mutates, call) for call in calls)

    def _end_cut(self) -> None:
        self._source.put_back(0)
        self._draft.cut(self._cursor.take_all())
        self._step = None

    def _no_call(self) -> bool:
        """What began like a call is none: text where it may be, else an error (rule 8b)."""
        run, source, draft = self._run_of_calls, self._source, self._draft
        weak_call = self._weak and run.cut is not None and self._names_tool()
        if run.cut is not None and not run.quoted and (not self._weak or weak_call):
            self._end_cut()
            return False
        if self._weak:
            self._failed += source.size
            source.put_back(0)
            self._tried = draft.size
            return True
        if self._fence and run.quoted:
            source.put_back(run.end)
            draft.keep("".join(source.taken))
            self._spoken = True
            return True
        source.put_back(0)
        draft.fail("invalid_json", run.fault or "prose follows the call in its line")
        draft.call_like = True
        return self._stop()

    def _names_tool(self) -> bool:
        return self._run_of_calls.begun

    def _text_of_mark(self, what: str) -> bool:
        """A mark that is quoted: text like any other."""
        self._lead = False
        self._spoken = True
        return self._keep(self._cursor.pos + len(what))


_MOST_WRAPPING: Final = 1000
_MESSAGE_END: Final = lexis.any_of(["<|end|>", "<|channel|>final<|message|>"])
