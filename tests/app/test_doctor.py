"""Findings of the doctor: by asking, not by the server's name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlx_tools.app import checks
from mlx_tools.app.checks import Check, check_all
from mlx_tools.backends import (
    CompletionsBackend,
    Health,
    ModelFiles,
    SelectedBackend,
    ServerBackend,
    StyleVerdict,
    Verdict,
    VerdictChoice,
    read_model_files,
)
from mlx_tools.messages import replace
from mlx_tools.plugins.local import LocalBackend
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store import TranscriptStore, digest_words
from tests.backends.asking import AT_ONCE
from tests.backends.loopback import Connection, answers, says, serving
from tests.prompt.tooled import tooled_format

OK = answers(200, {"status": "ok"})


def model_server(**can: bool) -> Callable[[Connection], None]:
    """Answers whole completions; ``can`` says which abilities it has."""

    def complete(request: Connection) -> None:
        body = request.body
        if body["stream"]:
            says("Hi")(request)
            return
        text = " eight, nine, ten, eleven, twelve"
        stop = body.get("stop")
        if stop and can.get("stop"):
            text = text[: text.index(stop[0])]
        elif stop and can.get("edits"):
            text = text.replace(stop[0], "")
        if "grammar" in body and can.get("grammar"):
            text = "zq7"
        choice: dict[str, object] = {"text": text, "finish_reason": "length"}
        if body.get("logprobs") is True and can.get("logprobs"):
            top = [{"id": 1, "token": "a", "logprob": -1.0}]
            choice["logprobs"] = {"content": [{"top_logprobs": top}]}
        prompt = str(body["prompt"])
        tokens = prompt.count("<|im_end|>") + len(prompt.replace("<|im_end|>", "")) // 2
        usage: dict[str, object] = {"prompt_tokens": tokens, "completion_tokens": 16}
        if can.get("cache"):
            usage["prompt_tokens_details"] = {"cached_tokens": 3}
        request.answer(200, {"choices": [choice], "usage": usage if can.get("usage", True) else {}})

    return complete


def diagnose(
    complete: Callable[[Connection], None],
    tmp_path: Path,
    *,
    health: Callable[[Connection], None] = OK,
    files: ModelFiles | None = None,
) -> dict[str, Check]:
    with serving(complete, health=health) as server:
        backend = CompletionsBackend(server.url, retry=AT_ONCE)
        chosen = SelectedBackend(backend=backend, source="named", files=files)
        found = asyncio.run(
            check_all(
                chosen,
                sessions=TranscriptStore(tmp_path / "sessions"),
                control_tokens=["<|im_end|>", "[X]"],
            )
        )
    return {check.name: check for check in found}


def test_each_ability_is_found_by_asking(tmp_path: Path) -> None:
    everything = dict.fromkeys(("stop", "grammar", "logprobs", "cache"), True)
    found = diagnose(model_server(**everything), tmp_path)
    assert found["server"].status == "ok"
    assert found["completion"].status == "ok"
    assert "not offered" not in found["logprobs"].detail
    assert found["stop"].detail.startswith("honoured")
    assert found["cache reporting"].detail.startswith("usage says")
    assert found["grammar"].detail == "offered, by grammar"
    assert found["control tokens"].status == "warn"
    assert "[X]" in found["control tokens"].detail
    assert "<|im_end|>" not in found["control tokens"].detail


def test_an_ability_that_is_not_there_is_found_to_be_missing(tmp_path: Path) -> None:
    found = diagnose(model_server(edits=True, usage=False), tmp_path)
    assert found["logprobs"].detail == "not offered"
    assert found["stop"].detail.startswith("edits")
    assert found["cache reporting"].detail.startswith("not reported")
    assert found["grammar"].detail == "not offered"
    assert found["control tokens"].status == "skip"
    assert diagnose(model_server(), tmp_path)["stop"].detail.startswith("ignored")


def test_a_server_that_answers_rubbish_makes_no_check_raise(tmp_path: Path) -> None:
    for complete in (answers(500, b"oh"), answers(200, b"[]"), answers(200, {"choices": [3]})):
        found = diagnose(complete, tmp_path)
        assert found["completion"].status == "fail"
        assert found["stop"].status == "skip"
        assert "unknown: " in found["stop"].detail


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (answers(503, {"status": "unavailable"}), "died"),
        (answers(503, {"error": {"message": "Loading model"}}), "Loading"),
    ],
)
def test_a_server_that_is_not_well_fails_and_the_rest_is_still_checked(
    tmp_path: Path, health: Callable[[Connection], None], words: str
) -> None:
    found = diagnose(says("Hi"), tmp_path, health=health)
    assert found["server"].status == "fail"
    assert words in found["server"].detail
    assert found["transcripts"].status == "ok"
    assert "stop" not in found


def test_an_own_server_that_cannot_start_fails_with_a_hint(tmp_path: Path) -> None:
    chosen = SelectedBackend(backend=ServerBackend(tmp_path / "nothing"), source="started")
    assert isinstance(chosen.backend, ServerBackend)
    (check,), client = asyncio.run(checks.check_server(chosen.backend))
    assert check.status == "fail"
    assert check.hint
    assert client is None


def test_a_model_that_cannot_be_loaded_fails_with_a_hint(tmp_path: Path) -> None:
    chosen = SelectedBackend(backend=LocalBackend(tmp_path / "nothing"), source="loaded")
    checks = asyncio.run(check_all(chosen, sessions=TranscriptStore(tmp_path / "sessions")))
    found = {check.name: check for check in checks}
    assert found["loading"].status == "fail"
    assert found["loading"].hint
    assert "completion" not in found
    assert found["transcripts"].status == "ok"


@pytest.mark.real
@pytest.mark.heavy
def test_a_model_in_this_process_is_found_well(tmp_path: Path, real_model: Path) -> None:
    backend = LocalBackend(real_model)
    chosen = SelectedBackend(
        backend=backend, source="loaded", files=read_model_files(real_model, "m")
    )
    checks = asyncio.run(check_all(chosen, sessions=TranscriptStore(tmp_path / "sessions")))
    asyncio.run(backend.aclose())
    found = {check.name: check.status for check in checks}
    assert found["loading"] == found["completion"] == found["grammar"] == "ok"


def test_the_model_and_its_template_are_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    backend = CompletionsBackend("http://127.0.0.1:1")
    bare = read_model_files(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    full = read_model_files(tmp_path)
    assert checks.check_model(SelectedBackend(backend=backend, source="named")).status == "warn"
    assert (
        checks.check_model(SelectedBackend(backend=backend, source="named", model="m")).status
        == "warn"
    )
    named = SelectedBackend(backend=backend, source="named", model="m", files=full)
    assert checks.check_model(named).status == "ok"
    assert checks.check_chat_format(None, "").status == "warn"
    assert checks.check_chat_format(bare, "").status == "warn"
    assert checks.check_chat_format(full, "").status == "ok"
    assert "not at hand" in checks.check_native_tools(NAMED_FORMATS["chatml"]).detail
    native = checks.check_native_tools(tooled_format("qwen2.5-tools")).detail
    assert native == "the template tells of tools (calls: hermes): style native"


def test_what_a_person_named_is_not_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    here = read_model_files(tmp_path)
    backend = CompletionsBackend("http://127.0.0.1:1")
    for files in (None, here):
        chosen = SelectedBackend(backend=backend, source="named", model="m", files=files)
        for check in (
            checks.check_model(chosen, is_explicit=True),
            checks.check_chat_format(files, "phi, as named", is_explicit=True),
        ):
            assert (check.status, check.hint) == ("ok", "")
    assert checks.check_model(replace(chosen, files=None)).hint == (
        "its chat format is guessed from its name; name one with --chat-format"
    )
    told = checks.check_chat_format(here, "phi, as named", is_explicit=True).detail
    assert told == "phi, as named, in place of the model's own template"


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("chatml", ["<|im_start|>", "<|im_end|>"]),
        ("llama3", ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
        ("plain", []),
    ],
)
def test_only_what_a_format_writes_must_be_tokens_of_the_model(
    name: str, tokens: list[str]
) -> None:
    assert checks.list_control_tokens(NAMED_FORMATS[name]) == tokens


def test_the_verdict_in_force_is_told_and_what_is_wrong_with_it() -> None:
    styles = {"xml": StyleVerdict("guided", "guided")}
    digest = digest_words()
    kept = Verdict(
        model="m", style="xml", styles=styles, measured_at="2026-01-02T03", prompts=digest
    )  # type: ignore[arg-type]
    found = VerdictChoice(model="m", verdict=kept, source="stored", place="v/m.json")
    check = checks.check_verdict(found)
    assert (check.status, check.hint) == ("ok", "")
    assert check.detail.startswith("style xml, strategy guided, as measured on 2026-01-02")
    assert "v/m.json" in check.detail
    named = checks.check_verdict(found, "jsonl", "free").detail
    assert named.endswith("the settings name style jsonl and strategy free")
    shipped = replace(found, source="shipped")
    assert "comes with mlx-tools" in checks.check_verdict(shipped).detail
    stale = checks.check_verdict(replace(found, verdict=replace(kept, prompts="0")))
    assert stale.status == "warn" and "changed since" in stale.detail and stale.hint
    assert checks.check_verdict(replace(shipped, problem="damaged")).status == "warn"
    assert checks.check_verdict(VerdictChoice(model="m", problem="damaged")).detail == "damaged"


def test_where_nothing_was_measured_the_doctor_says_how() -> None:
    check = checks.check_verdict(VerdictChoice(model="m"))
    assert check.status == "ok" and check.detail == "none: style jsonl, strategy auto"
    assert check.hint.startswith("mlx-tools doctor --probe measures")
    nameless = checks.check_verdict(VerdictChoice())
    assert "which model" in nameless.detail and "--model NAME" in nameless.hint


def test_a_server_that_every_web_page_can_use_is_warned_of() -> None:
    assert (
        checks.check_origins(Health("ok", allowed_origin="*"), own_origins=False).status == "warn"
    )
    assert (
        checks.check_origins(Health("ok", allowed_origin="http://x"), own_origins=True).status
        == "ok"
    )
    assert checks.check_origins(Health("ok"), own_origins=False).status == "ok"
    assert checks.check_origins(None, own_origins=False).status == "skip"


def test_a_folder_that_cannot_be_written_to_fails(tmp_path: Path) -> None:
    assert checks.check_store(TranscriptStore(tmp_path / "new")).status == "ok"
    (tmp_path / "file").touch()
    blocked = checks.check_store(TranscriptStore(tmp_path / "file" / "below"))
    assert (blocked.status, bool(blocked.hint)) == ("fail", True)


def test_openblas_is_checked_on_linux_alone() -> None:
    assert checks.check_openblas("darwin").status == "skip"
    if sys.platform.startswith("linux"):
        assert checks.check_openblas().status in ("ok", "warn")


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.heavy
def test_the_real_server_is_told_as_it_is(real_server: str, tmp_path: Path) -> None:
    chosen = SelectedBackend(backend=CompletionsBackend(real_server), source="named")
    tokens = ["<|im_start|>", "<|im_end|>", "<|eot_id|>"]
    listed = asyncio.run(
        check_all(chosen, sessions=TranscriptStore(tmp_path), control_tokens=tokens)
    )
    found = {check.name: check for check in listed}
    assert found["server"].status == "ok"
    assert found["control tokens"].status == "warn"
    assert found["control tokens"].detail.endswith(": <|eot_id|>")
    assert "not offered" not in found["logprobs"].detail
    assert found["cache reporting"].detail.startswith("usage says")
    assert found["grammar"].detail == "not offered"
    assert found["web pages"].status == "ok"
