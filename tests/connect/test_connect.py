"""`mlx-tools connect`: what clients' files say, and what else they hold stays."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlx_tools.errors import ConfigError
from mlx_tools.plugins.connect.client_files import CLIENTS, GatewayTarget
from mlx_tools.plugins.connect.json_edit import read_json, set_json
from mlx_tools.plugins.connect.yaml_edit import set_yaml
from tests.tables import table

WITH_FILES = [name for name in CLIENTS if name != "open-webui"]
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home, of a user whose shell says nothing about clients."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setattr(Path, "home", lambda: folder)
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "LLM_USER_PATH"):
        monkeypatch.delenv(name, raising=False)
    yield folder


def parsed(path: Path) -> Any:
    """The value in a file."""
    text = path.read_text()
    if path.suffix == ".toml":
        return tomllib.loads(text)
    return yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else read_json(text)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_told_the_address_and_nothing_is_written(
    run: Any, home: Path, client: str
) -> None:
    result = run("connect", client, "--url", f"{NOBODY}/v1/", "--json")
    assert result.code == 0, result.err
    said = result.json
    told = json.dumps([said["files"], said["variables"]])
    assert (said["client"], said["url"], said["gateway"]) == (client, NOBODY, False)
    assert NOBODY in told and "default" in told
    assert [*home.rglob("*")] == []
    assert "127.0.0.1:9" in run("connect", client, "--url", NOBODY).out


@pytest.mark.parametrize("client", WITH_FILES)
def test_what_is_written_says_what_was_shown_and_a_second_time_nothing_changes(
    run: Any, home: Path, client: str
) -> None:
    shown = run("connect", client, "--url", NOBODY, "--json").json["files"]
    result = run("connect", client, "--url", NOBODY, "--write")
    assert result.code == 0, result.err
    for file in shown:
        path = Path(file["path"])
        assert path.read_text() == file["text"]
        assert path.stat().st_mode & 0o077 == 0  # it may hold a key
        assert f"+++ {path}" in result.out
        parsed(path)
    again = run("connect", client, "--url", NOBODY, "--write", "--json").json["files"]
    assert [file["changed"] for file in again] == [False] * len(shown)


def test_the_context_of_the_running_model_is_told() -> None:
    target = GatewayTarget("http://127.0.0.1:8321", context=4096)
    for client, plan in CLIENTS.items():
        if client not in ("cline", "llm", "jetbrains"):  # their files do not say it
            said = repr(plan(target))
            assert "4096" in said or client == "open-webui", client
            assert "1024" in said or client in ("codex", "open-webui"), client


EXISTING = {
    "codex": '# mine\nmodel = "o9"  # the best\n\n[model_providers.o]\nname = "x"\n\n[t]\na = 1\n',
    "claude-code": '{\n\t// mine\n\t"env": {"A": "1"}, /* why */\n\t"permissions": {"a": []},\n}\n',
    "opencode": '{"$schema": "https://opencode.ai/config.json", "provider": {}, "theme": "x"}',
    "pi": '{\r\n    "providers": {\r\n        "a": {"baseUrl": "b"}\r\n    }\r\n}\r\n',
    "qwen-code": '{\n  "modelProviders": {"openai": [{"id": "q", "key": "K"}]},\n  "ui": {}\n}\n',
    "continue": "name: mine\nversion: 2\nschema: v1\n# models\nmodels:\n  - name: a  # first\n"
    "    provider: ollama\n    model: b\n\nrules:\n  - be brief\n",
    "llm": "# mine\n- model_id: a\n  model_name: b\n",
    "zed": '// Zed\n{\n  "theme": "One",  // dark\n  "agent": {\n'
    '    "default_model": {"model": "x"},\n'
    '    "tool": true, // last\n  },\n}\n',
    "aider": "# mine\nmodel: x\nauto-commits: false\n",
}


@pytest.mark.parametrize("client", EXISTING)
def test_what_else_a_file_holds_stays(run: Any, home: Path, client: str) -> None:
    file = run("connect", client, "--url", NOBODY, "--json").json["files"][0]
    path, text = Path(file["path"]), EXISTING[client]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    path.chmod(0o644)
    old = parsed(path)
    result = run("connect", client, "--url", NOBODY, "--write")
    assert result.code == 0, result.err
    wanted = parsed_text(path, file["snippet"])
    if client == "continue":
        wanted = {"models": wanted["models"]}  # the rest only stands in a new file
    assert parsed(path) == merged(old, wanted)
    assert path.stat().st_mode & 0o777 == 0o644
    remarks = (
        "# mine",
        "# the best",
        "// mine",
        "/* why */",
        "# first",
        "// Zed",
        "// dark",
        "// last",
    )
    assert all(one in path.read_text() for one in remarks if one in text)
    removed = [
        line for line in result.out.splitlines() if line.startswith("-") and line[1:2] != "-"
    ]
    assert len(removed) <= 3


def parsed_text(path: Path, text: str) -> Any:
    if path.suffix == ".toml":
        return tomllib.loads(text)
    return yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else read_json(text)


def merged(old: Any, new: Any) -> Any:
    """The union of two values: members of both, new ones first; items of both lists."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{k: merged(old[k], v) if k in old else v for k, v in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return [*old, *new]
    return new


