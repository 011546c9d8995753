"""One turn for a client: the prompt of its conversation, the model's turn held and mended as in any
run, and what came of it as events.

A turn that cannot be read, or calls nothing that may be called, is corrected inside the request, up
to two times, and nobody sees it. So calls are told once they are judged; an answer as it grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio

from mlx_tools.backends import (
    Backend,
    CompletionRequest,
    ErrorMappingBackend,
    TokenCounter,
    TokenScore,
)
from mlx_tools.controller import (
    Complete,
    Completer,
    CompletionResult,
    Session,
    request_for,
    to_chat_request,
)
from mlx_tools.decoding import RepetitionWatch
from mlx_tools.errors import MlxToolsError
from mlx_tools.gateway.conversation import ConversationFold, PromptProfile, TurnMemory, next_key
from mlx_tools.gateway.exchange import in_thread_if_large
from mlx_tools.gateway.request import (
    ApiError,
    ClientCall,
    ClientMessage,
    Finish,
    TurnDone,
    TurnRequest,
    as_api_error,
)
from mlx_tools.messages import (
    ErrorInfo,
    FinalAnswer,
    FinishReason,
    Usage,
    json_line,
    replace,
    total_usage,
)
from mlx_tools.policy import Limits
from mlx_tools.process import AWAKE
from mlx_tools.protocol import Reading, ReadingRules, judge
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    DecisionRecord,
    MendRecord,
    Record,
    RepairRecord,
    State,
    events,
)

ATTEMPTS: Final = 3
"""So often a model may write one turn: the first time, and two corrected ones."""

STEP: Final = 20_000
"""Characters of a prompt that are counted in one go: 40 ms, in which nobody else is served."""

_ALL_CALLS: Final = 10_000
"""The calls of one turn are not limited here: the client decides what it runs."""
USUAL_TOKENS: Final = 8_192
"""Tokens of a turn for which neither the client nor the context says a bound."""

Emit = Callable[[str], None]
"""Is told of more of the answer."""


@dataclass
class TurnRunner:
    """A model that turns are asked of."""

    backend: Backend
    profile: PromptProfile
    limits: Limits
    counter: TokenCounter
    memory: TurnMemory = field(default_factory=TurnMemory)
    _count_lock: anyio.Lock = field(default_factory=anyio.Lock, init=False)

    async def run(self, request: TurnRequest, emit: Emit, new_id: Callable[[], str]) -> TurnDone:
        """Take the turn that a client asks for, and tell of its text as it comes.

        ``new_id`` gives ids for calls. Raises `ApiError`, whatever went wrong.
        """
        try:
            with AWAKE, anyio.fail_after(self.limits.total_timeout):
                if request.prompt is not None:
                    return await self._pass_on(request, request.prompt, emit)
                taking = await self._begin(request, emit, new_id)
                return await taking.run()
        except TimeoutError:
            limit = f"the turn was not done in {self.limits.total_timeout:g} s"
            raise ApiError(504, "timeout", limit) from None
        except MlxToolsError as error:
            raise as_api_error(error) from error

    async def _pass_on(self, request: TurnRequest, prompt: str, emit: Emit) -> TurnDone:
        """Let the model go on from the bytes of a prompt."""
        sampling = dict(request.sampling)
        asked = CompletionRequest(
            prompt=prompt,
            max_tokens=request.max_tokens or USUAL_TOKENS,
            temperature=sampling.pop("temperature", 0.0),
            seed=sampling.pop("seed", None),
            timeout=self.limits.completion_timeout,
            idle_timeout=self.limits.idle_timeout,
            sampling=sampling,
            top_logprobs=request.top_logprobs,
        )
        stops, said, usage, pieces = StopTexts(request.stop), list[str](), Usage(), 0
        finish: FinishReason = "stop"
        scores: list[tuple[TokenScore, ...]] = []
        async with aclosing(ErrorMappingBackend(self.backend).complete(asked)) as chunks:
            async for chunk in chunks:
                pieces += bool(chunk.text)
                scores += chunk.scores
                usage = chunk.usage or usage
                finish = chunk.finish_reason or finish
                if text := stops.feed(chunk.text, is_last=chunk.finish_reason is not None):
                    said.append(text)
                    emit(text)
                if stops.found:
                    finish = "stop"
                    break
        if usage.completion_tokens is None:
            usage = replace(usage, completion_tokens=pieces)
        if usage.prompt_tokens is None:
            usage = replace(usage, prompt_tokens=self.counter.count(prompt))
        return TurnDone(
            finish=finish,
            text="".join(said),
            usage=usage,
            stopped_by=stops.found,
            scores=tuple(scores),
        )

    async def count(self, request: TurnRequest) -> int:
        """How many tokens the prompt of this request has."""
        taking = await self._begin(request, lambda event: None, str)
        return await self.measure((await taking.pending_request()).prompt)

    async def _begin(
        self, request: TurnRequest, emit: Emit, new_id: Callable[[], str]
    ) -> _TurnInProgress:
        """The turn that a client asks for, its conversation folded. Raises `ApiError`."""
        begun = partial(_TurnInProgress, self, request, emit, new_id)
        return await in_thread_if_large(request.size, begun)

    async def measure(self, prompt: str) -> int:
        """How many tokens a prompt has. One that is long is counted in steps, and others are served
        between them."""
        async with self._count_lock:  # the counter goes on from the text before
            for end in range(self.counter.known(prompt) + STEP, len(prompt), STEP):
                self.counter.count(prompt[:end])
                await anyio.sleep(0)
            return self.counter.count(prompt)


class _StopTextFound(Exception):
    """One of the client's stop texts came."""


