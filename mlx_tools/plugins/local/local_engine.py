"""One model in memory.

Prompts in, chunks of text out, token by token, in one thread.
"""

from __future__ import annotations

import copy
import json
import secrets
from codecs import getincrementaldecoder
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mlx_tools.backends import (
    Chunk,
    CompletionRequest,
    RequestCancelled,
    TokenScore,
    check_request,
    decode_spelling,
)
from mlx_tools.errors import BackendBroken, MissingDependency, ModelError, UsageError
from mlx_tools.messages import FinishReason, Usage
from mlx_tools.paths import to_install
from mlx_tools.process import clean

MAX_GRAMMARS: Final = 16
"""Compiled grammars that are held; a session needs one or two a turn."""

_MAX_ALTERNATIVES: Final = 100_000
"""The most alternatives of a grammar at one place: every tool's name is one."""


_ENDS: Final = ("NotStopped", "NoExtension", "NoExtensionBias", "EndOfSentence")
"""llguidance's reasons to stop that mean that the grammar was followed to its end."""


class Grammars:
    """The grammars of one model, each compiled once.

    Args:
        tokenizer: the model's tokenizer as mlx-lm loads it.

    Raises:
        UsageError: llguidance cannot read the tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        from llguidance import LLInterpreter, LLParserLimits
        from llguidance.hf import from_tokenizer

        inner = getattr(tokenizer, "_tokenizer", tokenizer)
        try:
            self._tokenizer = from_tokenizer(inner, eos_token=sorted(tokenizer.eos_token_ids))
        except Exception as error:
            raise UsageError(
                f"this model's tokenizer cannot be used with a grammar: {clean(str(error))}",
                hint="use the strategy free or guided",
            ) from error
        self._compile = LLInterpreter
        self._limits = LLParserLimits(max_items_in_row=_MAX_ALTERNATIVES)
        self._matchers: OrderedDict[tuple[str, bool, bool], Any] = OrderedDict()

    def start(
        self, lark: str, prompt: Sequence[int], *, fast_forward: bool, take_back: bool
    ) -> GrammarRun:
        """Start a completion of ``prompt`` by a grammar; it has one token at least.

        Args:
            lark: the grammar.
            prompt: the prompt's tokens.
            fast_forward: add the tokens that must follow the chosen one, and heal the end of the
                prompt. Without it every token is chosen.
            take_back: tokens may be taken back if they and the text that must follow are fewer
                tokens.

        Raises:
            UsageError: llguidance cannot read the grammar.
        """
        key = (lark, fast_forward, take_back)
        if key not in self._matchers:
            try:
                self._matchers[key] = self._compile(
                    self._tokenizer,
                    lark,
                    enable_backtrack=take_back and fast_forward,
                    enable_ff_tokens=fast_forward,
                    log_level=0,
                    limits=self._limits,
                )
            except Exception as error:
                raise UsageError(f"the grammar cannot be used: {clean(str(error))}") from error
        # The least recently used grammar is dropped first.
        self._matchers.move_to_end(key)
        while len(self._matchers) > MAX_GRAMMARS:
            self._matchers.popitem(last=False)
        return GrammarRun(self._tokenizer, self._matchers[key], prompt, heal=fast_forward)


class GrammarRun:
    """One completion by a grammar."""

    def __init__(self, tokenizer: Any, matcher: Any, prompt: Sequence[int], *, heal: bool) -> None:
        self._tokenizer = tokenizer
        self._interpreter = matcher.deep_copy()
        self._decoder = _Decoder("replace")
        self.tokens: list[int] = list(prompt)
        """The prompt's tokens as the model should read them, then those that came.

        They may end before the prompt does, or continue to text that must follow.
        """
        if heal:
            self.tokens = self._interpreter.process_prompt(list(prompt))
        common = shared_length(prompt, self.tokens)
        prompt_bytes, healed_bytes = self._bytes(prompt[common:]), self._bytes(self.tokens[common:])
        matches = prompt_bytes.startswith(healed_bytes) or healed_bytes.startswith(prompt_bytes)
        if heal and not matches:  # this tokenizer reads other tokens in its own text: no healing
            self._interpreter = matcher.deep_copy()
            self.tokens, common, prompt_bytes, healed_bytes = list(prompt), len(prompt), b"", b""
        if not (heal and matches):
            self._interpreter.start_without_prompt()
        self._emitted = len(prompt_bytes)
        self._written_text = bytearray(healed_bytes)
        self._sizes = [len(self._bytes([token])) for token in self.tokens[common:]]

    def mask(self) -> bytes | None:
        """Return one byte for each token, 0 if it may not come next; None if nothing may.

        Raises:
            BackendBroken: the grammar reached a limit of llguidance.
        """
        while True:
            mask, state = self._interpreter.compute_mask()
            if json.loads(state)["stop"]:
                reason = str(self._interpreter.stop_reason())
                if reason not in _ENDS:
                    raise BackendBroken(
                        f"the grammar could not be followed: {reason}",
                        hint="its tools may have too many alternatives: offer fewer",
                    )
                return None
            if mask is not None:
                return bytes(mask)
            self._commit(None)

    def take(self, token: int) -> tuple[int, list[int]]:
        """Take the token that the model has chosen.

        Returns:
            The number of earlier tokens that are taken back, and the tokens that follow them. The
                chosen one
            is the first of these unless something was taken back.
        """
        return self._commit(token)

    @property
    def is_finished(self) -> bool:
        """True if nothing may follow."""
        return bool(self._interpreter.has_pending_stop())

    def text(self, dropped_tokens: int = 0) -> str:
        """Return the new text up to its last whole character.

        The text of the last ``dropped_tokens`` tokens is left out.
        """
        end = len(self._written_text) - sum(self._sizes[len(self._sizes) - dropped_tokens :])
        piece = bytes(self._written_text[self._emitted : end])
        self._emitted = max(self._emitted, end)
        return self._decoder.decode(piece)

    def remaining_text(self, dropped_tokens: int = 0) -> str:
        """Return the rest of the text at its end."""
        return self.text(dropped_tokens) + self._decoder.decode(b"", final=True)

    def _commit(self, token: int | None) -> tuple[int, list[int]]:
        taken_back, tokens = self._interpreter.commit_token(token)
        if taken_back:
            del self.tokens[-taken_back:]
            size = sum(self._sizes[-taken_back:])
            del self._sizes[-taken_back:]
            # Text is taken back together with its tokens, so that both always agree.
            del self._written_text[len(self._written_text) - size :]
        for new_token in tokens:
            piece = self._bytes([new_token])
            self.tokens.append(new_token)
            self._sizes.append(len(piece))
            self._written_text += piece
        return taken_back, list(tokens)

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return bytes(self._tokenizer.decode_bytes(list(tokens)))


def shared_length(tokens: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of equal tokens at the beginning of two sequences."""
    for number, (left, right) in enumerate(zip(tokens, second, strict=False)):
        if left != right:
            return number
    return min(len(tokens), len(second))


