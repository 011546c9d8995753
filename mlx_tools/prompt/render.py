"""A transcript as the text that a model continues.

The bytes only grow: the prompt of a completion is the beginning of all later prompts, up to a
`CompactedRecord`, which replaces the oldest part and begins the text again. So written text is
never changed. A turn of the user's role is written only once the completion that answers it is
there; until then `Prompt.render` shows it as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cache, lru_cache
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from mlx_tools.errors import UsageError
from mlx_tools.messages import ErrorInfo, Style, ToolCall, ToolObservation, replace
from mlx_tools.prompt.chat_format import ChatFormat, Slots, ToolFormat, split_slots
from mlx_tools.prompt.neutralise import Composer, Neutraliser
from mlx_tools.prompt.words import STYLES, PromptWords
from mlx_tools.protocol import ReadingRules, read, write_answer, write_observation
from mlx_tools.transcript import (
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
"""The name in an observation that is not of a call, but of a line that could not be read."""

_FoldedRecord = (
    UserRecord | CompletionRecord | CallRecord | ObservationRecord | CorrectionRecord | AnswerRecord
)
"""The records that a prompt is made of."""


class _OpenTurn(Struct):
    """The turn of the user's role that has no answer yet.

    ``lines`` and ``notes`` are neutralised: questions, and corrections. ``observations`` are the
    results of ``calls``, by call; ``unread`` is a completion in which no message was read.
    """

    lines: list[str] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    observations: dict[str, ObservationRecord] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unread: CompletionRecord | None = None

    def copy(self) -> _OpenTurn:
        """Return a turn that can be added to while this one stays."""
        return _OpenTurn(
            [*self.lines], [*self.calls], dict(self.observations), [*self.notes], self.unread
        )


class Prompt:
    """The prompt of a session: folds records, renders text. Append-only, and pure.

    The turns of the user's role hold what came since the last completion: a question, or the
    observations of its calls, in their order, and a correction. A question that comes while another
    has no answer closes that turn, with words that say so; so the roles always alternate. In style
    ``native`` observations stand in turns of their own, as the template writes results.

    Args:
        chat_format: the chat format.
        style: how messages are written.
        system: the text of `build_system`, neutralised; in style ``native`` all that stands before
            the first question.
        examples: turns, mappings of role and content.
        neutraliser: breaks control tokens.
        words: the words of ``prompts/``.
        reasoning: ``off``, ``auto`` or a number of tokens. With ``off`` a model that thinks gets
            its thought empty and closed.
        tool_choice: the tool choice. In style ``native``, ``none`` is said in words.
        answers_by_call: True if the answer is a call too; ``none`` is then not said.
    """

    def __init__(
        self,
        *,
        chat_format: ChatFormat,
        style: Style,
        system: str,
        examples: Sequence[Mapping[str, str]] = (),
        neutraliser: Neutraliser,
        words: PromptWords,
        reasoning: str | int = "off",
        tool_choice: str = "auto",
        answers_by_call: bool = False,
    ) -> None:
        if style not in STYLES:  # a header's may be anything
            raise UsageError(f"{style!r} is no prompt style: choose one of {', '.join(STYLES)}")
        self._format = chat_format
        self._style = style
        self._native = chat_format.tools if style == "native" else None
        self._tool_choice = tool_choice
        self._answers_by_call = answers_by_call
        self.neutraliser = neutraliser
        self._words = words
        self._examples = tuple((one.get("role"), one.get("content")) for one in examples)
        self._silent = reasoning == "off" and chat_format.reasoning is not None
        self.thought_open = chat_format.opens_thought and not self._silent  # without a prefix
        trims = "system" in chat_format.trims and self._native is None
        self._system = system.strip() if trims else system
        self._trims = "user" in chat_format.trims
        self._records: list[_FoldedRecord] = []
        self._removed_text = ""  # what stands in place of records that are gone
        self._begin()

    def _begin(self) -> None:
        """Write the text before the first question."""
        self._text = Composer(self.neutraliser)
        self._is_started = False
        self._open = _OpenTurn()
        self._open_prompt: Composer | None = None  # the text with the open turn, until that changes
        self._notice = self._removed_text  # said with the next question
        system = self._format.system
        self._text.host(self._format.bos)
        if self._native is not None:
            self._text.host(self._system)
        elif system is not None and self._system:
            self._text.host(system[0])
            self._text.untrusted(self._system)
            self._text.host(system[1])
            self._is_started = True
        elif not self._system:
            self._text.host(self._format.default_system)
        for role, content in self._examples:
            self._show(role, content)

    def _show(self, role: str | None, content: str | None) -> None:
        """Write an example."""
        if role not in ("user", "assistant", "observation") or not isinstance(content, str):
            raise UsageError(f"this is no turn of a conversation: {role!r}, {content!r}")
        if role == "assistant":
            self._speak(content, "")
        elif role == "observation":
            self._open.lines.append(self._neutralise_json(content))
        else:
            if self._open.lines:
                self._close(self._unanswered_text)
            content = content.strip() if self._trims else content
            self._open.lines.append(self.neutraliser.in_mixed(content))

    # --- the fold ---

    def add(self, record: Record) -> None:
        """Fold one record; those that no model sees change nothing."""
        if isinstance(record, CompactedRecord):
            self._compact(record)
        if not isinstance(record, _FoldedRecord):
            return
        self._records.append(record)
        turn = self._open
        if not isinstance(record, CompletionRecord):
            self._open_prompt = None
        match record:
            case CompletionRecord() if record.retained_text.strip():
                self._speak(close_completion(record, self._style, self._native), record.prefix)
            case CompletionRecord():
                # No message was read in it. It is left out, unless a correction is about it.
                turn.unread = record
            case UserRecord():
                self._ask(record)
            case CallRecord():
                turn.calls.append(record)
            case ObservationRecord():
                turn.observations[record.call] = record
            case CorrectionRecord():
                self._correct(record)
            case AnswerRecord():
                if turn.unread is not None or self._has_lines:
                    self._close(write_answer(record.content, self._style))

    def render(self, prefix: str = "") -> str:
        """Return the prompt for the next completion, which ends in ``prefix``.

        Raises:
            UsageError: no completion is due: nothing was asked, or a call has no observation yet.
        """
        for call in self._open.calls:
            if call.call not in self._open.observations:
                raise UsageError(f"the call {call.call} has no observation yet")
        if self._open_prompt is None:
            if not self._has_lines:
                raise UsageError("nothing was asked since the last answer")
            self._open_prompt = self._text.copy()
            self._write_host(self._open_prompt)
        text, own = self._open_prompt.copy(), self._format
        text.host((own.answering if self._silent or prefix else own.assistant[0]) + prefix)
        return str(text)

    @property
    def records(self) -> tuple[_FoldedRecord, ...]:
        """The records in the prompt, in their order: a `CompactedRecord` counts these."""
        return tuple(self._records)

    @property
    def removed_text(self) -> str:
        """The text in place of records that left, empty if none did."""
        return self._removed_text

    @property
    def closed_text(self) -> str:
        """The text without the open turn, but with its notice of what left."""
        return f"{self._text}{self._notice}"

    def copy(self) -> Prompt:
        """Return a prompt that can be added to while this one stays."""
        other = copy(self)
        other._text, other._records = self._text.copy(), [*self._records]
        other._open, other._open_prompt = self._open.copy(), None
        return other

    # --- what records do ---

    def _compact(self, record: CompactedRecord) -> None:
        """Begin the text again, with the records that stay and the text for the others.

        The question that the first remaining turn answers stays: it is asked after what left.
        """
        gone, kept = self._records[: record.removed], self._records[record.removed :]
        if kept and not isinstance(kept[0], UserRecord):
            kept.insert(0, [one for one in gone if isinstance(one, UserRecord)][-1])
        if record.content:
            self._removed_text = record.content
        self._records = []
        self._begin()
        for one in kept:
            if isinstance(one, ObservationRecord) and one.call in record.observations:
                one = replace(one, content=record.observations[one.call])
            self.add(one)

    def _ask(self, record: UserRecord) -> None:
        turn = self._open
        if record.joined_to_results:
            turn.notes.append(self._plain(record.content))
            return
        if self._has_lines or turn.unread is not None:
            self._close(self._unanswered_text)
            turn = self._open
        turn.calls, turn.observations = [], {}  # nobody will say how these ended
        if self._notice:
            turn.lines.append(self._plain(self._notice))
            self._notice = ""
        choice = record.tool_choice or self._tool_choice
        silent = self._native is not None and choice == "none" and not self._answers_by_call
        asked = record.content
        if record.tools or silent:
            asked = self._words.render_question(asked, record.tools, no_calls=silent)
        turn.lines.append(self._plain(asked))

    def _correct(self, record: CorrectionRecord) -> None:
        if self._open.unread is not None:
            self._close("")
        native = self._native is not None
        advised = self._advised(record.error)
        if record.forged:
            forged = self._words.texts["turns.native_forged" if native else "turns.forged"]
            note = self._plain(forged)
        elif native:
            note = self._plain(advised.message)
        else:
            written = write_observation(ToolObservation(CORRECTION, error=advised), self._style)
            note = self._neutralise_json(written)
        form = () if record.forged else self._example_lines(record.error)
        self._open.notes += (note, *form)

    def _example_lines(self, error: ErrorInfo) -> tuple[str, ...]:
        """Return the lines that show the form of the call at fault, none if unknown."""
        if not error.form:
            return ()
        form = neutralise_turn(error.form, self._style, self.neutraliser, self._native)
        return self._plain(self._words.form_introduction(error.form)), form

    @property
    def _unanswered_text(self) -> str:
        return write_answer(self._words.texts["turns.unanswered"], self._style)

    # --- turns ---

    def _close(self, fallback: str) -> None:
        """End a turn in which nothing was read with ``fallback``, after its prefix."""
        unread = self._open.unread
        prefix = unread.prefix if unread is not None else ""
        self._speak(fallback if fallback.startswith(prefix) else prefix, prefix)

    def _speak(self, reply: str, prefix: str) -> None:
        """Write the open turn of the user's role, and the assistant's that answers it.

        The answer's header goes on from the text that asked for it. A model that writes the blank
        after its header itself has written it already.
        """
        if self._open_prompt is None:
            self._write_host(self._text)
        else:
            self._text = self._open_prompt
        self._open_prompt, self._is_started, self._open = None, True, _OpenTurn()
        ask, header = self._format.assistant[0], self._format.remembered
        if self._silent or prefix:
            header = self._format.answering
        elif header[len(ask) :].isspace() and reply[:1].isspace():
            header = ask
        self._text.host(header + prefix)
        neutral = neutralise_turn(reply, self._style, self.neutraliser, self._native)
        if not (reply.startswith(prefix) and neutral.startswith(prefix)):
            rest = reply.removeprefix(prefix)
            neutral = prefix + neutralise_turn(rest, self._style, self.neutraliser, self._native)
        self._text.untrusted(neutral[len(prefix) :])
        self._text.host(self._format.assistant[1])

    def _write_host(self, text: Composer) -> None:
        """Write what came since the model's last turn, in turns of the user's role.

        In style ``native`` results stand as the model's own template writes them.
        """
        turn, native = self._open, self._native
        lines, results = [*turn.lines], self._results()
        if native is not None and turn.observations and self._is_started:
            self._write_results(text, native, results)
            if not (lines or turn.notes):
                return
        else:
            for record, given in results:
                form: tuple[str, ...] = ()
                error = record.shown_error
                if error is not None:
                    error = self._advised(error)
                    form = self._example_lines(error)
                observed = ToolObservation(record.name, record.content, error=error, id=given)
                lines += (self._neutralise_json(write_observation(observed, self._style)), *form)
        lines = [*lines, *turn.notes] or [self._plain(self._words.texts["turns.go_on"])]
        before, after = self._format.user
        opened = native is not None and not self._is_started  # the template's opening does it
        text.host("" if opened else before)
        if not self._is_started and self._system and not opened:
            text.host(self._format.system_in_user[0])
            text.untrusted(self._system)
            text.host(self._format.system_in_user[1])
        for number, line in enumerate(lines):
            if number:
                text.host("\n")
            text.untrusted(line)
        text.host(after)

    def _write_results(
        self,
        text: Composer,
        native: ToolFormat,
        results: Sequence[tuple[ObservationRecord, str | None]],
    ) -> None:
        def gap(slots: Slots, **values: str) -> None:
            for part, named in split_slots(slots):
                if named:
                    text.untrusted(self.neutraliser.plain(values[part]))
                else:
                    text.host(part)

        slots, last = native.results_prefix, ("", "")
        for record, given in results:
            key, name = (
                json.dumps(one or "", ensure_ascii=False)[1:-1] for one in (given, record.name)
            )
            gap(slots, id=last[0], name=last[1], next_id=key, next_name=name)
            said = record.content or ""
            if (error := record.shown_error) is not None:
                advised = self._advised(error)
                words = " ".join((advised.message, *self._example_lines(error)))
                fault = {"code": advised.code, "message": words}
                said = json.dumps({"error": fault}, ensure_ascii=False)
            text.untrusted(native.result(said, self.neutraliser))
            slots, last = native.results_separator, (key, name)
        gap(native.results_suffix, id=last[0], name=last[1])

    # --- lines ---

    @property
    def _has_lines(self) -> bool:
        """True if anything came since the model's last turn."""
        return bool(self._open.lines or self._open.observations or self._open.notes)

    def _results(self) -> list[tuple[ObservationRecord, str | None]]:
        """Return the observations, each with its id: those of calls first, in their order."""
        calls, observed = self._open.calls, dict(self._open.observations)
        taken = {call.id for call in calls}
        spare = (str(number) for number in count(len(calls) + 1))
        found = []
        for number, call in enumerate(calls, start=1):
            given = call.id
            if given is None and len(calls) > 1:  # an id of the host's, other than the model's own
                given = str(number)
                while given in taken:
                    given = next(spare)
            if (record := observed.pop(call.call, None)) is not None:
                found.append((record, record.id or given))
        return [*found, *((record, record.id) for record in observed.values())]

    def _advised(self, error: ErrorInfo) -> ErrorInfo:
        """Return the error with advice on how to mend the line, if both fit."""
        advice = self._words.correction(error.code, self._style)
        stop = "" if error.message[-1:] in (*".!?…", "") else "."
        said = f"{error.message}{stop} {advice}".strip()
        fits = advice not in error.message and len(said) <= 500
        return replace(error, message=said) if fits else error

    def _neutralise_json(self, text: str) -> str:
        """Return an observation's line with its JSON neutralised.

        The style's own wrapping stays. A text that is no such line, as an example's may be, is
        treated as any other text.
        """
        before, after = _around_observation(self._style)
        body = text.removeprefix(before).removesuffix(after)
        if before + body + after != text or body[:1] != "{":
            return self.neutraliser.in_mixed(text)
        return before + self.neutraliser.in_json(body) + after

    def _plain(self, text: str) -> str:
        text = text.strip() if self._trims else text
        return self.neutraliser.plain(text)


