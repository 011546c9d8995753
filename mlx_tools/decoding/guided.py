"""Guided decoding: the client writes all that is fixed, the model fills only the holes.

It asks nothing of a server but text, and makes better use of one that says how likely its tokens
are. What it writes is a line of the protocol whose calls validate against their tools' schemas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.decoding.answers import Answer, AnswerHole, TextHole
from mlx_tools.decoding.asker import Asker, CutOff, Unfilled
from mlx_tools.decoding.choice import Option, choose, likelihoods, liking
from mlx_tools.decoding.evidence import RequestEvidence
from mlx_tools.decoding.fill import Filler
from mlx_tools.decoding.leaves import Place
from mlx_tools.decoding.opening import call_odds
from mlx_tools.decoding.outline import beside, fitting, outline
from mlx_tools.decoding.pen import Pen
from mlx_tools.decoding.quoting import WEAK_FROM, quoted
from mlx_tools.decoding.shape import Shapes
from mlx_tools.decoding.turn import PlannedCall, plan_turn
from mlx_tools.due import Observed
from mlx_tools.protocol import Style, forcing_prefix
from mlx_tools.protocol.styles import closing
from mlx_tools.spec import ToolSpec

OPEN_ARGUMENTS: Final = '","arguments":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a turn is to be: in which style, with which tools, by which choice. ``observed`` is what
    came of the calls before it; ``look_up`` is whether a question is looked up before it is
    answered."""

    style: Style
    tools: Mapping[str, ToolSpec]
    tool_choice: str = "auto"
    max_calls: int = 1
    observed: tuple[Observed, ...] = ()
    look_up: bool = False


Made = tuple[ToolSpec, Any]
"""A call of this turn: the tool and its arguments."""


