"""What stands before the first question of a session: system prompt, examples, earlier messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_tools.errors import UsageError
from mlx_tools.messages import ToolSpec
from mlx_tools.prompt.builder import CATALOG_BUDGET, SystemPrompt, build_system
from mlx_tools.prompt.catalog import names_in
from mlx_tools.prompt.examples import build_examples
from mlx_tools.prompt.finder import Finder
from mlx_tools.prompt.neutralise import Neutraliser
from mlx_tools.prompt.tool_format import ToolFormat
from mlx_tools.prompt.words import PromptWords
from mlx_tools.protocol.reading import Style
from mlx_tools.protocol.styles import write_answer

Message = Mapping[str, str]
"""A message as a caller gives it: ``{"role": "user" or "assistant", "content": text}``."""

Said = tuple[str, str]
"""Role and content of an earlier message."""


def read_history(history: Sequence[Message]) -> tuple[Said, ...]:
    """The earlier messages that a caller gives. Raises `UsageError` for one that is none."""
    return tuple(map(_read, history))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all openings of a program have in common.

    ``tools`` are those that may be called, in their order, without ``search``: the tool that looks
    through them, None where it may not be called.
    """

    words: PromptWords
    tools: tuple[ToolSpec, ...]
    neutraliser: Neutraliser
    style: Style = "jsonl"
    native: ToolFormat | None = None
    response_mode: str = "answer-first"
    project_context: str = ""
    persona: str | None = None
    catalog_budget: int = CATALOG_BUDGET


@dataclass(frozen=True, slots=True)
class Opening:
    """What a header holds of a session's beginning.

    ``shortlist`` names the tools that are told of, empty where all are; ``request`` is the question
    by which they were chosen.
    """

    system: str
    examples: tuple[Mapping[str, str], ...]
    shortlist: tuple[str, ...] = ()
    request: str = ""


class Openings:
    """Makes openings; what does not depend on the questions is made once.

    ``find_search`` gives the tool that looks through the tools, None where there is none that may
    be called; it is asked only where not all tools fit into the catalog. ``tools`` describes those
    that the model can know, as JSON values, and ``catalog_hash`` is a digest of that.
    """

    def __init__(self, frame: Frame, find_search: Callable[[], ToolSpec | None]) -> None:
        self.frame = frame
        self.search: ToolSpec | None = None
        self._finder = Finder(frame.tools)
        self._whole = self._system()
        if self._whole.hidden:
            self.search = find_search()
        self._examples = () if self._whole.hidden else self._shown(frame.tools)
        known = frame.tools if self.search is None else (*frame.tools, self.search)
        described = [spec.to_json() for spec in known]
        self.tools: tuple[Mapping[str, Any], ...] = tuple(json.loads(json.dumps(described)))
        catalog = json.dumps(described, sort_keys=True)
        self.catalog_hash = hashlib.sha256(catalog.encode()).hexdigest()

    def opening(
        self, question: str, *, history: Sequence[Said] = (), first: Sequence[str] = ()
    ) -> Opening:
        """The opening of a session that begins with ``history`` and then ``question``.

        A shortlist is chosen by the first question of them all, and the later ones bring what it
        lacks: so a conversation that is sent anew with each question, as stateless clients do,
        begins with the same bytes each time. ``first`` are tools that stand in the shortlist
        whatever it is chosen by.
        """
        if not self._whole.hidden:
            earlier = [self._turn(role, content) for role, content in history]
            return Opening(self._whole.text, (*self._examples, *earlier))
        request = next((content for role, content in history if role == "user"), question)
        system = self._system(lambda: self._finder.shortlist(request, first), self.search)
        told, earlier = list(system.shown), []
        for role, content in history:
            lines: tuple[str, ...] = ()
            if role == "user" and content != request:
                lines = self._finder.offer(content, told)
                told += names_in("\n".join(lines))
            earlier.append(self._turn(role, content, lines))
        by_name = {tool.name: tool for tool in self.frame.tools}
        examples = self._shown([by_name[name] for name in system.shown if name in by_name])
        return Opening(system.text, (*examples, *earlier), tuple(told), request)

    def _system(
        self,
        best: Callable[[], Sequence[ToolSpec]] | None = None,
        search: ToolSpec | None = None,
    ) -> SystemPrompt:
        frame = self.frame
        return build_system(
            frame.words,
            response_mode=frame.response_mode,
            style=frame.style,
            tools=frame.tools,
            project_context=frame.project_context,
            persona=frame.persona,
            catalog_budget=frame.catalog_budget,
            best=best,
            search=search,
            neutraliser=frame.neutraliser,
            native=frame.native,
        )

    def _shown(self, tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
        if self.frame.style == "native":  # the model was trained on its form
            return ()
        turns = build_examples(self.frame.words, tools, self.frame.style)
        return tuple({"role": turn.role, "content": turn.content} for turn in turns)

    def _turn(self, role: str, content: str, lines: Sequence[str] = ()) -> Message:
        """An earlier message as a turn of the prompt."""
        if role == "user":
            text = self.frame.words.asked(content, lines)
        else:
            text = write_answer(content, self.frame.style)
        return {"role": role, "content": self.frame.neutraliser.plain(text)}


def _read(message: Message) -> Said:
    known = isinstance(message, Mapping)
    role, content = (message.get("role"), message.get("content")) if known else (None, None)
    if role not in ("user", "assistant") or not isinstance(content, str):
        raise UsageError(
            "an earlier message is not usable",
            hint='each is {"role": "user" or "assistant", "content": text}',
        )
    return role, content
