"""The commands of `mlx-tools chat`: what each does, and what a line is that begins with a slash."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from mlx_tools.app import RunOptions, config
from mlx_tools.cli.chat import banner
from mlx_tools.cli.chat import say as say_in
from mlx_tools.cli.chat_commands import COMMANDS, copy, run_slash_command
from mlx_tools.cli.chat_commands import completions as suggestions
from mlx_tools.cli.inputs import with_files
from mlx_tools.cli.saved_sessions import open_user_store
from mlx_tools.cli.talk import ChatSession
from mlx_tools.errors import BackendUnreachable, MlxToolsError, UsageError
from mlx_tools.messages import ToolSpec, replace
from mlx_tools.testing import ScriptedServer, answer, call
from mlx_tools.transcript import ApprovalRecord
from tests.controller.full_disk import file_size_limit
from tests.tables import table

Say = Callable[..., Any]


@pytest.fixture
def say(run: Any) -> Iterator[Say]:
    """Sends lines to a talk whose model answers One, Two and so on; gives how it ended, and the
    server that was asked."""
    with ScriptedServer(*map(answer, ("One.", "Two.", "Three."))) as server:

        def lines(*lines: str, options: tuple[str, ...] = ()) -> tuple[Any, ScriptedServer]:
            text = "".join(f"{line}\n" for line in lines)
            return run("chat", "--url", server.url, *options, stdin=text), server

        yield lines


@contextmanager
def talking(*script: Any, **options: Any) -> Iterator[ChatSession]:
    """A talk, with nobody at a terminal."""
    with ScriptedServer(*script) as server:
        said = config.load(options={"backend.url": server.url, **options})
        with (
            start_blocking_portal() as portal,
            closing(ChatSession(RunOptions(configuration=said), portal)) as talk,
        ):
            yield talk


def completions(talk: ChatSession, name: str, beginning: str) -> list[str]:
    """The words that a Tab offers, without their meanings."""
    return [word for word, _ in suggestions(talk, name, beginning)]


# --- what a line is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/Tools", "did you mean /tools? a space before the / sends it as a question"),
        ("/", "/help lists the commands; a space before the / sends it as a question"),
        ("/etc/passwd is what?", "unknown command /etc/passwd; nothing was sent"),
        ("/tools all", "it takes no argument"),
        ("/save", "as in /save FILE"),
    ],
)
def test_what_begins_with_a_slash_is_never_asked(say: Say, line: str, said: str) -> None:
    result, server = say(line)
    assert (result.code, result.out, server.bodies) == (2, "", [])
    assert result.error.startswith("mlx-tools: error: ") and said in result.error
    assert line.split()[0] in result.error


def test_help_lists_every_command_clear_begins_anew_and_quit_leaves(say: Say) -> None:
    result, server = say("first?", "/help", "/clear", "second?", "/quit", "third?")
    assert all(f"{name} " in result.out for name in COMMANDS)
    assert len(server.bodies) == 2 and "first?" not in server.prompts[1]


@pytest.mark.parametrize("word", ["/exit", "/bye", "/quit"])
def test_other_programs_words_for_leaving_leave(say: Say, word: str) -> None:
    result, server = say("first?", word, "second?")
    assert result.code == 0 and len(server.bodies) == 1


def test_new_begins_anew_and_help_tells_of_one_command(say: Say) -> None:
    result, server = say(
        "first?", "/new", "second?", "/help clear", "/help /resume", "/help nothing"
    )
    assert len(server.bodies) == 2 and "first?" not in server.prompts[1]
    assert "/clear: begin a new conversation" in result.out and "also: /new" in result.out
    assert "/resume [SESSION]" in result.out
    assert "unknown command /nothing" in result.error


def test_resume_goes_on_with_an_older_conversation(say: Say, run: Any) -> None:
    say("What is first?")
    (session,) = (line.split()[0] for line in run("sessions", "list").out.splitlines()[-1:])
    result, server = say("/resume nothing", f"/resume {session}", "And then?", "/transcript")
    assert "there is no session nothing (/resume lists them)" in result.error
    assert "What is first?" in server.prompts[-1] and "And then?" in server.prompts[-1]
    assert session in result.out
    result, _ = say("/resume")
    assert result.code == 2 and "/resume SESSION" in result.error


# --- files in a question --------------------------------------------------------------------------


def test_a_file_that_a_question_names_goes_with_it(say: Say, home: Path) -> None:
    (home / "here" / "plan.md").write_text("Bed 2: kale\n")
    (home / "here" / "two words.txt").write_text("Bed 3: beans\n")
    result, server = say('What grows in @plan.md, and in @"two words.txt"? me@plan.md @nobody')
    (prompt,) = server.prompts
    assert "plan.md:\nBed 2: kale" in prompt and "two words.txt:\nBed 3: beans" in prompt
    assert prompt.count("Bed 2: kale") == 1 and "@nobody" in prompt
    assert "with the 12 characters of plan.md" in result.err
    assert "there is no file" not in result.err


@table("name", ["plan.mf", "notes/plan.md,", '"two words.txt"', "~/nothing/a"])
def test_a_path_of_no_file_is_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = f"What is in @{name}"
    assert with_files(question) == (question, 0)
    path = name.strip(',"')
    assert f"there is no file {path}: the question was sent as" in capsys.readouterr().err
    for other in ("me@plan.mf", "@nobody", "@app.get('/a/b')", f"{question}\nas above"):
        assert with_files(other) == (other, 0)
    assert capsys.readouterr().err == ""


def test_a_word_too_long_for_a_files_name_is_part_of_the_question(say: Say) -> None:
    result, server = say(f"What is @{'a' * 300}?", "And then?")
    assert result.code == 0 and len(server.bodies) == 2
    assert "a" * 300 in server.prompts[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (".env", b"KEY=1", "private"),
        ("sub/.ssh/id", b"x", "private"),
        ("large.txt", b"x" * 300_000, "/root DIR lets a tool read it in parts"),
        ("photo.bin", b"\xff\xfe\x00", "not UTF-8"),
        ("folder/", b"", "is a folder"),
    ],
)
def test_a_file_that_cannot_go_with_a_question_stops_it(
    say: Say, home: Path, name: str, content: bytes, said: str
) -> None:
    path = home / "here" / name
    (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
    if not name.endswith("/"):
        path.write_bytes(content)
    result, server = say(f"What is in @{name}?")
    assert server.bodies == [] and said in result.error


def test_a_line_with_a_blank_before_its_slash_is_a_question(say: Say) -> None:
    result, server = say(" /etc/passwd is what?")
    assert result.out == "One.\n" and "User: /etc/passwd is what?" in server.prompts[0]


# --- limits ---------------------------------------------------------------------------------------


def test_limits_are_shown_as_they_hold_and_one_can_be_set_for_this_conversation(say: Say) -> None:
    result, server = say(
        "first?", "/limits", "/set max_tokens 77", "/set total_timeout 90", "/limits", "second?"
    )
    assert result.code == 0
    rows = [line.split(maxsplit=1) for line in result.out.splitlines()]
    assert ["max_iterations", "24"] in rows and ["total_timeout", "1800 s"] in rows
    assert ["max_tokens", "8192 (follows the model)"] in rows
    assert ["max_tokens", "77"] in rows and ["total_timeout", "90 s"] in rows
    first, second = server.bodies
    assert (first["max_tokens"], second["max_tokens"]) == (8192, 77)
    assert "first?" in server.prompts[1]  # the conversation goes on


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set max_token 5", "did you mean max_tokens?"),
        ("/set max_tokens", "no value"),
        ("/set max_tokens many", "an integer from 1"),
        ("/set max_iterations 0", "an integer from 1 to 1000"),
        ("/set total_timeout -1", "a number from 0.001"),
    ],
)
def test_a_limit_that_cannot_be_set_is_told_with_what_can(say: Say, line: str, said: str) -> None:
    result, server = say(line)
    assert (result.code, server.bodies) == (2, []) and said in result.error


# --- what may run ---------------------------------------------------------------------------------


def test_tools_says_what_runs_what_asks_what_is_off_and_what_to_do(say: Say, home: Path) -> None:
    result, _ = say("/tools", f"/root {home}:rw", "/allow create_file", "/tools")
    before, after = result.out.split("~ (read, write)\n")
    for row in (
        "calculator            runs (read)",
        "web_search            needs /allow web_search (network, read)",
        "file_access           off: no folder was named that it may see (/root DIR)",
    ):
        assert row in before.splitlines()
    assert "file_access           runs (read), asks first (write)" in after
    assert "create_file           asks first (write)" in after


def test_a_tool_is_allowed_and_denied_with_all_that_was_said_before(say: Say) -> None:
    lines = ("first?", "/allow format_xml", "second?", "/deny format_xml, clock", "third?")
    result, server = say(*lines)
    assert result.code == 0
    has_tool = ["\nformat_xml(" in prompt for prompt in server.prompts]
    assert has_tool == [False, True, False]
    assert all("first?" in prompt and "One." in prompt for prompt in server.prompts[1:])
    assert "\nclock(" in server.prompts[1] and "\nclock(" not in server.prompts[2]


@pytest.mark.parametrize(
    ("name", "folder", "text"),
    [
        ("config.toml", "config", 'policy.deny = ["web_search"]'),
        ("mlx-tools.toml", "here", 'policy.deny = ["web_search"]'),
        ("mlx-tools.toml", "here", 'policy.allow = ["clock"]'),
    ],
)
def test_what_a_file_forbids_is_not_allowed_and_the_file_is_named(
    say: Say, home: Path, name: str, folder: str, text: str
) -> None:
    (home / folder).mkdir(exist_ok=True)
    (home / folder / name).write_text(text)
    result, server = say("/allow web_search", "/tools", "first?")
    (error,) = result.err.splitlines()
    assert "web_search cannot be allowed here" in error and str(home / folder / name) in error
    assert "web_search            forbidden" in result.out and "web_search" not in server.prompts[0]


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        (("--tools", "calculator"), ["calculator", "format_xml"]),
        (
            ("--preset", "readonly_files"),
            ["file_access", "format_xml", "read_artifact", "search_files"],
        ),
    ],
)
def test_what_is_allowed_in_a_talk_that_goes_on_is_added_to_what_it_had(
    say: Say, run: Any, begun: tuple[str, ...], offered: list[str], home: Path
) -> None:
    begun = (*begun, "--root", str(home), "--dry-run")
    _, server = say("first?", "/system You are a pirate.", "second?", options=begun)
    result = run("chat", "--continue", stdin="/allow format_xml\nthird?\n/tools\n")
    assert result.code == 0 and "You are a pirate." in server.prompts[2]
    may = [row.split()[0] for row in result.out.splitlines() if " runs (" in row]
    assert sorted(set(may)) == offered
    transcript = home / "state" / "sessions"
    newest = max(transcript.glob("*/transcript.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    assert '"dry_run":true' in newest.read_text()


def test_a_list_of_the_users_own_is_widened(configure: Any) -> None:
    configure('policy.allow = ["clock"]')
    with talking() as talk:
        run_slash_command(talk, "/allow format_xml")
        run_slash_command(talk, "/system You are brief.")
        assert talk.policy.allow == ("clock", "format_xml")
        run_slash_command(talk, "/deny clock")
        assert talk.policy.deny == ("clock",)
        run_slash_command(talk, "/allow clock")
        assert talk.policy.deny == ()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/allow web_serach", "did you mean web_search?"),
        ("/allow run_command", "run_command is off: "),
        ("/allow ,", "no tool is named"),
        ("/root nowhere", "root '"),
    ],
)
def test_what_cannot_be_allowed_changes_nothing(home: Path, line: str, told: str) -> None:
    with talking() as talk:
        before = talk.conversation
        with pytest.raises(UsageError) as error:
            run_slash_command(talk, line)
        assert told in str(error.value) and talk.conversation is before


def test_a_folder_is_named_once_with_what_was_said_last(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path.cwd()
    with talking() as talk:
        for line in ("/root .", f"/root {folder}:rw", "/root"):
            run_slash_command(talk, line)
        assert talk.controller.settings.roots == (f"{folder}:rw",)
        assert f"-{folder}" in completions(talk, "/root", "-")
        assert capsys.readouterr().out.splitlines()[-1] == "~/here (read, write)"
        run_slash_command(talk, "/root -.")
        assert talk.controller.settings.roots == ()
        with pytest.raises(UsageError, match="tools do not see the folder"):
            run_slash_command(talk, "/root -.")


def told_by(talk: ChatSession, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    """The lines that a command prints."""
    capsys.readouterr()
    run_slash_command(talk, line)
    return capsys.readouterr().out.splitlines()


def test_programs_are_added_and_taken_away(capsys: pytest.CaptureFixture[str]) -> None:
    with talking() as talk:
        assert told_by(talk, capsys, "/commands")[0].startswith("no program")
        before = talk.conversation.session
        assert told_by(talk, capsys, "/commands python3, make")[0] == "python3, make"
        assert talk.conversation.session != before
        assert "run_command" in talk.policy.allow
        assert [*completions(talk, "/commands", "-m")] == ["-make"]
        assert told_by(talk, capsys, "/commands -python3")[0] == "make"
        run_slash_command(talk, "/root .")
        row = told_by(talk, capsys, "/commands make")[1]
        assert row.startswith("run_command") and "(/root DIR)" not in row
        enum = talk.controller.registry.all_specs()["run_command"].parameters["properties"]
        assert "make" in enum["program"]["enum"] and "python3" not in enum["program"]["enum"]
        with pytest.raises(UsageError, match="the program python3 was not added"):
            run_slash_command(talk, "/commands -python3")
        run_slash_command(talk, "/commands -make")
        assert "run_command" not in (talk.policy.allow or ())
        with pytest.raises(UsageError, match="without a folder"):
            run_slash_command(talk, "/commands ./x")


def test_what_was_said_is_carried_over_to_a_session_with_more_programs(say: Say) -> None:
    result, server = say("first?", "/commands make", "next?")
    assert result.code == 0
    assert "first?" in server.prompts[1] and "One." in server.prompts[1]


FUNCTIONS_FILE = '''
def area(width: float, height: float) -> float:
    """Area of a rectangle."""
    return width * height
'''


def test_functions_of_a_file_are_added_and_taken_away(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("shapes.py").write_text(FUNCTIONS_FILE)
    with talking() as talk:
        assert told_by(talk, capsys, "/functions")[0].startswith("no file")
        file, row = told_by(talk, capsys, "/functions shapes.py")
        assert file == "~/here/shapes.py"
        assert row.startswith("area") and "asks first" in row
        assert talk.controller.settings.functions == (str(Path("shapes.py").resolve()),)
        assert [*completions(talk, "/functions", "sh")] == ["shapes.py"]
        for wrong in ("nothing.py", "-nothing.py", "~nobody/x.py", "-~nobody/x.py"):
            before = talk.conversation
            with pytest.raises(UsageError, match=r"no such file|was not added"):
                run_slash_command(talk, f"/functions {wrong}")
            assert talk.conversation is before
        run_slash_command(talk, "/functions -./shapes.py")
        assert "area" not in talk.controller.registry.all_specs()


@pytest.mark.parametrize("more", ["/commands make", "/functions shapes.py"])
def test_what_was_allowed_for_the_session_does_not_hold_once_tools_reach_more(
    home: Path, more: str
) -> None:
    Path("shapes.py").write_text(FUNCTIONS_FILE)
    spec = ToolSpec("create_file")
    with talking(answer("One.")) as talk:
        talk.ask("first?")
        record = ApprovalRecord(
            call="c1", approved=True, digest="", tool=spec.digest(), effects=("write",)
        )
        talk.conversation.session_state.history.add_consent("create_file", record)

        def consented() -> object:
            consents = talk.conversation.consents
            return None if consents is None else consents(spec, {})

        run_slash_command(talk, "/deny clock")
        assert consented() == {"write"}
        run_slash_command(talk, more)
        assert consented() is None


@pytest.mark.heavy
def test_what_was_allowed_for_the_session_holds_on_but_for_more_folders(
    terminal: Any, home: Path
) -> None:
    script = [
        said
        for name in ("a", "b", "c")
        for said in (call("create_file", path=name, content="x"), answer(f"Made {name}."))
    ]
    with ScriptedServer(*script) as server:
        options = ("--root", ".", "--tools", "create_file,clock")
        screen = terminal("chat", "--url", server.url, *options)
        screen.see("^>$")
        screen.type("make a\r")
        screen.see("s for the session")
        screen.type("s")
        screen.see("Made a")
        screen.type("/deny clock\r")
        screen.see("clock needs")
        screen.type("make b\r")
        screen.see("Made b")
        screen.type(f"/root {home}\r")
        screen.see("~ .read")
        screen.type("make c\r")
        screen.see(r'Run create_file\? path: "c"')


# --- the model, and what it is told ---------------------------------------------------------------


def test_another_model_goes_on_with_what_was_said(say: Say) -> None:
    result, server = say("first?", "/model", "/model m2", "next?")
    assert "* scripted  on the server\n" in result.out and "m2\n" in result.out
    assert server.bodies[1]["model"] == "m2"
    assert "first?" in server.prompts[1] and "One." in server.prompts[1]


def test_a_model_of_another_chat_format_begins_anew_with_what_was_said(run: Any) -> None:
    script = (call("calculator", expression="6*7"), *map(answer, ("One.", "Two.", "Three.")))
    with ScriptedServer(*script, model=("qwen2.5", "llama-3.2", "qwen3")) as server:
        lines = "/model qwen2.5\nfirst?\n/model llama-3.2\nnext?\n/model nobody\n"
        result = run("chat", "--url", server.url, "-m", "llama-3.2", stdin=lines)
    *_, before, after = server.prompts
    assert result.code == 0 and "<|im_start|>" in before and "<|im_start|>" not in after
    assert "<|start_header_id|>" in after
    for said in ("first?", "6*7", "42", "One."):
        assert said in after
    told = [line for line in result.err.splitlines() if "sent again in that format" in line]
    assert len(told) == 2 and all("its chat format is another (" in line for line in told)
    assert "(llama" in told[0] and "(plain)" in told[1]  # not before anything was said


def test_a_model_that_the_server_does_not_list_is_doubted_and_asked(say: Say) -> None:
    result, server = say("/model scripted", "/model m2", "first?")
    (doubt,) = [line for line in result.err.splitlines() if "warning" in line]
    assert "the server does not list m2; /model lists what it has" in doubt
    assert (result.code, server.bodies[0]["model"]) == (0, "m2")


def test_a_model_that_cannot_be_had_leaves_the_one_there_is(home: Path) -> None:
    with talking() as talk:
        before = talk.conversation
        elsewhere = talk.configuration.with_options({"backend.url": "http://127.0.0.1:9"})
        talk.run = replace(talk.run, configuration=elsewhere)
        with pytest.raises(BackendUnreachable):
            run_slash_command(talk, "/model m2")
        assert talk.conversation is before


def test_the_system_text_stands_in_the_next_prompt(say: Say) -> None:
    lines = ("first?", "/system You are a pirate.", "second?", "/system", "/system -", "third?")
    result, server = say(*lines)
    assert result.out.count("You are a pirate.\n") == 2
    assert "You are a pirate." in server.prompts[1] and "first?" in server.prompts[1]
    assert server.prompts[2].startswith(server.prompts[0])


# --- what was said --------------------------------------------------------------------------------


def test_a_question_is_asked_again_without_its_answer(say: Say) -> None:
    result, server = say("first?", "second?", "/retry")
    assert result.out == "One.\nTwo.\nThree.\n"
    assert server.prompts[2] == server.prompts[1]


@pytest.mark.parametrize("last, drawn", [("/retry", (0.7, 2)), ("second?", (0.0, 0))])
def test_a_question_asked_again_is_drawn_otherwise_and_the_next_one_as_usual(
    say: Say, last: str, drawn: tuple[float, int]
) -> None:
    _, server = say("first?", "/retry", last)
    sampling = [(body["temperature"], body["seed"]) for body in server.bodies]
    assert sampling == [(0.0, 0), (0.7, 1), drawn]


def test_a_question_asked_again_still_says_what_a_file_wrote_of_it(say: Say, home: Path) -> None:
    (home / "here" / "plan.md").write_text("Bed 2: kale\n")
    result, _ = say("What grows in @plan.md?", "/retry", "/transcript")
    records = [json.loads(line) for line in Path(result.out.split()[-1]).read_text().splitlines()]
    (question,) = (record for record in records if record["type"] == "user")
    assert question["piped"] == len("\n\nplan.md:\nBed 2: kale\n")


def test_a_question_that_cannot_be_asked_leaves_a_programs_output_to_the_next() -> None:
    with talking(answer("One.")) as talk:
        talk.outputs.append("!cat beds.txt\nkale")
        talk.conversation.close()
        with pytest.raises(MlxToolsError):
            say_in(talk, "What grows?")
        assert talk.outputs == ["!cat beds.txt\nkale"]
    with talking(answer("One.")) as talk:
        talk.outputs.append("!cat beds.txt\nkale")
        say_in(talk, "What grows?")
        assert talk.outputs == []


def test_nothing_can_be_asked_again_or_saved_or_copied_before_a_question(say: Say) -> None:
    result, server = say("/retry", "/save x.md", "/copy", "first?", "/clear", "/retry")
    assert result.code == 2 and len(result.err.splitlines()) == 4 and len(server.bodies) == 1


def test_no_session_is_kept_in_which_nothing_was_asked(say: Say, run: Any) -> None:
    say("/allow format_xml", "/deny clock", "first?", "/allow clock", "/clear")
    assert len(run("sessions", "list").out.splitlines()) == 1


def test_a_talk_is_saved_as_markdown_and_never_over_a_file(run: Any) -> None:
    script = (call("calculator", expression="6*7"), answer("It is `42`."))
    with ScriptedServer(*script) as server:
        lines = "six times seven?\n/deny clock\n/save talk.md\n/save talk.md\n"
        result = run("chat", "--url", server.url, stdin=lines)
    assert Path("talk.md").read_text() == (
        "## six times seven?\n\n`calculator`\n\n"
        '```json\n{"expression":"6*7"}\n```\n\n```\n42\n```\n\nIt is `42`.\n'
    )
    assert result.code == 2 and "talk.md: File exists" in result.error


def test_a_talk_that_could_not_be_saved_leaves_no_file(home: Path) -> None:
    path = home / "talk.md"
    with talking(answer("One.")) as talk:
        say_in(talk, "What grows?")
        with file_size_limit(2), pytest.raises(UsageError, match="name another file"):
            say_in(talk, f"/save {path}")
        assert not path.exists()
        say_in(talk, f"/save {path}")
    assert path.read_text() == "## What grows?\n\nOne.\n"


def test_the_answer_goes_to_the_first_clipboard_that_takes_it(tmp_path: Path) -> None:
    for name, text in (
        ("pbcopy", "#!/nowhere/sh\n"),
        ("wl-copy", "#!/bin/sh\nexit 1\n"),
        ("xclip", f"#!/bin/sh\ncat >{tmp_path}/copied\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    here = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DISPLAY": ":0", "WAYLAND_DISPLAY": "w"}
    assert copy("Grüße", here) == "with xclip"
    assert (tmp_path / "copied").read_text() == "Grüße"
    (tmp_path / "copied").unlink()
    with pytest.raises(UsageError, match="no clipboard"):  # of the other machine
        copy("Grüße", {**here, "SSH_CONNECTION": "1 2 3 4"})
    assert not (tmp_path / "copied").exists()


# --- at a keyboard --------------------------------------------------------------------------------


def test_what_may_follow_a_command_is_completed(home: Path) -> None:
    (home / "here" / "notes").mkdir()
    (home / "here" / "note.txt").write_text("")
    with talking() as talk:
        assert list(completions(talk, "/allow", "web_")) == ["web_search"]
        assert list(completions(talk, "/allow", "x fetch")) == ["x fetch_url"]
        assert list(completions(talk, "/deny", "cl")) == ["clock"]
        assert list(completions(talk, "/root", "no")) == ["notes/"]
        assert list(completions(talk, "/save", "./no")) == ["./note.txt", "./notes/"]
        assert list(completions(talk, "/steps", "o")) == ["on", "off"]
        assert "scripted" in completions(talk, "/model", "")
        assert list(completions(talk, "/quit", "")) == []
        assert ("clock", "Tells the current date, time and day of the week.") in suggestions(
            talk, "/deny", "cl"
        )
        assert ("/clear", COMMANDS["/clear"].help) in suggestions(talk, "/help", "/cl")
        assert list(completions(talk, "", "@no")) == ["@note.txt", "@notes/"]
        assert "/clear" in completions(talk, "/help", "/cl")


def test_the_banner_says_model_context_folders_and_what_asks(home: Path) -> None:
    options = {"tools.roots": [str(home)], "policy.allow": "calculator,create_file"}
    with talking(**options) as talk:
        assert list(banner(talk)) == [
            "scripted",
            "folders: ~ (read)",
            "tools: calculator, create_file (each asks first)",
            "/help lists the commands, Ctrl-D leaves",
        ]


def test_a_chat_goes_on_where_the_conversation_to_resume_is_open_elsewhere(
    run: Any, terminal: Any
) -> None:
    with ScriptedServer(*map(answer, ("One.", "Two.", "Three."))) as server:
        other = run("ask", "Other?", "--url", server.url, "--json").json["session"]
        screen = terminal("chat", "--url", server.url)
        screen.see("^>$")
        screen.type("Mine?\r")
        screen.see("Two")
        with open_user_store().hold(other):
            screen.type(f"/resume {other}\r")
            screen.see(f"{other} is in use by another process")
            screen.see("going on with .* 1 question so far:\n> Mine")
            screen.see("^>$")
        screen.type("And then?\r")
        screen.see("Three")
    assert "Mine?" in server.prompts[2] and "Other?" not in server.prompts[2]


@pytest.mark.heavy
def test_undo_brings_back_what_an_earlier_session_of_the_talk_changed(
    terminal: Any, home: Path
) -> None:
    (home / "note.txt").write_text("old\n")
    write = call("file_access", operation="write", path="note.txt", content="new\n")
    with ScriptedServer(write, answer("Written.")) as server:
        options = ("--root", f"{home}:rw", "--tools", "file_access", "--approve", "always")
        screen = terminal("chat", "--url", server.url, *options)
        screen.see("^>$")
        screen.type("write\r")
        screen.see("Written")
        assert (home / "note.txt").read_text() == "new\n"
        screen.type("/deny clock\r")
        screen.see("clock needs /allow clock")
        screen.type("/undo\r")
        screen.see("Undo 1 change")
        screen.type("y\n")
        screen.see("restored")
        assert (home / "note.txt").read_text() == "old\n"


# --- prompts of MCP servers -----------------------------------------------------------------------


def test_a_servers_prompt_is_a_command(run: Any, say: Say, home: Path) -> None:
    script = Path(__file__).parents[1] / "tools" / "mcp_stranger.py"
    command = [sys.executable, "-I", str(script), "prompts", str(home / "log")]
    assert run("mcp", "add", "there", "--yes", "--", *command).code == 0
    started = (home / "log").read_text()
    for line, said in (
        ("/there:greet", "as in who=…"),
        ("/there:greet who=it's", "No closing quotation"),
    ):
        assert said in say(line)[0].error
    refused, server = say("/there:greet who=Ada", options=("--local-only",))
    assert "policy.local_only" in refused.error
    assert ((home / "log").read_text(), server.bodies) == (started, [])
    (home / "notes").mkdir()
    result, server = say("/there:greet 'who=Ada L'", options=("--root", f"{home / 'notes'}:rw"))
    said = f"Greet Ada L in ['file://{home / 'notes'}']."
    assert result.out == f"{said}\nOne.\n"
    assert said in server.prompts[0]
