"""Fills the holes that have no parts: words, numbers, strings, free values."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mlx_tools.decoding.asker import Asker, Unfilled
from mlx_tools.decoding.choice import AHEAD, Option, choose, likelihood_of
from mlx_tools.decoding.evidence import About, Filling, RequestEvidence
from mlx_tools.decoding.holes import FreeHole, NumberHole, StringHole
from mlx_tools.decoding.pen import Pen
from mlx_tools.decoding.shape import Choices, Number, Schema, Text

NUMBER_TOKENS: Final = 32
FREE_TOKENS: Final = 256


class Fits(Protocol):
    """Whether a value fits a schema of the tool's."""

    def __call__(self, value: Any, schema: Schema) -> bool: ...


class Hole(Protocol):
    """What takes the pieces of a model's text: see `mlx_tools.decoding.holes`."""

    done: bool
    rest: str

    def feed(self, piece: str, /) -> object: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hole is: the argument, those beside it, and whether it is an item of an array."""

    about: About = field(default_factory=About)
    others: tuple[About, ...] = ()
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
            options = [
                Option(text.removeprefix(quote), self._means(value, place))
                for text, value in zip(texts, values, strict=True)
            ]
            number = await choose(self._asker, self._pen.text + quote, options)
        self._pen.host(texts[number])
        return values[number]

    def _means(self, value: Any, place: Place) -> float:
        return self._evidence.flag(place.about) if value is True else self._evidence.value(value)

    async def string(self, shape: Text, schema: Schema, place: Place, attempt: int) -> str:
        """A string: what the request says, or what the model writes up to its closing quote."""
        said = await self._said("text", schema, place, attempt)
        if said is not None:
            return str(said)
        value = await self.written_string(shape, attempt)
        self._evidence.use("text", value, place.about)
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

    async def number(
        self, shape: Number, schema: Schema, place: Place, attempt: int
    ) -> int | float:
        """A number: one that the request says, or the longest that the model writes."""
        said = await self._said("number", schema, place, attempt, whole=shape.whole)
        if isinstance(said, int | float):
            return said
        hole = NumberHole(whole=shape.whole, grouped=not place.in_array)
        await self._read(hole, NUMBER_TOKENS, attempt)
        hole.finish()
        if hole.literal is None:
            raise Unfilled("no number was given")
        self._pen.hole(hole.literal, hole.rest)
        self._evidence.use("number", hole.literal, place.about)
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

    def listed(self, kind: Filling, schema: Schema, place: Place, *, whole: bool) -> list[Any]:
        """A list that the request says, where it says one that fits; else empty."""
        for run in self._evidence.listed(kind, place.about, place.others):
            values = [json.loads(m.text) if kind == "number" else m.text for m in run]
            if whole and not all(isinstance(value, int) for value in values):
                continue
            if self._fits(values, schema):
                self._pen.host(dump(values))
                for mention in run:
                    self._evidence.use(kind, mention.text, place.about)
                return values
        return []

    async def _said(
        self, kind: Filling, schema: Schema, place: Place, attempt: int, *, whole: bool = False
    ) -> str | int | float | None:
        """A value that the request says and the model finds as good as one of its own; None where
        there is none, or the backend does not tell how good it finds it."""
        if attempt:
            return None
        options = [
            option
            for option in self._evidence.candidates(kind, place.about, place.others)
            if self._may_be(option.text, schema, whole=whole)
        ]
        # The quote belongs to the fixed text: a tokenizer joins it to the colon before it.
        quote = '"' if kind == "text" else ""
        before = self._pen.text + quote
        if not options or not (ways := await self._asker.scores(before, AHEAD)):
            return None
        rests = [Option(option.text.removeprefix(quote), option.bias) for option in options]
        best = max(likelihood_of(option.text, ways[0]) + option.bias for option in rests)
        if best < ways[0][0].logprob:
            return None
        literal = options[await choose(self._asker, before, rests, ways)].text
        self._pen.hole(literal)
        value: str | int | float = json.loads(literal)
        self._evidence.use(kind, value if isinstance(value, str) else literal, place.about)
        return value

    def _may_be(self, literal: str, schema: Schema, *, whole: bool) -> bool:
        value = json.loads(literal)
        return self._fits(value, schema) and not (whole and not isinstance(value, int))

    async def _read(self, hole: Hole, most: int, attempt: int) -> None:
        """Reads what the model writes into a hole, and one piece more where that ends exactly at
        its end: what follows tells how the model would go on."""
        async with aclosing(self._asker.read(self._pen.text, most, attempt)) as pieces:
            async for piece in pieces:
                hole.feed(piece)
                if hole.done and hole.rest:
                    return


def dump(value: Any) -> str:
    """A value in JSON as protocol lines have it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