@lru_cache(maxsize=16)
def new_prompt(
    chat_format: ChatFormat, examples: tuple[tuple[Any, Any], ...], **options: Any
) -> Prompt:
    """Return a `Prompt` without records, to be copied.

    It is cached, as many sessions begin alike. ``examples`` are pairs of role and content.
    """
    return Prompt(
        chat_format=chat_format,
        examples=[{"role": role, "content": content} for role, content in examples],
        neutraliser=Neutraliser(chat_format.control_tokens),
        **options,
    )


@cache
def _around_observation(style: Style) -> tuple[str, str]:
    """Return the text that a style puts before and after an observation's JSON."""
    empty = write_observation(ToolObservation(""), style)
    return empty[: empty.find("{")], empty[empty.rfind("}") + 1 :]


# --- what a model wrote, made fit to stand in the prompt again ------------------------------------

_OPENING: Final = re.compile(r"<tool_call>(?=\s*\{)|<final_answer>")
_STRING_OR_END: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|</tool_call>', re.DOTALL)
_CLOSING: Final = {"<tool_call>": "</tool_call>", "<final_answer>": "</final_answer>"}
_ARRAY: Final = re.compile(r"\[[ \t\r\n]*\{")
_STRING_OR_FENCE: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"?|(`{3,16}|~{3,16})')


