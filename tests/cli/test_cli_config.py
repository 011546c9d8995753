"""`mlx-tools config`, and the other commands that run nothing: `models`, `doctor`."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from mlx_tools.app import config
from mlx_tools.cli import ask
from mlx_tools.paths import locked
from mlx_tools.testing import ScriptedServer
from tests.tables import table
from tests.waiting import EXPIRES, HANG


def test_every_setting_is_shown_with_its_value_and_origin(
    run: Any, configure: Any, environ: Any
) -> None:
    configure("[model]\nseed = 3\n")
    Path("mlx-tools.toml").write_text("[policy]\ndeny = ['clock']\n")
    environ(DRY_RUN="yes")
    rows = {row["key"]: row for row in run("config", "show", "--json").lines}
    assert list(rows) == list(config.table())
    assert rows["model.seed"]["value"] == 3
    assert rows["model.seed"]["from"][0]["name"].endswith("config.toml")
    assert rows["policy.deny"]["from"][-1]["kind"] == "project"
    assert rows["policy.dry_run"]["from"] == [{"kind": "environment", "name": "MLX_TOOLS_DRY_RUN"}]
    shown = run("config", "show").out
    assert "MLX_TOOLS_DRY_RUN" in shown and "mlx-tools.toml" in shown
    assert len(shown.splitlines()) == len(rows)
    assert "mlx-tools.toml" in run("config", "check").out


def test_a_key_is_never_shown(run: Any, environ: Any) -> None:
    environ(BACKEND_API_KEY="hush")
    for options in ((), ("--json",)):
        result = run("config", "show", *options)
        assert "hush" not in result.out + result.err and "(hidden)" in result.out


def test_check_lists_every_fault_on_a_line_of_its_own(run: Any, write: Any) -> None:
    text = "x = 1\n[limits]\nmax_iterations = 0\n[policy]\nallow = 'a'\n"
    result = run("config", "check", write("mine.toml", text))
    assert result.code == 2 and result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("mlx-tools: error: mine.toml: ") for line in lines)
    text = "[limits]\nmax_iterations = 99\n"
    assert run("config", "check", write("mine.toml", text)).code == 0
    assert run("config", "check", write("mlx-tools.toml", text)).code == 2  # as a project's


def test_a_fault_in_a_file_stops_every_command(run: Any, write: Any) -> None:
    write("mlx-tools.toml", "[policy]\nallow = ['run_command']\n")
    for command in (("ask", "Hi"), ("tools", "list"), ("config", "show"), ("parse",)):
        result = run(*command)
        assert result.code == 2 and "mlx-tools.toml: policy.allow" in result.error


def test_a_table_of_a_plugin_that_is_gone_is_told_once_and_stops_no_command(
    run: Any, configure: Any
) -> None:
    configure("[weather]\nstation = 'Cork'\n")
    commands = (
        *(("config", "check"), ("config", "show"), ("sessions", "list"), ("tools", "list")),
        *(("stats",), ("config", "set", "model.seed", "3"), ("undo", "--yes")),
    )
    for command in commands:
        result = run(*command)
        told = [line for line in result.err.splitlines() if "[weather] is ignored" in line]
        assert len(told) == 1 and "mlx-tools config edit" in told[0], (command, result.err)
        assert result.code == 0 or command[0] == "undo", (command, result.err)
    found = run("doctor", "--json")
    assert any(
        check["name"] == "settings" and "[weather]" in check["detail"]
        for check in found.json["checks"]
    )


@table(
    ("text", "problem"),
    [
        ("[polcy]\ndeny = []\n", "polcy: no such section (did you mean policy?)"),
        ("[weather]\ndeny = ['clock']\n", "did you mean policy.deny?"),
        ("[weather]\nlocalonly = true\n", "did you mean policy.local_only?"),
        ("[weather.inner]\nrate_limit = 'x'\n", "did you mean policy.rate_limits?"),
        ("[[weather]]\nx = 1\n", "weather: no such setting"),
        ("[policy.weather]\nx = 1\n", "policy.weather: no such section"),
        ("[web]\nstation = 'x'\n", "web.station: no such setting"),
        ("weather = 3\n", "weather: no such setting"),
        ("[profiles.a.weather]\ndny = ['clock']\n", "did you mean policy.deny?"),
    ],
)
def test_an_unknown_table_that_may_restrict_something_is_an_error(
    run: Any, write: Any, text: str, problem: str
) -> None:
    result = run("config", "check", write("mine.toml", text))
    assert result.code == 2 and problem in result.err


@pytest.mark.parametrize("word", ["none", "Default", "unlimited"])
def test_a_word_for_no_value_is_told_what_unsets_a_setting(run: Any, word: str) -> None:
    result = run("config", "set", "limits.max_tokens", word)
    assert result.code == 2 and "config set limits.max_tokens '' unsets it" in result.error
    assert "an integer from 1 to" in result.error


def test_an_unknown_table_in_a_projects_file_is_an_error(run: Any, write: Any) -> None:
    result = run("config", "check", write("mlx-tools.toml", "[weather]\nx = 1\n"))
    assert result.code == 2 and "weather: no such section" in result.err


# --- changing the user's file -----------------------------------------------------------------


@pytest.fixture
def mine(configure: Any) -> Any:
    return configure("# mine\n[model]\nseed = 3  # lucky\n")


def test_a_setting_is_written_where_it_stands_and_comments_stay(run: Any, mine: Path) -> None:
    result = run("config", "set", "model.seed", "4")
    assert (result.code, result.out, result.err) == (0, "model.seed = 4\n", "")
    assert mine.read_text() == "# mine\n[model]\nseed = 4  # lucky\n"
    assert run("config", "set", "prompt.system", "You", "are", "terse.").code == 0
    assert config.load().settings.prompt.system == "You are terse."
    assert run("config", "set", "prompt.system", "").out == "prompt.system is not set\n"
    assert config.load().settings.prompt.system is None
    assert "needs a terminal" in run("config", "edit").error


@table(
    ("key", "value"),
    [
        ("limits.max_iterations", "7"),
        ("policy.dry_run", "true"),
        ("policy.approve", "never"),
        ("policy.ask_effects", "write"),
        ("policy.allow", "clock"),
        ("backend.url", "http://127.0.0.1:1"),
        ("gateway.models", "gpt-*=default"),
    ],
)
def test_an_empty_value_unsets_a_setting_of_any_kind(
    run: Any, home: Path, key: str, value: str
) -> None:
    before = config.load().values.get(key)
    assert run("config", "set", key, value).code == 0
    assert config.load().values.get(key) != before
    assert run("config", "set", key, "").out == f"{key} is not set\n"
    assert config.load().values.get(key) == before
    assert "=" not in (home / "config" / "config.toml").read_text()


def test_an_empty_list_is_written_as_such(run: Any, mine: Path) -> None:
    assert run("config", "set", "policy.ask_effects", "[]").code == 0
    assert config.load().settings.policy.ask_effects == ()


def test_a_secret_can_be_unset(run: Any, configure: Any) -> None:
    mine = configure('[backend]\napi_key = "hush"\n')
    assert run("config", "set", "backend.api_key", "").code == 0
    assert "hush" not in mine.read_text()


def test_the_first_setting_makes_a_file_that_its_owner_alone_reads(run: Any, home: Path) -> None:
    assert run("config", "set", "policy.allow", "clock,notes_*").code == 0
    file = home / "config" / "config.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert run("config", "path").out == f"{file}\n"
    assert config.load().settings.policy.allow == ("clock", "notes_*")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model.sed", "4"), "no such setting (did you mean model.seed?)"),
        (("model.seed", "many"), "'many' is not allowed"),
        (("policy.preset", "nope"), "'nope' is not allowed"),
        (("profile", "work"), "no profile 'work'"),
        (("backend.api_key", "hush"), "is a secret"),
    ],
)
def test_what_could_not_be_read_is_not_written(
    run: Any, mine: Path, words: tuple[str, ...], said: str
) -> None:
    before = mine.read_text()
    result = run("config", "set", *words)
    assert result.code == 2 and said in result.error and "hush" not in result.err
    assert mine.read_text() == before


def test_what_goes_over_a_setting_is_told(run: Any, mine: Path, environ: Any) -> None:
    environ(MODEL_SEED="9")
    assert "MLX_TOOLS_MODEL_SEED overrides it" in run("config", "set", "model.seed", "4").error


def test_a_file_that_is_a_link_stays_one(run: Any, mine: Path, home: Path) -> None:
    kept = mine.rename(home / "dotfile.toml")
    mine.symlink_to(kept)
    assert run("config", "set", "model.seed", "4").code == 0
    assert mine.is_symlink() and "seed = 4" in kept.read_text()


def test_two_programs_that_change_settings_at_once_lose_none(run: Any, mine: Path) -> None:
    with ThreadPoolExecutor() as threads:
        with locked(mine):  # as another program, which has read the file
            change = threads.submit(run, "config", "set", "model.seed", "4")
            wait([change], EXPIRES)
            mine.write_text("[model]\nname = 'other'\n")
        assert change.result(HANG).code == 0
    assert mine.read_text() == "[model]\nname = 'other'\nseed = 4\n"


def test_an_editor_does_not_undo_what_another_program_set(
    terminal: Any, home: Path, mine: Path
) -> None:
    script = home / "editor.py"
    script.write_text(
        "import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\n"
        "file.write_text(file.read_text() + '# edited\\n')\n"
        f"pathlib.Path({str(mine)!r}).write_text('# other\\n')\n"
    )
    screen = terminal("config", "edit", VISUAL=f"{sys.executable} {script}")
    screen.see("another program changed it")
    screen.type("n")
    screen.press("enter")
    assert screen.end() == 2
    assert mine.read_text() == "# other\n"


def test_what_was_edited_counts_once_it_is_sound(terminal: Any, home: Path, mine: Path) -> None:
    script = home / "editor.py"
    script.write_text(
        "import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\ntext = file.read_text()\n"
        "broken = 'seed = 3' in text\n"
        "file.write_text(text.replace('seed = 3', 'seed = x') if broken else"
        " text.replace('seed = x', 'seed = 5'))\n"
    )
    screen = terminal("config", "edit", VISUAL=f"{sys.executable} {script}")
    screen.see("Edit it again?")
    assert "seed = 3" in mine.read_text()
    screen.type("y")
    screen.press("enter")
    assert screen.end() == 0
    assert mine.read_text() == "# mine\n[model]\nseed = 5  # lucky\n"


def test_models_lists_the_embedded_one(
    run: Any, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    (row,) = run("models", "list", "--json").lines
    assert row["name"] == "smollm2-135m" and row["pulled"] is False and row["path"] is None
    assert run("models", "list").out.startswith("smollm2-135m")


@pytest.mark.parametrize("command", ["path", "pull"])
def test_a_name_that_is_no_models_is_one_line(run: Any, command: str) -> None:
    result = run("models", command, "no such model")
    assert result.code == 2 and "smollm2-135m" in result.error


def test_the_path_of_a_model_is_that_of_its_folder(run: Any, write: Any) -> None:
    missing = run("models", "path", "smollm2-135m")
    assert missing.code == 3 and "mlx-tools models pull smollm2-135m" in missing.error
    Path("model").mkdir()
    write("model/config.json", {})
    assert run("models", "path", "./model").out == f"{Path('model').absolute()}\n"


def test_doctor_of_a_server_that_is_not_there_is_exit_code_3(run: Any) -> None:
    with ScriptedServer() as server:
        url = server.url
    result = run("doctor", "--url", url, "--json")
    assert result.code == 3 and result.json["ok"] is False
    assert result.json["checks"][0]["name"] == "server"
    assert "FAIL" in run("doctor", "--url", url).out


def test_every_option_of_the_settings_is_one_of_ask() -> None:
    rows = (row.setting for row in config.table().values())
    flags = {row.flag for row in rows if row.group != "gateway"} - {""}
    offered = {flag for one in get_command(ask.app).params for flag in one.opts}
    assert flags <= offered


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        *(("gatway.api_key", "gateway.api_key"), ("limit.max_token", "limits.max_tokens")),
        *(("dryrun", "policy.dry_run"), ("limits.total-timeout", "limits.total_timeout_ms")),
        *(("policy.seed", "model.seed"), ("artifacts.keepdays", "artifacts.keep_days")),
        ("api_key", "backend.api_key"),
        *(("limits.timeout", "limits.total_timeout_ms"), ("policy.tools", "policy.allow")),
    ],
)
def test_a_setting_that_is_none_is_likened_by_its_whole_name(
    run: Any, key: str, meant: str
) -> None:
    result = run("config", "set", key, "3")
    assert result.code == 2 and f"did you mean {meant}?" in result.error


def test_a_byte_order_mark_before_a_file_is_passed_over_and_stays(
    run: Any, configure: Any, write: Any, home: Path
) -> None:
    text = "\N{BYTE ORDER MARK}# mine\r\n[limits]\r\nmax_iterations = 3\r\n"
    assert run("config", "check", write("mine.toml", text)).code == 0
    file = config.user_path()
    configure("")
    file.write_bytes(text.encode())
    assert run("config", "set", "limits.max_iterations", "5").code == 0
    assert file.read_bytes().decode() == text.replace("3", "5")
    assert run("config", "check").code == 0
