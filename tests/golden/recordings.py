"""Records golden transcripts of scripted runs for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from mlx_tools import Controller, Limits, Policy, Registry, RunSettings, Tool, ToolSpec
from mlx_tools.backends import VerdictChoice
from mlx_tools.golden import Golden, make_golden, write_golden
from mlx_tools.messages import replace
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store.session_store import MemoryStore
from mlx_tools.testing import Script, ScriptedBackend, answer, call

SETTINGS = RunSettings(
    strategy="free", chat_format=NAMED_FORMATS["chatml"], verdict=VerdictChoice(), model="m"
)


def record_session(
    registry: Registry,
    *scripts: Script | str,
    policy: Policy | None = None,
    questions: Sequence[str] = ("Hm?",),
    history: Sequence[Any] = (),
    limits: Limits | None = None,
    approver: Any = None,
    store: Any = None,
    **settings: Any,
) -> Golden:
    """Run a scripted model, which may call every tool, and return its session."""
    store = MemoryStore() if store is None else store
    controller = Controller(
        ScriptedBackend(*scripts),
        registry,
        policy or Policy(allow=["*"]),
        limits=limits or Limits(),
        settings=replace(SETTINGS, **settings),
        store=store,
        approver=approver,
    )

    async def ask() -> str:
        async with await controller.conversation(history=history) as conversation:
            for question in questions:
                if (await conversation.run(question)).status == "paused":
                    break
            return conversation.session

    return Golden.from_records(tuple(store.open(anyio.run(ask)).transcript))


def record_golden(registry: Registry, *scripts: Script | str, **run: Any) -> Golden:
    """Run a scripted model, and return the golden transcript.

    ``about``, ``expect``, ``name`` and ``features`` are fields of the transcript.
    """
    own = {key: run.pop(key) for key in ("about", "expect", "name", "features") if key in run}
    session = record_session(registry, *scripts, **run)
    return make_golden(session, registry=registry, source="scripted", **{"name": "it"} | own)


def registry() -> Registry:
    """Return a registry with one tool, which adds two numbers."""

    def add(arguments: Mapping[str, Any]) -> str:
        return str(arguments["a"] + arguments["b"])

    number = {"type": "number"}
    parameters = {"type": "object", "properties": {"a": number, "b": number}}
    return Registry([Tool(ToolSpec("add", "Adds.", parameters, frozenset({"read"})), add)])


def write_golden_file(folder: Path, name: str = "sums", **given: Any) -> Path:
    """Write the golden transcript of a run that adds two numbers."""
    path = folder / f"{name}.jsonl"
    scripts = call("add", a=2, b=3), answer("It is 5.")
    asked = {"questions": ["What is 2 + 3?"], "name": name}
    write_golden(record_golden(registry(), *scripts, **asked, **given), path)
    return path


def write_changed_file(folder: Path, name: str = "changed") -> Path:
    """Write a golden transcript that fails, because its system prompt was another."""
    path = write_golden_file(folder, name)
    header, *rest = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join([header.replace("add(", "addd("), *rest]), "utf-8")
    return path
