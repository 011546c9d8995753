"""Completions of a Tab: as the option parser would, in the words of each shell."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer._completion_classes import BashComplete
from typer.main import get_command

from mlx_tools.cli import completion
from mlx_tools.cli.completion import TABLE, complete, items, session_ids
from mlx_tools.cli.root import app
from mlx_tools.testing import ScriptedServer, answer


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(TABLE).read_text())
    return loaded


def _lines(table: Mapping[str, Any]) -> list[tuple[list[str], str]]:
    """Command lines with every command and option."""
    lines = []
    for path, command in table.items():
        words = path.split()
        lines += [(words, begun) for begun in ("", "--", "--m", "s", "x")]
        for option in command["options"]:
            for name in {*option["names"]} - {"--help", "-h"}:
                values = ["x"] * option["values"]
                lines.append(([*words, name, *values], ""))
                lines.append(([*words, name, *values], "--"))
                if values:
                    lines += [([*words, name], "a"), (words, f"{name}="), (words, f"{name}=a")]
    return lines


@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.slow)])
def test_it_completes_what_the_option_parser_would(
    home: Path, table: dict[str, Any], step: int
) -> None:
    parser = BashComplete(get_command(app), {}, "mlx-tools", "_MLX_TOOLS_COMPLETE")
    lines = _lines(table)
    assert len(lines) > 500
    for words, begun in lines[::step]:
        wanted = [item.value for item in parser.get_completions([*words], begun)]
        said = [word for word, _ in items(words, begun, table) if not word.endswith("/")]
        assert sorted(said) == sorted(wanted), (words, begun)


def test_of_a_command_that_is_not_there_nothing_is_known(table: dict[str, Any]) -> None:
    assert items(["aks"], "--", table) == []


def test_ids_are_those_of_folders_the_newest_first(home: Path, table: dict[str, Any]) -> None:
    assert session_ids() == [("last", "")] and not (home / "state" / "sessions").exists()
    sessions = home / "state" / "sessions"
    for name in ("20260101-a", "20260102-b", ".hidden"):
        (sessions / name).mkdir(parents=True)
    (sessions / "secret").write_text("no session")
    assert [word for word, _ in session_ids()] == ["last", "20260102-b", "20260101-a"]
    assert items(["sessions", "show"], "20260101", table) == [("20260101-a", "")]


def test_of_very_many_sessions_the_newest_are_offered(
    table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"{number:05}" for number in reversed(range(5_000))]
    monkeypatch.setattr(completion, "session_ids", lambda: [(session, "") for session in ids])
    found = [session for session, _ in items(["sessions", "show"], "", table)]
    assert found == ids[: completion.MAX_CHOICES]
    assert items(["sessions", "show"], "0007", table) == [
        (f"0007{n}", "") for n in range(9, -1, -1)
    ]


def test_a_session_has_its_question_and_a_tool_its_description(
    home: Path, table: dict[str, Any], run: Any
) -> None:
    with ScriptedServer(answer("391.")) as server:
        session = run("ask", "--url", server.url, "--json", "What is 17 * 23?").json["session"]
    assert items(["chat", "--session"], "2", table) == [(session, "What is 17 * 23?")]
    assert items(["tools", "show"], "clo", table) == [
        ("clock", "Tells the current date, time and day of the week.")
    ]


def test_of_a_list_of_tools_the_last_name_is_completed(home: Path, table: dict[str, Any]) -> None:
    for option in ("--tools", "-t", "--require-tools"):
        assert [word for word, _ in items(["ask", option], "clo", table)] == ["clock"]
    assert [word for word, _ in items(["ask", "-t"], "+clock,-calc", table)] == [
        "+clock,-calculator"
    ]


def test_a_prompt_is_completed_by_its_name(home: Path, table: dict[str, Any], run: Any) -> None:
    assert run("prompts", "set", "review", "Review $FILE.").code == 0
    for words in (["ask", "-p"], ["prompts", "show"], ["prompts", "remove"]):
        assert items(words, "", table) == [("review", "")]


def test_a_template_that_can_be_revoked_has_its_tool(
    home: Path, table: dict[str, Any], run: Any
) -> None:
    assert items(["approvals", "revoke"], "", table) == []
    made = run("approvals", "add", "calculator", "expression=1*", "--yes").out.split()[0]
    assert items(["approvals", "revoke"], "", table) == [(made, "calculator")]


def test_servers_are_those_that_were_added(home: Path, table: dict[str, Any]) -> None:
    bound = home / "data" / "bound"
    bound.mkdir(parents=True)
    for name, text in (("there", '{"kind": "mcp"}'), ("zoo", '{"kind": "openapi"}'), ("bad", "{")):
        (bound / f"{name}.json").write_text(text)
    assert items(["mcp", "show"], "", table) == [("there", "")]


STYLES = ["auto", "jsonl", "markdown-json", "xml", "native"]


@pytest.mark.parametrize(
    ("words", "at", "said"),
    [
        ("mlx-tools ask --style", 3, STYLES),
        ("mlx-tools ask --style = j", 4, ["jsonl"]),  # bash takes --style=j apart
        ("mlx-tools ask 'not closed --st", 2, []),
        ("mlx-tools ask --max-i", 2, ["--max-iterations"]),
        ("mlx-tools config c", 2, ["check"]),
    ],
)
def test_bash_gets_a_word_a_line(words: str, at: int, said: list[str]) -> None:
    environ = {"COMP_WORDS": words, "COMP_CWORD": str(at)}
    text, code = complete("complete_bash", environ)
    assert (text.split(), code) == (said, 0)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one/inner", "two words", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("file.txt", "one/file.txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


TAKES_FOLDER = (
    *("ask --root", "golden record --into", "eval tasks --transcripts"),
    *("tools add", "golden export", "ask Hi --root="),
)


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("command", TAKES_FOLDER)
def test_where_a_folder_fits_no_shell_offers_files(command: str) -> None:
    blank = "" if command.endswith("=") else " "
    words = command.replace("=", " =").split()

    def bash(begun: str) -> tuple[list[str], int]:
        line = " ".join(["mlx-tools", *words, begun])
        text, code = complete(
            "complete_bash", {"COMP_WORDS": line, "COMP_CWORD": str(len(words) + 1)}
        )
        return text.splitlines(), code

    def fish(begun: str, action: str) -> tuple[list[str], int]:
        line = f"mlx-tools {command}{blank}{begun}"
        asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": action}
        text, code = complete("complete_fish", asked)
        return [word.removeprefix("--root=") for word in text.splitlines()], code

    assert bash("") == (["one/", "two\\ words/"], 1)  # by the code its script leaves out files
    assert bash("o") == (["one/", "one/inner/"], 1)
    assert bash("one/") == (["one/inner/"], 1)
    assert bash("./.h") == (["./.hidden/"], 1)
    assert bash("f") == ([], 1)
    assert fish("", "get-args") == (["one/", "two words/"], 0)
    assert fish("f", "is-args") == ([], 0)
    for begun in ("", "o", "f"):
        line = f"mlx-tools {command}{blank}{begun}"
        text, code = complete("complete_zsh", {"_TYPER_COMPLETE_ARGS": line})
        assert text.removeprefix("compset -P '*='; ") == "_files -/" and code == 0


def test_the_script_of_bash_offers_no_files_where_a_folder_fits(
    folders: Path, tmp_path: Path
) -> None:
    program = [sys.executable, "-m", "mlx_tools", "--show-completion", "bash"]
    shown = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    asked = """
    compopt() { local IFS=' '; echo "compopt $*"; }
    COMP_CWORD=3
    for word in o f; do
        COMP_WORDS=(mlx-tools ask --root $word)
        _mlx_tools_completion "$PROGRAM"
        echo "$word: ${COMPREPLY[*]}"
    done
    COMP_WORDS=(mlx-tools ask --style js)
    _mlx_tools_completion "$PROGRAM"
    echo "js: ${COMPREPLY[*]}"
    """
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mlx_tools\n")
    program.chmod(0o700)
    done = subprocess.run(
        ["bash", "-c", shown + asked],
        env={**os.environ, "PROGRAM": str(program)},
        cwd=folders,
        text=True,
        capture_output=True,
    )
    only = "compopt +o default -o nospace"
    assert done.stdout.splitlines() == [only, "o: one/ one/inner/", only, "f: ", "js: jsonl"]
    assert done.stderr == ""


def test_zsh_gets_words_with_their_meaning_or_leave_to_complete_files() -> None:
    def said(line: str) -> str:
        return complete("complete_zsh", {"_TYPER_COMPLETE_ARGS": line})[0]

    assert said("mlx-tools models pu").startswith(
        """_arguments '*: :(("pull":"Fetch a model, whole """
    )
    assert "\"--model\":\"The model\\\\: the server'\\''s name for it," in said(
        "mlx-tools ask --model"
    )
    assert said("mlx-tools ask --full-trace ") == "_files"
    assert said("mlx-tools ask --root ") == "_files -/"
    assert said("mlx-tools ask --root=s") == "compset -P '*='; _files -/"
    assert said("mlx-tools ask --style=js") == "compset -P '*='; _arguments '*: :((\"jsonl\"))'"


