"""Measurements of a model are kept, found again, and decide where nothing was named."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Answered, CompletionsBackend, Controller, Policy, Stopped, tool
from mlx_tools.backends import (
    DEFAULT_MODEL,
    STRATEGIES,
    STYLES,
    StyleVerdict,
    Verdict,
    VerdictChoice,
    VerdictStore,
    decide,
    find_setup,
    find_verdict,
    model_identity,
)
from mlx_tools.backends.models.embedded import EMBEDDED
from mlx_tools.backends.models.listing import folder_identity
from mlx_tools.backends.verdicts import NoVerdict, parse_verdict
from mlx_tools.controller import RunSettings
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.testing import ScriptedBackend
from mlx_tools.transcript import events
from mlx_tools.transcript.records import CompletionRecord

CALL = '{"type":"tool_call","name":"add","arguments":{"a":1,"b":2}}'
ANSWER = '{"type":"final_answer","content":"3"}'


def verdict(model: str = "m", style: Any = "xml", strategy: Any = "guided", **more: Any) -> Verdict:
    otherwise = "auto" if strategy == "grammar" else strategy
    styles = {s: StyleVerdict(strategy, otherwise, f"{s} why") for s in STYLES[1:]}
    return Verdict(model=model, style=style, styles=styles, reason="best", **more)  # type: ignore[arg-type]


def found(**more: Any) -> VerdictChoice:
    return VerdictChoice(model="m", verdict=verdict(**more), source="stored")


# --- the value --------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
STYLE = st.sampled_from(STYLES[1:])
ONE = st.builds(StyleVerdict, st.sampled_from(STRATEGIES), st.sampled_from(STRATEGIES[:3]))


@given(
    st.dictionaries(STYLE, ONE, min_size=1).flatmap(
        lambda styles: st.builds(
            Verdict,
            model=st.text(),
            style=st.sampled_from(sorted(styles)),
            styles=st.just(styles),
            reason=st.text(),
            questions=st.integers(0, 99),
            settings=st.dictionaries(st.text(), JSON, max_size=3),
            rows=st.lists(st.dictionaries(st.text(), JSON, max_size=2), max_size=2).map(tuple),
            command=st.text(),
        )
    )
)
def test_what_was_written_is_read_back(one: Verdict) -> None:
    assert parse_verdict(json.dumps(one.to_json()).encode(), one.model) == one


@given(st.data())
def test_anything_else_is_no_verdict_and_nothing_worse(data: st.DataObject) -> None:
    value = verdict().to_json()
    key = data.draw(st.sampled_from(sorted(value)))
    value[key] = data.draw(JSON)
    try:
        read = parse_verdict(json.dumps(value).encode(), value["model"])
        assert json.loads(json.dumps(read.to_json()))[key] == value[key] or key == "strategy"
    except NoVerdict as error:
        assert str(error)
    with pytest.raises(NoVerdict):
        parse_verdict(json.dumps(data.draw(JSON)).encode(), "m")


# --- what it decides --------------------------------------------------------------------------


@given(
    style=st.sampled_from(STYLES), strategy=st.sampled_from(STRATEGIES), best=STYLE, grammars=...
)
def test_what_is_named_wins_and_the_verdict_decides_the_rest(
    style: Any, strategy: Any, best: Any, grammars: bool
) -> None:
    decided = decide(style, strategy, found(style=best, strategy="grammar"), grammars=grammars)
    assert decided.style == (best if style == "auto" else style)
    usual = "grammar" if grammars else "auto"
    assert decided.strategy == (usual if strategy == "auto" else strategy)
    assert ("style" in decided.reasons, "strategy" in decided.reasons) == (
        style == "auto",
        strategy == "auto",
    )
    nothing = decide(style, strategy, VerdictChoice())
    assert nothing.style == ("jsonl" if style == "auto" else style)
    assert (nothing.strategy, nothing.reasons) == (strategy, {})


# --- where it stands --------------------------------------------------------------------------


def test_a_verdict_is_kept_for_its_model_alone(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path / "verdicts")
    assert store.get("m") == VerdictChoice(model="m")
    path = store.save(verdict("m"))
    assert store.get("m").verdict == verdict("m")
    assert store.get("m").place == str(path) and path.stat().st_mode & 0o077 == 0
    assert store.get("M").verdict is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@given(st.text(max_size=80), st.text(max_size=80))
def test_every_model_has_a_file_of_its_own_within_the_folder(one: str, other: str) -> None:
    store = VerdictStore(Path("v"))
    assert store.path(one).parent == Path("v") and store.path(one).name.isascii()
    assert len(store.path(one).name) < 100 and store.path(one).name not in (".json", "..")
    assert (store.path(one) == store.path(other)) == (one == other)


def _older(text: bytes) -> bytes:
    return text.replace(b'"format": 1', b'"format": 0')


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: b"\xff\xfe" + text,
        lambda text: b"[" * 100_000,
        lambda text: b"null",
        lambda text: text + b" " * (1 << 20),
        lambda text: text.replace(b'"m"', b'"other"'),
        _older,
    ],
)
def test_a_file_of_no_use_is_told_of_and_passed_over(tmp_path: Path, harm: Any) -> None:
    store = VerdictStore(tmp_path)
    path = store.save(verdict())
    path.write_bytes(harm(path.read_bytes()))
    kept = find_verdict("m", store)
    assert kept.verdict is None and str(path) in kept.problem and "--probe" in kept.problem
    assert "\n" not in kept.problem
    decided = decide("auto", "auto", kept)
    assert (decided.style, decided.strategy) == ("jsonl", "auto")
    assert decided.reasons == {"passed_over": kept.problem}
    store.save(verdict())
    assert find_verdict("m", store).verdict == verdict()


def test_the_embedded_models_verdict_comes_along_and_ones_own_goes_before_it(
    tmp_path: Path,
) -> None:
    shipped = find_verdict(DEFAULT_MODEL, VerdictStore(tmp_path)).verdict
    assert shipped is not None and shipped.command and shipped.questions
    store = VerdictStore(tmp_path)
    assert find_verdict(DEFAULT_MODEL, store).source == "shipped"
    path = store.save(verdict(DEFAULT_MODEL))
    assert find_verdict(DEFAULT_MODEL, store).verdict == verdict(DEFAULT_MODEL)
    path.write_text("no")
    damaged = find_verdict(DEFAULT_MODEL, store)
    assert damaged.verdict == shipped and damaged.problem


def test_nobody_reads_half_a_verdict_while_others_write(tmp_path: Path) -> None:
    store, done = VerdictStore(tmp_path), threading.Event()
    versions = [verdict(measured_at=str(n), prompts="x" * n * 997) for n in range(4)]
    store.save(versions[0])

    def write(one: Verdict) -> None:
        while not done.is_set():
            store.save(one)

    writers = [threading.Thread(target=write, args=(one,)) for one in versions]
    for writer in writers:
        writer.start()
    try:
        for _ in range(200):
            kept = store.get("m")
            assert kept.verdict in versions, kept.problem
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert len(list(tmp_path.iterdir())) == 1


# --- which model ------------------------------------------------------------------------------


def model_folder(path: Path, weights: bytes = b"w" * 70_000) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "model.safetensors").write_bytes(weights)
    return path


def test_a_model_is_known_by_what_it_holds_wherever_it_stands(tmp_path: Path) -> None:
    one = model_folder(tmp_path / "one")
    copy = Path(shutil.copytree(one, tmp_path / "elsewhere" / "copy"))
    other = model_folder(tmp_path / "other", b"w" * 69_999 + b"v")
    assert folder_identity(one) == folder_identity(copy) != folder_identity(other)
    assert str(folder_identity(one)).startswith("sha256:")


def test_a_model_of_the_hugging_face_cache_is_known_by_its_name(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "models--an-owner--Name-1.5B" / "snapshots" / "0a1b")
    assert folder_identity(folder) == "an-owner/Name-1.5B" == model_identity("an-owner/Name-1.5B")


def test_the_embedded_model_is_known_by_its_source_at_any_precision(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "anything")
    source = EMBEDDED[DEFAULT_MODEL].gguf_sha256
    manifest = {"format": 1, "source": source, "files": {"config.json": [1, "x"]}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert folder_identity(folder) == DEFAULT_MODEL


# --- runs -------------------------------------------------------------------------------------


@tool(effects={"read"})
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def settings(**more: Any) -> RunSettings:
    return RunSettings(chat_format=NAMED_FORMATS["chatml"], **more)


def records(backend: Any, given: RunSettings) -> list[Any]:
    async def main() -> list[Any]:
        controller = Controller(backend, [add], Policy(allow=["add"]), settings=given)
        async with await controller.conversation() as conversation:
            await conversation.run("Add 1 and 2.")
            return list(conversation.files.transcript)

    return anyio.run(main)


def completions(found: list[Any]) -> list[str]:
    return [one.strategy for one in found if isinstance(one, CompletionRecord)]


def test_a_grammar_is_begun_with_only_where_the_backend_takes_one() -> None:
    given = settings(verdict=found(style="jsonl", strategy="grammar"))
    assert completions(records(ScriptedBackend(CALL, ANSWER), given)) == ["auto", "auto"]


def test_a_kept_verdict_is_found_by_the_name_of_the_served_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_TOOLS_STATE_DIR", str(tmp_path))
    VerdictStore().save(verdict("owner/model", style="markdown-json", strategy="guided"))
    backend = CompletionsBackend("http://127.0.0.1:9", "owner/model")
    decided = anyio.run(find_setup, backend, settings()).decided
    assert (decided.style, decided.strategy) == ("markdown-json", "guided")
    other = CompletionsBackend("http://127.0.0.1:9")
    named = anyio.run(find_setup, other, settings(model="other")).decided
    assert (named.style, named.strategy) == ("jsonl", "auto")


# --- strategies -----------------------------------------------------------------------------------

BROKEN = '{"type":"tool_call","nonsense":'


def controller(backend: Any, strategy: str) -> Controller:
    settings = RunSettings(strategy=strategy)
    return Controller(backend, [add], Policy(allow=["add"]), settings=settings)


def test_a_grammar_of_call_and_answer_goes_with_every_request() -> None:
    backend = ScriptedBackend(CALL, ANSWER)
    outcome = controller(backend, "grammar").run_sync("Add 1 and 2.")
    assert isinstance(outcome, Answered) and outcome.strategy == "grammar"
    for request in backend.requests:
        assert request.grammar is not None
        assert "add" in request.grammar.gbnf and "final_answer" in request.grammar.lark


def test_free_is_never_mended() -> None:
    backend = ScriptedBackend(BROKEN, BROKEN)
    outcome = controller(backend, "free").run_sync("Add 1 and 2.")
    assert isinstance(outcome, Stopped) and outcome.reason == "format_errors"
    assert [request.top_logprobs for request in backend.requests] == [0, 0]


def test_each_mend_is_told() -> None:
    rest = 'add","arguments":{"a":1,"b":2}}'
    backend = ScriptedBackend("Let me see.\n" + BROKEN, rest, ANSWER)

    async def run() -> list[events.Event]:
        stream = controller(backend, "auto").stream("Add 1 and 2.")
        return [event async for event in stream]

    happened = anyio.run(run)
    (told,) = (event for event in happened if isinstance(event, events.Mended))
    assert (told.turn, told.kind) == (1, "envelope")
    assert (told.dropped, told.replacement) == (',"nonsense":', ',"name":"')


@pytest.mark.parametrize("said", ['{"type":"final_answer","content":"no"}', CALL])
def test_a_model_that_begins_its_line_anew_each_time_comes_to_an_end(said: str) -> None:
    backend = ScriptedBackend(*[said.replace("add", "sub")] * 99)
    settings = RunSettings(tool_choice="required")
    outcome = Controller(backend, [add], Policy(allow=["add"]), settings=settings).run_sync("Add.")
    assert outcome.turns and outcome.requests <= 12 * outcome.turns


def test_where_no_tool_may_be_called_another_form_is_no_call() -> None:
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    settings = RunSettings(tool_choice="none")
    backend = ScriptedBackend(*[said] * 20)
    outcome = Controller(backend, [add], Policy(allow=["add"]), settings=settings).run_sync("Add.")
    assert all(call.status != "ok" for call in outcome.calls)
    assert not isinstance(outcome, Stopped) or outcome.reason != "internal_error"
