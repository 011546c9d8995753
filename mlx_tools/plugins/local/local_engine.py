"""One model in memory: takes prompts, and generates chunks of text token by token.

All of it runs in one thread.
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
"""Compiled grammars in the cache. A session needs one or two for each turn."""

_MAX_ALTERNATIVES: Final = 100_000
"""Alternatives of a grammar at one position. A choice: each tool's name is one alternative."""

_COMPLETE_REASONS: Final = ("NotStopped", "NoExtension", "NoExtensionBias", "EndOfSentence")
"""llguidance's stop reasons for a text that follows the grammar to its end."""


class Grammars:
    """A cache of the compiled grammars of one model.

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
        self, lark: str, prompt: Sequence[int], *, fast_forward: bool, backtrack: bool
    ) -> GrammarCompletion:
        """Start a completion of a prompt by a grammar.

        Args:
            lark: the grammar, in the Lark dialect.
            prompt: the prompt's tokens, at least one.
            fast_forward: add tokens without asking the model if the grammar allows no others, and
                replace the prompt's last tokens if the whole text would have other tokens there
                (token healing). False: the model chooses every token.
            backtrack: allow llguidance to replace tokens at the end by fewer ones that also hold
                text that must follow. Only with ``fast_forward``.

        Raises:
            UsageError: llguidance cannot read the grammar.
        """
        key = (lark, fast_forward, backtrack)
        if key not in self._matchers:
            try:
                self._matchers[key] = self._compile(
                    self._tokenizer,
                    lark,
                    enable_backtrack=backtrack and fast_forward,
                    enable_ff_tokens=fast_forward,
                    log_level=0,
                    limits=self._limits,
                )
            except Exception as error:
                raise UsageError(f"the grammar cannot be used: {clean(str(error))}") from error
        # The least recently used grammar is removed first.
        self._matchers.move_to_end(key)
        while len(self._matchers) > MAX_GRAMMARS:
            self._matchers.popitem(last=False)
        return GrammarCompletion(self._tokenizer, self._matchers[key], prompt, heal=fast_forward)


class GrammarCompletion:
    """The tokens and the text of one completion that follows a grammar."""

    def __init__(self, tokenizer: Any, matcher: Any, prompt: Sequence[int], *, heal: bool) -> None:
        self._tokenizer = tokenizer
        self._interpreter = matcher.deep_copy()
        self._decoder = _Decoder("replace")
        self.tokens: list[int] = list(prompt)
        """The prompt's tokens as the model should read them, then the completion's.

        At first they may end before the prompt's end, or have text that must follow the prompt.
        """
        if heal:
            self.tokens = self._interpreter.process_prompt(list(prompt))
        common = count_common(prompt, self.tokens)
        prompt_bytes = self._decode(prompt[common:])
        healed_bytes = self._decode(self.tokens[common:])
        matches = prompt_bytes.startswith(healed_bytes) or healed_bytes.startswith(prompt_bytes)
        # Healing fails if the tokenizer makes other tokens of the text that it decodes.
        if heal and not matches:
            self._interpreter = matcher.deep_copy()
            self.tokens, common, prompt_bytes, healed_bytes = list(prompt), len(prompt), b"", b""
        if not (heal and matches):
            self._interpreter.start_without_prompt()
        self._emitted = len(prompt_bytes)
        self._written_text = bytearray(healed_bytes)
        self._sizes = [len(self._decode([token])) for token in self.tokens[common:]]

    def compute_mask(self) -> bytes | None:
        """Return a byte for each token, 0 if it may not come next.

        None if the grammar is at its end.

        Raises:
            BackendBroken: the grammar reached a limit of llguidance.
        """
        while True:
            mask, state = self._interpreter.compute_mask()
            if json.loads(state)["stop"]:
                reason = str(self._interpreter.stop_reason())
                if reason not in _COMPLETE_REASONS:
                    raise BackendBroken(
                        f"the grammar could not be followed: {reason}",
                        hint="its tools may have too many alternatives: offer fewer",
                    )
                return None
            if mask is not None:
                return bytes(mask)
            self.commit(None)

    def commit(self, token: int | None) -> tuple[int, list[int]]:
        """Add the model's token, and the tokens that must follow it.

        Args:
            token: the token; None adds only tokens that must follow.

        Returns:
            The number of tokens that were removed at the end, and the tokens that were then added.
        """
        removed, tokens = self._interpreter.commit_token(token)
        if removed:
            del self.tokens[-removed:]
            size = sum(self._sizes[-removed:])
            del self._sizes[-removed:]
            del self._written_text[len(self._written_text) - size :]
        for new_token in tokens:
            piece = self._decode([new_token])
            self.tokens.append(new_token)
            self._sizes.append(len(piece))
            self._written_text += piece
        return removed, list(tokens)

    @property
    def is_finished(self) -> bool:
        """True if no token may follow."""
        return bool(self._interpreter.has_pending_stop())

    def read_new_text(self, dropped_tokens: int = 0) -> str:
        """Return the text since the last call, up to its last whole character.

        Args:
            dropped_tokens: the number of tokens at the end whose text is left out.
        """
        end = len(self._written_text) - sum(self._sizes[len(self._sizes) - dropped_tokens :])
        piece = bytes(self._written_text[self._emitted : end])
        self._emitted = max(self._emitted, end)
        return self._decoder.decode(piece)

    def read_last_text(self, dropped_tokens: int = 0) -> str:
        """Return the rest of the text, with U+FFFD for an incomplete character at its end."""
        return self.read_new_text(dropped_tokens) + self._decoder.decode(b"", final=True)

    def _decode(self, tokens: Sequence[int]) -> bytes:
        return bytes(self._tokenizer.decode_bytes(list(tokens)))


def count_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of equal tokens at the beginning of two sequences."""
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return index
    return min(len(first), len(second))


