"""The conversation before a session: another session's, or a caller's messages.

Pure. Nothing of it runs, counts or is approved in the new session. There it is a number of
`CarriedRecord`s, which only the prompt and its safeguards read.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, takewhile
from typing import Any, Final

from msgspec import Struct

from mlx_tools.controller.session import Session
from mlx_tools.controller.turn import refusal
from mlx_tools.errors import UsageError, require_items
from mlx_tools.messages import ErrorInfo, ToolCall, Usage, replace
from mlx_tools.protocol import ReadingRules, read, write_answer, write_call
from mlx_tools.store import ArtifactStore
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CarriedRecord,
    CompactedRecord,
    CompletionRecord,
    Consents,
    CorrectionRecord,
    ObservationRecord,
    PromptRecord,
    StartedCall,
    State,
    UserRecord,
)

MESSAGES: Final = (
    'each is {"role": "user", "assistant", "system" or "developer", "content": text or its parts}, '
    'with "tool_calls" as OpenAI has them, or {"role": "tool", "tool_call_id": id, "content": text}'
)
"""The hint about the form of earlier messages, for a caller who gave others."""

_ROLES: Final = {
    **{role: role for role in ("user", "assistant", "system", "tool")},
    "developer": "system",
}
_TEXT_PARTS: Final = (None, "text", "input_text", "output_text")


class PriorConversation(Struct, frozen=True, kw_only=True):
    """The conversation before a session."""

    records: tuple[PromptRecord, ...] = ()
    """The records of its prompt."""
    system: str = ""
    """The system messages at the beginning of a caller's messages."""
    form: tuple[Any, ...] | None = None
    """The form of the session in which it was written, None if there was none. For a session of
    another form the model's turns are written again."""
    private: bool = False
    """True if a private tool was used there."""
    artifacts: ArtifactStore | None = None
    """The store of the texts that ``records`` show in part."""
    consents: Consents | None = None
    """A person's consents that stay in force."""
    unknown_ends: tuple[StartedCall, ...] = ()
    """The calls whose end is unknown, also those that are not in ``records``."""

    @property
    def question(self) -> str | None:
        """The first question."""
        return next((one.content for one in self.records if isinstance(one, UserRecord)), None)

    def without_last(self) -> PriorConversation:
        """Return the same without the last question and all that followed.

        These stay if one of their calls is in doubt: the model is told, and a person is asked about
        the same call. They also stay if nothing else is left to which a doubt could be attached.
        """
        places = [n for n, one in enumerate(self.records) if isinstance(one, UserRecord)]
        last = self.records[places[-1] :] if places else ()
        if any(isinstance(one, ObservationRecord) and _is_in_doubt(one) for one in last):
            return self
        before = self.records[: places[-1]] if places else ()
        return replace(self, records=before) if before or not self.unknown_ends else self

    def prior_messages(
        self, session: Session, clean: Callable[[str], str] = str
    ) -> Iterator[CarriedRecord]:
        """Yield the records for a session in which nothing was said yet.

        Fold each one before taking the next. ``clean`` removes from observations what the session
        may not show.
        """
        # In the same form the bytes are the same, so a server's cache of the prompt still holds.
        same = self.form == get_form(session)
        said = self.records if same else tuple(_rewrite(self.records, session))
        for place, one in enumerate(said, start=1):
            if isinstance(one, UserRecord):
                one = session.question_record(
                    one.content, one.tool_choice, one.recorded_at, one.untyped_suffix_chars
                )
            elif isinstance(one, ObservationRecord):
                one = _clean_record(one, clean)
            doubts = self.unknown_ends if place == len(said) else ()
            yield CarriedRecord(record=one, private=self.private, unknown_ends=doubts)

    def stored_artifacts(self) -> Iterator[tuple[str, str]]:
        """Yield the artifacts that are still stored of texts shown in part: id and text."""
        for one in self.records if self.artifacts is not None else ():
            keys: tuple[str | None, ...] = getattr(one, "artifacts", ())
            if isinstance(one, ObservationRecord):
                keys = (one.artifact,)
            for key in filter(None, keys):
                if self.artifacts is not None and (text := self.artifacts.get(key)) is not None:
                    yield key, text


def get_form(session: Session) -> tuple[Any, ...]:
    """Return all that decides how a model's turns are written in a session."""
    header = session.header
    native = header.chat_format if header.style == "native" else None
    return header.style, native, header.output_schema


