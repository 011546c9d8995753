"""The system prompt: persona, response mode, protocol, catalog, project context, in this order.

Nothing that changes from run to run stands in it, so a server's cache can keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mlx_tools.errors import ConfigError
from mlx_tools.messages import ToolSpec
from mlx_tools.prompt.catalog import build_catalog, count_tokens
from mlx_tools.prompt.neutralise import Composer, Neutraliser
from mlx_tools.prompt.tool_format import ToolFormat
from mlx_tools.prompt.words import PromptWords, parts

CATALOG_BUDGET: Final = 1500
"""Tokens that the catalog may take, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """The text, and which tools' names its catalog shows and hides."""

    text: str
    shown: tuple[str, ...]
    hidden: tuple[str, ...]


def build_system(
    words: PromptWords,
    *,
    response_mode: str,
    style: str,
    tools: Sequence[ToolSpec],
    project_context: str = "",
    persona: str | None = None,
    catalog_budget: int = CATALOG_BUDGET,
    count: Callable[[str], int] = count_tokens,
    best: Callable[[], Sequence[ToolSpec]] | None = None,
    search: ToolSpec | None = None,
    neutraliser: Neutraliser,
    native: ToolFormat | None = None,
) -> SystemPrompt:
    """The system prompt for a session.

    ``persona`` stands in place of the one in ``prompts/``. ``catalog_budget`` is in tokens, as
    ``count`` counts them; past it ``best`` and ``search`` make a shortlist (`build_catalog`). What
    is not the project's own text (tools, project context, a persona) is neutralised. Raises
    `ConfigError` for a response mode or style that is unknown.

    In style ``native`` the text is all that stands before the first question: what the template
    itself writes, by ``native``, the system text and the tools in it.
    """

    def cost(line: str) -> int:
        return count(neutraliser.plain(line))  # as it stands in the prompt

    def write(tool: ToolSpec, brief: bool) -> str:
        assert native is not None
        return native.written(tool, brief=brief)

    is_native = style == "native" and native is not None
    catalog = build_catalog(
        *(tools, catalog_budget, cost), best=best, search=search, write=write if is_native else None
    )
    writer = _SectionWriter(neutraliser)
    if persona is None:
        writer.section(words.persona)
    else:
        writer.section("{{persona}}", {"persona": persona.strip()})
    writer.sentence(_of(words.response_modes, response_mode, "response mode"))
    if not is_native:
        writer.section(_of(words.protocols, style, "prompt style"))
    if catalog.lines:
        if not is_native:
            writer.section(words.catalog, {"tools": "\n".join(catalog.lines)})
        if catalog.hidden:
            more = {"count": str(len(catalog.hidden))}
            if catalog.search:
                writer.line(words.search, more | {"name": catalog.shown[-1]})
            else:
                writer.line(words.hidden, more)
    else:
        writer.section(words.no_tools)
    if project_context.strip():
        writer.section(words.project_context, {"context": project_context.strip()})
    text = str(writer)
    if is_native and native is not None:
        text = native.begin(text, catalog.lines, neutraliser)
    return SystemPrompt(text, catalog.shown, catalog.hidden)


def _of(texts: Mapping[str, str], key: str, what: str) -> str:
    if key not in texts:
        raise ConfigError(f"{key!r} is no {what}", hint=f"choose one of {', '.join(sorted(texts))}")
    return texts[key]


class _SectionWriter:
    """Puts sections under one another; the values in them are untrusted, the rest is not."""

    def __init__(self, neutraliser: Neutraliser) -> None:
        self._neutraliser = neutraliser
        self._text = Composer(neutraliser)
        self._empty = True

    def section(self, text: str, values: Mapping[str, str] | None = None) -> None:
        """A section of its own, after an empty line."""
        self._write("\n\n", text.strip("\n"), values or {})

    def sentence(self, text: str) -> None:
        """One more sentence of the section before."""
        self._write(" ", text.strip("\n"), {})

    def line(self, text: str, values: Mapping[str, str]) -> None:
        """One more line of the section before."""
        self._write("\n", text.strip("\n"), values)

    def _write(self, gap: str, text: str, values: Mapping[str, str]) -> None:
        if not text:
            return
        if not self._empty:
            self._text.host(gap)
        self._empty = False
        for part, named in parts(text):
            if named:
                self._text.untrusted(self._neutraliser.plain(values[part]))
            else:
                self._text.host(part)

    def __str__(self) -> str:
        return str(self._text)
