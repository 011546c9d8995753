"""`mlx-tools ask`: one question, one outcome."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from anyio.from_thread import start_blocking_portal

from mlx_tools.app.own_output import ours
from mlx_tools.app.wiring import RunOptions, approver_of, opened, refuse_where_off
from mlx_tools.cli import inputs, options
from mlx_tools.cli.approve import asker
from mlx_tools.cli.background import Turns
from mlx_tools.cli.failures import Interrupted
from mlx_tools.cli.output import begin_line, complain, note, print_json
from mlx_tools.cli.trace import FullTrace, cleaner
from mlx_tools.cli.view import LiveView, tell
from mlx_tools.errors import UsageError
from mlx_tools.transcript.events import Event, Finished

app = typer.Typer(add_completion=False)


@app.command(help="Ask one question; the model may call tools.")
@options.with_settings(*options.BACKEND, *options.WRITING, *options.POLICY, *options.RUN)
def ask(
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION",
            help="The question; - or nothing reads it from standard input. Text that is piped in "
            "besides a question is added to it.",
        ),
    ] = None,
    tool_choice: options.ToolChoice = "auto",
    require_tools: options.RequireTools = None,
    as_json: options.AsJson = False,
    as_events: Annotated[
        bool, typer.Option("--events", help="Print what happens as JSON lines, as it happens.")
    ] = False,
    include_outputs: Annotated[
        bool, typer.Option("--include-outputs", help="With --json: the tools' whole outputs too.")
    ] = False,
    steps: Annotated[
        bool | None,
        typer.Option(
            "--steps/--no-steps",
            help="Show on standard error what the model asked and what ran.",
            show_default="at a terminal",
        ),
    ] = None,
    full_trace: Annotated[
        Path | None,
        typer.Option(
            "--full-trace",
            metavar="FILE",
            help="Write every prompt, completion, event and output to FILE, for you alone to read.",
        ),
    ] = None,
    *,
    options_given: options.Options,
) -> int:
    """Answer one question and return the exit code of how it ended."""
    run = RunOptions(
        configuration=options.load(options_given),
        tool_choice=tool_choice,
        require_tools=options.names(require_tools),
    )
    refuse_where_off(run)
    text, piped = _question(question)
    plain = not (as_json or as_events)
    view = LiveView(
        steps=sys.stderr if (sys.stderr.isatty() if steps is None else steps) else None,
        answer=ours() if plain and ours().isatty() else None,
    )
    outcome = None
    clean = cleaner(run.configuration)
    with FullTrace(full_trace, clean=clean) if full_trace else nullcontext() as trace:
        for event in _events(run, text, piped, trace, view):
            if trace is not None:
                trace.event(event)
            if as_events:
                print_json(_event(event, include_outputs))
            view.show(event)
            if isinstance(event, Finished):
                outcome = event.outcome
    if trace is not None and trace.problem is not None:
        complain(trace.problem, kind="warning")
    if outcome is None:
        raise UsageError("the run ended without an outcome")
    tell(outcome, as_json=as_json, include_outputs=include_outputs, plain=plain)
    return outcome.exit_code


def _events(
    run: RunOptions, question: str, piped: int, trace: FullTrace | None, view: LiveView
) -> Iterator[Event]:
    """What happens while the question is answered."""
    began = monotonic()
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        turns = Turns(portal, asker(run.configuration.settings.policy.approve))
        controller = stack.enter_context(
            portal.wrap_async_context_manager(
                opened(
                    run,
                    approver=approver_of(run.configuration, turns),
                    note=note,
                    wrap=trace.traced if trace is not None else lambda backend: backend,
                )
            )
        )
        conversation = stack.enter_context(
            closing(portal.call(lambda: controller.conversation(spent=monotonic() - began)))
        )
        try:
            yield from turns.run(conversation, question, piped=piped)
        except KeyboardInterrupt:
            view.end()
            begin_line()
            complain(f"the transcript is in {conversation.transcript}", kind="interrupted")
            raise Interrupted from None
        finally:
            view.end()


def _question(given: str | None) -> tuple[str, int]:
    """The question: as given, from standard input, or both; and how much of it was piped in beside
    what was given."""
    if given is None or given == "-":
        if given is None and not inputs.stdin_is_piped():
            raise UsageError("there is no question", hint='mlx-tools ask "QUESTION"')
        return inputs.as_question(inputs.decoded(inputs.stdin_bytes(), "standard input")), 0
    question = inputs.as_question(given)
    if not inputs.stdin_is_piped():
        return question, 0
    context = inputs.decoded(inputs.stdin_bytes(), "standard input")
    return (f"{question}\n\n{context}", len(context)) if context.strip() else (question, 0)


def _event(event: Event, include_outputs: bool) -> dict[str, object]:
    value = event.to_json()
    if isinstance(event, Finished):
        value["outcome"] = event.outcome.to_json(include_outputs=include_outputs)
    return value