MIN_TEMPERATURE: Final = 1e-4
"""Below it the likeliest token is taken, as at 0: it has nearly all of the probability there."""

Scores = tuple[tuple[TokenScore, ...], ...]


class Engine:
    """The loaded model of a folder.

    Args:
        folder: the model's folder.
        fast_forward: False chooses every token, also one that a grammar leaves no choice about.

    Raises:
        MissingDependency: mlx-lm is not installed.
        ModelError: the model cannot be loaded.
    """

    def __init__(self, folder: Path, *, fast_forward: bool = True) -> None:
        model, self.tokenizer = load_model(folder)
        self.texts = TokenTexts(self.tokenizer)
        """The texts of tokens."""
        self._ends: frozenset[int] = frozenset(self.tokenizer.eos_token_ids)
        self._reading = CachedPrefix(model)
        self._grammars: Grammars | None = None
        self._fast_forward = fast_forward

    @property
    def passes(self) -> int:
        """The number of forward passes so far."""
        return self._reading.passes

    def forget(self) -> None:
        """Forget the prompt that was read last; the next one is read from its beginning."""
        self._reading.forget()

    def complete(self, request: CompletionRequest, watch: Watch) -> Generator[Chunk, None, None]:
        """Complete a prompt; closing the generator ends the completion.

        Args:
            request: the request.
            watch: called between forward passes while the prompt is read.

        Raises:
            UsageError: the prompt or the grammar cannot be used.
            BackendBroken: the grammar reached a limit.
        """
        prompt = list(self.tokenizer.encode(check_request(request)))
        if not prompt:
            raise UsageError("the prompt comes to no token of this model's")
        choose = _Choice(request)
        steps = self._complete_freely(prompt, request, choose, watch)
        if request.grammar is not None:
            self._grammars = self._grammars or Grammars(self.tokenizer)
            run = self._grammars.start(
                request.grammar.lark,
                prompt,
                fast_forward=self._fast_forward,
                take_back=self._reading.can_shorten,
            )
            steps = self._complete_constrained(run, len(prompt), request, choose, watch)
        try:
            yield from steps
        except (GeneratorExit, RequestCancelled):
            raise
        except BaseException:
            self.forget()  # the cache may hold anything after an error
            raise
        finally:
            arrays().clear_cache()  # MLX keeps buffers by size, and these sizes will not come again

    # --- written freely -----------------------------------------------------------------------

    def _complete_freely(
        self, prompt: list[int], request: CompletionRequest, choose: _Choice, watch: Watch
    ) -> Iterator[Chunk]:
        mx = arrays()
        cached = self._reading.rewind(prompt)
        logits = self._reading.read_prompt(prompt, watch)
        texts = self.texts.stream(prompt)
        finish: FinishReason = "length"
        count = 0
        chosen = choose.token(logits)
        # The GPU computes while Python prepares the next step.
        mx.async_eval(chosen)
        while count < request.max_tokens:
            watch()
            last = count + 1 == request.max_tokens
            if not last:  # the next pass runs while this token is delivered
                following = self._reading.run_model(chosen[None])
                next_token = choose.token(following)
                mx.async_eval(next_token)
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
                chosen, logits = next_token, following
        usage = Usage(len(prompt), cached, count)
        yield Chunk(texts.finish(), finish, usage)

    # --- held to a grammar --------------------------------------------------------------------

    def _complete_constrained(
        self,
        run: GrammarRun,
        prompt_size: int,
        request: CompletionRequest,
        choose: _Choice,
        watch: Watch,
    ) -> Iterator[Chunk]:
        cached = min(self._reading.rewind(run.tokens), prompt_size)
        logits = self._reading.read_prompt(run.tokens, watch)
        has_scores, max_tokens = request.top_logprobs > 0, request.max_tokens
        count = max(0, len(run.tokens) - prompt_size)
        finish: FinishReason | None = "length" if count >= max_tokens else None
        surplus = max(0, count - max_tokens)
        if text := run.text(surplus):
            yield Chunk(text, scores=((),) * (count - surplus) if has_scores else ())
        while finish is None:
            watch()
            mask = run.mask()
            token = None if mask is None else int(choose.token(logits, mask).item())
            if token is None or token in self._ends:
                count, finish = count + (token is not None), "stop"
                break
            taken_back, tokens = run.take(token)
            if taken_back:
                self._reading.take_back(taken_back)
            count += len(tokens) - taken_back
            surplus = max(0, count - max_tokens)
            if run.is_finished and not surplus:
                finish = "stop"
            elif count >= max_tokens:
                finish = "length"
            scores = self._scores(logits, request.top_logprobs)
            scores += ((),) * (len(tokens) - surplus - 1) if has_scores else ()
            text = run.text(surplus)
            if text or scores:
                yield Chunk(text, scores=scores)
            if finish is None:
                logits = self._reading.read(tokens, watch)
        yield Chunk(
            run.remaining_text(surplus), finish, Usage(prompt_size, cached, count - surplus)
        )

    def _scores(self, logits: Any, top_logprobs: int) -> Scores:
        """Return the likeliest tokens by the model itself, before any grammar."""
        if top_logprobs < 1:
            return ()
        mx = arrays()
        floats = logits.astype(mx.float32)
        logprobs = floats - mx.logsumexp(floats)
        top_logprobs = min(top_logprobs, logprobs.shape[0])
        best = mx.argpartition(-logprobs, kth=top_logprobs - 1)[:top_logprobs]
        pairs = zip(best.tolist(), logprobs[best].tolist(), strict=True)
        pairs_by_score = sorted(pairs, key=lambda pair: -pair[1])
        scores = [
            TokenScore(self.texts.text(token), score, data, token)
            for token, score in pairs_by_score
            if (data := self.texts.data(token)) is not None
        ]
        # alternatives without the likeliest one would mislead
        return (tuple(scores) if scores and scores[0].id == pairs_by_score[0][0] else (),)


