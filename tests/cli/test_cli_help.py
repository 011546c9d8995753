"""The help of a command: a screen of it, and all of it where that is asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from mlx_tools.cli.help_screen import COMMON_OPTIONS, ROWS, find_page
from mlx_tools.cli.root import app, format_help, get_page


def commands() -> Iterator[tuple[str, Any]]:
    """The commands by what is typed for them, each in its context."""
    root: Any = get_command(app)
    context = root.make_context("mlx-tools", [], resilient_parsing=True)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        below = getattr(command, "commands", {})
        for path, one in ((name, command), *((f"{name} {key}", one) for key, one in below.items())):
            yield path, one.context_class(one, parent=context, info_name=path)


def named(text: str) -> set[str]:
    """The options that have a row of their own."""
    heads = re.findall(r"^ {2,6}(-.*?)(?:  |$)", text, re.MULTILINE)
    return {name for head in heads for name in re.findall(r"(?<!\S)--?[a-z-]+", head)}


def test_help_is_a_screen_and_help_all_is_all() -> None:
    for path, context in commands():
        brief, whole = (format_help(context, show_all=every) for every in (False, True))
        assert brief.startswith(f"Usage: mlx-tools {path} ")
        rows = brief.splitlines()
        assert len(rows) <= ROWS, brief
        assert max(map(len, [*rows, *whole.splitlines()])) <= 80, path
        for one in context.command.params:
            if one.param_type_name != "option":
                continue
            first = any(name in (*COMMON_OPTIONS, "--help-all") for name in one.opts)
            assert named(whole).issuperset(one.opts), (path, one.opts)
            if brief != whole:
                assert named(brief).issuperset(one.opts) == first, (path, one.opts)
            assert first or not one.required


def test_the_options_used_most_are_all_options_of_some_command() -> None:
    known = {name for _, one in commands() for option in one.command.params for name in option.opts}
    assert set(COMMON_OPTIONS) - {"--continue", "--session"} <= known


def test_on_the_screen_an_option_is_one_line_with_its_values_where_there_is_room(run: Any) -> None:
    rows = run("ask", "--help").out.splitlines()
    assert len(rows) < len(run("ask", "--help-all").out.splitlines())
    assert any(row.endswith("Calls that need approval (never|auto|ask|always).") for row in rows)
    at = rows.index("Options:")
    assert all(row.lstrip().startswith("-") for row in rows[at + 1 :])


def test_the_table_of_help_screens_says_what_the_commands_say() -> None:
    """`make docs` writes it. A command's help is printed from it without loading the command."""
    for path, context in commands():
        assert find_page(path.split()) == json.loads(json.dumps(get_page(context))), path
    assert find_page(["ask", "a question"]) is None and find_page([]) is None


def test_help_loads_no_command() -> None:
    code = (
        "import sys; from mlx_tools.cli import main; main(['ask', '--help'])\n"
        "assert not {'typer', 'pydantic', 'asyncio', 'mlx_tools.cli.ask'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("Usage: mlx-tools ask ") and not done.stderr


def test_help_as_a_word_is_help_of_the_command_behind_it(run: Any) -> None:
    for words, option in (
        (("help",), ("--help",)),
        (("help", "ask"), ("ask", "--help")),
        (("help", "tools", "add"), ("tools", "add", "--help")),
    ):
        result = run(*words)
        assert (result.code, result.out) == (0, run(*option).out) and result.out
    assert run("help", "nothing").code == 2