def prior_from_session(session: Session, artifacts: ArtifactStore | None) -> PriorConversation:
    """Return the conversation of a session, as far as it is in its prompt.

    With it come the calls in doubt, whose end nobody knows.
    """
    if session.state is State.EMPTY:
        return PriorConversation()
    # The host writes their ends: a call without an observation would block the next prompt.
    doubts = [session.current.call(key) for key in session.calls_in_doubt]
    prompt, compacted = session.prompt, session.summary_artifacts
    gone = [CompactedRecord(reason="asked", content=prompt.removed_text, artifacts=compacted)]
    return PriorConversation(
        records=(
            *(gone if prompt.removed_text else ()),
            *map(_strip_record, prompt.records),
            *(refusal(call, session, "in_doubt") for call in doubts),
        ),
        form=get_form(session),
        private=session.history.private_read,
        artifacts=artifacts,
        unknown_ends=tuple(session.history.unknown_ends.calls.values()),
    )


def _is_in_doubt(record: ObservationRecord) -> bool:
    return record.error is not None and record.error.code == "in_doubt"


def _strip_record(record: PromptRecord) -> PromptRecord:
    """Return a record of a prompt without its costs and other facts of its own run."""
    match record:
        case CompletionRecord():
            record = replace(
                record, usage=Usage(), prompt=None, shared_prefix_chars=0, reasoning="", dropped=()
            )
            return replace(record, duration_ms=None)
        case ObservationRecord():
            return replace(record, duration_ms=None)
        case UserRecord():
            # The lines of tools belong to the old session's catalog; the new one brings its own.
            return replace(record, tools=())
    return record


def _clean_record(record: ObservationRecord, clean: Callable[[str], str]) -> ObservationRecord:
    if record.error is not None:
        error = ErrorInfo(record.error.code, clean(record.error.message))
        return replace(record, error=error, would_change=clean(record.would_change))
    return replace(record, content=clean(record.content or ""))


# --- a model's turns, written by the host -------------------------------------------------------


def turn_to_text(content: str, calls: Sequence[CallRecord], session: Session) -> str:
    """Return a turn in the protocol's own form: its calls, or the answer ``content``."""
    style, result = session.header.style, session.result
    if calls:
        lines = [_write_native_calls(calls, session)] if style == "native" else []
        if not any(lines):
            lines = [write_call(call.name, call.arguments, style=style) for call in calls]
        return "\n".join(filter(None, (content, *lines)))
    given = None if result is None else result.parse_arguments(content)
    if result is None or given is None:
        return write_answer(content, style)
    return write_call(result.spec.name, given, style=style)


def _write_native_calls(calls: Sequence[CallRecord], session: Session) -> str:
    """Return the calls with the marks of the model's own template.

    Empty if they would not be read back.
    """
    form = session.chat_format.tools
    if form is None:
        return ""
    catalog: dict[str, Mapping[str, Any]] = {call.name: {} for call in calls}
    marks = frozenset(form.marks[:1])
    rules = ReadingRules(style="native", catalog=catalog, native=marks, call=form.call)
    for closing in ("", "}"):
        text = "".join(
            f"{form.call[0]}{call.name}{form.call[1]}"
            f"{json.dumps(call.arguments, ensure_ascii=False)}{closing}{form.close}"
            for call in calls
        )
        # Read back at once: a form that would be read in another way must not be written.
        messages = read(text, "stop", rules).messages
        found = [(one.name, one.arguments) for one in messages if isinstance(one, ToolCall)]
        wanted = [(call.name, call.arguments) for call in calls]
        if found == wanted and text.encode(errors="ignore").decode() == text:
            return text
    return ""


def make_turn(
    content: str, calls: Sequence[CallRecord], session: Session, turn: int
) -> tuple[CompletionRecord, *tuple[CallRecord | AnswerRecord, ...]]:
    """Return the records of a turn that the host writes."""
    text = turn_to_text(content, calls, session)
    completion = CompletionRecord(turn=turn, text=text, retained_text=text, finish_reason="stop")
    return completion, *(calls or (AnswerRecord(turn=turn, content=content),))


