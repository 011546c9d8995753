"""A transcript is a file that anybody may have changed: whatever stands in it, to go on with it
works, or is refused in one line."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import ApprovalAnswer, Controller, Outcome, Policy, TranscriptStore, tool
from mlx_tools.controller import ApprovalRequest, Approvals, RunSettings
from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.policy import Limits
from mlx_tools.testing import answer, call
from mlx_tools.tools import ToolContext

Value = Any
Place = tuple[Any, ...]

OTHER: Sequence[Value] = (
    *(None, True, 5, -1, 0.5, 10**30, 10**400, 1e308, "", "zzz", "c1", "allow", "ask", "\ud800"),
    *([], [1], [[]], [{}], ["c9"], {}, {"a": "b"}, "0001-01-01T00:00:00+00:00", "2026-01-01"),
)


@tool(effects={"read"})
def look(at: str) -> str:
    """Looks at a thing."""
    return f"seen: {at}"


@tool(effects={"write"}, needs_approval=True)
def send(text: str) -> str:
    """Sends a text."""
    return "it is sent"


@tool(effects={"read"})
async def consult(about: str, context: ToolContext) -> str:
    """Asks the model about a thing."""
    return f"it says: {await context.ask(f'Tell of {about}')}"


async def model(prompt: str) -> str:
    """Looks, writes what is no call, sends, consults (and sends within) and answers."""
    done = answer("all done")
    if "Tell of tea" in prompt and "Do all" not in prompt:
        return done if "x-child" in prompt else call("send", text="x-child")
    steps = {
        "x-this": call("look", at="x-this") + "\n" + call("look", at="that"),
        "x-bad": '{"type": "tool_call", "name": "look", "arguments": {"x-bad": "',
        "x-sent": call("send", text="x-sent").replace('"', "'"),
        "x-tea": call("consult", about="tea x-tea"),
    }
    return next((text for mark, text in steps.items() if mark not in prompt), done)


class Person:
    """Approves what the run itself asks; what is asked within a call is decided as ``within``."""

    def __init__(self, within: bool | None) -> None:
        self._within = within

    async def decide(self, requests: Sequence[ApprovalRequest]) -> list[ApprovalAnswer]:
        return [ApprovalAnswer(True if "/" not in r.call else self._within) for r in requests]


def controller(folder: Path, approver: Any = None) -> Controller:
    return Controller(
        model,
        [look, send, consult],
        Policy(allow=["*"], rate_limits={"look": "100/hour"}, network_after_read="ask"),
        limits=Limits(max_iterations=9),
        settings=RunSettings(strategy="free"),  # a line that is no call is to be corrected
        store=TranscriptStore(folder),
        approver=approver,
    )


class Session:
    """A session whose transcript is changed again and again; those within its calls stay."""

    def __init__(self, folder: Path, approver: Any) -> None:
        self.folder = folder
        outcome = controller(folder, approver).run_sync("Do all")
        self.path = Path(str(outcome.transcript))
        self._texts = {path: path.read_text() for path in folder.glob("*/transcript.jsonl")}
        self.lines = self._texts[self.path].splitlines()
        self.pending = [one["call_id"] for one in outcome.to_json().get("pending", ())]

    def resume(self, lines: Sequence[str], approvals: Approvals) -> Outcome:
        for path, text in self._texts.items():
            path.write_text(text)
        self.path.write_text("".join(f"{line}\n" for line in lines))
        again = controller(self.folder)
        return anyio.run(lambda: again.resume(self.path, approvals=approvals))

    def changed(self, number: int, place: Place, new: Value) -> list[str]:
        """The lines, with another value in that of the record ``number``."""
        record = json.dumps(put(json.loads(self.lines[number]), place, new))
        return [*self.lines[:number], record, *self.lines[number + 1 :]]

    def find(self, kind: str) -> int:
        """The number of the last record of this type."""
        return max(n for n, line in enumerate(self.lines) if json.loads(line)["type"] == kind)


DROP = object()


def put(value: Value, place: Place, new: Value) -> Value:
    """The value with another one at a place in it, or without the one that stands there."""
    key, *rest = place
    out = dict(value) if isinstance(value, Mapping) else list(value)
    if rest:
        out[key] = put(out[key], tuple(rest), new)
    elif new is DROP:
        del out[key]
    else:
        out[key] = new
    return out


def places(value: Value, above: Place = ()) -> Iterator[tuple[Place, Value]]:
    """Every place in a record's value, with what stands there."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        yield (*above, key), part
        if isinstance(part, dict | list):
            yield from places(part, (*above, key))


