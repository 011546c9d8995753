"""Checks to report on: real runs with a scripted model, replayed, and some that differ."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from mlx_tools import (
    Controller,
    Limits,
    Policy,
    Registry,
    RunSettings,
    Tool,
    ToolSpec,
    TranscriptStore,
)
from mlx_tools.backends import FoundVerdict
from mlx_tools.controller import ApprovalAnswer
from mlx_tools.golden import (
    Column,
    Difference,
    Golden,
    GoldenCheck,
    Sample,
    make_golden,
    read_session,
    replay,
)
from mlx_tools.messages import ErrorInfo
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store.transcript import to_json
from mlx_tools.testing import Script, ScriptedBackend
from mlx_tools.transcript.records import CompletionRecord, DecisionRecord, ObservationRecord
from tests.core.sessions import answer, call


def _tools() -> list[Tool]:
    def schema(**properties: str) -> dict[str, Any]:
        own = {name: {"type": kind} for name, kind in properties.items()}
        return {"type": "object", "properties": own, "required": list(own)}

    def fails(arguments: Mapping[str, Any]) -> str:
        raise ValueError(f"there is no {arguments['path']}")

    log = "\n".join(f"{n:04}  GET /orders/{n * 7} 200 {n % 90} ms" for n in range(400))
    reads, writes = frozenset({"read"}), frozenset({"write"})
    return [
        Tool(
            ToolSpec("weather", "The weather of a town.", schema(town="string"), reads),
            lambda a: f"{a['town']}: 7 °C, light rain, wind from the west",
        ),
        Tool(ToolSpec("log", "A server's log.", schema(), reads), lambda a: log),
        Tool(ToolSpec("read_note", "Reads a note.", schema(path="string"), reads), fails),
        Tool(
            ToolSpec("write_note", "Writes a note.", schema(path="string", text="string"), writes),
            lambda a: f"wrote {len(a['text'])} characters to {a['path']}",
        ),
    ]


class _Approver:
    def __init__(self, answers: Sequence[ApprovalAnswer]) -> None:
        self._answers = list(answers)

    async def decide(self, requests: Sequence[Any]) -> Sequence[ApprovalAnswer]:
        return [self._answers.pop(0) if self._answers else ApprovalAnswer(None) for _ in requests]


def golden_of(
    name: str,
    questions: Sequence[str],
    *scripts: Script | str,
    answers: Sequence[ApprovalAnswer] = (),
    style: Any = "jsonl",
    about: str = "",
) -> Golden:
    """A golden transcript of a scripted model's session."""
    registry = Registry(_tools())
    with tempfile.TemporaryDirectory() as folder:
        store = TranscriptStore(folder)
        controller = Controller(
            ScriptedBackend(*scripts),
            registry,
            Policy(allow=["weather", "log", "read_note", "write_note"], ask=["write_note"]),
            limits=Limits(max_observation_chars=2400, max_format_errors=2),
            settings=RunSettings(
                style=style,
                strategy="free",
                chat_format=NAMED_FORMATS["chatml"],
                verdict=FoundVerdict(),
            ),
            store=store,
            approver=_Approver(answers),
        )

        async def ask() -> str:
            async with await controller.conversation() as conversation:
                for question in questions:
                    if (await conversation.run(question)).status == "paused":
                        break
                return conversation.session

        session = anyio.run(ask)
        artifacts = store.artifacts(store.path_of(session).parent)
        return make_golden(
            read_session(store.path_of(session)),
            name=name,
            registry=registry,
            source="scripted",
            about=about,
            features=(style,),
            artifact=artifacts.get,
        )


def runs() -> list[Golden]:
    """Runs of every kind."""
    note = {"path": "plans/trip.md", "text": "Pack an umbrella.\nTake the early train."}
    return [
        golden_of(
            "weather-and-note",
            ["What is the weather in Bergen?", "Write it down."],
            call("weather", town="Bergen"),
            answer("It is 7 °C in Bergen, with light rain and wind from the west."),
            call("write_note", **note),
            answer("I wrote it to plans/trip.md."),
            answers=[ApprovalAnswer(True)],
            about="Two questions, the second of which changes something.",
        ),
        golden_of(
            "note-refused",
            ["Note that I need an umbrella."],
            call("write_note", **note),
            answer("Then I leave it."),
            answers=[ApprovalAnswer(False, "not in that file")],
            style="xml",
        ),
        golden_of(
            "note-edited",
            ["Note that I need an umbrella."],
            call("write_note", **note),
            answer("It is noted."),
            answers=[ApprovalAnswer(True, arguments={"path": "b.md", "text": "Umbrella."})],
        ),
        golden_of(
            "note-waiting",
            ["Note that I need an umbrella."],
            call("write_note", **note),
        ),
        golden_of(
            "repaired-call",
            ["Is it raining in Oslo?"],
            "```json\n" + call("weather", town="Oslo")[:-1] + ",}\n```",
            answer("Yes, lightly."),
            style="markdown-json",
        ),
        golden_of(
            "long-log",
            ["What does the log say?"],
            "<think>The log, then.</think>" + call("log"),
            answer("Four hundred orders were read; all of them in less than 90 ms."),
        ),
        golden_of(
            "no-such-note",
            ["What does my note say?"],
            call("read_note", path="missing.md") + "\n" + call("nothing", x=1),
            answer("There is no such note."),
        ),
        golden_of(
            "cut-off",
            ["Tell me all about Bergen."],
            Script('{"type":"final_answer","content":"Bergen is a town', "length"),
            '{"type":"final_answer","content":"It rains',
            '{"type":"final_ans',
        ),
    ]