def _rewrite(records: Sequence[PromptRecord], session: Session) -> Iterator[PromptRecord]:
    """Yield the records with the model's turns in this session's form.

    Turns of which nothing was read are left out, with their corrections.
    """
    for place, one in enumerate(records):
        if isinstance(one, CompletionRecord):
            after = (
                records[n] for n in range(place + 1, len(records))
            )  # a slice would copy all of them
            rest = takewhile(lambda r: not isinstance(r, CompletionRecord), after)
            brought = [r for r in rest if isinstance(r, CallRecord | AnswerRecord)]
            calls = [r for r in brought if isinstance(r, CallRecord)]
            if not brought:
                continue
            answers = [r.content for r in brought if isinstance(r, AnswerRecord)]
            content = one.commentary if calls else answers[0]
            yield make_turn(content, calls, session, one.turn)[0]
        elif not isinstance(one, CorrectionRecord):
            yield one


# --- a caller's messages ------------------------------------------------------------------------


def prior_from_messages(messages: Sequence[Mapping[str, Any]]) -> PriorConversation:
    """Return the conversation that a caller's messages make up.

    Raises `UsageError` for a value that is no message.
    """
    said: list[PromptRecord] = []
    turn = made = 0
    waiting: OrderedDict[str, CallRecord] = OrderedDict()
    read: list[tuple[str, str, int]] = []
    for place, message in enumerate(messages):
        with _naming(place):
            read.append((*_read(message), place))
    begun = [content for _, content, _ in takewhile(lambda one: one[0] == "system", read)]
    for says, group in groupby(read[len(begun) :], lambda one: one[0] in ("user", "system")):
        if says:
            # After a question there is no open turn for the result of an earlier call.
            waiting.clear()
            said.append(UserRecord(content="\n\n".join(content for _, content, _ in group)))
            continue
        for role, content, place in group:
            if role == "tool":
                with _naming(place):
                    said.append(_observation_from_message(messages[place], content, waiting))
                continue
            turn += 1
            with _naming(place):
                calls = [
                    CallRecord(turn=turn, call=f"c{made + n}", name=name, arguments=given, id=key)
                    for n, (key, name, given) in enumerate(_calls(messages[place]), start=1)
                ]
            made += len(calls)
            waiting = OrderedDict((call.id or call.call, call) for call in calls)
            said.append(CompletionRecord(turn=turn, text=content, commentary=content))
            said += calls or (AnswerRecord(turn=turn, content=content),)
    return PriorConversation(records=tuple(said), system="\n\n".join(begun))


@contextmanager
def _naming(place: int) -> Iterator[None]:
    """Add the place of the message in the history to an error."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"history[{place}]: {error.message}", hint=error.hint) from None


def _read(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return the role and the text of a message. A developer's counts as the system's."""
    known = isinstance(message, Mapping)
    role, content = (message.get("role"), message.get("content")) if known else (None, None)
    if content is None and known and role == "assistant" and message.get("tool_calls"):
        content = ""
    if isinstance(content, list | tuple):
        content = "\n".join(map(_part_text, content))
    if not isinstance(role, str) or role not in _ROLES or not isinstance(content, str):
        raise _unusable()
    return _ROLES[role], content


def _part_text(part: Any) -> str:
    """Return the text of a part of a message's content."""
    kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else ("", None)
    if "image" in str(kind):
        raise UsageError(
            "an earlier message holds an image, and the model reads text only",
            hint="have it put into words: the tool describe_image does that",
        )
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise _unusable()
    return text


def _calls(message: Mapping[str, Any]) -> Iterator[tuple[str | None, str, Mapping[str, Any]]]:
    """Yield the id, the name and the arguments of each call of a message."""
    for call in require_items("tool_calls", message.get("tool_calls"), MESSAGES):
        own = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(own, Mapping) or not isinstance(own.get("name"), str):
            raise _unusable()
        given = own.get("arguments", {})
        try:
            given = json.loads(given or "{}") if isinstance(given, str) else given
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, Mapping):
            raise _unusable()
        key = call.get("id")
        yield key if isinstance(key, str) else None, own["name"], given


def _observation_from_message(
    message: Mapping[str, Any], content: str, waiting: OrderedDict[str, CallRecord]
) -> ObservationRecord:
    """Return the observation of a result: of the call that it names, else of the next.

    An ordered dictionary finds the next call at once; a plain one passes all that were removed
    before.
    """
    # Some clients send results without ids: they are taken in the order of the calls.
    key = message.get("tool_call_id", next(iter(waiting), None))
    call = waiting.pop(key, None) if isinstance(key, str) else None
    if call is None:
        raise UsageError(f"an earlier message is the result of no call: {key!r}", hint=MESSAGES)
    return ObservationRecord(call=call.call, name=call.name, id=call.id, content=content)


def _unusable() -> UsageError:
    return UsageError("an earlier message is not usable", hint=MESSAGES)
