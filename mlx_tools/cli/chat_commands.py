"""The slash commands of a chat.

One table, from which help and completion are made.

A line with an unknown command is reported, and not sent as a question.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from mlx_tools.app import (
    Configuration,
    SavedSession,
    SettingRow,
    config,
    function_files,
    list_function_files,
    list_roots,
    plugins,
)
from mlx_tools.backends import list_models
from mlx_tools.cli import typed_command
from mlx_tools.cli.call_text import as_name, home_path, in_words
from mlx_tools.cli.completion import first_questions
from mlx_tools.cli.inputs import at_terminal, picked
from mlx_tools.cli.options import one_of
from mlx_tools.cli.output import (
    count_columns,
    cut,
    first_sentence,
    join_columns,
    note,
    print_prose,
    print_text,
    stdout,
    steerable,
    warn_all,
)
from mlx_tools.cli.saved_sessions import kept_sessions, resolve_session
from mlx_tools.cli.talk import ChatSession, folders
from mlx_tools.errors import UsageError, did_you_mean
from mlx_tools.messages import ToolSpec, json_line, replace
from mlx_tools.paths import expand_user, file_exists
from mlx_tools.policy import FUNCTIONS, always_asks, find_denial
from mlx_tools.store import RootName, load_words
from mlx_tools.tools import BoundSource, BoundSources, ToolError
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CompactedRecord,
    ObservationRecord,
    Record,
    StoppedRecord,
    UserRecord,
)

_ROOM: Final = 32
"""Columns that the text beside a command or a tool needs; with fewer it goes below."""


_SWITCH: Final = ("on", "off")


class ExitChat(Exception):
    """The user wants to leave."""


class ResumeChat(Exception):
    """The user wants to go on with another session."""

    def __init__(self, saved: SavedSession) -> None:
        super().__init__()
        self.saved = saved


class ChatCommand(Struct, frozen=True):
    """A command."""

    name: str
    takes: str
    """Its argument, in brackets if it may be left out."""
    help: str
    does: Callable[[ChatSession, str], object]
    """Runs it; may return a text to print."""
    complete: Callable[[ChatSession, str], Iterable[str]] = lambda talk, beginning: ()
    """Returns completions of the argument, or a mapping of them to their meanings."""

    @property
    def usage(self) -> str:
        return f"{self.name} {self.takes}".rstrip()


def run_slash_command(talk: ChatSession, line: str) -> None:
    """Run the command in a line.

    Raises:
        UsageError: there is no such command, or its argument is wrong.
        ExitChat: the user wants to leave.
        ResumeChat: the user wants to go on with another session.
    """
    word, *after_word = line.split(maxsplit=1)
    argument = after_word[0] if after_word else ""
    command = COMMANDS.get(ALIASES.get(word, word))
    if command is None and (prompt := _prompts(talk).get(word)) is not None:
        prompt(argument)
        return
    if command is None:
        advice = did_you_mean(word.casefold(), COMMANDS, "/help lists the commands;")
        raise UsageError(
            f"unknown command {cut(in_words(word), 40)}; nothing was sent",
            hint=f"{advice} a space before the / sends it as a question",
        )
    if bool(argument) > bool(command.takes) or (
        command.takes and not argument and command.takes[0] != "["
    ):
        hint = f"as in {command.usage}" if command.takes else "it takes no argument"
        raise UsageError(f"{word}: nothing was done", hint=hint)
    if isinstance(text := command.does(talk, argument), str):
        print_prose(text)


def _prompts(talk: ChatSession) -> Mapping[str, Callable[[str], None]]:
    """Return the prompts of MCP servers as commands.

    Each asks the prompt that its server makes of the values ``NAME=VALUE`` in the argument.
    """
    return {
        f"/{source.name}:{name}": partial(_ask_prompt, talk, source, name)
        for source in talk.controller.registry.sources
        for name in source.location.get("prompts", ())
    }


class McpNames(Struct, frozen=True):
    """The names of the plugin ``mcp`` that the chat uses."""

    McpClients: Callable[[BoundSources, Sequence[str]], Any]
    read_prompt: Callable[[Any, BoundSource, str, Mapping[str, str]], Awaitable[str]]


def _ask_prompt(talk: ChatSession, source: BoundSource, name: str, values: str) -> None:
    is_required: Mapping[str, bool] = source.location["prompts"][name]
    if any(part.local_only for part in talk.policy.parts):  # the server may be anywhere
        raise UsageError(f"/{source.name}:{name}: nothing leaves this machine (policy.local_only)")
    try:
        values_by_name = dict(part.partition("=")[::2] for part in shlex.split(values))
    except ValueError as error:
        raise UsageError(f"/{source.name}:{name}: {error}") from None
    missing = [
        key for key, required in is_required.items() if required and key not in values_by_name
    ]
    if missing or not values_by_name.keys() <= is_required.keys():
        usage = " ".join(
            f"{key}=…" if required else f"[{key}=…]" for key, required in is_required.items()
        )
        raise UsageError(f"/{source.name}:{name}: nothing was asked", hint=f"as in {usage}")
    mcp = plugins().exports("mcp", McpNames)
    clients = mcp.McpClients(BoundSources(), list_roots(talk.configuration))

    async def fetch() -> str:
        try:
            return await mcp.read_prompt(clients, source, name, values_by_name)
        finally:
            await clients.aclose()

    try:
        text = talk.wait(fetch)
    except ToolError as error:
        raise UsageError(str(error)) from None
    print_prose(text, "  ", colour="dim")
    talk.ask(text, untyped_suffix_chars=len(text))


def completions(talk: ChatSession, name: str, beginning: str) -> Iterator[tuple[str, str]]:
    """Yield completions of a command's argument, each with its meaning, maybe empty.

    For an empty name they are paths, for ``!`` programs.
    """
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None and name == typed_command.MARK:
        yield from ((word, "") for word in typed_command.completions(talk, beginning))
        return
    if command is None and beginning.startswith("@"):
        yield from ((f"@{path}", "") for path in _paths(talk, beginning[1:]))
        return
    texts = _paths(talk, beginning) if command is None else command.complete(talk, beginning)
    is_list = command is not None and command.takes.endswith("…")
    start = beginning.rfind(" ") + 1 if is_list else 0
    meanings = texts if isinstance(texts, Mapping) else {}
    for text in texts:
        if text.startswith(beginning[start:]):
            yield beginning[:start] + text, meanings.get(text, "")


def _help(_: ChatSession, name: str) -> str:
    if name:
        word = name if name.startswith("/") else f"/{name}"
        command = COMMANDS.get(ALIASES.get(word, word))
        if command is None:
            raise UsageError(
                f"unknown command {cut(in_words(word), 40)}",
                hint=did_you_mean(word.casefold(), COMMANDS, "/help lists the commands"),
            )
        others = [alias for alias, meant in ALIASES.items() if meant == command.name]
        same = f"\nalso: {', '.join(others)}" if others else ""
        return f"{command.usage}: {command.help}{same}"
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        _row(command.usage, command.help, width)
    return "Ctrl-C stops an answer. !PROGRAM runs a program. A space before / or ! sends it."


def _row(head: str, text: str, width: int = 0) -> None:
    """Print a row of a list, in columns if there is room for two."""
    columns = count_columns(stdout())
    narrow = columns is not None and columns < width + _ROOM
    print_text(join_columns(f"{head if narrow else head.ljust(width)} ", text, columns))


# --- tools ----------------------------------------------------------------------------------------


class Permission(Struct, frozen=True):
    """The permission of a tool, by the effects of its calls.

    If the effects do not depend on the arguments, all of them are together in one group.
    """

    name: str
    runs: tuple[str, ...] = ()
    """Effects of calls that run."""
    asks: tuple[str, ...] = ()
    """Effects of calls that ask first."""
    denied: tuple[str, ...] = ()
    """Effects of calls that are denied."""
    off_reason: str = ""
    """Why it cannot run at all."""
    forbidden: str = ""
    """Why the denied calls cannot be allowed here."""

    @property
    def brief(self) -> str:
        """Its name if a call may run, with the effects that ask first."""
        if not self.asks:
            return self.name if self.runs else ""
        return f"{self.name} ({', '.join(self.asks) if self.runs else 'each'} asks first)"

    def __str__(self) -> str:
        if self.off_reason:
            return f"off: {self.off_reason}"
        parts = []
        if self.runs:
            parts.append(f"runs ({', '.join(self.runs)})")
        if self.asks:
            parts.append(f"asks first ({', '.join(self.asks)})")
        if self.denied:
            effects = f"({', '.join(self.denied)})"
            needs = f"needs /allow {self.name} {effects}"
            parts.append(f"forbidden {effects}: {self.forbidden}" if self.forbidden else needs)
        return ", ".join(parts)


def permissions(talk: ChatSession) -> list[Permission]:
    """Return the permissions of all tools.

    First those that run, last those that are off.
    """
    policy, registry, rows = talk.policy, talk.controller.registry, []
    disabled, specs = registry.disabled, registry.all_specs()
    wider = talk.configuration.with_options({"policy.deny": ""}, allow=list(specs))
    is_unasked = talk.configuration.settings.policy.approve == "always"
    for name, spec in specs.items():
        if (off_reason := disabled.get(name)) is not None:
            rows.append(Permission(name, off_reason=_to_chat_hint(off_reason)))
            continue
        runs: list[str] = []
        asking: list[str] = []
        denied: list[str] = []
        possible = spec.possible_effects
        # effect by effect if the arguments decide which effects a call has
        kinds = (
            [{variant} for variant in sorted(possible)] if callable(spec.effects) else [possible]
        )
        for effects in kinds:
            variant = replace(spec, effects=frozenset(effects))
            target = runs if is_unasked or not always_asks(policy, variant) else asking
            target = target if find_denial(policy, variant) is None else denied
            target += sorted(effects) or ["nothing"]
        reason = _forbidden(wider, spec) if denied else ""
        rows.append(Permission(name, tuple(runs), tuple(asking), tuple(denied), forbidden=reason))
    rows += [Permission(key, off_reason=reason) for key, reason in disabled.items() if "/" in key]
    return sorted(rows, key=lambda row: (bool(row.off_reason), not row.runs, not row.asks))


def _forbidden(configuration: Configuration, spec: ToolSpec) -> str:
    """Return who forbids a tool that these settings would allow, and why; else empty."""
    denied = find_denial(configuration.policy(), spec)
    if denied is None:
        return ""
    word = denied.rule.partition(" ")[0]
    if word in ("deny", "local_only"):
        return f"{denied.reason} ({configuration.named_by(f'policy.{word}')})"
    files = [
        layer.source for layer in configuration.layers if layer.kind == "project" and layer.chooses
    ]
    return f"{denied.reason} ({', '.join(files)})"


def _to_chat_hint(reason: str) -> str:
    """Return a reason with the chat's command in place of the option."""
    return reason.replace("--root DIR", "/root DIR")


