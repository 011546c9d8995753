"""Tools that give the same each time and change nothing outside of a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from mlx_tools import Tool, ToolSpec
from mlx_tools.messages import ALL_EFFECTS, Effects
from mlx_tools.tools import Preview, ToolContext, ToolError, current_context

READ: Final[Effects] = frozenset(("read",))
WRITE: Final[Effects] = frozenset(("write",))
NETWORK: Final[Effects] = frozenset(("network",))

KEY: Final = "AKIA" + "2E7QW5ZD3RXT6MPK"
"""A text like a key of a cloud service, which opens nothing."""

_TEXT: Final = {"type": "string"}
_TAKES_TEXT: Final = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}
_LOOK: Final = {
    "type": "object",
    "properties": {
        "text": _TEXT,
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": _TEXT},
        "note": _TEXT,
    },
    "required": ["text"],
}
_LAMP: Final = {
    "type": "object",
    "properties": {"state": {"enum": ["on", "off"]}},
    "required": ["state"],
}
_SAVE: Final = {
    "type": "object",
    "properties": {"path": _TEXT, "text": _TEXT},
    "required": ["path", "text"],
}
_NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def _made(
    name: str,
    words: str,
    parameters: Mapping[str, Any],
    effects: Any,
    give: Callable[[Mapping[str, Any]], str],
    **more: Any,
) -> Tool:
    """A tool whose output is what ``give`` makes of the arguments. It runs in the event loop, so
    that the records of parallel calls come in one order."""

    async def run(arguments: Mapping[str, Any]) -> str:
        return give(arguments)

    preview = more.pop("preview", None)
    return Tool(ToolSpec(name, words, parameters, effects, **more), run, preview=preview)


def giving(name: str, output: str, **more: Any) -> Tool:
    """A reading tool without arguments that gives this text."""
    return _made(name, f"Gives the {name}.", _NOTHING, READ, lambda arguments: output, **more)


def look() -> Tool:
    """Looks something up."""
    return _made("look", "Looks a word up.", _LOOK, READ, lambda a: f"found: {a['text']}")


def lamp() -> Tool:
    """Says what a lamp does."""
    return _made("lamp", "Tells of a lamp.", _LAMP, READ, lambda a: f"it is {a['state']}")


def save(effects: Effects = WRITE, **more: Any) -> Tool:
    """Says that it has saved something."""
    return _made("save", "Saves a text.", _SAVE, effects, lambda a: f"saved {a['path']}", **more)


def send() -> Tool:
    """Says that it has sent something over the network."""
    return _made("send", "Sends a text.", _TAKES_TEXT, NETWORK, lambda a: "sent")


def transfer() -> Tool:
    """Says that it has moved something; it may do anything at all."""
    parameters = {"type": "object", "properties": {"to": _TEXT, "memo": {"type": "object"}}}
    return _made("transfer", "Moves a thing.", parameters, ALL_EFFECTS, lambda a: f"to {a['to']}")


def store() -> Tool:
    """Reads or writes, as its arguments say."""

    def effects(arguments: Mapping[str, Any]) -> Any:
        return WRITE if "text" in arguments else READ

    parameters = {"type": "object", "properties": {"path": _TEXT, "text": _TEXT}}
    return _made("store", "Reads or writes.", parameters, effects, lambda a: f"{a.get('path')}: ok")


def diary() -> Tool:
    """Gives what only the user should see."""
    return giving("diary", "Dear diary: nobody knows.", private=True)


def failing() -> Tool:
    """Fails each time."""

    async def run(arguments: Mapping[str, Any]) -> str:
        raise ToolError("the shelf is empty")

    return Tool(ToolSpec("shelf", "Takes from the shelf.", _NOTHING, READ), run)


def slow(seconds: float = 30.0, timeout: float | None = None) -> Tool:
    """Takes too long."""

    async def run(arguments: Mapping[str, Any]) -> str:
        await anyio.sleep(seconds)
        return "at last"

    return Tool(ToolSpec("slow", "Takes its time.", _NOTHING, READ, timeout=timeout), run)


def asking(effects: Effects = READ) -> Tool:
    """Asks the model itself, in a run within."""

    async def run(arguments: Mapping[str, Any]) -> str:
        context: ToolContext = current_context()
        return f"they say: {await context.ask(arguments['text'], ['look', 'save'])}"

    return Tool(ToolSpec("ask_around", "Asks around.", _TAKES_TEXT, effects), run)


def changing(states: list[str]) -> Tool:
    """Saves; what it would act on is in the first of the states."""

    def preview(arguments: Mapping[str, Any]) -> Preview:
        return Preview(f"+ {arguments['text']}", states[0])

    return save(preview=preview)


def many() -> list[Tool]:
    """More tools than a small catalog holds."""
    words = {
        "bus_times": "When the next bus leaves from a stop.",
        "train_times": "When the next train leaves from a station.",
        "recipe_find": "Finds a recipe for some ingredients.",
        "plant_water": "When a plant was last watered.",
        "book_shelf": "On which shelf of the library a book stands.",
        "tide_table": "High and low water at a harbour.",
        "star_map": "Which stars are above the horizon.",
        "song_words": "The words of a song.",
        "chess_rating": "The rating of a chess player.",
        "bird_call": "Which bird has this call.",
    }
    return [_made(name, said, _TAKES_TEXT, READ, _quarter_past) for name, said in words.items()]


def _quarter_past(arguments: Mapping[str, Any]) -> str:
    return f"{arguments['text']}: 09:15"
