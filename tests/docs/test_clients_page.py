"""The program of docs/clients.md, run on a gateway whose model is scripted."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from mlx_tools.app import Door
from mlx_tools.gateway.admission import Admission
from mlx_tools.gateway.server import Gateway, application
from mlx_tools.testing import ScriptedBackend, answer, call
from tests.forked import forks
from tests.gateway.conftest import OneModel, speaker_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8321"


@contextmanager
def gateway(backend: ScriptedBackend) -> Iterator[str]:
    """The address of a gateway on this model."""
    models: Any = OneModel(speaker_of(backend))
    app = application(Gateway(models, Admission(4, 8, lambda: 0.0)), Door())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join()


def test_the_program_of_the_page_calls_a_tool_and_says_what_the_model_made_of_it() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert ADDRESS in program
    backend = ScriptedBackend(call("get_weather", city="Rome"), answer("Rain in Rome."))
    with gateway(backend) as address:
        run = forks().start(code=program.replace(ADDRESS, address))
        out, err = run.communicate()
    assert (run.wait(), out) == (0, b"Rain in Rome."), err
    assert "rain, 12 degrees" in backend.prompts[1]
