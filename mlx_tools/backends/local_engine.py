"""One model in memory: prompts in, chunks of text out, token by token. Runs in one thread."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

from mlx_tools.backends.interface import Chunk, CompletionRequest, TokenScore
from mlx_tools.backends.local_cache import CachedPrefix, NobodyWaits, Watch
from mlx_tools.backends.local_grammar import GrammarRun, Grammars
from mlx_tools.backends.local_load import arrays, load_model
from mlx_tools.backends.local_text import TokenTexts
from mlx_tools.backends.wire import check_request
from mlx_tools.errors import UsageError
from mlx_tools.messages import FinishReason, Usage

SMALLEST_TEMPERATURE: Final = 1e-4
"""Below it the likeliest token is taken, as at 0."""

Scores = tuple[tuple[TokenScore, ...], ...]


class Engine:
    """The model in ``folder``, loaded. ``fast_forward`` off chooses every token by itself, also
    those that a grammar leaves no choice about.

    Raises:
        MissingDependency: mlx-lm is not installed.
        ModelError: the model cannot be loaded.
    """

    def __init__(self, folder: Path, *, fast_forward: bool = True) -> None:
        model, self._tokenizer = load_model(folder)
        self._ends: frozenset[int] = frozenset(self._tokenizer.eos_token_ids)
        self._reading = CachedPrefix(model)
        self._texts = TokenTexts(self._tokenizer)
        self._grammars: Grammars | None = None
        self._fast_forward = fast_forward

    @property
    def passes(self) -> int:
        """Forward passes since the model was loaded."""
        return self._reading.passes

    def complete(self, request: CompletionRequest, watch: Watch) -> Generator[Chunk, None, None]:
        """Complete a prompt. ``watch`` is called between forward passes while it is read; closing
        the generator ends the completion.

        Raises:
            UsageError: the prompt or the grammar cannot be used.
            BackendBroken: the grammar ran into a limit.
        """
        prompt = self._tokens(check_request(request))
        choose = _Choice(request)
        steps = self._free(prompt, request, choose, watch)
        if request.grammar is not None:
            run = self._grammar_run(request.grammar.lark, prompt)
            steps = self._held(run, len(prompt), request, choose, watch)
        try:
            yield from steps
        except (GeneratorExit, NobodyWaits):
            raise
        except BaseException:
            self._reading.forget()  # nobody knows what it has read
            raise
        finally:
            arrays().clear_cache()  # buffers of sizes that will not come again

    def _tokens(self, prompt: str) -> list[int]:
        tokens = list(self._tokenizer.encode(prompt))
        if not tokens:
            raise UsageError("the prompt comes to no token of this model's")
        return tokens

    # --- written freely -----------------------------------------------------------------------

    def _free(
        self, prompt: list[int], request: CompletionRequest, choose: _Choice, watch: Watch
    ) -> Iterator[Chunk]:
        mx = arrays()

        cached = self._reading.turn_to(prompt)
        logits = self._reading.read_prompt(prompt, watch)
        texts = self._texts.stream(prompt)
        finish: FinishReason = "length"
        count = 0
        chosen = choose.token(logits)
        mx.async_eval(chosen)
        while count < request.max_tokens:
            watch()
            last = count + 1 == request.max_tokens
            if not last:  # the next pass runs while this token is told
                following = self._reading.go_on(chosen[None])
                ahead = choose.token(following)
                mx.async_eval(ahead)
            token = int(chosen.item())
            if not last:
                self._reading.tokens.append(token)
            count += 1
            if token in self._ends:
                finish = "stop"
                break
            scores = self._scores(logits, request.top_logprobs)
            text = texts.add(token)
            if text or scores:
                yield Chunk(text, scores=scores)
            if not last:
                chosen, logits = ahead, following
        usage = Usage(len(prompt), cached, count)
        yield Chunk(texts.finish(), finish, usage)

    # --- held to a grammar --------------------------------------------------------------------

    def _grammar_run(self, lark: str, prompt: list[int]) -> GrammarRun:
        self._grammars = self._grammars or Grammars(self._tokenizer)
        return self._grammars.start(
            lark, prompt, fast_forward=self._fast_forward, take_back=self._reading.can_shorten
        )

    def _held(
        self,
        run: GrammarRun,
        prompt_size: int,
        request: CompletionRequest,
        choose: _Choice,
        watch: Watch,
    ) -> Iterator[Chunk]:
        cached = min(self._reading.turn_to(run.tokens), prompt_size)
        logits = self._reading.read_prompt(run.tokens, watch)
        scored, most = request.top_logprobs > 0, request.max_tokens
        count = max(0, len(run.tokens) - prompt_size)
        finish: FinishReason | None = "length" if count >= most else None
        surplus = max(0, count - most)
        if text := run.text(surplus):
            yield Chunk(text, scores=((),) * (count - surplus) if scored else ())
        while finish is None:
            watch()
            mask = run.mask()
            token = None if mask is None else int(choose.token(_masked(logits, mask)).item())
            if token is None or token in self._ends:
                count, finish = count + (token is not None), "stop"
                break
            back, tokens = run.take(token)
            if back:
                self._reading.take_back(back)
            count += len(tokens) - back
            surplus = max(0, count - most)
            if run.ended and not surplus:
                finish = "stop"
            elif count >= most:
                finish = "length"
            scores = self._scores(logits, request.top_logprobs)
            scores += ((),) * (len(tokens) - surplus - 1) if scored else ()
            text = run.text(surplus)
            if text or scores:
                yield Chunk(text, scores=scores)
            if finish is None:
                logits = self._reading.read(tokens, watch)
        yield Chunk(run.rest(surplus), finish, Usage(prompt_size, cached, count - surplus))

    def _scores(self, logits: Any, most: int) -> Scores:
        """The likeliest tokens by the model itself, before any grammar."""
        if most < 1:
            return ()
        mx = arrays()

        wide = logits.astype(mx.float32)
        logprobs = wide - mx.logsumexp(wide)
        most = min(most, logprobs.shape[0])
        best = mx.argpartition(-logprobs, kth=most - 1)[:most]
        pairs = zip(best.tolist(), logprobs[best].tolist(), strict=True)
        ranked = sorted(pairs, key=lambda pair: -pair[1])
        told = [
            TokenScore(self._texts.text(token), score, data, token)
            for token, score in ranked
            if (data := self._texts.data(token)) is not None
        ]
        # nothing can be said without the likeliest
        return (tuple(told) if told and told[0].id == ranked[0][0] else (),)


class _Choice:
    """How the next token is chosen: the likeliest one, or by chance from a seed of its own."""

    def __init__(self, request: CompletionRequest) -> None:
        self._temperature = request.temperature
        self._bias = request.logit_bias
        self._key: Any = None
        if request.temperature >= SMALLEST_TEMPERATURE:
            mx = arrays()

            seed = secrets.randbelow(2**63) if request.seed is None else request.seed
            self._key = mx.random.key(seed)

    def token(self, logits: Any) -> Any:
        """The token, not computed yet."""
        mx = arrays()

        if known := {token: bias for token, bias in self._bias.items() if token < logits.shape[0]}:
            values = mx.array(list(known.values()), dtype=logits.dtype)
            logits = logits.at[mx.array(list(known))].add(values)
        if self._key is None:
            return mx.argmax(logits)
        self._key, once = mx.random.split(self._key)
        wide = logits.astype(mx.float32)
        return mx.random.categorical((wide - mx.max(wide)) / self._temperature, key=once)


def _masked(logits: Any, mask: bytes) -> Any:
    mx = arrays()

    allowed = mx.array(memoryview(mask)) != 0
    size = logits.shape[0]
    if len(mask) < size:  # the model has room for tokens that its tokenizer does not use
        allowed = mx.concatenate([allowed, mx.zeros(size - len(mask), dtype=mx.bool_)])
    return mx.where(allowed[:size], logits, mx.array(-float("inf"), dtype=logits.dtype))