def _tools(talk: ChatSession, _: str) -> None:
    rows = permissions(talk)
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        _row(as_name(row.name), str(row), width)


def _allow(talk: ChatSession, words: str) -> None:
    registry, configuration = talk.controller.registry, talk.configuration
    names = _tools_named(talk, words)
    denied = [
        denied_name for denied_name in _denied_here(configuration) if denied_name not in names
    ]
    wider = configuration.with_options({"policy.deny": ",".join(denied)}, allow=names)
    for name in names:
        if (off_reason := registry.disabled.get(name)) is not None:
            raise UsageError(f"{name} is off: {_to_chat_hint(off_reason)}")
        if reason := _forbidden(wider, registry.all_specs()[name]):
            raise UsageError(f"{name} cannot be allowed here: {reason}")
    talk.go_on_under(wider)
    _tell_permissions(talk, names)


def _deny(talk: ChatSession, words: str) -> None:
    names = _tools_named(talk, words)
    denied = dict.fromkeys([*_denied_here(talk.configuration), *names])
    talk.go_on_under(talk.configuration.with_options({"policy.deny": ",".join(denied)}))
    _tell_permissions(talk, names)


def _denied_here(configuration: Configuration) -> Sequence[str]:
    """Return the tools that this chat denies."""
    denied: Sequence[str] = configuration.layers[-1].values.get("policy.deny", ())
    return denied