MIN_TEMPERATURE: Final = 1e-4
"""Below it the likeliest token is used, as at 0, because it has nearly all of the probability."""

Scores = tuple[tuple[TokenScore, ...], ...]


class Engine:
    """A loaded model.

    Args:
        folder: the model's folder.
        fast_forward: add tokens without asking the model if a grammar allows no others.

    Raises:
        MissingDependency: mlx-lm is not installed.
        ModelError: the model cannot be loaded.
    """

    def __init__(self, folder: Path, *, fast_forward: bool = True) -> None:
        model, self.tokenizer = load_model(folder)
        self.texts = TokenTexts(self.tokenizer)
        self._end_tokens: frozenset[int] = frozenset(self.tokenizer.eos_token_ids)
        self._cached_prefix = CachedPrefix(model)
        self._grammars: Grammars | None = None
        self._fast_forward = fast_forward

    @property
    def passes(self) -> int:
        """The number of forward passes so far."""
        return self._cached_prefix.passes

    def clear_cache(self) -> None:
        """Empty the key-value cache, so that the next prompt is read from its beginning."""
        self._cached_prefix.clear()

    def complete(
        self, request: CompletionRequest, on_progress: ProgressCallback
    ) -> Generator[Chunk, None, None]:
        """Complete a prompt; close the generator to cancel.

        Args:
            request: the request.
            on_progress: called between two forward passes.

        Raises:
            UsageError: the prompt or the grammar cannot be used.
            BackendBroken: the grammar reached a limit.
        """
        prompt = list(self.tokenizer.encode(check_request(request)))
        if not prompt:
            raise UsageError("the prompt has no token for this model", hint="write a longer prompt")
        sampler = _TokenSampler(request)
        if request.grammar is None:
            chunks = self._complete_freely(prompt, request, sampler, on_progress)
        else:
            self._grammars = self._grammars or Grammars(self.tokenizer)
            completion = self._grammars.start(
                request.grammar.lark,
                prompt,
                fast_forward=self._fast_forward,
                backtrack=self._cached_prefix.can_trim,
            )
            chunks = self._complete_constrained(
                completion, len(prompt), request, sampler, on_progress
            )
        try:
            yield from chunks
        except (GeneratorExit, RequestCancelled):
            raise
        except BaseException:
            self.clear_cache()  # after an error its content is unknown
            raise
        finally:
            # MLX keeps free buffers by size, and the next prompt needs other sizes.
            import_mlx().clear_cache()

    # --- without a grammar --------------------------------------------------------------------

    def _complete_freely(
        self,
        prompt: list[int],
        request: CompletionRequest,
        sampler: _TokenSampler,
        on_progress: ProgressCallback,
    ) -> Iterator[Chunk]:
        mx = import_mlx()
        cached_count = self._cached_prefix.rewind(prompt)
        logits = self._cached_prefix.read_prompt(prompt, on_progress)
        stream = self.texts.start_stream(prompt)
        finish_reason: FinishReason = "length"
        count = 0
        lazy_token = sampler.sample(logits)
        mx.async_eval(lazy_token)
        while count < request.max_tokens:
            on_progress()
            is_last = count + 1 == request.max_tokens
            if not is_last:
                # The next forward pass runs on the GPU while Python handles this token.
                next_logits = self._cached_prefix.run_model(lazy_token[None])
                next_token = sampler.sample(next_logits)
                mx.async_eval(next_token)
            token = int(lazy_token.item())
            if not is_last:
                self._cached_prefix.tokens.append(token)
            count += 1
            if token in self._end_tokens:
                finish_reason = "stop"
                break
            scores = self._score_tokens(logits, request.top_logprobs)
            text = stream.add(token)
            if text or scores:
                yield Chunk(text, scores=scores)
            if not is_last:
                lazy_token, logits = next_token, next_logits
        yield Chunk(stream.finish(), finish_reason, Usage(len(prompt), cached_count, count))

    # --- with a grammar -----------------------------------------------------------------------

    def _complete_constrained(
        self,
        completion: GrammarCompletion,
        prompt_size: int,
        request: CompletionRequest,
        sampler: _TokenSampler,
        on_progress: ProgressCallback,
    ) -> Iterator[Chunk]:
        cached_count = min(self._cached_prefix.rewind(completion.tokens), prompt_size)
        logits = self._cached_prefix.read_prompt(completion.tokens, on_progress)
        has_scores, max_tokens = request.top_logprobs > 0, request.max_tokens
        count = max(0, len(completion.tokens) - prompt_size)
        finish_reason: FinishReason | None = "length" if count >= max_tokens else None
        # Tokens that must follow come together, so there may be more than were asked for.
        surplus = max(0, count - max_tokens)
        if text := completion.read_new_text(surplus):
            yield Chunk(text, scores=((),) * (count - surplus) if has_scores else ())
        while finish_reason is None:
            on_progress()
            mask = completion.compute_mask()
            token = None if mask is None else int(sampler.sample(logits, mask).item())
            if token is None or token in self._end_tokens:
                count, finish_reason = count + (token is not None), "stop"
                break
            removed, tokens = completion.commit(token)
            if removed:
                self._cached_prefix.trim(removed)
            count += len(tokens) - removed
            surplus = max(0, count - max_tokens)
            if completion.is_finished and not surplus:
                finish_reason = "stop"
            elif count >= max_tokens:
                finish_reason = "length"
            scores = self._score_tokens(logits, request.top_logprobs)
            scores += ((),) * (len(tokens) - surplus - 1) if has_scores else ()
            text = completion.read_new_text(surplus)
            if text or scores:
                yield Chunk(text, scores=scores)
            if finish_reason is None:
                logits = self._cached_prefix.read(tokens, on_progress)
        usage = Usage(prompt_size, cached_count, count - surplus)
        yield Chunk(completion.read_last_text(surplus), finish_reason, usage)

    def _score_tokens(self, logits: Any, top_logprobs: int) -> Scores:
        """Return the likeliest tokens, with scores without the grammar's mask."""
        if top_logprobs < 1:
            return ()
        mx = import_mlx()
        floats = logits.astype(mx.float32)
        logprobs = floats - mx.logsumexp(floats)
        top_logprobs = min(top_logprobs, logprobs.shape[0])
        best = mx.argpartition(-logprobs, kth=top_logprobs - 1)[:top_logprobs]
        pairs = zip(best.tolist(), logprobs[best].tolist(), strict=True)
        pairs_by_score = sorted(pairs, key=lambda pair: -pair[1])
        scores = [
            TokenScore(self.texts.decode_token(token), score, data, token)
            for token, score in pairs_by_score
            if (data := self.texts.find_bytes(token)) is not None
        ]
        # Without the likeliest token the others would look like the likeliest.
        return (tuple(scores) if scores and scores[0].id == pairs_by_score[0][0] else (),)


