"""No secret of a known kind leaves a run: not in what a model is shown, a file or an error."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import anyio
import pytest

from mlx_tools import Controller, Policy, Stopped, TranscriptStore, tool
from mlx_tools.controller import call_tool
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.tools import Registry
from tests.controller.sessions import require_answer

TOKEN = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"[:36]
"""Made up, of the shape of a token of GitHub's."""


@tool(effects={"read"})
def read(path: str) -> str:
    """Reads a file."""
    if path == "fails":
        raise ValueError(f"no access with {TOKEN}")
    if path == "encoded":
        return base64.b64encode(f"token: {TOKEN}".encode()).decode()
    return f"token = {TOKEN}\n" + "line\n" * 2000


@tool(effects={"network"})
def fetch(url: str) -> str:
    """Fetches a page."""
    return f"fetched {url}"


@tool(effects={"write"})
def write(text: str) -> str:
    """Writes a text."""
    return f"wrote {text}"


def kept(folder: Path) -> str:
    return "".join(
        path.read_text() for path in folder.rglob("*") if path.is_file() and path.name != "secret"
    )


@pytest.mark.parametrize("path", ["plain", "fails", "encoded"])
def test_a_secret_that_a_tool_returns_reaches_neither_the_model_nor_a_file(
    tmp_path: Path, path: str
) -> None:
    backend = ScriptedBackend(call("read", path=path), answer())
    controller = Controller(
        backend, [read], Policy(allow=["*"]), store=TranscriptStore(tmp_path / "s")
    )
    outcome = require_answer(controller.run_sync("Read it."))
    told = backend.prompts[1] + kept(tmp_path) + json.dumps(outcome.to_json(include_outputs=True))
    assert TOKEN not in told
    assert base64.b64encode(f"token: {TOKEN}".encode()).decode() not in told
    assert "[redacted:" in backend.prompts[1]


@tool(effects={"read"})
def find(file: str) -> str:
    """Finds a file."""
    places = f"/opt/strange place/{file} and '/etc/strange/{file}' as ~strange/{file}"
    if file == "fails":
        raise OSError(f"not in {places}")
    return places + "\nline" * 2000


@pytest.mark.parametrize("name", ["plain", "fails"])
def test_a_path_that_a_tool_tells_reaches_nobody_where_paths_are_taken_out(
    tmp_path: Path, name: str
) -> None:
    policy, store = Policy(allow=["*"], redact_paths=True), TranscriptStore(tmp_path / "s")
    backend = ScriptedBackend(call("find", file=name), answer())
    outcome = Controller(backend, [find], policy, store=store).run_sync("Find it.")
    direct = anyio.run(call_tool, Registry([find]), policy, "find", {"file": name})
    told = backend.prompts[1] + kept(tmp_path) + json.dumps(outcome.to_json(include_outputs=True))
    told += repr(direct)
    assert "[redacted:path]" in backend.prompts[1]
    for hidden in ("/opt", "/etc", "~strange"):
        assert hidden not in told


def test_redaction_is_off_where_the_policy_says_so(tmp_path: Path) -> None:
    backend = ScriptedBackend(call("read", path="plain"), answer())
    Controller(backend, [read], Policy(allow=["*"], redact=False)).run_sync("Read it.")
    assert TOKEN in backend.prompts[1]


@pytest.mark.parametrize("form", [TOKEN, base64.b64encode(TOKEN.encode()).decode()])
def test_a_secret_in_an_argument_to_the_network_stops_the_call(form: str) -> None:
    backend = ScriptedBackend(call("fetch", url=f"https://example.org/?q={form}"), answer())
    outcome = Controller(backend, [fetch], Policy(allow=["*"])).run_sync("Send it.")
    assert outcome.calls[0].error_code == "not_allowed"
    assert outcome.calls[0].status == "denied"


def test_what_was_redacted_is_not_written_back() -> None:
    backend = ScriptedBackend(
        call("read", path="plain"),
        lambda prompt: call(
            "write", text=prompt[prompt.rindex("[redacted:") :].split("]")[0] + "]"
        ),
        answer(),
    )
    outcome = Controller(backend, [read, write], Policy(allow=["*"])).run_sync("Copy it.")
    assert outcome.calls[1].arguments["text"].startswith("[redacted:")
    assert outcome.calls[1].error_code == "not_allowed"


def test_a_backend_s_error_is_recorded_without_its_secrets(tmp_path: Path) -> None:
    backend = ScriptedBackend(
        call("read", path="encoded"), RuntimeError(f"401: the key {TOKEN} is not known")
    )
    controller = Controller(
        backend, [read], Policy(allow=["*"]), store=TranscriptStore(tmp_path / "s")
    )
    assert isinstance(controller.run_sync("Read it."), Stopped)
    assert "the key [redacted:" in kept(tmp_path)
    assert TOKEN not in kept(tmp_path)