def changed(golden: Golden) -> Golden:
    """The transcript as another version might have recorded it: different in every room."""
    records = []
    for record in golden.records:
        match record:
            case CompletionRecord(turn=1, prompt=str(prompt)):
                asked = prompt.replace("tool", "function", 1).replace("Bergen", "Oslo", 1)
                record = replace(record, prompt=asked, commentary="Let me see.")
            case DecisionRecord(decision="ask"):
                record = replace(record, reason="every change needs a yes", rule="effects")
            case ObservationRecord(error=ErrorInfo() as error):
                record = replace(record, error=replace(error, message="it was not found"))
        records.append(record)
    header = golden.header
    tools = tuple(
        {**tool, "description": "Looks at the weather."} if tool["name"] == "weather" else tool
        for tool in header.tools
    )
    system = header.system.replace("weather", "wether", 1)
    outcomes = ({**golden.golden.outcomes[0], "turns": 9}, *golden.golden.outcomes[1:])
    own = replace(golden.golden, outcomes=outcomes)
    changed_header = replace(header, system=system, tools=tools)
    return replace(golden, header=changed_header, golden=own, records=tuple(records))


def check_of(
    golden: Golden, *more: Difference, error: str = "", records: bool = True
) -> GoldenCheck:
    """What a replay of a transcript comes to."""
    return GoldenCheck(
        name=golden.name,
        path=f"golden_transcripts/{golden.name}.jsonl",
        source=golden.golden.source,
        about=golden.golden.about,
        features=golden.golden.features,
        samples=(
            Sample(
                differences=(*replay(golden).differences, *more),
                error=error,
                records=tuple(map(to_json, golden.all)) if records else (),
            ),
        ),
    )


def replayed() -> list[GoldenCheck]:
    """Checks of real runs; three of them differ, one in all rooms, and one could not be read."""
    first, second, *others = runs()
    tools = Difference("tools", "the output of weather", "turn 1, call c1", "7 °C, rain", "8 °C")
    damaged = Sample(error="line 7 of the transcript is damaged: a line is not JSON")
    return [
        *(check_of(golden) for golden in others[:-2]),
        *(check_of(golden, records=False) for golden in others[-2:]),
        check_of(changed(first), tools),
        check_of(changed(second)),
        GoldenCheck(name="damaged", path="golden_transcripts/damaged.jsonl", samples=(damaged,)),
    ]


def live(samples: int = 5) -> list[GoldenCheck]:
    """A matrix: each transcript with two models in three cells each."""
    checks = []
    cells = [
        Column(model, style, strategy)
        for model in ("smollm2-135m-instruct", "qwen2.5-7b-instruct-4bit")
        for style, strategy in (("jsonl", "free"), ("jsonl", "guided"), ("xml", "free"))
    ]
    made = runs()[:6]
    wrong = Difference(
        "outcome",
        "the calls",
        "question 1",
        '{"name": "weather", "arguments": {"town": "Bergen"}}',
        '{"name": "weather", "arguments": {"town": "Bern"}}\n{"name": "log", "arguments": {}}',
    )
    for row, golden in enumerate(made):
        records = tuple(map(to_json, golden.all))
        for column, cell in enumerate(cells):
            bad = (row * column * 7) % 5 if column < 4 else 0
            own = [
                Sample(
                    differences=(wrong,) if n < bad else (),
                    records=records if n < bad else (),
                    seconds=1.5 + n / 3,
                    error="the server answered with status 500" if n < bad and n == 3 else "",
                )
                for n in range(samples)
            ]
            if row == 5 and column == 5:
                continue
            checks.append(
                GoldenCheck(
                    name=golden.name,
                    path=f"golden_transcripts/{golden.name}.jsonl",
                    mode="live",
                    cell=cell,
                    source="scripted",
                    about=golden.golden.about,
                    features=("approval",),
                    samples=tuple(own),
                )
            )
    return checks
