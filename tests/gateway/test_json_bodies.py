"""Bodies are decoded by a quick decoder that reads what the standard library reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_tools.gateway.body import json_object, read
from mlx_tools.gateway.chat_completions import ChatBody, read_messages
from mlx_tools.gateway.client_tools import ClientTools
from mlx_tools.gateway.content import ContentReader
from mlx_tools.gateway.history import HistoryReader
from mlx_tools.gateway.request import ApiError, ClientMessage
from tests.tables import table

REFUSED = (
    *(b"", b"[]", b"1", b"{}x", b"{'a':1}", b'{"a":1,}', b'{"a":01}', b'{"a":.5}', b'{"a":1.}'),
    *(b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1e400}', b'{"a":tru}', b'{"a":"\\x"}', b"\x0c{}"),
    *(b'{"a":"\\ud800"}', b'{"\\udfff":1}', b'{"a":"\\ud83dx"}', b'{"a":"\xed\xa0\x80"}'),
    *(b'{"a":"\n"}', b'{"a":"\xff"}', b"\xef\xbb\xbf{}", b'{"a":1}\x00', "{}".encode("utf-16")),
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
)

TAKEN = (
    *(b" {}\n", b'{"a":1,"a":2}', b'{"":null}', b'{"a":"\\u0000\x7f"}', b'{"a":"\\ud83d\\ude00"}'),
    *(b'{"a":-0}', b'{"a":-0.0}', b'{"a":100.0}', b'{"a":1E2}', b'{"a":1e-400}', b'{"a":1e22}'),
    *(b'{"a":9007199254740993}', b'{"a":18446744073709551616}', b'{"a":-' + b"9" * 400 + b"}"),
    *(b'{"a":0.1000000000000000055511151231257827}', b'{"a":123456789012345678901234567890.5}'),
    *(b'{"a":' + b"[" * depth + b"]" * depth + b"}" for depth in (1, 200, 500)),
)


@table("body", REFUSED)
def test_what_is_not_plain_json_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError):
        json_object(body, "the body is")


@table("body", TAKEN)
def test_a_body_means_what_the_standard_library_reads(body: bytes) -> None:
    value, strict = json_object(body, "the body is"), json.loads(body)
    assert (value, json.dumps(value)) == (strict, json.dumps(strict))


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), VALUES, max_size=3), st.booleans())
def test_any_object_is_read_as_it_was_written(value: dict[str, Any], ascii_only: bool) -> None:
    try:
        body = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError):
        return
    assert json.dumps(json_object(body, "the body is")) == json.dumps(json.loads(body))


TEXTS = ("", "Hi.", "a\n\nb", "\x00", "日本")
ROLES = ("system", "developer", "user", "assistant", "function")


def messages_of(*messages: dict[str, Any]) -> list[ClientMessage]:
    history = HistoryReader(ClientTools([]), ContentReader())
    return [*read_messages(read(ChatBody, {"messages": [*messages]}).messages, history)]


@table("role, content", ((role, content) for role in ROLES for content in TEXTS))
def test_a_message_of_a_role_and_a_text_is_read_as_one_with_more_fields(
    role: str, content: str
) -> None:
    message = {"role": role, "content": content}
    assert messages_of(message) == messages_of({**message, "name": None, "tool_calls": None})


@table(
    "message, param",
    (
        ({"role": "nobody", "content": "Hi."}, "messages[1].role"),
        ({"role": 1, "content": "Hi."}, "messages[1].role"),
        ({"role": ["user"], "content": "Hi."}, "messages[1].role"),
        ({"role": "user", "content": 1}, "messages[1].content"),
        ({"role": "user", "content": ["Hi."]}, "messages[1].content[0]"),
        ({"role": "tool", "content": "Hi."}, "messages[1].tool_call_id"),
        ({"content": "Hi."}, "messages[1].role"),
        ("Hi.", "messages[1]"),
    ),
)
def test_a_wrong_message_is_named_by_its_place(message: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        messages_of({"role": "user", "content": "Hi."}, message)
    assert caught.value.param == param