class _Choice:
    """Chooses the next token.

    The likeliest one, or a random one from a seed of its own.
    """

    def __init__(self, request: CompletionRequest) -> None:
        self._temperature = request.temperature
        self._bias = request.logit_bias
        self._key: Any = None
        if request.temperature >= MIN_TEMPERATURE:
            mx = arrays()
            seed = secrets.randbelow(2**63) if request.seed is None else request.seed
            self._key = mx.random.key(seed)

    def token(self, logits: Any, mask: bytes | None = None) -> Any:
        """Return the next token as an array that is not computed yet.

        ``mask`` has 0 for each token that may not come.
        """
        mx = arrays()
        size = logits.shape[0]
        if mask is not None:
            # a model may have more logits than its tokenizer has tokens
            allowed = mx.array(memoryview(mask + bytes(max(0, size - len(mask))))) != 0
            forbidden = mx.array(-float("inf"), dtype=logits.dtype)
            logits = mx.where(allowed[:size], logits, forbidden)
        if biases := {token: bias for token, bias in self._bias.items() if token < size}:
            values = mx.array(list(biases.values()), dtype=logits.dtype)
            logits = logits.at[mx.array(list(biases))].add(values)
        if self._key is None:
            return mx.argmax(logits)
        self._key, key = mx.random.split(self._key)
        floats = logits.astype(mx.float32)
        return mx.random.categorical((floats - mx.max(floats)) / self._temperature, key=key)


