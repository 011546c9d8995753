"""A memory of the messages of long conversations: only new ones are read.

Pure. A client sends the whole conversation with each request. Where its bytes go on from those of
an earlier request, the messages up to there are known. So a short body is read, which has one
message in their place, and they are put back afterwards. JSON allows that: behind a message of a
list the text goes on alike, whatever messages came before. The rest of the body is read and checked
as any other.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from mlx_tools.gateway.body import MAX_MESSAGES
from mlx_tools.gateway.request import ApiError, ClientMessage, Reply, TurnRequest
from mlx_tools.messages import replace

MIN_BODY: Final = 10_000
"""Bytes from which on a body is remembered. A choice: a shorter one is read quickly."""

MAX_CONVERSATIONS: Final = 64
"""Conversations that are remembered: a body is compared with each, up to the first byte that
differs."""

MAX_TRIES: Final = 2
"""Conversations that a body may go on from: two agents can begin alike with other tools."""

MAX_BYTES: Final = 32 << 20
"""About how many bytes they take together: as many as the folds of conversations."""

_COPIES: Final = 3
"""A conversation is held as bytes and as texts; its tools and messages take about as much again."""

_BLANK: Final = b" \t\r\n"

_SAME_BYTES: Final = 100
"""Bytes by which the list of messages is looked for in its body."""

ReadBody = Callable[[bytes], Awaitable[tuple[TurnRequest, Reply, Any]]]
"""Reads a body: what it asks for, how it is answered, and the tools in it."""


class MessageMemory:
    """The messages of long bodies, by the bytes that these begin with.

    A conversation that is missing costs the time to read it, and nothing else. The oldest are
    forgotten first.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._conversations: list[_Conversation] = []  # the one last that was used last
        # No client can guess it, so no message of a client is taken for ours.
        self._mark = secrets.token_hex(16)

    async def read(self, body: bytes, read: ReadBody) -> tuple[TurnRequest, Reply]:
        """Read the body of a chat completion; of known messages only what follows them.

        Args:
            body: The body.
            read: Reads a body from its first byte to its last.

        Raises:
            ApiError: as ``read`` does for the body.
        """
        starts = [c for c in self._conversations if body.startswith(c.text)]
        for conversation in starts[:MAX_TRIES]:
            short = _ShortBody(conversation, body, self._mark)
            try:
                turn, reply, tools = await read(short.body)
            except ApiError:  # which names a place in the short body
                break
            if (whole := short.complete(turn, tools)) is not None:
                self._keep(body, short.find_messages(), whole, tools)
                return whole, reply
        turn, reply, tools = await read(body)
        if len(body) >= MIN_BODY:
            self._keep(body, _find_messages(body), turn, tools)
        return turn, reply

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return _COPIES * sum(len(conversation.text) for conversation in self._conversations)

    def _keep(
        self, body: bytes, place: tuple[int, int] | None, turn: TurnRequest, tools: Any
    ) -> None:
        """Remember a conversation, in the place of those that it goes on from.

        Args:
            body: The whole body.
            place: Where the messages begin and end in it, None if unknown.
            turn: What it was read as.
            tools: The tools in it.
        """
        if place is None:
            return
        head, text = body[: place[0]], body[: place[1]]
        self._conversations = [
            c for c in self._conversations if not (text.startswith(c.text) and c.tools == tools)
        ]
        self._conversations.append(_Conversation(head, text, turn.messages, tools, turn.left_out))
        while len(self._conversations) > MAX_CONVERSATIONS or self.size > self._max_bytes:
            del self._conversations[0]


class _Conversation(Struct, frozen=True):
    """A conversation that was read.

    Attributes:
        head: Its body up to the bracket that opens the list of messages.
        text: Its body up to the end of the last message.
        messages: Its messages as they were read.
        tools: The tools of its body, by which the names in calls are read.
        left_out: What of its body has no effect.
    """

    head: bytes
    text: bytes
    messages: tuple[ClientMessage, ...]
    tools: Any
    left_out: tuple[str, ...]


class _ShortBody:
    """A body with one message in the place of those that are known.

    Args:
        conversation: The conversation that the body goes on from.
        body: The whole body.
        mark: The text of the one message.
    """

    def __init__(self, conversation: _Conversation, body: bytes, mark: str) -> None:
        self.conversation, self._mark = conversation, mark
        known = conversation.head + b'{"role":"user","content":"%b"}' % mark.encode()
        self.body, self._known_end = known + body[len(conversation.text) :], len(known)

    def complete(self, turn: TurnRequest, tools: Any) -> TurnRequest | None:
        """Return the turn with all messages, None if the whole body must be read.

        Args:
            turn: What the short body was read as.
            tools: The tools in it.
        """
        before, (first, *new) = self.conversation, turn.messages
        is_whole = (
            # Of two lists in a body the last counts: a second one has no such message.
            first == ClientMessage("user", self._mark)
            and len(before.messages) + len(new) <= MAX_MESSAGES
            and turn.left_out == before.left_out
            and tools == before.tools
        )
        return replace(turn, messages=(*before.messages, *new)) if is_whole else None

    def find_messages(self) -> tuple[int, int] | None:
        """Return where the messages begin and end in the whole body, None if unknown."""
        place = _find_messages(self.body)
        if place is None:
            return None
        return place[0], place[1] + len(self.conversation.text) - self._known_end


class _Messages(Struct):
    messages: msgspec.Raw


_decoder: Final = msgspec.json.Decoder(_Messages)


def _find_messages(body: bytes) -> tuple[int, int] | None:
    """Return where the messages begin and end in a body, None if unknown."""
    try:
        messages = bytes(_decoder.decode(body).messages)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    begin = body.find(messages[:_SAME_BYTES])
    if not body.startswith(messages, begin):
        return None
    # Behind the bracket that opens the list, and before the one that closes it.
    return begin + 1, begin + len(messages[:-1].rstrip(_BLANK))
