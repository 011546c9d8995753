"""A transcript as messages, for servers that render tools and read calls.

These are messages of OpenAI's chat API with the content that `Prompt` writes as text: the same
records and texts, with control tokens broken in all of them. Nothing mentions the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlx_tools.messages import ErrorInfo
from mlx_tools.prompt.neutralise import Neutraliser
from mlx_tools.prompt.opening import plain_system
from mlx_tools.prompt.render import Prompt
from mlx_tools.prompt.words import PromptWords
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    Header,
    ObservationRecord,
    UserRecord,
    observation_text,
    tool_call,
)

ChatMessage = Mapping[str, Any]


def native_messages(
    prompt: Prompt, header: Header, words: PromptWords, neutraliser: Neutraliser, result: str = ""
) -> tuple[ChatMessage, ...]:
    """Return the messages that say what ``prompt`` says.

    Args:
        prompt: the prompt.
        header: the session's header.
        words: the words of ``prompts/``.
        neutraliser: breaks control tokens.
        result: the tool whose call is the answer, empty if there is none.
    """
    chat = _Chat(words, neutraliser)
    if system := plain_system(header, words, neutraliser, result):
        chat.messages.append({"role": "system", "content": system})
    for said in header.history:
        chat.say(str(said.get("role")), str(said.get("content")))
    chat.removed = prompt.removed_text
    for record in prompt.records:
        chat.take(record)
    chat.end_turn()
    return tuple(chat.messages)


class _Chat:
    """The messages so far; ``removed`` is the unwritten text for removed records."""

    def __init__(self, words: PromptWords, neutraliser: Neutraliser) -> None:
        self.messages: list[dict[str, Any]] = []
        self.removed = ""
        self._words = words
        self._neutraliser = neutraliser
        self._completion: CompletionRecord | None = None  # not in the messages yet
        self._calls: list[CallRecord] = []  # the calls of the last turn
        self._observations: dict[str, ObservationRecord] = {}
        self._notes: list[str] = []

    def take(self, record: Any) -> None:
        """Add a record."""
        match record:
            case UserRecord():
                self._ask(record)
            case CompletionRecord():
                self.end_turn()
                self._completion = record
            case CallRecord():
                self._calls.append(record)
            case ObservationRecord():
                self._observations[record.call] = record
            case AnswerRecord():
                self._completion = None
                self.say("assistant", record.content)
            case CorrectionRecord():
                self._notes.append(self._advised(record.error))

    def say(self, role: str, content: str) -> None:
        """Add a message in words. A role never has two messages in a row.

        Many templates refuse that.
        """
        content = self._neutraliser.plain(content)
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == role and not last.get("tool_calls"):
            last["content"] = f"{last['content']}\n\n{content}"
        else:
            self.messages.append({"role": role, "content": content})

    def end_turn(self) -> None:
        """Add the last turn of the model: its calls with their results, or its words."""
        completion, self._completion = self._completion, None
        calls, self._calls = self._calls, []
        if calls:
            self._call(calls, completion.commentary if completion is not None else "")
        elif completion is not None and (wrote := completion.retained_text.strip()):
            self.say("assistant", wrote)
        self._observations = {}
        notes, self._notes = self._notes, []
        for note in notes:
            self.say("user", note)

    def _ask(self, record: UserRecord) -> None:
        self.end_turn()
        if self.messages and self.messages[-1]["role"] == "user":
            self.say("assistant", self._words.texts["turns.unanswered"])
        gone, self.removed = self.removed, ""
        self.say("user", "\n\n".join(filter(None, (gone, record.content))))

    def _call(self, calls: Sequence[CallRecord], commentary: str) -> None:
        ids = [call.id or call.call for call in calls]
        if len({*ids}) < len(ids):
            ids = [call.call for call in calls]
        told = [
            tool_call(given, call.name, neutralise_value(call.arguments, self._neutraliser))
            for call, given in zip(calls, ids, strict=True)
        ]
        said = self._neutraliser.plain(commentary) or None
        self.messages.append({"role": "assistant", "content": said, "tool_calls": told})
        for call, given in zip(calls, ids, strict=True):
            content = self._neutraliser.plain(self._result(self._observations.get(call.call)))
            self.messages.append({"role": "tool", "tool_call_id": given, "content": content})

    def _result(self, record: ObservationRecord | None) -> str:
        if record is None:  # nobody will say how it ended
            return self._words.texts["turns.unanswered"]
        error = record.shown_error
        form = error.form if error is not None else ""
        lines = (self._words.form_introduction(form), form) if form else ()
        return "\n".join((observation_text(record), *lines))

    def _advised(self, error: ErrorInfo) -> str:
        advice = self._words.correction(error.code, "native")
        said = [error.message, *((advice,) if advice not in error.message else ())]
        said += [self._words.form_introduction(error.form), error.form] if error.form else []
        return " ".join(filter(None, said))


def neutralise_value(value: Any, neutraliser: Neutraliser) -> Any:
    """Return a JSON value with the control tokens in its texts broken.

    A server's template would make tokens of them.
    """
    if isinstance(value, str):
        return neutraliser.plain(value)
    if isinstance(value, Mapping):
        return {
            neutralise_value(key, neutraliser): neutralise_value(one, neutraliser)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [neutralise_value(one, neutraliser) for one in value]
    return value