_ZSH = r"""
_arguments() { local words; eval words\=\( "${${1#\*: :}[3,-3]}" \); print -rl -- "$words[@]" }
eval "$COMPLETIONS"
"""
"""zsh's own `_arguments` reads its argument a second time, as this does."""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is missing")
@pytest.mark.parametrize(
    "question",
    [
        "say $(touch ran) and `touch ran`",
        r"say \$(touch ran)",
        r"say \`touch ran\`",
        r"say \"); touch ran; (\"",
        "say '); touch ran; ('",
        "say '\\'$(touch ran)",
        "a path\\",
        'it\'s "so" (a)) [b]',
    ],
)
def test_a_question_at_a_tab_is_no_command_of_zsh(
    question: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(completion, "session_ids", lambda: [("20260801-abc", question)])
    told, _ = complete("complete_zsh", {"_TYPER_COMPLETE_ARGS": "mlx-tools sessions show "})
    done = subprocess.run(
        ["zsh", "-f", "-c", _ZSH],
        env={**os.environ, "COMPLETIONS": told},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    shown = question.replace("\\", "\\\\")  # the menu takes these away
    assert (done.stdout, done.stderr) == (f"20260801-abc:{shown}\n", "")
    assert list(tmp_path.iterdir()) == []


def test_fish_asks_first_whether_there_is_anything() -> None:
    def said(line: str, action: str) -> tuple[str, int]:
        asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": action}
        return complete("complete_fish", asked)

    assert said("mlx-tools un", "is-args") == ("", 0)
    assert said("mlx-tools ask --full-trace ", "is-args") == ("", 1)
    assert said("mlx-tools ask --style=js", "get-args") == ("--style=jsonl", 0)
    assert said("mlx-tools und", "get-args") == (
        "undo\tTake back what a session's calls changed.",
        0,
    )