class _TurnInProgress:
    """One request under way."""

    def __init__(
        self, runner: TurnRunner, request: TurnRequest, emit: Emit, new_id: Callable[[], str]
    ) -> None:
        self._runner, self._request, self._new_id = runner, request, new_id
        self._tell = emit
        self._stops = StopTexts(request.stop)
        self._text: list[str] = []  # what was told of the answer
        self._kept = 0  # how many of these an attempt before this one told
        self._turned: list[tuple[Record, Reading | None]] = []
        self._usages: list[Usage] = []
        limits = replace(
            runner.limits,
            max_tokens=1_000_000,
            max_iterations=1_000,
            max_format_errors=100,
            max_argument_bytes=100_000_000,
            max_calls_per_turn=_ALL_CALLS if request.parallel else 1,
        )
        header = runner.profile.header(request, limits)
        specs = {spec.name: spec for spec in request.tools}
        self._session = Session.from_header(header, specs=specs, words=runner.profile.words)
        self._conversed = ConversationFold(self._session, runner.memory)
        self._conversed.fold(request.messages)
        # What a call copies out of a result is for the client to know, not for us to refuse.
        self._results, self._session.calls_seen_in_outputs = (
            self._session.calls_seen_in_outputs,
            set(),
        )
        self._session.tool_choice = request.tool_choice
        if request.allowed is not None:
            allowed = request.allowed
            self._session.specs = {n: s for n, s in self._session.specs.items() if n in allowed}

    async def pending_request(self) -> Complete:
        """The completion that is asked for now."""
        return await in_thread_if_large(self._request.size, self._next_completion)

    def _next_completion(self) -> Complete:
        step = self._session.next_step()
        assert isinstance(step, Complete)
        if self._request.allowed is not None:
            rules = step.rules
            callable_now = self._request.allowed | {rules.result}
            catalog = {n: s for n, s in rules.catalog.items() if n in callable_now}
            tools = {n: s for n, s in step.tools.items() if n in catalog}
            step = replace(step, tools=tools, rules=replace(rules, catalog=catalog))
        return step

    async def run(self) -> TurnDone:
        if self._request.is_plain:
            return await self._run_plain()
        completer = Completer(ErrorMappingBackend(self._runner.backend), self._session)
        problem = ""
        for _ in range(ATTEMPTS):
            step = await self._limit_tokens(await self.pending_request())
            try:
                written = await completer.complete(step, self._show)
            except _StopTextFound:
                return await self._cut_off(step)
            await self._count_prompt(step, written.usages[:1])
            done, problem = self._finish_turn(step, written)
            if done is not None:
                return done
            may_go_on = step.messages is not None and self._request.schema is None
            if self._text[self._kept :] and not may_go_on:
                break  # what the client has seen cannot be taken back
            if self._session.state is State.IDLE:
                break  # the model means it so
            self._begin_anew()
        raise ApiError(502, "model_output_invalid", f"the model wrote no turn that fits: {problem}")

    def _begin_anew(self) -> None:
        """What was said stands, and what the model says now stands behind it."""
        if self._text[self._kept :]:
            self._text.append("\n\n")
            self._tell("\n\n")
        self._kept = len(self._text)

    @property
    def _attempt_text(self) -> str:
        """What was said in this attempt, told or held."""
        return "".join(self._text[self._kept :]) + self._stops.held

    async def _limit_tokens(self, step: Complete) -> Complete:
        """The step with as many tokens as the client and the context allow."""
        wished, context = self._request.max_tokens, self._runner.profile.settings.context
        left = USUAL_TOKENS if wished is None else wished
        if context is not None:
            used = await self._runner.measure(step.prompt)
            if used >= context:
                raise ApiError(
                    400,
                    "context_length_exceeded",
                    f"This model's maximum context length is {context} tokens; the prompt that "
                    f"the messages and tools come to has {used}.",
                    param="messages",
                )
            left = context - used if wished is None else min(wished, context - used)
        return replace(step, max_tokens=max(1, left))

    # --- what comes ---

    def _show(self, event: events.Event) -> None:
        """Tell of an answer as it grows; of calls later."""
        if isinstance(event, events.AnswerPiece):
            self._say(event.text)

    def _say(self, text: str, *, is_last: bool = False) -> None:
        if said := self._stops.feed(text, is_last=is_last):
            self._text.append(said)
            self._tell(said)
        if self._stops.found:
            raise _StopTextFound

    def _say_rest(self, text: str) -> None:
        """Say what is left of a text that is whole now. A mend may have put it in the place of what
        was said before: a client that has seen that cannot be told otherwise."""
        said = self._attempt_text
        if said and not text.startswith(said.rstrip()):
            if self._request.streamed:
                raise ApiError(502, "model_output_invalid", "the model wrote its answer anew")
            del self._text[self._kept :]
            self._stops = StopTexts(self._request.stop)
        self._say(text[len(self._attempt_text) :], is_last=True)

    def _fold(self, record: Record, reading: Reading | None = None) -> None:
        self._session.fold(record, reading)
        if not isinstance(record, MendRecord):
            self._turned.append((record, reading))

    def _finish_turn(self, step: Complete, result: CompletionResult) -> tuple[TurnDone | None, str]:
        """The end of the turn, or what is wrong with it."""
        reading = result.reading
        completion = result.record(step, self._session.last_prompt)
        self._usages.append(self._billed_usage(step, result))
        self._fold(completion, reading)
        follow = self._session.current.unwritten
        for record in follow:
            self._fold(record)
        answer = next((r for r in follow if isinstance(r, AnswerRecord)), None)
        allowed = {r.call for r in follow if isinstance(r, DecisionRecord) and r.decision != "deny"}
        calls = [r for r in follow if isinstance(r, CallRecord) and r.call in allowed]
        if answer is not None:
            return self._answered(answer), ""
        if calls:
            return self._called(calls, follow, reading), ""
        if result.finish_reason == "length" and not self._is_corrected(reading.error):
            return self._done("length"), ""  # a call that was cut off is none
        faults = [info.message for r in follow if (info := getattr(r, "error", None)) is not None]
        return None, "; ".join(faults) or "it looks like a call that cannot be read"

    def _is_corrected(self, error: ErrorInfo | None) -> bool:
        """Return whether the model is told what is wrong with a turn that was cut off.

        One that repeated itself is corrected once. Whoever set the token limit learns of a cut
        there.
        """
        if error is None:
            return False
        if error.code == "repetition":
            return self._session.repetitions < 2
        return error.code == "unknown_tool"

    def _answered(self, answer: AnswerRecord) -> TurnDone:
        try:
            self._say_rest(answer.content)
        except _StopTextFound:
            return self._done("stop")
        done = self._done("length" if answer.truncated else "stop")
        return replace(done, call_like=answer.call_like)

    def _called(
        self, records: list[CallRecord], follow: Iterable[Record], reading: Reading
    ) -> TurnDone:
        if reading.commentary:
            try:
                self._say_rest(reading.commentary)
            except _StopTextFound:
                return self._done("stop")
        calls = tuple(
            ClientCall(self._new_id(), record.name, json_line(record.arguments))
            for record in records
        )
        keys = {record.call for record in records}
        repairs = [r.name for r in follow if isinstance(r, RepairRecord) and r.call in keys]
        specs = self._session.specs
        judged = judge(reading, specs, self._results) if self._results else ()
        echoed = {json_line(one.call.arguments) for one in judged if one.echoed}
        return self._done(
            "tool_calls",
            calls,
            repairs=tuple(dict.fromkeys(repairs)),
            echoed=tuple(call.id for call in calls if call.arguments in echoed),
        )

    def _done(
        self,
        finish: Finish,
        calls: tuple[ClientCall, ...] = (),
        *,
        repairs: tuple[str, ...] = (),
        echoed: tuple[str, ...] = (),
    ) -> TurnDone:
        text = "".join(self._text)
        if not self._stops.found and (calls or finish == "stop"):
            message = ClientMessage("assistant", text, calls)
            key = next_key(self._conversed.key, message)
            self._runner.memory.keep(key, tuple(self._turned))
        # What the whole turn cost: the last prompt, and all that was written.
        written = total_usage(self._usages).completion_tokens
        return TurnDone(
            finish=finish,
            text=text,
            calls=calls,
            usage=replace(self._usages[-1], completion_tokens=written),
            repairs=repairs,
            echoed=echoed,
            stopped_by=self._stops.found,
        )

    def _billed_usage(self, step: Complete, result: CompletionResult) -> Usage:
        """What a turn cost, for whoever gauges by it how full the context is: the prompt once,
        though a mend asks with it again. What the server does not say is counted here."""
        asked = result.usages[0] if result.usages else Usage()
        completion = total_usage(result.usages).completion_tokens
        prompt = asked.prompt_tokens
        return Usage(
            prompt_tokens=self._runner.counter.count(step.prompt) if prompt is None else prompt,
            cached_tokens=asked.cached_tokens,
            completion_tokens=result.tokens if completion is None else completion,
        )

    async def _count_prompt(self, step: Complete, usages: Sequence[Usage] = ()) -> None:
        """Count the tokens of the prompt now, in steps, if the server did not say them."""
        if not usages or usages[0].prompt_tokens is None:
            await self._runner.measure(step.prompt)

    async def _cut_off(self, step: Complete) -> TurnDone:
        """The end of a turn at a stop text: its stream was closed before it said what it cost."""
        await self._count_prompt(step)
        prompt = self._runner.counter.count(step.prompt)
        tokens = self._runner.counter.count("".join(self._text))
        self._usages.append(Usage(prompt, None, tokens))
        return self._done("stop")

    # --- without tools ---

    async def _run_plain(self) -> TurnDone:
        """Let the model write as it does; what it writes is the answer."""
        step = await self._limit_tokens(await self.pending_request())
        request = request_for(self._session, step.prompt, step.max_tokens)
        if step.messages is not None:
            request = to_chat_request(request, step, self._session.neutraliser)
        text, written, usage = PlainText(step.rules), CompletionResult(), Usage()
        raw, watch = "", RepetitionWatch()
        try:
            async with aclosing(
                ErrorMappingBackend(self._runner.backend).complete(request)
            ) as chunks:
                async for chunk in chunks:
                    written.tokens += bool(chunk.text)
                    usage = chunk.usage or usage
                    raw += chunk.text
                    if chunk.text:
                        self._say(text.feed(chunk.text))
                    if chunk.finish_reason is not None:
                        written.finish_reason = chunk.finish_reason
                    elif watch.repeats(raw, "answer"):
                        written.finish_reason = "length"
                    if written.finish_reason is not None or text.ended:
                        break
                self._say(text.feed("", is_last=True), is_last=True)
        except _StopTextFound:
            return await self._cut_off(step)
        written.usages.append(usage)
        await self._count_prompt(step, written.usages)
        self._usages.append(self._billed_usage(step, written))
        content = "".join(self._text)
        finish: FinishReason = "length" if written.finish_reason == "length" else "stop"
        record = CompletionRecord(
            turn=step.turn,
            text=content,
            retained_text=content,
            finish_reason=finish,
            reasoning=text.thought,
            prompt=step.prompt,
        )
        self._fold(record, Reading(messages=(FinalAnswer(content),), counted=content))
        for one in self._session.current.unwritten:
            self._fold(one)
        return self._done(finish)