def close_completion(
    completion: CompletionRecord, style: Style, native: ToolFormat | None = None
) -> str:
    """Return a completion's retained text, with its bracket, tag and fence closed.

    Reading may stop at a message's last brace, and a model may end there: what would have closed
    the message was never written. It is added only if the reader takes it for the end of that
    message, so reading the text again gives the same messages. A text without a message, and one
    that broke off inside one, stay as they are.
    """
    text = completion.retained_text
    closers: list[str] = []  # what may be missing, the innermost first
    if native is not None and native.marks:
        closers += dict.fromkeys(filter(None, (native.close, native.close.lstrip())))
    more = not completion.text.endswith(text.removeprefix(completion.prefix))
    # Where the model itself ended within an array, reading says what that means (rule 7).
    if (completion.closed_early or more) and _ARRAY.search(text):
        closers.append("]")
    closers += (
        closing
        for tag, closing in _CLOSING.items()
        if (style == "xml" and tag in text)
        or (tag == "<tool_call>" and tag in _STRING_OR_FENCE.sub("", text))
    )
    if "```" in text or "~~~" in text:
        fences = [match[1] for match in _STRING_OR_FENCE.finditer(text) if match[1]]
        closers += (f"\n{fence}" for fence in fences[-1:])
    if not closers:
        return text
    reason, rules = completion.finish_reason or "stop", _rules(style, native)

    def is_whole(text: str) -> bool:
        reading = read(text, reason, rules)
        return bool(reading.messages) and not reading.bare_text and reading.retained_text == text

    for closer in closers:
        if text.endswith(closer.strip()):
            continue
        # An array is no message before its end; all else only goes around a message.
        if is_whole(text + closer) and (closer[:1] == "]" or is_whole(text)):
            text += closer
    return text


