"""The completions that a shell gets at a Tab.

A shell starts the program anew for each Tab. So the completions are read from ``completions.json``:
importing the commands and the parser of their options takes half a second. `make docs` writes that
file from the commands themselves. The exchange with shells is that of typer's scripts.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from mlx_tools.cli.command_table import list_commands, missing_commands

if TYPE_CHECKING:
    from mlx_tools.store import SessionStore

TABLE: Final = os.path.join(os.path.dirname(__file__), "completions.json")  # noqa: PTH118, PTH120
"""Commands by their path (``sessions show``), each with its commands, options and arguments.

An option takes ``values`` values, 0 for a flag. Its words, as those of an argument, are a list or
the name of a function in this module, or ``module:function``. ``many``: it may be given again.
"""

SHELLS: Final = ("complete_bash", "complete_fish", "complete_zsh")
"""The requests of typer's scripts."""

Item = tuple[str, str]
"""A word that may come next, and its meaning, which may be empty."""


MAX_QUESTIONS: Final = 50
"""Sessions that are shown with their question: more than a screen holds."""


def session_ids() -> list[Item]:
    """Return the sessions, the newest first, and the word for the newest.

    Those that were written to last come with their first question.
    """
    from mlx_tools.paths import state_dir

    if _may_be_in_database():
        from mlx_tools.app import config, session_store

        store: SessionStore = session_store(config.load())
    else:
        from mlx_tools.store import TranscriptStore

        store = TranscriptStore(state_dir() / "sessions")
    questions = first_questions(store)
    return [*((session, questions.get(session, "")) for session in store.ids()), ("last", "")]


def first_questions(store: SessionStore) -> dict[str, str]:
    """Return the sessions that were written to last, each with its first question."""
    from mlx_tools.errors import MlxToolsError

    questions = {}
    for session in store.by_last_update(MAX_QUESTIONS):
        with contextlib.suppress(MlxToolsError):  # one that is damaged
            question = " ".join(store.summary(session).status.question.split())
            questions[session] = question if len(question) <= 60 else f"{question[:59]}…"
    return questions


def tool_names() -> list[Item]:
    """Return the tools, each with the first sentence of its description."""
    from mlx_tools.app import config, load_registry
    from mlx_tools.cli.output import first_sentence

    specs = load_registry(config.load()).all_specs()
    return [(name, first_sentence(spec.description)) for name, spec in specs.items()]


def template_ids() -> list[Item]:
    """Return the ids of the approval templates that hold, each with its tool."""
    from datetime import UTC, datetime

    from mlx_tools.app import approval_templates, config, session_store

    templates = approval_templates(session_store(config.load())).templates(datetime.now(UTC))
    return [(template.id, template.tool) for template in templates]


def prompt_names() -> list[str]:
    """Return the names of the stored prompts."""
    from mlx_tools.cli.named_prompts import NamedPrompts

    return NamedPrompts().names()


def model_names() -> list[str]:
    """Return the models on this machine."""
    from mlx_tools.backends import list_models

    return [model.name for model in list_models() if model.pulled]


def _may_be_in_database() -> bool:
    """Return True if the settings may name a database.

    Reading them in full takes half a second.
    """
    from mlx_tools.paths import config_dir, read_regular

    if "MLX_TOOLS_SESSIONS" in os.environ:
        return True
    with contextlib.suppress(OSError):
        return b"sessions" in read_regular(config_dir() / "config.toml")
    return False


def profile_names() -> list[str]:
    """Return the names of the profiles in the user's file."""
    import tomllib

    from mlx_tools.paths import config_dir, read_regular

    try:
        text = read_regular(config_dir() / "config.toml").decode("utf-8-sig")
        profiles = tomllib.loads(text).get("profiles")
    except (OSError, ValueError, RecursionError):
        return []
    return list(profiles) if isinstance(profiles, dict) else []


