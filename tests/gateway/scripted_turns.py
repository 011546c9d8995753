"""Turns for the writers of the interfaces: as they are written here, and of any kind."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st

from mlx_tools.gateway.request import ApiError, ClientCall, Reply, TextAdded, TurnDone
from mlx_tools.messages import Usage

USAGE = Usage(prompt_tokens=30, cached_tokens=20, completion_tokens=5)

Script = list[str | TurnDone | ApiError]
"""The outcome of a turn: its text in pieces, and its end, or an error where it breaks off."""


def script_answer(text: str, **more: Any) -> Script:
    """Return a turn that is an answer, in pieces of three characters."""
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    return [*pieces, TurnDone(**{"finish": "stop", "text": text, "usage": USAGE, **more})]


def script_calls(*calls: tuple[str, Any], text: str = "") -> Script:
    """Return a turn that calls tools."""
    made = tuple(
        ClientCall(f"call_{index}", name, json.dumps(arguments))
        for index, (name, arguments) in enumerate(calls)
    )
    done = TurnDone(finish="tool_calls", text=text, calls=made, usage=USAGE)
    return [text, done] if text else [done]


def stream_events(reply: Reply, script: Script) -> Iterator[str]:
    """Yield all events of a reply as texts."""
    yield from reply.begin()
    for part in script:
        if isinstance(part, str):
            yield from reply.tell(TextAdded(part))
        else:
            yield from reply.end(part) if isinstance(part, TurnDone) else reply.fail(part)


def parse_events(events: Iterable[str]) -> list[dict[str, Any]]:
    """Return the data of server-sent events, without the end mark."""
    found = []
    for event in events:
        *name, line = event.removesuffix("\n\n").split("\n")
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            continue
        found.append(json.loads(data))
        assert name == [f"event: {found[-1]['type']}"]
    return found


# --- turns of any kind ----------------------------------------------------------------------------

_TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_ARGUMENTS = st.dictionaries(_TEXTS, _TEXTS | st.integers() | st.lists(st.none()), max_size=3)


@st.composite
def turns(draw: st.DrawFn) -> Script:
    """A turn as it comes: a text in any pieces, then calls, and at its end what all of it was."""
    text = draw(_TEXTS)
    calls = tuple(
        ClientCall(f"call_{index}", draw(st.sampled_from(["f", "group.g"])), json.dumps(arguments))
        for index, arguments in enumerate(draw(st.lists(_ARGUMENTS, max_size=3)))
    )
    finish = "tool_calls" if calls else draw(st.sampled_from(["stop", "length"]))
    done = TurnDone(finish=finish, text=text, calls=calls, usage=USAGE)
    return [*_pieces(draw, text), done]


def _pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    bounds = [0, *cuts, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds) if a < b]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
