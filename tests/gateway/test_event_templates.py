"""Events of which one text changes: they are those that would be written whole."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.gateway.request import EventTemplate, server_sent

TEXTS = st.text(st.characters(categories=None), max_size=30) | st.sampled_from(
    ["", '"', "\\", "\n", "\u2028", "\ud83d", "\x00", EventTemplate.CHANGES * 2]
)


@given(TEXTS, TEXTS)
def test_an_event_with_its_text_is_the_one_written_whole(model: str, text: str) -> None:
    def data(delta: str) -> dict[str, object]:
        return {"model": model, "choices": [{"delta": {"content": delta}, "end": None}]}

    event = EventTemplate(data(EventTemplate.CHANGES), "delta").with_text(text)
    whole = server_sent(data(text), "delta")
    name, line, *rest = event.split("\n")
    assert (name, rest) == ("event: delta", ["", ""])
    assert json.loads(line.removeprefix("data: ")) == json.loads(whole.split("\n")[1][6:])
    event.encode()
