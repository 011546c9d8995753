"""`mlx-tools chat`: a conversation with tools, line by line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import typer
from anyio.from_thread import start_blocking_portal

from mlx_tools.app.wiring import RunOptions, refuse_where_off
from mlx_tools.cli import inputs, options
from mlx_tools.cli.dialogue import Leave, Talk
from mlx_tools.cli.output import complain
from mlx_tools.cli.prompt_line import PromptLine
from mlx_tools.errors import EXIT_OK, BackendError, MlxToolsError
from mlx_tools.transcript.outcome import Answered

app = typer.Typer(add_completion=False)


@app.command(help="Talk with the model, with tools, line by line; /help lists what else there is.")
@options.with_settings(*options.BACKEND, *options.WRITING, *options.POLICY, *options.RUN)
def chat(
    tool_choice: options.ToolChoice = "auto",
    require_tools: options.RequireTools = None,
    *,
    options_given: options.Options,
) -> int:
    """Talk until the input ends."""
    run = RunOptions(
        configuration=options.load(options_given),
        tool_choice=tool_choice,
        require_tools=options.names(require_tools),
    )
    refuse_where_off(run)
    with start_blocking_portal() as portal, contextlib.closing(Talk(run, portal)) as talk:
        return _at_keyboard(talk) if sys.stdin.isatty() else _from_pipe(talk)


def _at_keyboard(talk: Talk) -> int:
    """A person types: Ctrl-C stops a turn, Ctrl-D or /quit leaves, an error ends neither."""
    with PromptLine() as keyboard:
        complain(f"{talk.model or 'the model'} listens; /help, and Ctrl-D to leave", kind="chat")
        while True:
            try:
                line = keyboard.read()
                if line is None:
                    return EXIT_OK
                if line.strip():
                    talk.say(inputs.as_question(line))
            except Leave:
                return EXIT_OK
            except KeyboardInterrupt:
                print(file=sys.stderr)
            except MlxToolsError as error:
                complain(str(error))


def _from_pipe(talk: Talk) -> int:
    """A program writes: one question a line. The exit code is that of the last turn that failed."""
    code = EXIT_OK
    for line in _lines():
        if not line.strip():
            continue
        try:
            outcome = talk.say(line)
        except Leave:
            break
        except BackendError:
            raise
        except MlxToolsError as error:
            complain(str(error))
            code = error.exit_code
            continue
        if outcome is not None and not isinstance(outcome, Answered):
            code = outcome.exit_code
    return code


def _lines() -> Iterator[str]:
    for data in sys.stdin.buffer:
        yield inputs.decoded(data, "standard input")
