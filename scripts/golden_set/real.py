"""Texts that the embedded model really wrote, on a server of its own, at temperature 0."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlx_tools import (
    ApprovalAnswer,
    Controller,
    Limits,
    Policy,
    RunSettings,
    TranscriptStore,
    builtin_tools,
)
from mlx_tools.backends import Backend, ModelFiles, VerdictChoice
from mlx_tools.golden import Golden
from mlx_tools.messages import replace
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store.transcript import load

from .scene import Approver, Scene, make_scene_golden

MODEL: Final = "smollm2-135m"
FILES: Final = Path(__file__).resolve().parents[2] / "golden_transcripts" / "files"
READS: Final = Policy(preset="readonly_basic")
CAPITAL: Final = {"status": "answered", "calls": [], "answer": {"contains": "Rome"}}
GREETED: Final = {"status": "answered", "calls": [], "answer": {"regex": "(?i)hello|hi|help"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Real(Scene):
    """A scene that the model plays with the built-in tools. ``seen``: it can see the folder of
    files; ``copied``: a copy of it, in which it may write. ``resumed`` is what is said of its calls
    once it waits."""

    seen: bool = False
    copied: bool = False
    resumed: Mapping[str, Any] | None = None


def _scene(name: str, about: str, question: str = "", **more: Any) -> Real:
    expect = more.pop("expect", None)
    asks = more.pop("asks", (question,))
    values: dict[str, Any] = {"policy": READS, "limits": Limits(max_tokens=100)} | more
    return Real(
        name=f"real/{name}",
        about=about,
        asks=asks,
        expect=expect if isinstance(expect, list) else [expect] if expect else [],
        **values,
    )


def scenes() -> Iterator[Real]:
    """All of them."""
    for style in ("jsonl", "markdown-json", "xml"):
        yield _scene(
            f"calculator-{style}",
            "A sum that the calculator works out.",
            "What is 17 * 23?",
            settings={"style": style},
            expect=_sum("17", 391),
        )
        if style != "xml":
            yield _scene(
                f"greeting-{style}",
                "A greeting needs no tool.",
                "Hello!",
                settings={"style": style},
                expect=GREETED,
                features=("irrelevance",),
            )
        yield _scene(
            f"guided-calculator-{style}",
            "A sum, each line begun by the host.",
            "What is 17 * 23?",
            settings={"style": style, "strategy": "guided"},
            expect=_sum("17", 391),
        )
    yield _scene(
        "auto-calculator",
        "A turn is held where a message begins, and written freely before.",
        "What is 91 / 7?",
        settings={"strategy": "auto"},
        expect=_sum("91", 13),
    )
    yield _scene(
        "clock",
        "The clock is asked for the time.",
        "What time is it?",
        policy=Policy(allow=["clock"]),
        choices=("required",),
        settings={"strategy": "auto"},
        expect={
            "status": "answered",
            "calls": [{"name": "clock", "arguments": {"anything": True}}],
        },
    )
    yield _scene(
        "capital",
        "A question that no tool helps with is answered.",
        "What is the capital of France?",
        features=("irrelevance",),
        expect={"status": "answered", "calls": [], "answer": {"contains": "Paris"}},
    )
    for choice, strategy in (("calculator", "guided"), ("required", "free"), ("none", "free")):
        yield _scene(
            f"tool-choice-{choice}",
            f"What the caller said of calls holds: {choice}.",
            "What is the capital of Italy?" if choice == "none" else "What is 8 * 9?",
            choices=(choice,),
            policy=Policy(allow=["calculator"]),
            settings={"strategy": strategy},
            features=(f"tool-choice-{'named' if choice == 'calculator' else choice}",),
            expect=CAPITAL if choice == "none" else _sum("8", 72),
        )
    yield _scene(
        "rag-first",
        "In this mode facts are looked up first.",
        "What is 12 * 12?",
        settings={"response_mode": "rag-first"},
        expect=_sum("12", 144),
        features=("rag-first",),
    )
    yield _scene(
        "llama3-format",
        "The model in a chat format that it was not trained on.",
        "What is 5 + 6?",
        policy=Policy(allow=["calculator"]),
        choices=("required",),
        settings={"chat_format": NAMED_FORMATS["llama3"], "strategy": "guided"},
        expect=_sum("5", 11),
    )
    yield from _with_files()


def _sum(part: str, result: int) -> dict[str, Any]:
    """One call of the calculator with a part of the expression, and its result in the answer."""
    arguments = {"subset": {"expression": {"contains": part}}}
    return {
        "status": "answered",
        "calls": [{"name": "calculator", "arguments": arguments}],
        "answer": {"number": result},
    }


def _with_files() -> Iterator[Real]:
    yield _scene(
        "create-file",
        "A file is made after a person has approved of it, in another process.",
        "Put a note into notes/tea.txt: buy green tea.",
        choices=("create_file",),
        settings={"strategy": "guided"},
        features=("resumed", "file-access", "tool-choice-named"),
        policy=Policy(allow=["create_file"]),
        seen=True,
        copied=True,
        resumed={"c1": ApprovalAnswer(True)},
    )


async def recorded(
    wanted: Callable[[str], bool],
) -> AsyncGenerator[tuple[Real, Golden]]:
    """The scenes that are wanted, played by the embedded model and recorded."""
    from mlx_tools.backends import ServerBackend, pull_model, read_model_files

    chosen = [scene for scene in scenes() if wanted(scene.name)]
    if not chosen:
        return
    model = pull_model(MODEL).path
    files = read_model_files(model, MODEL)
    async with ServerBackend(model) as backend:
        for scene in chosen:
            yield scene, await _play(scene, backend, files)


async def _play(scene: Real, backend: Backend, files: ModelFiles) -> Golden:
    from mlx_tools.backends import find_chat_format

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        root = FILES
        if scene.copied:
            root = Path(shutil.copytree(FILES, place / "files"))
        named = f"{root}:rw" if scene.copied else str(root)
        roots = (named,) if scene.seen else ()
        registry = builtin_tools(roots)
        store = TranscriptStore(place / "sessions")
        given = {"style": "jsonl", "strategy": "free"} | dict(scene.settings)
        given.setdefault("chat_format", find_chat_format(files=files).chat_format)
        settings = RunSettings(verdict=VerdictChoice(), model=MODEL, roots=roots, **given)

        def controller() -> Controller:
            return Controller(
                backend,
                registry,
                scene.policy,
                limits=scene.limits,
                settings=settings,
                store=store,
                approver=Approver(()),
            )

        async with await controller().conversation() as conversation:
            choices = [*scene.choices, *(None for _ in scene.asks)]
            for question, choice in zip(scene.asks, choices, strict=False):
                outcome = await conversation.run(question, tool_choice=choice)
            session = conversation.session
        if outcome.status == "paused" and scene.resumed is not None:
            await controller().resume(session, approvals=scene.resumed)
        path = Path(store.find_path(session))
        return make_scene_golden(
            Golden.from_records(tuple(load(path))),
            replace(scene, files=files),
            registry=registry,
            source="real",
            artifact=store.artifacts(path.parent).get,
        )