class _TokenSampler:
    """Chooses the next token: the likeliest, or a random one by the request's seed."""

    def __init__(self, request: CompletionRequest) -> None:
        self._temperature = request.temperature
        self._bias = request.logit_bias
        self._key: Any = None
        if request.temperature >= MIN_TEMPERATURE:
            mx = import_mlx()
            seed = secrets.randbelow(2**63) if request.seed is None else request.seed
            self._key = mx.random.key(seed)

    def sample(self, logits: Any, mask: bytes | None = None) -> Any:
        """Return the next token as a lazy array.

        Args:
            logits: the model's logits.
            mask: a byte for each token, 0 if it may not come next.
        """
        mx = import_mlx()
        size = logits.shape[0]
        if mask is not None:
            # A model may have more logits than its tokenizer has tokens.
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


def import_mlx() -> Any:
    """Return the module ``mlx.core``, untyped: its types differ between versions."""
    import mlx.core

    return mlx.core


def load_model(folder: Path) -> tuple[Any, Any]:
    """Load the model and the tokenizer in ``folder`` with mlx-lm.

    Raises:
        MissingDependency: mlx-lm is not installed.
        ModelError: the model cannot be loaded.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} holds no model", hint="mlx-tools models list shows the models here"
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
        raise ModelError(
            f"the model in {folder} does not fit into memory", hint="use a smaller model"
        ) from None
    except Exception as error:  # libraries raise any exception for a file that they cannot read
        raise ModelError(
            f"the model in {folder} cannot be loaded: {clean(str(error)) or type(error).__name__}"
        ) from error
    return loaded[0], loaded[1]


# --- the key-value cache ----------------------------------------------------------------------

MAX_PASS_TOKENS: Final = 512
"""Tokens of a prompt in one forward pass. A choice: a request can be cancelled between two passes.
"""

MAX_LAST_PASS_TOKENS: Final = 64
"""Tokens of a prompt in the last forward pass, which computes logits for each of them."""

_ALWAYS_TRIMMABLE: Final = frozenset(("KVCache", "QuantizedKVCache", "ConcatenateKVCache"))
"""mlx-lm's caches that can be trimmed at any length."""

