"""`mlx-tools doctor --probe`, and what a kept verdict does to the next command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools.app import config
from mlx_tools.app.probe import load_questions
from mlx_tools.app.wiring import RunOptions, choose, run_settings
from mlx_tools.backends import VerdictStore
from mlx_tools.backends.models.listing import folder_identity
from mlx_tools.testing import Completion, ScriptedServer, answer
from tests.backends.test_verdicts import verdict
from tests.evaluate.oracle import Oracle

ORACLE = Oracle(load_questions().questions, free=["xml"])


def says(prompt: str) -> Completion:
    return Completion(ORACLE.says(prompt), size=10_000)


def probing(*after: Any, many: int = 10_000) -> ScriptedServer:
    """A server whose model follows the style ``xml`` alone, and cannot be guided."""
    return ScriptedServer(*[says] * many, *after, model="oracle")


CHATML = ("--chat-format", "chatml")


def test_a_report_of_a_fault_has_the_versions(run: Any) -> None:
    with ScriptedServer(*[answer("Hi.")] * 50, model="oracle") as server:
        versions = run("doctor", "--url", server.url, *CHATML, "--json").json["versions"]
    assert versions["model"] == "oracle"
    assert {"mlx_tools", "server", "python", "platform"} <= versions.keys()


@pytest.mark.slow
def test_a_probe_is_kept_and_decides_the_next_run(run: Any, home: Path) -> None:
    with probing() as server:
        result = run("doctor", "--probe", "--url", server.url, *CHATML, "--json")
    assert result.code == 0, result.err
    value = result.json
    probe = value["probe"]
    assert value["ok"] and probe["complete"] and probe["questions"] == 25
    assert (probe["verdict"]["style"], probe["verdict"]["strategy"]) == ("xml", "auto")
    assert len(probe["measured"]) == 9
    kept = json.loads(Path(probe["stored"]).read_text())
    assert kept == probe["verdict"] and kept["model"] == "oracle"
    assert value["verdict"] == kept | {"source": "stored", "place": probe["stored"]}
    with ScriptedServer(Completion("<final_answer>Hi.</final_answer>"), model="oracle") as server:
        asked = run("ask", "Hello?", "--url", server.url, *CHATML, "--json").json
    assert asked["answer"] == "Hi." and "<final_answer>" in server.prompts[0]
    header = json.loads(Path(asked["transcript"]).read_text().splitlines()[0])
    assert (header["style"], header["strategy"]) == ("xml", "auto")
    assert header["verdict"]["style"] and header["verdict"]["measured_at"] == kept["measured_at"]
    with ScriptedServer(answer("Hi."), model="oracle") as server:
        options = ("--url", server.url, *CHATML, "--style", "jsonl", "--strategy", "auto")
        assert run("ask", "Hello?", *options).code == 0
    with ScriptedServer(model="oracle") as server:
        shown = run("doctor", "--url", server.url, *CHATML, "--json").json
    (check,) = [one for one in shown["checks"] if one["name"] == "verdict"]
    assert check["status"] == "ok" and "style xml, strategy auto" in check["detail"]


def kept(home: Path) -> list[Path]:
    """The verdicts on styles and strategies that are kept."""
    folder = home / "state" / "verdicts"
    return [file for file in folder.glob("*") if not file.name.startswith("native-")]


def test_a_server_that_dies_leaves_figures_and_no_verdict(run: Any, home: Path) -> None:
    with probing(*[Completion("the model is gone", status=500)] * 99, many=20) as server:
        result = run("doctor", "--probe", "--url", server.url, *CHATML)
    assert result.code == 3 and not kept(home)
    assert "FAIL  probe: broke off" in result.out and "the model is gone" in result.out
    assert "style" in result.out and "of " in result.out and "Traceback" not in result.err


@pytest.mark.heavy
def test_a_probe_without_time_keeps_nothing(run: Any, home: Path) -> None:
    def slow(prompt: str) -> Completion:
        asked = "<|im_start|>assistant" in prompt
        return Completion("The sea, the sea. " * 40, delay=0.05 if asked else 0.0)

    with ScriptedServer(*[slow] * 99, model="oracle") as server:
        options = ("--probe", "--within", "1", "--url", server.url, *CHATML, "--json")
        result = run("doctor", *options)
    assert result.code == 1 and result.json["ok"]
    probe = result.json["probe"]
    assert not probe["complete"] and probe["verdict"] is None and probe["stored"] is None
    assert not kept(home)


@pytest.mark.parametrize("within", ["0", "-1", "nan", "soon"])
def test_a_time_that_is_none_is_wrong_usage(run: Any, within: str) -> None:
    assert run("doctor", "--probe", "--within", within).code == 2


@pytest.mark.parametrize(("style", "forbidden"), [("xml", ()), ("jsonl", (7,))])
def test_a_models_own_markers_are_forbidden_but_in_the_style_that_is_written_with_them(
    home: Path, write: Any, style: str, forbidden: tuple[int, ...]
) -> None:
    Path("model").mkdir()
    write("model/config.json", {"model_type": "llama"})
    added = {"7": {"content": "<tool_call>", "special": False}}
    write("model/tokenizer_config.json", {"added_tokens_decoder": added, "chat_template": ""})
    model = str(folder_identity(Path("model")))
    VerdictStore(home / "state" / "verdicts").save(verdict(model, style=style))
    named = {"backend.kind": "server", "model.name": "./model", "model.chat_format": "chatml"}

    async def main() -> tuple[Any, Any]:
        run = RunOptions(configuration=config.load(options=named))
        chosen = await choose(run, lambda line: None)
        return await run_settings(run, chosen, lambda line: None), chosen.backend

    settings, backend = anyio.run(main)
    assert settings.verdict.verdict.style == style
    assert backend.forbidden_tokens == forbidden
