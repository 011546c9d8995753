"""Guided decoding: the client writes all that is fixed, the model fills only the holes.

It asks nothing of a server but text, and makes better use of one that says how likely its tokens
are. What it writes is a line of the protocol whose calls validate against their tools' schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.decoding.asker import Asker, Unfilled
from mlx_tools.decoding.choice import Option, choose, likelihoods
from mlx_tools.decoding.evidence import Plan, RequestEvidence
from mlx_tools.decoding.fill import Filler
from mlx_tools.decoding.further import call_odds, next_tool
from mlx_tools.decoding.holes import StringHole, TextHole
from mlx_tools.decoding.leaves import Place
from mlx_tools.decoding.outline import beside, fitting, outline
from mlx_tools.decoding.pen import Pen
from mlx_tools.decoding.shape import Shapes
from mlx_tools.protocol import Style, forcing_prefix
from mlx_tools.protocol.styles import closing
from mlx_tools.spec import ToolSpec

OPEN_ARGUMENTS: Final = '","arguments":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a turn is to be: in which style, with which tools, by which choice."""

    style: Style
    tools: Mapping[str, ToolSpec]
    tool_choice: str = "auto"
    max_calls: int = 1


Made = tuple[ToolSpec, Any]
"""A call of this turn: the tool and its arguments."""


class Guide:
    """Writes one turn. ``text`` is what it has written; ``tell`` is given each piece of it."""

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
        self._asker = asker
        self._task = task
        self._evidence = evidence
        self._tell = tell
        self._called = call_odds(evidence, tuple(task.tools.values()))

    async def write(self) -> str:
        """Writes the turn and gives it. Raises `Unfilled`, and what the asker raises."""
        if not await self._calls():
            await self._answer()
            return self.text
        made: list[Made] = []
        tool: ToolSpec | None = await self._first_tool()
        while tool is not None and await self._call(tool, made):
            tool = self._next_tool(made)
        return self.text

    def _say(self, text: str) -> None:
        self.text += text
        self._tell(text)

    # --- call or answer ---

    async def _calls(self) -> bool:
        task = self._task
        if task.tool_choice == "none" or not task.tools:
            return False
        if task.tool_choice != "auto":
            return True
        openings = [forcing_prefix(task.style, choice) for choice in ("required", "none")]
        common = _common(*openings)
        odds = await self._odds(common, [text[len(common) :] for text in openings])
        weights = self._evidence.weights
        words = max(self._called, default=0.0)
        return weights.request * words + weights.call * odds > 0

    async def _odds(self, before: str, texts: Sequence[str]) -> float:
        """The model's odds of the first of two texts against the second, as a logarithm."""
        first, second = await likelihoods(self._asker, before, texts)
        return first - second

    # --- a call ---

    async def _call(self, spec: ToolSpec, made: list[Made]) -> bool:
        """Writes a call. One besides others is told of when it is whole, and dropped where nothing
        is new in it: False."""
        self.tool = spec.name
        opening = forcing_prefix(self._task.style, "required") + spec.name + OPEN_ARGUMENTS
        own: Plan | None = None
        if not made:
            self._say(opening)
        elif spec.name in {one.name for one, _ in made}:
            own = self._evidence.plan_again(outline(spec), beside(spec))
        pen = Pen(self.text + ("\n" + opening if made else ""))
        filler = Filler(self._asker, pen, Shapes(spec.parameters), fitting(spec), self._evidence)
        try:
            arguments = await filler.fill(spec.parameters, Place(beside=beside(spec), own=own))
        except Unfilled:
            if not made:
                raise
            return False
        if (spec, arguments) in made:
            return False
        made.append((spec, arguments))
        self._say(pen.text[len(self.text) :])
        self._say(closing(self._task.style, "tool_call"))
        return True

    async def _first_tool(self) -> ToolSpec:
        task = self._task
        if task.tool_choice in task.tools:
            return task.tools[task.tool_choice]
        tools = tuple(task.tools.values())
        options = [
            Option(tool.name + '"', self._evidence.bias(odds - max(self._called)))
            for tool, odds in zip(tools, self._called, strict=True)
        ]
        before = forcing_prefix(task.style, "required")
        return tools[await choose(self._asker, before, options)]

    def _next_tool(self, made: Sequence[Made]) -> ToolSpec | None:
        """The tool that is called besides, in the same turn; None where the calls are enough."""
        if len(made) >= self._task.max_calls:
            return None
        self._evidence.next_call()
        tools = tuple(self._task.tools.values())
        return next_tool(self._evidence, tools, [spec for spec, _ in made])

    # --- an answer ---

    async def _answer(self) -> None:
        task = self._task
        self._say(forcing_prefix(task.style, "none"))
        end = closing(task.style, "final_answer")
        hole = TextHole(end) if task.style == "xml" else StringHole()
        async with aclosing(self._asker.read(self.text, self._asker.left)) as pieces:
            async for piece in pieces:
                if new := hole.feed(piece):
                    self._say(new)
                if hole.done:
                    break
        if not hole.done:
            self._say(hole.finish())
            if not hole.text or self._asker.finish != "stop":
                raise Unfilled("the answer did not end within the tokens of the turn")
        self._say(end)


def _common(one: str, other: str) -> str:
    """What two texts begin with alike."""
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[:length]
