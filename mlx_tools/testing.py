"""Fakes for tests of anything built on mlx-tools: a model that says what it is told to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from mlx_tools.backends import Chunk, CompletionRequest, TokenScore
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest
from mlx_tools.messages import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class Script:
    """One scripted completion.

    ``pieces`` is how many characters a chunk holds, 0 for all in one. A ``finish_reason`` of None
    leaves the stream open at its end, as a server does that has more to say. With ``scores`` it is
    what is told of a token instead: the likeliest ones, each with the logarithm of its probability.
    """

    text: str
    finish_reason: FinishReason | None = "stop"
    pieces: int = 0
    usage: Usage | None = None
    scores: Sequence[tuple[str, float]] = ()


class ScriptedBackend:
    """A backend that gives the scripted completions, one after the other.

    Each is a text, a `Script`, an exception to raise, or a function from the prompt to one of
    these. Likelihoods are told where the next is a `Script` that has some. ``requests`` holds what
    was asked. Running out of script raises AssertionError, of which a run makes the `BackendError`
    that says so.
    """

    model = "scripted"

    def __init__(self, *scripts: str | Script | Exception | Callable[[str], str | Script]) -> None:
        self._scripts = list(scripts)
        self.requests: list[CompletionRequest] = []

    @property
    def prompts(self) -> list[str]:
        """The prompts asked for so far."""
        return [request.prompt for request in self.requests]

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        """The next scripted completion."""
        self.requests.append(request)
        if request.top_logprobs:
            scores = getattr(self._scripts[0], "scores", ()) if self._scripts else ()
            if scores:
                self._scripts.pop(0)
            told = tuple(TokenScore(token, logprob) for token, logprob in scores)
            written = told[0].text if told else "?"  # a server writes while it is asked
            yield Chunk(written, "length", scores=(told,) if told else ())
            return
        if not self._scripts:
            raise AssertionError("the script has no completion left for this request")
        script = self._scripts.pop(0)
        if callable(script):
            script = script(request.prompt)
        if isinstance(script, Exception):
            raise script
        if isinstance(script, str):
            script = Script(script)
        step = script.pieces or max(len(script.text), 1)
        for start in range(0, len(script.text), step):
            yield Chunk(script.text[start : start + step])
        if script.finish_reason is not None:
            yield Chunk("", script.finish_reason, script.usage)


class ScriptedApprover:
    """An approver that gives the scripted answers: True, False, or None for nobody there."""

    def __init__(self, *answers: bool | None) -> None:
        self._answers = list(answers)
        self.requests: list[ApprovalRequest] = []

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """One scripted answer a request."""
        self.requests += requests
        return [ApprovalAnswer(self._answers.pop(0), "as scripted") for _ in requests]
