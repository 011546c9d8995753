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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

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

MAX_CHOICES: Final = 1_000
"""Words that are offered at once. A choice: nobody reads more, and shells get slow. To reach the
others, one types more of the word."""


def session_ids() -> list[Item]:
    """Return the word for the newest session, and the sessions, the newest first.

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
    return [("last", ""), *((session, questions.get(session, "")) for session in store.ids())]


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


class _Place(NamedTuple):
    """The place of a Tab in a command line."""

    command: Mapping[str, Any]
    """The row of the command."""
    used_options: set[str]
    operands: int
    """The arguments before it."""
    option: Mapping[str, Any] | None
    """The option whose value is completed, if it is one."""
    incomplete: str
    """The word to complete, without its option."""

    @property
    def words(self) -> Sequence[str] | str:
        """The words that the option or the argument takes, as in `TABLE`."""
        if self.option is not None:
            return cast("Sequence[str] | str", self.option["words"])
        if self.incomplete.startswith("-") or self.command["commands"]:
            return ()
        return next(iter(self.command["arguments"][self.operands :]), ())

    @property
    def takes_folder(self) -> bool:
        """True if only folders fit here."""
        return self.words == FOLDERS


def _find_place(words: Sequence[str], incomplete: str, table: Mapping[str, Any]) -> _Place | None:
    """Return the place after ``words`` of a command; None after an unknown command."""
    path, command_row, used_options, operands = "", table[""], set[str](), 0
    option, values_left = _NONE, 0
    for word in words:
        if word == "=":  # bash splits = off as a word
            continue
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
                return None
            command_row, used_options = table[path], set()
        else:
            operands += 1
    name, sign, value = incomplete.partition("=")
    if sign and (values_left or name.startswith("-")):
        option = option if values_left else _find_option(command_row, name)
        incomplete, values_left = value, 1
    value_of = option if values_left > 0 else None
    return _Place(command_row, used_options, operands, value_of, incomplete)


def items(words: Sequence[str], incomplete: str, table: Mapping[str, Any]) -> list[Item]:
    """Return the words that may complete ``incomplete`` after ``words`` of a command."""
    place = _find_place(words, incomplete, table)
    return _list_items(place) if place is not None else []


def _list_items(place: _Place) -> list[Item]:
    incomplete = place.incomplete
    if place.takes_folder:
        return [(folder, "") for folder in _list_folders(incomplete)]
    if place.option is not None:
        # of a list such as +clock,cal only the last name is completed
        name = incomplete.rpartition(",")[2].lstrip("+-")
        before = incomplete.removesuffix(name) if place.words == _LIST_COMPLETER else ""
        candidates = [(before + word, text) for word, text in _describe_items(place.words)]
    elif incomplete.startswith("-"):
        candidates = [
            (name, option["help"])
            for option in place.command["options"]
            if option["many"] or place.used_options.isdisjoint(option["names"])
            for name in option["names"]
        ]
    elif place.command["commands"]:
        candidates = list(place.command["commands"].items())
    else:
        candidates = _describe_items(place.words)
    return [item for item in candidates if item[0].startswith(incomplete)][:MAX_CHOICES]


def complete_path(beginning: str) -> list[str]:
    """Return the paths that begin so; folders end with a slash."""
    from mlx_tools.paths import expand_user

    folder, slash, start = beginning.rpartition("/")
    place = expand_user(f"{folder}/" if slash else ".")
    paths = []
    with contextlib.suppress(OSError, ValueError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
                end = "/" if entry.is_dir() else ""
                paths.append(f"{folder}{slash}{entry.name}{end}")
    return sorted(paths)


def _list_folders(beginning: str) -> list[str]:
    """Return the folders that begin so.

    A single one is followed by those in it: a shell writes no blank after it, as more may follow.
    """
    found = [path for path in complete_path(beginning) if path.endswith("/")]
    inner = complete_path(found[0]) if len(found) == 1 else []
    return [*found, *(path for path in inner if path.endswith("/"))]


FOLDERS: Final = "folders"
"""The word in `TABLE` for an option or argument that takes a folder."""

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
        place = _find_place(words[1:at], words[at] if at < len(words) else "", table)
        found = _list_items(place) if place is not None else []
        only_folders = place is not None and place.takes_folder
        return "\n".join(_for_bash(word) for word, _ in found), int(only_folders)
    line = environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(line)[1:]
    incomplete = words.pop() if words and not line.endswith(" ") else ""
    place = _find_place(words, incomplete, table)
    only_folders = place is not None and place.takes_folder
    # of --option=value only the value is completed
    option = value[0] if (value := _VALUE.match(incomplete)) else ""
    if shell == "complete_zsh" and only_folders:
        return f"{_OF_VALUE if option else ''}_files -/", 0
    found = _list_items(place) if place is not None else []
    if shell == "complete_zsh":
        told = "\n".join(":".join(_for_zsh(text) for text in item if text) for item in found)
        whole = f"_arguments '*: :(({told}))'" if found else "_files"
        return f"{_OF_VALUE if option else ''}{whole}", 0
    if environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return "", 0 if found or only_folders else 1
    return "\n".join("\t".join(filter(None, (option + word, told))) for word, told in found), 0


_OF_VALUE: Final = "compset -P '*='; "
"""Has zsh complete only what follows the sign in ``--option=value``."""

BASH_SCRIPT: Final = """
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   %(autocomplete_var)s=complete_bash $1 ) ) ||
        compopt +o default -o nospace 2>/dev/null
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
"""typer's script for bash, but for `compopt`: where only folders fit, it offers no files.

bash 3.2 has no such command and offers files if no folder fits.
"""


def _for_bash(word: str) -> str:
    """Return a word as it is typed: bash takes it into the line as it is."""
    return re.sub(r"[^\w@%+=:,./~-]", r"\\\g<0>", word)


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