# --- a text as it comes: any split of it gives the same -------------------------------------------


class StopTexts:
    """Ends a text at the first of the given texts that stands in it.

    ``found`` is the one that came, empty until then, and ``rest`` what came with it behind it;
    ``held`` is what might be the beginning of one, and was not let through yet.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(filter(None, texts))
        self.found = self.rest = self.held = ""

    def feed(self, text: str, *, is_last: bool = False) -> str:
        """More of the text; what of it stands before any stop text. ``is_last``: no more comes."""
        if self.found:
            return ""
        whole = self.held + text
        at = [(place, stop) for stop in self._texts if (place := whole.find(stop)) >= 0]
        if at:
            # The one that is whole first, as it would be read letter by letter.
            place, self.found = min(at, key=lambda found: (found[0] + len(found[1]), found[0]))
            self.held, self.rest = "", whole[place + len(self.found) :]
            return whole[:place]
        most = min(len(whole), max(map(len, self._texts), default=1) - 1)
        ends = (n for n in range(most, 0, -1) if any(t.startswith(whole[-n:]) for t in self._texts))
        keep = 0 if is_last else next(ends, 0)
        self.held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]


class PlainText:
    """A turn that is all answer.

    A thought is one that the turn begins with; ``thought`` is its text. ``ended``: a mark that ends
    a turn came, and nothing counts any more.
    """

    def __init__(self, rules: ReadingRules) -> None:
        self._closers = dict(rules.reasoning_markers)
        self._ends = StopTexts(rules.ends)
        self._is_started = ""  # what came before it is known whether the turn begins with a thought
        self._thinks: StopTexts | None = None
        self._speaks = False
        self._trims = False  # nothing but line breaks came since the thought
        self._thought: list[str] = []
        if rules.in_thought:
            self._thinks = StopTexts((next(iter(self._closers.values())),))

    @property
    def thought(self) -> str:
        """The text of the thought, without its marks."""
        return "".join(self._thought).strip()

    @property
    def ended(self) -> bool:
        return bool(self._ends.found)

    def feed(self, text: str, *, is_last: bool = False) -> str:
        """More of the turn; what of it is the answer's. ``is_last``: no more comes."""
        if not self._speaks and self._thinks is None:
            self._is_started += text
            bare = self._is_started.lstrip()
            opener = next((one for one in self._closers if bare.startswith(one)), "")
            if opener:
                self._thinks, text = StopTexts((self._closers[opener],)), bare[len(opener) :]
            elif not is_last and any(one.startswith(bare) for one in self._closers):
                return ""
            else:
                self._speaks, text = True, self._is_started
        if not self._speaks and self._thinks is not None:
            self._thought.append(self._thinks.feed(text, is_last=is_last))
            if not self._thinks.found:
                return ""
            self._speaks = self._trims = True
            text = self._thinks.rest
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return self._ends.feed(text, is_last=is_last)