def _rules(style: Style, native: ToolFormat | None) -> ReadingRules:
    """Return reading rules for a text, whichever tools there are."""
    if style != "native" or native is None or not native.marks:
        return ReadingRules(style=style)
    return ReadingRules(style=style, catalog={"": {}}, native=frozenset(native.marks[:1]))


def neutralise_turn(
    text: str, style: str, neutraliser: Neutraliser, native: ToolFormat | None = None
) -> str:
    """Return a model's text with its control tokens broken, in strings by an escape.

    In the style ``xml`` the protocol's own tags stay where they have their place: around a call's
    object, and around the answer. In the style ``native`` the marks of the template's own form of
    calls stay where they are a call's.
    """
    if style == "native" and native is not None:
        return _neutralise_native_turn(text, neutraliser, native)
    if style != "xml":
        return neutraliser.in_mixed(text)
    parts: list[str] = []
    position = 0
    while match := _OPENING.search(text, position):
        tag, start = match[0], match.end()
        closing = _CLOSING[tag]
        if tag == "<tool_call>":  # a tag in a string closes nothing
            found = _STRING_OR_END.finditer(text, start)
            end = next((match.start() for match in found if match[0][0] == "<"), -1)
        else:
            end = text.rfind(closing, start)
        parts.append(neutraliser.in_mixed(text[position : match.start()]))
        inside = text[start:] if end < 0 else text[start:end]
        neutral = neutraliser.in_json if tag == "<tool_call>" else neutraliser.plain
        parts += (tag, neutral(inside))
        if end < 0:
            return "".join(parts)
        parts.append(closing)
        position = end + len(closing)
    return "".join((*parts, neutraliser.in_mixed(text[position:])))


