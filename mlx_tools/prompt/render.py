"""A transcript as the text that a model goes on from.

The bytes only grow: what a completion was asked with is the beginning of all that is asked later,
up to a `CompactedRecord`, which replaces what is oldest and begins the text anew. So nothing that
was written is ever changed, and what a turn of the user's role holds is written only when the
completion that answers it is there; until then `Prompt.render` shows how it stands.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any, Final, NamedTuple

from mlx_tools.errors import UsageError
from mlx_tools.messages import ErrorInfo, ToolObservation
from mlx_tools.prompt.chat_format import ChatFormat
from mlx_tools.prompt.examples import ExampleTurn, style_named
from mlx_tools.prompt.model_text import closed, neutral_speech
from mlx_tools.prompt.neutralise import Composer, Neutraliser
from mlx_tools.prompt.tool_format import Slots, ToolFormat, slotted
from mlx_tools.prompt.words import PromptWords
from mlx_tools.protocol.styles import write_answer, write_observation
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    CorrectionRecord,
    ObservationRecord,
    Record,
    UserRecord,
)

CORRECTION: Final = "protocol"
"""The name in an observation that answers no call, but a line that could not be read."""


_Seen = (
    UserRecord | CompletionRecord | CallRecord | ObservationRecord | CorrectionRecord | AnswerRecord
)
"""The records that a prompt is made of."""


class _Beginning(NamedTuple):
    """A prompt before its first question: the text, whether a turn was written, an open turn."""

    text: Composer
    begun: bool
    said: tuple[str, ...]


_KEPT: Final = 16
_beginnings: OrderedDict[Any, _Beginning] = OrderedDict()
"""By all that they are made of: the sessions of a program mostly begin alike."""


class Prompt:
    """The prompt of a session: folds records, renders text. Append-only, and pure.

    ``system`` was neutralised by `build_system`. ``examples`` are turns, or mappings of role and
    content as a transcript's header has them. ``reasoning`` is ``off``, ``auto`` or a number of
    tokens: with ``off`` a model that thinks is given its thought empty and closed.

    The turns of the user's role hold what came since the last completion: a question, or the
    observations of its calls, in their order, and a correction. A question that comes while another
    has no answer closes that turn, with words that say so; so the roles always alternate.

    In style ``native`` ``system`` is all that stands before the first question, observations stand
    in turns of their own, as the template writes results, and a ``tool_choice`` that is ``none`` is
    said in words.
    """

    def __init__(
        self,
        *,
        chat_format: ChatFormat,
        style: str,
        system: str,
        examples: Sequence[ExampleTurn | Mapping[str, str]] = (),
        neutraliser: Neutraliser,
        words: PromptWords,
        reasoning: str | int = "off",
        tool_choice: str = "auto",
    ) -> None:
        self._format = chat_format
        self._style = style_named(style)
        self._native = chat_format.tools if style == "native" else None
        self._tool_choice = tool_choice
        empty = write_observation(ToolObservation(""), self._style)
        self._around = empty[: empty.find("{")], empty[empty.rfind("}") + 1 :]
        self._neutraliser = neutraliser
        self._words = words
        self._examples = tuple(
            e if isinstance(e, ExampleTurn) else ExampleTurn.from_json(e) for e in examples
        )
        self._silent = reasoning == "off" and chat_format.reasoning is not None
        trims = "system" in chat_format.trims and self._native is None
        self._system = system.strip() if trims else system
        self._records: list[_Seen] = []
        self._gone = ""  # what stands in place of records that are gone
        self._begin(self._examples)

    def _begin(self, examples: tuple[ExampleTurn, ...]) -> None:
        """Writes what stands before the first question, or takes it from a session before."""
        self._text = Composer(self._neutraliser)
        self._begun = False
        self._said: list[str] = []  # the open turn of the user's role, neutralised
        self._calls: list[CallRecord] = []
        self._observed: dict[str, ObservationRecord] = {}
        self._notes: list[str] = []
        self._unread: CompletionRecord | None = None
        self._asked: Composer | None = None  # the text with the open turn, until that changes
        self._before = self._gone  # said with the next question
        words, tokens = self._words, self._neutraliser.control_tokens
        own = (self._format, self._style, self._silent, self._system)
        key = (*own, examples, tokens, words.unanswered, words.go_on)
        if (found := _beginnings.get(key)) is not None:
            self._text, self._begun, self._said = found.text.copy(), found.begun, [*found.said]
            return
        self._text.host(self._format.bos)
        if self._native is not None:
            self._text.host(self._system)
        elif self._format.system is not None and self._system:
            self._text.host(self._format.system[0])
            self._text.untrusted(self._system)
            self._text.host(self._format.system[1])
            self._begun = True
        elif not self._system:
            self._text.host(self._format.default_system)
        for example in examples:
            self._show(example)
        _beginnings[key] = _Beginning(self._text.copy(), self._begun, tuple(self._said))
        if len(_beginnings) > _KEPT:
            _beginnings.popitem(last=False)

    # --- the fold ---

    def add(self, record: Record) -> None:
        """Folds one record; those that no model sees change nothing."""
        if isinstance(record, _Seen):
            self._records.append(record)
            self._take(record)
        elif isinstance(record, CompactedRecord):
            self._compact(record)

    def _take(self, record: _Seen) -> None:
        if isinstance(record, CompletionRecord):
            self._complete(record)
            return
        self._asked = None
        match record:
            case UserRecord():
                self._ask(record)
            case CallRecord():
                self._calls.append(record)
            case ObservationRecord():
                self._observed[record.call] = record
            case CorrectionRecord():
                self._correct(record)
            case AnswerRecord():
                self._answer(record)

    def render(self, prefix: str = "") -> str:
        """The prompt for the next completion: it ends in the opened turn and ``prefix``.

        Raises `UsageError` where no completion is due: nothing was asked, or a call has no
        observation yet.
        """
        missing = [call.call for call in self._calls if call.call not in self._observed]
        if missing:
            raise UsageError(f"the call {missing[0]} has no observation yet")
        if self._asked is None:
            if not self._has_lines:
                raise UsageError("nothing was asked since the last answer")
            self._asked = self._text.copy()
            self._write_host(self._asked)
        return self._asked.before(self._opening(prefix) + prefix)

    @property
    def records(self) -> tuple[_Seen, ...]:
        """What the prompt is made of, as it stands there: a `CompactedRecord` counts these."""
        return tuple(self._records)

    @property
    def gone(self) -> str:
        """What stands in place of records that are gone, empty where none are."""
        return self._gone

    @property
    def written(self) -> str:
        """The text without the turn that is open, but for what is to be told in it of what left."""
        return f"{self._text}{self._before}"

    def copy(self) -> Prompt:
        """A prompt that can be gone on with while this one stays."""
        other = copy(self)
        other._text, other._records = self._text.copy(), [*self._records]
        other._said, other._notes, other._calls = [*self._said], [*self._notes], [*self._calls]
        other._observed, other._asked = dict(self._observed), None
        return other

    @property
    def thought_open(self) -> bool:
        """Whether `render` without a prefix leaves a thought open."""
        return self._format.opens_thought and not self._silent

    # --- what records do ---

    def _compact(self, record: CompactedRecord) -> None:
        """Begins the text anew, with what the record leaves, and what it puts in place of the rest.

        The question that the first turn left answers stays: it is asked behind what is gone.
        """
        gone, kept = self._records[: record.gone], self._records[record.gone :]
        if kept and not isinstance(kept[0], UserRecord):
            kept.insert(0, [one for one in gone if isinstance(one, UserRecord)][-1])
        if record.gone:
            self._gone = record.content
        self._records = [
            replace(one, content=record.observations[one.call])
            if isinstance(one, ObservationRecord) and one.call in record.observations
            else one
            for one in kept
        ]
        self._begin(self._examples)
        for one in self._records:
            self._take(one)

    def _ask(self, record: UserRecord) -> None:
        if self._has_lines or self._unread is not None:
            self._close(write_answer(self._words.unanswered, self._style))
        self._calls, self._observed = [], {}  # nobody will say how these ended
        if self._before:
            self._said.append(self._plain(self._before))
            self._before = ""
        choice = record.tool_choice or self._tool_choice
        silent = self._native is not None and choice == "none"
        asked = self._words.asked(record.content, record.tools, no_calls=silent)
        self._said.append(self._plain(asked))

    def _complete(self, record: CompletionRecord) -> None:
        if record.counted.strip():
            self._speak(closed(record, self._style, self._native), record.prefix)
        else:
            # Nothing of it was read. It stays out, unless a correction speaks of it.
            self._unread = record

    def _correct(self, record: CorrectionRecord) -> None:
        if self._unread is not None:
            self._close("")
        native = self._native is not None
        if record.forged:
            words = self._words
            self._notes.append(self._plain(words.native_forged if native else words.forged))
            return
        advised = self._advised(record.error)
        if native:
            self._notes.append(self._plain(advised.message))
            return
        self._notes.append(self._observation(ToolObservation(CORRECTION, error=advised)))

    def _answer(self, record: AnswerRecord) -> None:
        if self._unread is not None or self._has_lines:
            self._close(write_answer(record.content, self._style))

    def _show(self, turn: ExampleTurn) -> None:
        if turn.role == "assistant":
            self._speak(turn.content, "")
        elif turn.role == "observation":
            self._said.append(self._json_in(turn.content))
        else:
            if self._said:
                self._close(write_answer(self._words.unanswered, self._style))
            self._said.append(self._neutraliser.in_mixed(self._trimmed(turn.content)))

    # --- turns ---

    def _close(self, otherwise: str) -> None:
        """Ends a turn in which nothing was read with ``otherwise``, after the prefix it had."""
        prefix = self._unread.prefix if self._unread is not None else ""
        self._speak(otherwise if otherwise.startswith(prefix) else prefix, prefix)

    def _speak(self, said: str, prefix: str) -> None:
        """Writes the open turn of the user's role, and the assistant's that answers it."""
        if self._asked is None:
            self._write_host(self._text)
        else:
            self._text = self._asked
        self._asked, self._begun = None, True
        self._said, self._notes = [], []
        self._calls, self._observed, self._unread = [], {}, None
        header, rest = self._header(said, prefix), said.removeprefix(prefix)
        self._text.host(header + prefix)
        neutral = neutral_speech(said, self._style, self._neutraliser, self._native)
        if said.startswith(prefix) and neutral.startswith(prefix):
            self._text.untrusted(neutral[len(prefix) :])
        else:
            rest = neutral_speech(rest, self._style, self._neutraliser, self._native)
            self._text.untrusted(rest)
        self._text.host(self._format.assistant[1])

    def _header(self, said: str, prefix: str) -> str:
        """What opens a turn that was spoken: it goes on from what asked for it."""
        if self._silent or prefix:
            return self._format.answering
        ask, header = self._format.assistant[0], self._format.remembered
        gap = header[len(ask) :]
        # A model that writes the blank after its header itself has written it already.
        return ask if gap.isspace() and said[:1].isspace() else header

    def _opening(self, prefix: str) -> str:
        return self._format.answering if self._silent or prefix else self._format.assistant[0]

    def _write_host(self, text: Composer) -> None:
        """Writes what came since the model's last turn: in turns of the user's role, results as the
        model's own template has them where it is spoken to so."""
        lines = self._lines()
        if self._native is not None and self._observed and self._begun:
            self._write_results(text, self._native)
            lines = [*self._said, *self._notes]
            if not lines:
                return
        self._write_user(text, lines or [self._plain(self._words.go_on)])

    def _write_results(self, text: Composer, native: ToolFormat) -> None:
        slots, last = native.before, ("", "")
        for record, given in self._results():
            key = json.dumps(given or "", ensure_ascii=False)[1:-1]
            name = json.dumps(record.name, ensure_ascii=False)[1:-1]
            values = {"id": last[0], "name": last[1], "next_id": key, "next_name": name}
            self._fill(text, slots, values)
            said = record.content or ""
            if record.error is not None:
                advised = self._advised(record.error)
                fault = {"code": advised.code, "message": advised.message}
                said = json.dumps({"error": fault}, ensure_ascii=False)
            text.untrusted(native.result(said, self._neutraliser))
            slots, last = native.between, (key, name)
        self._fill(text, native.after, {"id": last[0], "name": last[1]})

    def _fill(self, text: Composer, slots: Slots, values: Mapping[str, str]) -> None:
        for part, named in slotted(slots):
            if named:
                text.untrusted(self._neutraliser.plain(values[part]))
            else:
                text.host(part)

    def _write_user(self, text: Composer, lines: Sequence[str]) -> None:
        before, after = self._format.user
        opened = self._native is not None and not self._begun  # the template's opening does it
        text.host("" if opened else before)
        if not self._begun and self._system and not opened:
            opening, closing = self._format.system_in_user
            text.host(opening)
            text.untrusted(self._system)
            text.host(closing)
        for number, line in enumerate(lines):
            if number:
                text.host("\n")
            text.untrusted(line)
        text.host(after)

    # --- lines ---

    @property
    def _has_lines(self) -> bool:
        """Whether anything came since the model's last turn."""
        return bool(self._said or self._observed or self._notes)

    def _lines(self) -> list[str]:
        """What stands in the open turn of the user's role."""
        seen = (self._observed_line(record, given) for record, given in self._results())
        return [*self._said, *seen, *self._notes]

    def _results(self) -> list[tuple[ObservationRecord, str | None]]:
        """The observations that are there, those of calls in call order, then any other; each with
        the id that it is given."""
        several = len(self._calls) > 1
        taken = {call.id for call in self._calls}
        spare = (str(number) for number in count(len(self._calls) + 1))
        found, known = [], set()
        for number, call in enumerate(self._calls, start=1):
            known.add(call.call)
            given = call.id
            if given is None and several:  # an id of the host's, other than the model's own
                given = str(number)
                while given in taken:
                    given = next(spare)
            if (record := self._observed.get(call.call)) is not None:
                found.append((record, record.id or given))
        others = (record for key, record in self._observed.items() if key not in known)
        return [*found, *((record, record.id) for record in others)]

    def _observed_line(self, record: ObservationRecord, given: str | None) -> str:
        return self._observation(
            ToolObservation(
                record.name,
                content=record.content,
                error=None if record.error is None else self._advised(record.error),
                id=given,
            )
        )

    def _advised(self, error: ErrorInfo) -> ErrorInfo:
        """The error with advice on how to mend the line, as far as both fit."""
        advice = self._words.correction(error.code, self._style)
        stop = "" if error.message[-1:] in (*".!?…", "") else "."
        said = f"{error.message}{stop} {advice}".strip()
        return error if advice in error.message or len(said) > 500 else ErrorInfo(error.code, said)

    def _observation(self, observation: ToolObservation) -> str:
        return self._json_in(write_observation(observation, self._style))

    def _json_in(self, written: str) -> str:
        """An observation's line with its JSON neutralised; the style's own wrapping stays.

        One that is no such line, as an example's may be, is text like any other.
        """
        before, after = self._around
        end = len(written) - len(after)
        body = written[len(before) : end]
        if (before, after) != (written[: len(before)], written[end:]) or body[:1] != "{":
            return self._neutraliser.in_mixed(written)
        return before + self._neutraliser.in_json(body) + after

    def _plain(self, text: str) -> str:
        return self._neutraliser.plain(self._trimmed(text))

    def _trimmed(self, text: str) -> str:
        return text.strip() if "user" in self._format.trims else text
