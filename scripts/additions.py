"""Additions of common kinds, made for real in a copy of the package, and the files they touch.

    python scripts/additions.py      make each, try it, and say how many files it touched

An *addition* here is the smallest of its kind that works: a setting of a run that its header
records, a reason to stop, a kind of record, a backend of the command line. Files are those that
were there before; a backend brings one of its own besides.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scripts.generated_part import ROOT


@dataclass(frozen=True, slots=True)
class Addition:
    """An addition: ``edits`` puts a text behind another one in files of the package, ``new`` are
    files of its own, and ``shown`` is a program that fails where it does not work."""

    edits: Mapping[str, tuple[tuple[str, str], ...]]
    shown: str
    new: Mapping[str, str] = field(default_factory=dict)


ADDITIONS: Final[Mapping[str, Addition]] = {
    "setting of a run": Addition(
        edits={
            "transcript/records.py": (
                (
                    '    response_mode: str = "answer-first"\n    persona: str | None = None\n',
                    "    remark: str | None = None\n",
                ),
                ('    system: str = ""\n', "    remark: str | None = None\n"),
            ),
            "app/settings.py": (
                (
                    "class PromptSection(Section, frozen=True):\n",
                    '    remark: Annotated[Text | None, Setting("any", "What the run is about", '
                    'option="--remark TEXT", group="writing", allowed="text", run="remark")]\n',
                ),
            ),
        },
        shown="""
import json, subprocess, sys
from mlx_tools.testing import ScriptedServer, answer
with ScriptedServer(lambda prompt: answer("done")) as server:
    words = ["-m", "mlx_tools", "ask", "--json", "--url", server.url, "--remark", "a try", "Hi"]
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
header = open(json.loads(done.stdout)["transcript"]).readline()
assert json.loads(header)["remark"] == "a try"
""",
    ),
    "stop reason": Addition(
        edits={
            "errors.py": (("StopReason = Literal[\n", '    "no_wish",\n'),),
            "transcript/endings.py": (
                (
                    "    {\n",
                    '        "no_wish": ("nobody wished for more", "ask in other words"),\n',
                ),
            ),
        },
        shown="""
from mlx_tools import Controller, TranscriptStore
from mlx_tools.testing import ScriptedBackend, answer
from mlx_tools.transcript import StoppedRecord, make_outcome, stopped_in_words
store = TranscriptStore("sessions")
session = Controller(ScriptedBackend(answer()), store=store).run_sync("Hi").session
with store.open(session).transcript as transcript:
    transcript.append(StoppedRecord(reason="no_wish"))
with store.open(session).transcript as transcript:
    assert make_outcome(transcript).reason == "no_wish"
    assert "nobody wished for more" in stopped_in_words(list(transcript))
""",
    ),
    "kind of record": Addition(
        edits={
            "transcript/records.py": (
                (
                    "    record: PromptRecord\n    private: bool = False\n",
                    '\n\nclass RemarkRecord(_Record, frozen=True, kw_only=True, tag="remark"):\n'
                    '    """A remark that somebody made."""\n\n    content: str\n',
                ),
                ("Record = (\n    Header\n", "    | RemarkRecord\n"),
                ("    State.IDLE: frozenset({", '"remark", '),
            ),
            "transcript/__init__.py": (("    RepairRecord,\n", "    RemarkRecord,\n"),),
            "transcript/events.py": (
                ("    RepairRecord,\n", "    RemarkRecord,\n"),
                (
                    'server did not report."""\n    duration_ms: int | None\n',
                    "\n\nclass Remarked(Event, frozen=True, kw_only=True):\n"
                    '    """Somebody made a remark."""\n\n    content: str\n',
                ),
                (
                    "            return _event(FormatBroken, record)\n",
                    "        case RemarkRecord():\n            return _event(Remarked, record)\n",
                ),
            ),
        },
        shown="""
import anyio
from mlx_tools import Controller, TranscriptStore
from mlx_tools.testing import ScriptedBackend, answer
from mlx_tools.transcript import RemarkRecord, events

async def main():
    store = TranscriptStore("sessions")
    controller = Controller(ScriptedBackend(answer(), answer("again")), store=store)
    session = (await controller.run("Hi")).session
    with store.open(session).transcript as transcript:
        transcript.append(RemarkRecord(content="well said"))
    async with await controller.reopen(session) as conversation:
        assert (await conversation.run("And now?")).answer == "again"
    told = events.make_event(RemarkRecord(content="well said"), [])
    assert told.to_json() == {"type": "remarked", "content": "well said"}
    assert '"remark"' in open(f"sessions/{session}/transcript.jsonl").read()

anyio.run(main)
""",
    ),
    "backend": Addition(
        edits={
            "backends/interface.py": (("BackendKind = Literal[", '"parrot", '),),
            "backends/choose.py": (
                (
                    '        raise UsageError(f"the backend {kind} is unknown", '
                    "hint=f\"use {', '.join(known)}\")\n",
                    '    if kind == "parrot":\n'
                    "        from mlx_tools.backends.parrot import ParrotBackend\n\n"
                    "        backend = ParrotBackend()\n"
                    '        return SelectedBackend(backend=backend, source="named", model=kind)\n',
                ),
            ),
        },
        new={
            "backends/parrot.py": '''"""A backend that says the same to everybody."""

from mlx_tools.backends.interface import Chunk


class ParrotBackend:
    kind = model = "parrot"
    forbidden_tokens = ()

    async def complete(self, request):
        yield Chunk('{"type":"final_answer","content":"Hello!"}', "stop")

    async def aclose(self):
        """There is nothing to close."""
''',
        },
        shown="""
import json, subprocess, sys
words = ["-m", "mlx_tools", "ask", "--json", "--backend", "parrot", "Hi"]
done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
assert json.loads(done.stdout)["answer"] == "Hello!"
""",
    ),
}


def copy_with_addition(addition: Addition, folder: Path) -> None:
    """Copy the package and its data into ``folder``, with the addition."""
    for name in ("mlx_tools", "prompts", "config"):
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    for name, edits in addition.edits.items():
        path = folder / "mlx_tools" / name
        text = path.read_text(encoding="utf-8")
        for behind, put in edits:
            if text.count(behind) != 1:
                raise SystemExit(f"scripts/additions.py: {name} has not once: {behind!r}")
            text = text.replace(behind, behind + put)
        path.write_text(text, encoding="utf-8")
    for name, text in addition.new.items():
        (folder / "mlx_tools" / name).write_text(text, encoding="utf-8")


def run_addition(addition: Addition) -> subprocess.CompletedProcess[str]:
    """Run the program that shows an addition, and return its result."""
    with tempfile.TemporaryDirectory() as name:
        copy_with_addition(addition, Path(name))
        homes = ("CACHE", "CONFIG", "DATA", "STATE")
        environ = {f"MLX_TOOLS_{one}_DIR": f"{name}/{one.lower()}" for one in homes}
        return subprocess.run(
            [sys.executable, "-c", addition.shown],
            cwd=name,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": name, **environ},
            capture_output=True,
            text=True,
        )


if __name__ == "__main__":
    for kind, one in ADDITIONS.items():
        if (done := run_addition(one)).returncode:
            raise SystemExit(f"{kind}: {done.stderr}")
        print(f"{len(one.edits)}  {kind}: {', '.join(one.edits)}")
