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
    SettingRow,
    config,
    list_roots,
    plugins,
)
from mlx_tools.backends import list_models
from mlx_tools.cli import typed_command
from mlx_tools.cli.call_text import escape_line
from mlx_tools.cli.chat_rights import (
    allow_tools,
    allowable_tools,
    change_functions,
    change_programs,
    change_roots,
    complete_folders,
    complete_functions,
    complete_paths,
    deniable_tools,
    deny_tools,
    removable_programs,
    show_tools,
)
from mlx_tools.cli.completion import first_questions
from mlx_tools.cli.inputs import is_at_terminal, picked
from mlx_tools.cli.options import require_choice
from mlx_tools.cli.output import (
    cut,
    note,
    print_padded_row,
    print_prose,
    steerable,
    warn_all,
)
from mlx_tools.cli.saved_sessions import describe_status, open_user_store, resolve_session
from mlx_tools.cli.talk import ChatSession
from mlx_tools.errors import UsageError, did_you_mean
from mlx_tools.messages import json_line, replace
from mlx_tools.paths import expand_user, file_exists
from mlx_tools.store import load_words
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

_SWITCH: Final = ("on", "off")


class ExitChat(Exception):
    """The user wants to leave."""


class ResumeChat(Exception):
    """The user wants to go on with another session.

    Args:
        talk: the present chat, which goes on if the other session cannot be opened.
        session: the other session.
    """

    def __init__(self, talk: ChatSession, session: str) -> None:
        super().__init__()
        self.saved = resolve_session(session, False, {})
        self.run = talk.run
        self.session = talk.conversation.session if talk.conversation.is_begun else ""
        """The present session, empty if nothing was asked in it."""


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
            f"unknown command {cut(escape_line(word), 40)}; nothing was sent",
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
        yield from ((f"@{path}", "") for path in complete_paths(talk, beginning[1:]))
        return
    texts = (
        complete_paths(talk, beginning) if command is None else command.complete(talk, beginning)
    )
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
                f"unknown command {cut(escape_line(word), 40)}",
                hint=did_you_mean(word.casefold(), COMMANDS, "/help lists the commands"),
            )
        others = [alias for alias, meant in ALIASES.items() if meant == command.name]
        same = f"\nalso: {', '.join(others)}" if others else ""
        return f"{command.usage}: {command.help}{same}"
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        print_padded_row(command.usage, command.help, width)
    return "Ctrl-C stops an answer. !PROGRAM runs a program. A space before / or ! sends it."


# --- the model, and what it is told ---------------------------------------------------------------


def _model(talk: ChatSession, words: str) -> None:
    if words:
        talk.switch_model(words)
        print_prose(talk.model or "the server does not say which model it runs")
        (_, served), (_, local) = _models(talk)
        name = talk.model
        # Some servers load a model that they do not list, some answer with another one.
        if name and served and name not in (*served, *local) and not file_exists(name):
            warn_all([f"the server does not list {escape_line(name)}; /model lists what it has"])
        return
    for place, names in _models(talk):
        for name in names:
            mark = "* " if name == talk.model else "  "
            print_padded_row(f"{mark}{escape_line(name)}", place)
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
        talk.switch_settings(talk.configuration.with_options({"prompt.system": text}))
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
        print_padded_row(name, f"{values[name]:g}{unit}{notes}", width)
    note("/set NAME VALUE changes one for this conversation")


def _set(talk: ChatSession, words: str) -> str:
    name, _, value = words.partition(" ")
    rows = _limit_rows()
    if name not in rows or not value.strip():
        hint = did_you_mean(name, rows, "/limits lists them")
        if name in rows:
            raise UsageError("/set: no value", hint="/set NAME VALUE")
        raise UsageError(f"/set: there is no limit {cut(escape_line(name), 40)}", hint=hint)
    row = rows[name]
    try:
        number = row.read(value, scale=_limit_scale(row))
    except ValueError:
        raise UsageError(
            f"/set {name}: {cut(escape_line(value), 40)!r} is not allowed",
            hint=row.allowed(_limit_scale(row)),
        ) from None
    typed = f"{number / row.setting.scale:.12g}"
    talk.switch_settings(talk.configuration.with_options({row.key: typed}))
    return f"{name} is {value.strip()} from now on in this conversation"


