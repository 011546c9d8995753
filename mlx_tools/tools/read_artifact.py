"""``read_artifact``: pages through an output of this session that was cut for the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mlx_tools.prompt import READER
from mlx_tools.tools.context import current_context
from mlx_tools.tools.tool import Tool, ToolError
from mlx_tools.tools.tool_words import words_of

DEFAULT_LENGTH: Final = 3000


def read_artifact() -> Tool:
    """The tool. It reads the artifacts of the session that calls it, and of no other.

    An id that is wrong, guessed, of another session or expired gives one and the same error. A page
    is never longer than what the model will see of it: its end says where the next one begins.
    """
    words = words_of(READER)

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()
        kept = context.artifacts
        text = kept.get(str(arguments["id"])) if kept is not None else None
        if text is None:
            raise ToolError(words.notices["missing"])
        start = int(arguments.get("offset", 0))
        if start and start >= len(text):
            raise ToolError(words.notices["beyond"].format(start=start, total=len(text)))
        length = int(arguments.get("length", DEFAULT_LENGTH))
        return page(text, start, length, context.shown_chars, words.notices)

    return Tool(words.spec(frozenset(("read",))), run)


def page(text: str, start: int, length: int, room: int | None, notices: Mapping[str, str]) -> str:
    """``length`` characters from ``start`` on, fewer where page and notice would be more than
    ``room`` characters; at least one."""
    if room is not None:
        numbers = dict.fromkeys(("start", "end", "total"), len(text))
        longest = max(len(notices[key].format(**numbers)) for key in ("more", "end"))
        length = max(1, min(length, room - longest))
    end = min(start + length, len(text))
    notice = notices["more" if end < len(text) else "end"]
    return text[start:end] + notice.format(start=start, end=end, total=len(text))


def why_off() -> str:
    """Why the tool is switched off in a session that keeps no artifacts."""
    return words_of(READER).notices["off"]
