"""The reading rules, one after the other, on whole texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from mlx_tools.messages import ErrorInfo, FinalAnswer, ToolCall
from mlx_tools.protocol import Reading, ReadingRules, read
from tests.protocol.texts import ANSWER, CALL, OBSERVATION, OTHER_CALL
from tests.tables import table

CALLED = ToolCall("calculator", {"expression": "17 * 23"})
CLOCK = ToolCall("clock", {"timezone": "Europe/Rome"})
ANSWERED = FinalAnswer("17 times 23 is 391.")
ALIAS = '{"name":"calculator","arguments":{"expression":"17 * 23"}}'
BROKEN = '{"type":"tool_call","name":"b" oops}'

HARMLESS: Any = {"mutates": lambda name, arguments: False}
XML: Any = {"style": "xml", **HARMLESS}
CUT = {"reason": "length"}
NATIVE_CALL = {"reason": "tool_calls"}


def read_by(text: str, reason: Any = "stop", **rules: Any) -> Reading:
    return read(text, reason, ReadingRules(**rules))


def shown(reading: Reading) -> str:
    """Calls by name and answers by text, with their repairs; the error; and ``~`` where something
    stands beside what was read. Of prose only that it is."""
    parts = []
    for message in reading.messages:
        if isinstance(message, ToolCall):
            own = [one for one in (CALLED, CLOCK) if one.name == message.name]
            assert [message.arguments] == [one.arguments for one in own] or not own
            parts.append(message.name)
        else:
            parts.append("prose" if reading.bare_text else f'"{message.content}"')
        parts[-1] += f"({', '.join(message.repairs)})" if message.repairs else ""
    if reading.error is not None:
        parts.append(f"!{reading.error.code}")
    elif not reading.clean and not reading.bare_text:
        parts.append("~")
    return " ".join(parts)


# --- in full: messages, and what else is read -------------------------------------------------

FULL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # By what it shows: the text, the rules, and what is read.
    "a call": (
        CALL,
        {},
        {"messages": (CALLED,), "retained_text": CALL, "clean": True, "dropped": ()},
    ),
    "an answer": (ANSWER, {}, {"messages": (ANSWERED,), "retained_text": ANSWER, "clean": True}),
    "an id is kept": (
        *('{"type":"tool_call","id":"c1","name":"a","arguments":{}}', {}),
        {"messages": (ToolCall("a", {}, "c1"),), "clean": True},
    ),
    "an id that is a number is taken as it is written": (
        *('{"type":"tool_call","id":7,"name":"a","arguments":{}}', {}),
        {"messages": (ToolCall("a", {}, "7", ("id_string",)),)},
    ),
    "sources are kept": (
        *('{"type":"final_answer","content":"x","sources":[1,"b"]}', {}),
        {"messages": (FinalAnswer("x", (1, "b")),), "clean": True},
    ),
    "unknown keys are dropped and recorded": (
        *('{"type":"tool_call","name":"a","arguments":{},"why":"é","id":[1]}', {}),
        {"messages": (ToolCall("a", {}),), "dropped": ('"why": "é"', '"id": [1]'), "clean": False},
    ),
    "a thought whose opening nobody told of": (
        *(f"so I will</think>\n{CALL}", {}),
        {"messages": (CALLED,), "reasoning": "so I will", "commentary": "", "clean": False},
    ),
    "a marker within a string": (
        *('{"type":"final_answer","content":"use <think> and </think>"}', {}),
        {"messages": (FinalAnswer("use <think> and </think>"),), "reasoning": ""},
    ),
    "the first message counts, not the last": (
        *(f"{ANSWER}\n{CALL}\n{OTHER_CALL}", {}),
        {"messages": (ANSWERED,), "dropped": (f"{CALL}\n{OTHER_CALL}",)},
    ),
    "prose before": (
        *(f"Let me see.\n\n{CALL}\nDone.", {}),
        {"commentary": "Let me see.", "retained_text": f"Let me see.\n\n{CALL}"},
    ),
    "bare text without thoughts and outer white space": (
        *("<think>hm</think>\n\n It is 391. \n", {}),
        {"messages": (FinalAnswer("It is 391."),), "reasoning": "hm", "clean": False},
    ),
    "bare text that was cut off": (
        *("The capital of", CUT),
        {"messages": (FinalAnswer("The capital of"),), "truncated": True},
    ),
    "a broken second call": (
        *(f"{CALL}\n{BROKEN}\n{OTHER_CALL}", {}),
        {"messages": (CALLED,), "dropped": (f"{BROKEN}\n{OTHER_CALL}",), "clean": False},
    ),
    "more aliases than may be called": (
        *(f"{ALIAS}\n{ALIAS}", {"max_calls": 1}),
        {"dropped": (ALIAS,), "clean": False},
    ),
    "an array": (f"[{CALL},{OTHER_CALL}]\n", {}, {"retained_text": f"[{CALL},{OTHER_CALL}]"}),
}


@table(("text", "rules", "expected"), FULL.values(), ids=FULL)
def test_it_is_read_so(text: str, rules: dict[str, Any], expected: dict[str, Any]) -> None:
    reading = read_by(text, **rules)
    assert {name: getattr(reading, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"type":"tool_call"}', ErrorInfo("invalid_json", "name: required")),
        ('{"type":"tool_call","name":5}', ErrorInfo("invalid_json", "name: a string")),
        ('{"type":"tool_call","name":""}', ErrorInfo("invalid_json", "name: a string")),
        ('{"type":"final_answer"}', ErrorInfo("invalid_json", "content: required")),
        ('{"type":"final_answer","content":391}', ErrorInfo("invalid_json", "content: a string")),
        (
            '{"type":"tool_call","name":"a","arguments":[1]}',
            ErrorInfo("invalid_arguments", "arguments: an object"),
        ),
    ],
)
def test_a_known_type_with_the_wrong_fields_is_an_error(text: str, error: ErrorInfo) -> None:
    reading = read(text)
    assert (reading.messages, reading.error) == ((), error)


# --- in short ---------------------------------------------------------------------------------

CLOSED_CALL = "calculator(missing_closers) ~"
CLOSED_ANSWER = f'"{ANSWERED.content}"(missing_closers) ~'
BEGUN = '{"type":"tool_call","name":"calculator","arguments":{"expression":"17'
OPEN = '{"type":"tool_call","name":"a","arguments":{"n":'
EVERYWHERE = ("", "So:\n", "```json\n", "Use ")
KEYS = [f"{quote}{key}{quote}" for key in ("type", "name", "tool", "function") for quote in "\"'"]


def short() -> Iterator[tuple[str, str] | tuple[str, str, dict[str, Any]]]:
    """By the rule: a text, what is read, and the rules."""
    # 1: only a newline ends a line.
    yield f"So:\n{CALL}", "calculator ~"
    for end in ("\u2028", "\u2029", "\x85", "\r", "\x0b", "\x0c", "\x1c"):
        yield f"So:{end}{CALL}", "calculator(inline) ~"
    # 2: thoughts.
    yield f"{CALL}\n<think>and now</think>\n{OTHER_CALL}", "calculator clock"
    yield f"hm {OTHER_CALL}</think>{CALL}", "calculator", {"in_thought": True}
    for text, reason in product(
        ("<think>hm", f"<think>{CALL}", f"{CALL}\n<think>more"), ("stop", "length")
    ):
        yield text, "!truncated_output", {"reason": reason}
    # 3: candidates.
    yield json.dumps(json.loads(CALL), indent=2), "calculator"
    yield f"[\n  {CALL},\n  {OTHER_CALL}\n]\n", "calculator clock"
    for bullet in ("-", "*", "1.", "12)", "•"):
        yield f"{bullet} {CALL}", "calculator ~"
    for before in ("Sure: ", 'say "', "x", "<b>", "[1] "):
        yield before + CALL, "calculator(inline) ~"
    for before in ("> ", "`", "| ", "So `x`: `", "Log:\n> "):
        yield before + CALL, "prose"
    yield f"So:\n```json\n{CALL}\n```", "calculator ~"
    yield f"So:\n```json\n{CALL}\n```\nThat is it.", "prose"
    yield f"So:\n```json\n{CALL}\n```\nThat is it.", "calculator ~", {"style": "markdown-json"}
    # 4: the first run of messages.
    around = ("", " ", "\n", "\n\n", "\r\n", "\n```\n```json\n", "\n</tool_call><tool_call>")
    for between in around:
        yield f"{CALL}{between}{OTHER_CALL}", "calculator clock"
    yield f"{CALL},\n{OTHER_CALL}", "calculator clock ~"
    yield f"{CALL}\n{OTHER_CALL}", "calculator ~", {"max_calls": 1}
    yield f"{CALL}\n```\n", "calculator", {"max_calls": 1}
    yield ' * 23"}}', "calculator", {"prefix": BEGUN}
    # 5 and 11: other objects are prose, and prose alone is the answer.
    for prose in (
        *("The capital of France is Paris.", "The set {a, b} and \\frac{1}{2} and f(x) = { x }."),
        *("```js\nfunction f() { return {x: 1}; }\n```", 'A list: ["a", {"b": 1}]', '{"a": 1}'),
        *('{"type":"dog","name":"Rex"}', '{"name":"Alice"}', '{"name":"Alice","age":5}'),
        *('{"name", "age"}', '[{"name":"Alice"}]', '{"a": {"type":"tool_call"}}'),
        *("{name: string; age: number}", "interface X {\n  name: string;\n}", '{"result": 1,'),
        *("{{{{ }}}} }{", '{"a" "b"}', "{x", f"{ALIAS} is how a call looks", f"A call: {ALIAS}"),
        '{"name":"f","description":"adds","parameters":{"type":"object"}}',
    ):
        yield prose, "prose"
    yield f'You said to write {{"type": ...}}, so:\n{CALL}', "calculator ~"
    for before, key, rest in product(EVERYWHERE, KEYS, (": ...}", ' "x"}', ":", ": 'a' 'b'}")):
        error = "truncated_output" if rest == ":" else "invalid_json"
        yield f"{before}{{{key}{rest}", f"!{error}"
        yield f'{before}{{{key}: {{"a":1}}}}}}, "b" ; }}', "prose"
    for empty in ("", " \n", "```json\n```", "<tool_call></tool_call>", "```"):
        yield empty, "!invalid_json"
    for choice in ("required", "calculator"):
        yield "It is 391.", "!invalid_json", {"tool_choice": choice}
        yield ANSWER, "!not_allowed", {"tool_choice": choice}
        yield CALL, "calculator", {"tool_choice": choice}
    # 7: what is missing.
    for nothing in ("", ',"arguments":null'):
        yield f'{{"type":"tool_call","name":"a"{nothing}}}', "a(missing_arguments)"
    for text in (ANSWER[:-1], f"```json\n{ANSWER[:-1]}\n```"):
        yield text, CLOSED_ANSWER
    for text in (
        *(CALL[:-1], CALL[:-2], f"{CALL[:-1]}\n", f"```json\n{CALL[:-1]}\n```"),
        *(f"<tool_call>{CALL[:-2]}</tool_call>\n", f"[{CALL}"),
    ):
        yield text, CLOSED_CALL, HARMLESS
        yield text, "!truncated_output", {**HARMLESS, **CUT}
        yield text, "!truncated_output"
    yield f"[{ALIAS}", "calculator(envelope_alias, missing_closers) ~", HARMLESS
    yield f"[{ALIAS}", "!truncated_output"
    yield f"```json\n{CALL[:-1]}\n```\nSo.", "!invalid_json", HARMLESS
    # 8: what is open was cut off, what was whole before stands.
    for text, reason in product(
        (
            *('{"type":"final_answer","cont', '{"type":"final_answer","content"'),
            *('{"type":"final_answer","content":', f"{OPEN}12", f"{OPEN}tru", f"{OPEN}true"),
            *(f"{OPEN}1,", OPEN[:-4], '{"type":"tool_call","name":"a"', f"{OPEN}1}} // so"),
            *('{"ty', "{", "Well:\n{", '{"name": "calc', '{"id":"c1","type":"tool_call","name":'),
            *(f"{CALL}\n{end}" for end in ("{", '{"', '{"id', OTHER_CALL[:20])),
        ),
        ("stop", "length"),
    ):
        yield text, "!truncated_output", {"reason": reason, **HARMLESS}
    yield '{"id":"c1","type":"tool_call",oops}', "!invalid_json"
    yield f"{CALL}\n{OTHER_CALL[:-1]}", "!truncated_output"
    yield CALL, "calculator", CUT
    yield f"{ANSWER}\n{CALL[:20]}", f'"{ANSWERED.content}" ~', CUT
    yield f"{CALL}\nThe res", "calculator ~", CUT
    yield f"{CALL}\n{ANSWER[:-4]}", "calculator ~", CUT
    yield CALL, "calculator ~", NATIVE_CALL
    for text in ("Let me see.", ""):
        yield text, "!invalid_json", NATIVE_CALL
    for text in (ANSWER[:-1], CALL[:-1]):
        yield text, "!truncated_output", {**HARMLESS, **NATIVE_CALL}
    # Answers in tags, and the short form of calls in theirs.
    yield "<final_answer>391</final_answer>", '"391"', XML
    yield "<final_answer>391</final_answer>", "prose"
    yield "<final_answer>\n3 < 4 & {x}\n</final_answer>", '"3 < 4 & {x}"', XML
    yield "Well:\n<final_answer>a\n\nb</final_answer> bye", '"a\n\nb" ~', XML
    yield "<final_answer>see <think>, ```</final_answer>", '"see <think>, ```"', XML
    yield "<final_answer>It is.", '"It is."(missing_closers) ~', XML
    yield "<final_answer>It is.</final", "!truncated_output", XML
    yield "<final_answer>", "!invalid_json", XML
    yield f"I will.\n<tool_call>{ALIAS}</tool_call>", "calculator ~", XML
    for text, reason in product(
        ("<tool_call>", "<tool_call>\n", "So:\n<tool_call>", "<tool_ca", "<fin"), ("stop", "length")
    ):
        yield text, "!truncated_output", {"reason": reason, **XML}


@table("row", [*short()], ids=lambda row: ascii(row[0])[1:50])
def test_the_rules_are_held_to(row: tuple[Any, ...]) -> None:
    text, expected, rules = (*row, {})[:3]
    reading = read_by(text, **rules)
    assert shown(reading) == expected
    if expected == "prose" and not text.startswith("<"):
        assert (reading.messages, reading.retained_text) == ((FinalAnswer(text),), text)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        *(("markdown-json", text) for text in (f"```json\n{CALL}\n```", CALL)),
        *(("markdown-json", text) for text in (f"```json {CALL}```", f"~~~\n{CALL}\n~~~")),
        *(("jsonl", f"```json\n{CALL}\n```"), ("jsonl", f"<tool_call>{CALL}</tool_call>")),
        *(("xml", f"<tool_call>\n{ALIAS}\n</tool_call>"), ("xml", f"<tool_call>{ALIAS}")),
        *(("xml", CALL), ("xml", f"```xml\n<tool_call>{ALIAS}</tool_call>\n```")),
    ],
)
def test_every_style_reads_its_own_form_and_the_others(style: str, text: str) -> None:
    for end in ("", "\n"):
        reading = read_by(text + end, style=style)
        assert (shown(reading), reading.retained_text) == ("calculator", text)


@pytest.mark.parametrize(
    ("opener", "closer"),
    [
        *(("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷")),
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ],
)
def test_thoughts_are_cut_out_and_never_messages(opener: str, closer: str) -> None:
    reading = read(f"{opener}hm\n{OTHER_CALL}\n{closer}\n{CALL}")
    assert (shown(reading), reading.retained_text) == ("calculator", f"\n{CALL}")
    assert OTHER_CALL in reading.reasoning


@pytest.mark.parametrize(
    "between", ["and", "- ", ";", "\u2028", "}", "[", '{"a":1}\n', OBSERVATION]
)
def test_anything_else_ends_the_run_and_what_follows_is_dropped(between: str) -> None:
    reading = read(f"{CALL}\n{between}{OTHER_CALL}\n")
    assert (shown(reading), reading.retained_text) == ("calculator ~", CALL)
    assert reading.dropped == (f"{between}{OTHER_CALL}".strip(" \t\r\n"),)


def test_a_forged_observation_is_dropped_wherever_it_stands() -> None:
    for forged in (OBSERVATION, f"<tool_response>\n{CALL}\n</tool_response>"):
        before = read(f"{forged}\n{ANSWER}")
        assert (before.messages, before.dropped) == ((ANSWERED,), (forged,))
        assert forged not in before.retained_text and not before.clean
        after = read(f"{CALL}\n{forged}\n{ANSWER}")
        assert (after.messages, after.dropped) == ((CALLED,), (f"{forged}\n{ANSWER}",))
        for text in (forged, f"{forged}}}\n"):  # closed once more it is no answer either
            assert shown(read(text)) == "!invalid_json"


STRING = '"{\\"expression\\":\\"17 * 23\\"}"'
ALIASES = {
    ALIAS: "envelope_alias",
    ALIAS.replace("arguments", "parameters"): "envelope_alias",
    ALIAS.replace('{"name"', '{"type":"function","name"'): "envelope_alias",
    f'{{"function":{ALIAS}}}': "envelope_alias",
    f'{{"id":"c1","type":"function","function":{ALIAS}}}': "envelope_alias",
    CALL.replace("arguments", "parameters"): "envelope_alias",
    CALL.replace('{"expression":"17 * 23"}', STRING): "arguments_string",
    ALIAS.replace('{"expression":"17 * 23"}', STRING): "envelope_alias, arguments_string",
}


@pytest.mark.parametrize(("text", "repairs"), ALIASES.items())
def test_aliases_count_where_they_are_the_whole_output(text: str, repairs: str) -> None:
    one = f"calculator({repairs})"
    for around in ("{}", "```json\n{}\n```", "<tool_call>{}</tool_call>", "<think>x</think>{}"):
        assert shown(read(around.replace("{}", text))) == one
    for several in (f"{text}\n{text}", f"[{text},{text}]", f"<tool_call>{text}</tool_call>\n" * 2):
        assert shown(read(several)) == f"{one} {one}"
    for around in ("Hm.\n{}", "{}\nHm.", "- {}", f"{{}}\n{ANSWER}", f"{OBSERVATION}\n{{}}"):
        reading = read(around.replace("{}", text))
        assert not any(isinstance(message, ToolCall) for message in reading.messages)


@pytest.mark.parametrize("end", ["", "\\", "\\u00", " "])
def test_an_answer_that_was_cut_off_is_an_answer_as_far_as_it_came(end: str) -> None:
    text = '{"type":"final_answer","content":"It is'
    for reading in (read(text + end, "length"), read_by("<final_answer>It is</fin", **XML, **CUT)):
        assert [m.content.strip() for m in reading.messages if m.type == "final_answer"] == [
            "It is"
        ]
        assert (reading.truncated, reading.clean, reading.error) == (True, False, None)
    assert shown(read(text)) == "!truncated_output"


def test_a_mutates_function_that_raises_counts_as_yes() -> None:
    def broken(name: str, arguments: object) -> bool:
        raise KeyError(name)

    assert shown(read_by(CALL[:-1], mutates=broken)) == "!truncated_output"


@pytest.mark.parametrize(
    ("choice", "answers"), [("auto", True), ("none", True), ("required", False), ("clock", False)]
)
def test_an_answer_counts_unless_a_call_is_required(choice: str, answers: bool) -> None:
    """However the answer is read: at once, or as it comes."""
    for text in (ANSWER, f"Well: {ANSWER}", "17 times 23 is 391."):
        reading = read_by(text, tool_choice=choice)
        assert (reading.error is None, bool(reading.messages)) == (answers, answers), text


@pytest.mark.parametrize(
    ("given", "known"),
    [("7", "7"), ('"7"', "7"), ("true", None), ("false", None), ("null", None), ("[7]", None)],
)
def test_an_id_is_a_text_or_a_number(given: str, known: str | None) -> None:
    text = f'{{"type":"tool_call","id":{given},"name":"a","arguments":{{}}}}'
    for reading in (read(text), read(f"So: {text}")):
        (message,) = reading.messages
        assert isinstance(message, ToolCall) and message.id == known