ProgressCallback = Callable[[], None]
"""Called between two forward passes. Raises `RequestCancelled` to end the completion."""


class CachedPrefix:
    """The tokens that a model has read, and its key-value cache after them.

    Some caches cannot be trimmed (a sliding window, a state-space model). These are copied at the
    end of each prompt. So the next prompt can continue from there, or from the end of the
    completion.
    """

    def __init__(self, model: Any) -> None:
        self.passes = 0
        """The number of forward passes."""
        self.tokens: list[int] = []
        self._model = model
        self._cache: list[Any] = []
        self._saved: tuple[list[int], list[Any]] | None = None
        """The tokens and the cache at the end of the last prompt, if it cannot be trimmed."""
        self.clear()

    @property
    def can_trim(self) -> bool:
        """True if tokens at the end can be removed now."""
        return all(layer.is_trimmable() for layer in self._cache)

    def clear(self) -> None:
        """Empty the cache."""
        from mlx_lm.models.cache import make_prompt_cache

        self.tokens = []
        self._saved = None
        self._cache = make_prompt_cache(self._model)
        types = {type(layer).__name__ for layer in self._cache}
        self._is_always_trimmable = types <= _ALWAYS_TRIMMABLE

    def rewind(self, prompt: Sequence[int]) -> int:
        """Remove the tokens from the first one that differs from ``prompt``.

        The prompt's last token is never cached, because it must be read for the next logits.

        Returns:
            The number of the prompt's tokens that are cached.
        """
        common = count_common(self.tokens, prompt[:-1])
        if common < len(self.tokens) and not self.trim(len(self.tokens) - common):
            self._restore(prompt)
        return len(self.tokens)

    def trim(self, count: int) -> bool:
        """Remove the last ``count`` tokens; return False if this cache cannot be trimmed."""
        if not self.can_trim:
            return False
        if count and any(layer.trim(count) != count for layer in self._cache):
            self.clear()
            return False
        del self.tokens[len(self.tokens) - count :]
        return True

    def read_prompt(self, prompt: Sequence[int], on_progress: ProgressCallback) -> Any:
        """Read the rest of a prompt after `rewind`; return the logits of the next token."""
        rest = prompt[len(self.tokens) :]
        if not self._is_always_trimmable and len(rest) > 1:
            self.read(rest[:-1], on_progress)
            rest = rest[-1:]
            # Saved before the last token, which `rewind` never counts as cached.
            self._saved = list(self.tokens), copy.deepcopy(self._cache)
        return self.read(rest, on_progress)

    def read(self, tokens: Sequence[int], on_progress: ProgressCallback) -> Any:
        """Read one or more tokens; return the logits of the next token."""
        mx = import_mlx()
        start = 0
        while len(tokens) - start > MAX_LAST_PASS_TOKENS:
            piece = tokens[start : min(start + MAX_PASS_TOKENS, len(tokens) - 1)]
            self.run_model(mx.array(piece))
            # Evaluated after each piece: a lazy graph of the whole prompt would need memory for
            # all of it.
            mx.eval([layer.state for layer in self._cache])
            mx.clear_cache()
            self.tokens += piece
            start += len(piece)
            on_progress()
        logits = self.run_model(mx.array(tokens[start:]))
        mx.eval(logits)
        self.tokens += tokens[start:]
        return logits

    def run_model(self, tokens: Any) -> Any:
        """Run one forward pass; return the lazy logits after the last token.

        The caller adds the tokens to `tokens`.
        """
        self.passes += 1
        return self._model(tokens[None], cache=self._cache)[0, -1, :]

    def _restore(self, prompt: Sequence[int]) -> None:
        """Go back to the end of the last prompt if ``prompt`` begins with it; else clear."""
        saved = self._saved
        self.clear()
        if saved is not None and count_common(saved[0], prompt[:-1]) == len(saved[0]):
            # A copy, because this completion changes the cache.
            self.tokens, self._cache = list(saved[0]), copy.deepcopy(saved[1])
            self._saved = saved


