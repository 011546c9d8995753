"""One turn for a client, from the prompt to the events of the answer.

A turn that cannot be read, or calls nothing that may be called, is corrected within the request, up
to two times. What a client has received by then stays: the model's next text comes after it, and a
call goes on from what was sent of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

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
    Driver,
    DriverParts,
    FittedStep,
    Outputs,
    PauseApprover,
    RunClock,
    SessionInputs,
    make_request,
    to_chat_request,
)
from mlx_tools.decoding import RepetitionWatch
from mlx_tools.errors import MlxToolsError
from mlx_tools.gateway.answer_sender import AnswerSender, PlainText, StopTextFound, StopTexts
from mlx_tools.gateway.call_sender import CallSender, SentCall
from mlx_tools.gateway.catalog_fit import CatalogFit
from mlx_tools.gateway.conversation import (
    BeginningMemory,
    ConversationFold,
    PromptProfile,
    TurnMemory,
    next_key,
)
from mlx_tools.gateway.exchange import LARGE, in_thread_if_large
from mlx_tools.gateway.request import (
    ApiError,
    ClientCall,
    ClientMessage,
    Emit,
    Finish,
    FirstToken,
    TextAdded,
    ThoughtAdded,
    TurnDone,
    TurnRequest,
    as_api_error,
)
from mlx_tools.gateway.turn_parts import ClientDecisions, ClientRunner, TurnWriter
from mlx_tools.messages import (
    ErrorInfo,
    FinishReason,
    Usage,
    json_line,
    replace,
    total_usage,
)
from mlx_tools.policy import Limits
from mlx_tools.process import AWAKE
from mlx_tools.protocol import JudgedCall, Reading, judge
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    DecisionRecord,
    Record,
    RepairRecord,
    State,
    events,
)

ATTEMPTS: Final = 3
"""Times that a model may write one turn: the first time, and two corrected ones."""

STEP: Final = 20_000
"""Characters of a prompt that are counted in one go: 40 ms, in which nobody else is served."""

DEFAULT_MAX_TOKENS: Final = 8_192
"""Tokens of a turn if neither the client nor the context sets a limit."""

_QUOTED_CHARS: Final = 200
"""Characters of a turn that its error quotes: enough to tell the form in which a model writes."""

_BEGINNING_LEFT_OUT: Final = "the last message as the beginning of the answer"
"""The entry for it in the header of what was left out."""


def _unreadable_turn(problem: str, result: CompletionResult | None) -> ApiError:
    """Return the error for a turn that cannot be used. It quotes what the model wrote."""
    text = "" if result is None else result.text
    if text:
        more = "…" if len(text) > _QUOTED_CHARS else ""
        problem = f"{problem} (it wrote {text[:_QUOTED_CHARS]!r}{more})"
    return ApiError(502, "model_output_invalid", problem)


@dataclass
class TurnRunner:
    """A model that writes turns for clients."""

    backend: Backend
    profile: PromptProfile
    limits: Limits
    counter: TokenCounter
    memory: TurnMemory = field(default_factory=TurnMemory)
    beginnings: BeginningMemory = field(default_factory=BeginningMemory)
    _count_lock: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    _fit: CatalogFit | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Fit tools into the context, if its size is known and all of them are described."""
        context = self.profile.settings.context
        if context is not None and self.profile.catalog == "whole":
            self._fit = CatalogFit(context, self._count)

    async def prepare(self, request: TurnRequest) -> TurnRequest:
        """Fit a request to this model: the answer's beginning, and the descriptions.

        A beginning that the model cannot go on from becomes its message. Descriptions are shortened
        to what the context can hold. Raises `ApiError` for a conversation that the model cannot go
        on with.
        """
        if request.beginning and not self._takes_beginning(request):
            go_on = ClientMessage("user", self.profile.words.texts["turns.go_on"])
            request = replace(
                request,
                messages=(*request.messages, go_on),
                left_out=(*request.left_out, _BEGINNING_LEFT_OUT),
            )
        try:
            return request if self._fit is None else await self._fit.fit(request)
        except MlxToolsError as error:
            raise as_api_error(error) from error

    def _takes_beginning(self, request: TurnRequest) -> bool:
        """Return whether the model's turn can begin with a text of the client.

        A schema and a required call have beginnings of their own. A server that only has a chat
        interface cannot go on from a text.
        """
        is_free = request.schema is None and request.tool_choice in ("auto", "none")
        route = self.profile.settings.route
        return is_free and (route is None or route.get("completes", True) is not False)

    async def run(self, request: TurnRequest, emit: Emit, new_id: Callable[[], str]) -> TurnDone:
        """Write the turn that a client asks for, and send its events as they come.

        ``new_id`` gives ids for calls. Raises `ApiError` for every failure.
        """
        backend = ErrorMappingBackend(self.backend, on_text=lambda: emit(FirstToken()))
        try:
            with AWAKE, anyio.fail_after(self.limits.total_timeout):
                if request.prompt is not None:
                    return await self._pass_on(backend, request, request.prompt, emit)
                turn = await self._begin(request, emit, new_id, backend)
                return await turn.run()
        except TimeoutError:
            limit = f"the turn was not done in {self.limits.total_timeout:g} s"
            raise ApiError(504, "timeout", limit) from None
        except MlxToolsError as error:
            raise as_api_error(error) from error

    async def _pass_on(
        self, backend: ErrorMappingBackend, request: TurnRequest, prompt: str, emit: Emit
    ) -> TurnDone:
        """Let the model continue the bytes of a prompt."""
        sampling = dict(request.sampling)
        asked = CompletionRequest(
            prompt=prompt,
            max_tokens=request.max_tokens or DEFAULT_MAX_TOKENS,
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
        async with aclosing(backend.complete(asked)) as chunks:
            async for chunk in chunks:
                pieces += bool(chunk.text)
                scores += chunk.scores
                usage = chunk.usage or usage
                finish = chunk.finish_reason or finish
                if text := stops.feed(chunk.text, is_last=chunk.finish_reason is not None):
                    said.append(text)
                    emit(TextAdded(text))
                if stops.stop_text:
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
            stopped_by=stops.stop_text,
            scores=tuple(scores),
        )

    async def count(self, request: TurnRequest) -> int:
        """Return the tokens of the prompt of this request."""
        return await self._count(await self.prepare(request))

    async def _count(self, request: TurnRequest) -> int:
        taking = await self._begin(request, lambda event: None, str)
        return await self.measure((await taking.pending_request()).prompt)

    async def _begin(
        self,
        request: TurnRequest,
        emit: Emit,
        new_id: Callable[[], str],
        backend: ErrorMappingBackend | None = None,
    ) -> _TurnInProgress:
        """Fold the conversation and begin the turn that a client asks for.

        Raises `ApiError`.
        """
        # Only the new messages take time.
        has_tools = request.size > LARGE and not request.is_plain
        tools_size = request.size - request.messages_size if has_tools else 0
        conversed = await in_thread_if_large(tools_size, partial(self._recall, request))
        new_size = request.size - conversed.known_size
        await in_thread_if_large(new_size, partial(conversed.fold, request.size))
        backend = backend or ErrorMappingBackend(self.backend)
        return _TurnInProgress(self, request, emit, new_id, backend, conversed)

    def _recall(self, request: TurnRequest) -> ConversationFold:
        """Return the conversation of a request, started from its known beginning."""
        header = self.profile.header(request, self.limits)
        specs = {spec.name: spec for spec in request.tools}
        inputs = SessionInputs(specs=specs, words=self.profile.words)
        return ConversationFold(request.conversation, header, inputs, self.memory, self.beginnings)

    async def measure(self, prompt: str) -> int:
        """Return the tokens of a prompt.

        A long one is counted in steps, and others are served between them.
        """
        async with self._count_lock:  # the counter goes on from the text before
            for end in range(self.counter.count_known(prompt) + STEP, len(prompt), STEP):
                self.counter.count(prompt[:end])
                await anyio.sleep(0)
            return self.counter.count(prompt)


