"""What a model has read: its key-value cache, and the tokens that it stands for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

from mlx_tools.backends.local_grammar import shared
from mlx_tools.backends.local_load import arrays

STEP: Final = 512
"""Tokens of a prompt that are read in one forward pass; between two a request can be cancelled."""

SHORT: Final = 64
"""Tokens that are read in one pass to the end, logits for each of them included."""

_SHORTENABLE: Final = frozenset(("KVCache", "QuantizedKVCache", "ConcatenateKVCache"))
"""mlx-lm's caches that can be cut back from wherever they stand."""

Watch = Callable[[], None]
"""Called between forward passes; raises `NobodyWaits` where that is so."""


class NobodyWaits(Exception):
    """The request was cancelled."""


class CachedPrefix:
    """One model's state after ``tokens``. ``passes`` counts forward passes.

    A cache that cannot be shortened (a sliding window, a state-space model) is copied at the end of
    each prompt: it can go on from there, and where it stands.
    """

    def __init__(self, model: Any) -> None:
        self.passes = 0
        self.tokens: list[int] = []
        self._model = model
        self._cache: list[Any] = []
        self._saved: tuple[list[int], list[Any]] | None = None
        self.forget()

    @property
    def can_shorten(self) -> bool:
        """Whether tokens can be taken back."""
        return all(layer.is_trimmable() for layer in self._cache)

    def forget(self) -> None:
        """Begin anew."""
        from mlx_lm.models.cache import make_prompt_cache

        self.tokens = []
        self._saved = None
        self._cache = make_prompt_cache(self._model)
        self._shortenable = {type(layer).__name__ for layer in self._cache} <= _SHORTENABLE

    def turn_to(self, prompt: Sequence[int]) -> int:
        """Go back to where ``prompt`` begins to differ, and at least to before its last token.

        Returns how many of the prompt's tokens need not be read again.
        """
        common = shared(self.tokens, prompt[:-1])
        if common < len(self.tokens) and not self.take_back(len(self.tokens) - common):
            self._restore(prompt)
        return len(self.tokens)

    def take_back(self, count: int) -> bool:
        """Unread the last tokens; False, and nothing done, where that is not possible."""
        if not self.can_shorten:
            return False
        if count and any(layer.trim(count) != count for layer in self._cache):
            self.forget()
            return False
        del self.tokens[len(self.tokens) - count :]
        return True

    def read_prompt(self, prompt: Sequence[int], watch: Watch) -> Any:
        """Read what is left of a prompt after `turn_to`; gives the logits for what follows it."""
        left = prompt[len(self.tokens) :]
        if not self._shortenable and len(left) > 1:
            self.read(left[:-1], watch)
            left = left[-1:]
            self._saved = list(self.tokens), copy.deepcopy(self._cache)
        return self.read(left, watch)

    def read(self, tokens: Sequence[int], watch: Watch) -> Any:
        """Read more tokens, one at least; gives the logits for the one that follows."""
        mx = arrays()

        start = 0
        while len(tokens) - start > SHORT:
            piece = tokens[start : min(start + STEP, len(tokens) - 1)]
            self.go_on(mx.array(piece))
            mx.eval([layer.state for layer in self._cache])
            mx.clear_cache()
            self.tokens += piece
            start += len(piece)
            watch()
        logits = self.go_on(mx.array(tokens[start:]))
        mx.eval(logits)
        self.tokens += tokens[start:]
        return logits

    def go_on(self, tokens: Any) -> Any:
        """One forward pass over an array of tokens, not computed yet: the logits after the last.

        To add them to `tokens` is left to the caller.
        """
        self.passes += 1
        return self._model(tokens[None], cache=self._cache)[0, -1, :]

    def _restore(self, prompt: Sequence[int]) -> None:
        saved = self._saved
        self.forget()
        if saved is not None and shared(saved[0], prompt[:-1]) == len(saved[0]):
            self.tokens, self._cache = list(saved[0]), copy.deepcopy(saved[1])
            self._saved = saved