def _tools_named(talk: ChatSession, words: str) -> list[str]:
    """Return the names of typed tools.

    Raises:
        UsageError: there is no such tool, or none is named.
    """
    registry = talk.controller.registry
    specs = registry.all_specs()
    tools = [registry.resolve_name(name) for name in words.replace(",", " ").split()]
    for name in tools:
        if name not in specs:
            hint = did_you_mean(name, specs, "/tools lists them")
            raise UsageError(f"there is no tool {cut(in_words(name), 40)}", hint=hint)
    if not tools:
        raise UsageError("no tool is named", hint="/tools lists them")
    return tools


def _tell_permissions(talk: ChatSession, names: Sequence[str]) -> None:
    for row in permissions(talk):
        if row.name in names:
            _row(row.name, str(row))


def _may_be_allowed(talk: ChatSession, _: str) -> dict[str, str]:
    rows = permissions(talk)
    return _with_meanings(talk, [row.name for row in rows if row.denied and not row.forbidden])


def _may_be_denied(talk: ChatSession, _: str) -> dict[str, str]:
    return _with_meanings(talk, [row.name for row in permissions(talk) if row.runs or row.asks])


def _with_meanings(talk: ChatSession, names: Sequence[str]) -> dict[str, str]:
    """Return tools, each with the first sentence of its description."""
    specs = talk.controller.registry.all_specs()
    return {name: first_sentence(specs[name].description) for name in names}


