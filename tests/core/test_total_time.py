"""The total time of a run counts from its first step: finding out what the server serves."""

from __future__ import annotations

import anyio
import pytest

from mlx_tools import CompletionsBackend, Controller, Limits, Outcome, Stopped
from mlx_tools.errors import BackendTimeout
from mlx_tools.testing import ScriptedBackend, run, skip
from tests.backends.loopback import Connection, says, serving


def hang(connection: Connection) -> None:
    connection.wait(60)


@pytest.mark.parametrize("page", ["health", "models"])
def test_a_server_that_does_not_say_what_it_serves_takes_no_more_than_the_total_time(
    page: str,
) -> None:
    with serving(says("Hi."), **{page: hang}) as server:  # type: ignore[arg-type]
        controller = Controller(CompletionsBackend(server.url), limits=Limits(total_timeout=0.3))
        with pytest.raises(BackendTimeout, match=r"in the 0\.3 s that there were"):
            controller.run_sync("Hi?")
    assert server.bodies == []


def test_time_that_is_gone_before_counts_for_the_first_question_alone() -> None:
    answer = '{"type":"final_answer","content":"3"}'

    class Slow(ScriptedBackend):
        async def complete(self, request):  # type: ignore[no-untyped-def]
            await skip(11)
            async for chunk in super().complete(request):
                yield chunk

    async def main() -> list[Outcome]:
        controller = Controller(Slow(answer, answer), limits=Limits(total_timeout=20))
        async with await controller.conversation(spent=10) as conversation:
            return [await conversation.run(question) for question in ("One?", "Two?")]

    first, second = run(main)
    assert isinstance(first, Stopped) and first.reason == "total_timeout"
    assert second.status == "answered"


def test_no_time_left_is_told_before_anything_is_asked() -> None:
    async def main() -> None:
        controller = Controller(ScriptedBackend(), limits=Limits(total_timeout=1))
        await controller.conversation(spent=2)

    with pytest.raises(BackendTimeout, match="more time"):
        anyio.run(main)
