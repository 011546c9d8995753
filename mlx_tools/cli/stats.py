"""`mlx-tools stats`: questions and calls of all sessions, by model and by tool."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from mlx_tools.cli.call_text import escape_line, escape_name
from mlx_tools.cli.options import AsJson, option
from mlx_tools.cli.output import count_noun, note, print_json, print_text, progress_counter, table
from mlx_tools.cli.saved_sessions import open_user_store
from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.store import SessionStore, find_question_time
from mlx_tools.transcript import Counters, CounterSum, Record, UserRecord, count

app = typer.Typer(add_completion=False)

NO_MODEL: Final = "no model"
"""The name under which calls without a model are counted."""

_UNITS: Final = {"h": "hours", "d": "days", "w": "weeks"}
_MAX_NAMED: Final = 5
"""Damaged sessions that are named to a person; `--json` names all."""


@app.command()
def stats(
    begin_text: Annotated[
        str,
        option("--since WHEN", "Only what was asked since: 12h, 7d, 4w, or a date (2026-11-01)."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Count the questions and calls of all sessions, and how they ended."""
    store = open_user_store()
    begin = _moment(begin_text, datetime.now(UTC)) if begin_text else None
    sessions, models, damaged = _count_all(store, begin)
    if as_json:
        print_json(
            {
                "since": begin.isoformat(timespec="seconds") if begin else None,
                "sessions": sessions,
                "damaged": [{"session": name, "reason": why} for name, why in damaged.items()],
                "total": sum(models.values(), Counters()).to_json(),
                "models": {name: one.to_json() for name, one in models.items()},
            }
        )
        return
    for line in _lines(sessions, models):
        print_text(line)
    if damaged:
        named = ", ".join([*damaged][:_MAX_NAMED]) + (", …" if len(damaged) > _MAX_NAMED else "")
        note(
            f"{count_noun(len(damaged), 'session')} cannot be read, and not counted: {named} "
            "(mlx-tools sessions show ID says why)"
        )


def _moment(text: str, now: datetime) -> datetime:
    """Return a point in time, in UTC.

    A span before ``now``, or a date or time in this machine's zone.

    Raises:
        UsageError: the text is neither.
    """
    try:
        if span := re.fullmatch(r"(\d{1,6})([hdw])", text):
            return now - timedelta(**{_UNITS[span[2]]: int(span[1])})
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since: {text!r} is no time", hint="write 12h, 7d, 4w or 2026-11-01"
        ) from None


def _count_all(
    store: SessionStore, begin: datetime | None
) -> tuple[int, dict[str, Counters], dict[str, str]]:
    """Return the number of sessions, counters by model, and reasons for unread ones.

    The busiest model comes first.
    """
    damaged, sessions, limit = dict[str, str](), 0, begin.timestamp() if begin else 0.0
    sums: defaultdict[str, CounterSum] = defaultdict(CounterSum)
    with progress_counter("reading sessions", store.count()) as step:
        for session, summary in store.summaries():
            step()
            if isinstance(summary, TranscriptError):
                if not begin or store.updated(session) >= limit:
                    damaged[session] = str(summary)
                continue
            if not summary.records or summary.last_asked < limit:
                continue
            counters, model = summary.counters, summary.status.model or NO_MODEL
            if begin is not None and summary.first_asked < limit:  # some of its questions count
                records = _records_since(store.records(session), begin)
                counters = count(records)
            sessions += 1
            sums[model].add(counters)
    models = sorted(
        ((name, item.value) for name, item in sums.items()),
        key=lambda item: (-item[1].questions, item[0]),
    )
    return sessions, dict(models), damaged


def _records_since(records: Sequence[Record], begin: datetime) -> Sequence[Record]:
    """Return the header and the records of the questions since ``begin``.

    Empty if there are none.
    """
    for number, record in enumerate(records):
        if (
            isinstance(record, UserRecord)
            and find_question_time(record, records[0]) >= begin.timestamp()
        ):
            return [*records[:1], *records[number:]]
    return ()


# --- for people -----------------------------------------------------------------------------------


def _lines(sessions: int, models: Mapping[str, Counters]) -> Iterable[str]:
    total = sum(models.values(), Counters())
    yield f"{count_noun(sessions, 'session')}, {count_noun(total.questions, 'question')}"
    if total.ends:
        ends = sorted(total.ends.items(), key=lambda end: -end[1])
        parts = (f"{word.replace('_', ' ')} {_share(n, total.questions)}" for word, n in ends)
        yield f"ended: {', '.join(parts)}"
    heads = ("model", "questions", "answered", "turns", "tokens in", "cached", "out")
    if models:
        rows = [_make_model_row(name, counters) for name, counters in models.items()]
        yield ""
        yield from table([(*heads, "unread", "repairs", "mends", "time"), *rows], numbers=True)
    if total.tools:
        heads = ("tool", "calls", "ok", "failed", "refused", "repaired", "mean time")
        names = sorted(total.tools, key=lambda name: (-total.tools[name].picked, name))
        yield ""
        yield from table([heads, *(_make_tool_row(name, total) for name in names)], numbers=True)


def _make_model_row(name: str, counters: Counters) -> Sequence[str]:
    tokens = (counters.prompt_tokens, counters.cached_tokens, counters.completion_tokens)
    lines = (sum(counters.corrections.values()), sum(counters.repairs.values()), counters.mends)
    answered = _share(counters.ends.get("answered", 0), counters.questions)
    duration = timedelta(seconds=counters.duration_ms // 1000)
    figures = (counters.questions, answered, counters.completions, *tokens, *lines, duration)
    return [escape_line(name), *map(str, figures)]


def _make_tool_row(name: str, total: Counters) -> Sequence[str]:
    tool_counters = total.tools[name]
    mean = f"{tool_counters.duration_ms / tool_counters.ran:.0f} ms" if tool_counters.ran else "-"
    figures = (
        tool_counters.picked,
        _share(tool_counters.ok, tool_counters.picked),
        tool_counters.failures,
        tool_counters.refusals,
        tool_counters.repaired,
        mean,
    )
    return [escape_name(name), *map(str, figures)]


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)" if whole else str(part)
