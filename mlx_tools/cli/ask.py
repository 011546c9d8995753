"""`mlx-tools ask`: one question, one outcome, and a full trace if asked for.

A full trace has every prompt, every completion as it came, every event and every output. It is
written only on request, to a file that only its owner can read. Without it, a run leaves its
transcript only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from msgspec import to_builtins

from mlx_tools.app import Configuration
from mlx_tools.backends import Backend, Chunk, CompletionRequest
from mlx_tools.cli import inputs, options
from mlx_tools.cli.background import NewSession, answer
from mlx_tools.cli.completion import prompt_names
from mlx_tools.cli.options import argument, option
from mlx_tools.cli.output import complain, print_json
from mlx_tools.cli.project import with_project
from mlx_tools.cli.root import fails_as_json
from mlx_tools.cli.view import LiveView, tell
from mlx_tools.controller import check_output_schema, cleaner
from mlx_tools.errors import UsageError
from mlx_tools.messages import json_line, replace
from mlx_tools.store import RootName
from mlx_tools.transcript import Event, Finished

if TYPE_CHECKING:
    from mlx_tools.app import SavedSession

app = typer.Typer(add_completion=False)

PromptName = Annotated[
    str | None,
    option(
        "--prompt,-p NAME",
        "Ask a named prompt; KEY=VALUE words fill its blanks.",
        autocompletion=prompt_names,
    ),
]

TraceFile = Annotated[
    Path | None,
    option(
        "--full-trace FILE",
        "Write every prompt, completion, event and output to FILE, for you alone to read.",
    ),
]


@app.command()
@options.with_settings(*options.ASK)
@fails_as_json
def ask(
    question: Annotated[
        list[str] | None,
        argument(
            "QUESTION…",
            "The question; - or nothing reads it from standard input. Text that is piped in "
            "besides a question is added to it.",
        ),
    ] = None,
    prompt: PromptName = None,
    latest: options.ContinueLast = False,
    session: options.SessionGiven = None,
    tool_choice: options.ToolChoice = "auto",
    require_tools: options.RequireTools = "",
    as_json: options.AsJson = False,
    as_events: Annotated[
        bool, option("--events", "Print what happens as JSON lines, as it happens.")
    ] = False,
    schema: Annotated[
        Path | None, option("--schema FILE", "Answer with JSON that fits the JSON Schema in FILE.")
    ] = None,
    include_outputs: Annotated[
        bool, option("--include-outputs", "With --json: the tools' whole outputs too.")
    ] = False,
    steps: Annotated[
        bool,
        option(
            "--steps", "Show every step on standard error: what the model thinks, asks and is told."
        ),
    ] = False,
    full_trace: TraceFile = None,
    *,
    options_given: options.Options,
) -> int:
    """Answer one question and return the exit code of how it ended."""
    talk, choice = _pick_session(latest, session, options_given, tool_choice, require_tools, schema)
    text, piped = _question(_read_question(question, prompt))
    is_plain = not (as_json or as_events)
    view = LiveView.for_process(steps=steps, answer=is_plain)
    clean = trace_cleaner(talk.run.configuration)
    with FullTrace(full_trace, clean=clean) if full_trace else nullcontext() as trace:

        def on_event(event: Event) -> None:
            if trace is not None:
                trace.event(event)
            if as_events:
                value = event.to_json()
                if isinstance(event, Finished):
                    value["outcome"] = event.outcome.to_json(include_outputs=include_outputs)
                print_json(value)

        outcome = answer(
            talk,
            lambda turn: turn.stream(text, tool_choice=choice, untyped_suffix_chars=piped),
            view,
            on_event=on_event,
            wrap=(lambda backend: backend) if trace is None else trace.wrap,
        )
    if trace is not None and trace.problem is not None:
        complain(trace.problem, kind="warning")
    if as_json:
        print_json(outcome.to_json(include_outputs=include_outputs))
    tell(outcome, plain=is_plain)
    return outcome.exit_code


def _pick_session(
    latest: bool,
    session: str | None,
    options_given: options.Options,
    tool_choice: str,
    require_tools: str,
    schema: Path | None,
) -> tuple[SavedSession | NewSession, str | None]:
    """Return the session of a question, and the tool choice for this question only."""
    if latest or session is not None:
        from mlx_tools.cli.saved_sessions import refuse_options, resolve_session, tell_resumed

        refuse_options(schema=schema, require_tools=require_tools)
        saved = resolve_session(session, latest, options_given)
        if latest:
            tell_resumed(saved)
        return saved, None if tool_choice == "auto" else tool_choice
    run = with_project(options.run_options(options_given, tool_choice, require_tools))
    if schema is not None:
        output_schema = check_output_schema(inputs.read_json(schema), f"--schema: {schema}")
        run = replace(run, output_schema=output_schema)
    return NewSession(run), None


def _read_question(question: Sequence[str] | None, prompt: str | None) -> str | None:
    """Return the question as it was typed, or as a named prompt has it."""
    if prompt is None:
        return options.join_words(question)
    from mlx_tools.cli.named_prompts import fill_prompt

    return fill_prompt(prompt, question or ())


def _question(question_text: str | None) -> tuple[str, int]:
    """Return the question, and how many of its characters were piped in besides.

    It is the argument, standard input, or both.
    """
    if question_text is None and not inputs.stdin_is_piped():
        raise UsageError("there is no question", hint='mlx-tools ask "QUESTION"')
    question = inputs.as_question("-" if question_text is None else question_text)
    if question_text in (None, "-") or not inputs.stdin_is_piped():
        return question, 0
    context = inputs.read_text()
    return (f"{question}\n\n{context}", len(context)) if context.strip() else (question, 0)


# --- the full trace -----------------------------------------------------------------------------


def trace_cleaner(configuration: Configuration) -> Callable[[str], str]:
    """Return a function that removes secrets and paths, as the policy's settings say."""
    roots = [RootName.parse(root).path for root in configuration.settings.tools.roots]
    paths = (str(Path(folder).absolute()) for folder in (*roots, str(Path.home())))
    folders = tuple(dict.fromkeys(folder for folder in paths if folder != "/"))
    return cleaner(configuration.policy(), folders)


