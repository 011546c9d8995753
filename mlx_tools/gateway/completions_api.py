"""Plain completions, passed through: a prompt's bytes go to the model's server as they are. Pure
but for the backend that it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final

from pydantic import Field

from mlx_tools.backends import MOST_SCORES, CompletionRequest, Guarded, TokenScore
from mlx_tools.errors import MlxToolsError
from mlx_tools.gateway.body import check_plain, read, unknown_fields
from mlx_tools.gateway.chat_completions import (
    OpenAiBody,
    chat_completion_error,
    chat_usage,
    check_not_asked,
)
from mlx_tools.gateway.plain_text import StopTexts
from mlx_tools.gateway.request import (
    DONE,
    ApiError,
    ClientMessage,
    TextPiece,
    TurnDone,
    TurnEvent,
    TurnRequest,
    server_sent,
    unsupported,
)
from mlx_tools.gateway.turn import Emit, Speaker, as_api_error
from mlx_tools.messages import Usage, replace

_REFUSED: Final[Mapping[str, Any]] = {"n": 1, "best_of": 1, "echo": False, "suffix": ""}
"""Fields that would change the answer, and the value that asks for nothing."""

USUAL: Final = 16
"""Tokens of a completion for which nobody says a number, as in OpenAI's interface."""

Prompt = Annotated[str, Field(min_length=1)]


class CompletionBody(OpenAiBody):
    prompt: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | int | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_SCORES)] | None = None


def read_completion(
    body: Mapping[str, Any], *, new_id: Callable[[], str], now: Callable[[], float]
) -> tuple[TurnRequest, CompletionReply]:
    """What a body asks for, and how it is answered. Raises `ApiError`."""
    check_plain(body)
    check_not_asked(body, _REFUSED)
    given = read(CompletionBody, body)
    scored = _scored(given)
    prompt = given.prompt if isinstance(given.prompt, str) else given.prompt[0]
    request = TurnRequest(
        messages=(ClientMessage("user", prompt),),
        model=given.model or "",
        sampling=given.sampling(),
        stop=given.stops,
        max_tokens=given.max_tokens or USUAL,
        left_out=unknown_fields(given, (*_REFUSED, "user")),
        top_logprobs=scored,
    )
    same = {"id": f"cmpl-{new_id()}", "object": "text_completion", "created": int(now())}
    same |= {"model": request.model}
    return request, CompletionReply(same, given.stream is True, given.wants_usage)


def _scored(given: CompletionBody) -> int:
    """How many alternatives of each token are wanted, as mlx-lm's server is asked for them."""
    wanted = given.top_logprobs or 0
    if not given.logprobs:
        return 0
    if given.logprobs is not True or not wanted:
        raise unsupported("logprobs", "true, with top_logprobs; no other form can be had here")
    if given.stream:
        raise unsupported("logprobs", "not in a stream")
    return wanted


async def complete_text(speaker: Speaker, request: TurnRequest, emit: Emit) -> TurnDone:
    """Let the model go on from a prompt. Raises `ApiError`."""
    sampling = dict(request.sampling)
    asked = CompletionRequest(
        prompt=request.messages[0].content,
        max_tokens=request.max_tokens or USUAL,
        temperature=sampling.pop("temperature", 0.0),
        seed=sampling.pop("seed", None),
        timeout=speaker.limits.completion_timeout,
        idle_timeout=speaker.limits.idle_timeout,
        sampling=sampling,
        top_logprobs=request.top_logprobs,
    )
    stops, said, usage, pieces = StopTexts(request.stop), [], Usage(), 0
    finish: Any = "stop"
    scores: list[tuple[TokenScore, ...]] = []
    try:
        async with aclosing(Guarded(speaker.backend).complete(asked)) as chunks:
            async for chunk in chunks:
                pieces += bool(chunk.text)
                scores += chunk.scores
                usage = chunk.usage or usage
                finish = chunk.finish_reason or finish
                if text := stops.feed(chunk.text, ended=chunk.finish_reason is not None):
                    said.append(text)
                    emit(TextPiece(text))
                if stops.found:
                    finish = "stop"
                    break
    except MlxToolsError as error:
        raise as_api_error(error) from error
    if usage.completion_tokens is None:
        usage = replace(usage, completion_tokens=pieces)
    if usage.prompt_tokens is None:
        usage = replace(usage, prompt_tokens=speaker.counter.count(asked.prompt))
    done = TurnDone(
        finish=finish, text="".join(said), usage=usage, stopped_by=stops.found, scores=tuple(scores)
    )
    emit(done)
    return done


class CompletionReply:
    """A text completion, whole or as chunks."""

    def __init__(self, same: Mapping[str, Any], streamed: bool, usage: bool) -> None:
        self._same, self.streamed, self._usage = same, streamed, usage

    def begin(self) -> Iterator[str]:
        return iter(())

    def take(self, event: TurnEvent) -> Iterator[str]:
        if isinstance(event, TextPiece):
            yield self._event(event.text, None)
        elif isinstance(event, TurnDone):
            yield self._event("", event.finish)
            if self._usage:
                yield server_sent({**self._same, "choices": [], "usage": _usage(event.usage)})
            yield DONE

    def fail(self, error: ApiError) -> Iterator[str]:
        yield server_sent(chat_completion_error(error))

    def whole(self, done: TurnDone) -> dict[str, Any]:
        choice = _choice(done.text, done.finish)
        if done.scores:
            choice["logprobs"] = {"content": [_row(scores) for scores in done.scores]}
        return {**self._same, "choices": [choice], "usage": _usage(done.usage)}

    def _event(self, text: str, finish: str | None) -> str:
        return server_sent({**self._same, "choices": [_choice(text, finish)]})


def _usage(usage: Usage) -> dict[str, Any]:
    """What is known of the tokens: the model's server may not say how many were cached."""
    said = chat_usage(usage)
    if usage.cached_tokens is None:
        del said["prompt_tokens_details"]
    return said


def _row(scores: Sequence[TokenScore]) -> dict[str, Any]:
    """One token's alternatives in the form of mlx-lm's server, each with its bytes."""
    rows = [
        {"id": one.id, "token": one.text, "logprob": one.logprob, "bytes": list(one.data)}
        for one in scores
    ]
    return {"top_logprobs": rows}


def _choice(text: str, finish: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
