"""Work is linear in the text, whatever the text: counted in calls, not in seconds.

A regular expression is one call however long it runs. What the patterns themselves cost is held to
the same bound, in time, by the benchmarks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from cProfile import Profile
from random import Random
from sys import getrefcount
from typing import Any

import pytest

from mlx_tools.messages import ToolSpec
from mlx_tools.protocol import DIALECTS, Reader, ReadingRules, judge, read, write_call
from mlx_tools.protocol.echo import find_call_keys
from tests.protocol.texts import BROKEN, CALL, FRAGMENTS, MESSAGES, OBSERVATION, streamed

UNITS = (
    *(unit for unit in FRAGMENTS if unit.strip()),
    *(
        *("{{", '{"a":', '{"a" ', '{"type":', '{"type":"tool_call","a":', "[[", "[{", "\\\\"),
        *('""', "''"),
    ),
    *("{'a':'", '{"a":"\n', "{b:'\n,k:',k:\n", "- - ", "\n\n", "{ \n", '{"\\u', '{"a":"\\ud800'),
    *(
        *(
            "{}",
            "{",
            "{b} ",
            '{"a"://\n',
            '{"type":1,}',
            "x\n",
            '{"a":[1,',
            "{'a'  ",
            "{/**/",
            "~~~x ",
            '{"name":"y"}',
        ),
        '{"name":"y"} ',
    ),
    *(f"{text}\n" for text in MESSAGES),
)
HEADS = ("", '{"type":"tool_call","name":"a","arguments":{"k":"', "<think>", "<final_answer>", "[")
SMALL, LARGE = 400, 4_000


def calls_made(work: Callable[[], Any]) -> int:
    """The number of functions that ran, Python's own in C among them."""
    profile = Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def is_linear(
    work: Callable[[str], Any], unit: str, head: str = "", sizes: tuple[int, int] = (SMALL, LARGE)
) -> bool:
    texts = [head + unit * (size // len(unit)) for size in sizes]
    small, large = (calls_made(lambda text=text: work(text)) for text in texts)
    return large <= 1.2 * sizes[1] / sizes[0] * small + 1000


def bytewise(text: str) -> None:
    streamed(text, ReadingRules(style="xml"))


def slow(head: str) -> Any:
    """A beginning that `make test` leaves out."""
    return pytest.param(head, marks=pytest.mark.slow)


@pytest.mark.parametrize("head", [*HEADS[:2], *(slow(head) for head in HEADS[2:])])
def test_reading_a_whole_text_is_linear(head: str) -> None:
    faults = [unit for unit in UNITS if not is_linear(read, unit, head)]
    assert faults == []


def test_marks_that_begin_no_message_are_read_a_few_times_at_most() -> None:
    def whole(text: str) -> None:
        read(text, "stop", CATALOG)

    units = ("<|channel|>", "<|start|>assistant", "<")
    whole("".join(units))
    assert [unit for unit in units if not is_linear(whole, unit, sizes=(LARGE, 4 * LARGE))] == []


@pytest.mark.parametrize("unit", ["1", "a", "<"])
def test_a_long_word_that_comes_in_pieces_is_looked_at_once(unit: str) -> None:
    text = '{"type":"tool_call","name":"a","arguments":{"k":' + unit * LARGE
    assert calls_made(lambda: bytewise(text)) < 40 * len(text)
    for size in (LARGE, 3 * LARGE):  # also where it is too long to be a number
        long = f"{text}.{'1' * size}}}}}"
        assert streamed(long) == read(long)


def test_a_record_on_a_line_is_decoded_not_scanned() -> None:
    records = '{"id": 1, "name": "Ada", "tags": ["a", "b"], "address": {"city": "Rome"}}\n' * 100
    assert calls_made(lambda: read(f"```json\n{records}```")) < 100 * 100
    assert streamed(f"```json\n{records}```") == read(f"```json\n{records}```")


@pytest.mark.slow
def test_reading_a_text_byte_by_byte_is_linear() -> None:
    faults = [unit for unit in UNITS if not is_linear(bytewise, unit)]
    assert faults == []


CATALOG = ReadingRules(catalog={"get_weather": {}}, mutates=lambda name, arguments: False)
OF_DIALECTS = (
    *(dialect.open for dialect in DIALECTS),
    *("[get_weather(", '\n[get_weather(a="', "Action: get_weather\n", "call: get_weather({\n"),
    *(
        *("get_weather(", "get_weather\n{", "<tool_call>x<arg_key>", "`<tool_call>`"),
        "```\n<tool_call>",
    ),
    *("<function=x>", "<parameter=", '<tool_call>{"name":"a","arguments":{}}</tool_call> and '),
    *("`", "`x", "```x ", "(", "get_weather)", "\nto=", "<|channel|>x<|message|>", "<s></s>"),
    *("<|tool_call>call:a{", "[TOOL_CALLS]a", "<|tool_call_start|>[a(b='", "]<]minimax[>[<a>"),
)


def shared_text(text: str, rules: ReadingRules) -> str:
    """The end of the first front of ``text`` that the reader keeps twice while it waits, or ``""``.

    A string to which nothing else refers grows where it is. Else each piece copies all of it.
    """
    reader = Reader(rules)
    for end in range(3, len(text) + 1, 3):
        reader.feed(text[end - 3 : end])
        if getrefcount(reader.source.text) > 2:  # the reader's own, and the argument
            return text[max(end - 40, 0) : end]
    return ""


def test_a_reader_that_waits_holds_its_text_once_so_that_it_grows_in_place() -> None:
    random, units = Random(1), (*UNITS, *OF_DIALECTS, *BROKEN)
    texts = [unit * 4 for unit in units]
    texts += ["".join(random.choices((*units, "\n"), k=8)) for _ in range(100)]
    rules = (ReadingRules(), ReadingRules(style="xml"), CATALOG)
    found = {shared_text(f"\U0001f600 {text}", each) for text in texts for each in rules}
    assert found == {""}


@pytest.mark.parametrize(
    "head",
    [pytest.param("", marks=pytest.mark.heavy), slow("<tool_call>"), slow("```\n")],
)
def test_reading_dialects_is_linear(head: str) -> None:
    def whole(text: str) -> None:
        read(text, "stop", CATALOG)

    def look(text: str) -> None:
        find_call_keys.__wrapped__(text)

    for unit in OF_DIALECTS:  # so that what is compiled once is compiled
        whole(unit)
        look(unit)
    sizes = LARGE // 2, 3 * LARGE // 2  # what is read again at most is more than a short text
    works = (whole, look)
    faults = [u for work in works for u in OF_DIALECTS if not is_linear(work, u, head, sizes)]
    assert faults == []


@pytest.mark.heavy
def test_looking_for_echoes_is_linear() -> None:
    def look(text: str) -> None:
        judge(read(CALL), {"calculator": ToolSpec("calculator")}, find_call_keys.__wrapped__(text))

    units = (*UNITS, '\\"', "&quot;{", '"{', write_call("a", {"b": CALL}), OBSERVATION)
    look(CALL)
    assert [unit for unit in units if not is_linear(look, unit)] == []


@pytest.mark.parametrize("opening", ["{", "[", '{"type":', '{"a":'])
def test_depth_costs_no_stack(opening: str) -> None:
    deep = opening * 20_000
    for text in (deep, f'{{"type":"tool_call","name":"a","arguments":{deep}'):
        assert not any(message.type == "tool_call" for message in read(text).messages)
    assert find_call_keys(opening * 5_000) == frozenset()


def test_the_garbage_collector_does_not_look_at_the_fixes_of_a_long_text() -> None:
    """It would look at them all again each time that there are a quarter more."""
    reader = Reader()
    reader.feed('{"type":"tool_call","name":"a","arguments":{"x":"' + "a\n" * 1_000)
    assert not [item for item in gc.get_objects() if type(item).__name__ == "Fix"]