def roots(talk: ChatSession) -> list[str]:
    """Return the folders that tools may see, with their rights."""
    root_names = map(RootName.parse, talk.configuration.settings.tools.roots)
    return [
        f"{home_path(root.path)} ({'read, write' if root.writable else 'read'})"
        + in_words("".join(f" {pattern}" for pattern in root.patterns))
        for root in root_names
    ]


def _root(talk: ChatSession, words: str) -> str:
    if words:
        root, roots_by_path = RootName.parse(words.removeprefix("-")), folders(talk.configuration)
        path = RootName(root.path).absolute()
        if not words.startswith("-"):
            roots_by_path[path] = root.absolute()
        elif roots_by_path.pop(path, None) is None:
            raise UsageError(f"tools do not see the folder {in_words(root.path)}")
        talk.go_on_under(
            talk.configuration.with_options({"tools.roots": list(roots_by_path.values())})
        )
    return "\n".join(roots(talk)) or "no folder: /root DIR names one, /root DIR:rw to write in"


def _commands(talk: ChatSession, words: str) -> None:
    programs = [*talk.configuration.settings.tools.commands]
    names = words.replace(",", " ").split()
    for name in names:
        if not name.startswith("-"):
            programs = [*dict.fromkeys((*programs, name))]
        elif name[1:] in programs:
            programs.remove(name[1:])
        else:
            shown = cut(in_words(name[1:]), 40)
            raise UsageError(f"the program {shown} was not added", hint="/commands lists these")
    if names:
        talk.go_on_under(talk.configuration.with_options({"tools.commands": programs}))
    shown = in_words(", ".join(programs))
    print_prose(shown or "no program besides run_command's own: /commands A,B adds some")
    if programs:
        _tell_permissions(talk, [config.RUN_COMMAND])


def _functions(talk: ChatSession, words: str) -> None:
    files = [*list_function_files(talk.configuration)]
    if words:
        (file,) = function_files([words.removeprefix("-")])
        if not words.startswith("-"):
            files = [*dict.fromkeys((*files, file))]
        elif file in files:
            files.remove(file)
        else:
            shown = cut(in_words(words[1:]), 80)
            raise UsageError(f"{shown} was not added", hint="/functions lists these")
        talk.go_on_under(talk.configuration.with_options({"tools.functions": files}))
    shown = "\n".join(map(home_path, files))
    print_prose(shown or "no file: /functions FILE.py adds its functions as tools")
    specs = talk.controller.registry.all_specs().values()
    _tell_permissions(talk, [spec.name for spec in specs if spec.plugin == FUNCTIONS])