class Guide:
    """Writes one turn with what ``asker`` gives. ``text`` is what it has written; ``tell`` is given
    each piece of it."""

    def __init__(
        self,
        asker: Asker,
        task: Task,
        evidence: RequestEvidence,
        tell: Callable[[str], None] = lambda piece: None,
    ) -> None:
        self.text = ""
        self.tool = ""
        """The name of the tool that is called at last; empty for none."""
        self.asker = asker
        self._task = task
        self._evidence = evidence
        self._tell = tell
        self._called = call_odds(evidence, tuple(task.tools.values()), look_up=task.look_up)

    async def write(self) -> str:
        """Writes the turn and gives it. Raises `Unfilled`, of an answer that is too long `CutOff`,
        and what the asker raises."""
        planned = await self._planned() if await self._calls() else []
        if self._is_weak and self._task.tool_choice == "auto":
            planned = [call for call in planned if not self._has_failed(call)]
        if not planned:
            await self._answer()
            return self.text
        made: list[Made] = []
        for call in planned[: self._task.max_calls]:
            await self._call(call, made, alone=len(planned) == 1)
        return self.text

    def _say(self, text: str) -> None:
        self.text += text
        self._tell(text)

    @property
    def _is_weak(self) -> bool:
        return self._evidence.weights.request >= WEAK_FROM

    # --- call or answer ---

    async def _calls(self) -> bool:
        task = self._task
        if task.tool_choice == "none" or not task.tools:
            return False
        if task.tool_choice != "auto":
            return True
        openings = [forcing_prefix(task.style, choice) for choice in ("required", "none")]
        common = _common(*openings)
        texts = [text[len(common) :] for text in openings]
        weights = self._evidence.weights
        words = weights.request * max(self._called, default=0.0)
        call, answer = await likelihoods(self.asker, common, texts)
        if abs(words) < weights.sure:
            likes_call, likes_answer = await liking(self.asker, common, texts)
            call, answer = call - likes_call, answer - likes_answer
        return words + weights.call * (call - answer) > 0

    # --- a call ---

    async def _planned(self) -> list[PlannedCall]:
        """The calls that the request asks for, the one of the tool that is chosen first."""
        task = self._task
        tools = tuple(task.tools.values())
        if task.tool_choice in task.tools:
            return plan_turn(self._evidence, (task.tools[task.tool_choice],))
        planned = plan_turn(self._evidence, tools)
        first = await self._first_tool(tools, planned[0].spec if len(planned) > 1 else None)
        if any(call.spec.name == first.name for call in planned):
            return sorted(planned, key=lambda call: call.spec.name != first.name)
        return plan_turn(self._evidence, (first,))

    def _has_failed(self, call: PlannedCall) -> bool:
        """Whether this call was made and failed: a weak model only makes it again. One that
        had more than what is planned may fail by just that, and is worth another."""
        tried = self._failed_with(call)
        needed = {one.about.name for one in outline(call.spec) if one.about.required}
        return len(tried) > 1 or any(not made.keys() - needed - call.plan.keys() for made in tried)

    def _failed_with(self, call: PlannedCall) -> list[Mapping[str, Any]]:
        """The arguments of all failed calls that had what is planned of this one."""
        values = {name: planned.candidate.value for name, planned in call.plan.items()}
        return [
            one.call.arguments
            for one in self._task.observed
            if one.failed and one.call is not None and one.call.name == call.spec.name
            if all(one.call.arguments.get(name) == value for name, value in values.items())
        ]

    async def _first_tool(self, tools: Sequence[ToolSpec], planned: ToolSpec | None) -> ToolSpec:
        """One of the tools, by the request's words and the model's likelihoods; ``planned`` is the
        first of several calls, where that many are planned."""
        best, weights = max(self._called), self._evidence.weights
        biases = [
            self._evidence.bias(called - best + weights.planned * (tool is planned))
            for tool, called in zip(tools, self._called, strict=True)
        ]
        before = forcing_prefix(self._task.style, "required")
        names = [tool.name + '"' for tool in tools]
        first, second = sorted([*biases, -math.inf], reverse=True)[:2]
        if first - second < weights.sure:
            liked = await liking(self.asker, before, names)
            biases = [bias - like for bias, like in zip(biases, liked, strict=True)]
        options = [Option(name, bias) for name, bias in zip(names, biases, strict=True)]
        return tools[await choose(self.asker, before, options)]

    async def _call(self, planned: PlannedCall, made: list[Made], *, alone: bool) -> None:
        """Writes a call. One besides others is told of when it is whole, and dropped where it has
        a hole that is not filled, or nothing is new in it."""
        spec = planned.spec
        self.tool = spec.name
        opening = forcing_prefix(self._task.style, "required") + spec.name + OPEN_ARGUMENTS
        if not made:
            self._say(opening)
        evidence, own = self._evidence, None
        if not alone:
            evidence = evidence.of_clauses(planned.start, planned.end)
            own = planned.in_clauses()
        pen = Pen(self.text + ("\n" + opening if made else ""))
        bare = self._is_weak and bool(self._failed_with(planned))
        shapes = Shapes(spec.parameters)
        filler = Filler(self.asker, pen, shapes, fitting(spec), evidence, bare=bare)
        place = Place(beside=beside(spec), own=own)
        try:
            arguments = await filler.fill(spec.parameters, place)
        except Unfilled:
            if not made:
                raise
            return
        if (spec, arguments) in made:
            return
        made.append((spec, arguments))
        self._say(pen.text[len(self.text) :])
        self._say(closing(self._task.style, "tool_call"))

    # --- an answer ---

    async def _answer(self) -> None:
        task = self._task
        self._say(forcing_prefix(task.style, "none"))
        end = closing(task.style, "final_answer")
        if quotation := self._quotation():
            self._say(quotation + end)
            return
        answer = Answer(TextHole(end) if task.style == "xml" else AnswerHole())
        async with aclosing(self.asker.read(self.text, self.asker.left)) as pieces:
            async for piece in pieces:
                if new := answer.feed(piece):
                    self._say(new)
                if answer.done:
                    break
        self._say(answer.finish())
        if not answer.done:
            if answer.is_empty:
                raise Unfilled("the model answered nothing")
            if self.asker.finish != "stop":
                raise CutOff("the answer did not end within the tokens of the turn")
        self._say(end)

    def _quotation(self) -> str:
        """What a weak model answers instead of words of its own, as it stands in the turn; empty
        where it is to find them itself."""
        if not self._is_weak:
            return ""
        said = quoted(self._evidence.request, self._task.observed)
        if self._task.style != "xml":
            return json.dumps(said, ensure_ascii=False)[1:-1]
        return "" if "</" in said else said


def _common(one: str, other: str) -> str:
    """What two texts begin with alike."""
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[:length]