# --- what was said --------------------------------------------------------------------------------


def _clear(talk: ChatSession, _: str) -> str:
    talk.start_conversation()
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
            try:
                file.write(f"{text}\n")
                file.flush()
            # otherwise a second attempt would find the beginning that the first one left
            except OSError:
                path.unlink()
                raise
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint="name another file") from None
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
        note("this conversation left nothing that can be undone")


def _steps(talk: ChatSession, words: str) -> str:
    if words:
        talk.steps = require_choice("/steps", words, _SWITCH) == "on"
    return "every step is shown" if talk.steps else "a call is shown in a line"


_MAX_ROWS: Final = 10
"""Sessions that are listed to choose from: a screen holds them."""


def _resume(talk: ChatSession, name: str) -> None:
    store = open_user_store()
    if name:
        try:
            session = store.find(name)
        except UsageError as error:
            is_of_shell = str(error.hint).startswith("mlx-tools")
            hint = "/resume lists them" if is_of_shell else error.hint
            raise UsageError(error.message, hint=hint) from None
        raise ResumeChat(talk, session)
    present = talk.conversation.session
    rows = [
        row
        for row in map(store.describe, store.by_last_update(3 * _MAX_ROWS))
        if (row.session != present or row.status.pending) and row.status.question
    ][:_MAX_ROWS]
    if not rows:
        raise UsageError("there is no other conversation to go on with", hint="ask here")
    if not is_at_terminal():
        raise UsageError("/resume: nothing was done", hint="as in /resume SESSION")
    answers = {}
    for row in rows:
        # a call that waits in this chat is paused to its user, though the session is held open
        status = replace(row.status, state="paused") if row.status.pending else row.status
        state = describe_status(status)
        known = row.session if state == "answered" else f"{row.session}, {state}"
        answers[f"{cut(row.status.question, 60)} ({known})"] = row.session
    with talk.turns.keyboard():
        chosen = picked("Which conversation?", [*answers])
    if chosen is not None:
        raise ResumeChat(talk, answers[chosen])
    note("this conversation goes on")


def _session_ids(talk: ChatSession, _: str) -> dict[str, str]:
    questions, present = first_questions(open_user_store()), talk.conversation.session
    return {key: question for key, question in questions.items() if question and key != present}


def _quit(_: ChatSession, __: str) -> None:
    raise ExitChat


# --- the table ------------------------------------------------------------------------------------


def _model_names(talk: ChatSession, __: str) -> dict[str, str]:
    return {name: place for place, names in _models(talk) for name in names}


COMMANDS: Final[Mapping[str, ChatCommand]] = {
    command.name: command
    for command in (
        ChatCommand("/tools", "", "what runs, asks, or is off", show_tools),
        ChatCommand("/allow", "NAME…", "let the model call tools", allow_tools, allowable_tools),
        ChatCommand("/deny", "NAME…", "take tools away from it", deny_tools, deniable_tools),
        ChatCommand(
            "/root", "[DIR[:rw]|-DIR]", "let tools see a folder", change_roots, complete_folders
        ),
        ChatCommand(
            "/commands", "[A,B|-A]", "programs it may run", change_programs, removable_programs
        ),
        ChatCommand(
            "/functions",
            "[FILE.py|-FILE]",
            "functions of a file as tools",
            change_functions,
            complete_functions,
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
        ChatCommand("/save", "FILE", "write this as Markdown", _save, complete_paths),
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
    "/reset": "/clear",
    "/?": "/help",
}
"""The names that other programs have for the same commands."""

EXITS: Final = ("exit", "quit", "bye")
"""Words that leave if they are all of a line, as in a shell."""
