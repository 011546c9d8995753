"""Server-sent events from bytes, split anywhere; what the text and the counts say of an edit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends.wire import MAX_EVENT, Collector, EventReader
from mlx_tools.errors import BackendBroken, BackendError
from tests.backends.asking import json_values
from tests.tables import table

lines = st.one_of(
    st.sampled_from(["", "data", "data:", ":", ": ping", "event: x", "id", "retry: 3", "data: a"]),
    st.text(st.characters(exclude_characters="\r\n"), max_size=12).map("data: {}".format),
)
streams = st.lists(st.tuples(lines, st.sampled_from(["\n", "\r\n", "\r"])), max_size=12).map(
    lambda parts: "".join(line + end for line, end in parts).encode("utf-8", "surrogatepass")
)


def read(pieces: list[bytes]) -> list[str] | None:
    reader = EventReader("http://there")
    try:
        return [event for piece in (*pieces, None) for event in reader.feed(piece)]
    except BackendBroken:
        return None


@given(streams, st.data())
def test_events_are_the_same_however_the_bytes_are_split(
    stream: bytes, data: st.DataObject
) -> None:
    whole = read([stream])
    assert read([stream[i : i + 1] for i in range(len(stream))]) == whole
    place = data.draw(st.integers(0, len(stream)))
    assert read([stream[:place], stream[place:]]) == whole


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_an_event_is_given_as_soon_as_its_lines_have_ended(end: str) -> None:
    reader = EventReader("http://there")
    assert list(reader.feed(f"data: a{end}{end}".encode())) == ["a"]
    assert list(reader.feed(f"data: b{end}{end}".encode())) == ["b"]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_no_bytes_raise_anything_but_our_errors(pieces: list[bytes]) -> None:
    collector = Collector("http://there", 16)
    try:
        for piece in (*pieces, None):
            list(collector.feed(piece))
    except BackendError as error:
        assert error.message


def test_the_limits_hold_for_lines_that_come_in_small_pieces() -> None:
    reader = EventReader("http://there")
    with pytest.raises(BackendBroken):
        for _ in range(MAX_EVENT // 1000 + 2):
            list(reader.feed(b"x" * 1000))


@given(json_values("choices", "text", "finish_reason", "usage", "error", "index", "delta"))
def test_no_json_value_breaks_the_reading_of_an_event(value: Any) -> None:
    try:
        chunk = Collector("http://there", 16).take_whole(json.dumps(value).encode())
    except BackendError:
        return
    assert isinstance(chunk.text, str)


# --- edits ----------------------------------------------------------------------------------------

MLX_LM = "0.32.2-0.32.4-Linux-6.1-x86_64-with-glibc2.36-"


VLLM = "vllm"
CUT_IN_TWO = ['{"a":"Use ', "", "", ' tags"}']
THOUGHT = [*[""] * 9, "Sure", "."]


@table(
    ("texts", "tokens", "finish", "server", "edited"),
    [
        # as many tokens as pieces; or nobody counts
        (["Hel", "lo", " there"], 4, "stop", MLX_LM, False),
        (["Hel", "lo", " there"], None, "stop", MLX_LM, False),
        # tokens that leave no text by themselves
        (["é", "€", "😀"], 3 + 1 + 2 + 3 + 1, "stop", MLX_LM, False),
        (["a", " 1", " 2", " 3"], 4 + 3 + 1, "stop", MLX_LM, False),
        # a native call that was cut out
        ([], 20, "tool_calls", MLX_LM, True),
        ([], 20, "stop", MLX_LM, True),
        (["Sure."], 30, "length", MLX_LM, True),
        # reasoning that was cut out; but for a thought before all text, as far as it goes
        (CUT_IN_TWO, 5, "stop", MLX_LM, True),
        ([""] * 9, 10, "stop", MLX_LM, True),
        (THOUGHT, 12, "stop", MLX_LM, False),
        (THOUGHT, 22, "stop", MLX_LM, True),
        # other servers are only judged by bytes
        (["Hello there, this is one event of many tokens"], 12, "stop", VLLM, False),
        (["Hi"], 20, "stop", VLLM, True),
    ],
)
def test_an_edit_is_told_by_tokens_that_left_nothing(
    texts: list[str], tokens: int | None, finish: str, server: str, edited: bool
) -> None:
    collector = Collector("http://there", 512)

    def event(text: str, reason: str | None = None) -> bytes:
        choice = {"text": text, "finish_reason": reason}
        value = {"choices": [choice], "system_fingerprint": server}
        return f"data: {json.dumps(value)}\n\n".encode()

    for text in texts:
        list(collector.feed(event(text)))
    usage = None if tokens is None else {"completion_tokens": tokens}
    end = f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
    list(collector.feed(event("", finish) + end.encode()))
    assert collector.last().edited is edited
