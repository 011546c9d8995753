"""A scripted model that knows what to do, and does it only if it sees what it needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mlx_tools.testing import Completion, ScriptedServer
from tests.work.task import Step, Task

CHARS_OF_TOKEN: Final = 3
"""Characters that stand for a token where a completion is cut."""

PIECE: Final = 400
"""Characters of a piece in which the server sends: a long file in some hundred of them."""

MOST_BEGUN: Final = 100
"""Characters of a completion that a prompt may have begun: no more than type and name of a call."""

SHOWN: Final = 1_500
"""Characters of a prompt that a fault quotes."""

SEEN: Final = {
    "file_access": ("path",),
    "edit_file": ("path", "old"),
    "search_files": ("path",),
    "fetch_url": ("url",),
    "read_artifact": ("id",),
    "run_command": ("program",),
}
"""Arguments that a model cannot make up: it was asked about them, or was shown them."""


class ScriptedModel(ScriptedServer):
    """A server whose model does a task.

    A step whose completion would need what the prompt does not show is a fault: the server answers
    500, and ``faults`` says what is missing. ``completions`` are what it wrote.
    """

    def __init__(self, context: int | None = None) -> None:
        super().__init__(context=context)
        self.begin(())

    def begin(self, tasks: Sequence[Task]) -> None:
        """Do these tasks next."""
        turns = [turn for task in tasks for turn in task.turns]
        self._steps = [(turn.question, step) for turn in turns for step in turn.steps]
        self._written: list[str] = []
        self.completions: list[str] = []
        self.faults: list[str] = []
        self.bodies.clear()
        self.headers.clear()

    @property
    def left(self) -> int:
        """The number of completions that nobody asked for yet."""
        return len(self._steps)

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        """The next completion, cut at the tokens that were asked for."""
        with self.lock:
            self.bodies.append(body)
            prompt = body["prompt"]
            if not self._steps:
                return self._fault("it was asked once more", prompt)
            question, step = self._steps.pop(0)
            shown = self._shown(prompt, question)
            missing = [*iter_missing(step, prompt, shown)]
            if missing:
                return self._fault(f"it cannot see {', '.join(missing)}", prompt)
            text = fill_groups(step, shown)
            self._written.append(text)
            text = text[count_begun_chars(text, prompt) :]
            most = body["max_tokens"] * CHARS_OF_TOKEN
            self.completions.append(text[:most])
        reason = "length" if len(text) > most else step.finish_reason
        return Completion(text[:most], reason, size=PIECE)

    def _shown(self, prompt: str, question: str) -> str:
        """The text of the prompt since the question, without what the model wrote itself."""
        at = max(prompt.rfind(question), prompt.rfind(json.dumps(question)[1:-1]))
        shown = prompt[at + len(question) :] if at >= 0 else prompt
        for text in self._written:
            shown = shown.replace(text, "")
        return shown

    def _fault(self, what: str, prompt: str) -> Completion:
        self.faults.append(f"{what}: {prompt[-SHOWN:]}")
        return Completion(what, status=500)


def iter_missing(step: Step, prompt: str, shown: str) -> Iterator[str]:
    """The text that the step needs and the prompt does not show."""
    yield from (repr(sight) for sight in step.sees if not re.search(sight, shown))
    yield from (repr(sight) for sight in step.knows if not re.search(sight, prompt))
    if step.guesses:
        return
    plain = unescape(prompt)
    for tool, arguments in iter_calls(step.text):
        for name in (tool, *arguments):
            if not re.search(rf"\b{re.escape(name)}\b", prompt):
                yield f"the name {name}"
        for name in SEEN.get(tool, ()):
            for row in str(arguments.get(name, "")).splitlines():
                if "<<" not in row and row.strip() not in plain:
                    yield f"{name} {row!r}"


def iter_calls(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls of a completion that can be read."""
    for row in text.splitlines():
        try:
            message = json.loads(row)
        except ValueError:
            continue
        if message.get("type") == "tool_call":
            yield message["name"], message["arguments"]


def unescape(prompt: str) -> str:
    """The prompt as a reader understands it: texts in JSON without their escapes."""
    text = re.sub(r"\\+(?=[\"\\])", "", prompt)
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)
    return text.replace("\\t", "\t").replace("\\n", "\n").replace("\\r", "\r")


def fill_groups(step: Step, shown: str) -> str:
    """The completion, with what it takes over from what it was shown."""
    text = step.text
    for sight in step.sees:
        match = re.search(sight, shown)
        for name, value in (match.groupdict() if match else {}).items():
            text = text.replace(f"<<{name}>>", value)
    return text


def count_begun_chars(text: str, prompt: str) -> int:
    """Characters of the completion that stand at the end of the prompt: the model goes on there."""
    sizes = range(min(len(text), MOST_BEGUN), 0, -1)
    return next((size for size in sizes if prompt.endswith(text[:size])), 0)
