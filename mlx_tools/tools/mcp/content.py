"""What an MCP server answered, as a model is shown it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from mlx_tools.tools.context import ToolError

MAX_CONTENT_CHARS: Final = 2_000_000


def text_of(blocks: Iterable[Any]) -> str:
    """The text in content blocks; of pictures, sounds and other bytes what they are."""
    parts = []
    for block in blocks:
        kind = getattr(block, "type", "")
        if kind == "text":
            parts.append(block.text)
        elif kind in ("image", "audio"):
            parts.append(f"[{kind}: {block.mime_type}, {_size(block.data)} bytes]")
        elif kind == "resource":
            parts.append(resource_text(block.resource))
        elif kind == "resource_link":
            parts.append(f"[resource: {block.uri}{f' ({block.name})' if block.name else ''}]")
        else:
            parts.append(f"[{kind or 'something'} that is not shown]")
    return bounded("\n".join(parts))


def resource_text(resource: Any) -> str:
    """The text of a resource, or what it is."""
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return text
    size = _size(getattr(resource, "blob", ""))
    return f"[{resource.uri}: {resource.mime_type or 'bytes'}, {size} bytes]"


def bounded(text: str) -> str:
    """The text. Raises ToolError where it is too long."""
    if len(text) > MAX_CONTENT_CHARS:
        raise ToolError(
            f"it answered with more than {MAX_CONTENT_CHARS} characters", code="payload_too_large"
        )
    return text


def answer_of(result: Any) -> Any:
    """What a call came to: structured content where there is such, else text. Raises ToolError for
    an error that the server tells."""
    text = text_of(result.content or ())
    if result.is_error:
        raise ToolError(text or "the server says that it failed")
    structured = result.structured_content
    if structured is None:
        return text
    bounded(json.dumps(structured, ensure_ascii=False))
    return structured


def _size(data: str) -> int:
    return len(data) * 3 // 4
