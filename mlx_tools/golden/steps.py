"""A run's records as the steps of a conversation, for a page that shows them.

The records are JSON and may come from anywhere: what is missing or unknown is shown as what it is,
nothing in them is obeyed, and nothing is not seen.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, Literal

from mlx_tools.golden.difference import NAMES, Difference

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
"""The author, or the nature, of a step: how it looks."""

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
    notes: Sequence[str] = ()
    words: str = ""
    blocks: Sequence[Block] = ()
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
    for given in records:
        record = given if isinstance(given, Mapping) else {}
        kind, call = as_text(record.get("type")), as_text(record.get("call"))
        if kind == "repair" and call in calls:
            noted = calls[call]
            noted.notes = [*noted.notes, f"repaired: {as_text(record.get('name'))}"]
            continue
        make = _MAKERS.get(kind)
        if make is None:
            blocks = _folds(("As it is", given))
            step = ReportStep("setup", "Record", kind or "of no kind", blocks=blocks)
        else:
            step = make(record)
        if kind == "golden" and not step.blocks:
            continue  # nothing is expected
        if kind == "user":
            question, turn = question + 1, 0
        own = record.get("turn")
        turn = own if isinstance(own, int) and not isinstance(own, bool) else turn
        step.type, step.question, step.turn, step.call = kind, question, turn, call
        if kind == "tool_call":
            calls[call] = step
        steps.append(step)
    for number, difference in enumerate(differences):
        if (place := _place(difference, steps)) is not None:
            place.differs.append(number)
    return steps


def folded(text: str, name: str = "", *, always: bool = False) -> Block:
    """A text as a block: folded where it is long, or ``always``, and cut where it is endless."""
    lines = text.count("\n") + 1
    long = always or len(text) > SHORT_CHARS or lines > SHORT_LINES
    size = f"{len(text):,} characters" + (f", {lines:,} lines" if lines > 1 else "")
    fold = (f"{name}: {size}" if name else size) if long else ""
    if len(text) <= MAX_CHARS:
        return Block(text, fold=fold)
    head, tail = text[: MAX_CHARS - TAIL], text[-TAIL:]
    return Block(head, fold=fold, left_out=len(text) - MAX_CHARS, tail=tail)


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
    if difference.what.startswith(("the output", "what is shown")):
        kind = "tool_observation"
    exact = [s for s in there if s.type == kind]
    if not exact and difference.room == "outcome" and not turn:
        return there[-1] if there else None
    return next(iter(exact or there), None)


# --- a step a record ---


def _folds(*named: tuple[str, Any]) -> list[Block]:
    """The values that there are, each as a folded text under its name."""
    return [
        folded(value if isinstance(value, str) else as_json(value, indent=2), name, always=True)
        for name, value in named
        if value
    ]


def _notes(*notes: tuple[Any, str]) -> list[str]:
    """The notes that hold: each behind what must be so."""
    return [note for holds, note in notes if holds]


def _header(r: _Json) -> ReportStep:
    tools = r.get("tools")
    count = len(tools) if isinstance(tools, list | tuple) else None
    notes = [as_text(r[key]) for key in ("style", "strategy") if r.get(key)]
    notes += _notes((count is not None, f"{count} tools" if count != 1 else "1 tool"))
    blocks = _folds(
        ("System prompt", as_text(r.get("system"))),
        ("Examples", _turns(r.get("examples"))),
        ("Earlier messages", _turns(r.get("history"))),
        *((key.capitalize(), r.get(key)) for key in ("tools", "policy", "limits")),
    )
    return ReportStep("setup", "Setup", as_text(r.get("model")), notes, blocks=blocks)


def _user(r: _Json) -> ReportStep:
    choice, tools = r.get("tool_choice"), r.get("tools")
    listed = tools if isinstance(tools, list | tuple) else [tools]
    told = "\n".join(map(as_text, listed)) if tools else ""
    blocks = [_prose(r.get("content")), *_folds(("Tools told of", told))]
    notes = _notes((choice, f"tool choice: {as_text(choice)}"))
    return ReportStep("user", "Question", notes=notes, blocks=blocks)


def _completion(r: _Json) -> ReportStep:
    reason, usage, strategy = r.get("finish_reason"), r.get("usage"), r.get("strategy")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    notes = _notes(
        (r.get("turn") is not None, f"turn {as_text(r.get('turn'))}"),
        (reason == "length", "cut off by its limit"),
        (reason not in (None, "stop", "length"), f"ended by {as_text(reason)}"),
        (strategy not in (None, "free"), as_text(strategy)),
        (tokens is not None, f"{as_text(tokens)} tokens"),
    )
    prefix, text = as_text(r.get("prefix")), as_text(r.get("text"))
    if strategy == "guided" and text.startswith(prefix):
        text = text[len(prefix) :]  # here the text has what both wrote
    blocks = _folds(("Thought", as_text(r.get("reasoning"))))
    if prefix or text:
        blocks.append(replace(folded(text, "Text"), prefix=prefix))
    if r.get("dropped"):
        blocks.append(folded(as_text(r["dropped"]), "Left unread"))
    added = "Prompt, what is added to it" if r.get("kept") else "Prompt"
    if r.get("prompt") is not None:
        blocks.append(folded(as_text(r["prompt"]), added, always=True))
    words, bad = "" if prefix or text else "nothing", bool(r.get("error"))
    words = _error(r["error"]) if bad else words
    return ReportStep("model", "Model wrote", "", [*notes, *_took(r)], words, blocks, bad)


def _mend(r: _Json) -> ReportStep:
    drawn = r.get("drawn")
    texts = "".join(map(as_text, drawn)) if isinstance(drawn, list | tuple) else ""
    named = (("What was drawn", texts), ("What was put", as_text(r.get("put"))))
    blocks = [folded(text, name) for name, text in named if text]
    notes = _notes((not r.get("put"), "asked again"))
    return ReportStep("host", "Mended", as_text(r.get("kind")), notes, blocks=blocks)


def _call(r: _Json) -> ReportStep:
    notes = _notes((r.get("echoed"), "copied out of an observation"))
    return ReportStep("call", _of("Call", r), as_text(r.get("name")), notes, blocks=_arguments(r))


def _decision(r: _Json) -> ReportStep:
    word = as_text(r.get("decision"))
    notes = _notes(
        (r.get("rule"), f"rule {as_text(r.get('rule'))}"), (r.get("code"), as_text(r.get("code")))
    )
    reason = as_text(r.get("reason"))
    return ReportStep("policy", _of("Policy", r), word, notes, reason, bad=word == "deny")


def _paused(r: _Json) -> ReportStep:
    calls = r.get("calls")
    listed = calls if isinstance(calls, list | tuple) else [calls]
    notes = list(filter(None, [", ".join(map(as_text, listed))]))
    return ReportStep("person", "Waits", "for a person", notes)


def _approval(r: _Json) -> ReportStep:
    said = "approved" if r.get("approved") is True else "refused"
    notes = _notes((r.get("scope") == "session", "for the session"))
    reason = as_text(r.get("reason"))
    return ReportStep("person", _of("Person", r), said, notes, reason, bad=said == "refused")


def _summary(r: _Json) -> ReportStep:
    parts = r.get("parts")
    told = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    lines = (f"[from {as_text(p.get('offset'))}] {as_text(p.get('summary'))}" for p in told)
    blocks = [folded("\n".join(lines))] if told else []
    notes = _notes((r.get("problem"), as_text(r.get("problem"))))
    return ReportStep("model", _of("Summary", r), "of a long output", notes, blocks=blocks)


def _compacted(r: _Json) -> ReportStep:
    notes = [f"{as_text(r[key])} tokens {key}" for key in ("before", "after") if key in r]
    observations = r.get("observations")
    texts = [as_text(r.get("content"))]
    if isinstance(observations, Mapping):
        texts.append("\n".join(f"{c}: {as_text(o)}" for c, o in observations.items()))
    blocks = [folded(text) for text in texts if text]
    return ReportStep("host", "Compacted", as_text(r.get("reason")), notes, blocks=blocks)


def _observation(r: _Json) -> ReportStep:
    error, size = r.get("error"), r.get("output_size_chars")
    more = size is not None and size != len(as_text(r.get("content")))
    notes = _notes((more, f"{as_text(size)} characters in all"), (r.get("artifact"), "kept whole"))
    blocks = [folded(as_text(r["content"]))] if r.get("content") is not None else []
    if r.get("whole") is not None:
        blocks.append(folded(as_text(r["whole"]), "The whole output", always=True))
    words, bad = "" if error is None else _error(error), error is not None
    name = as_text(r.get("name"))
    return ReportStep("tool", _of("Result", r), name, [*_took(r), *notes], words, blocks, bad)


def _answer(r: _Json) -> ReportStep:
    flags = {"bare_text": "plain text", "truncated": "cut off", "call_like": "looks like a call"}
    notes = [said for flag, said in flags.items() if r.get(flag)]
    blocks = [_prose(r.get("content"))]
    if r.get("sources"):
        blocks.append(folded(as_json(r["sources"], indent=2), "Sources"))
    return ReportStep("answer", "Answer", notes=notes, blocks=blocks)


def _stopped(r: _Json) -> ReportStep:
    waiting = _notes((r.get("waiting_for"), f"waiting for the {as_text(r.get('waiting_for'))}"))
    partial = as_text(r.get("partial"))
    blocks = [folded(partial, "What had come")] if partial else []
    reason, message = as_text(r.get("reason")), as_text(r.get("message"))
    return ReportStep("end", "Stopped", reason, waiting, message, blocks, bad=True)


_MAKERS: Final[Mapping[str, Callable[[_Json], ReportStep]]] = {
    "header": _header,
    "golden": lambda r: ReportStep(
        "setup", "Expected", blocks=_folds(("What is expected", r.get("expect")))
    ),
    "user": _user,
    "mend": _mend,
    "completion": _completion,
    "tool_call": _call,
    "repair": lambda r: ReportStep("call", _of("Repair", r), as_text(r.get("name"))),
    "decision": _decision,
    "paused": _paused,
    "edited": lambda r: ReportStep(
        "person", _of("Person", r), "edited the call", blocks=_arguments(r)
    ),
    "approval": _approval,
    "resumed": lambda r: ReportStep("host", "Resumed", "by another process"),
    "execution_started": lambda r: ReportStep(
        *("host", _of("Runs", r), "the tool starts"),
        notes=_notes((r.get("mutates"), "can change things")),
    ),
    "nested_run": lambda r: ReportStep(
        "host", _of("Runs", r), "asks the model", [f"time {as_text(r.get('run'))}"]
    ),
    "summary": _summary,
    "compacted": _compacted,
    "tool_observation": _observation,
    "correction": lambda r: ReportStep(
        *("host", "Corrected", ""),
        notes=_notes((r.get("forged"), "an observation was forged")),
        words=_error(r.get("error")),
        bad=True,
    ),
    "final_answer": _answer,
    "stopped": _stopped,
}


def _of(label: str, record: _Json) -> str:
    call = as_text(record.get("call"))
    return f"{label} {call}" if call else label


def _arguments(record: _Json) -> list[Block]:
    value = record.get("arguments")
    line = as_json(value)
    return [Block(line) if len(line) <= ON_ONE_LINE else folded(as_json(value, indent=2))]


def _prose(value: Any) -> Block:
    return replace(folded(as_text(value)), prose=True, fold="")


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


# --- texts of others as they may be shown ---------------------------------------------------------
#
# A character that shows nothing, or turns the text around it, is written by its number, U+202E:
# control characters, marks of direction, halves of surrogate pairs, fillers, blanks that are no
# plain space, and marks beyond what one letter carries. Line ends and tabs stay.

MAX_MARKS: Final = 4
"""Marks that may stand on one letter; more of them paint over the lines around it."""

MAX_NAME: Final = 160
"""Characters of a name that are shown."""

_UNSEEN: Final = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"))
_FILLERS: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159\u180b-\u180f"
    "\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Characters of categories that are seen, and that are not: fillers, variation selectors."""

