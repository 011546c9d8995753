"""Calls and results of any kind in a client's conversation, as messages.

Clients send back what other servers gave them: calls of tools that those servers ran, results with
pictures, snapshots. A call becomes its name and arguments, a result its text; nothing is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from mlx_tools.gateway.client_tools import custom_arguments
from mlx_tools.gateway.content import ContentReader
from mlx_tools.gateway.request import ClientCall, ClientMessage, JsonObject, Role

_CALL_ENDINGS: Final = ("_call", "tool_use", "_request")
_RESULT_ENDINGS: Final = ("_output", "_result", "_response")
_RESULT_KEYS: Final = ("output", "outputs", "results", "result", "error")
"""Keys of the result of a call that a server ran, or of the text of a result."""

_BODY_KEYS: Final = (*_RESULT_KEYS, "content", "tools")

_CALL_METADATA: Final = frozenset(
    {
        *("type", "id", "call_id", "status", "name", "namespace", "caller", "async", "agent"),
        *("server_label", "server_name", "approval_request_id", "cache_control", "execution"),
        *("environment", "container_id", "pending_safety_checks", "created_by", "fingerprint"),
        *("output_format", "signature", "toolset_version", *_RESULT_KEYS),
    }
)
"""Fields of a call that are not arguments."""


_ROLES: Final[Mapping[Any, Role]] = {
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


def is_call(item: JsonObject) -> bool:
    """Return whether an item or block is a call, of any kind."""
    kind = str(item.get("type"))
    return kind.endswith(_CALL_ENDINGS) or ("call_id" in item and not is_result(item))


def is_result(item: JsonObject) -> bool:
    """Return whether an item or block is the result of a call, of any kind."""
    kind = str(item.get("type"))
    names_call = any(key in item for key in ("call_id", "tool_use_id", "approval_request_id"))
    return kind.endswith("_call_output") or (names_call and kind.endswith(_RESULT_ENDINGS))


def call_id(item: JsonObject) -> str:
    """Return the id by which a call and its result belong together."""
    for key in ("call_id", "tool_use_id", "approval_request_id", "id"):
        value = item.get(key)
        if (
            isinstance(value, str)
            and value
            and not (key == "approval_request_id" and is_call(item))
        ):
            return value
    return ""


class HistoryReader:
    """Reads calls and results of any kind.

    Attributes:
        content: Reads their texts, and knows what was left out of them.
    """

    def __init__(self, model_name: Callable[[str, str], str], content: ContentReader) -> None:
        """Read calls. ``model_name`` gives the model's name for a name and a namespace."""
        self._model_name, self.content = model_name, content

    def function_call(
        self, id_: str, name: str, arguments: str | JsonObject | None, namespace: str = ""
    ) -> ClientCall:
        """Return a call of a function with the arguments that a client sends."""
        text = (
            arguments
            if isinstance(arguments, str)
            else json.dumps(arguments or {}, ensure_ascii=False)
        )
        return ClientCall(id_, self._model_name(name, namespace), text)

    def custom_call(self, id_: str, name: str, text: str, namespace: str = "") -> ClientCall:
        """Return a call of a custom tool with its text."""
        return ClientCall(id_, self._model_name(name, namespace), custom_arguments(text))

    def call(self, item: JsonObject) -> ClientCall:
        """Return a call of another kind, named by the item or by that kind."""
        kind = str(item.get("type"))
        name, namespace = item.get("name"), item.get("namespace")
        if not isinstance(name, str) or not name:
            name = kind.removesuffix("_call").removesuffix("_request")
        if not isinstance(namespace, str):
            label = item.get("server_label", item.get("server_name"))
            namespace = label if isinstance(label, str) else ""
        if kind == "custom_tool_call" and isinstance(item.get("input"), str):
            return self.custom_call(call_id(item), name, item["input"], namespace)
        return self.function_call(call_id(item), name, self._arguments(item), namespace)

    def _arguments(self, item: JsonObject) -> str | JsonObject:
        for key in ("arguments", "input"):
            value = item.get(key)
            if isinstance(value, dict):
                return value
            if isinstance(value, str) and _is_object(value):
                return value
        found = {
            key: value
            for key, value in item.items()
            if key not in _CALL_METADATA and value is not None and not key.startswith("encrypted")
        }
        if len(found) == 1 and isinstance(value := next(iter(found.values())), dict):
            found = {key: part for key, part in value.items() if part is not None}
        return found

    def own_result(self, item: JsonObject) -> ClientMessage | None:
        """Return the result within a call; None if it comes apart, or not at all."""
        present = [key for key in _RESULT_KEYS if item.get(key) is not None]
        comes_apart = str(item.get("type")).endswith(("tool_use", "_request"))
        if not present and ("call_id" in item or comes_apart):
            return None
        text = self.content.value([item[key] for key in present]) or str(item.get("status", ""))
        failed = item.get("error") is not None
        return ClientMessage("tool", text, call_id=call_id(item), is_error=failed)

    def result(self, item: JsonObject) -> ClientMessage:
        """Return the result of a call, of another kind."""
        present = [item[key] for key in _BODY_KEYS if item.get(key) is not None]
        if present:
            text = self.content.value(present if len(present) > 1 else present[0])
        else:
            text = self.content.value({k: v for k, v in item.items() if k != "type"})
        failed = bool(item.get("is_error") or item.get("error"))
        failed = failed or item.get("status") == "failed"
        text = text or str(item.get("status") or "")
        return ClientMessage("tool", text, call_id=call_id(item), is_error=failed)

    def messages(self, item: JsonObject) -> Iterator[ClientMessage]:
        """Read an item or block of an unknown kind.

        Its kind is noted as left out, because the model at least sees it in another form.
        """
        kind = str(item.get("type"))
        self.content.left_out[kind] = None
        if is_call(item):
            result = self.own_result(item)
            yield ClientMessage("assistant", calls=(self.call(item),))
            if result is not None:
                yield result
        elif is_result(item):
            yield self.result(item)
        elif text := self.text(item):
            yield ClientMessage(_ROLES.get(item.get("role"), "user"), text)

    def text(self, item: JsonObject) -> str:
        """Return the text of an item that is neither call nor result, such as a summary."""
        for key in ("content", "summary", "text"):
            if item.get(key):
                return self.content.value(item[key])
        return ""


