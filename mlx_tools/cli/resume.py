"""Continues a saved session.

Its transcript says how, the command line only narrows or decides.

If the configuration has changed since the session was begun, it can only take power away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_tools.cli import inputs, options
from mlx_tools.cli.background import answer
from mlx_tools.cli.chat import continue_chat
from mlx_tools.cli.inputs import parse_object
from mlx_tools.cli.output import print_json
from mlx_tools.cli.saved_sessions import load_session, open_user_store, resolve_session
from mlx_tools.cli.view import LiveView, tell
from mlx_tools.controller import ApprovalAnswer, Approvals
from mlx_tools.errors import UsageError
from mlx_tools.store import session_status


def read_approvals(
    approve: Sequence[str],
    approve_all: bool,
    deny: Sequence[str],
    reason: str,
    edit: Sequence[tuple[str, str]],
) -> Approvals:
    """Return the decisions given to ``sessions resume``.

    Raises:
        UsageError: they contradict each other.
    """
    if approve_all and (approve or deny or edit or reason):
        raise UsageError(
            "--approve-all cannot be combined with another decision or a reason",
            hint="leave it out, and name each call: --approve CALL, --deny CALL",
        )
    if approve_all:
        return True
    decisions: dict[str, ApprovalAnswer] = {}

    def say(call: str, answer: ApprovalAnswer) -> None:
        if call in decisions:
            raise UsageError(f"{call} is decided about twice", hint="name each call once")
        decisions[call] = answer

    for text in approve:
        call, _, digest = text.partition("=")
        say(call, ApprovalAnswer(True, reason, digest=digest))
    for call in deny:
        say(call, ApprovalAnswer(False, reason or "the user said no"))
    for call, text in edit:
        value = parse_object(text, "--edit: the arguments", "--edit c1 '{\"x\": 1}'")
        say(call, ApprovalAnswer(True, reason, arguments=value))
    if reason and not decisions:
        raise UsageError("--reason goes with --deny, --approve or --edit", hint="add one")
    return decisions or None


def resume_session(
    session: str, approvals: Approvals, options_given: options.Options, *, as_json: bool
) -> int:
    """Continue a session, show what happens, and return the exit code of its ending.

    A session in which nothing waits is continued as a chat, at a terminal.

    Args:
        session: its id, the beginning of one, ``last``, or its transcript's path.
        approvals: the decisions.
        options_given: say where its server is now.
        as_json: print the outcome as JSON.
    """
    saved = load_session(session, options_given)
    records = open_user_store().read(saved.place).transcript
    if not isinstance(approvals, Mapping) and session_status(records).is_finished:
        if approvals is not None or not inputs.is_at_terminal() or as_json:
            raise UsageError(
                "nothing waits in the session: it has ended",
                hint=f"go on in it: mlx-tools chat --session {saved.header.session}",
            )
        return continue_chat(resolve_session(session, False, options_given))
    outcome = answer(
        saved,
        lambda conversation: conversation.stream_resumed(approvals),
        LiveView.for_process(answer=not as_json),
    )
    if as_json:
        print_json(outcome.to_json())
    tell(outcome, plain=not as_json)
    return outcome.exit_code
