"""Verdicts on calls after a mark, outside code (reading rules 8a and 8b)."""

from __future__ import annotations

import re
from typing import Final, Literal

from mlx_tools.messages import FinishReason
from mlx_tools.protocol.call_sequence import CallSequenceReader
from mlx_tools.protocol.catalog import ToolCatalog
from mlx_tools.protocol.judging import outcome
from mlx_tools.protocol.reading import ReadingRules

# `<tool_call> tags are used.`: two words and a full stop after a mark are about the mark.
_WORDS: Final = re.compile(r"[ \t]+[^\W\d_]+ [^\W\d_]+[ .,;:]")
_MAX_NAME_OFFSET: Final = 200  # characters after a mark in which a tool may be named
_NAME_LINE: Final = re.compile(r"[ \t]*(?P<name>[\w.$-]+)[ \t\r]*(?:\n|\Z)")
_NAME_BEHIND: Final = re.compile(
    r"(?:[\s\[{<(\"'`:]|functions?\b[.=]?|name\b|invoke\b|call\b|to=)*(?P<name>[\w$.-]+)"
    r"|.*?[\"'](?:name|tool|tool_name|function|action)[\"']\s*:\s*[\"'](?P<key>[\w$.-]+)",
    re.DOTALL,
)


def sequence_verdict(
    run: CallSequenceReader,
    catalog: ToolCatalog,
    rules: ReadingRules,
    reason: FinishReason,
    *,
    is_first: bool,
) -> Literal["call", "cut", "call_like", "text"]:
    """Return whether the calls count, were cut off, are an error, or are text.

    ``is_first``: no text comes before a mark that is no prose.
    """
    # `Action: search(x) is what I would do.` is a sentence, whatever it names.
    is_said = run.has_text_behind and run.dialect.line and bool(run.calls)
    row = "text" if is_said else outcome(run.candidate(), "spoken")
    if run.calls and row == "call":
        is_cut = run.cut is not None or (run.has_open_end and reason != "stop")
        return "cut" if is_cut and not run.may_close(reason, rules.mutates) else "call"
    names = _names_tool(run, catalog) or (run.names_tool and not run.dialect.line)
    is_meant = names or (is_first and not _is_mentioned(run))
    if run.cut is not None and (is_meant or run.names_tool):
        return "cut"
    return "call_like" if is_meant and not (run.calls and row == "text") else "text"


def _is_mentioned(run: CallSequenceReader) -> bool:
    """Return whether words follow a mark, which are about the mark."""
    begin = run.begin + len(run.dialect.open)
    return not run.calls and _WORDS.match(run.source.text, begin) is not None


def _names_tool(run: CallSequenceReader, catalog: ToolCatalog) -> bool:
    """Return whether a tool is named after the mark of a run that could not be read."""
    begin = run.begin + len(run.dialect.open)
    ahead = run.source.text[begin : begin + _MAX_NAME_OFFSET]
    found = (_NAME_LINE if run.dialect.line else _NAME_BEHIND).match(ahead)
    names = () if found is None else filter(None, found.groupdict().values())
    return any(map(catalog.find, names))
