"""The web is off where policy says so: nothing is looked up, nothing connected to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import builtin_tools
from mlx_tools.policy import PRESETS
from tests.forked import forks

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("fetch_url", {"url": "https://93.184.215.14/"}),
    ("fetch_url", {"url": "https://example.org/"}),
    ("web_search", {"query": "tea"}),
]

WATCHED = """
import json, os, sys

TOUCHING = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
STARTING = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec")

def watch(event, arguments):
    if event in TOUCHING or event in STARTING:
        os.write(2, f"{event} {arguments}".encode())
        os._exit(99)

name, arguments, way = sys.argv[1:]
if way == "run":
    from mlx_tools import Controller, Policy, RunSettings, builtin_tools
    from mlx_tools.testing import ScriptedBackend

    call = {"type": "tool_call", "name": name, "arguments": json.loads(arguments)}
    answer = {"type": "final_answer", "content": "done"}
    backend = ScriptedBackend(json.dumps(call), json.dumps(answer))
    policy = Policy(allow=["*"], local_only=True)
    sys.addaudithook(watch)
    free = RunSettings(strategy="free")
    outcome = Controller(backend, builtin_tools(), policy, settings=free).run_sync("Look.")
    (made,) = outcome.calls
    assert (made.status, made.error_code) == ("denied", "not_allowed"), made
else:
    from mlx_tools.cli import main

    sys.addaudithook(watch)
    options = ["--tools", name, "--local-only", "--json"]
    sys.exit(0 if main(["tools", "call", name, arguments, *options]) == 1 else 5)
"""


def watched(code: str, *arguments: str, folder: Path) -> tuple[int, str]:
    """The end of a process of its own, and its output."""
    process = forks().start(*arguments, code=code, folder=folder)
    said = b"".join(process.communicate()).decode()
    return process.wait(), said


@pytest.mark.parametrize("way", ["run", "command"])
@pytest.mark.parametrize(("name", "arguments"), CALLS)
def test_in_local_only_mode_not_one_socket_is_opened(
    tmp_path: Path, name: str, arguments: dict[str, Any], way: str
) -> None:
    code, said = watched(WATCHED, name, json.dumps(arguments), way, folder=tmp_path)
    assert code == 0, said


def test_the_watch_sees_what_it_is_for(tmp_path: Path) -> None:
    allowed = WATCHED.replace(", local_only=True", "")
    name, arguments = CALLS[0]
    code, said = watched(allowed, name, json.dumps(arguments), "run", folder=tmp_path)
    assert code == 99 and "socket.connect" in said


def test_both_tools_use_the_network_which_only_the_preset_for_research_grants() -> None:
    for preset in PRESETS.values():
        granted = preset.name == "research"
        assert {"fetch_url", "web_search"}.isdisjoint(preset.tools) != granted
        assert ("network" in preset.effects) == granted
    specs = builtin_tools().all_specs()
    for name in ("fetch_url", "web_search"):
        assert specs[name].effects == {"read", "network"}
