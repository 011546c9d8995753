"""Wrong arguments to the library raise its own errors, which say what to give instead."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mlx_tools
from mlx_tools import (
    Answered,
    ApprovalAnswer,
    ChatFormat,
    Chunk,
    CompletionRequest,
    CompletionsBackend,
    Controller,
    EffectsBy,
    Limits,
    MlxToolsError,
    Policy,
    Registry,
    RunSettings,
    ServerBackend,
    Tool,
    ToolSpec,
    TranscriptStore,
    UsageError,
    builtin_tools,
    tool,
)
from mlx_tools.errors import BackendBroken
from mlx_tools.plugins.local import LocalBackend
from mlx_tools.testing import ScriptedBackend, answer, call


class Plain:
    """A class, and one of its instances, that are nothing of what is asked for."""


class Hostile:
    """An object of which no attribute can be read, and that cannot be shown."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"hostile {name}")

    def __repr__(self) -> str:
        raise RuntimeError("hostile repr")


def function() -> int:
    return 1


async def coroutine() -> int:
    return 1


async def generator() -> AsyncIterator[int]:
    yield 1


WRONG: dict[str, Any] = {
    "none": None,
    "int": 5,
    "negative": -1,
    "long": 10**400,
    "float": 1.5,
    "nan": float("nan"),
    "text": "zz",
    "empty": "",
    "bytes": b"a",
    "surrogate": "\ud800",
    "nul": "a\0b",
    "dict": {"name": "a"},
    "dict_of_int": {1: 2},
    "list": [1],
    "list_of_none": [None],
    "nested": [["a"]],
    "set": {1},
    "class": Plain,
    "exception": ValueError,
    "instance": Plain(),
    "function": function,
    "coroutine": coroutine,
    "generator": generator,
    "true": True,
    "path": Path("nowhere"),
    "hostile": Hostile(),
}


@tool(effects={"read"})
def area(width: float) -> float:
    """Area of a square."""
    return width * width


def controller(**given: Any) -> Controller:
    backend = ScriptedBackend(call("area", width=2), answer("x"))
    return Controller(backend, **{"tools": [area], "policy": Policy(allow=["area"])} | given)


