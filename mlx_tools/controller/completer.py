"""One completion, streamed: read as it comes, closed when the message is complete."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread
from msgspec import Struct, field

from mlx_tools.backends import (
    Chunk,
    CompletionRequest,
    ErrorMappingBackend,
    GrammarText,
    TokenScore,
    start_backend,
)
from mlx_tools.controller.call_beginning import CallBeginning, call_beginning
from mlx_tools.controller.result import ResultText
from mlx_tools.controller.session import Complete, Session, Thought
from mlx_tools.controller.writer import Emit
from mlx_tools.decoding import ConstrainedTurn, RepetitionWatch, SampleTokens, ScoreTokens
from mlx_tools.errors import BackendBroken, BackendError, BackendRefused
from mlx_tools.messages import (
    ErrorInfo,
    FinalAnswer,
    FinishReason,
    Usage,
    loose_name,
    replace,
    total_usage,
)
from mlx_tools.parsing import writable
from mlx_tools.prompt import Neutraliser, ResultTool, neutralise_value
from mlx_tools.protocol import (
    DEFAULT_REASONING_MARKERS,
    AnswerDelta,
    ArgumentsDelta,
    CallStarted,
    Delta,
    Reading,
    ThoughtDelta,
)
from mlx_tools.schema import is_large, make_compilable
from mlx_tools.tools import to_openai
from mlx_tools.transcript import CompletionRecord, MendRecord, events

if TYPE_CHECKING:
    from mlx_tools.decoding import Grammar

GRACE_SECONDS: Final = 0.25
"""Seconds that a server gets to send its usage and end, after the message is complete."""
CHARS_PER_TOKEN: Final = 64
"""Characters for each token asked for, at most: if more comes it is no completion, and the stream
is closed."""

MAX_CHARS_PER_TOKEN: Final = 6
"""Characters of a token at most, in nearly all cases: for servers that neither stream nor count."""

ALTERNATIVES: Final = 11
"""Alternatives for a token that are asked for: the most that mlx-lm's server gives."""

REREAD_CHARS: Final = 80
"""Characters that must come before held text is read again: a line or two."""

TAIL: Final = 200
"""Characters within which a call's name and its bracket are, if they come in two pieces."""

MIN_RETRY_TEMPERATURE: Final = 0.7
"""The lowest temperature of a second sample."""

_THOUGHT: Final = DEFAULT_REASONING_MARKERS[0][0]

Result = TypeVar("Result")


class CompletionResult(Struct):
    """A turn that the model wrote, and how it was read."""

    thought: str = ""
    """The thought before the forced prefix."""
    prefix: str = ""
    text: str = ""
    finish_reason: FinishReason | None = None
    usages: list[Usage] = field(default_factory=list)
    """One for each request. If a stream was closed early its usage is missing, and the sum is None.
    """
    closed_early: bool = False
    requests: int = 0
    """As in a `CompletionRecord`."""
    pieces: int = 0
    """As in a `CompletionRecord`."""
    tokens: int = 0
    """The tokens that the model wrote, None if unknown."""
    reading: Reading = Reading()  # frozen, so all may share it
    mends: tuple[MendRecord, ...] = ()
    mended_messages: tuple[int, ...] = ()
    repeated: bool = False

    def record(
        self,
        step: Complete,
        prior_prompt: str,
        *,
        duration_ms: int | None = None,
    ) -> CompletionRecord:
        """Return the record of this completion of ``step``.

        ``prior_prompt`` is the prompt before it.
        """
        reading = self.reading
        kept = len(prior_prompt) if step.prompt.startswith(prior_prompt) else 0
        code = None if reading.error is None else reading.error.code
        return CompletionRecord(
            turn=step.turn,
            prefix=self.prefix,
            text=self.text,
            retained_text=reading.retained_text,
            finish_reason=self.finish_reason,
            closed_early=self.closed_early,
            usage=total_usage(self.usages),
            duration_ms=duration_ms,
            reasoning=self.thought + reading.reasoning,
            commentary=reading.commentary,
            dropped=reading.dropped,
            bare_text=reading.bare_text,
            strategy=step.strategy,
            mended_messages=self.mended_messages,
            repeated=self.repeated,
            requests=self.requests,
            pieces=self.pieces,
            error=reading.error if code in ("unfilled", "unknown_tool") else None,
            prompt=step.prompt[kept:],
            shared_prefix_chars=kept,
        )


