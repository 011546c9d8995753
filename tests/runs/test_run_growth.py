"""Counts that a client of runs chooses: work grows with them no faster, and they have bounds."""

from __future__ import annotations

from typing import Any, SupportsIndex

import pytest

from mlx_tools.gateway import MAX_TOOLS
from mlx_tools.plugins.runs.events import SessionEventReader
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    DecisionRecord,
    Header,
    ObservationRecord,
    Record,
    UserRecord,
)
from tests.gateway.conftest import send


class CountedList(list[Record]):
    """Records that count how many of them are read."""

    reads = 0

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        found = super().__getitem__(place)
        self.reads += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> Any:
        for record in super().__iter__():
            self.reads += 1
            yield record


def session_of(questions: int) -> CountedList:
    """A session of so many questions with a call each; the first finds what all answers cite."""
    records = CountedList([Header(session="s", created="")])
    for number in range(1, questions + 1):
        call = f"c{number}"
        found = ({"n": 1, "title": "A title", "location": "a.txt"},) if number == 1 else ()
        done = CompletionRecord(turn=number, text="a", retained_text="a", finish_reason="stop")
        records += [
            UserRecord(content="Hi"),
            done,
            CallRecord(turn=number, call=call, name="f", arguments={}),
            DecisionRecord(call=call, decision="allow", rule="r", reason="so"),
            ObservationRecord(call=call, name="f", content="a", sources=found),
            done,
            AnswerRecord(turn=number, content="yes [1]"),
        ]
    return records


def test_reading_the_events_of_a_session_reads_each_record_a_few_times() -> None:
    records = session_of(300)
    told = list(SessionEventReader(0).read(records, len(records)))
    outcomes = [event["outcome"] for _, event in told if event["type"] == "finished"]
    assert len(outcomes) == 300
    assert {len(one["calls"]) for one in outcomes} == {1}
    assert {one["sources"][0]["title"] for one in outcomes} == {"A title"}
    assert records.reads < 10 * len(records)


def test_following_a_session_that_grows_reads_only_what_is_new() -> None:
    whole, records, reader = session_of(300), CountedList(), SessionEventReader(0)
    told = 0
    for record in list(whole):
        records.append(record)
        told += len(list(reader.read(records, len(records))))
    assert told == len(list(SessionEventReader(0).read(whole, len(whole))))
    assert records.reads < 10 * len(records)


def test_events_that_are_known_are_left_out() -> None:
    records = session_of(3)
    all_events = list(SessionEventReader(0).read(records, len(records)))
    for known in range(len(records) + 3):
        later = list(SessionEventReader(known).read(records, len(records)))
        assert later == [pair for pair in all_events if (pair[0] or 0) > known]


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER] * 1001}, "messages"),
        ({"question": "Hi", "tools": ["calculator"] * (MAX_TOOLS + 1)}, "tools"),
    ],
)
def test_too_many_of_anything_are_refused_by_name(
    serving: Any, body: dict[str, Any], param: str
) -> None:
    got = send(serving("never"), "POST", "/v1/runs", body)
    assert (got.status_code, param in got.json()["error"]["message"]) == (400, True), got.text