def arrays() -> Any:
    """Return the module ``mlx.core``, untyped: its types differ between versions."""
    import mlx.core

    return mlx.core


def load_model(folder: Path) -> tuple[Any, Any]:
    """Return the model in ``folder`` and its tokenizer, as mlx-lm loads them.

    Raises:
        MissingDependency: mlx-lm is not installed.
        ModelError: the model cannot be loaded.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} holds no model", hint="mlx-tools models list shows what is here"
        )
    try:
        from mlx_lm import load
    except ImportError as error:
        raise MissingDependency(
            "a model in this process needs mlx-lm", hint=to_install("mlx")
        ) from error
    try:
        loaded: Any = load(str(folder))
    except MemoryError:
        raise ModelError(f"the model in {folder} does not fit into memory") from None
    except Exception as error:  # libraries raise anything for files that they cannot read
        raise ModelError(
            f"the model in {folder} cannot be loaded: {clean(str(error)) or type(error).__name__}"
        ) from error
    return loaded[0], loaded[1]


# --- what it has read -------------------------------------------------------------------------

STEP: Final = 512
"""Tokens of a prompt in one forward pass. A choice: a request can be cancelled between two passes.
"""

SHORT: Final = 64
"""Tokens that are read in one last pass, which computes logits for each of them."""

_SHORTENABLE: Final = frozenset(("KVCache", "QuantizedKVCache", "ConcatenateKVCache"))
"""mlx-lm's caches that can be cut back from any length."""

Watch = Callable[[], None]
"""Called between forward passes; raises `RequestCancelled` if the request was cancelled."""


class CachedPrefix:
    """One model's state after ``tokens``.

    A cache that cannot be shortened (a sliding window, a state-space model) is copied at the end of
    each prompt. So the next prompt can continue from there, or from the end of the completion.
    """

    def __init__(self, model: Any) -> None:
        self.passes = 0
        """The number of forward passes."""
        self.tokens: list[int] = []
        self._model = model
        self._cache: list[Any] = []
        self._saved: tuple[list[int], list[Any]] | None = None
        self.forget()

    @property
    def can_shorten(self) -> bool:
        """True if tokens can be taken back."""
        return all(layer.is_trimmable() for layer in self._cache)

    def forget(self) -> None:
        """Empty the cache."""
        from mlx_lm.models.cache import make_prompt_cache

        self.tokens = []
        self._saved = None
        self._cache = make_prompt_cache(self._model)
        self._shortenable = {type(layer).__name__ for layer in self._cache} <= _SHORTENABLE

    def rewind(self, prompt: Sequence[int]) -> int:
        """Go back to where ``prompt`` begins to differ, or to before its last token.

        Returns:
            The number of the prompt's tokens that need not be read again.
        """
        common = shared_length(self.tokens, prompt[:-1])
        if common < len(self.tokens) and not self.take_back(len(self.tokens) - common):
            self._restore(prompt)
        return len(self.tokens)

    def take_back(self, count: int) -> bool:
        """Remove the last tokens.

        Return False, with nothing changed, if that is not possible.
        """
        if not self.can_shorten:
            return False
        if count and any(layer.trim(count) != count for layer in self._cache):
            self.forget()
            return False
        del self.tokens[len(self.tokens) - count :]
        return True

    def read_prompt(self, prompt: Sequence[int], watch: Watch) -> Any:
        """Read the rest of a prompt after `rewind`; return the logits of the next token."""
        rest = prompt[len(self.tokens) :]
        if not self._shortenable and len(rest) > 1:
            self.read(rest[:-1], watch)
            rest = rest[-1:]
            # Saved before the last token, since every prompt must have one token to read.
            self._saved = list(self.tokens), copy.deepcopy(self._cache)
        return self.read(rest, watch)

    def read(self, tokens: Sequence[int], watch: Watch) -> Any:
        """Read more tokens, one at least; return the logits of the next token."""
        mx = arrays()
        start = 0
        while len(tokens) - start > SHORT:
            piece = tokens[start : min(start + STEP, len(tokens) - 1)]
            self.run_model(mx.array(piece))
            # Evaluated piece by piece: a lazy graph of the whole prompt would need memory for all
            # of it.
            mx.eval([layer.state for layer in self._cache])
            mx.clear_cache()
            self.tokens += piece
            start += len(piece)
            watch()
        logits = self.run_model(mx.array(tokens[start:]))
        mx.eval(logits)
        self.tokens += tokens[start:]
        return logits

    def run_model(self, tokens: Any) -> Any:
        """Run the model over an array of tokens.

        Return the logits after the last, not computed yet.

        The caller adds the tokens to `tokens`.
        """
        self.passes += 1
        return self._model(tokens[None], cache=self._cache)[0, -1, :]

    def _restore(self, prompt: Sequence[int]) -> None:
        saved = self._saved
        self.forget()
        if saved is not None and shared_length(saved[0], prompt[:-1]) == len(saved[0]):
            # A copy, since the saved state must survive this completion.
            self.tokens, self._cache = list(saved[0]), copy.deepcopy(saved[1])
            self._saved = saved


