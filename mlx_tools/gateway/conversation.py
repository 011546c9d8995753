"""A client's conversation as the records of a session.

Pure. A client sends the whole conversation each time. It is made into records in only one way. So
it gives the same prompt on any gateway, and the prompt of a longer conversation begins with the
bytes of the shorter one: the server's cache holds.

Clients send the model's own text back with other white space and another order of keys. A
`TurnMemory` brings the original back. Without it a turn is written in the protocol's own form,
which only costs some prefill.

Several gateways may serve one conversation in turns, with one model server. Each knows only its own
turns. So a turn is brought back verbatim only while no turn of another gateway follows it. Up to
the last turn of another gateway, all gateways write the same bytes, in the protocol's own form.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.controller import RunSettings, Session, SessionInputs, make_turn
from mlx_tools.gateway.content import gateway_text
from mlx_tools.gateway.request import ApiError, ClientCall, ClientMessage, TurnRequest
from mlx_tools.messages import ErrorInfo, FinalAnswer, Strategy, Style, ToolCall, ToolSpec, replace
from mlx_tools.policy import Limits, Policy
from mlx_tools.prompt import ChatFormat, Frame, Neutraliser, Openings, PromptWords
from mlx_tools.protocol import Reading
from mlx_tools.tools import Finder
from mlx_tools.transcript import (
    CallRecord,
    CompletionRecord,
    Header,
    ObservationRecord,
    Record,
    RunHistory,
    UserRecord,
)

_ALL_CALLS: Final = 10_000
"""The calls of one turn are not limited here: the client decides which it runs."""

NO_BUDGET: Final = 10**9
"""Tokens that a client's tools may take: all of them are shown, or they do not fit the context."""

# One object for all headers, so that it is parsed once.
_POLICY: Final = Policy(allow=["*"], ask_effects=()).to_json()
_MAX_TURNS_BYTES: Final = 6 << 20
"""Bytes of remembered turns, about: four thousand turns, or a hundred conversations of forty."""

_MAX_FOLDS_BYTES: Final = 32 << 20
"""Bytes of remembered folds, about: forty conversations as long as any that was seen, or two
thousand short ones."""

_FOLD_BYTES: Final = 16_000
"""Bytes of the fold of a short conversation, about, as tracemalloc counts them."""

_RECORD_BYTES: Final = 1500
"""Bytes of a record besides its text, about."""

_MAX_ERROR_CHARS: Final = 500
"""Characters that an error may have; a longer one is shown like any result."""

Turned = tuple[tuple[Record, Reading | None], ...]
"""The records that one request brought, each completion with its reading."""


class TurnMemory:
    """The model's own text of earlier turns, by the conversation that each ends.

    The oldest turns are forgotten first.
    """

    def __init__(self, max_turns: int = _MAX_TURNS_BYTES) -> None:
        self._max_turns = max_turns
        self._size = 0
        self._turns: OrderedDict[str, tuple[Turned, int]] = OrderedDict()

    def keep(self, key: str, turned: Turned) -> None:
        """Remember the turn that ends the conversation of this key.

        An empty one was written here, but cannot be brought back.
        """
        texts = [r.text for r, _ in turned if isinstance(r, CompletionRecord)]
        size = sum(map(len, texts)) + _RECORD_BYTES * max(len(turned), 1)
        turned = tuple(  # the prompt is made again from the conversation
            (replace(one, prompt=None) if isinstance(one, CompletionRecord) else one, reading)
            for one, reading in turned
        )
        _, gone = self._turns.pop(key, ((), 0))
        self._turns[key] = turned, size
        self._size += size - gone
        while self._size > self._max_turns:
            self._size -= self._turns.popitem(last=False)[1][1]

    def __contains__(self, key: str) -> bool:
        """Return True if the turn that ends the conversation of this key was written here."""
        return key in self._turns

    def get(self, key: str) -> Turned | None:
        """Return the turn that ends the conversation of this key, None if it is not known."""
        try:
            self._turns.move_to_end(key)
            return self._turns[key][0]
        except KeyError:  # also of one that the event loop's thread forgets at this moment
            return None


