"""Golden transcripts of scripted runs, made for a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlx_tools import Controller, Policy, Registry, RunSettings, Tool, ToolSpec, TranscriptStore
from mlx_tools.backends import FoundVerdict
from mlx_tools.golden import Golden, make_golden, read_session, write_golden
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.testing import ScriptedBackend

CALL = '{"type":"tool_call","name":"add","arguments":{"a":2,"b":3}}'
ANSWER = '{"type":"final_answer","content":"It is 5."}'


def registry(*, wrong: bool = False) -> Registry:
    """A tool that adds; one that is ``wrong`` adds one more."""

    def add(arguments: Mapping[str, Any]) -> str:
        return str(arguments["a"] + arguments["b"] + wrong)

    number = {"type": "number"}
    parameters = {"type": "object", "properties": {"a": number, "b": number}}
    return Registry([Tool(ToolSpec("add", "Adds.", parameters, frozenset({"read"})), add)])


def golden(folder: Path, *completions: str, name: str = "sums", **given: Any) -> Golden:
    """The golden transcript of a run that gave these completions."""
    store = TranscriptStore(folder / ".sessions")
    controller = Controller(
        ScriptedBackend(*(completions or (CALL, ANSWER))),
        registry(),
        Policy(allow=["add"]),
        settings=RunSettings(
            strategy="free", chat_format=NAMED_FORMATS["chatml"], verdict=FoundVerdict()
        ),
        store=store,
    )
    outcome = controller.run_sync("What is 2 + 3?")
    session = read_session(store.path_of(outcome.session))
    return make_golden(session, name=name, registry=registry(), source="scripted", **given)


def golden_file(folder: Path, name: str = "sums", **given: Any) -> Path:
    """A file of it, which replays."""
    path = folder / f"{name}.jsonl"
    write_golden(golden(folder, name=name, **given), path)
    return path


def changed_file(folder: Path, name: str = "changed") -> Path:
    """A file of one that does not replay: it was recorded with another system prompt."""
    made = golden(folder, name=name)
    path = folder / f"{name}.jsonl"
    system = made.header.system.replace("add", "addd")
    write_golden(replace(made, header=replace(made.header, system=system)), path)
    return path
