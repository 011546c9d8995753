"""Fills a schema: the host writes what is fixed, the model what is not.

What a `Filler` gives validates: the shape holds by construction, the rest is checked value by
value, and a hole whose value does not fit is asked again. Where nothing fits, `Unfilled` is raised;
nothing is made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from mlx_tools.decoding.arguments import About
from mlx_tools.decoding.asker import Asker, Unfilled
from mlx_tools.decoding.choice import Option, choose
from mlx_tools.decoding.evidence import RequestEvidence
from mlx_tools.decoding.leaves import Leaves, Place
from mlx_tools.decoding.offers import Wanted, dump
from mlx_tools.decoding.outline import Fits, hole, members, wanted
from mlx_tools.decoding.pen import Pen
from mlx_tools.decoding.shape import (
    Choices,
    Free,
    Impossible,
    Items,
    Number,
    OneOf,
    Record,
    Schema,
    Shape,
    Shapes,
    Text,
    members_in_order,
)

TRIES: Final = 3
"""How often a hole is asked for a value that fits."""

MAX_ITEMS: Final = 64
MAX_REPEATS: Final = 5
"""An item that stands there more often ends its array, before it came again: a weak model would go
on for ever."""

MAX_DEPTH: Final = 12


class Filler:
    """Fills the schemas of one tool, with a pen that has written all that comes before. ``bare``:
    optional members are left out, but those for which the request has something."""

    def __init__(
        self,
        asker: Asker,
        pen: Pen,
        shapes: Shapes,
        fits: Fits,
        evidence: RequestEvidence,
        *,
        bare: bool = False,
    ) -> None:
        self._bare = bare
        self._asker = asker
        self._pen = pen
        self._shapes = shapes
        self._fits = fits
        self._evidence = evidence
        self._leaves = Leaves(asker, pen, fits, evidence)

    async def fill(self, schema: Schema, place: Place, depth: int = 0) -> Any:
        """Appends a value for ``schema`` and gives it. Raises `Unfilled`."""
        if depth > MAX_DEPTH:
            raise Unfilled("the values nest too deeply")
        try:
            shape = self._shapes.of(schema)
        except Impossible:
            raise Unfilled("nothing fits the schema") from None
        begun = len(self._pen.text)
        why = "no value fits the schema"
        for attempt in range(TRIES if isinstance(shape, Text | Number | Free) else 1):
            try:
                value = await self._value(shape, schema, place, attempt, depth)
            except Unfilled as error:
                why = str(error)
            else:
                if self._fits(value, schema):
                    return value
            self._pen.back(begun)
        raise Unfilled(why)

    async def _value(
        self, shape: Shape, schema: Schema, place: Place, attempt: int, depth: int
    ) -> Any:
        match shape:
            case Choices():
                return await self._leaves.choice(shape, schema, place)
            case Text():
                return await self._leaves.string(shape, self._wanted(schema, place), place, attempt)
            case Number():
                return await self._leaves.number(shape, self._wanted(schema, place), place, attempt)
            case Items():
                listed = self._listed(schema, place)
                return await self._items(shape, place, depth) if listed is None else listed
            case Record():
                return await self._record(shape, schema, place, depth)
            case OneOf():
                return await self._branch(shape, place, depth)
            case Free():
                return await self._leaves.free(attempt)

    # --- arrays ---

    def _listed(self, schema: Schema, place: Place) -> list[Any] | None:
        one = self._wanted(schema, place)
        return self._leaves.listed(one, place) if one.kind.endswith("list") else None

    def _wanted(self, schema: Schema, place: Place) -> Wanted:
        known = place.about
        found = wanted(known.name, schema, self._shapes, self._fits, needed=known.required)
        return replace(found, about=known)

    async def _items(self, shape: Items, place: Place, depth: int) -> list[Any]:
        self._pen.host("[")
        values: list[Any] = []
        most = MAX_ITEMS if shape.most is None else min(shape.most, MAX_ITEMS)
        if shape.rest is False:
            most = min(most, len(shape.first))
        within = replace(place, in_array=True)
        begins: list[int] = []  # where in the text each item begins, its comma included
        while len(values) < most:
            schema = shape.first[len(values)] if len(values) < len(shape.first) else shape.rest
            if len(values) >= max(shape.least, 1) and await self._ends(schema):
                break
            begins.append(len(self._pen.text))
            if values:
                self._pen.host(",")
            try:
                values.append(await self.fill(schema, within, depth + 1))
            except Unfilled:
                if len(values) < max(shape.least, 1):
                    raise
                self._pen.back(begins[-1])
                break
            if values.count(values[-1]) > MAX_REPEATS and len(values) >= shape.least:
                kept = max(_before_repeats(values), shape.least)
                self._pen.back(begins[kept] if kept < len(begins) else len(self._pen.text))
                del values[kept:]
                break
        self._pen.host("]")
        return values

    async def _ends(self, schema: Schema) -> bool:
        """Whether the model closes the array here rather than going on with an item."""
        if self._pen.next == "]" or (self._pen.next == "," and not self._spent(schema)):
            return self._pen.next == "]"
        openings = self._openings(schema)
        opening = openings[0] if len(openings) == 1 else ""
        bias = self._evidence.weights.spent if self._spent(schema) else 0.0
        options = [Option("]", bias), Option("," + opening)]
        return await choose(self._asker, self._pen.text, options) == 0

    def _spent(self, schema: Schema) -> bool:
        kind, _ = hole(schema, self._shapes, self._fits)
        return self._evidence.spent(kind)

    # --- objects ---

    async def _record(
        self, shape: Record, schema: Schema, place: Place, depth: int
    ) -> dict[str, Any]:
        self._pen.host("{")
        needed, optional = members_in_order(shape)
        named = members(shape, self._shapes, self._fits)
        known = {one.about.name: one.about for one in named}
        beside = replace(place.beside, others=tuple(known.values()))
        plan = self._evidence.plan(named, beside) if place.own is None else place.own
        places = {name: Place(about, beside, plan) for name, about in known.items()}
        values: dict[str, Any] = {}
        for name in needed:
            member = shape.members.get(name, shape.other)
            await self._member(values, name, member, places[name], depth)
        left = [name for name in optional if not self._bare or name in plan]
        while left and (shape.most is None or len(values) < shape.most):
            chosen = await self._next_member(shape, left, places, values)
            if chosen is None:
                break
            left.remove(chosen)
            await self._try_member(values, chosen, shape.members[chosen], places[chosen], depth)
        for name in optional:  # one may be needed all the same: by what another one has (`if`)
            if self._fits(values, schema):
                break
            if name in values:
                continue
            await self._try_member(values, name, shape.members[name], places[name], depth)
        if len(values) < shape.least or not shape.members:
            await self._other_members(shape, values, depth)
        self._pen.host("}")
        return values

    async def _member(
        self, values: dict[str, Any], name: str, schema: Schema, place: Place, depth: int
    ) -> None:
        self._pen.host(("," if values else "") + dump(name) + ":")
        values[name] = await self.fill(schema, place, depth + 1)

    async def _try_member(
        self, values: dict[str, Any], name: str, schema: Schema, place: Place, depth: int
    ) -> None:
        """The same; left out where nothing fits it."""
        begun = len(self._pen.text)
        try:
            await self._member(values, name, schema, place, depth)
        except Unfilled:
            self._pen.back(begun)

    async def _next_member(
        self,
        shape: Record,
        names: Sequence[str],
        places: dict[str, Place],
        values: dict[str, Any],
    ) -> str | None:
        """The optional member that the model goes on with, None where it closes the object.

        One that the request speaks of is given even where the model would close."""
        must = len(values) < shape.least
        odds = [self._evidence.member(places[name].about, places[name].plan) for name in names]
        best = max(range(len(names)), key=lambda number: (odds[number], -number))
        if self._evidence.is_sure([odds[best]]):
            return names[best]
        if not must and odds[best] <= 0 and self._pen.next == "}":
            return None
        comma = "," if values else ""
        options = [
            Option(f"{comma}{dump(name)}:", self._evidence.bias(each))
            for name, each in zip(names, odds, strict=True)
        ]
        if not must:
            options.append(Option("}"))
        number = await choose(self._asker, self._pen.text, options)
        return names[number] if number < len(names) else None

    async def _other_members(self, shape: Record, values: dict[str, Any], depth: int) -> None:
        """Members whose names the schema leaves open."""
        if shape.other is False:
            return
        most = MAX_ITEMS if shape.most is None else min(shape.most, MAX_ITEMS)
        while len(values) < most:
            must = len(values) < shape.least
            comma = "," if values else ""
            options = [Option("}"), Option(comma + '"')]
            if not must and await choose(self._asker, self._pen.text, options) == 0:
                return
            begun = len(self._pen.text)
            self._pen.host(comma)
            try:
                name = await self._leaves.written_string(Text(), 0)
                if not name or name in values:
                    raise Unfilled("a member has no name of its own")
                self._pen.host(":")
                values[name] = await self.fill(shape.other, Place(About(name)), depth + 1)
            except Unfilled:
                if must:
                    raise
                self._pen.back(begun)
                return

    # --- branches ---

    async def _branch(self, shape: OneOf, place: Place, depth: int) -> Any:
        """What one of the branches asks for: that which begins as the model goes on, else the
        next one that can be filled."""
        openings: dict[str, list[Schema]] = {}
        for branch in shape.branches:
            for opening in self._openings(branch):
                openings.setdefault(opening, []).append(branch)
        if not openings:
            raise Unfilled("nothing fits the schema")
        order = list(openings)
        if len(order) > 1:
            first = await choose(self._asker, self._pen.text, [Option(text) for text in order])
            order.insert(0, order.pop(first))
        begun = len(self._pen.text)
        tried: list[Schema] = []
        for branch in (branch for opening in order for branch in openings[opening]):
            if branch in tried:
                continue
            tried.append(branch)
            try:
                return await self.fill(branch, place, depth + 1)
            except Unfilled:
                self._pen.back(begun)
        raise Unfilled("no branch of the schema fits")

    def _openings(self, schema: Schema, depth: int = 0) -> list[str]:
        """How the values of a schema may begin; none where nothing fits."""
        try:
            shape = self._shapes.of(schema)
        except Impossible:
            return []
        match shape:
            case Choices():
                return [dump(value) for value in shape.values]
            case Text():
                return ['"']
            case Number():
                return ["-", *"0123456789"]
            case Items():
                return ["["]
            case Record():
                needed, _ = members_in_order(shape)
                return ["{" + dump(needed[0]) + ":" if needed else "{"]
            case OneOf():
                if depth > MAX_DEPTH:
                    return []
                found = [o for b in shape.branches for o in self._openings(b, depth + 1)]
                return list(dict.fromkeys(found))
            case Free():
                return ['"', "{", "[", *"0123456789"]


def _before_repeats(values: Sequence[Any]) -> int:
    """How many items there are before the last one comes for the second time."""
    places = [number for number, item in enumerate(values) if item == values[-1]]
    return places[1]