class _Beginning(Struct, frozen=True):
    """The fold of a conversation's beginning. It is never changed, only copied."""

    messages: tuple[ClientMessage, ...]
    key: str
    session: Session
    calls: WaitingCalls
    has_question: bool
    characters: int
    """The characters of the messages' texts."""
    body_size: int
    """The characters of the request that it was folded for."""
    size: int
    """Its bytes, about."""
    is_verbatim: bool
    """True if a turn in it is as the model wrote it, not in the protocol's own form."""


class BeginningMemory:
    """The folds of beginnings of conversations; the oldest are dropped first.

    A missing fold only costs the time to fold the conversation again. A fold is found by its last
    messages, and then compared: that takes a tenth of the time of hashing all messages.
    """

    def __init__(self, max_size: int = _MAX_FOLDS_BYTES) -> None:
        self._max_size = max_size
        self._size = 0
        self.folds: OrderedDict[tuple[Hashable, ...], _Beginning] = OrderedDict()
        """The folds by key, the least recently used first."""
        self._lock = threading.Lock()  # large conversations are folded in threads

    def keep(self, fold: ConversationFold, body_size: int) -> None:
        """Remember a fold of a conversation.

        Args:
            fold: the fold; it can go on.
            body_size: the characters of the whole request. Its tools are kept with the fold.
        """
        messages, chars = fold.messages, fold.characters
        # The prompt is one more copy of the texts. Schemas take five times their size in the body,
        # as tracemalloc counts them.
        size = 2 * chars + 6 * max(body_size - chars, 0) + _FOLD_BYTES
        kept = _Beginning(
            messages,
            fold.key,
            fold.session.copy(),
            fold.calls.copy(),
            fold.has_question,
            chars,
            body_size,
            size,
            fold.is_verbatim,
        )
        lookup_key = _lookup_key(fold.session.header, messages, len(messages))
        with self._lock:
            old = self.folds.pop(lookup_key, None)
            self.folds[lookup_key] = kept
            self._size += size - (old.size if old is not None else 0)
            while self._size > self._max_size:
                self._size -= self.folds.popitem(last=False)[1].size

    def get(
        self,
        messages: tuple[ClientMessage, ...],
        end: int,
        header: Header,
        specs: Mapping[str, ToolSpec],
    ) -> _Beginning | None:
        """Return the fold of the first ``end`` messages if its session began with these."""
        lookup_key = _lookup_key(header, messages, end)
        with self._lock:
            found = self.folds.get(lookup_key)
            if found is not None:
                self.folds.move_to_end(lookup_key)
        if found is None or found.session.header != header:
            return None
        is_same = found.messages == messages[:end] and found.session.specs == specs
        return found if is_same else None


def _lookup_key(
    header: Header, messages: tuple[ClientMessage, ...], end: int
) -> tuple[Hashable, ...]:
    """Return the key under which the fold of the first ``end`` messages is stored."""
    # Few conversations share their length, two questions and the answers to them. If some do, the
    # last one is remembered.
    return (header.style, header.system, end, *messages[max(0, end - 4) : end])


class _NoRepeats(RunHistory):
    """A client decides itself which calls it repeats."""

    def add(self, name: str, arguments: Mapping[str, Any], spec: ToolSpec | None) -> int:
        super().add(name, arguments, spec)
        return 1


class PromptProfile(Struct, frozen=True, kw_only=True):
    """The settings of a prompt: all that it is made of besides the conversation.

    Attributes:
        settings: Those of a run of the gateway's own, with the model, its context and its format as
            they were found.
        style: The style that they come to.
        strategy: The strategy that they come to.
        weak_model: The model's verdict says that it rarely calls tools correctly.
        catalog: Whether the model is told all descriptions of a client's tools, or a line of each.
    """

    settings: RunSettings
    chat_format: ChatFormat
    style: Style
    strategy: Strategy
    words: PromptWords
    weak_model: bool = False
    catalog: Literal["whole", "compact"] = "whole"

    def header(self, request: TurnRequest, limits: Limits) -> Header:
        """Return the header of the session that this request is a turn of.

        ``limits`` are those of the model. Where there are neither tools nor a schema for the
        answer, nothing of ours stands in the prompt: the model answers as it does.
        """
        system = "\n\n".join(m.content for m in _preamble(request.conversation) if m.content)
        said = system
        plain, settings = request.is_plain, self.settings
        chat_format, style = self.chat_format, self.style
        schema = _with_example(request.schema)
        tools: tuple[Mapping[str, Any], ...] = ()
        examples: tuple[Mapping[str, str], ...] = ()
        if plain:
            chat_format = _without_tools(chat_format)
            style, system = "native", Neutraliser(chat_format.control_tokens).plain(system)
        else:
            frame = Frame(
                words=self.words,
                tools=request.tools,
                neutraliser=Neutraliser(chat_format.control_tokens),
                style=style,
                native=chat_format.tools,
                response_mode="",
                persona=system or None,
                catalog_budget=NO_BUDGET,
                output_schema=schema,
                weak_model=self.weak_model,
                whole_descriptions=self.catalog == "whole",
            )
            openings = Openings(frame, lambda: None, Finder)
            opening = openings.opening("")
            system, examples, tools = opening.system, opening.examples, openings.tools
        return Header(
            session="",
            created="",
            model=settings.model,
            chat_format=_format_to_json(chat_format),
            style=style,
            strategy="free" if plain else self.strategy,
            reasoning=settings.reasoning,
            response_mode="",
            persona=said,
            route=settings.route,
            sampling={
                "temperature": settings.temperature,
                "seed": settings.seed,
                **request.sampling,
            },
            system=system,
            examples=examples,
            tools=tools,
            policy=_POLICY,
            limits=_limits_to_json(limits, request.parallel),
            output_schema=schema,
            weak_model=self.weak_model,
        )