def makers(folder: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """The public callables, each with the arguments that must be given."""
    marks = ("<", ">")
    return {
        "Controller": (Controller, {"backend": ScriptedBackend(answer("x"))}),
        "Limits": (Limits, {}),
        "Policy": (Policy, {}),
        "RunSettings": (RunSettings, {}),
        "Registry": (Registry, {}),
        "ToolSpec": (ToolSpec, {"name": "a"}),
        "Tool": (Tool, {"spec": ToolSpec("a"), "run": function}),
        "tool": (lambda function: tool(function), {}),
        "builtin_tools": (builtin_tools, {}),
        "ChatFormat": (
            ChatFormat,
            {"name": "a", "system": marks, "user": marks, "assistant": marks},
        ),
        "ApprovalAnswer": (ApprovalAnswer, {"approved": True}),
        "TranscriptStore": (TranscriptStore, {"folder": folder}),
        "CompletionsBackend": (CompletionsBackend, {"url": "http://127.0.0.1:1"}),
        "LocalBackend": (LocalBackend, {"model": "x"}),
        "ServerBackend": (ServerBackend, {"model": "x"}),
        "EffectsBy": (EffectsBy, {"argument": "a", "table": {}}),
        "Chunk": (Chunk, {}),
        "CompletionRequest": (CompletionRequest, {"prompt": "a"}),
    }


def faults(attempts: Iterator[tuple[str, Callable[[], Any]]]) -> list[str]:
    """The errors that were raised besides the library's own, which must be writable as text."""
    found = []
    for label, attempt in attempts:
        try:
            result = attempt()
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except MlxToolsError as error:
            assert str(error), label
        except Exception as error:
            found.append(f"{label}: {type(error).__name__}")
    return found


@pytest.mark.parametrize("name", makers(Path()))
def test_what_cannot_be_made_is_refused_in_words(name: str, tmp_path: Path) -> None:
    make, needed = makers(tmp_path)[name]
    names = [
        parameter.name
        for parameter in inspect.signature(make).parameters.values()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and parameter.name != "declared"
    ]

    def attempts() -> Iterator[tuple[str, Callable[[], Any]]]:
        for parameter in names:
            for kind, value in WRONG.items():
                given = {**needed, parameter: value}
                yield f"{parameter}={kind}", partial(make, **given)

    leftover = [] if name != "ChatFormat" else ["reasoning=surrogate: ValueError"]
    assert [fault for fault in faults(attempts()) if fault not in leftover] == []


METHODS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "run": (lambda _: controller(), {"question": "Q?", "tool_choice": None, "history": ()}),
    "run_sync": (lambda _: controller(), {"question": "Q?", "tool_choice": None, "history": ()}),
    "conversation": (lambda _: controller(), {"history": ()}),
    "resume": (lambda _: controller(), {"session": "zz", "approvals": None}),
    "reopen": (lambda _: controller(), {"session": "zz"}),
    "carry_over": (lambda _: controller(), {"session": "zz"}),
    "add": (lambda _: Registry(), {"tool": area}),
    "disable": (lambda _: Registry([area]), {"pattern": "area", "reason": "off"}),
    "get": (lambda _: Registry([area]), {"name": "area"}),
    "resolve_name": (lambda _: Registry([area]), {"name": "area"}),
    "lacks": (lambda _: Registry([area]), {"name": "area", "policy": Policy()}),
    "describe": (lambda _: Registry([area]), {"name": "area"}),
    "listing": (lambda _: Registry([area]), {"policy": Policy()}),
    "lower": (lambda _: Limits(), {"second": Limits()}),
    "call": (lambda _: area, {"arguments": {"width": 1}}),
    "open": (TranscriptStore, {"session": "zz"}),
    "read": (TranscriptStore, {"session": "zz"}),
    "path": (TranscriptStore, {"session": "zz"}),
    "find_path": (TranscriptStore, {"session": "zz"}),
    "records": (TranscriptStore, {"session": "zz"}),
    "size": (TranscriptStore, {"session": "zz"}),
    "updated": (TranscriptStore, {"session": "zz"}),
    "in_use": (TranscriptStore, {"session": "zz"}),
    "remove": (TranscriptStore, {"session": "zz"}),
    "artifacts": (TranscriptStore, {"session_key": "zz"}),
}


@pytest.mark.parametrize("name", METHODS)
def test_what_cannot_be_asked_is_refused_in_words(name: str, tmp_path: Path) -> None:
    make, needed = METHODS[name]

    def attempts() -> Iterator[tuple[str, Callable[[], Any]]]:
        for parameter in needed:
            for kind, value in WRONG.items():
                given = {**needed, parameter: value}
                yield (
                    f"{parameter}={kind}",
                    lambda given=given: getattr(make(tmp_path), name)(**given),
                )

    assert faults(attempts()) == []


def test_a_session_in_which_nothing_was_asked_cannot_be_resumed() -> None:
    async def main() -> None:
        async with await controller().conversation() as conversation:
            await conversation.resume(True)

    with pytest.raises(UsageError, match="nothing was asked in it yet"):
        asyncio.run(main())


def test_a_registry_can_be_unpacked_into_a_list() -> None:
    registry = builtin_tools(switched_off={"calculator": "not today"})
    names = [one.spec.name for one in [*registry, area]]
    assert names == [*registry.specs(), "area"] and "calculator" not in names
    assert {*names} <= {*controller(tools=[*registry, area]).registry.specs()}


# --- somebody's own backend -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["completions", "server", "local", "native", None, 5])
@pytest.mark.parametrize("more", [{}, {"model": "m"}, {"address": "http://h"}, {"upstreams": 5}])
def test_a_backend_of_any_kind_is_asked_for_completions_alone(
    kind: Any, more: dict[str, Any]
) -> None:
    class Own:
        def __init__(self) -> None:
            self.inner = ScriptedBackend(answer("done"))
            self.kind = kind
            vars(self).update(more)

        async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
            async for chunk in self.inner.complete(request):
                yield chunk

    outcome = Controller(Own()).run_sync("Q?")
    assert isinstance(outcome, Answered) and outcome.answer == "done"


