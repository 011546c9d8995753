"""The model that mlx-lm's server runs is measured: its list is the whole Hugging Face cache."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.backends import CompletionsBackend, choose_backend
from mlx_tools.backends.listener import find_model_argument, listening_command
from mlx_tools.backends.running_model import RunningModel, find_running_model
from mlx_tools.errors import UsageError
from tests.backends.stand_in import CHATML, HEADERS, THINKING, MlxServer, put_model
from tests.tables import table
from tests.waiting import wait_until

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
HEADER_TOKENS = ("<|header|>", "<|end|>", "<|eot|>")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache, on a machine without models."""
    for name in ("MLX_TOOLS_CACHE_DIR", "MLX_TOOLS_STATE_DIR", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return Path(os.environ["HF_HUB_CACHE"])


def family(index: int) -> tuple[str, tuple[str, ...]]:
    """A template of its own with its control tokens."""
    tokens = tuple(f"<|{word}_{index}|>" for word in ("start", "end"))
    template = CHATML.replace("<|im_start|>", tokens[0]).replace("<|im_end|>", tokens[1])
    return template, tokens


def find(server: MlxServer, listed: Sequence[str], **options: Any) -> tuple[RunningModel, int]:
    """The model found, and the number of requests. Who listens is not known, unless it is said."""
    options = {"command_on": lambda port: None, **options}
    with server.serve() as served:
        found = asyncio.run(find_running_model(CompletionsBackend(served.url), listed, **options))
        return found, len(served.requests)


def test_an_empty_cache_says_nothing_and_asks_nothing(cache: Path) -> None:
    assert find(MlxServer(None, (), None), ()) == (RunningModel(), 0)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_of_a_cache_of_models_the_one_that_runs_is_found(cache: Path, count: int) -> None:
    folders = {}
    for index in range(count):
        template, tokens = family(index)
        folders[f"org/model-{index}"] = put_model(cache, f"org/model-{index}", template, tokens)
    for index in {0, count // 2, count - 1}:
        name = f"org/model-{index}"
        found, requests = find(
            MlxServer(folders[name], list(folders), family(index)[0]), list(folders)
        )
        assert (found.name, found.alike) == (name, ())
        assert found.files is not None and found.files.chat_template == family(index)[0]
        assert requests < 8


def test_where_one_is_listed_and_another_runs_the_template_is_that_of_the_other(
    cache: Path,
) -> None:
    put_model(cache, "org/listed", CHATML, CHATML_TOKENS)
    other = put_model(cache, "org/no-index", HEADERS, HEADER_TOKENS)
    found, _ = find(MlxServer(other, ["org/listed"], HEADERS), ["org/listed"])
    assert found.name == "org/no-index"


def test_templates_with_the_same_tokens_are_told_by_what_the_server_writes(cache: Path) -> None:
    plain = put_model(cache, "org/plain", CHATML, CHATML_TOKENS)
    put_model(cache, "org/thinking", THINKING, CHATML_TOKENS)
    listed = ["org/plain", "org/thinking"]
    assert find(MlxServer(plain, listed, CHATML), listed)[0].name == "org/plain"
    assert find(MlxServer(plain, listed, THINKING), listed)[0].name == "org/thinking"


def test_models_with_the_same_template_are_named_together(cache: Path) -> None:
    small = put_model(cache, "org/small", CHATML, CHATML_TOKENS)
    put_model(cache, "org/large", CHATML, CHATML_TOKENS)
    listed = ["org/small", "org/large"]
    found, _ = find(MlxServer(small, listed, CHATML), listed)
    assert found.name is None and found.alike == ("org/large", "org/small")
    assert found.files is not None and found.files.chat_template == CHATML
    assert "org/large or org/small" in found.doubt and "--model" in found.doubt


def test_where_templates_differ_and_nothing_tells_a_person_is_asked_or_it_is_refused(
    cache: Path,
) -> None:
    folder = put_model(cache, "org/chatml", CHATML, CHATML_TOKENS)
    put_model(cache, "org/headers", HEADERS, HEADER_TOKENS)
    listed = ["org/chatml", "org/headers"]
    silent = MlxServer(folder, listed, None, usage=False)
    with pytest.raises(UsageError, match="org/chatml, org/headers") as caught:
        find(silent, listed)
    assert "--model" in str(caught.value.hint)
    asked: list[Sequence[str]] = []

    async def pick(question: str, answers: Sequence[str]) -> str:
        asked.append(answers)
        return answers[1]

    found, _ = find(silent, listed, pick=pick)
    assert asked == [("org/chatml", "org/headers")] and found.name == "org/headers"
    assert found.files is not None and found.files.chat_template == HEADERS


def test_without_a_tokenizer_control_tokens_are_tried_one_by_one(cache: Path) -> None:
    folders = {
        "org/chatml": put_model(cache, "org/chatml", CHATML, CHATML_TOKENS),
        "org/headers": put_model(cache, "org/headers", HEADERS, HEADER_TOKENS),
    }
    server = MlxServer(folders["org/headers"], list(folders), None)
    for folder in folders.values():  # the server has read its own
        file = folder / "tokenizer.json"
        file.write_text(file.read_text().replace('"BPE"', '"none that is known"'))
    assert find(server, list(folders))[0].name == "org/headers"


def test_on_this_machine_the_command_of_the_server_says_it(cache: Path) -> None:
    put_model(cache, "org/one", CHATML, CHATML_TOKENS)
    put_model(cache, "org/two", HEADERS, HEADER_TOKENS)
    listed = ["org/one", "org/two"]
    command = "/opt/bin/python -m mlx_lm server --model org/two --port 8080"
    found, requests = find(MlxServer(None, listed, None), listed, command_on=lambda port: command)
    assert (found.name, requests) == ("org/two", 0)


def test_a_chosen_server_has_the_template_of_the_model_that_runs(cache: Path) -> None:
    put_model(cache, "org/one", CHATML, CHATML_TOKENS)
    two = put_model(cache, "org/two", HEADERS, HEADER_TOKENS)
    listed = ["org/one", "org/two"]
    with MlxServer(two, listed, HEADERS).serve() as server:
        chosen = asyncio.run(choose_backend(url=server.url))
    assert (chosen.model, chosen.template) == ("org/two", HEADERS)
    assert chosen.identity() == "org/two"
    with MlxServer(two, ["org/two", "org/three"], HEADERS).serve() as server:
        put_model(cache, "org/three", HEADERS, HEADER_TOKENS)
        chosen = asyncio.run(choose_backend(url=server.url))
    assert (chosen.model, chosen.template, chosen.identity()) == (None, HEADERS, None)
    assert "org/three or org/two" in chosen.note


# --- who listens ----------------------------------------------------------------------------------


@table(
    "command, model",
    [
        ("python -m mlx_lm server --model a/b --port 8080", "a/b"),
        ("/x/bin/mlx_lm.server --port 1 --model=/models/My Model", "/models/My Model"),
        ("python -m mlx_lm server --model /a b/c --log-level INFO", "/a b/c"),
        ("python -m mlx_lm.server --draft-model d/e --model a/b", "a/b"),
        ("python -m mlx_lm server --port 8080", None),
        ("llama-server --model a/b", None),
        (None, None),
    ],
)
def test_the_model_stands_in_the_command_of_mlx_lms_server(
    command: str | None, model: str | None
) -> None:
    assert find_model_argument(command) == model


def test_on_linux_the_command_of_a_port_is_found_in_proc() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux has /proc")
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, "mlx_lm", "--model", "a/b"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as process:  # type: ignore[call-overload]
        port = int(process.stdout.readline())
        command = wait_until(lambda: listening_command(port))
        process.communicate("")
    assert find_model_argument(command) == "a/b"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        assert listening_command(nobody.getsockname()[1]) is None


def test_on_macos_lsof_and_ps_say_it() -> None:
    called: list[Sequence[str]] = []

    def output(words: Sequence[str]) -> str:
        called.append(words)
        if words[0] == "lsof":
            return "p4711\nf5\n"
        return "/opt/homebrew/bin/python3.13 -m mlx_lm server --model a/b\n"

    command = listening_command(8080, platform="darwin", output=output)
    assert find_model_argument(command) == "a/b"
    assert called[0][0] == "lsof" and "-iTCP:8080" in called[0] and "-sTCP:LISTEN" in called[0]
    assert called[1] == ["ps", "-ww", "-o", "command=", "-p", "4711"]
    assert listening_command(8080, platform="darwin", output=lambda words: "") is None
