"""The total time of a run counts from its first request; what comes before has as long again."""

from __future__ import annotations

import pytest

from mlx_tools import CompletionsBackend, Controller, Limits, Outcome, Stopped
from mlx_tools.errors import BackendBroken, BackendTimeout
from mlx_tools.testing import ScriptedBackend, answer, run, skip
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


def test_loading_a_model_takes_none_of_the_total_time() -> None:
    class Loaded(ScriptedBackend):
        async def start(self) -> None:
            await skip(15)

        async def complete(self, request):  # type: ignore[no-untyped-def]
            await skip(11)
            async for chunk in super().complete(request):
                yield chunk

    async def main(seconds: float) -> Outcome:
        limits = Limits(total_timeout=seconds)
        return await Controller(Loaded(answer("3")), limits=limits).run("One?")

    assert run(main, 12).status == "answered"
    stopped = run(main, 10)
    assert isinstance(stopped, Stopped) and stopped.reason == "total_timeout"
    assert stopped.exit_code == 1


def test_a_model_that_cannot_be_loaded_fails_the_run_as_its_backend() -> None:
    class Broken(ScriptedBackend):
        async def start(self) -> None:
            raise OSError("no weights")

    with pytest.raises(BackendBroken, match="no weights"):
        Controller(Broken()).run_sync("One?")
