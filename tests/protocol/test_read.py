"""The reading rules, one after the other, on whole texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, FinalAnswer, FinishReason, ToolCall, replace
from mlx_tools.protocol import Reading, ReadingRules, read
from tests.protocol.texts import ANSWER, CALL, OBSERVATION, OTHER_CALL

CALLED = ToolCall("calculator", {"expression": "17 * 23"})
CLOCK = ToolCall("clock", {"timezone": "Europe/Rome"})
ANSWERED = FinalAnswer("17 times 23 is 391.")
HARMLESS = ReadingRules(mutates=lambda name, arguments: False)
XML = ReadingRules(style="xml", mutates=lambda name, arguments: False)
ALIAS = '{"name":"calculator","arguments":{"expression":"17 * 23"}}'


def code(reading: Reading) -> ErrorCode | None:
    return reading.error.code if reading.error else None


def bare(content: str) -> Reading:
    return Reading(messages=(FinalAnswer(content),), bare_text=True, counted=content)


# --- messages as they should be ---------------------------------------------------------------


BROKEN_CALL = '{"type":"tool_call","name":"b" oops}'
CLOSED = FinalAnswer(ANSWERED.content, (), ("missing_closers",))
NO_ARGUMENTS = ToolCall("a", {}, None, ("missing_arguments",))
BEGUN = '{"type":"tool_call","name":"calculator","arguments":{"expression":"17'
IN_THOUGHT = ReadingRules(in_thought=True)
ONE_CALL = ReadingRules(max_calls=1)

READ: dict[str, tuple[str, tuple[Any, ...], str | None, dict[str, Any]]] = {
    # By what it shows: the text, its messages, the error's code, and what else is read.
    "a call": (CALL, (CALLED,), None, {"counted": CALL, "clean": True, "dropped": ()}),
    "an answer": (ANSWER, (ANSWERED,), None, {"counted": ANSWER, "clean": True, "dropped": ()}),
    "an id is kept": (
        '{"type":"tool_call","id":"c1","name":"a","arguments":{}}',
        *((ToolCall("a", {}, "c1"),), None, {"clean": True}),
    ),
    "sources are kept": (
        '{"type":"final_answer","content":"x","sources":[1,"b"]}',
        *((FinalAnswer("x", (1, "b")),), None, {"clean": True}),
    ),
    "an id that is a number is taken as it is written": (
        '{"type":"tool_call","id":7,"name":"a","arguments":{}}',
        *((ToolCall("a", {}, "7", ("id_string",)),), None, {}),
    ),
    "unknown keys are dropped and recorded": (
        '{"type":"tool_call","name":"a","arguments":{},"why":"é","id":[1]}',
        *((ToolCall("a", {}),), None, {"dropped": ('"why": "é"', '"id": [1]'), "clean": False}),
    ),
    "no arguments": ('{"type":"tool_call","name":"a"}', (NO_ARGUMENTS,), None, {}),
    "null for arguments": (
        *('{"type":"tool_call","name":"a","arguments":null}', (NO_ARGUMENTS,), None, {}),
    ),
    "an answer in tags in another style": (
        *("<final_answer>391</final_answer>", (FinalAnswer("391"),), None, {}),
    ),
    "a thought whose opening nobody told of": (
        f"so I will</think>\n{CALL}",
        *((CALLED,), None, {"reasoning": "so I will", "commentary": "", "clean": False}),
    ),
    "a marker within a string": (
        '{"type":"final_answer","content":"use <think> and </think>"}',
        *((FinalAnswer("use <think> and </think>"),), None, {"reasoning": ""}),
    ),
    "a thought between calls": (
        f"{CALL}\n<think>and now</think>\n{OTHER_CALL}",
        *((CALLED, CLOCK), None, {"clean": True}),
    ),
    "an object over several lines": (
        *(json.dumps(json.loads(CALL), indent=2), (CALLED,), None, {"clean": True}),
    ),
    "a comma between calls": (f"{CALL},\n{OTHER_CALL}", (CALLED, CLOCK), None, {"clean": False}),
    "the first message counts, not the last": (
        f"{ANSWER}\n{CALL}\n{OTHER_CALL}",
        *((ANSWERED,), None, {"dropped": (f"{CALL}\n{OTHER_CALL}",)}),
    ),
    "prose before": (
        f"Let me see.\n\n{CALL}\nDone.",
        *((CALLED,), None, {"commentary": "Let me see.", "counted": f"Let me see.\n\n{CALL}"}),
    ),
    "bare text without thoughts and outer white space": (
        "<think>hm</think>\n\n It is 391. \n",
        *((FinalAnswer("It is 391."),), None),
        {"bare_text": True, "reasoning": "hm", "clean": False},
    ),
    "a quoted beginning of a message": (
        f'You said to write {{"type": ...}}, so:\n{CALL}',
        *((CALLED,), None, {"clean": False}),
    ),
    "a type that comes late, cut": (
        *('{"id":"c1","type":"tool_call","name":', (), "truncated_output", {}),
    ),
    "a type that comes late, broken": (
        *('{"id":"c1","type":"tool_call",oops}', (), "invalid_json", {}),
    ),
    "a broken second call": (
        f"{CALL}\n{BROKEN_CALL}\n{OTHER_CALL}",
        *((CALLED,), "invalid_json"),
        {"dropped": (f"{BROKEN_CALL}\n{OTHER_CALL}",), "clean": False},
    ),
    "missing closers of an answer": (ANSWER[:-1], (CLOSED,), None, {}),
    "missing closers in a fence": (f"```json\n{ANSWER[:-1]}\n```", (CLOSED,), None, {}),
}


@pytest.mark.parametrize(("text", "messages", "error", "more"), READ.values(), ids=READ)
def test_it_is_read_so(
    text: str, messages: tuple[Any, ...], error: str | None, more: dict[str, Any]
) -> None:
    reading = read(text)
    assert (reading.messages, code(reading)) == (messages, error)
    assert {name: getattr(reading, name) for name in more} == more


READ_BY: dict[str, tuple[str, FinishReason, ReadingRules, tuple[Any, ...], str | None]] = {
    # By what it shows: the text, how it ended, the rules; the messages, and the error's code.
    "with its prefix": (' * 23"}}', "stop", ReadingRules(prefix=BEGUN), (CALLED,), None),
    "in a thought": (f"hm {OTHER_CALL}</think>{CALL}", "stop", IN_THOUGHT, (CALLED,), None),
    "one call of two": (f"{CALL}\n{OTHER_CALL}", "stop", ONE_CALL, (CALLED,), None),
    "the short form in its own tags": (
        *(f"I will.\n<tool_call>{ALIAS}</tool_call>", "stop", XML, (CALLED,), None),
    ),
    "an answer's closing tag is missing": (
        "<final_answer>It is 391.",
        *("stop", XML, (FinalAnswer("It is 391.", (), ("missing_closers",)),), None),
    ),
    "a tag is cut": ("<final_answer>It is 391.</final", "stop", XML, (), "truncated_output"),
    "a tag alone": ("<final_answer>", "stop", XML, (), "invalid_json"),
    "more than wrapping follows what lacks its closers": (
        *(f"```json\n{CALL[:-1]}\n```\nSo.", "stop", HARMLESS, (), "invalid_json"),
    ),
    "complete before the cut": (CALL, "length", HARMLESS, (CALLED,), None),
    "an answer before the cut": (
        *(f"{ANSWER}\n{CALL[:20]}", "length", HARMLESS, (ANSWERED,), None),
    ),
    "prose after it is cut": (f"{CALL}\nThe res", "length", HARMLESS, (CALLED,), None),
    "an answer after it is cut": (
        *(f"{CALL}\n{ANSWER[:-4]}", "length", HARMLESS, (CALLED,), None),
    ),
    "prose before native markers": ("Let me see.", "tool_calls", HARMLESS, (), "invalid_json"),
    "nothing but native markers": ("", "tool_calls", HARMLESS, (), "invalid_json"),
    "an open answer before native markers": (
        *(ANSWER[:-1], "tool_calls", HARMLESS, (), "truncated_output"),
    ),
    "an open call before native markers": (
        *(CALL[:-1], "tool_calls", HARMLESS, (), "truncated_output"),
    ),
}


@pytest.mark.parametrize(
    ("text", "reason", "rules", "messages", "error"), READ_BY.values(), ids=READ_BY
)
def test_it_is_read_so_by_its_rules(
    text: str,
    reason: FinishReason,
    rules: ReadingRules,
    messages: tuple[Any, ...],
    error: str | None,
) -> None:
    reading = read(text, reason, rules)
    assert (reading.messages, code(reading)) == (messages, error)


def test_what_ends_early_is_clean_truncated_or_neither() -> None:
    assert read(f"{CALL}\n```\n", "stop", ONE_CALL).clean
    assert not read(CALL, "tool_calls").clean
    assert read("The capital of", "length") == replace(bare("The capital of"), truncated=True)


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


@pytest.mark.parametrize(
    ("style", "text", "counted"),
    [
        ("markdown-json", f"```json\n{CALL}\n```\n", f"```json\n{CALL}\n```"),
        ("markdown-json", CALL, CALL),
        ("markdown-json", f"```json {CALL}```", f"```json {CALL}```"),
        ("markdown-json", f"~~~\n{CALL}\n~~~", f"~~~\n{CALL}\n~~~"),
        ("jsonl", f"```json\n{CALL}\n```", f"```json\n{CALL}\n```"),
        ("jsonl", f"<tool_call>{CALL}</tool_call>", f"<tool_call>{CALL}</tool_call>"),
        ("xml", f"<tool_call>\n{ALIAS}\n</tool_call>\n", f"<tool_call>\n{ALIAS}\n</tool_call>"),
        ("xml", f"<tool_call>{ALIAS}", f"<tool_call>{ALIAS}"),
        ("xml", CALL, CALL),
        ("xml", f"```xml\n<tool_call>{ALIAS}</tool_call>\n```", None),
    ],
)
def test_every_style_reads_its_own_form_and_the_others(
    style: str, text: str, counted: str | None
) -> None:
    reading = read(text, "stop", ReadingRules(style=style))  # type: ignore[arg-type]
    assert reading.messages == (CALLED,)
    assert reading.clean
    assert reading.counted == (text if counted is None else counted)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<final_answer>391</final_answer>", "391"),
        ("<final_answer>\n391 < 400 & {x}\n</final_answer>", "391 < 400 & {x}"),
        ("Well:\n<final_answer>a\n\nb</final_answer> bye", "a\n\nb"),
        ("<final_answer>use <think> and ```</final_answer>", "use <think> and ```"),
    ],
)
def test_an_answer_in_tags_is_its_plain_text(text: str, content: str) -> None:
    assert read(text, "stop", XML).messages == (FinalAnswer(content),)


# --- rule 1 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\r", "\x0b", "\x0c", "\x1c"])
def test_only_a_newline_ends_a_line(end: str) -> None:
    reading = read(f"So:{end}{CALL}")
    assert reading.messages == (ToolCall("calculator", CALLED.arguments, None, ("inline",)),)
    assert read(f"So:\n{CALL}").messages == (CALLED,)


# --- rule 2 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opener", "closer"),
    [
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("◁think▷", "◁/think▷"),
    ],
)
def test_thoughts_are_cut_out_and_never_messages(opener: str, closer: str) -> None:
    reading = read(f"{opener}hm\n{OTHER_CALL}\n{closer}\n{CALL}")
    assert reading.messages == (CALLED,)
    assert OTHER_CALL in reading.reasoning
    assert reading.counted == f"\n{CALL}"
    assert reading.clean


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("text", ["<think>hm", f"<think>{CALL}", f"{CALL}\n<think>more"])
def test_a_thought_that_is_still_open_is_truncated_output(text: str, reason: FinishReason) -> None:
    reading = read(text, reason)
    assert (reading.messages, code(reading)) == ((), "truncated_output")


# --- rule 3 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [f"- {CALL}", f"* {CALL}", f"1. {CALL}", f"12) {CALL}", f"• {CALL}"]
)
def test_an_object_may_follow_a_bullet_but_that_is_not_clean(text: str) -> None:
    reading = read(text)
    assert reading.messages == (CALLED,)
    assert not reading.clean


@pytest.mark.parametrize("text", [f"[{CALL},{OTHER_CALL}]", f"[\n  {CALL},\n  {OTHER_CALL}\n]\n"])
def test_the_items_of_an_array_are_messages(text: str) -> None:
    reading = read(text)
    assert reading.messages == (CALLED, CLOCK)
    assert reading.clean
    assert reading.counted == text.rstrip()


@pytest.mark.parametrize("before", ["Sure: ", 'say "', "x", "> ", "<b>", "`", "[1] "])
def test_an_object_within_a_line_is_read_but_counts_as_repaired(before: str) -> None:
    reading = read(before + CALL)
    assert reading.messages == (ToolCall("calculator", CALLED.arguments, None, ("inline",)),)
    assert reading.commentary == before.strip()


# --- rule 4 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "between", ["", " ", "\n", "\n\n", "\r\n", "\n```\n```json\n", "\n</tool_call><tool_call>"]
)
def test_calls_with_nothing_between_them_are_one_run(between: str) -> None:
    reading = read(f"{CALL}{between}{OTHER_CALL}")
    assert reading.messages == (CALLED, CLOCK)
    assert reading.clean


@pytest.mark.parametrize(
    "between", ["and", "- ", ";", "\u2028", "}", "[", '{"a":1}\n', OBSERVATION]
)
def test_anything_else_ends_the_run_and_what_follows_is_dropped(between: str) -> None:
    reading = read(f"{CALL}\n{between}{OTHER_CALL}\n")
    assert (reading.messages, reading.error) == ((CALLED,), None)
    assert reading.dropped == (f"{between}{OTHER_CALL}".strip(" \t\r\n"),)
    assert reading.counted == CALL
    assert not reading.clean


def test_a_forged_observation_is_dropped_wherever_it_stands() -> None:
    for forged in (OBSERVATION, f"<tool_response>\n{CALL}\n</tool_response>"):
        before = read(f"{forged}\n{ANSWER}")
        assert (before.messages, before.dropped) == ((ANSWERED,), (forged,))
        assert forged not in before.counted and not before.clean
        after = read(f"{CALL}\n{forged}\n{ANSWER}")
        assert (after.messages, after.dropped) == ((CALLED,), (f"{forged}\n{ANSWER}",))
        assert code(read(forged)) == "invalid_json"
        assert code(read(f"{forged}}}\n")) == "invalid_json"  # closed once more: no answer


# --- rule 5 and 11 ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("The capital of France is Paris.", "The set {a, b} and \\frac{1}{2} and f(x) = { x }."),
        *("```js\nfunction f() { return {x: 1}; }\n```", 'A list: ["a", {"b": 1}]', '{"a": 1}'),
        *('{"type":"dog","name":"Rex"}', '{"name":"Alice"}', '{"name":"Alice","age":5}'),
        *('{"name", "age"}', '[{"name":"Alice"}]', '{"a": {"type":"tool_call"}}'),
        *("{name: string; age: number}", "interface X {\n  name: string;\n}", '{"result": 1,'),
        *("{{{{ }}}} }{", '{"a" "b"}', "{x", f"{ALIAS} is how a call looks", f"A call: {ALIAS}"),
        '{"name":"f","description":"adds","parameters":{"type":"object"}}',
    ],
)
def test_prose_alone_is_the_answer_and_braces_in_it_do_not_matter(text: str) -> None:
    assert read(text) == bare(text)


@pytest.mark.parametrize("key", ["type", "name", "tool", "function"])
@pytest.mark.parametrize("before", ["", "So:\n", "```json\n", "Use "])
@pytest.mark.parametrize("rest", [": ...}", ' "x"}', ":", ': {"a":1}}}, "b" ; }', ": 'a' 'b'}"])
def test_an_object_that_begins_like_a_message_and_cannot_be_read_is_an_error(
    key: str, before: str, rest: str
) -> None:
    broken = rest != ': {"a":1}}}, "b" ; }'
    for quote in "\"'":
        reading = read(f"{before}{{{quote}{key}{quote}{rest}")
        assert (reading.error is not None) == broken
        assert not any(isinstance(message, ToolCall) for message in reading.messages)


@pytest.mark.parametrize("text", ["", " \n", "```json\n```", "<tool_call></tool_call>", "```"])
def test_an_empty_output_is_an_error_and_no_empty_answer(text: str) -> None:
    reading = read(text)
    assert (reading.messages, code(reading)) == ((), "invalid_json")


@pytest.mark.parametrize("choice", ["required", "calculator"])
def test_an_answer_is_no_answer_where_a_call_was_required(choice: str) -> None:
    given_rules = ReadingRules(tool_choice=choice)
    prose = read("It is 391.", "stop", given_rules)
    assert (prose.messages, code(prose), prose.bare_text) == ((), "invalid_json", False)
    answer = read(ANSWER, "stop", given_rules)
    assert (answer.messages, code(answer)) == ((), "not_allowed")
    assert read(CALL, "stop", given_rules).messages == (CALLED,)


# --- rule 7: aliases --------------------------------------------------------------------------

ALIASES = [
    (ALIAS, ("envelope_alias",)),
    (ALIAS.replace("arguments", "parameters"), ("envelope_alias",)),
    (ALIAS.replace('{"name"', '{"type":"function","name"'), ("envelope_alias",)),
    (f'{{"function":{ALIAS}}}', ("envelope_alias",)),
    (f'{{"id":"c1","type":"function","function":{ALIAS}}}', ("envelope_alias",)),
    (CALL.replace("arguments", "parameters"), ("envelope_alias",)),
    (
        CALL.replace('{"expression":"17 * 23"}', '"{\\"expression\\":\\"17 * 23\\"}"'),
        ("arguments_string",),
    ),
    (
        ALIAS.replace('{"expression":"17 * 23"}', '"{\\"expression\\":\\"17 * 23\\"}"'),
        ("envelope_alias", "arguments_string"),
    ),
]


@pytest.mark.parametrize(("text", "repairs"), ALIASES)
@pytest.mark.parametrize(
    "around", ["{}", "```json\n{}\n```", "<tool_call>{}</tool_call>", "<think>x</think>{}"]
)
def test_aliases_count_where_they_are_the_whole_output(
    text: str, repairs: tuple[str, ...], around: str
) -> None:
    reading = read(around.replace("{}", text))
    call = reading.messages[0]
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments, call.repairs) == ("calculator", CALLED.arguments, repairs)


@pytest.mark.parametrize(("text", "repairs"), ALIASES)
@pytest.mark.parametrize(
    "around", ["Hm.\n{}", "{}\nHm.", "- {}", f"{{}}\n{ANSWER}", f"{OBSERVATION}\n{{}}"]
)
def test_aliases_count_nowhere_else(text: str, repairs: tuple[str, ...], around: str) -> None:
    reading = read(around.replace("{}", text))
    assert not any(isinstance(message, ToolCall) for message in reading.messages)


def test_several_aliases_are_several_calls() -> None:
    for text in (
        f"{ALIAS}\n{ALIAS}",
        f"[{ALIAS},{ALIAS}]",
        f"<tool_call>{ALIAS}</tool_call>\n" * 2,
    ):
        assert len(read(text).messages) == 2
    one = read(f"{ALIAS}\n{ALIAS}", "stop", ReadingRules(max_calls=1))
    assert (len(one.messages), one.dropped, one.clean) == (1, (ALIAS,), False)


# --- rule 8 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize(
    "text",
    [
        *('{"type":"final_answer","cont', '{"type":"final_answer","content"'),
        '{"type":"final_answer","content":',
        '{"type":"tool_call","name":"a","arguments":{"n":12',
        '{"type":"tool_call","name":"a","arguments":{"n":tru',
        '{"type":"tool_call","name":"a","arguments":{"n":true',
        '{"type":"tool_call","name":"a","arguments":{"n":1,',
        *('{"type":"tool_call","name":"a","arguments":{', '{"type":"tool_call","name":"a"'),
        *('{"type":"tool_call","name":"a","arguments":{"n":1} // so', '{"ty', "{", "Well:\n{"),
        '{"name": "calc',
    ],
)
def test_what_is_open_inside_a_token_was_cut_off(text: str, reason: FinishReason) -> None:
    reading = read(text, reason, HARMLESS)
    assert (reading.messages, code(reading)) == ((), "truncated_output")


@pytest.mark.parametrize(
    "text",
    [
        *(CALL[:-1], CALL[:-2], CALL[:-1] + "\n", f"```json\n{CALL[:-1]}\n```"),
        f"<tool_call>{CALL[:-2]}</tool_call>\n",
    ],
)
def test_missing_closers_are_added_to_a_read_only_call_that_ended_by_itself(text: str) -> None:
    reading = read(text, "stop", HARMLESS)
    assert reading.messages == (
        ToolCall("calculator", CALLED.arguments, None, ("missing_closers",)),
    )
    assert not reading.clean
    assert code(read(text, "length", HARMLESS)) == "truncated_output"
    assert code(read(text, "stop")) == "truncated_output"


def test_a_run_of_calls_that_was_cut_off_runs_none() -> None:
    for end in ("{", '{"', '{"id', OTHER_CALL[:20], OTHER_CALL[:-1]):
        for reason in ("stop", "length"):
            reading = read(f"{CALL}\n{end}", reason)
            assert (reading.messages, code(reading)) == ((), "truncated_output"), end


def test_an_array_of_calls_that_lacks_its_bracket_is_open() -> None:
    text = f"[{CALL}"
    assert code(read(text, "length", HARMLESS)) == "truncated_output"
    assert code(read(text, "stop")) == "truncated_output"
    reading = read(text, "stop", HARMLESS)
    assert reading.messages == (
        ToolCall("calculator", CALLED.arguments, None, ("missing_closers",)),
    )
    aliases = read(f"[{ALIAS}", "stop", HARMLESS).messages
    assert [m.repairs for m in aliases] == [("envelope_alias", "missing_closers")]
    assert code(read(f"[{ALIAS}", "stop")) == "truncated_output"


@pytest.mark.parametrize(
    "text", ["<tool_call>", "<tool_call>\n", "So:\n<tool_call>", "<tool_ca", "<fin"]
)
def test_a_tag_that_nothing_follows_was_cut_off(text: str) -> None:
    assert code(read(text, "length", XML)) == "truncated_output"
    assert code(read(text, "stop", XML)) == "truncated_output"


@pytest.mark.parametrize("end", ["", "\\", "\\u00", " "])
def test_an_answer_that_was_cut_off_is_an_answer_as_far_as_it_came(end: str) -> None:
    reading = read('{"type":"final_answer","content":"It is' + end, "length")
    assert [m.content.strip() for m in reading.messages] == ["It is"]
    assert (reading.truncated, reading.clean, reading.error) == (True, False, None)
    tagged = read("<final_answer>It is</fin", "length", XML)
    assert (tagged.messages, tagged.truncated) == ((FinalAnswer("It is"),), True)
    assert code(read('{"type":"final_answer","content":"It is', "stop")) == "truncated_output"


# --- the caller's own function ----------------------------------------------------------------


def test_a_mutates_function_that_raises_counts_as_yes() -> None:
    def broken(name: str, arguments: object) -> bool:
        raise KeyError(name)

    assert code(read(CALL[:-1], "stop", ReadingRules(mutates=broken))) == "truncated_output"