def near(value: Value) -> list[Value]:
    """Values that are nearly the same."""
    if isinstance(value, str):
        return [value + "x", value[:-1]]
    if isinstance(value, list):
        return [value[:-1], [*value, *value[:1]], value[::-1]]
    return [value + 1] if isinstance(value, int) else []


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> list[Session]:
    """One that waits, one that waits for a decision within a call, one that has its answer."""
    people = (None, Person(None), Person(True))
    return [Session(tmp_path_factory.mktemp("sessions"), person) for person in people]


def test_whatever_is_changed_a_session_goes_on_or_is_refused_in_one_line(
    sessions: list[Session],
) -> None:
    pick = random.Random(5)
    went_on = 0
    for _ in range(250):
        session = pick.choice(sessions)
        number = pick.randrange(len(session.lines))
        if pick.random() < 0.4:
            number = session.find(pick.choice(["paused", "user", "tool_call", "decision"]))
        place, old = pick.choice(list(places(json.loads(session.lines[number]))))
        new = pick.choice([DROP, *OTHER, *near(old), *near(old)])
        lines = session.changed(number, place, new)[: pick.choice([None, None, number + 1])]
        said: list[Approvals] = [None, True, False, dict.fromkeys(session.pending, True)]
        try:
            outcome = session.resume(lines, pick.choice(said))
        except (TranscriptError, UsageError) as error:
            assert error.exit_code == 2 and "\n" not in str(error), (number, place, new)
        else:
            went_on += 1
            assert getattr(outcome, "reason", "") != "internal_error", (number, place, new)
            json.dumps(outcome.to_json())
    assert went_on > 25


@pytest.mark.parametrize(
    ("which", "kind", "place", "new"),
    [
        (0, "user", ("content",), " "),
        (0, "paused", ("calls",), []),
        (0, "paused", ("digests",), []),
        (1, "paused", ("within", 0, "call_id"), 5),
        (1, "paused", ("within", 0, "call_id"), []),
        (1, "paused", ("within", 0, "name"), DROP),
        (1, "paused", ("within", 0, "zz"), 1),
        (0, "header", ("policy", "allow"), 5),
        (0, "header", ("limits", "total_timeout"), "x"),
    ],
)
@pytest.mark.parametrize("approvals", [None, True, "pending"])
def test_what_cannot_be_right_is_damage(
    sessions: list[Session], which: int, kind: str, place: Place, new: Value, approvals: Any
) -> None:
    session = sessions[which]
    said = dict.fromkeys(session.pending, True) if approvals == "pending" else approvals
    with pytest.raises(TranscriptError):
        session.resume(session.changed(session.find(kind), place, new), said)


@pytest.mark.parametrize(
    ("which", "place", "new"),
    [
        (0, ("at",), "0001-01-01T00:00:00+00:00"),
        (0, ("digests", 0), "\ud800"),
        (1, ("seal",), "\ud800"),
    ],
)
def test_an_approval_of_what_was_changed_is_refused(
    sessions: list[Session], which: int, place: Place, new: Value
) -> None:
    session = sessions[which]
    lines = session.changed(session.find("paused"), place, new)
    with pytest.raises(UsageError):
        session.resume(lines, dict.fromkeys(session.pending, True))
