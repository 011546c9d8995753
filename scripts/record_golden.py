"""Records the transcripts of golden_transcripts/.

    python scripts/record_golden.py                # with the embedded model, on a server of its own
    python scripts/record_golden.py --scripted     # only those whose completions are written here

A golden transcript is an ordinary transcript, kept: of the embedded model's real runs in every
prompt style, and of scripted ones for what a small model would not write of itself (calls that
change things, several calls at once, other scripts, escapes, large arguments).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import anyio

from mlx_tools import Controller, Limits, Policy, Registry, RunSettings, Tool, ToolSpec
from mlx_tools.messages import Style
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.protocol import write_answer, write_call
from mlx_tools.store import SessionFiles
from mlx_tools.testing import ScriptedBackend
from mlx_tools.transcript import TranscriptFile
from mlx_tools.verdicts import FoundVerdict

FOLDER = Path(__file__).resolve().parents[1] / "golden_transcripts"
STYLES: Sequence[Style] = get_args(Style)
MODEL = "smollm2-135m"
SETTINGS = RunSettings(verdict=FoundVerdict())
"""What was measured of a model on this machine decides nothing here."""

QUESTIONS: Mapping[str, str] = {
    "calculator": "What is 17 * 23?",
    "clock": "What time is it?",
    "greeting": "Hello!",
}

CALLS: Mapping[str, Sequence[tuple[str, dict[str, Any]]]] = {
    "create-file": [("create_file", {"path": "notes/today.md", "content": "# Today\n\n- tea\n"})],
    "delete-file": [("delete_file", {"path": "notes/old notes.md", "recursive": False})],
    "transfer": [("transfer", {"to": "DE02 1203 0000", "amount": 1250.5, "currency": "EUR"})],
    "several": [
        ("create_file", {"path": "a.txt", "content": "one"}),
        ("create_file", {"path": "b.txt", "content": "two"}),
        ("delete_file", {"path": "c.txt"}),
    ],
    "scripts": [("create_file", {"path": "größe.txt", "content": "語 \U0001f642 \u2028 é"})],
    "escapes": [("create_file", {"path": 'C:\\a "b"', "content": "tab\there {\"x\": [1, '2']}"})],
    "nested": [
        ("transfer", {"to": "x", "amount": -3, "memo": {"lines": ["a", {"b": None}], "ok": True}})
    ],
    "long": [("create_file", {"path": "long.txt", "content": "All work and no play. " * 12})],
    "empty": [("wipe", {})],
}

_TEXT = {"type": "string"}
PARAMETERS: Mapping[str, dict[str, Any]] = {
    "create_file": {"path": _TEXT, "content": _TEXT},
    "delete_file": {"path": _TEXT, "recursive": {"type": "boolean"}},
    "transfer": {"to": _TEXT, "amount": {"type": "number"}, "currency": _TEXT, "memo": {}},
    "wipe": {},
}


class _OneFile:
    """A store that keeps its session in the file it was made for."""

    secret = b"golden"

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> SessionFiles:
        self._path.unlink(missing_ok=True)
        return SessionFiles(self._path.stem, TranscriptFile(self._path))


def _tools() -> list[Tool]:
    """Tools that may change everything, and change nothing."""
    return [
        Tool(
            ToolSpec(name, f"Does {name}.", {"type": "object", "properties": properties}),
            lambda arguments: "done",
        )
        for name, properties in PARAMETERS.items()
    ]


def _scripted(name: str, calls: Sequence[tuple[str, dict[str, Any]]], style: Style) -> None:
    lines = [write_call(tool, arguments, style=style) for tool, arguments in calls]
    controller = Controller(
        ScriptedBackend("\n".join(lines), write_answer("Done.", style)),
        _tools(),
        Policy(allow=sorted(PARAMETERS)),
        settings=replace(
            SETTINGS, style=style, chat_format=NAMED_FORMATS["chatml"], model="scripted"
        ),
        store=_OneFile(FOLDER / f"scripted-{style}-{name}.jsonl"),
    )
    outcome = controller.run_sync("Please do it.")
    print(f"{style:14} {name:12} {outcome.status} {json.dumps([c.status for c in outcome.calls])}")


async def _real() -> None:
    from mlx_tools.backends import ServerBackend
    from mlx_tools.models import pull_model
    from mlx_tools.models.files import read_model_files
    from mlx_tools.router import find_chat_format

    model = pull_model(MODEL).path
    found = find_chat_format(files=read_model_files(model, MODEL))
    async with ServerBackend(model) as backend:
        for style in STYLES:
            for name, question in QUESTIONS.items():
                controller = Controller(
                    backend,
                    Registry.builtin(),
                    Policy(preset="readonly_basic"),
                    limits=Limits(max_tokens=100),
                    settings=replace(
                        SETTINGS, style=style, chat_format=found.chat_format, model=MODEL
                    ),
                    store=_OneFile(FOLDER / f"{MODEL}-{style}-{name}.jsonl"),
                )
                outcome = await controller.run(question)
                print(f"{style:14} {name:12} {outcome.status} {outcome.to_json()['answer']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scripted", action="store_true", help="leave the real model alone")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for style in STYLES:
        for name, calls in CALLS.items():
            _scripted(name, calls, style)
    if not options.scripted:
        anyio.run(_real)


if __name__ == "__main__":
    main()