@pytest.mark.parametrize("name", ["kind", "model", "address", "traits", "start", "completes"])
def test_a_backend_whose_attribute_cannot_be_read_still_completes(name: str) -> None:
    def fail(self: Any) -> Any:
        raise RuntimeError("not now")

    own = type("Own", (ScriptedBackend,), {name: property(fail)})
    assert isinstance(Controller(own(answer("done"))).run_sync("Q?"), Answered)


@pytest.mark.parametrize("wrong", [*WRONG])
def test_what_a_backend_gives_instead_of_chunks_is_an_error_of_ours(wrong: str) -> None:
    class Own:
        async def complete(self, request: CompletionRequest) -> AsyncIterator[Any]:
            yield WRONG[wrong]

    class Returning:
        def complete(self, request: CompletionRequest) -> Any:
            return WRONG[wrong]

    for backend in (Own(), Returning()):
        with pytest.raises(MlxToolsError):
            Controller(backend).run_sync("Q?")


@pytest.mark.parametrize("field", ["text", "finish_reason", "usage", "edited", "scores"])
def test_a_chunk_with_a_field_of_another_type_is_an_error_of_ours(field: str) -> None:
    for wrong in (5, b"a", [[5]], Plain()):

        class Own:
            async def complete(self, request: CompletionRequest) -> AsyncIterator[Any]:
                yield Chunk(**{field: wrong})  # noqa: B023
                yield Chunk(finish_reason="stop")

        with pytest.raises(BackendBroken, match="backend Own yielded a chunk"):
            Controller(Own()).run_sync("Q?")


# --- somebody's own approver ----------------------------------------------------------------------


def asked_by(approver: Any, store: TranscriptStore) -> Any:
    backend = ScriptedBackend(call("area", width=2), answer("x"))
    asking = Policy(allow=["area"], ask=["area"])
    return Controller(backend, [area], asking, store=store, approver=approver).run_sync("Q?")


@pytest.mark.parametrize("wrong", [*WRONG])
def test_what_an_approver_gives_instead_of_answers_is_an_error_of_ours(
    wrong: str, tmp_path: Path
) -> None:
    class Own:
        async def decide(self, requests: Any) -> Any:
            return WRONG[wrong]

    with pytest.raises(UsageError, match="the approver Own"):
        asked_by(Own(), TranscriptStore(tmp_path))


def test_an_approver_that_fails_is_named(tmp_path: Path) -> None:
    class Own:
        async def decide(self, requests: Any) -> Any:
            raise LookupError("no window")

    with pytest.raises(UsageError, match="the approver Own failed: LookupError: no window"):
        asked_by(Own(), TranscriptStore(tmp_path))


def test_an_approver_may_answer_at_once(tmp_path: Path) -> None:
    class Own:
        def decide(self, requests: Any) -> Any:
            return (ApprovalAnswer(True) for _ in requests)

    assert isinstance(asked_by(Own(), TranscriptStore(tmp_path)), Answered)


@pytest.mark.parametrize("approved", ["no", 0, 1, "", [], object()])
def test_nothing_but_true_is_a_yes(approved: Any) -> None:
    with pytest.raises(UsageError, match="approved cannot be"):
        ApprovalAnswer(approved)


def test_every_public_name_is_a_type_an_error_or_tried_here() -> None:
    tried = {*makers(Path())} - {"LocalBackend"}  # a plugin's
    values = {"Answered", "ApprovalRequest", "Approver", "Outcome", "Paused", "Source", "Sources"}
    values |= {"AnswerPiece", "CallRead", "CallReport", "Event", "Finished", "PendingCall"}
    values |= {"ThoughtPiece", "ToolContext", "ToolEnded", "ToolStarted"}
    others = {"ApproveAlways", "Conversation", "Stopped", "__version__"}
    errors = {name for name in mlx_tools.__all__ if name.endswith("Error")}
    assert tried | values | others | errors == {*mlx_tools.__all__}
