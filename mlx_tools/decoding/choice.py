"""Chooses one of several texts to go on with: by the model's scores, or by what it writes.

The texts are walked as a trie, token by token, so that each token of the chosen text is one that
the model's own tokenizer would have written there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from mlx_tools.backends.base import TokenScore
from mlx_tools.decoding.asker import Asker

UNSEEN: Final = 1.0
"""How much less likely than the least of the alternatives a token is taken to be that is not among
them, as a natural logarithm."""

AGREEMENT: Final = 4.0
"""What it counts, as a natural logarithm, that a text which was read freely is an option's."""

AHEAD: Final = 3
"""How many tokens are asked for at once: the model's own way is often the chosen one."""

READ_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Option:
    """A text to go on with; ``bias`` is added to its logarithm of likelihood."""

    text: str
    bias: float = 0.0


Ways = Sequence[Sequence[TokenScore]]
"""The alternatives for each of the next tokens, on the model's own way: see `Asker.scores`."""


async def choose(
    asker: Asker, before: str, options: Sequence[Option], ways: Ways | None = None
) -> int:
    """Which of the options goes on best from ``before``; the first of equals.

    ``ways`` are the scores after ``before``, where they were asked for already.

    The options differ from each other. One that is a word or a number ends where no more of it
    follows, so ``1`` and ``10`` are told apart. Raises what the asker raises.
    """
    alive = list(range(len(options)))
    done = ""
    while len(alive) > 1:
        if ways is None:
            ways = await asker.scores(before + done, AHEAD)
        if not ways:
            return await _by_reading(asker, before + done, done, options, alive)
        for alternatives in ways:
            scored = [_scored(options[n].text[len(done) :], alternatives) for n in alive]
            totals = [score + options[n].bias for (score, _), n in zip(scored, alive, strict=True)]
            best = max(range(len(alive)), key=lambda i: (totals[i], -i))
            token = scored[best][1]
            if token is None:
                # The best is none of the alternatives: what the others say is all there is.
                return alive[best]
            kept = [n for (_, other), n in zip(scored, alive, strict=True) if other == token]
            if len(kept) == 1 or len(options[alive[best]].text) <= len(done) + len(token):
                return alive[best]
            alive, done = kept, done + token
            if token != alternatives[0].text:
                break
        ways = None
    return alive[0]


def _scored(rest: str, alternatives: Sequence[TokenScore]) -> tuple[float, str | None]:
    """How likely the next token is one of the text ``rest``, and which it would be."""
    mass, likeliest, best = 0.0, None, -math.inf
    for token in alternatives:
        if _goes_on(rest, token.text):
            mass += math.exp(token.logprob)
            if token.logprob > best:
                best, likeliest = token.logprob, token.text
    if likeliest is None:
        return min(token.logprob for token in alternatives) - UNSEEN, None
    return math.log(mass), likeliest


def _goes_on(rest: str, token: str) -> bool:
    """Whether a token is the beginning of ``rest``, or all of it and what may follow it."""
    if len(token) <= len(rest):
        return bool(token) and rest.startswith(token)
    return token.startswith(rest) and not (_in_word(rest[-1:]) and _in_word(token[len(rest)]))


def _in_word(char: str) -> bool:
    return char.isalnum() or char in ("", "_", ".", "-")


async def _by_reading(
    asker: Asker, before: str, done: str, options: Sequence[Option], alive: Sequence[int]
) -> int:
    """The option that most of what the model writes freely belongs to."""
    rests = [options[n].text[len(done) :] for n in alive]
    longest = max(map(len, rests))
    written = ""
    async with aclosing(asker.read(before, READ_TOKENS)) as pieces:
        async for piece in pieces:
            written += piece
            if len(written) >= longest or not any(rest.startswith(written) for rest in rests):
                break
    totals = [
        _shared(rest, written) * AGREEMENT + options[n].bias
        for rest, n in zip(rests, alive, strict=True)
    ]
    return alive[max(range(len(alive)), key=lambda i: (totals[i], -i))]


def _shared(text: str, written: str) -> float:
    """How much of ``text``, 0 to 1, ``written`` begins with; for all of it 2, and a little more the
    longer it is, since 35 begins with 3. Blanks before it are passed over."""
    written = written.lstrip(" ") if not text.startswith(" ") else written
    length = 0
    for one, other in zip(text, written, strict=False):
        if one != other:
            break
        length += 1
    return length / max(len(text), 1) if length < len(text) else 3.0 - 1 / (1 + length)


def likelihood_of(text: str, alternatives: Sequence[TokenScore]) -> float:
    """How likely the next token is one that ``text`` begins with: a natural logarithm."""
    return _scored(text, alternatives)[0]


async def likelihoods(asker: Asker, before: str, texts: Sequence[str]) -> list[float]:
    """How likely the model goes on from ``before`` with each of the texts, as far as their first
    tokens tell: natural logarithms. Raises what the asker raises."""
    ways = await asker.scores(before)
    if ways:
        return [_scored(text, ways[0])[0] for text in texts]
    written = ""
    async with aclosing(asker.read(before, READ_TOKENS)) as pieces:
        async for piece in pieces:
            written += piece
            if len(written) >= max(map(len, texts)):
                break
    return [AGREEMENT * (_shared(text, written) - 1) for text in texts]


async def liking(asker: Asker, before: str, texts: Sequence[str]) -> list[float]:
    """How much the model likes to go on from ``before`` with each of the texts, whatever is
    requested: natural logarithms, 0 for all where it cannot be asked. To be taken off its
    likelihoods, so that a model which always likes one text best still chooses (contextual
    calibration: Zhao and others, "Calibrate Before Use", 2021). Raises what the asker raises."""
    ways = await asker.scores(before, neutral=True)
    if not ways:
        return [0.0] * len(texts)
    return [_scored(text, ways[0])[0] for text in texts]