class ConversationBuilder:
    """Collects texts and calls into messages, one for each turn of the model."""

    def __init__(self) -> None:
        self._messages: list[ClientMessage] = []
        self._role: Role = "user"
        self._texts: list[str] = []
        self._calls: list[ClientCall] = []

    def say(self, role: Role, text: str) -> None:
        """Add a text, to the last message if that is open and of the same speaker."""
        if self._calls or role != self._role:
            self.end_message()
        self._role = role
        self._texts.append(text)

    def call(self, call: ClientCall) -> None:
        """Add a call, to the turn that it may be part of."""
        if self._role != "assistant":
            self.end_message()
            self._reopen()
        self._role = "assistant"
        self._calls.append(call)

    def add(self, message: ClientMessage) -> None:
        """Add a message of any role, calls to their turn."""
        if message.role == "assistant" and message.calls and not message.content:
            for call in message.calls:
                self.call(call)
            return
        self.end_message()
        self._messages.append(message)

    def end_message(self) -> None:
        """End the message: a later text is a message of its own."""
        if self._texts or self._calls:
            text, calls = "\n".join(self._texts), tuple(self._calls)
            self._messages.append(ClientMessage(self._role, text, calls))
        self._role, self._texts, self._calls = "user", [], []

    def end(self) -> list[ClientMessage]:
        """Return the messages."""
        self.end_message()
        return self._messages

    def _reopen(self) -> None:
        """Go on with the model's last message, to which calls may still belong."""
        if self._messages and self._messages[-1].role == "assistant":
            message = self._messages.pop()
            self._texts = [message.content] if message.content else []
            self._calls = [*message.calls]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text or "{}"), dict)
    except (ValueError, RecursionError):
        return False
