"""Sessions to test with: small headers, tools and the completions that bring each state about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from mlx_tools import Answered, Controller
from mlx_tools.controller import Session, SessionInputs, Write
from mlx_tools.messages import Effects, FinishReason, ToolSpec
from mlx_tools.policy import Limits, Policy
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store import load_words
from mlx_tools.store.transcript import encode, load
from mlx_tools.testing import ScriptedBackend, call
from mlx_tools.transcript import Outcome, events
from mlx_tools.transcript.records import (
    CompletionRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    PauseRecord,
    Record,
    StoppedRecord,
    UserRecord,
)


def spec(name: str, effects: Effects = frozenset({"read"}), **more: Any) -> ToolSpec:
    """Return a tool with one optional argument ``x``."""
    parameters = {"type": "object", "properties": {"x": {}}, "additionalProperties": False}
    return ToolSpec(name, f"does {name}", parameters, effects, **more)


SPECS: Mapping[str, ToolSpec] = {
    s.name: s
    for s in (
        spec("look"),
        spec("peek"),
        spec("write", frozenset({"write"})),
        spec("run", frozenset({"execute"})),
        spec("careful", needs_approval=True),
    )
}


def header(policy: Policy | None = None, limits: Limits | None = None, **more: Any) -> Header:
    """Return a header of a session that may call every tool without approval."""
    return Header(
        **{
            "session": "s",
            "created": "",
            "chat_format": NAMED_FORMATS["chatml"].to_json(),
            "policy": (policy or Policy(allow=["*"], ask_effects=())).to_json(),
            "limits": (limits or Limits()).to_json(),
            "system": "Be good.",
            **more,
        }
    )


def open_session(
    *records: Record, policy: Policy | None = None, limits: Limits | None = None, **more: Any
) -> Session:
    """Return a session with a header and ``records``."""
    return fold_session(header(policy, limits, **more), *records)


def fold_session(*records: Record, **inputs: Any) -> Session:
    """Return a session with ``records``, of which the first is a header."""
    inputs = {"specs": SPECS, "words": load_words()} | inputs
    return Session.from_records(records, SessionInputs(**inputs))


def completion(
    turn: int, text: str, finish_reason: FinishReason | None = "stop", prefix: str = ""
) -> CompletionRecord:
    """Return a completion as the controller records it."""
    return CompletionRecord(
        turn=turn,
        prefix=prefix,
        text=text,
        retained_text=prefix + text,
        finish_reason=finish_reason,
    )


def settle(session: Session) -> list[Record]:
    """Append the records that the session writes by itself, and return them."""
    written: list[Record] = []
    while isinstance(due := session.next_step(), Write):
        for record in due.records:
            session.apply(record)
            written.append(record)
    return written


def say(session: Session, *lines: str) -> list[Record]:
    """Add a completion with ``lines``, and then the records that follow by themselves."""
    session.apply(completion(session.turn + 1, "\n".join(lines)))
    return settle(session)


def make_ran_records(call: str, name: str, content: str = "seen") -> Sequence[Record]:
    """Return the records of a call that ran."""
    return (
        ExecutionRecord(call=call, mutates=SPECS[name].mutates({})),
        ObservationRecord(call=call, name=name, content=content),
    )


def make_session_in_state(state: str) -> Session:
    """Return a session in a state after its header."""
    session = open_session()
    if state == "idle":
        return session
    session.apply(UserRecord(content="hello"))
    if state == "reading":
        session.apply(completion(1, call("look", x=1)))
    elif state == "calling":
        say(session, call("look", x=1))
    elif state == "paused":
        say(session, call("careful"))
        session.apply(PauseRecord(calls=("c1",), digests=("d",), expires_at=""))
    elif state == "stopped":
        session.apply(StoppedRecord(reason="interrupted"))
    return session


# --- runs, and transcripts that somebody has been at ----------------------------------------------


def resume_session(controller: Controller, session: str | Path, approvals: Any = None) -> Any:
    """Resume a session, and return its outcome."""

    async def go() -> Outcome:
        return await controller.resume(session, approvals=approvals)

    return anyio.run(go)


def collect_events(controller: Controller, question: str = "What happened?") -> list[events.Event]:
    """Run a question, and return its events. The outcome is the last one."""

    async def go() -> list[events.Event]:
        return [event async for event in controller.stream(question)]

    return anyio.run(go)


def ask_questions(controller: Controller, *questions: str) -> list[Outcome]:
    """Ask questions in one conversation, and return their outcomes."""

    async def go() -> list[Outcome]:
        async with await controller.conversation() as conversation:
            return [await conversation.run(question) for question in questions]

    return anyio.run(go)


def require_answer(outcome: Outcome) -> Answered:
    """Return the outcome, which must be an answer."""
    assert isinstance(outcome, Answered), outcome
    return outcome


def list_prompts(controller: Controller) -> list[str]:
    """Return the prompts that a scripted model got."""
    assert isinstance(controller.backend, ScriptedBackend)
    return controller.backend.prompts


def read_records(outcome: Outcome, *kinds: type[Record]) -> list[Any]:
    """Return the records of a run's transcript, all or those of some types."""
    return [r for r in load(Path(outcome.transcript or "")) if isinstance(r, kinds or object)]


def cut_transcript(path: Path, number: int) -> None:
    """Keep the first records of a transcript, as after a crash."""
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:number]) + b"\n")


def rewrite_records(path: Path, change: Callable[[Any], Record]) -> None:
    """Change the records of a transcript."""
    path.write_text("".join(encode(change(record)) + "\n" for record in load(path)))


def add_record(path: Path, record: Record) -> None:
    """Append a record to a transcript."""
    with path.open("a") as out:
        out.write(encode(record) + "\n")
