"""The chat format of a server that names no model, by the tokens that its own chat comes to."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest

from mlx_tools.backends import CompletionsBackend
from mlx_tools.backends.capabilities import probe_chat_format
from mlx_tools.errors import BackendBroken
from mlx_tools.messages import Usage
from mlx_tools.prompt import NAMED_FORMATS, ChatFormat

CHATS = [name for name in NAMED_FORMATS if name != "plain"]


class ServerOf(CompletionsBackend):
    """A server whose model has this chat format; a token is a character, and the last prompt is in
    its cache. ``takes_system`` False: its template refuses a system message."""

    def __init__(
        self,
        chat_format: ChatFormat,
        *,
        takes_system: bool = True,
        tells_cache: bool = True,
        fails: bool = False,
    ) -> None:
        super().__init__("http://127.0.0.1:9")
        self.format, self.takes_system, self.fails = chat_format, takes_system, fails
        self.tells_cache = tells_cache
        self.cached = ""

    def rendered(self, system: str, question: str) -> str:
        own, before = self.format, ""
        if system and own.system is not None:
            before = f"{own.system[0]}{system}{own.system[1]}"
        elif system:
            question = f"{own.system_in_user[0]}{system}{own.system_in_user[1]}{question}"
        return f"{own.bos}{before}{own.user[0]}{question}{own.user[1]}{own.assistant[0]}"

    async def get(
        self, path: str, timeout: float, content: bytes | None = None
    ) -> tuple[int, httpx.Headers, bytes]:
        assert path == "/v1/chat/completions" and content is not None
        said = {one["role"]: one["content"] for one in json.loads(content)["messages"]}
        if "system" in said and not self.takes_system:
            return 400, httpx.Headers(), b'{"error":"no system messages"}'
        self.cached = self.rendered(said.get("system", ""), said["user"])
        usage = {"prompt_tokens": len(self.cached), "completion_tokens": 1}
        return 200, httpx.Headers(), json.dumps({"choices": [], "usage": usage}).encode()

    async def ask_whole(self, request: Any, *_: Any, **more: Any) -> Any:
        if self.fails:
            raise BackendBroken("no plain completions")
        shared = 0
        while request.prompt[: shared + 1] == self.cached[: shared + 1] and shared < len(
            self.cached
        ):
            shared += 1
        cached = shared if self.tells_cache else None
        return type("Answer", (), {"usage": Usage(len(request.prompt), cached, 1)})


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("takes_system", [True, False])
def test_the_format_that_comes_to_the_same_tokens_is_found(name: str, takes_system: bool) -> None:
    server = ServerOf(NAMED_FORMATS[name], takes_system=takes_system)
    assert anyio.run(probe_chat_format, server) == NAMED_FORMATS[name]


def test_a_format_that_has_no_name_is_not_taken_for_one_that_has() -> None:
    class Foreign(ServerOf):
        def rendered(self, system: str, question: str) -> str:
            # as long as chatml's, and another text
            return super().rendered(system, question).replace("<|im_", "<|in_")

    assert anyio.run(probe_chat_format, Foreign(NAMED_FORMATS["chatml"])) is None
    known = Foreign(NAMED_FORMATS["chatml"], tells_cache=False)
    assert anyio.run(probe_chat_format, known) == NAMED_FORMATS["chatml"]  # the count is all it has

    class Longer(ServerOf):
        def rendered(self, system: str, question: str) -> str:
            return super().rendered(system, question) + "<|extra|>"

    for tells_cache in (True, False):
        longer = Longer(NAMED_FORMATS["chatml"], tells_cache=tells_cache)
        assert anyio.run(probe_chat_format, longer) is None


def test_a_server_that_fails_says_nothing_of_its_format() -> None:
    assert anyio.run(probe_chat_format, ServerOf(NAMED_FORMATS["chatml"], fails=True)) is None
