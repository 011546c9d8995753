"""A body is read alike whether its messages are known from an earlier one or not."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.gateway import message_memory
from mlx_tools.gateway.body import json_object
from mlx_tools.gateway.chat_completions import read_chat_completion
from mlx_tools.gateway.message_memory import MIN_BODY, MessageMemory
from mlx_tools.gateway.request import ApiError, Reply, TurnRequest
from tests.gateway.conftest import WEATHER

pytestmark = pytest.mark.anyio

LONG: Final = {"role": "system", "content": "word " * MIN_BODY}
HELLO: Final = {"role": "user", "content": "Hello."}

texts = st.text(st.sampled_from('ab \n"\\{}[],:é🌍\ud83d'), max_size=8)
parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}),
)
calls = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["a", "b"]),
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["get_weather", "get weather", "gone"]),
                "arguments": st.sampled_from(['{"city": "Rome"}', "{", ""]),
            }
        ),
    }
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts}),
    st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(parts, max_size=2)}),
    st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": st.lists(calls)}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": texts, "content": texts}),
    st.sampled_from([{"role": "nobody"}, {"role": "tool", "content": ""}, 5, {}]),
)
tools = st.sampled_from([None, [], [{"type": "function", "function": {"name": "get weather"}}]])


async def read(body: bytes, sizes: list[int] | None = None) -> tuple[TurnRequest, Reply, Any]:
    if sizes is not None:
        sizes.append(len(body))
    value = json_object(body, "the body is")
    turn, reply = read_chat_completion(value, new_id=lambda: "x", now=lambda: 0.0)
    return turn, reply, value.get("tools")


async def outcome(reading: Callable[[], Awaitable[tuple[Any, ...]]]) -> object:
    """The turn that a body is read as, or the error."""
    try:
        turn, reply, *_ = await reading()
    except ApiError as error:
        return error.status, error.code, error.param, str(error)
    return turn, reply.streamed


@st.composite
def bodies(draw: st.DrawFn) -> list[bytes]:
    """The bodies of conversations, in the form of one client: most go on from one before."""
    indent = draw(st.sampled_from([None, 1]))
    is_ascii, is_last = draw(st.booleans()), draw(st.booleans())
    conversation: list[Any] = [LONG]
    found = []
    for _ in range(draw(st.integers(2, 4))):
        if draw(st.integers(0, 4)) == 0:
            del conversation[draw(st.integers(0, len(conversation))) :]
        conversation += draw(st.lists(messages, max_size=3))
        body: dict[str, Any] = {"messages": conversation}
        more = {"tools": draw(tools), "max_tokens": draw(st.sampled_from([1, 2, 0.5]))}
        more |= draw(st.sampled_from([{}, {"seen": {"messages": [LONG]}}, {"messages_": [HELLO]}]))
        body = more | body if is_last else body | more
        text = json.dumps(body, indent=indent, ensure_ascii=is_ascii)
        text += draw(st.sampled_from(["", "", "", "]", " "]))
        found.append(text.encode("utf-8", "surrogatepass"))
    return found


@given(bodies())
def test_a_body_is_read_alike_with_a_memory_and_without(found: list[bytes]) -> None:
    memory = MessageMemory()

    async def read_all() -> None:
        for body in found:
            whole = await outcome(partial(read, body))
            assert await outcome(partial(memory.read, body, read)) == whole

    anyio.run(read_all)


def dump(conversation: list[Any], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": conversation, **more}).encode()


@pytest.mark.parametrize("indent", [None, 2])
async def test_of_a_longer_conversation_only_the_new_messages_are_read(indent: int | None) -> None:
    memory, sizes = MessageMemory(), list[int]()
    conversation: list[Any] = [LONG]
    for number in range(3):
        conversation.append({"role": "user", "content": f"{number}"})
        body = json.dumps({"messages": conversation, "tools": [WEATHER]}, indent=indent).encode()
        turn, _ = await memory.read(body, partial(read, sizes=sizes))
        assert turn == (await read(body))[0]
    assert sizes[0] > MIN_BODY
    assert [size < 1000 for size in sizes[1:]] == [True, True]


@pytest.mark.parametrize(
    "body",
    [
        dump([LONG | {"content": "other " * MIN_BODY}, HELLO, HELLO]),
        dump([LONG, HELLO, HELLO], tools=[WEATHER]),
        dump([LONG, HELLO, {"role": "nobody", "content": ""}]),
        dump([LONG, HELLO, {"role": "user", "content": [{"type": "image_url"}]}]),
        dump([LONG, HELLO])[:-1] + b',"messages":[{"role":"user","content":"Other."}]}',
        dump([LONG, HELLO])[:-1] + b',"m\\u0065ssages":[{"role":"user","content":"Other."}]}',
        dump([LONG, HELLO])[:-2] + b",]}",
        dump([LONG, HELLO])[:-2] + b'{"role":"user","content":"Hello."}]}',
        dump([LONG, HELLO] + [HELLO] * 9_999),
    ],
    ids=[
        *("changed", "tools", "role", "left out", "second list", "escaped name", "comma"),
        *("no comma", "too many"),
    ],
)
async def test_where_it_does_not_go_on_from_what_is_known_the_whole_is_read(body: bytes) -> None:
    memory, sizes = MessageMemory(), list[int]()
    await memory.read(dump([LONG, HELLO]), read)
    whole = await outcome(partial(read, body))
    assert await outcome(partial(memory.read, body, partial(read, sizes=sizes))) == whole
    assert sizes[-1] == len(body)


async def test_a_list_that_stands_twice_in_a_body_is_no_known_one() -> None:
    memory = MessageMemory()
    twice = json.dumps([LONG, HELLO])
    for end in ("", f',"messages":{twice}', ',"messages":[]'):
        body = f'{{"other":{twice},"messages":{twice}{end}}}'.encode()
        if end.endswith("[]"):
            with pytest.raises(ApiError, match="messages"):
                await memory.read(body, read)
        else:
            assert (await memory.read(body, read))[0] == (await read(body))[0]


async def test_a_body_with_a_list_that_begins_alike_is_not_remembered() -> None:
    memory = MessageMemory()
    await memory.read(
        dump([LONG, HELLO]).replace(b"{", b'{"other":[%b],' % json.dumps(LONG).encode(), 1), read
    )
    assert memory.size == 0


async def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MessageMemory(max_bytes=1_000_000)
    await memory.read(dump([HELLO]), read)
    assert memory.size == 0
    for number in range(50):
        await memory.read(dump([LONG | {"content": f"{number}" + "x" * MIN_BODY}]), read)
        assert memory.size <= 1_000_000
    assert memory.size > 900_000
    monkeypatch.setattr(message_memory, "MAX_CONVERSATIONS", 3)
    await memory.read(dump([LONG]), read)
    assert memory.size < 4 * 3 * len(dump([LONG]))
    await memory.read(dump([LONG | {"content": "x" * 1_000_000}]), read)
    assert memory.size == 0


async def test_two_conversations_that_differ_in_their_tools_are_both_known() -> None:
    memory, sizes = MessageMemory(), list[int]()
    for number in range(1, 5):
        for tools in ([], [WEATHER]):
            body = dump([LONG, *[HELLO] * number], tools=tools)
            turn, _ = await memory.read(body, partial(read, sizes=sizes))
            assert turn == (await read(body))[0]
    assert sum(size > MIN_BODY for size in sizes) == 2


async def test_a_conversation_that_goes_on_takes_the_place_of_its_beginning() -> None:
    memory = MessageMemory()
    conversation: list[Mapping[str, Any]] = [LONG]
    for _ in range(10):
        conversation.append(HELLO)
        for tools in ([], [], [WEATHER]):  # a client that lost the answer asks again
            await memory.read(dump([*conversation], tools=tools), read)
    assert memory.size < 2 * 4 * len(msgspec.json.encode(conversation))
