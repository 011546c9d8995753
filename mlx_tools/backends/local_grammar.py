"""A completion held to a grammar: which tokens may come next, and which must.

llguidance keeps the grammar's state; what it takes and gives here are tokens and bytes. Text that
the grammar leaves no choice about comes as the model itself would split it into tokens, and a token
may span the end of the prompt and the beginning of the text (token healing).
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from mlx_tools.errors import BackendBroken, UsageError
from mlx_tools.process import clean

KEPT: Final = 16
"""Compiled grammars that are kept; a session needs one or two a turn."""

_MOST_WAYS: Final = 100_000
"""How many ways on there may be at one place: every tool's name is one."""

_Decoder: Final = getincrementaldecoder("utf-8")


class Grammars:
    """The grammars of one model, each compiled once. ``tokenizer`` is as mlx-lm loads it.

    Raises:
        UsageError: the tokenizer has no form that it can read.
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
        self._limits = LLParserLimits(max_items_in_row=_MOST_WAYS)
        self._compiled: OrderedDict[tuple[str, bool, bool], Any] = OrderedDict()

    def start(
        self, lark: str, prompt: Sequence[int], *, fast_forward: bool = True, take_back: bool = True
    ) -> GrammarRun:
        """A completion of ``prompt``, one token at least, by the grammar.

        ``fast_forward`` gives the tokens that must follow along with the one that was chosen, and
        heals the end of the prompt; without it every token is chosen.
        ``take_back`` allows it to take tokens back that, with the text that must follow, are fewer
        tokens.

        Raises:
            UsageError: llguidance cannot read the grammar.
        """
        key = (lark, fast_forward, take_back)
        if key not in self._compiled:
            try:
                self._compiled[key] = self._compile(
                    self._tokenizer,
                    lark,
                    enable_backtrack=take_back and fast_forward,
                    enable_ff_tokens=fast_forward,
                    log_level=0,
                    limits=self._limits,
                )
            except Exception as error:
                raise UsageError(f"the grammar cannot be used: {clean(str(error))}") from error
        self._compiled.move_to_end(key)
        while len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)
        return GrammarRun(self._tokenizer, self._compiled[key], prompt, heal=fast_forward)


class GrammarRun:
    """One completion. ``tokens`` are the prompt's as the model should read them, which may end
    before the prompt does, or go on to what must follow; then those that came."""

    def __init__(
        self, tokenizer: Any, compiled: Any, prompt: Sequence[int], *, heal: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._interpreter = compiled.deep_copy()
        self._decoder = _Decoder("replace")
        self.tokens: list[int] = list(prompt)
        if heal:
            self.tokens = self._interpreter.process_prompt(list(prompt))
        common = shared(prompt, self.tokens)
        before, now = self._bytes(prompt[common:]), self._bytes(self.tokens[common:])
        matches = before.startswith(now) or now.startswith(before)
        if heal and not matches:  # the tokenizer does not read its own text as it wrote it
            self._interpreter = compiled.deep_copy()
            self.tokens, common, before, now = list(prompt), len(prompt), b"", b""
        if not (heal and matches):
            self._interpreter.start_without_prompt()
        self._given = len(before)
        self._written = bytearray(now)
        self._sizes = [len(self._bytes([token])) for token in self.tokens[common:]]

    def mask(self) -> bytes | None:
        """One byte a token, 0 for those that may not come next; None where nothing may.

        Raises:
            BackendBroken: the grammar ran into a limit of llguidance's.
        """
        while True:
            mask, said = self._interpreter.compute_mask()
            if json.loads(said)["stop"]:
                self._check_end()
                return None
            if mask is not None:
                return bytes(mask)
            self._commit(None)

    def take(self, token: int) -> tuple[int, list[int]]:
        """The model has chosen a token: how many of those before it are taken back, and the tokens
        that follow them, the chosen one first unless something was taken back."""
        return self._commit(token)

    @property
    def ended(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._interpreter.has_pending_stop())

    def text(self, without: int = 0) -> str:
        """The text that has come since this was asked last, as far as its characters are whole, but
        for that of the last ``without`` tokens."""
        end = len(self._written) - sum(self._sizes[len(self._sizes) - without :])
        piece = bytes(self._written[self._given : end])
        self._given = max(self._given, end)
        return self._decoder.decode(piece)

    def rest(self, without: int = 0) -> str:
        """What is left of the text at its end."""
        return self.text(without) + self._decoder.decode(b"", final=True)

    def _commit(self, token: int | None) -> tuple[int, list[int]]:
        back, tokens = self._interpreter.commit_token(token)
        if back:
            del self.tokens[-back:]
            size = sum(self._sizes[-back:])
            del self._sizes[-back:]
            del self._written[len(self._written) - size :]
        for one in tokens:
            piece = self._bytes([one])
            self.tokens.append(one)
            self._sizes.append(len(piece))
            self._written += piece
        return back, list(tokens)

    def _check_end(self) -> None:
        reason = str(self._interpreter.stop_reason())
        if reason not in ("NotStopped", "NoExtension", "NoExtensionBias", "EndOfSentence"):
            raise BackendBroken(
                f"the grammar could not be followed: {reason}",
                hint="its tools may have too many alternatives: offer fewer",
            )

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return bytes(self._tokenizer.decode_bytes(list(tokens)))


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    for number, (mine, yours) in enumerate(zip(one, other, strict=False)):
        if mine != yours:
            return number
    return min(len(one), len(other))