_PARAMETER: Final = r"(?:\w+:)?(?:parameter|param|(?:longcat_)?arg_(?:key|value))"
_VALUE: Final = re.compile(rf"(<{_PARAMETER}\b[^>\n]*>)(.*?)(</{_PARAMETER}>)", re.DOTALL)
"""A value in a tag of its own."""

_MAX_MARKS: Final = 64
"""So many places are tried for the mark that opens a run of calls."""


def _neutralise_native_turn(text: str, neutraliser: Neutraliser, native: ToolFormat) -> str:
    """Neutralise a text in the model's own form: only the marks of its calls stay."""
    rules, family = _rules("native", native), native.family
    if family is None or family.open not in text:
        return neutraliser.in_mixed(text)
    calls = _calls(text, rules)
    starts = [found.start() for found in re.finditer(re.escape(family.open), text)]
    for begin in reversed(starts[-_MAX_MARKS:]):  # what opens it without need is no call's
        if calls and _calls(text[begin:], rules) == calls:
            run = _neutralise_calls(text[begin:], neutraliser, native, calls)
            if run is not None and len(_calls(run, rules)) == len(calls):
                return neutraliser.in_mixed(text[:begin]) + run
            break
    return neutraliser.in_mixed(text)


def _calls(text: str, rules: ReadingRules) -> list[ToolCall]:
    """Return the calls that a text is read as, none if it is read as anything else."""
    reading = read(text, "stop", rules)
    calls = [replace(one, repairs=()) for one in reading.messages if isinstance(one, ToolCall)]
    return calls if reading.error is None else []


