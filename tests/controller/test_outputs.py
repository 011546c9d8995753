"""Outputs of tools in whole runs: shown, kept, paged through, left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import (
    Controller,
    Limits,
    Policy,
    RunSettings,
    Tool,
    TranscriptStore,
    tool,
)
from mlx_tools.store.artifacts import ArtifactStore, BlobFiles
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.transcript import events
from mlx_tools.transcript.records import ObservationRecord
from tests.controller.sessions import list_prompts, read_records, require_answer

WHOLE = "".join(f"line {n}\n" for n in range(1000))
POLICY = Policy(allow=["long", "short", "broken"], preset="readonly_basic")
LIMITS = Limits(max_observation_chars=400, max_iterations=60)
TOLD = re.compile(r"call read_artifact with id ([0-9a-f]{32}) and offset (\d+)")
NEXT = re.compile(r"the next page begins at offset (\d+)")


@tool(effects={"read"})
def long() -> str:
    """Says much."""
    return WHOLE


@tool(effects={"read"})
def short(word: str = "little") -> str:
    """Says little."""
    return word


@tool(effects={"read"})
def broken() -> str:
    """Fails."""
    raise ValueError("out of order")


TOOLS = (long, short, broken)


def controller(
    folder: Path | None, *script: Any, policy: Policy = POLICY, limits: Limits = LIMITS, **more: Any
) -> Controller:
    store = TranscriptStore(folder, **more.pop("keeping", {})) if folder is not None else None
    return Controller(ScriptedBackend(*script), TOOLS, policy, limits=limits, store=store, **more)


def observations(outcome: Any) -> list[ObservationRecord]:
    return read_records(outcome, ObservationRecord)


def kept_by(outcome: Any) -> dict[str, str]:
    """The stored outputs of the session, by id."""
    store = ArtifactStore(BlobFiles(Path(outcome.transcript).parent / "artifacts"))
    paths = store.blobs.folder.iterdir() if store.blobs.folder.is_dir() else ()
    return {path.name: store.get(path.name) or "" for path in paths}


def reading(prompt: str) -> str:
    """The text of a model that does as the last notice says."""
    key, offset = TOLD.findall(prompt)[-1]
    if pages := NEXT.findall(prompt):
        offset = pages[-1]
    return call("read_artifact", id=key, offset=int(offset))


# --- reading on ---


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_model_that_reads_on_as_it_is_told_sees_the_whole(
    tmp_path: Path, in_memory: bool
) -> None:
    folder = None if in_memory else tmp_path
    made = controller(folder, call("long"), *[reading] * 40, answer())
    outcome = made.run_sync("Hi", tool_choice=None)
    seen = [r for r in outcome.records if isinstance(r, ObservationRecord)]
    pages = [
        r.content or "" for r in seen if r.name == "read_artifact" and not (r.error or r.cached)
    ]
    head = (seen[0].content or "").partition("\n[...")[0]
    whole = head + "".join(page[: page.rindex("\n[characters")] for page in pages)
    assert whole == WHOLE
    assert all(len(page) <= LIMITS.max_observation_chars for page in pages)
    kept = [r.artifact for r in seen if r.artifact]
    assert kept == ([seen[0].artifact] if in_memory else [*kept_by(outcome)])


@pytest.mark.parametrize("in_memory", [False, True])
def test_an_artifact_of_another_session_is_not_there(tmp_path: Path, in_memory: bool) -> None:
    free = RunSettings(strategy="free")  # held, no tool is called that the model was not told of
    keys: list[Any] = []
    lines = call("long"), answer(), lambda _: call("read_artifact", id=keys[0]), answer()
    lines += call("read_artifact", id="0" * 32), answer()
    made = controller(None if in_memory else tmp_path, *lines, settings=free)
    first = made.run_sync("Hi")
    keys += [r.artifact for r in first.records if isinstance(r, ObservationRecord)]
    assert keys[0] is not None
    second, guessed = made.run_sync("Hi"), made.run_sync("Hi")
    assert second.calls[0].error_code == "tool_error"
    assert second.calls[0].error_preview == guessed.calls[0].error_preview


def test_where_there_is_no_room_for_the_notice_the_output_is_cut_as_ever(tmp_path: Path) -> None:
    made = controller(tmp_path, call("long"), answer(), limits=Limits(max_observation_chars=100))
    outcome = made.run_sync("Hi")
    (seen,) = observations(outcome)
    assert seen.content is not None and len(seen.content) <= 100
    assert "characters left out" in seen.content and "read_artifact" not in seen.content
    assert seen.artifact in kept_by(outcome)


@pytest.mark.parametrize(
    "policy", [Policy(allow=["long"]), Policy(allow=["*"], deny=["read_artifact"])]
)
def test_a_model_that_may_not_read_artifacts_is_told_of_none(
    tmp_path: Path, policy: Policy
) -> None:
    made = controller(tmp_path, call("long"), answer(), policy=policy)
    (seen,) = observations(made.run_sync("Hi"))
    assert "characters left out" in (seen.content or "")
    assert not any("read_artifact" in prompt for prompt in list_prompts(made))


# --- what is kept ---


def test_every_output_is_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    made = controller(tmp_path, call("short"), answer(), keeping={"keep_all": True})
    outcome = made.run_sync("Hi")
    (seen,) = observations(outcome)
    assert kept_by(outcome) == {seen.artifact: "little"}
    assert outcome.to_json()["calls"][0]["artifact"] == seen.artifact
    assert "read_artifact" not in list_prompts(made)[1]


def test_once_a_tool_has_failed_every_output_of_the_run_is_kept(tmp_path: Path) -> None:
    script = (
        call("short", word="before"),
        call("broken"),
        call("short", word="after"),
        answer(),
    )
    outcome = controller(tmp_path, *script).run_sync("Hi")
    kept = kept_by(outcome)
    assert sorted(kept.values()) == ["after", "before"]
    named = {c.id: c.artifact for c in outcome.calls}
    assert [kept.get(named[c.id] or "") for c in outcome.calls] == ["before", None, "after"]


@pytest.mark.parametrize(
    ("tool_called", "keep_all", "kept"),
    [("short", False, False), ("short", True, True), ("broken", False, True)],
)
def test_what_the_model_thought_is_kept_where_all_of_a_run_is(
    tmp_path: Path, tool_called: str, keep_all: bool, kept: bool
) -> None:
    script = (
        f"<think>I call it.</think>{call(tool_called)}",
        f"<think>Now I know.</think>{answer()}",
    )
    outcome = controller(tmp_path, *script, keeping={"keep_all": keep_all}).run_sync("Hi")
    said = outcome.to_json().get("reasoning_artifact")
    assert kept_by(outcome).get(said) == ("I call it.\n\nNow I know." if kept else None)


def test_what_is_larger_than_a_session_may_keep_is_cut_without_a_way_to_read_on(
    tmp_path: Path,
) -> None:
    made = controller(tmp_path, call("long"), answer(), keeping={"max_bytes": 1000})
    outcome = require_answer(made.run_sync("Hi"))
    assert kept_by(outcome) == {}
    assert "characters left out" in list_prompts(made)[1] and not TOLD.search(list_prompts(made)[1])


# --- what an outcome says ---


def reports(outcome: Any, **options: Any) -> list[dict[str, Any]]:
    return outcome.to_json(**options)["calls"]  # type: ignore[no-any-return]


def test_an_outcome_leaves_outputs_out_of_everything_that_is_printed(tmp_path: Path) -> None:
    @tool(effects={"read"})
    def tell() -> str:
        """Tells."""
        return "the raw output"

    made = Controller(ScriptedBackend(call("tell"), answer("Done.")), [tell], Policy(allow=["*"]))
    outcome = made.run_sync("Hi")
    for text in (repr(outcome), json.dumps(outcome.to_json())):
        assert "raw output" not in text
    assert reports(outcome)[0] | {"duration_ms": 0} == {
        "id": "c1",
        "name": "tell",
        "arguments": {},
        "status": "ok",
        "repairs": [],
        "duration_ms": 0,
        "output_size_chars": 14,
        "output_omitted": True,
        "error_code": None,
        "error_preview": None,
    }
    asked = reports(outcome, include_outputs=True)[0]
    assert asked["output"] == "the raw output" and asked["output_omitted"] is False
    assert "raw output" not in json.dumps(events.Finished(outcome=outcome).to_json())


def failing(message: str) -> Callable[[], str]:
    def fail() -> str:
        """Fails."""
        raise RuntimeError(message)

    return fail


@pytest.mark.parametrize("message", ["short", "x" * 10_000, "", "\ud800"])
def test_an_error_has_a_preview_of_at_most_500_characters(message: str) -> None:
    fail: Tool = tool(name="fail", effects={"read"})(failing(message))
    made = Controller(ScriptedBackend(call("fail"), answer()), [fail], Policy(allow=["*"]))
    (report,) = made.run_sync("Hi").calls
    assert report.error_code == "tool_error"
    assert report.error_preview and len(report.error_preview) <= 500


@pytest.mark.parametrize(("size", "cut"), [(399, False), (400, False), (401, True)])
def test_an_output_of_just_what_may_be_shown_is_shown_whole(
    tmp_path: Path, size: int, cut: bool
) -> None:
    script = ScriptedBackend(call("short", word="x" * size), answer())
    made = Controller(script, [short], POLICY, limits=LIMITS, store=TranscriptStore(tmp_path))
    (seen,) = read_records(made.run_sync("Say it."), ObservationRecord)
    assert (seen.artifact is not None, seen.content != "x" * size) == (cut, cut)