class AnswerStreamFilter:
    """Streams the text of a bare answer and holds back text that may become a call.

    Held text is emitted once it is known to be text. White space at the end is held, too.
    """

    def __init__(self, names: Collection[str], is_text: Callable[[str], bool]) -> None:
        """``is_text`` returns whether a text that ends there is an answer in plain text."""
        self._loose_names, self._is_text = frozenset(map(loose_name, names)), is_text
        self._pending_text, self._pieces = "", list[str]()
        self._size = 0  # of both
        self._unread: list[str] = []  # text since the last line that is known to be text
        self._emitted: list[str] = []
        self._text_end = 0  # no call ends before this place in the pending text
        self._call_begin: CallBeginning | None = None
        self._next_look = 0

    def feed(self, prose: str) -> str:
        """Take more prose; return the text that can be shown now."""
        self._pieces.append(writable(prose))
        self._unread.append(self._pieces[-1])
        self._size += len(prose)
        if self._call_begin is not None and self._size <= self._next_look:
            return ""
        text = "".join((self._pending_text, *self._pieces))
        self._pieces.clear()
        self._pending_text = text if self._emitted else text.lstrip()
        self._size = len(self._pending_text)
        if self._call_begin is not None and not self._is_released():
            return ""
        before = "".join(self._emitted[-TAIL:])[-TAIL:]
        start = len(before) + self._text_end
        found = call_beginning(before + self._pending_text, self._loose_names, start)
        size = len(self._pending_text)
        if found is not None:
            size = max(0, found.offset - len(before))
            if not found.is_open:
                self._call_begin = found._replace(offset=size)
                self._next_look = 0
        told = self._pending_text[:size].rstrip()
        self._pending_text = self._pending_text[len(told) :]
        self._size = len(self._pending_text)
        self._text_end = max(0, self._text_end - len(told))
        if self._call_begin is not None:
            self._call_begin = self._call_begin._replace(offset=self._call_begin.offset - len(told))
        if told:
            self._emitted.append(told)
        return told

    def _is_released(self) -> bool:
        """Return whether the held text is text after all: it ended, and text follows."""
        begin, pending = self._call_begin, self._pending_text
        assert begin is not None
        text = "".join(self._unread)
        self._unread = [text]
        self._next_look = len(pending) + max(len(text) // 4, REREAD_CHARS)
        if begin.is_frame or pending.rstrip().find("\n", begin.offset) < 0:
            return False
        if not self._is_text(text):
            return False
        self._call_begin, self._text_end = None, len(pending)
        if text.count("```") % 2 == 0:  # no code is open
            self._unread = [text[text.rfind("\n") + 1 :]]
        return True

    def remainder(self, reading: Reading) -> str:
        """Return the remainder of the answer, as it was read."""
        whole = reading.messages[0] if reading.bare_text else None
        content = whole.content if isinstance(whole, FinalAnswer) else ""
        told = "".join(self._emitted)
        return content[len(told) :] if content.startswith(told) else ""


class Completer:
    """Asks a backend for the completions of a session."""

    def __init__(self, backend: ErrorMappingBackend, session: Session) -> None:
        self._backend = backend
        self._session = session
        self._turn: ConstrainedTurn | None = None
        self._scores = True  # False once the backend has shown that it has no scores
        self._in_thread = False  # the present turn has a large schema

    async def start(self) -> None:
        """Start the backend: load its model or start its server, if it does so.

        Raises:
            BackendError: it could not start.
        """
        await start_backend(self._backend.backend)

    @property
    def received_any(self) -> bool:
        """True if anything has come from the backend for the completion under way."""
        return self._backend.received_any

    @property
    def turn(self) -> ConstrainedTurn | None:
        """The turn under way, or None."""
        return self._turn

    @property
    def partial(self) -> str:
        """The text of the present completion, with the host's part.

        It is what remains if the backend fails.
        """
        return "" if self._turn is None else self._turn.text

    async def complete(self, step: Complete, emit: Emit | None) -> CompletionResult:
        """Let the model write its turn (see `mlx_tools.decoding.constrained_turn`).

        Raises `BackendError`, whatever the backend raised, and `UsageError` for a request that
        cannot be sent.
        """
        # Reset before anything is sent: both are about this completion, not the last one.
        self._turn, self._backend.received_any = None, False
        written = CompletionResult(prefix=step.rules.prefix)
        # The turn writes its prefix itself: each sample begins with the text so far.
        prompt = step.prompt.removesuffix(step.rules.prefix)
        if step.thought is not None:
            prompt = await self._think(step, step.thought, written, emit)
        told = emit is not None
        # Compiling and walking a large schema takes so long that other runs would notice.
        self._in_thread = any(is_large(spec.parameters) for spec in step.tools.values())
        begun = partial(ConstrainedTurn, step.rules, step.tools, step.strategy, step.turn)
        turn = await self._worked(partial(begun, emits_text=told))
        self._turn = turn
        teller = None
        if emit is not None:
            teller = EventEmitter(self._session, step, turn, emit)
        # The turn says what it needs next: more text, scores of a token, or nothing.
        while (ask := turn.pending_request) is not None:
            if isinstance(ask, ScoreTokens):
                likeliest = await self._likeliest(prompt + ask.text, written)
                deltas = await self._worked(partial(turn.feed_scores, *likeliest))
                if teller is not None:
                    teller.tell(deltas)
            else:
                await self._draw(prompt, ask, step, turn, written, teller)
        self._turn = None
        written.prefix, written.text, written.reading = turn.prefix, turn.text, turn.reading
        written.mends, written.mended_messages = tuple(turn.mends), turn.mended_messages
        written.finish_reason, written.repeated = turn.finish_reason, turn.repeated
        words, error = self._session.words, written.reading.error
        if turn.unfilled:
            reason = words.text(f"misfits.{turn.violation}") if turn.violation else ""
            error = ErrorInfo("unfilled", reason)
        if error is not None and error.code in ("unfilled", "unknown_tool"):
            text = words.error(error.code, name=turn.tool, reason=error.message)
            written.reading = Reading(error=replace(error, message=text))
        written.reading = self._session.settle_reading(written.reading, written)
        if teller is not None:
            teller.end(written.reading)
        return written

    async def _draw(
        self,
        prompt: str,
        ask: SampleTokens,
        step: Complete,
        turn: ConstrainedTurn,
        result: CompletionResult,
        teller: EventEmitter | None,
    ) -> None:
        """Stream one sample into the turn, until the turn wants something else."""
        request, repeated = await self._draw_request(prompt, ask, step, turn, result)
        usage: Usage | None = None
        pieces, size = result.pieces, 0
        ending: Sequence[Delta] = ()
        result.requests += 1
        # Until the stream has ended by itself, so that it is right if an error leaves this block.
        result.closed_early = True
        async with aclosing(self._backend.complete(request)) as chunks:
            async for chunk in chunks:
                result.pieces += bool(chunk.text)
                # Servers report usage in the last chunk, or let it grow with each: the latest one
                # is right.
                usage = chunk.usage or usage
                size += len(chunk.text)
                if chunk.text:
                    deltas = await self._worked(
                        partial(turn.feed, chunk.text.removeprefix(repeated))
                    )
                    repeated = ""
                    if teller is not None:
                        teller.emit_text(deltas)
                # The text does not fit: close the stream, and mend the place before more is read.
                if turn.pending_request is not ask:
                    break
                if chunk.finish_reason is not None:
                    result.closed_early = False
                    kept = request.messages is not None and chunk.finish_reason == "tool_calls"
                    if kept and step.strategy == "free":  # no other way to ask for it
                        ended = partial(turn.end_sample, "stop")
                    else:
                        ended = partial(turn.end_sample, chunk.finish_reason, cut_out=chunk.edited)
                    ending = await self._worked(ended)
                    break
                # The message is complete. Only the usage may still come, for which a moment is
                # allowed.
                if turn.should_close:
                    end = await self._see_end(chunks)
                    result.closed_early = end is None
                    usage = end.usage if end is not None else usage
                    reason = end.finish_reason if end is not None else None
                    # the server cut a part of the model's text out of a complete message: it is not
                    # clean
                    ending = turn.end_turn(
                        "tool_calls" if end is not None and end.edited else reason
                    )
                    break
                # A server that ignores ``max_tokens`` would otherwise stream until its own context
                # is full.
                if size > request.max_tokens * CHARS_PER_TOKEN:
                    ending = await self._worked(partial(turn.end_sample, "length"))
                    break
            else:
                ending = await self._worked(partial(turn.end_sample, "stop"))
            if ending and teller is not None:
                teller.tell(ending)
        said = usage.completion_tokens if usage is not None else None
        # Without usage the larger of two estimates: a server may send several tokens in a piece.
        result.tokens += said or max(result.pieces - pieces, size // MAX_CHARS_PER_TOKEN)
        result.usages.append(usage or Usage())

    async def _draw_request(
        self,
        prompt: str,
        ask: SampleTokens,
        step: Complete,
        turn: ConstrainedTurn,
        result: CompletionResult,
    ) -> tuple[CompletionRequest, str]:
        """Return the request of a draw, and the text of its prompt that the model repeats."""
        # What earlier draws took counts: a mended turn gets no more tokens than a clean one.
        left = step.max_tokens - result.tokens
        for mend in turn.mends:
            left -= len(mend.replacement)  # a token a character, at the most
        grammar = None
        if step.strategy == "grammar":
            grammar = await self._worked(partial(self._grammar, step))
        # Under a grammar the model writes the end of the prefix once more.
        repeated = grammar.repeated_prefix if grammar is not None else ""
        text = prompt + ask.text.removesuffix(repeated)
        request = make_request(
            self._session, text, max(1, left), grammar, ask.attempt + self._session.retries
        )
        # Only the first sample can use the chat API, which cannot continue a turn.
        if step.messages is not None and not ask.text and not ask.attempt:
            request = to_chat_request(request, step, self._session.neutraliser)
        return request, repeated

    async def _worked(self, work: Callable[[], Result]) -> Result:
        """Return the result of ``work``.

        It is done in a thread if the turn has a large schema.
        """
        return await anyio.to_thread.run_sync(work) if self._in_thread else work()

    async def _see_end(self, chunks: AsyncIterator[Chunk]) -> Chunk | None:
        """Wait a moment for a server to end by itself: only then it reports its usage.

        If text comes instead, its first piece closes the stream.
        """
        # The message is complete: it does not matter how the server ends, or breaks off.
        with anyio.move_on_after(GRACE_SECONDS), suppress(BackendError):
            async for chunk in chunks:
                if chunk.finish_reason is not None:
                    return chunk
                if chunk.text.strip():
                    return None
        return None

    async def _likeliest(
        self, prompt: str, result: CompletionResult
    ) -> tuple[list[tuple[str, float]] | None, str]:
        """Return the likeliest next tokens, best first, and the text written meanwhile.

        None if the backend cannot say.
        """
        if not self._scores:
            return None, ""
        # Two tokens are asked for and the first is used. So no later prompt is a finished
        # completion with its whole text, on which mlx_lm.server crashes.
        request = replace(make_request(self._session, prompt, 2), top_logprobs=ALTERNATIVES)
        scores: list[tuple[TokenScore, ...]] = []
        usage: Usage | None = None
        text = ""
        result.requests += 1
        try:
            async with aclosing(self._backend.complete(request)) as chunks:
                async for chunk in chunks:
                    usage = chunk.usage or usage
                    scores += chunk.scores
                    text += chunk.text
            self._scores = bool(scores)
        # Some servers refuse ``logprobs``, and some break on them. The turn can be mended without.
        except (BackendBroken, BackendRefused):
            scores.clear()  # not needed: the next sample shows whether the backend works
        result.usages.append(usage or Usage())
        control = self._session.neutraliser.control_tokens
        likely = [(_token(score), score.logprob) for score in (scores[0] if scores else ())]
        return [(token, at) for token, at in likely if token and token not in control], text

    async def _think(
        self, step: Complete, thought: Thought, result: CompletionResult, emit: Emit | None
    ) -> str:
        """Let the model think; return the prompt with the thought.

        It ends when the model closes its thought, or its budget ends.
        """
        text, watch = "", RepetitionWatch()
        request = make_request(
            self._session,
            step.prompt + thought.opening,
            thought.budget,
            attempt=self._session.retries,
        )
        async with aclosing(self._backend.complete(request)) as chunks:
            async for chunk in chunks:
                text += chunk.text
                if emit is not None and chunk.text and thought.marker not in text:
                    emit(events.ThoughtPiece(turn=step.turn, text=writable(chunk.text)))
                # The marker may come in several pieces, so all of the thought is searched, not the
                # piece.
                if thought.marker in text or len(text) > thought.budget * CHARS_PER_TOKEN:
                    break
                if watch.repeats(text, "thought"):
                    break
        text = text.partition(thought.marker)[0].strip()
        # A thought may repeat a tool's output, whose control tokens must not open a turn.
        result.thought = self._session.neutraliser.plain(text)
        result.requests += 1
        closing = thought.closing.removesuffix(step.rules.prefix)
        return step.prompt + thought.opening + result.thought + closing

    def _grammar(self, step: Complete) -> Grammar:
        """Return the grammar of the completion: the calls and answers that are possible."""
        from mlx_tools.decoding import build_grammar

        return build_grammar(
            step.tools,
            style=step.rules.style,
            tool_choice=step.rules.tool_choice,
            max_calls=step.rules.max_calls or 1,
            prefix=step.rules.prefix,
        )


def make_request(
    session: Session,
    prompt: str,
    max_tokens: int,
    grammar: GrammarText | None = None,
    attempt: int = 0,
) -> CompletionRequest:
    """Return the request that the backend gets.

    A later ``attempt`` samples at random, and with another seed.
    """
    sampling, limits = dict(session.header.sampling), session.limits
    temperature, seed = sampling.pop("temperature", 0.0), sampling.pop("seed", None)
    biases = sampling.pop("logit_bias", {})
    return CompletionRequest(
        prompt=prompt,
        max_tokens=max_tokens,
        # At temperature 0 a second attempt would be the same as the first.
        temperature=max(temperature, MIN_RETRY_TEMPERATURE) if attempt else temperature,
        seed=(seed or 0) + attempt if attempt else seed,
        timeout=limits.completion_timeout,
        idle_timeout=limits.idle_timeout,
        grammar=grammar,
        sampling=sampling,
        logit_bias={int(token): bias for token, bias in biases.items()},
        conversation=session.first_question,
    )


def to_chat_request(
    request: CompletionRequest, step: Complete, neutraliser: Neutraliser
) -> CompletionRequest:
    """Return the request for the server's own chat interface.

    It has the tools that the model may call. If it may call none there are none, because many
    servers ignore a tool choice.
    """
    choice = step.rules.tool_choice
    tools = [] if choice == "none" else to_openai(step.tools.values())
    return replace(
        request,
        messages=step.messages,
        tools=neutralise_value(tools, neutraliser),
        tool_choice=choice,
    )


class EventEmitter:
    """Emits events about the parts of a turn that are complete.

    If the answer is a call, the event has the answer's text. It comes piece by piece if the call is
    held to the whole schema, otherwise once it is known to fit.
    """

    def __init__(
        self,
        session: Session,
        step: Complete,
        turn: ConstrainedTurn,
        emit: Emit,
    ) -> None:
        self._session, self._turn, self._emit = session, turn, emit
        self._number = step.turn
        self._speech: AnswerStreamFilter | None = None
        if session.result is None:
            self._speech = AnswerStreamFilter(step.tools, turn.is_plain_answer)
        self._prose_end = 0
        # If the template opens a thought, a server may leave the thought in the text, or may have
        # sent it first. Only in the second case the text is prose.
        self._may_begin_in_thought = (
            step.rules.server_split_calls and session.chat_format.opens_thought
        )
        self._has_call = False
        self._is_answering = False  # True once a message of the protocol gave an answer
        self._emitted = ""
        self._message_index: int | None = (
            None  # the answer's call in the turn: nothing after it is emitted
        )
        self._text: ResultText | None = None  # None: nothing more is emitted before the end

    def emit_text(self, deltas: Iterable[Delta]) -> None:
        """Emit the events that a new piece of text leads to."""
        begins = not self._may_begin_in_thought
        if self._speech is not None and (begins or self._turn.text.startswith(_THOUGHT)):
            prose = self._turn.find_prose_since(self._prose_end)
            if prose is not None:
                text, self._prose_end = prose
                self._answer(self._speech.feed(text))
        self.tell(deltas)

    def tell(self, deltas: Iterable[Delta]) -> None:
        """Emit the events of these deltas."""
        result = self._session.result
        for delta in deltas:
            if result is not None:
                if isinstance(delta, CallStarted) and (
                    self._message_index is None or delta.index <= self._message_index
                ):
                    self._begin(delta, result)
                if isinstance(delta, AnswerDelta):
                    continue
                if self._message_index is not None:
                    if isinstance(delta, ArgumentsDelta) and delta.index == 0 and self._text:
                        self._answer(self._text.feed(delta.text))
                    continue
            match delta:
                case AnswerDelta(text=text):
                    if self._emitted and not self._is_answering:
                        text = f"\n\n{text}"  # after earlier text
                    self._is_answering = True
                    self._emit(events.AnswerPiece(turn=self._number, text=text))
                case ThoughtDelta(text=text):
                    self._emit(events.ThoughtPiece(turn=self._number, text=text))
                case CallStarted(index=index, name=name):
                    self._tell_commentary()
                    self._emit(events.CallOpened(turn=self._number, index=index, name=name))
                case ArgumentsDelta(index=index, text=text):
                    self._emit(events.ArgumentsPiece(turn=self._number, index=index, text=text))

    def _tell_commentary(self) -> None:
        """Emit the rest of the prose before the first call."""
        if self._speech is not None and not self._has_call:
            self._has_call = True
            prose = self._turn.commentary
            # Text that was emitted cannot be taken back: if the prose differs, no more of it is
            # emitted.
            if prose.startswith(self._emitted):
                self._answer(prose[len(self._emitted) :])

    def _begin(self, call: CallStarted, result: ResultTool) -> None:
        self._message_index, self._text = None, None
        if not result.is_called(call.name, self._session.specs):
            return
        self._message_index = call.index
        first = call.index == 0 and not self._emitted
        held = first and self._turn.tool == result.spec.name
        if held and make_compilable(result.spec.parameters).is_exact:
            self._text = ResultText(result.is_wrapped)

    def end(self, reading: Reading) -> None:
        """Emit the rest of the answer, if there is one."""
        if self._speech is not None:
            self._answer(self._speech.remainder(reading))
        for message in reading.messages if self._session.result is not None else ():
            if isinstance(message, FinalAnswer) and message.content.startswith(self._emitted):
                self._answer(message.content[len(self._emitted) :])

    def _answer(self, text: str) -> None:
        self._emitted += text
        if text:
            self._emit(events.AnswerPiece(turn=self._number, text=text))


def _token(score: TokenScore) -> str:
    """Return a token as text, empty if it is no whole characters."""
    try:
        return score.data.decode()
    except UnicodeDecodeError:
        return ""


def mend_points(mends: Sequence[MendRecord]) -> Iterator[tuple[str, str]]:
    """Yield the text before each mend of a turn, and the text that did not fit."""
    stood = ""
    for mend in mends:
        text = stood + "".join(mend.rejected_pieces)
        kept = 0 if mend.restarted else mend.kept_chars
        yield text[:kept], text[kept:]
        stood = text[:kept] + mend.replacement