_JOINERS: Final = frozenset("\u200c\u200d\ufe0e\ufe0f")
"""Characters that scripts and emoji need between, or behind, their own."""

_NOT_PLAIN: Final = re.compile(r"[^ -~\n\t]+")


def pieces(text: str) -> Iterator[tuple[bool, str]]:
    """The text in stretches: True with one that stays as it is, False with a character, however
    often in a row, that is to be written by its number. Joined they are the text."""
    end = 0
    for found in _NOT_PLAIN.finditer(text):
        if found.start() > end:
            yield True, text[end : found.start()]
        judged = _judged(found[0], text[found.start() - 1 : found.start()])
        for (seen, _), own in groupby(judged, key=lambda each: each[0]):
            yield seen, "".join(char for _, char in own)
        end = found.end()
    if end < len(text):
        yield True, text[end:]


def by_number(run: str) -> str:
    """The number of a character that is not seen, and how often it stands there."""
    number = f"U+{ord(run[0]):04X}"
    return number if len(run) == 1 else f"{number}×{len(run)}"


def brief(value: Any) -> str:
    """A value as a text that is a name, or a few words: cut where it is neither."""
    text = as_text(value)
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


def spelled(text: str) -> str:
    """The text, with the number of each character that is not seen in its place."""
    return "".join(part if seen else by_number(part) for seen, part in pieces(text))