class FullTrace:
    """A trace file of JSON lines.

    It is a regular file: no link is followed, and nothing else is written to. An existing file is
    closed to others first, then emptied. If the disk is full later, the run continues without its
    trace, and `problem` says so. ``clean`` removes secrets from every line before it is written.

    Raises:
        UsageError: the file cannot be created; nothing has run then.
    """

    def __init__(self, path: Path, *, clean: Callable[[str], str] = str) -> None:
        self.problem: str | None = None
        self._path = path
        self._clean = clean
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._file = os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.close()
                raise UsageError(f"--full-trace: {path}: not a regular file", hint="name a file")
            os.fchmod(self._file.fileno(), 0o600)  # an existing file may have been open to others
            self._file.truncate(0)
        except OSError as error:
            why = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise UsageError(f"--full-trace: {path}: {why}", hint="name a file") from None

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        if self.problem is not None:
            return
        written_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = self._clean(json_line({"at": written_at, "kind": kind} | values))
        remaining = memoryview(line.encode("utf-8") + b"\n")
        try:
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
        except OSError as error:
            self.problem = f"--full-trace: {self._path} is incomplete: {error.strerror}"

    def event(self, event: Event) -> None:
        """Append an event; the last one with all outputs, and with counters."""
        if isinstance(event, Finished):
            outcome = event.outcome
            outcome_row = outcome.to_json(include_outputs=True)
            self.write("outcome", outcome=outcome_row, counters=outcome.counters.to_json())
        else:
            self.write("event", event=event.to_json())

    def wrap(self, backend: Backend) -> Backend:
        """Return the backend with its requests and completions written to the trace."""
        return _TracingBackend(backend, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _TracingBackend:
    def __init__(self, backend: Backend, trace: FullTrace) -> None:
        self._backend = backend
        self._trace = trace
        self.model = getattr(backend, "model", None)

    def __getattr__(self, name: str) -> Any:  # the abilities and the model of the backend
        return getattr(self._backend, name)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        self._trace.write("request", request=to_builtins(request))
        text, last = "", None
        try:
            async with aclosing(self._backend.complete(request)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    text += chunk.text
                    last = chunk
                    yield chunk
        finally:
            last_with_reason = last if last is not None and last.finish_reason is not None else None
            self._trace.write(
                "completion",
                text=text,
                finish_reason=last_with_reason.finish_reason if last_with_reason else None,
                usage=to_builtins(last_with_reason.usage)
                if last_with_reason and last_with_reason.usage
                else None,
            )