@lru_cache(maxsize=64)
def _without_tools(chat_format: ChatFormat) -> ChatFormat:
    return replace(chat_format, tools=None)


@lru_cache(maxsize=64)
def _format_to_json(chat_format: ChatFormat) -> Mapping[str, Any]:
    """Return the format as a header has it, one object for all headers."""
    return chat_format.to_json()


@lru_cache(maxsize=64)
def _limits_to_json(limits: Limits, parallel: bool) -> Mapping[str, Any]:
    """Return the limits of a turn as a header has them, one object for all headers.

    What a client wants of a turn, and how long it goes on, is its own affair.
    """
    turn_limits = replace(
        limits,
        max_tokens=1_000_000,
        max_iterations=1_000,
        max_format_errors=100,
        max_argument_bytes=100_000_000,
        max_calls_per_turn=_ALL_CALLS if parallel else 1,
    )
    return turn_limits.to_json()


def _with_example(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Add an example to the schema of an answer that names no members of an object."""
    if schema is None or schema.keys() != {"type"} or schema["type"] != "object":
        return schema
    return {**schema, "examples": [{"name": "text", "count": 2}]}


def _preamble(messages: Sequence[ClientMessage]) -> Iterator[ClientMessage]:
    """Yield the system's messages that begin a conversation, never its last message."""
    for message in messages[:-1]:
        if message.role != "system":
            return
        yield message


class WaitingCalls:
    """The calls of a turn that wait for results, each by its client's id.

    With each is the session's key. Some clients give several calls one id. Each call is found at
    once, however many there are.
    """

    def __init__(self, calls: Iterable[tuple[str, str]]) -> None:
        self._waiting = OrderedDict(enumerate(calls))
        self._numbers: dict[str, deque[int]] = {}
        for number, (id_, _) in self._waiting.items():
            self._numbers.setdefault(id_, deque()).append(number)

    def copy(self) -> WaitingCalls:
        """Return a copy from which calls can be taken while this one stays as it is."""
        return WaitingCalls(self._waiting.values())

    def __len__(self) -> int:
        return len(self._waiting)

    def ids(self) -> Iterator[str]:
        """Return the client's ids, in the order of the calls."""
        return (id_ for id_, _ in self._waiting.values())

    def take(self, id_: str) -> str:
        """Remove the first call of this id, or else the first of all; return its key."""
        numbers = self._numbers.get(id_)
        number = numbers[0] if numbers else next(iter(self._waiting))
        id_, key = self._waiting.pop(number)
        self._numbers[id_].popleft()
        return key


class ConversationFold:
    """A conversation folded into a session, up to the turn that is due.

    It goes on from the longest beginning whose fold is remembered; `fold` folds the rest.

    Attributes:
        messages: The messages, each result behind its call.
        session: The session that they are folded into.
        key: The conversation's own key.
        characters: The characters of the texts that are folded, or in the header.
        known_size: The characters of the request whose fold it goes on from, 0 if there is none.
    """

    def __init__(
        self,
        messages: Sequence[ClientMessage],
        header: Header,
        inputs: SessionInputs,
        memory: TurnMemory,
        beginnings: BeginningMemory,
    ) -> None:
        self.messages = pair_results(messages)
        self._memory, self._beginnings = memory, beginnings
        # Messages before it are folded, or in the header.
        self._rest_begin = sum(1 for _ in _preamble(self.messages))
        self._keys: list[str] = []  # the keys of the conversation from there on, if known
        found = self._find_beginning(header, inputs.specs)
        if found is not None:
            self.session, self.calls = found.session.copy(), found.calls.copy()
            self.has_question, self.is_verbatim = found.has_question, found.is_verbatim
            self.key, self.known_size = found.key, found.body_size
            self.characters = found.characters
            return
        self.session = Session(header, inputs)
        # The key begins with the form of answers: a text in another form is no example.
        self.key = f"{header.style} {header.strategy} {self.session.result_name}"
        self.calls = WaitingCalls(())
        self.has_question = self.is_verbatim = False
        self.characters = _count_characters(self.messages[: self._rest_begin])
        self.known_size = 0

    def fold(self, body_size: int = 0) -> None:
        """Fold the rest of the messages, of a request of so many characters.

        Raises:
            ApiError: they are no conversation that a model can go on with.
        """
        messages, begin = self.messages, self._rest_begin
        rest = messages[begin:]
        keys = self._keys or [*accumulate(messages, next_key, initial=self.key)][begin:]
        last_unknown, self.key = self._last_unknown(rest, keys), keys[0]
        self.characters += _count_characters(rest)
        for says, group in groupby(enumerate(rest), lambda new: new[1].role in ("user", "system")):
            if says:
                numbers, said = zip(*group, strict=True)
                self.key = keys[numbers[-1] + 1]
                self._say(said)
                continue
            for at, message in group:
                self.key = keys[at + 1]
                if message.role == "assistant":
                    self._speak(message, verbatim=at > last_unknown)
                else:
                    self._observe(message)
        if messages and messages[-1].role != "assistant":
            self._beginnings.keep(self, body_size)
        while self.calls:  # the client sent no results of them
            self._observe(ClientMessage("tool", gateway_text("no_result")))
        last = messages[-1] if messages else None
        if last is None or (last.role == "assistant" and not last.calls):
            raise _unfit("the last one must be of the user, or a tool's result")
        self.session.run_history = _NoRepeats()
        self.session.iterations = 0  # the client decides how long an agent goes on

    def _find_beginning(self, header: Header, specs: Mapping[str, ToolSpec]) -> _Beginning | None:
        """Return the longest beginning to go on from, None if there is none.

        It ends before a message of the model: any other message is folded in one with those before
        it.
        """
        messages = self.messages
        must_be_plain = False  # a turn of another gateway follows
        for at in range(len(messages) - 1, self._rest_begin, -1):
            if messages[at].role != "assistant":
                continue
            found = self._beginnings.get(messages, at, header, specs)
            if found is None or (found.is_verbatim and must_be_plain):
                continue
            rest = messages[at:]
            keys = [*accumulate(rest, next_key, initial=found.key)]
            must_be_plain = self._last_unknown(rest, keys) >= 0
            if found.is_verbatim and must_be_plain:
                continue
            # All beginnings of a conversation share the messages themselves.
            self.messages = found.messages + rest
            self._rest_begin, self._keys = at, keys
            return found
        return None

    def _last_unknown(self, messages: Sequence[ClientMessage], keys: Sequence[str]) -> int:
        """Return the place of the last turn that was not written here, or -1.

        Args:
            messages: messages of the conversation.
            keys: the keys of the conversation before the first of them and after each.
        """
        return next(
            (
                at
                for at in range(len(messages) - 1, -1, -1)
                if messages[at].role == "assistant" and keys[at + 1] not in self._memory
            ),
            -1,
        )

    def _say(self, group: Sequence[ClientMessage]) -> None:
        beside = bool(self.session.current.calls) and not self.calls
        self.calls = WaitingCalls(())  # nobody will say how the other calls ended
        content = "\n\n".join(message.content for message in group)
        self.session.fold(UserRecord(content=content, joined_to_results=beside))
        self.has_question = True

    def _speak(self, message: ClientMessage, *, verbatim: bool) -> None:
        session = self.session
        if not self.has_question:  # the conversation begins with the model
            session.fold(UserRecord(content=session.words.texts["turns.go_on"]))
            self.has_question = True
        turned = self._memory.get(self.key) if verbatim else None
        self.is_verbatim |= bool(turned)
        turned = turned or _message_to_turn(message, session)
        keys: list[str] = []
        for record, reading in turned:
            session.fold(record, reading, is_past=True)
            if isinstance(record, CompletionRecord):
                keys = []
            elif isinstance(record, CallRecord):
                keys.append(record.call)
        open_keys = [key for key in keys if key in session.current.open_calls]
        ids = (call.id for call in message.calls)
        pairs = zip(ids, open_keys, strict=False)
        self.calls = WaitingCalls((id_ or key, key) for id_, key in pairs)

    def _observe(self, message: ClientMessage) -> None:
        if not self.calls:
            raise _unfit(f"there is no call for the result of {message.call_id!r}")
        call_key = self.calls.take(message.call_id)
        call = self.session.current.call(call_key)
        record = ObservationRecord(
            call=call_key, name=call.name, id=call.id, content=message.content
        )
        if message.is_error and len(message.content) <= _MAX_ERROR_CHARS:
            error = ErrorInfo("tool_error", message.content)
            record = replace(record, content=None, error=error)
        self.session.fold(record)


def _count_characters(messages: Iterable[ClientMessage]) -> int:
    return sum(len(message.content) for message in messages)


def pair_results(messages: Sequence[ClientMessage]) -> tuple[ClientMessage, ...]:
    """Return the messages with each result after its call.

    A result without a call becomes the user's message.
    """
    if not any(message.calls or message.role == "tool" for message in messages):
        return (*messages,)
    return (*_convert_strays(_merge_calls(messages)),)


def _merge_calls(messages: Sequence[ClientMessage]) -> list[ClientMessage]:
    """Merge a model's messages after its own call into the turn of that call.

    The results come behind them all.
    """
    turns: list[list[ClientMessage]] = []
    for message in messages:
        if turns and turns[-1][0].calls and message.role == "assistant":
            turns[-1].append(message)
        else:
            turns.append([message])
    return [turn[0] if len(turn) == 1 else _merge_turn(turn) for turn in turns]


def _convert_strays(messages: Sequence[ClientMessage]) -> list[ClientMessage]:
    """Make the user's messages of results whose calls the client did not send."""
    found: list[ClientMessage] = []
    waiting = 0
    for message in messages:
        if message.role != "tool":
            waiting = len(message.calls)
        elif waiting:
            waiting -= 1
        else:
            text = gateway_text("stray_result", text=message.content)
            message = ClientMessage("user", text)
        found.append(message)
    return found


def _merge_turn(turn: Sequence[ClientMessage]) -> ClientMessage:
    text = "\n".join(message.content for message in turn if message.content)
    return replace(turn[0], content=text, calls=tuple(c for message in turn for c in message.calls))


def _unfit(problem: str) -> ApiError:
    return ApiError(400, "invalid_request", f"messages: {problem}", param="messages")


def next_key(key: str, message: ClientMessage) -> str:
    """Return the key of a conversation that goes on with this message.

    It depends on the parts of the message that matter, in whatever form a client sends them. Ids do
    not count.
    """
    content, calls = message.content, ""
    if message.calls:
        named = [[call.name, read_arguments(call)] for call in message.calls]
        calls = json.dumps(named, sort_keys=True)
    # The size separates the content from the calls after it.
    said = f"{key} {message.role} {len(content)} {content}{calls}"
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def read_arguments(call: ClientCall) -> dict[str, Any]:
    """Return the arguments of a call that a client sends back."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}


def _message_to_turn(message: ClientMessage, session: Session) -> Turned:
    """Return an assistant's message in the protocol's own form."""
    turn, first = session.turn + 1, session.calls_made + 1
    records = make_turn(
        message.content,
        [
            CallRecord(turn=turn, call=f"c{number}", name=call.name, arguments=read_arguments(call))
            for number, call in enumerate(message.calls, start=first)
        ],
        session,
        turn,
    )
    completion, *rest = records
    calls = [ToolCall(r.name, r.arguments) for r in rest if isinstance(r, CallRecord)]
    said = tuple(calls) or (FinalAnswer(message.content),)
    reading = Reading(messages=said, retained_text=completion.retained_text, clean=True)
    return (completion, reading), *((record, None) for record in rest)
