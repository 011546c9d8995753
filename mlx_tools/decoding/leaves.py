"""Fills the holes that have no parts: words, numbers, strings, free values."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mlx_tools.decoding.arguments import About
from mlx_tools.decoding.asker import Asker, Unfilled
from mlx_tools.decoding.choice import AHEAD, Option, choose, likelihood_of
from mlx_tools.decoding.evidence import Plan, RequestEvidence
from mlx_tools.decoding.features import Beside
from mlx_tools.decoding.holes import FreeHole, NumberHole, StringHole
from mlx_tools.decoding.offers import Wanted, dump
from mlx_tools.decoding.outline import Fits
from mlx_tools.decoding.pen import Pen
from mlx_tools.decoding.shape import Choices, Number, Schema, Text

NUMBER_TOKENS: Final = 32
FREE_TOKENS: Final = 256


class Hole(Protocol):
    """What takes the pieces of a model's text: see `mlx_tools.decoding.holes`."""

    done: bool
    rest: str

    def feed(self, piece: str, /) -> object: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hole is: the argument, what it stands beside, what those are to have, what its own
    members are to have where that is settled, and whether it is an item of an array."""

    about: About = field(default_factory=About)
    beside: Beside = field(default_factory=Beside)
    plan: Plan = field(default_factory=dict)
    own: Plan | None = None
    in_array: bool = False


class Leaves:
    """Fills leaves with a pen. Every method appends a value and gives it, or raises `Unfilled`.

    ``attempt`` is 0 at first; a later one draws the model's text at random.
    """

    def __init__(self, asker: Asker, pen: Pen, fits: Fits, evidence: RequestEvidence) -> None:
        self._asker = asker
        self._pen = pen
        self._fits = fits
        self._evidence = evidence

    async def choice(self, shape: Choices, schema: Schema, place: Place) -> Any:
        """One of the allowed values."""
        values = [value for value in shape.values if self._fits(value, schema)]
        if not values:
            raise Unfilled("no allowed value fits the schema")
        texts = [dump(value) for value in values]
        number = 0
        if len(set(texts)) > 1:
            quote = '"' if all(text.startswith('"') for text in texts) else ""
            biases = self._evidence.allowed(values, place.about, place.plan)
            options = [
                Option(text.removeprefix(quote), bias)
                for text, bias in zip(texts, biases, strict=True)
            ]
            number = await choose(self._asker, self._pen.text + quote, options)
        self._pen.host(texts[number])
        planned = place.plan.get(place.about.name)
        if planned is not None and planned.candidate.value == values[number]:
            self._evidence.use(place.about.name, planned.candidate)
        return values[number]

    async def string(self, shape: Text, one: Wanted, place: Place, attempt: int) -> str:
        """A string: what the request says, or what the model writes up to its closing quote."""
        said = await self._said(one, place, attempt)
        if said is not None:
            return str(said)
        value = await self.written_string(shape, attempt)
        self._evidence.use_text(place.about.name, "text", value)
        return value

    async def written_string(self, shape: Text, attempt: int) -> str:
        """A string as the model writes it."""
        self._pen.hole('"')
        hole = StringHole(shape.most)
        if not hole.done:
            await self._read(hole, self._asker.left, attempt)
            if not hole.done:
                hole.finish()
                if self._asker.finish != "stop" or not hole.text:
                    raise Unfilled("a string was not closed")
        value, text = hole.value, hole.text
        if shape.most is None and (whole := self._evidence.whole(value)) != value:
            value, text = whole, dump(whole)[1:-1]
        self._pen.hole(text + '"', hole.rest)
        return value

    async def number(self, shape: Number, one: Wanted, place: Place, attempt: int) -> int | float:
        """A number: one that the request says, or the longest that the model writes."""
        said = await self._said(one, place, attempt)
        if isinstance(said, int | float):
            return said
        hole = NumberHole(whole=shape.whole, grouped=not place.in_array)
        await self._read(hole, NUMBER_TOKENS, attempt)
        hole.finish()
        if hole.literal is None:
            raise Unfilled("no number was given")
        self._pen.hole(hole.literal, hole.rest)
        self._evidence.use_text(place.about.name, "number", hole.literal)
        value: int | float = json.loads(hole.literal)
        return value

    async def free(self, attempt: int) -> Any:
        """Any JSON value, as far as its matching bracket."""
        hole = FreeHole()
        await self._read(hole, FREE_TOKENS, attempt)
        hole.finish()
        found = hole.value()
        if found is None:
            raise Unfilled("no JSON value was given")
        self._pen.hole(dump(found[0]), hole.rest)
        return found[0]

    def listed(self, one: Wanted, place: Place) -> list[Any] | None:
        """A list that the request says, where it says one that fits; else None."""
        ranked = self._evidence.ranked(one, place.beside, place.plan)
        if not ranked or ranked[0][1] <= 0:
            return None
        best = ranked[0][0]
        self._pen.host(dump(best.value))
        self._evidence.use(place.about.name, best)
        return list(best.value)

    async def _said(self, one: Wanted, place: Place, attempt: int) -> str | int | float | None:
        """A value that the request says and the model finds as good as one of its own; None where
        there is none."""
        if attempt:
            return None
        ranked = self._evidence.ranked(one, place.beside, place.plan)[:_OFFERED]
        if not ranked:
            return None
        chosen = ranked[0][0]
        if not self._evidence.is_sure([odds for _, odds in ranked]):
            # The quote belongs to the fixed text: a tokenizer joins it to the colon before it.
            quote = '"' if one.kind == "text" else ""
            before = self._pen.text + quote
            ways = await self._asker.scores(before, AHEAD)
            options = [
                Option(dump(candidate.value).removeprefix(quote), self._evidence.bias(odds))
                for candidate, odds in ranked
            ]
            if ways:
                best = max(likelihood_of(option.text, ways[0]) + option.bias for option in options)
                if best < ways[0][0].logprob:
                    return None
                chosen = ranked[await choose(self._asker, before, options, ways)][0]
            elif ranked[0][1] <= 0:
                return None
        self._pen.hole(dump(chosen.value))
        self._evidence.use(place.about.name, chosen)
        value: str | int | float = chosen.value
        return value

    async def _read(self, hole: Hole, most: int, attempt: int) -> None:
        """Reads what the model writes into a hole, and one piece more where that ends exactly at
        its end: what follows tells how the model would go on."""
        async with aclosing(self._asker.read(self._pen.text, most, attempt)) as pieces:
            async for piece in pieces:
                hole.feed(piece)
                if hole.done and hole.rest:
                    return


_OFFERED: Final = 16
"""So many of what the request says are offered to the model for one hole."""