def items(words: Sequence[str], incomplete: str, table: Mapping[str, Any]) -> list[Item]:
    """Return the words that may complete ``incomplete`` after ``words`` of a command."""
    path, command_row, used_options, operands = "", table[""], set(), 0
    option, values_left = _NONE, 0
    words = [word for word in words if word != "="]  # bash splits = off as a word
    for word in words:
        if values_left:
            values_left -= 1
        elif word.startswith("-"):
            name, sign, _ = word.partition("=")
            used_options.add(name)
            option = _find_option(command_row, name)
            values_left = option["values"] - len(sign)
        elif command_row["commands"]:
            path = f"{path} {word}".strip()
            if path not in table:
                return []
            command_row, used_options = table[path], set()
        else:
            operands += 1
    name, sign, value = incomplete.partition("=")
    if sign and (values_left or name.startswith("-")):
        incomplete, option, values_left = (
            value,
            option if values_left else _find_option(command_row, name),
            1,
        )
    if values_left > 0:
        # of a list such as +clock,cal only the last name is completed
        name = incomplete.rpartition(",")[2].lstrip("+-")
        before = incomplete.removesuffix(name) if option["words"] == _LIST_COMPLETER else ""
        candidates = [(before + word, text) for word, text in _describe_items(option["words"])]
    elif incomplete.startswith("-"):
        candidates = [
            (name, option["help"])
            for option in command_row["options"]
            if option["many"] or used_options.isdisjoint(option["names"])
            for name in option["names"]
        ]
    elif command_row["commands"]:
        candidates = list(command_row["commands"].items())
    else:
        candidates = [
            item
            for words in command_row["arguments"][operands:][:1]
            for item in _describe_items(words)
        ]
    return [item for item in candidates if item[0].startswith(incomplete)]


_LIST_COMPLETER: Final = "tool_names"
"""The completer of options that take names with commas between, and + or - before each."""

_VALUE: Final = re.compile(r"-[^=]*=")
"""The beginning of a word that holds an option and its value."""

_NONE: Final[Mapping[str, Any]] = {"names": [], "values": 0, "words": []}


def _find_option(command: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((row for row in command["options"] if name in row["names"]), _NONE)


def _describe_items(words: Iterable[str] | str) -> list[Item]:
    if not isinstance(words, str):
        return [(word, "") for word in words]
    from mlx_tools.errors import MlxToolsError

    with contextlib.suppress(MlxToolsError):  # a Tab has no place for errors
        found = _find_completer(words)()
        return [(item, "") if isinstance(item, str) else item for item in found]
    return []


def _find_completer(name: str) -> Callable[[], Iterable[str | Item]]:
    """Return a function of this module, or of the module before a colon: a plugin's."""
    module, colon, function = name.rpartition(":")
    return getattr(import_module(module), function) if colon else globals()[name]  # type: ignore[no-any-return]


def complete(shell: str, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the text that answers one of `SHELLS`, and the exit code."""
    import json

    # not `open`: the package may stand in a zip archive
    table = json.loads(cast("Any", __spec__).loader.get_data(TABLE))
    table[""]["commands"] = dict(list_commands())
    for name in missing_commands():
        group, _, command = name.rpartition(" ")
        table[group]["commands"].pop(command, None)
    if shell == "complete_bash":
        words, at = _split(environ["COMP_WORDS"]), int(environ["COMP_CWORD"])
        found = items(words[1:at], words[at] if at < len(words) else "", table)
        return "\n".join(word for word, _ in found), 0
    line = environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(line)[1:]
    incomplete = words.pop() if words and not line.endswith(" ") else ""
    found = items(words, incomplete, table)
    if shell == "complete_zsh":
        told = "\n".join(":".join(_for_zsh(text) for text in item if text) for item in found)
        is_folder = words[-1:] == ["--root"] or incomplete.startswith("--root=")
        files = "_files -/" if is_folder else "_files"
        # of --option=value only the value is completed
        value_only = "compset -P '*='; " if _VALUE.match(incomplete) else ""
        return value_only + (f"_arguments '*: :(({told}))'" if found else files), 0
    if environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return "", 0 if found else 1
    option = value[0] if (value := _VALUE.match(incomplete)) else ""
    return "\n".join("\t".join(filter(None, (option + word, told))) for word, told in found), 0


def _for_zsh(text: str) -> str:
    """Return a text of a session, a tool or an option so that zsh runs no part of it.

    zsh reads it three times: in single quotes, in double ones, and to take away backslashes.
    """
    text = re.sub(r'["$`]', r"\\\g<0>", text.replace("\\", r"\\\\")).replace("'", r"'\''")
    return '"' + text.replace(":", r"\\:") + '"'


def _split(line: str) -> list[str]:
    """Return the words of a command line whose last one may be open."""
    import shlex

    words: list[str] = []
    reader = shlex.shlex(line, posix=True)
    reader.whitespace_split, reader.commenters = True, ""
    try:
        words += reader
    except ValueError:  # a quote that is not closed yet
        words.append(reader.token)
    return words