def _neutralise_calls(
    run: str, neutraliser: Neutraliser, native: ToolFormat, calls: list[ToolCall]
) -> str | None:
    """Neutralise a run of calls whose marks stay; None if a mark may be in a value."""
    family = native.family
    assert family is not None
    marks = "|".join(map(re.escape, sorted(native.marks, key=len, reverse=True)))
    if family.body in ("json", "named_json"):
        parts: list[str] = []
        done = 0
        string, mark = r'"(?:[^"\\]|\\.)*"?', rf"(?P<mark>{marks})(?!\s*(?P=mark))"
        for found in re.finditer(f"{string}|{mark}", run, re.DOTALL):
            if found["mark"]:
                parts += (neutraliser.in_json(run[done : found.start()]), found["mark"])
                done = found.end()
        return "".join((*parts, neutraliser.in_json(run[done:])))
    if family.body in ("xml", "pairs"):
        run = _VALUE.sub(lambda one: one[1] + neutraliser.plain(one[2]) + one[3], run)
    else:
        for value in sorted(
            filter(neutraliser.contains_token, _texts(calls)), key=len, reverse=True
        ):
            if value not in run:
                return None
            run = run.replace(value, neutraliser.plain(value))
    pieces = re.split(f"({marks})", run)
    return "".join(
        part if number % 2 else neutraliser.in_mixed(part) for number, part in enumerate(pieces)
    )


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in calls' names, ids and arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, ToolCall):
        yield from _texts([value.name, value.id, value.arguments])
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