# --- from tokens to text: nothing stripped, no character before it is whole -------------------

CONTEXT: Final = 8
"""Tokens before the text that a tokenizer without a table of bytes needs to decode it right."""

_Decoder: Final = getincrementaldecoder("utf-8")


class TokenTexts:
    """The texts of the tokens of one tokenizer (as mlx-lm loads it)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes = _token_bytes(tokenizer.detokenizer)

    def text(self, token: int) -> str:
        """Return a token's own text, with U+FFFD for bytes that are no whole character."""
        if self._bytes is None:
            return str(self._tokenizer.decode([token]))
        return self._token_bytes(token).decode("utf-8", "replace")

    def data(self, token: int) -> bytes | None:
        """Return a token's bytes; None if the tokenizer does not say them."""
        if self._bytes is not None:
            return self._token_bytes(token)
        text = self.text(token)
        return None if "\ufffd" in text else text.encode()

    def stream(self, context_tokens: Sequence[int]) -> TextStream:
        """Return a stream of the text that follows some tokens."""
        return TextStream(self, () if self._bytes is not None else context_tokens[-CONTEXT:])

    def decode_all(self, tokens: Sequence[int]) -> str | None:
        """Return the text of tokens by a tokenizer that only decodes.

        None for one with a table.
        """
        return None if self._bytes is not None else str(self._tokenizer.decode(tokens))

    def _token_bytes(self, token: int) -> bytes:
        table = self._bytes or ()
        return table[token] if token < len(table) else b""  # a model may have more tokens


def _token_bytes(detokenizer: Any) -> Sequence[bytes] | None:
    """Return the bytes of every token, None if mlx-lm found no table of them."""
    kinds = {kind.__name__ for kind in type(detokenizer).__mro__}
    if "SPMStreamingDetokenizer" in kinds:
        return [piece.replace("\u2581".encode(), b" ") for piece in detokenizer.tokenmap]
    if "BPEStreamingDetokenizer" in kinds:
        return [decode_spelling(piece or "") for piece in detokenizer.tokenmap]
    return None


class TextStream:
    """Text as its tokens come.

    If the tokenizer only decodes, it is the text that a token adds to the text of those before it.
    """

    def __init__(self, texts: TokenTexts, context_tokens: Sequence[int]) -> None:
        self._texts = texts
        self._decoder = _Decoder("replace")
        self._tokens = list(context_tokens)
        self._start, self._read = 0, len(self._tokens)

    def add(self, token: int) -> str:
        """Return the text that a token adds; empty until its last character is whole."""
        self._tokens.append(token)
        return self._decode_new(final=False)

    def finish(self) -> str:
        """Return the text that was held back."""
        return self._decode_new(final=True)

    def _decode_new(self, *, final: bool) -> str:
        whole = self._texts.decode_all(self._tokens[self._start :])
        if whole is None:
            new, self._tokens = self._tokens, []
            data = b"".join((self._texts.data(token) or b"") for token in new)
            return self._decoder.decode(data, final)
        known = self._texts.decode_all(self._tokens[self._start : self._read]) or ""
        if len(whole) <= len(known) or (whole.endswith("\ufffd") and not final):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return whole[len(known) :]
