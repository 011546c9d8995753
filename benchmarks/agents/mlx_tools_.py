"""mlx-tools' Controller: the model writes the protocol's lines, the framework reads them.

``durable`` keeps the transcript in a file, synced before and after a call whose ``effects`` can
change things; otherwise it is in memory. ``piece`` is how many characters come at a time, 0 for all
at once.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

from agents import ANSWER, QUESTION, Agent, Script
from mlx_tools import Chunk, CompletionRequest, Controller, Limits, Policy, TranscriptStore, tool


class Scripted:
    model = "scripted"

    def __init__(self, script: Script, piece: int) -> None:
        self.script, self.piece = script, piece

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        step = self.script.next()
        if step is None:
            line = {"type": "final_answer", "content": ANSWER}
        else:
            line = {"type": "tool_call", "name": "add", "arguments": {"a": step, "b": 1}}
        text = json.dumps(line, separators=(",", ":"))
        piece = self.piece or len(text)
        for start in range(0, len(text), piece):
            yield Chunk(text[start : start + piece])
        yield Chunk("", "stop")


class Subject(Agent):
    def __init__(self, durable: bool = False, effects: str = "read", piece: int = 0) -> None:
        self.effects, self.piece = effects, piece
        self.folder = Path(tempfile.mkdtemp(prefix="mlx-tools-bench-")) if durable else None
        super().__init__()

    def build(self) -> None:
        self.backend = Scripted(self.script, self.piece)
        self.tools = [tool(effects={self.effects}, name="add")(self.counter.add)]
        self.store = TranscriptStore(self.folder) if self.folder else None

    def prepare(self, steps: int) -> None:
        super().prepare(steps)
        self.controller = Controller(
            self.backend,
            self.tools,
            Policy(allow=["add"], ask_effects=()),
            limits=Limits(max_iterations=steps + 1),
            store=self.store,
        )

    def ask(self, steps: int) -> str:
        outcome = self.controller.run_sync(QUESTION)
        return str(getattr(outcome, "answer", outcome))

    def close(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder)