class _CallsUnfinished(Exception):
    """The model's turn does not end calls as they were sent to the client."""

    def __init__(self, result: CompletionResult, calls: list[ClientCall | None]) -> None:
        super().__init__()
        self.result = result
        self.calls = calls


class _TurnInProgress:
    """One request in progress."""

    def __init__(
        self,
        runner: TurnRunner,
        request: TurnRequest,
        emit: Emit,
        new_id: Callable[[], str],
        backend: ErrorMappingBackend,
        conversed: ConversationFold,
    ) -> None:
        self._runner, self._request, self._new_id = runner, request, new_id
        self._emit, self._backend = emit, backend
        # The client's beginning of the turn, without control tokens.
        self._beginning = conversed.session.neutraliser.plain(request.beginning)
        self._answer = AnswerSender(
            request.stop,
            lambda text: emit(TextAdded(text)),
            is_seen=request.streamed,
            beginning="" if request.is_plain else self._beginning,
        )
        self._thoughts: list[str] = []
        self._usages: list[Usage] = []
        self._attempts = 0
        self._step: Complete | None = None  # the last step of the model
        self._result: CompletionResult | None = None  # the result of that step
        self._restarts = 0  # restarts of the model's turn, as far as they are known
        # True if the memory can bring the turn back.
        self._is_kept = not self._beginning
        self._conversed = conversed
        # Characters for which the next step has not been worked out before.
        self._new_size = request.size - conversed.known_size
        self._session = conversed.session
        # The client is told that a call is copied out of a result; nothing is refused here.
        self._results, self._session.calls_seen_in_outputs = (
            self._session.calls_seen_in_outputs,
            set(),
        )
        self._session.tool_choice = request.tool_choice
        if request.allowed is not None:
            allowed = request.allowed
            self._session.specs = {n: s for n, s in self._session.specs.items() if n in allowed}
        self._calls = CallSender(self._session.specs, request.custom_tools, emit, new_id)
        self._completer = Completer(backend, self._session)
        self._writer = TurnWriter(self._session)

    async def pending_request(self) -> Complete:
        """Return the completion that is asked for now."""
        return await in_thread_if_large(self._new_size, self._next_completion)

    def _next_completion(self) -> Complete:
        step = self._session.next_step()
        assert isinstance(step, Complete)
        return self._limit_step(step)

    def _limit_step(self, step: Complete) -> Complete:
        """Limit a step to the client's tools; begin the first with the client's text."""
        if self._request.allowed is not None:
            rules = step.rules
            callable_now = self._request.allowed | {rules.result}
            catalog = {n: s for n, s in rules.catalog.items() if n in callable_now}
            tools = {n: s for n, s in step.tools.items() if n in catalog}
            step = replace(step, tools=tools, rules=replace(rules, catalog=catalog))
        if self._beginning and not self._attempts:
            rules = replace(step.rules, prefix=self._beginning, in_thought=False)
            prompt = self._session.prompt.render(self._beginning)
            step = replace(step, prompt=prompt, rules=rules, thought=None, messages=None)
        return step

    async def run(self) -> TurnDone:
        """Let the model write until there is a turn for the client. Raises `ApiError`."""
        if self._request.is_plain:
            return await self._run_plain()
        parts = DriverParts(
            completer=self,
            window=self,
            runner=ClientRunner(),
            approvals=ClientDecisions(self._writer),
            approver=PauseApprover(),
            outputs=Outputs(self._session, None),
            clock=RunClock(),
            in_thread=self._new_size > LARGE,
        )
        driver, problem = Driver(self._writer, parts), ""
        while self._attempts < ATTEMPTS:
            self._result = None
            try:
                await driver.take_turn()
            except StopTextFound:
                assert self._step is not None  # it came while the model worked out a step
                return await self._cut_off(self._step)
            except _CallsUnfinished as unfinished:
                return await self._finish_sent_calls(unfinished.result, unfinished.calls)
            done, problem = self._finish_turn()
            if done is not None:
                return done
            if self._answer.has_text and self._request.schema is not None:
                break  # what the client has seen cannot be taken back
            if self._session.state is State.IDLE:
                break  # the model wrote it again, so it is meant
            self._answer.restart()
        raise _unreadable_turn(f"the model wrote no turn that fits: {problem}", self._result)

    # --- what the driver asks for ---

    received_any = True
    partial = ""

    async def start(self) -> None:
        """Start nothing: the server runs already."""

    async def fit(self, step: Complete) -> FittedStep:
        """Return the step as the client asked for it, with the tokens it may have."""
        self._step = await self._limit_tokens(self._limit_step(step))
        return FittedStep(self._step)

    async def count_sent(self, step: FittedStep, record: CompletionRecord) -> None:
        """Count nothing: the usage is the client's."""

    async def complete(self, step: Complete, emit: object) -> CompletionResult:
        """Let the model write a turn. Raises `StopTextFound`, `_CallsUnfinished`."""
        self._result = result = await self._complete(step)
        if (calls := self._unfinished_calls(step, result)) is not None:
            raise _CallsUnfinished(result, calls)
        return result

    async def _complete(self, step: Complete, first_call: int = 0) -> CompletionResult:
        """Let the model write one turn. Raises `StopTextFound`."""
        self._attempts += 1
        self._restarts = 0
        self._calls.begin_turn(first_call)
        result = await self._completer.complete(step, self._show)
        self._usages.append(await self._billed_usage(step, result))
        return result

    # --- calls that the client was told of ---

    def _unfinished_calls(
        self, step: Complete, result: CompletionResult
    ) -> list[ClientCall | None] | None:
        """Return the calls that were begun for the client if some are left unfinished.

        An unfinished call is None. A server that cannot go on from a text finishes none.
        """
        can_go_on = not (step.rules.server_split_calls and step.strategy == "free")
        if not self._calls.calls or result.finish_reason == "length" or not can_go_on:
            return None
        ends = self._calls.final_calls(self._judge(result.reading))
        return ends if None in ends else None

    def _judge(self, reading: Reading) -> tuple[JudgedCall, ...]:
        return judge(reading, self._session.specs, tool_choice=self._session.choice)

    async def _finish_sent_calls(
        self, result: CompletionResult, ends: list[ClientCall | None]
    ) -> TurnDone:
        """Let the model finish calls that were sent in part. Raises `ApiError`."""
        self._is_kept = False  # the model did not write these calls in one turn
        repairs = dict.fromkeys(_repairs(self._judge(result.reading)))
        while None in ends and self._attempts < ATTEMPTS:
            slot = ends.index(None)
            step = await self._limit_tokens(self._continue_call(self._calls.calls[slot]))
            result = await self._complete(step, slot)
            if result.finish_reason == "length":
                return self._done("length")
            judgements = self._judge(result.reading)
            call = self._calls.calls[slot]
            ends[slot] = call.final_call(judgements[0]) if judgements else None
            repairs |= dict.fromkeys(("mended", *_repairs(judgements)))
        calls = tuple(call for call in ends if call is not None)
        if len(calls) < len(ends):
            name = self._calls.calls[ends.index(None)].name
            raise _unreadable_turn(f"the model did not finish its call of {name}", result)
        return self._done("tool_calls", calls, repairs=tuple(repairs))

    def _continue_call(self, call: SentCall) -> Complete:
        """Return the completion that goes on from the part of a call that was sent."""
        step = self._next_completion()
        rules = replace(
            step.rules,
            style="jsonl",
            prefix=call.prefix,
            in_thought=False,
            tool_choice=call.name,
            max_calls=1,
            native=frozenset(),
            call=("", ""),
            server_split_calls=False,
        )
        prompt = self._session.prompt.render(call.prefix)
        # Whatever the strategy was: a call that is held to its schema ends well more often.
        return replace(
            step, prompt=prompt, rules=rules, thought=None, strategy="auto", messages=None
        )

    async def _limit_tokens(self, step: Complete) -> Complete:
        """Limit the tokens of the step to those that the client and the context allow."""
        wished, context = self._request.max_tokens, self._runner.profile.settings.context
        left = DEFAULT_MAX_TOKENS if wished is None else wished
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
        """Send the client the event; after a call that was sent, nothing more is."""
        turn = self._completer.turn
        if turn is not None and turn.restarts != self._restarts:
            self._restarts = turn.restarts
            self._answer.restart()
            self._calls.stop_arguments()
        # the events are sent at the end of the call
        is_given_up = turn is not None and turn.unfilled
        match event:
            case events.ThoughtPiece() if not self._calls.calls:
                self._think(event.text)
            case events.AnswerPiece() if not (self._calls.calls or is_given_up):
                self._answer.say(event.text)
            case events.CallOpened() if self._request.streamed and not is_given_up:
                # A call that the tool choice forbids is corrected, and so never sent.
                if self._session.choice in ("auto", "required", event.name):
                    self._calls.open_call(event.index, event.name)
            case events.ArgumentsPiece():
                settled = turn is not None and turn.is_in_object
                self._calls.add_arguments(event.index, event.text, is_settled=settled)

    def _think(self, text: str) -> None:
        text = text if self._thoughts else text.lstrip()
        if text:
            self._thoughts.append(text)
            self._emit(ThoughtAdded(text))

    def _finish_turn(self) -> tuple[TurnDone | None, str]:
        """Return the end of the turn that the model wrote, or its fault."""
        result = self._result
        assert result is not None  # the driver has taken a turn
        reading, follow = result.reading, self._session.current.records
        answer = next((r for r in follow if isinstance(r, AnswerRecord)), None)
        allowed = {r.call for r in follow if isinstance(r, DecisionRecord) and r.decision != "deny"}
        calls = [r for r in follow if isinstance(r, CallRecord) and r.call in allowed]
        if answer is not None and self._calls.calls:
            raise _interrupted_call()
        if answer is not None:
            return self._answered(answer, reading.commentary), ""
        if calls:
            cut = result.finish_reason == "length"
            return self._called(calls, follow, reading, cut=cut), ""
        if result.finish_reason == "length" and not self._is_corrected(reading.error):
            return self._done("length"), ""  # a call that was cut off does not count
        faults = [info.message for r in follow if (info := getattr(r, "error", None)) is not None]
        return None, "; ".join(faults) or "it looks like a call that cannot be read"

    def _is_corrected(self, error: ErrorInfo | None) -> bool:
        """Return whether the model is told what is wrong with a turn that was cut off.

        A turn that repeated itself is corrected once. A cut at the token limit is left to the
        client, who set it.
        """
        if error is None:
            return False
        if error.code == "repetition":
            return self._session.repetitions < 2
        return error.code == "unknown_tool"

    def _answered(self, answer: AnswerRecord, commentary: str) -> TurnDone:
        try:
            self._answer.say_remainder(answer.content, f"{commentary}\n\n" if commentary else "")
        except StopTextFound:
            return self._done("stop")
        done = self._done("length" if answer.truncated else "stop")
        return replace(done, call_like=answer.call_like)

    def _called(
        self, records: list[CallRecord], follow: Iterable[Record], reading: Reading, *, cut: bool
    ) -> TurnDone:
        ends = self._calls.final_calls(self._judge(reading)) if self._calls.calls else []
        if None in ends and cut:
            return self._done("length")
        if None in ends:  # for a server that cannot go on from a text
            raise ApiError(
                502, "model_output_invalid", "the model wrote another call than it began"
            )
        if reading.commentary and not ends:
            try:
                self._answer.say_remainder(reading.commentary)
            except StopTextFound:
                return self._done("stop")
        numbers = {r.call: n for n, r in enumerate(r for r in follow if isinstance(r, CallRecord))}
        untold = [record for record in records if not self._calls.is_sent(numbers[record.call])]
        calls = (
            *(call for call in ends if call is not None),
            *(ClientCall(self._new_id(), r.name, json_line(r.arguments)) for r in untold),
        )
        keys = {record.call for record in records}
        repairs = [r.name for r in follow if isinstance(r, RepairRecord) and r.call in keys]
        specs = self._session.specs
        judged = judge(reading, specs, self._results) if self._results else ()
        echoed = [one.call for one in judged if one.echoed]
        return self._done(
            "tool_calls",
            calls,
            repairs=tuple(dict.fromkeys(repairs)),
            echoed=tuple(
                call.id
                for call in calls
                if any(_is_same(call, one.name, one.arguments) for one in echoed)
            ),
        )

    def _done(
        self,
        finish: Finish,
        calls: tuple[ClientCall, ...] = (),
        *,
        repairs: tuple[str, ...] = (),
        echoed: tuple[str, ...] = (),
    ) -> TurnDone:
        text = self._answer.text
        is_kept = self._is_kept and not self._answer.stopped_by and (calls or finish == "stop")
        message = ClientMessage("assistant", text, calls)
        key = next_key(self._conversed.key, message)
        self._runner.memory.keep(key, tuple(self._writer.turned) if is_kept else ())
        # The cost of the whole turn: the last prompt, and all text that was written.
        written = total_usage(self._usages).completion_tokens
        return TurnDone(
            finish=finish,
            text=text,
            thought="".join(self._thoughts),
            calls=calls,
            usage=replace(self._usages[-1], completion_tokens=written),
            repairs=repairs,
            echoed=echoed,
            stopped_by=self._answer.stopped_by,
            beginning_left_out=finish != "tool_calls" and self._leaves_beginning(),
        )

    def _leaves_beginning(self) -> bool:
        """Return whether the answer does not follow the client's beginning.

        A corrected turn begins again, and the model may write a whole message instead.
        """
        if not self._beginning or self._request.is_plain:
            return False
        if self._result is None:
            return self._attempts > 1
        return self._result.prefix != self._beginning

    async def _billed_usage(self, step: Complete, result: CompletionResult) -> Usage:
        """Return the usage of a turn, from which clients see how full the context is.

        It counts the prompt once, although a mend sends it again. Numbers that the server does not
        report are counted here.
        """
        asked = result.usages[0] if result.usages else Usage()
        completion = total_usage(result.usages).completion_tokens
        prompt = asked.prompt_tokens
        return Usage(
            prompt_tokens=await self._runner.measure(step.prompt) if prompt is None else prompt,
            cached_tokens=asked.cached_tokens,
            completion_tokens=result.tokens if completion is None else completion,
        )

    async def _cut_off(self, step: Complete) -> TurnDone:
        """End a turn at a stop text, whose stream was closed early.

        It was closed before it reported its usage.
        """
        prompt = await self._runner.measure(step.prompt)
        tokens = self._runner.counter.count(self._answer.text)
        self._usages.append(Usage(prompt, None, tokens))
        return self._done("stop")

    # --- without tools ---

    async def _run_plain(self) -> TurnDone:
        """Let the model write freely; its text is the answer."""
        self._step = step = await self._limit_tokens(await self.pending_request())
        request = make_request(self._session, step.prompt, step.max_tokens)
        if step.messages is not None:
            request = to_chat_request(request, step, self._session.neutraliser)
        text, written, usage = PlainText(step.rules), CompletionResult(), Usage()
        raw, watch = "", RepetitionWatch()
        try:
            async with aclosing(self._backend.complete(request)) as chunks:
                async for chunk in chunks:
                    written.tokens += bool(chunk.text)
                    usage = chunk.usage or usage
                    raw += chunk.text
                    if chunk.text:
                        said = text.feed(chunk.text)
                        self._think(text.take_thought())
                        self._answer.say(said)
                    if chunk.finish_reason is not None:
                        written.finish_reason = chunk.finish_reason
                    elif watch.repeats(raw, "answer"):
                        written.finish_reason = "length"
                    if written.finish_reason is not None or text.is_over:
                        break
                said = text.feed("", is_last=True)
                self._think(text.take_thought())
                self._answer.say(said, is_last=True)
        except StopTextFound:
            return await self._cut_off(step)
        written.usages.append(usage)
        self._usages.append(await self._billed_usage(step, written))
        # The client sends back exactly what the model wrote: there is nothing to remember.
        finish: FinishReason = "length" if written.finish_reason == "length" else "stop"
        return self._done(finish)


def _interrupted_call() -> ApiError:
    """Return the error of a turn that cannot go on from what a client was sent."""
    problem = "the model began a call and then wrote something else"
    return ApiError(502, "model_output_invalid", problem)


def _repairs(judgements: Iterable[JudgedCall]) -> list[str]:
    """Return the repairs of all calls."""
    return [name for call in judgements for name in call.call.repairs]


def _is_same(call: ClientCall, name: str, arguments: Mapping[str, Any]) -> bool:
    return call.name == name and json.loads(call.arguments) == arguments
