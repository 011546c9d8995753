"""A run's records as the steps of a conversation, for a page that shows them.

The records are JSON and may come from anywhere: what is missing or unknown is shown as what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mlx_tools.golden.difference import Difference
from mlx_tools.golden.texts import NAMES
from mlx_tools.golden.visible import as_json, as_text

MAX_CHARS: Final = 20_000
"""Characters of one text that are shown: most from its beginning, some from its end."""

TAIL: Final = 4_000
SHORT_CHARS: Final = 700
SHORT_LINES: Final = 14
"""Longer observations, and long texts of any kind, are folded."""

ON_ONE_LINE: Final = 72
"""Arguments that are no longer stand on the line of their call."""

Kind = Literal[
    "setup", "user", "model", "call", "policy", "person", "tool", "host", "answer", "end"
]
"""Who, or what, a step is of: how it looks."""

_Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    """A text of a step. ``prefix`` is what the host wrote in front of it. ``fold`` is what stands
    on a folded text, empty for one that is open. ``left_out`` characters stood before ``tail``."""

    text: str
    prose: bool = False
    fold: str = ""
    prefix: str = ""
    left_out: int = 0
    tail: str = ""


@dataclass(slots=True)
class ReportStep:
    """One step. ``notes`` are said beside its ``title``, ``words`` below it. ``bad``: something
    went wrong. ``differs`` are the numbers of the differences that arise here."""

    kind: Kind
    label: str
    title: str = ""
    notes: list[str] = field(default_factory=list)
    words: str = ""
    blocks: list[Block] = field(default_factory=list)
    bad: bool = False
    type: str = ""
    question: int = 0
    turn: int = 0
    call: str = ""
    differs: list[int] = field(default_factory=list)


def steps_of(records: Sequence[Any], differences: Sequence[Difference] = ()) -> list[ReportStep]:
    """The steps of a run, and at which of them its differences arise."""
    steps: list[ReportStep] = []
    calls: dict[str, ReportStep] = {}
    question = turn = 0
    for record in records:
        kind = record.get("type") if isinstance(record, Mapping) else None
        if kind == "repair" and (call := calls.get(as_text(record.get("call")))) is not None:
            call.notes.append(f"repaired: {as_text(record.get('name'))}")
            continue
        made = _MAKERS.get(kind) if isinstance(kind, str) else None
        for step in made(record) if made is not None else _unknown(record):
            if kind == "user":
                question, turn = question + 1, 0
            turn = _turn_of(record, turn)
            step.type, step.question, step.turn = as_text(kind), question, turn
            if isinstance(record, Mapping):
                step.call = as_text(record.get("call"))
            if kind == "tool_call":
                calls[step.call] = step
            steps.append(step)
    for number, difference in enumerate(differences):
        if (place := _place(difference, steps)) is not None:
            place.differs.append(number)
    return steps


def folded(text: str, name: str = "", *, prose: bool = False, always: bool = False) -> Block:
    """A text as a block: folded where it is long, or ``always``, and cut where it is endless."""
    lines = text.count("\n") + 1
    long = always or len(text) > SHORT_CHARS or lines > SHORT_LINES
    size = f"{len(text):,} characters" + (f", {lines:,} lines" if lines > 1 else "")
    fold = (f"{name}: {size}" if name else size) if long else ""
    if len(text) <= MAX_CHARS:
        return Block(text, prose, fold)
    head, tail = text[: MAX_CHARS - TAIL], text[-TAIL:]
    return Block(head, prose, fold, left_out=len(text) - MAX_CHARS, tail=tail)


_WHERE: Final = re.compile(
    r"(?:question (\d{1,9}))?,? ?(?:turn (\d{1,9}))?,? ?(?:call (.+))?", re.S
)
_OF: Final = {name: kind for kind, name in NAMES.items()}


def _place(difference: Difference, steps: Sequence[ReportStep]) -> ReportStep | None:
    """The step that a difference is told of."""
    found = _WHERE.fullmatch(difference.where)
    if found is None or not difference.where:
        return None
    question, turn, call = int(found[1] or 1), int(found[2] or 0), found[3]
    there = [s for s in steps if s.question == question]
    if call:  # its turn is the one before, where the record says none
        there = [s for s in there if s.call == call]
    elif turn:
        there = [s for s in there if s.turn == turn]
    kind = _OF.get(difference.what)
    exact = [s for s in there if s.type == kind]
    if difference.what.startswith(("the output", "what is shown")):
        exact = [s for s in there if s.type == "tool_observation"]
    if not exact and difference.room == "outcome" and not turn:
        return there[-1] if there else None
    return next(iter(exact or there), None)


def _turn_of(record: Any, before: int) -> int:
    turn = record.get("turn") if isinstance(record, Mapping) else None
    return turn if isinstance(turn, int) and not isinstance(turn, bool) else before


# --- a step or two a record ---


def _header(r: _Json) -> Iterator[ReportStep]:
    notes = [as_text(r[key]) for key in ("style", "strategy") if r.get(key)]
    tools = r.get("tools")
    if isinstance(tools, Sequence) and not isinstance(tools, str):
        notes.append(f"{len(tools)} tools" if len(tools) != 1 else "1 tool")
    step = ReportStep("setup", "Setup", as_text(r.get("model")), notes)
    if r.get("system"):
        step.blocks.append(folded(as_text(r["system"]), "System prompt", always=True))
    if examples := _turns(r.get("examples")):
        step.blocks.append(folded(examples, "Examples", always=True))
    if history := _turns(r.get("history")):
        step.blocks.append(folded(history, "Earlier messages", always=True))
    for key, name in (("tools", "Tools"), ("policy", "Policy"), ("limits", "Limits")):
        if r.get(key):
            step.blocks.append(folded(as_json(r[key], indent=2), name, always=True))
    yield step


def _golden(r: _Json) -> Iterator[ReportStep]:
    if r.get("expect"):
        wanted = folded(as_json(r["expect"], indent=2), "What is expected", always=True)
        yield ReportStep("setup", "Expected", blocks=[wanted])


def _user(r: _Json) -> Iterator[ReportStep]:
    notes = [f"tool choice: {as_text(r['tool_choice'])}"] if r.get("tool_choice") else []
    step = ReportStep("user", "Question", "", notes, blocks=[_prose(r.get("content"))])
    if tools := r.get("tools"):
        listed = tools if isinstance(tools, list | tuple) else [tools]
        step.blocks.append(folded("\n".join(map(as_text, listed)), "Tools told of", always=True))
    yield step


def _completion(r: _Json) -> Iterator[ReportStep]:
    notes = [f"turn {as_text(r.get('turn'))}"] if r.get("turn") is not None else []
    if r.get("finish_reason") == "length":
        notes.append("cut off by its limit")
    elif r.get("finish_reason") not in (None, "stop"):
        notes.append(f"ended by {as_text(r['finish_reason'])}")
    if r.get("strategy") not in (None, "free"):
        notes.append(as_text(r["strategy"]))
    usage = r.get("usage")
    if isinstance(usage, Mapping) and usage.get("completion_tokens") is not None:
        notes.append(f"{as_text(usage['completion_tokens'])} tokens")
    notes += _took(r)
    step = ReportStep("model", "Model wrote", "", notes)
    if r.get("reasoning"):
        step.blocks.append(folded(as_text(r["reasoning"]), "Thought", always=True))
    prefix, text = as_text(r.get("prefix")), as_text(r.get("text"))
    if r.get("strategy") == "guided" and text.startswith(prefix):
        text = text[len(prefix) :]  # here the text has what both wrote
    whole = folded(text, "Text")
    if prefix or text:
        whole = Block(whole.text, False, whole.fold, prefix, whole.left_out, whole.tail)
        step.blocks.append(whole)
    else:
        step.words = "nothing"
    if dropped := r.get("dropped"):
        step.blocks.append(folded(as_text(dropped), "Left unread"))
    if r.get("error"):
        step.words, step.bad = _error(r["error"]), True
    if r.get("prompt") is not None:
        asked = as_text(r["prompt"])
        name = "Prompt, what is added to it" if r.get("kept") else "Prompt"
        step.blocks.append(folded(asked, name, always=True))
    yield step


def _mend(r: _Json) -> Iterator[ReportStep]:
    notes = [] if r.get("put") else ["asked again"]
    step = ReportStep("host", "Mended", as_text(r.get("kind")), notes)
    drawn = r.get("drawn")
    for name, text in (
        ("What was drawn", "".join(map(as_text, drawn)) if isinstance(drawn, list | tuple) else ""),
        ("What was put", as_text(r.get("put"))),
    ):
        if text:
            step.blocks.append(folded(text, name))
    yield step


def _call(r: _Json) -> Iterator[ReportStep]:
    notes = ["copied out of an observation"] if r.get("echoed") else []
    step = ReportStep("call", _of("Call", r), as_text(r.get("name")), notes)
    step.blocks.append(_arguments(r.get("arguments")))
    yield step


def _repair(r: _Json) -> Iterator[ReportStep]:
    yield ReportStep("call", _of("Repair", r), as_text(r.get("name")))


def _decision(r: _Json) -> Iterator[ReportStep]:
    word = as_text(r.get("decision"))
    notes = [f"rule {as_text(r['rule'])}"] if r.get("rule") else []
    notes += [as_text(r["code"])] if r.get("code") else []
    reason = as_text(r.get("reason"))
    yield ReportStep("policy", _of("Policy", r), word, notes, reason, bad=word == "deny")


def _paused(r: _Json) -> Iterator[ReportStep]:
    calls = r.get("calls")
    named = ", ".join(map(as_text, calls)) if isinstance(calls, list | tuple) else as_text(calls)
    yield ReportStep("person", "Waits", "for a person", [named] if named else [])


def _edited(r: _Json) -> Iterator[ReportStep]:
    step = ReportStep("person", _of("Person", r), "edited the call")
    step.blocks.append(_arguments(r.get("arguments")))
    yield step


def _approval(r: _Json) -> Iterator[ReportStep]:
    said = "approved" if r.get("approved") is True else "refused"
    notes = ["for the session"] if r.get("scope") == "session" else []
    reason = as_text(r.get("reason"))
    yield ReportStep("person", _of("Person", r), said, notes, reason, bad=said == "refused")


def _resumed(r: _Json) -> Iterator[ReportStep]:
    yield ReportStep("host", "Resumed", "by another process")


def _started(r: _Json) -> Iterator[ReportStep]:
    notes = ["can change things"] if r.get("mutates") else []
    yield ReportStep("host", _of("Runs", r), "the tool starts", notes)


def _nested(r: _Json) -> Iterator[ReportStep]:
    yield ReportStep("host", _of("Runs", r), "asks the model", [f"time {as_text(r.get('run'))}"])


def _summary(r: _Json) -> Iterator[ReportStep]:
    notes = [as_text(r["problem"])] if r.get("problem") else []
    step = ReportStep("model", _of("Summary", r), "of a long output", notes)
    parts = r.get("parts")
    told = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    if told:
        lines = (f"[from {as_text(p.get('offset'))}] {as_text(p.get('summary'))}" for p in told)
        step.blocks.append(folded("\n".join(lines)))
    yield step


def _compacted(r: _Json) -> Iterator[ReportStep]:
    notes = [f"{as_text(r[key])} tokens {key}" for key in ("before", "after") if key in r]
    step = ReportStep("host", "Compacted", as_text(r.get("reason")), notes)
    if r.get("content"):
        step.blocks.append(folded(as_text(r["content"])))
    observations = r.get("observations")
    if isinstance(observations, Mapping) and observations:
        step.blocks.append(folded("\n".join(f"{c}: {as_text(o)}" for c, o in observations.items())))
    yield step


def _observation(r: _Json) -> Iterator[ReportStep]:
    error = r.get("error")
    notes = _took(r)
    if (size := r.get("output_size_chars")) is not None and size != len(as_text(r.get("content"))):
        notes.append(f"{as_text(size)} characters in all")
    if r.get("artifact"):
        notes.append("kept whole")
    step = ReportStep(
        "tool", _of("Result", r), as_text(r.get("name")), notes, bad=error is not None
    )
    if error is not None:
        step.words = _error(error)
    if r.get("content") is not None:
        step.blocks.append(folded(as_text(r["content"])))
    if r.get("whole") is not None:
        step.blocks.append(folded(as_text(r["whole"]), "The whole output", always=True))
    yield step


def _correction(r: _Json) -> Iterator[ReportStep]:
    notes = ["an observation was forged"] if r.get("forged") else []
    yield ReportStep("host", "Corrected", "", notes, _error(r.get("error")), bad=True)


def _answer(r: _Json) -> Iterator[ReportStep]:
    notes = ["plain text"] if r.get("bare_text") else []
    notes += ["cut off"] if r.get("truncated") else []
    notes += ["looks like a call"] if r.get("call_like") else []
    step = ReportStep("answer", "Answer", "", notes, blocks=[_prose(r.get("content"))])
    if r.get("sources"):
        step.blocks.append(folded(as_json(r["sources"], indent=2), "Sources"))
    yield step


def _stopped(r: _Json) -> Iterator[ReportStep]:
    waiting = [f"waiting for the {as_text(r['waiting_for'])}"] if r.get("waiting_for") else []
    message = as_text(r.get("message"))
    step = ReportStep("end", "Stopped", as_text(r.get("reason")), waiting, message, bad=True)
    if r.get("partial"):
        step.blocks.append(folded(as_text(r["partial"]), "What had come"))
    yield step


def _unknown(r: Any) -> Iterator[ReportStep]:
    kind = r.get("type") if isinstance(r, Mapping) else None
    text = folded(as_json(r, indent=2), "As it is", always=True)
    yield ReportStep("setup", "Record", as_text(kind) or "of no kind", blocks=[text])


_MAKERS: Final[Mapping[str, Callable[[_Json], Iterable[ReportStep]]]] = {
    "header": _header,
    "golden": _golden,
    "user": _user,
    "mend": _mend,
    "completion": _completion,
    "tool_call": _call,
    "repair": _repair,
    "decision": _decision,
    "paused": _paused,
    "edited": _edited,
    "approval": _approval,
    "resumed": _resumed,
    "execution_started": _started,
    "nested_run": _nested,
    "summary": _summary,
    "compacted": _compacted,
    "tool_observation": _observation,
    "correction": _correction,
    "final_answer": _answer,
    "stopped": _stopped,
}


def _of(label: str, record: _Json) -> str:
    call = as_text(record.get("call"))
    return f"{label} {call}" if call else label


def _arguments(value: Any) -> Block:
    line = as_json(value)
    return Block(line) if len(line) <= ON_ONE_LINE else folded(as_json(value, indent=2))


def _prose(value: Any) -> Block:
    block = folded(as_text(value), prose=True)
    return Block(block.text, True, "", "", block.left_out, block.tail)


def _error(value: Any) -> str:
    if isinstance(value, Mapping):
        return ": ".join(as_text(value[key]) for key in ("code", "message") if value.get(key))
    return as_text(value)


def _took(record: _Json) -> list[str]:
    took = record.get("duration_ms")
    return [f"{as_text(took)} ms"] if took is not None else []


def _turns(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return as_text(value)
    return "\n".join(
        f"{as_text(turn.get('role'))}: {as_text(turn.get('content'))}"
        if isinstance(turn, Mapping)
        else as_text(turn)
        for turn in value
    )
