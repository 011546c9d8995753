"""A model that knows the right line, and says it in the styles and by the strategies it follows."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import Any

from mlx_tools.app.probe import ProbeQuestions, Question, load_questions
from mlx_tools.backends import Chunk, CompletionRequest
from mlx_tools.messages import Style
from mlx_tools.protocol import write_answer, write_call

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def some_questions(calls: int = 8) -> ProbeQuestions:
    """So many questions that need a call, and two that need an answer.

    No question holds a number: guided decoding has the right one from the model alone.
    """
    tool = f"name = 'count'\ndescription = 'Counts.'\nparameters = '''{json.dumps(NUMBER)}'''\n"
    text = f"[[catalogs]]\nname = 'all'\n[[catalogs.tools]]\n{tool}"
    for n in range(calls):
        call = f"{{ name = 'count', arguments = {{ n = [{n}] }} }}"
        asked = f"Count the herd {chr(ord('A') + n)}."
        text += f"[[catalogs.questions]]\nid = 'c{n}'\nquestion = '{asked}'\ncall = {call}\n"
    for n, said in enumerate(("Good day.", "Farewell.")):
        text += f"[[catalogs.questions]]\nid = 'a{n}'\nquestion = '{said}'\n"
    return load_questions(text)


def style_of(prompt: str) -> Style:
    """The style that a prompt tells."""
    if "<tool_call>" in prompt:
        return "xml"
    return "markdown-json" if "```json" in prompt else "jsonl"


def right_line(question: Question, style: Style) -> str:
    """The text that answers a question rightly."""
    if question.call is None:
        return write_answer("Hello.", style)
    arguments = {name: values[0] for name, values in question.call.arguments.items()}
    return write_call(question.call.name, arguments, style=style)


class Oracle:
    """Writes freely what is right in the styles ``free``, and prose in the others; goes on rightly
    with what the host began in the styles ``guided``, and ends at once in the others.

    ``disturb`` is called before each completion with the number of those before it.
    """

    model = "oracle"

    def __init__(
        self,
        questions: Sequence[Question],
        *,
        free: Collection[str] = (),
        guided: Collection[str] = (),
        disturb: Callable[[int], Any] = lambda number: None,
    ) -> None:
        self._questions = questions
        self._free, self._guided = free, guided
        self._disturb = disturb
        self.asked = 0

    def says(self, prompt: str) -> str:
        """The rest of the model's turn."""
        turns, _, begun = prompt.rpartition("<|im_start|>assistant\n")
        style = style_of(prompt)
        question = max(self._questions, key=lambda one: turns.rfind(one.question))
        line = right_line(question, style)
        if not begun:
            return line if style in self._free else "I would rather talk about the sea."
        if style in self._guided and line.startswith(begun):
            return line[len(begun) :]
        return ""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        self.asked += 1
        waited = self._disturb(self.asked - 1)
        if waited is not None:
            await waited
        yield Chunk(self.says(request.prompt))
        yield Chunk(finish_reason="stop")
