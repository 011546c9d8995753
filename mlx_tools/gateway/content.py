"""Content of any kind as text: other media become a line that names them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from mlx_tools.gateway.body import place
from mlx_tools.gateway.request import JsonObject, invalid
from mlx_tools.paths import read_data
from mlx_tools.prompt import fill


@cache
def _words() -> Mapping[str, str]:
    return tomllib.loads(read_data("prompts/gateway.toml"))


def gateway_text(key: str, **values: str) -> str:
    """Return a text of ``prompts/gateway.toml`` with its placeholders filled."""
    return fill(_words()[key], values).strip("\n")


_TEXT_KINDS: Final = frozenset(
    ("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal")
)
_MEDIA: Final = (
    ("picture", re.compile("image|picture|screenshot")),
    ("sound", re.compile("audio|sound")),
    ("video", re.compile("video")),
    ("file", re.compile("file|document|upload|blob")),
)
"""Media by the words in their kinds' names."""

_THOUGHTS: Final = frozenset(("thinking", "redacted_thinking", "reasoning"))
"""Kinds that no interface shows to a model again."""

_METADATA: Final = frozenset(
    {
        *("type", "id", "call_id", "tool_use_id", "item_id", "status", "phase", "role", "agent"),
        *("caller", "async", "cache_control", "citations", "annotations", "logprobs", "index"),
        *("signature", "fingerprint", "namespace", "created_by", "execution", "environment"),
        *("container_id", "file_id", "approval_request_id", "max_output_length"),
        *("acknowledged_safety_checks", "pending_safety_checks"),
    }
)
"""Fields without meaning for a model: names for machines, telemetry, signatures."""

_DATA: Final = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{400,}={0,2}")
"""A long text in base64, which nobody reads."""

_MAX_DEPTH: Final = 20
"""Levels of an output that are read as parts; deeper ones are shown as JSON."""


class ContentReader:
    """Reads content as text.

    Attributes:
        left_out: The kinds of parts that the model is not told whole, in their order.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, None] = {}

    def text(self, parts: Sequence[JsonObject] | None, *path: str | int) -> str:
        """Return the text of the parts at this path of a body, a line or more each."""
        if not parts:
            return ""
        if len(parts) == 1:  # as nearly all content is
            return self.part(parts[0], *path, 0) or ""
        texts = [self.part(part, *path, index) for index, part in enumerate(parts)]
        return "\n".join([text for text in texts if text is not None])

    def part(self, part: JsonObject, *path: str | int) -> str | None:
        """Return what one part says, None if it says nothing to a model.

        Raises:
            ApiError: a part that is text by its kind has none.
        """
        kind = part.get("type", "text")
        if kind is None:
            kind = "text"
        if not isinstance(kind, str):
            raise invalid(place(*path, "type"), "a text")
        if kind in _TEXT_KINDS:
            key = "refusal" if kind == "refusal" and "refusal" in part else "text"
            if not isinstance(text := part.get(key), str):
                raise invalid(place(*path, key), "a text")
            return text
        if kind in _THOUGHTS:
            return None
        self.left_out[kind] = None
        return self.value(part) or None

    def value(self, value: Any, depth: int = 0) -> str:
        """Return the texts of any JSON value, without data for machines."""
        if value is None:
            return ""
        if isinstance(value, str):
            return self._without_data(value)
        if depth > _MAX_DEPTH or isinstance(value, bool | int | float):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            return "\n".join(filter(None, (self.value(item, depth + 1) for item in value)))
        return self._object(value, depth)

    def _object(self, value: JsonObject, depth: int) -> str:
        kind = value.get("type")
        kind = kind if isinstance(kind, str) else ""
        if kind in _THOUGHTS or "encrypted" in kind:
            return ""
        if kind in _TEXT_KINDS and isinstance(value.get("text"), str):
            text: str = value["text"]
            return text
        source = value.get("source")
        if isinstance(source, dict) and source.get("type") in ("text", "content"):
            title = value.get("title")
            body = source.get("data", source.get("content"))
            return "\n".join(filter(None, (self.value(part) for part in (title, body))))
        if medium := _find_medium(kind, value):
            return _describe_medium(medium, value)
        shown = {
            name: item
            for name, item in value.items()
            if name not in _METADATA and item is not None and not name.startswith("encrypted")
        }
        if shown.keys() & _BODY_KEYS and all(_is_simple(shown[key]) for key in shown):
            return "\n".join(filter(None, (self.value(item, depth + 1) for item in shown.values())))
        if len(shown) == 1:
            return self.value(next(iter(shown.values())), depth + 1)
        return self._without_data(json.dumps(shown, ensure_ascii=False)) if shown else ""

    def _without_data(self, text: str) -> str:
        """Replace long data in the text by lines that name it."""
        if len(text) < 400:
            return text
        found = re.match(r"data:([a-z]+)/[^,]{0,100},", text)
        if found:
            medium = {"image": "picture", "audio": "sound", "video": "video"}.get(found[1], "file")
            return _line(medium, size=_base64_size(text[found.end() :]))
        if " " in text[:400] and '"' not in text[:400]:
            return text
        return _DATA.sub(lambda data: _line("file", size=_base64_size(data[0])), text)


_BODY_KEYS: Final = frozenset(("text", "content", "output", "stdout", "stderr", "logs"))
"""Keys of a body of text, which is shown without its keys."""


def _is_simple(value: Any) -> bool:
    """Return whether it is text, or parts of text."""
    return isinstance(value, str | list) or (isinstance(value, dict) and "type" in value)


def _find_medium(kind: str, value: JsonObject) -> str:
    """Return the medium that a part of this kind holds; empty if that is text."""
    if kind.endswith(("_call", "_result", "_output", "_error")) or "text" in value:
        return ""
    source = value.get("source")
    mime = source.get("media_type") if isinstance(source, dict) else value.get("mime_type")
    for name in (mime, kind):
        for medium, words in _MEDIA:
            if isinstance(name, str) and words.search(name):
                return medium
    return ""


def _describe_medium(medium: str, value: JsonObject) -> str:
    size, name = "", ""
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if not isinstance(item, dict):
            continue
        todo += item.values()
        for key, text in item.items():
            if not isinstance(text, str):
                continue
            if key in ("filename", "title", "name") and not name:
                name = f" {json.dumps(text[:100], ensure_ascii=False)}"
            _, _, data = text.partition(",") if text.startswith("data:") else ("", "", text)
            if key != "url" or text.startswith("data:"):
                size = size or (_base64_size(data) if len(data) >= 40 and " " not in data else "")
    return _line(medium, name, size)


def _line(medium: str, name: str = "", size: str = "") -> str:
    return gateway_text(medium, name=name, size=size)


def _base64_size(data: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9+/_-]+={0,2}", data[:400].strip()):
        return ""
    size = len(data) * 3 // 4
    if size < 1_000:
        return f" of {size} bytes"
    return f" of {size // 1_000} kB" if size < 1_000_000 else f" of {size / 1_000_000:.1f} MB"