# --- from tokens to text, with all white space and only whole characters ----------------------

CONTEXT: Final = 8
"""Tokens of the prompt that are decoded together with the completion, if the bytes of tokens are
unknown. Such a tokenizer needs the tokens before a text to decode it correctly."""

_Decoder: Final = getincrementaldecoder("utf-8")


class TokenTexts:
    """The texts of the tokens of a tokenizer from mlx-lm."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._byte_table = _make_byte_table(tokenizer.detokenizer)

    def decode_token(self, token: int) -> str:
        """Return the text of one token, with U+FFFD for incomplete characters."""
        if self._byte_table is None:
            return str(self._tokenizer.decode([token]))
        return self._look_up(token).decode("utf-8", "replace")

    def find_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token, None if they are unknown."""
        if self._byte_table is not None:
            return self._look_up(token)
        text = self.decode_token(token)
        return None if "\ufffd" in text else text.encode()

    def start_stream(self, prompt: Sequence[int]) -> TextStream:
        """Return a stream of the text that follows a prompt."""
        return TextStream(self, () if self._byte_table is not None else prompt[-CONTEXT:])

    def decode_all(self, tokens: Sequence[int]) -> str | None:
        """Return the text of tokens, None if the bytes of each token are known."""
        return None if self._byte_table is not None else str(self._tokenizer.decode(tokens))

    def _look_up(self, token: int) -> bytes:
        table = self._byte_table or ()
        return table[token] if token < len(table) else b""  # a model may have more tokens


def _make_byte_table(detokenizer: Any) -> Sequence[bytes] | None:
    """Return the bytes of every token, None if the detokenizer has no such table."""
    kinds = {kind.__name__ for kind in type(detokenizer).__mro__}
    if "SPMStreamingDetokenizer" in kinds:
        return [piece.replace("\u2581".encode(), b" ") for piece in detokenizer.tokenmap]
    if "BPEStreamingDetokenizer" in kinds:
        return [decode_spelling(piece or "") for piece in detokenizer.tokenmap]
    return None


class TextStream:
    """Decodes a completion while its tokens arrive.

    If the bytes of a token are unknown, its text is what it adds to the text of the tokens before.
    """

    def __init__(self, texts: TokenTexts, context_tokens: Sequence[int]) -> None:
        self._texts = texts
        self._decoder = _Decoder("replace")
        self._tokens = list(context_tokens)
        self._start, self._read = 0, len(self._tokens)

    def add(self, token: int) -> str:
        """Return the text that a token adds, empty until its last character is whole."""
        self._tokens.append(token)
        return self._decode_new(final=False)

    def finish(self) -> str:
        """Return the rest of the text, with U+FFFD for an incomplete character."""
        return self._decode_new(final=True)

    def _decode_new(self, *, final: bool) -> str:
        whole = self._texts.decode_all(self._tokens[self._start :])
        if whole is None:
            new, self._tokens = self._tokens, []
            data = b"".join((self._texts.find_bytes(token) or b"") for token in new)
            return self._decoder.decode(data, final)
        known = self._texts.decode_all(self._tokens[self._start : self._read]) or ""
        if len(whole) <= len(known) or (whole.endswith("\ufffd") and not final):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return whole[len(known) :]
