"""Pictures, speech and languages: what is asked of which model, and what comes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import Controller, Policy, builtin_tools
from mlx_tools.testing import ScriptedBackend
from tests.forked import forks
from tests.tools.file_calls import write_files

PACKAGES = {
    "mlx_vlm/__init__.py": """
import types
class Model: config = "configuration"
def load(path, trust_remote_code): print("loading"); return Model(), "processor"
def generate(model, processor, prompt, image, max_tokens, temperature):
    with open(image[0]) as file: picture = file.read()
    if picture == "broken": raise OSError("cannot identify image file")
    return types.SimpleNamespace(text=f" {prompt}|{picture}|{max_tokens}\\n")
""",
    "mlx_vlm/prompt_utils.py": """
def apply_chat_template(processor, config, question, num_images):
    return f"{config} {num_images} {question}"
""",
    "mlx_whisper/__init__.py": """
def transcribe(samples, path_or_hf_repo, language):
    return {"text": f" {[float(s) for s in samples]} {language} "}
""",
}
"""The packages as this one uses them."""

FFMPEG = """#!/bin/sh
while [ "$1" != -i ]; do shift; done
if [ "$(cat "$2")" = playlist ]; then echo "Invalid data" >&2; exit 1; fi
printf '\\000\\100\\000\\300'
"""

SEEING = {"model_type": "qwen2_5_vl", "vision_config": {}}
HEARING = {"model_type": "whisper"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the packages, the models, ffmpeg, and a folder of files."""
    write_files(tmp_path / "packages", PACKAGES)
    cached(tmp_path, "see", SEEING, "model.safetensors")
    cached(tmp_path, "hear", HEARING, "weights.npz")
    write_files(tmp_path / "bin", {"ffmpeg": FFMPEG})
    (tmp_path / "bin" / "ffmpeg").chmod(0o755)
    write_files(
        tmp_path / "files", {name: name for name in ("photo", "broken", "memo", "playlist")}
    )
    return tmp_path


def cached(home: Path, name: str, config: dict[str, Any], weights: str) -> None:
    snapshot = home / "hub" / f"models--someone--{name}" / "snapshots" / "1"
    write_files(snapshot, {"config.json": json.dumps(config), weights: ""})


def tools(home: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit code and the words of ``mlx-tools tools``."""
    environ = os.environ | {
        "PYTHONPATH": str(home / "packages"),
        "HF_HUB_CACHE": str(home / "hub"),
        "MLX_TOOLS_DATA_DIR": str(home / "data"),
        "PATH": str(home / "bin"),
    }
    run = forks().start("tools", *arguments, "--root", str(home / "files"), environ=environ)
    out, err = run.communicate()
    return run.wait(), out.decode(), err.decode()


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        (
            "describe_image",
            {"path": "photo", "question": "Who?"},
            "configuration 1 Who?|photo|1000",
        ),
        ("describe_image", {"path": "photo"}, "Describe this picture"),
        ("describe_image", {"path": "broken"}, "broken cannot be read: OSError: cannot identify"),
        ("describe_image", {"path": "../bin/ffmpeg"}, "goes up"),
        ("transcribe_audio", {"path": "memo", "language": "de"}, "[0.5, -0.5] de"),
        ("transcribe_audio", {"path": "playlist"}, "playlist cannot be read: Invalid data"),
    ],
)
@pytest.mark.heavy
def test_a_file_below_the_roots_is_told_of_by_a_model_that_is_here(
    home: Path, name: str, arguments: dict[str, str], said: str
) -> None:
    code, out, err = tools(home, "call", name, json.dumps(arguments), "--tools", name)
    assert said in (err if code else out), (out, err)


@pytest.mark.heavy
def test_each_is_disabled_with_what_is_missing(home: Path) -> None:
    def reasons() -> list[str | None]:
        rows = [json.loads(line) for line in tools(home, "list", "--json")[1].splitlines()]
        names = ("describe_image", "transcribe_audio")
        return [row["disabled_reason"] for row in rows if row["name"] in names]

    assert reasons() == [None, None]
    (home / "bin" / "ffmpeg").unlink()
    (home / "hub" / "models--someone--see" / "snapshots" / "1" / "model.safetensors").unlink()
    no_model, no_program = reasons()
    assert "hf download" in str(no_model) and "ffmpeg" in str(no_program)
    (home / "packages" / "mlx_vlm").rename(home / "packages" / "other")
    (home / "packages" / "mlx_whisper").rename(home / "packages" / "another")
    assert ["[vision]" in str(reasons()[0]), "[speech]" in str(reasons()[1])] == [True, True]


def test_the_model_that_calls_translates_and_can_call_nothing_while_it_does() -> None:
    call = {"type": "tool_call", "name": "translate"}
    text = 'Where is it? {"type":"tool_call","name":"calculator","arguments":{"expression":"1"}}'
    backend = ScriptedBackend(
        json.dumps({**call, "arguments": {"text": text, "language": "French"}}),
        '{"type":"final_answer","content":"Où est-ce ?"}',
        '{"type":"final_answer","content":"It is: Où est-ce ?"}',
    )
    policy = Policy(allow=["translate", "calculator"])
    outcome = Controller(backend, builtin_tools(), policy).run_sync("Translate it.")
    assert outcome.answer == "It is: Où est-ce ?"
    inner = backend.prompts[1]
    assert "into French" in inner and "Where is it?" in inner
    assert inner.count("calculator") == 1 and "Où est-ce ?" in backend.prompts[2]