def _programs_added(talk: ChatSession, _: str) -> list[str]:
    return [f"-{name}" for name in talk.configuration.settings.tools.commands]


def _function_files(talk: ChatSession, beginning: str) -> list[str]:
    removals = [f"-{file}" for file in list_function_files(talk.configuration)]
    return [path for path in _paths(talk, beginning) if path.endswith(("/", ".py"))] + removals


# --- the model, and what it is told ---------------------------------------------------------------


def _model(talk: ChatSession, words: str) -> None:
    if words:
        talk.go_on_with(words)
        print_prose(talk.model or "the server does not say which model it runs")
        (_, served), (_, local) = _models(talk)
        name = talk.model
        # Some servers load a model that they do not list, some answer with another one.
        if name and served and name not in (*served, *local) and not file_exists(name):
            warn_all([f"the server does not list {in_words(name)}; /model lists what it has"])
        return
    for place, names in _models(talk):
        for name in names:
            mark = "* " if name == talk.model else "  "
            _row(f"{mark}{in_words(name)}", place)
    note("/model NAME goes on with another; mlx-tools models pull NAME fetches one")


def _models(talk: ChatSession) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the server's models, then further ones on this machine."""
    ask = getattr(talk.controller.backend, "models", None)
    served = talk.wait(ask) if ask is not None else ()
    yield "on the server", served
    local = [model.name for model in list_models() if model.pulled and model.mlx]
    yield "on this machine", [name for name in local if name not in served]


def _system(talk: ChatSession, words: str) -> str:
    built_in = load_words().persona
    if words:
        text = built_in if words == "-" else words
        talk.go_on_under(talk.configuration.with_options({"prompt.system": text}))
    return talk.configuration.settings.prompt.system or built_in


# --- limits ---------------------------------------------------------------------------------------


def _limit_rows() -> dict[str, SettingRow]:
    """Return the limits by the name that ``/set`` takes; times are in seconds there."""
    section, unit = "limits.", "_ms"
    return {
        key.removeprefix(section).removesuffix(unit): row
        for key, row in config.table().items()
        if key.startswith(section)
    }


def _limit_scale(row: SettingRow) -> int:
    return 1000 if row.key.endswith("_ms") else 1


def _limits(talk: ChatSession, _: str) -> None:
    rows = _limit_rows()
    width = max(map(len, rows))
    conversation, controller = talk.conversation, talk.controller
    limits = controller.limits.for_model(controller.context)
    if conversation.is_begun:
        limits = conversation.session_state.limits
    values = limits.to_json()
    for name, row in rows.items():
        is_unset = talk.configuration.values.get(row.key) is None
        unit = " s" if _limit_scale(row) != 1 else ""
        notes = " (follows the model)" if is_unset else ""
        _row(name, f"{values[name]:g}{unit}{notes}", width)
    note("/set NAME VALUE changes one for this conversation")


def _set(talk: ChatSession, words: str) -> str:
    name, _, value = words.partition(" ")
    rows = _limit_rows()
    if name not in rows or not value.strip():
        hint = did_you_mean(name, rows, "/limits lists them")
        problem = f"there is no limit {cut(in_words(name), 40)}" if name not in rows else "no value"
        raise UsageError(f"/set: {problem}", hint=hint if name not in rows else "/set NAME VALUE")
    row = rows[name]
    try:
        number = row.read(value, scale=_limit_scale(row))
    except ValueError:
        raise UsageError(
            f"/set {name}: {cut(in_words(value), 40)!r} is not allowed",
            hint=row.allowed(_limit_scale(row)),
        ) from None
    typed = f"{number / row.setting.scale:.12g}"
    talk.go_on_under(talk.configuration.with_options({row.key: typed}))
    return f"{name} is {value.strip()} from now on in this conversation"


# --- what was said --------------------------------------------------------------------------------


def _clear(talk: ChatSession, _: str) -> str:
    talk.begin_anew()
    return "a new conversation begins"


def _describe_transcript(talk: ChatSession, _: str) -> str:
    return talk.conversation.transcript or f"session {talk.conversation.session}"