@pytest.mark.parametrize("client", WITH_FILES)
@pytest.mark.parametrize("text", ["{ broken", "a: [\n", "[x", '{"a": 1, "a": 2}', "\x00"])
def test_a_broken_file_is_refused_with_words_and_left_as_it_is(
    run: Any, home: Path, client: str, text: str
) -> None:
    files = run("connect", client, "--url", NOBODY, "--json").json["files"]
    path = Path(files[0]["path"])
    if text.startswith('{"a"') and path.suffix in (".yaml", ".yml"):
        return  # YAML has it, and the later one counts
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    for options in ((), ("--write",)):
        result = run("connect", client, "--url", NOBODY, *options)
        assert result.code == 2
        assert str(path) in result.err and "not changed" in result.err
        assert path.read_text() == text
    assert [p for p in path.parent.iterdir() if p != path] == []


def test_a_link_stays_a_link_and_what_is_no_file_is_refused(run: Any, home: Path) -> None:
    path, real = home / ".pi" / "agent" / "models.json", home / "dotfiles.json"
    path.parent.mkdir(parents=True)
    real.write_text("{}")
    path.symlink_to(real)
    assert run("connect", "pi", "--url", NOBODY, "--write").code == 0
    assert path.is_symlink() and NOBODY in real.read_text()
    path.unlink()
    path.mkdir()
    result = run("connect", "pi", "--url", NOBODY, "--write")
    assert result.code == 2 and "cannot be read" in result.err


def test_an_unknown_client_and_an_odd_address_are_refused(run: Any, home: Path) -> None:
    for words in (("connect", "emacs"), ("connect",)):
        result = run(*words)
        assert result.code == 2 and "codex" in result.err
    odd = (
        "ftp://x",
        "http://[::1",
        "http://h:abc",
        "http://u:pw@h",
        "http://h/?x",
        "http://h\nX: y",
    )
    for url in (*odd, "ollama:http://h"):
        result = run("connect", "pi", "--url", url)
        assert (result.code, result.out) == (2, "") and "address" in result.error, url
        assert "internal error" not in result.error and "pw" not in result.error
    result = run("connect", "open-webui", "--url", NOBODY, "--write")
    assert result.code == 2 and "variables" in result.err


def test_a_gateways_key_is_named_by_its_variable_or_left_to_be_put_in(
    run: Any, home: Path, environ: Any
) -> None:
    environ(GATEWAY_API_KEY="hush-hush-hush")
    for client in CLIENTS:
        result = run("connect", client, "--url", NOBODY)
        assert "hush" not in result.out + result.err
    assert 'env_key = "MLX_TOOLS_GATEWAY_API_KEY"' in run("connect", "codex", "--url", NOBODY).out
    assert "KEY" in run("connect", "continue", "--url", NOBODY).out


# --- the editors ---


@table(
    ("text", "path", "value", "edited"),
    [
        ("", ("a", "b"), 1, '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("{}", ("a",), 1, '{\n  "a": 1\n}'),
        ('{"a": 1}', ("b",), 2, '{"a": 1, "b": 2}'),
        ('{"a": 1}', ("a",), 2, '{"a": 2}'),
        ('{\n  "a": 1 // x\n}', ("b",), 2, '{\n  "a": 1, // x\n  "b": 2\n}'),
        ('{\n  "a": 1, // x\n}', ("b",), 2, '{\n  "a": 1, // x\n  "b": 2,\n}'),
        ('{\n\t"a": {}\n}', ("a", "b"), 2, '{\n\t"a": {\n\t\t"b": 2\n\t}\n}'),
        ('{"a": [1]}', ("a", 1), 2, '{"a": [1, 2]}'),
        ('{"a": [{"b": 1}]}', ("a", 0, "b"), 2, '{"a": [{"b": 2}]}'),
        ('\ufeff{"a": 1}', ("b",), 2, '\ufeff{"a": 1, "b": 2}'),
        ('// c\n{\n  /* d */\n}\n', ("a",), 1, '// c\n{\n  /* d */\n  "a": 1\n}\n'),
        ('{"a": 1,}', ("b",), 2, '{"a": 1, "b": 2}'),
    ],
)  # fmt: skip
def test_one_value_of_json_is_set(text: str, path: Any, value: Any, edited: str) -> None:
    assert set_json(text, path, value) == edited


@table("text", ["{", "[1]", '{"a": "x}', "{a: 1}", "{} x", "[" * 5000])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        set_json(text, ("a", "b"), 1)


@table(
    ("text", "path", "value", "edited"),
    [
        ("", ("a",), "b c", 'a: "b c"\n'),
        ("a: 1\n", ("b",), "true", 'a: 1\nb: "true"\n'),
        ("a: 1  # x\nb: 2\n", ("a",), 3, "a: 3  # x\nb: 2\n"),
        ("- a: 1\n", (1,), {"a": 2}, "- a: 1\n- a: 2\n"),
        ("m:\n  - a: 1\n\n# c\nn: 2\n", ("m", 1), {"a": 2},
         "m:\n  - a: 1\n  - a: 2\n\n# c\nn: 2\n"),
        ("m: []\n", ("m", 0), {"a": 2}, 'm: [{"a": 2}]\n'),
        ("m:\n- a: 1\n  b: 2\nn: 2\n", ("m", 0), {"a": 5}, "m:\n- a: 5\nn: 2\n"),
        ("m:\n", ("m", 0), {"a": 2}, "m:\n  - a: 2\n"),
    ],
)  # fmt: skip
def test_one_value_of_yaml_is_set(text: str, path: Any, value: Any, edited: str) -> None:
    assert set_yaml(text, path, value) == edited