def as_text(value: Any) -> str:
    """A value of a record as a text: texts as they are, nothing where there is none, else JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else as_json(value)


def as_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON, whatever it is."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)
    except RecursionError:
        return "(nested too deeply to be shown)"
    except (ValueError, TypeError):  # it holds itself, or keys that are no JSON
        return repr(value)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _judged(text: str, before: str) -> Iterable[tuple[tuple[bool, str], str]]:
    """Each character of a stretch behind what it is grouped by: whether it stays, and itself where
    not. ``before`` is the character in front of it, if there is one."""
    marks, last = 0, before
    for place, char in enumerate(text):
        kind = unicodedata.category(char)
        if char in _JOINERS:
            seen = _joins(char, last, text[place + 1 : place + 2])
        elif _FILLERS.match(char):
            seen = False
        elif kind[0] == "M":
            marks += 1
            seen = bool(last.strip()) and marks <= MAX_MARKS
        else:
            seen, marks = kind not in _UNSEEN, 0
        yield (seen, "" if seen else char), char
        last = char


def _joins(char: str, before: str, after: str) -> bool:
    """True where a joiner stands where scripts and emoji have one."""
    if not before or (before.isascii() and char not in "\ufe0e\ufe0f") or before in _JOINERS:
        # Digits have a variation too (keycaps); two joiners in a row say nothing.
        return before == "\ufe0f" and char == "\u200d" and bool(after) and not after.isascii()
    if char in "\ufe0e\ufe0f":
        return before in "#*0123456789" if before.isascii() else True
    return bool(after) and not after.isascii() and after not in _JOINERS