def _save(talk: ChatSession, words: str) -> str:
    path = expand_user(words)
    text = "\n\n".join(as_markdown(talk.past_records))
    if not text:
        raise UsageError("nothing was said yet", hint="ask a question first")
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{text}\n")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    return f"saved in {path}"


def as_markdown(records: Iterable[Record]) -> Iterator[str]:
    """Yield a conversation as blocks of Markdown.

    A question is a heading; a call and its result are blocks of code.
    """
    for record in records:
        match record:
            case UserRecord():
                first, _, following = record.content.partition("\n")
                yield f"## {first}"
                yield from filter(None, [following.strip("\n")])
            case CallRecord():
                yield f"`{record.name}`"
                yield _fenced(json_line(record.arguments), "json")
            case ObservationRecord():
                yield _fenced(record.shown_text)
            case AnswerRecord():
                yield record.content
            case CompactedRecord() if record.content:
                yield f"*summed up:*\n\n{record.content}"
            case StoppedRecord():
                yield f"*stopped: {record.reason}*"


def _fenced(text: str, language: str = "") -> str:
    """Return a text as a block of code, with a fence longer than any in it."""
    longest = max((len(backticks) for backticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


_CLIPBOARDS: Final = (
    ("", ("pbcopy",)),
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
)
"""Clipboard programs, each with the variable without which it has no screen."""


def _copy(talk: ChatSession, _: str) -> str:
    answers = [record.content for record in talk.past_records if isinstance(record, AnswerRecord)]
    if not answers:
        raise UsageError("there is no answer yet", hint="ask a question first")
    return f"copied {copy(answers[-1], os.environ)}"


def copy(text: str, environ: Mapping[str, str]) -> str:
    """Put a text on the clipboard, and return by which means.

    Over ssh only the terminal knows the user's clipboard.

    Raises:
        UsageError: there is no clipboard.
    """
    data = text.encode("utf-8", "backslashreplace")
    for variable, command in _CLIPBOARDS if "SSH_CONNECTION" not in environ else ():
        program = shutil.which(command[0], path=environ.get("PATH"))
        if program is None or (variable and not environ.get(variable)):
            continue
        # A clipboard program stays in the background: it must not keep our output open. One that
        # cannot run, or waits for a display, is passed over.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(  # noqa: S603 - an argument list, no shell
                [program, *command[1:]],
                input=data,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
                timeout=5,
                # without it pbcopy reads the bytes as Mac Roman
                env={**environ, "LC_CTYPE": "UTF-8"} if command[0] == "pbcopy" else None,
            )
            return f"with {command[0]}"
    if not steerable(sys.stderr):
        raise UsageError("there is no clipboard here", hint="/save FILE writes a file")
    sys.stderr.write(f"\x1b]52;c;{b64encode(data).decode()}\x07")
    sys.stderr.flush()
    return "by the terminal, where it lets programs do so"


class UndoNames(Struct, frozen=True):
    """The names of the plugin ``files`` that a chat uses."""

    undo_question: Callable[[Sequence[str], str], bool]


def _undo(talk: ChatSession, _: str) -> None:
    files = plugins().exports("files", UndoNames)
    with talk.turns.keyboard():
        found = files.undo_question(talk.sessions, talk.conversation.session)
    if not found:
        note("nothing that this talk changed can be undone")


def _steps(talk: ChatSession, words: str) -> str:
    if words:
        talk.steps = one_of("/steps", words, _SWITCH) == "on"
    return "every step is shown" if talk.steps else "a call is shown in a line"


_MAX_ROWS: Final = 10
"""Sessions that are listed to choose from: a screen holds them."""


def _resume(talk: ChatSession, name: str) -> None:
    store, present = kept_sessions(), talk.conversation.session
    if name:
        raise ResumeChat(resolve_session(store.find(name), False, {}))
    rows = [
        row
        for row in map(store.describe, store.by_last_update(3 * _MAX_ROWS))
        if row.session != present and row.status.question
    ][:_MAX_ROWS]
    if not rows:
        raise UsageError("there is no other conversation to go on with", hint="ask here")
    if not at_terminal():
        raise UsageError("/resume: nothing was done", hint="as in /resume SESSION")
    answers = {f"{cut(row.status.question, 60)} ({row.session})": row.session for row in rows}
    with talk.turns.keyboard():
        chosen = picked("Which conversation?", [*answers])
    if chosen is not None:
        raise ResumeChat(resolve_session(answers[chosen], False, {}))
    note("this conversation goes on")


def _session_ids(talk: ChatSession, _: str) -> dict[str, str]:
    questions, present = first_questions(kept_sessions()), talk.conversation.session
    return {key: question for key, question in questions.items() if question and key != present}


def _quit(_: ChatSession, __: str) -> None:
    raise ExitChat


# --- the table ------------------------------------------------------------------------------------


def _paths(_: ChatSession, beginning: str) -> list[str]:
    """Return the completions of a path; folders end with a slash."""
    folder, slash, start = beginning.rpartition("/")
    place = expand_user(f"{folder}/" if slash else ".")
    paths = []
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
                end = "/" if entry.is_dir() else ""
                paths.append(f"{beginning[: len(beginning) - len(start)]}{entry.name}{end}")
    return sorted(paths)


def _folders(talk: ChatSession, beginning: str) -> list[str]:
    removals = [f"-{root_path}" for root_path in folders(talk.configuration)]
    return [path for path in _paths(talk, beginning) if path.endswith("/")] + removals


def _model_names(talk: ChatSession, __: str) -> dict[str, str]:
    return {name: place for place, names in _models(talk) for name in names}


COMMANDS: Final[Mapping[str, ChatCommand]] = {
    command.name: command
    for command in (
        ChatCommand("/tools", "", "what runs, asks, or is off", _tools),
        ChatCommand("/allow", "NAME…", "let the model call tools", _allow, _may_be_allowed),
        ChatCommand("/deny", "NAME…", "take tools away from it", _deny, _may_be_denied),
        ChatCommand("/root", "[DIR[:rw]|-DIR]", "let tools see a folder", _root, _folders),
        ChatCommand("/commands", "[A,B|-A]", "programs it may run", _commands, _programs_added),
        ChatCommand(
            "/functions",
            "[FILE.py|-FILE]",
            "functions of a file as tools",
            _functions,
            _function_files,
        ),
        ChatCommand("/limits", "", "what a question may take", _limits),
        ChatCommand(
            "/set",
            "NAME VALUE",
            "change a limit",
            _set,
            lambda *_: {f"{name} ": row.setting.help for name, row in _limit_rows().items()},
        ),
        ChatCommand("/model", "[NAME]", "list models, or change it", _model, _model_names),
        ChatCommand("/system", "[TEXT|-]", "say who the model is (- the usual)", _system),
        ChatCommand("/retry", "", "ask the last question again", lambda talk, _: talk.retry()),
        ChatCommand("/undo", "", "bring back what the last question's calls changed", _undo),
        ChatCommand("/save", "FILE", "write this as Markdown", _save, _paths),
        ChatCommand("/copy", "", "the last answer to the clipboard", _copy),
        ChatCommand("/compact", "", "have it summed up, for room", lambda talk, _: talk.compact()),
        ChatCommand(
            "/steps", "[on|off]", "every step, or a line a call", _steps, lambda *_: _SWITCH
        ),
        ChatCommand("/clear", "", "begin a new conversation (or /new)", _clear),
        ChatCommand("/resume", "[SESSION]", "go on with an older one", _resume, _session_ids),
        ChatCommand("/transcript", "", "where this is kept", _describe_transcript),
        ChatCommand(
            "/help",
            "[COMMAND]",
            "this list",
            _help,
            lambda *_: {name: command.help for name, command in COMMANDS.items()},
        ),
        ChatCommand("/quit", "", "leave (or exit, Ctrl-D)", _quit),
    )
}

ALIASES: Final[Mapping[str, str]] = {
    "/exit": "/quit",
    "/bye": "/quit",
    "/new": "/clear",
    "/?": "/help",
}
"""What other programs call the same."""

EXITS: Final = ("exit", "quit", "bye")
"""Words that leave if they are all of a line, as in a shell."""
