"""Calls in the models' own forms (reading rules 8a to 8c): written here, and read back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import TOOL_NAME, ToolCall, replace
from mlx_tools.protocol import DIALECTS, Dialect, Reader, Reading, ReadingRules, read
from tests.examples import FEW
from tests.protocol.texts import streamed
from tests.tables import table

Call = tuple[str, Mapping[str, Any]]

PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "inner": {"type": "object"},
    },
}
WEATHER = ReadingRules(catalog={"get_weather": {"properties": {"city": {"type": "string"}}}})
ARGUMENTS = {"city": "Paris"}


# --- writing calls as each family does ----------------------------------------------------------


_FUNCTION = "<function={n}>\n{p}</function>"
_PARAMETER = "<parameter={k}>\n{v}\n</parameter>\n"
_INVOKE = '<{}invoke name="{{n}}">\n{{p}}</{}invoke>'
_NAMED = '<{}parameter name="{{k}}">{{v}}</{}parameter>\n'
_DSML = '<｜DSML｜invoke name="{n}">\n{p}</｜DSML｜invoke>'
_DSML_PARAMETER = '<｜DSML｜parameter name="{k}" string="{s}">{v}</｜DSML｜parameter>\n'
_PAIR = "<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n"

FORMS: Mapping[str, tuple[str, ...]] = {
    # All calls, what stands between two, a call, an argument of it, and between two of these:
    # n name, b arguments as JSON, i number, p arguments; k key, v value as text, r as Python's,
    # l as a literal, s whether it is a string, t its type.
    "mistral_args": ("{}", "", "[TOOL_CALLS]{n}[ARGS]{b}"),
    "deepseek": (
        *("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", "\n"),
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{b}\n```<｜tool▁call▁end｜>",
    ),
    "kimi": (
        *("<|tool_calls_section_begin|>{}<|tool_calls_section_end|>", ""),
        "<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{b}<|tool_call_end|>",
    ),
    "harmony": (
        *("{}", "<|start|>assistant"),
        "<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{b}<|call|>",
    ),
    "llama3_function": ("{}", "", "<function={n}>{b}</function>"),
    "functionary": ("{}", ">>>", "{n}\n{b}"),
    "react": ("{}Observation: so", "", "Action: {n}\nAction Input: {b}\n"),
    "call": ("{}", "\n", "call: {n}({b})"),
    "lfm2": ("<|tool_call_start|>[{}]<|tool_call_end|>", ", ", "{n}({p})", "{k}={r}", ", "),
    "llama4": ("<|python_start|>[{}]<|python_end|>", ", ", "{n}({p})", "{k}={r}", ", "),
    "llama3_builtin": ("<|python_tag|>{}", "", "{n}.call({p})", "{k}={r}", ", "),
    "olmo3": ("<function_calls>{}\n</function_calls>", "\n", "{n}({p})", "{k}={r}", ", "),
    "gemma3": ("```tool_code\n{}\n```", "\n", "{n}({p})", "{k}={r}", ", "),
    "qwen3_coder": ("{}", "\n", f"<tool_call>\n{_FUNCTION}\n</tool_call>", _PARAMETER),
    "qwen3_coder_bare": ("{}", "", _FUNCTION, _PARAMETER),
    "seed": ("{}", "\n", f"<seed:tool_call>\n{_FUNCTION}\n</seed:tool_call>", _PARAMETER),
    "minimax_m3": (
        *("]<]minimax[>[<tool_call>\n{}]<]minimax[>[</tool_call>", "\n"),
        ']<]minimax[>[<invoke name="{n}">{p}]<]minimax[>[</invoke>\n',
        "]<]minimax[>[<{k}>{v}]<]minimax[>[</{k}>",
    ),
    **{
        name: (f"<{tag}>\n{{}}</{tag}>", "\n", _INVOKE.format(ns, ns), _NAMED.format(ns, ns))
        for name, tag, ns in (
            *(("minimax_m2", "minimax:tool_call", ""), ("invoke", "function_calls", "")),
            *(("dots", "dots_function_call", ""), ("muse", "atem:function_calls", "atem:")),
            *(("antml", "antml:function_calls", "antml:"),),
        )
    },
    **{
        name: (f"<｜DSML｜{tag}>\n{{}}</｜DSML｜{tag}>", "\n", _DSML, _DSML_PARAMETER)
        for name, tag in (("deepseek_dsml", "function_calls"), ("deepseek_v4", "tool_calls"))
    },
    "gigachat_xml": (
        *("<｜GCML｜tool_calls>\n{}</｜GCML｜tool_calls>", "\n"),
        *(_DSML.replace("DSML", "GCML"), _DSML_PARAMETER.replace("DSML", "GCML")),
    ),
    "step3": (
        *("<｜tool_calls_begin｜>\n{}<｜tool_calls_end｜>", "\n"),
        f"<｜tool_call_begin｜>{_INVOKE.format('steptml:', 'steptml:')}<｜tool_call_end｜>",
        _NAMED.format("steptml:", "steptml:"),
    ),
    "minicpm": (
        *("{}", "", '<function name="{n}">{p}</function>'),
        '<param name="{k}"><![CDATA[{v}]]></param>',
    ),
    "kimi_k3": (
        *("<|open|>tools<|sep|>\n{}<|close|>tools<|sep|>", "\n"),
        '<|open|>call tool="{n}" index="1"<|sep|>{p}<|close|>call<|sep|>',
        '<|open|>argument key="{k}" type="{t}"<|sep|>{v}<|close|>argument<|sep|>',
    ),
    "glm": ("{}", "", "<tool_call>{n}\n{p}</tool_call>", _PAIR),
    "longcat_pairs": (
        *("{}", "", "<longcat_tool_call>{n}\n{p}</longcat_tool_call>"),
        _PAIR.replace("arg_", "longcat_arg_"),
    ),
    "hunyuan_v3": (
        *("<tool_calls>{}</tool_calls>", "", "<tool_call>{n}<tool_sep>{p}</tool_call>", _PAIR),
    ),
    **{
        name: ("{}", "\n", f"<{tag}_tool_call>{{n}}\n{{p}}</{tag}_tool_call>", _PAIR)
        for name, tag in (("iquest", "iquest"), ("iquest_coder", "iquestcoder"))
    },
    "k2_horizon": (
        *("<ifm|tool_calls>\n{}\n</ifm|tool_calls>", "\n"),
        *("<ifm|tool_call>{n}\n{p}</ifm|tool_call>", _PAIR.replace("arg_", "ifm|arg_")),
    ),
    "solar": (
        *("{}", "\n", "<|tool_call:start|>{n}\n{p}<|tool_call:end|>"),
        "<|tool_arg:start|>{k}<|tool_arg:value|>{v}<|tool_arg:end|>\n",
    ),
    "plamo": (
        *("<|plamo:begin_tool_requests:plamo|>{}<|plamo:end_tool_requests:plamo|>", ""),
        "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{n}"
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>{b}"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
    ),
    "inkling": (
        *("{}", ""),
        "<|message_model|>{n}<|content_invoke_tool_json|>"
        '{{"name": "{n}", "args": {b}}}<|end_message|>',
    ),
    "functionary_v2": ("{}<|stop|>", "\n", "<|recipient|>{n}\n<|content|>{b}"),
    "qwen_agent": ("{}✿RESULT✿: ", "", "✿FUNCTION✿: {n}\n✿ARGS✿: {b}\n"),
    "tool_lines": ("{}", "", "Tool: {n}\nTool Input: {b}\n"),
    "tool_names": ("{}", "", "Tool Name: {n}\nParameters: {b}\n"),
    "function_lines": ("{}", "", "Function: {n}\nArguments: {b}\n"),
    "steps": ("{}", "", "Tool Call: {n}\nInput: {b}\n"),
    "pythonic": ("[{}]", ", ", "{n}({p})", "{k}={r}", ", "),
    "nexusraven": ("Call: {}<bot_end>", "; ", "{n}({p})", "{k}={r}", ", "),
    "gorilla": ("{}", "", "<<function>>{n}({p})", "{k}={r}", ", "),
    "tool_code": ("<tool_code>\n{}\n</tool_code>", "\n", "{n}({p})", "{k}={r}", ", "),
    "smollm3_code": ("<code>\n{}\n</code>", "\n", "{n}({p})", "{k}={r}", ", "),
    "mcp_tool": (
        *("{}", "\n"),
        "<use_mcp_tool>\n<server_name>s</server_name>\n<tool_name>{n}</tool_name>\n"
        "<arguments>\n{b}\n</arguments>\n</use_mcp_tool>",
    ),
    "gemma4": ("{}", "", "<|tool_call>call:{n}{{{p}}}<tool_call|>", "{k}:{l}", ","),
    "functiongemma": (
        *("{}", "", "<start_function_call>call:{n}{{{p}}}<end_function_call>", "{k}:{l}", ","),
    ),
}
_TYPES = {str: "string", bool: "boolean", list: "array", dict: "object"}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _literal(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_literal(v, quote)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_literal(item, quote) for item in value) + "]"
    return json.dumps(value)


def written(dialect: Dialect, calls: list[Call]) -> str:
    """The calls as this family writes them."""
    if dialect.body == "json":
        return _objects(dialect, calls)
    whole, between, call, member, separator = (*FORMS[dialect.name], "", "")[:5]
    quote = dialect.inner[0] if dialect.body == "literal" else ""
    each = []
    for number, (name, arguments) in enumerate(calls):
        parts = [
            member.format(
                k=key,
                v=value if isinstance(value, str) else _json(value),
                r=repr(value),
                l=_literal(value, quote),
                s=str(isinstance(value, str)).lower(),
                t=_TYPES.get(type(value), "number"),
            )
            for key, value in arguments.items()
        ]
        body = json.dumps(arguments)
        each.append(call.format(n=name, b=body, i=number, p=separator.join(parts)))
    return whole.format(between.join(each))


def _objects(dialect: Dialect, calls: list[Call]) -> str:
    keys = dialect.name_key, dialect.arguments_key
    objects = [
        _json({keys[0]: name, keys[1]: arguments} if keys[0] else {name: arguments})
        for name, arguments in calls
    ]
    if dialect.form in ("array", "any"):
        return f"{dialect.open}[{', '.join(objects)}]{dialect.close}"
    if dialect.form == "objects":
        return dialect.open + f"{dialect.separator} ".join(objects) + dialect.close
    return "\n".join(f"{dialect.open}{one}{dialect.close}" for one in objects)


SINGLE = frozenset(("llama3_builtin",))
"""Families that write one call a turn."""


# --- reading them back ----------------------------------------------------------------------------

_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: bool(TOOL_NAME.fullmatch(name)) and name not in ("call", "function", "functions")
)
_words = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<>[]|｜`"))
_texts = _words.map(str.strip).filter(lambda text: text[:1] != '"')
_values = {
    "text": _texts,
    "count": st.integers(-(2**53), 2**53),
    "share": st.floats(-1e6, 1e6).filter(lambda x: not x.is_integer() and abs(x) > 1e-4),
    "flag": st.booleans(),
    "list": st.lists(st.integers(0, 99) | _texts.filter(bool), min_size=1, max_size=3),
    "inner": st.dictionaries(st.sampled_from(["a", "b"]), st.integers(), min_size=1),
}
_arguments = st.fixed_dictionaries({}, optional=_values)
_calls = st.lists(st.tuples(_names, _arguments), min_size=1, max_size=3)
_beside = st.sampled_from(["", "Let me see.\n", "I will look it up: ", "Erst {a}, dann `x`.\n\n"])


def _rules(calls: list[Call]) -> ReadingRules:
    return ReadingRules(catalog={name: PARAMETERS for name, _ in calls})


def _read_calls(reading: Reading) -> list[Call]:
    return [(m.name, m.arguments) for m in reading.messages if isinstance(m, ToolCall)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@FEW
@given(calls=_calls, before=_beside, sizes=st.sampled_from([(1,), (1, 2, 5, 30), (3, 1)]))
def test_what_a_family_writes_is_read_back_streamed_as_whole(
    dialect: Dialect, calls: list[Call], before: str, sizes: tuple[int, ...]
) -> None:
    calls = calls[:1] if dialect.name in SINGLE else calls
    if (dialect.line and not before.endswith("\n")) or dialect.name == "functionary":
        before = ""
    text = before + written(dialect, calls)
    reading = read(text, "stop", _rules(calls))
    assert _read_calls(reading) == calls, text
    assert all("dialect" in m.repairs for m in reading.messages)
    assert streamed(text, _rules(calls), sizes=sizes) == reading


@table("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_call_that_is_cut_off_anywhere_is_no_answer_and_no_other_call(dialect: Dialect) -> None:
    call = ("get_weather", {"city": "Paris in spring"})
    text = written(dialect, [call])
    beginning = text.find("city")
    for end in range(beginning, text.rfind("spring") + 3):
        reading = read(text[:end], "length", WEATHER)
        assert reading.messages == () and reading.error is not None, text[:end]


@table("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_without_tools_a_dialect_is_prose(dialect: Dialect) -> None:
    text = f"So:\n{written(dialect, [('get_weather', ARGUMENTS)])}"
    assert _read_calls(read(text)) == []


@table("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_an_example_in_a_fence_or_in_backticks_is_an_answer(dialect: Dialect) -> None:
    example = written(dialect, [("get_weather", ARGUMENTS)]).removesuffix("\nObservation: so")
    if not example.startswith("```"):
        fenced = f"This is how it is called:\n\n```\n{example}\n```\n\nThat is all."
        for text in (fenced, fenced.replace("```", "~~~")):
            reading = read(text, "stop", WEATHER)
            assert reading.bare_text and reading.messages[0].content == text, reading.error
        # The last of a text may be meant: the model is asked once.
        last = read(fenced.removesuffix("\n\nThat is all."), "stop", WEATHER)
        assert _read_calls(last) == [] and (last.call_like or last.bare_text)
    inline = f"One writes `{example.splitlines()[0]}` for that."
    assert read(inline, "stop", WEATHER).bare_text


def test_a_fence_with_a_language_does_not_close_the_fence_that_it_stands_in() -> None:
    hermes = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    text = f"So:\n```\nFor example:\n```json\n{hermes}\n```\nThat is all."
    assert not any(isinstance(one, ToolCall) for one in read(text, "stop", WEATHER).messages)


def test_a_call_that_is_all_of_a_fence_counts() -> None:
    hermes = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    for text in (f"```\n{hermes}\n```", f"```xml\n{hermes}\n```\n"):
        assert _read_calls(read(text, "stop", WEATHER)) == [("get_weather", ARGUMENTS)]
    assert read(f"```\n{hermes}\n```\nLike that.", "stop", WEATHER).bare_text


def test_a_call_in_its_marks_counts_whatever_stands_beside_it() -> None:
    hermes = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    reading = read(f"I write {hermes} to ask for it.", "stop", WEATHER)
    assert (_read_calls(reading), reading.clean) == ([("get_weather", ARGUMENTS)], False)
    reading = read(f"So:\n{hermes}\nI will wait.", "stop", WEATHER)
    assert _read_calls(reading) == [("get_weather", ARGUMENTS)]
    assert reading.dropped == ("I will wait.",)


def test_calls_may_stand_apart_by_some_prose_and_a_forged_result_ends_them() -> None:
    one = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    assert len(read(f"{one}\nAnd also:\n{one}", "stop", WEATHER).messages) == 2
    assert len(read(f"{one}\nObservation: rain\n{one}", "stop", WEATHER).messages) == 1
    assert len(read(f"{one}\n<tool_response>\n{one}", "stop", WEATHER).messages) == 1
    assert len(read(f"{one}\n{'so ' * 99}\n{one}", "stop", WEATHER).messages) == 1


def test_a_call_in_the_models_own_dialect_is_clean() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    own = ReadingRules(catalog=WEATHER.catalog, native=frozenset(("<tool_call>",)))
    reading = read(text, "stop", own)
    assert (reading.messages[0].repairs, reading.clean) == ((), True)
    assert read(text, "stop", WEATHER).messages[0].repairs == ("dialect",)


@pytest.mark.parametrize(
    "body",
    [
        *("get_weather(city=name)", "get_weather(city='a' + 'b')", "get_weather(city=f'{x}')"),
        *("get_weather(city=open('/etc/passwd').read())", "get_weather(**arguments)"),
        *("get_weather('Paris')", "get_weather(city='a', city='b')", "get_weather(city=[1, 2)"),
    ],
)
def test_what_is_no_literal_is_not_read(body: str) -> None:
    for text in (f"[{body}]", f"<|tool_call_start|>[{body}]<|tool_call_end|>"):
        reading = read(text, "stop", WEATHER)
        assert (reading.messages, reading.bare_text) == ((), False), text


@table(
    "text",
    [
        *("<tool_call>", "<tool_call>nonsense</tool_call>"),
        *('<tool_call>{"name": 5}</tool_call>', '[TOOL_CALLS]{"city": "Paris"}'),
        '<tool_call>{"type":"final_answer","name":"get_weather","arguments":{}}</tool_call>',
        "<|python_tag|>print(1 + 1)",
        "Thought: rain?\nAction: get_weather",
        'Here: {"tool": "get_weather", "city": "Paris"}',
        '{"action": "get_weather", "action_input": }',
        '```json\n{"tool": "get_weather", "city": "Paris"}\n```',
    ],
)
def test_what_looks_like_a_call_is_no_answer(text: str) -> None:
    reading = read(text, "stop", WEATHER)
    assert reading.messages == ()
    assert reading.error is not None


@pytest.mark.parametrize(
    "text",
    [
        *("I used get_weather (see above).", "Call `get_weather(city='Paris')`"),
        *("The function f(x) = g(x)", "Action: take an umbrella", '{"name": "Ann", "age": 5}'),
        *("A list: [one](http://a), [two](http://b)", "[Paris] is lovely (so they say)"),
        *("call: me tomorrow", "functools is a module", "An <b>answer</b> with <i>tags</i>"),
        # Within a sentence a call is only spoken of.
        *("get_weather(city='Paris') is how it is called.", "Try f(get_weather('Oslo') first)."),
        *("I call get_weather(city='Paris')", "I will use <tool_call> now."),
    ],
)
def test_ordinary_prose_is_an_answer(text: str) -> None:
    reading = read(text, "stop", WEATHER)
    assert reading.bare_text and reading.messages[0].content == text


@pytest.mark.parametrize(
    "end", ["<|im_end|>", "</s>", "<|eot_id|>", "\nUser: more", "<end_of_turn>"]
)
def test_the_end_of_the_turn_ends_the_answer(end: str) -> None:
    rules = ReadingRules(catalog=WEATHER.catalog, ends=("\nUser:",))
    reader = Reader(rules)
    for char in f"It rains.{end} And <tool_call>":
        reader.feed(char)
    assert reader.done
    reading = reader.finish()
    assert [m.content for m in reading.messages] == ["It rains."]
    assert reading.retained_text.strip() == "It rains."
    # The model ended its turn, whatever the server says of the length.
    whole = read(f"It rains.{end} And", "length", rules)
    assert (whole.messages, whole.truncated) == (reading.messages, False)
    shown = "In `a</s>b` and\n```\n<|im_end|>\n```\n<s>old</s> it stands."
    assert read(shown, "stop", rules).messages[0].content == shown


@pytest.mark.parametrize("mark", ["<|tool_call|>", "<TOOLCALL>", "[TOOL_CALLS]"])
def test_of_an_array_no_more_calls_count_than_may_be_made(mark: str) -> None:
    one = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    text = f"{mark}[{one}, {one}, {one}]"
    for most, counted in ((1, f"{mark}[{one}"), (2, f"{mark}[{one}, {one}"), (3, text)):
        rules = replace(WEATHER, native=frozenset((mark,)), max_calls=most)
        reading = read(text, "stop", rules)
        assert len(reading.messages) == most and reading.error is None
        assert reading.retained_text == counted and bool(reading.dropped) == (most < 3)
        assert streamed(text, rules) == reading


@pytest.mark.parametrize("mark", ["<tool_call>", "<TOOLCALL>"])
def test_one_comma_or_semicolon_separates_calls_and_two_do_not(mark: str) -> None:
    def call_to(city: str) -> str:
        return f'{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}'

    for separator, cities in (
        *((",", ["Oslo", "Rome"]), (";", ["Oslo", "Rome"]), (" ,\n", ["Oslo", "Rome"])),
        *((two, ["Oslo"]) for two in (",,", ",;", ";,", ",\n,\n", "\n,\n,")),
    ):
        text = f"{mark}{call_to('Oslo')}{separator}{call_to('Rome')}"
        reading = read(text, "stop", WEATHER)
        found = [arguments["city"] for _, arguments in _read_calls(reading)]
        assert found == cities, separator
        assert (reading.dropped == ()) == (len(cities) == 2)
        assert streamed(text, WEATHER) == reading


def test_what_is_no_call_behind_a_mark_is_looked_at_once() -> None:
    call = '<tool_calls>{"name": "get_weather", "arguments": {"city": "Paris"}}'
    for text in (f'{call}<tool_calls>{{"\n', f'{call}\n<tool_calls>{{"\n{call}'):
        reading = read(text, "stop", WEATHER)
        assert streamed(text, WEATHER) == reading
        assert _read_calls(reading) == [("get_weather", ARGUMENTS)] * (2 if "\n<" in text else 1)


def test_an_object_that_is_no_call_cuts_off_none_that_stands_before_it() -> None:
    one = '<function_call> {"name": "get_weather", "arguments": {"city": "Paris"}}'
    reading = read(f'{one}\n<|tools_prefix|>[{{"also": {{"city": "Oslo"}}', "stop", WEATHER)
    assert _read_calls(reading) == [("get_weather", ARGUMENTS)]
    assert reading.error is not None and reading.error.code == "invalid_json"


@pytest.mark.parametrize(
    ("text", "city"),
    [
        # in one family a parameter is XML, in the other it is as it is written
        ("<function=get_weather><parameter=city>A &lt; B</parameter></function>", "A &lt; B"),
        ('<invoke name="get_weather"><param name="city">A &lt; B</param></invoke>', "A < B"),
    ],
)
def test_entities_are_read_where_a_parameter_is_xml(text: str, city: str) -> None:
    reading = read(f"<tool_call>{text}</tool_call>", "stop", WEATHER)
    assert _read_calls(reading) == [("get_weather", {"city": city})]


def test_a_value_without_a_type_is_text_and_another_is_data() -> None:
    rules = ReadingRules(catalog={"t": {}})
    given = (("a", "", "12"), ("b", ' type="string"', "13"), ("c", ' type="number"', "14"))
    lines = "".join(
        f'<|open|>argument key="{key}"{kind}<|sep|>{value}<|close|>argument<|sep|>'
        for key, kind, value in given
    )
    call = f'<|open|>call tool="t" index="1"<|sep|>{lines}<|close|>call<|sep|>'
    reading = read(f"<|open|>tools<|sep|>\n{call}<|close|>tools<|sep|>", "stop", rules)
    assert _read_calls(reading) == [("t", {"a": "12", "b": "13", "c": 14})]


@pytest.mark.parametrize("number", ["007", "-01", "00", "0_7"])
def test_a_number_that_python_would_not_read_is_no_literal(number: str) -> None:
    rules = ReadingRules(catalog={"t": {}})
    for value in (number, f"[{number}]", f"{{'a': {number}}}"):
        reading = read(f"[t(x={value})]", "stop", rules)
        assert _read_calls(reading) == [], value
    for value, read_as in (("7", 7), ("0", 0), ("-0.5", -0.5), ("1_000", 1000)):
        reading = read(f"[t(x={value})]", "stop", rules)
        assert _read_calls(reading) == [("t", {"x": read_as})]


# --- values between tags --------------------------------------------------------------------------

TAGGED = [dialect for dialect in DIALECTS if dialect.body in ("xml", "pairs")]
FILE = ReadingRules(
    catalog={
        "read_file": {
            "properties": {
                "path": {"type": "string"},
                "lines": {"type": "integer"},
                "note": {"type": "string"},
            }
        }
    }
)
FILE_CALL: Call = ("read_file", {"path": "a.txt", "lines": 3, "note": "two words"})
_MARK = re.compile(r"\]<\]minimax\[>\[</?\w+>|</?[|｜][^<>]*>(?:\w+<\|sep\|>)?|</?[\w:.]+[^<>]*>")


def _value_ends(dialect: Dialect, text: str) -> list[int]:
    """The places where each value's closing mark begins."""
    form = FORMS[dialect.name]
    after = form[3].split("{v}")[1]
    closing = [after.strip().split("\n")[0].format(k=key) for key in FILE_CALL[1]]
    return [
        text.index(mark, text.index(str(v)))
        for mark, v in zip(closing, FILE_CALL[1].values(), strict=True)
    ]


def _holds_no_mark(reading: Reading) -> bool:
    """Return True if no key and no value of any call, nor an answer, holds a family's mark."""
    return not any(
        mark
        in json.dumps(
            [message.arguments if isinstance(message, ToolCall) else message.content],
            ensure_ascii=False,
        )
        for message in reading.messages
        for mark in ("<", "｜", "minimax")
    )


@table("dialect", TAGGED, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("layout", ["its own", "lines", "indented", "one line"])
def test_no_value_takes_in_a_mark_where_one_is_left_out(dialect: Dialect, layout: str) -> None:
    text = written(dialect, [FILE_CALL])
    if layout == "one line":
        text = text.replace("\n", "")
    elif layout != "its own":
        text = _MARK.sub("\n  \\g<0>" if layout == "indented" else "\n\\g<0>", text).strip()
    for mark in _MARK.finditer(text):
        damaged = text[: mark.start()] + text[mark.end() :]
        reading = read(damaged, "stop", FILE)
        assert _holds_no_mark(reading) or reading.bare_text, damaged
        assert streamed(damaged, FILE, sizes=(3, 1)) == reading


MARKS_OF_ARGUMENTS = [one for one in TAGGED if one.name not in ("minimax_m3", "minicpm")]


@table("dialect", MARKS_OF_ARGUMENTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_value_without_its_end_ends_before_the_next_mark(dialect: Dialect, number: int) -> None:
    text = written(dialect, [FILE_CALL])
    at = _value_ends(dialect, text)[number]
    end = next(mark.end() for mark in _MARK.finditer(text) if mark.start() == at)
    rest = text[end:].removeprefix("\n") if text[at - 1] == "\n" else text[end:]
    if "\n" not in text[at - 1 : end + 1]:
        rest = f"\n{rest}"  # the next mark begins a line
    damaged = text[:at] + rest
    reading = read(damaged, "stop", FILE)
    assert _read_calls(reading) == [FILE_CALL], damaged
    assert "missing_closers" in reading.messages[0].repairs


@pytest.mark.parametrize("dialect", MARKS_OF_ARGUMENTS, ids=lambda dialect: dialect.name)
def test_a_value_that_runs_into_an_unknown_key_is_an_error(dialect: Dialect) -> None:
    text = written(dialect, [("read_file", {"path": "a.txt", "speed": 3})]).replace(
        "a.txt", "a.txt\n", 1
    )
    at = text.index("a.txt\n") + len("a.txt\n")
    mark = _MARK.search(text, at)
    assert mark is not None
    reading = read(text[:at] + text[mark.end() :].lstrip("\n"), "stop", FILE)
    assert reading.messages == () and reading.error is not None
    assert reading.error.code == "invalid_json"


@table("dialect", MARKS_OF_ARGUMENTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_value_loses_one_line_break_at_each_end(dialect: Dialect, newline: str) -> None:
    for value, expected in (
        *((f"a.txt{newline}", "a.txt"), (f"{newline}a.txt{newline}", "a.txt")),
        *((f"{newline}a.txt", "a.txt"), ("two words", "two words")),
        *((f"{newline}a\nb\n{newline}", "a\nb\n"), (f"{newline}{newline}", "")),
        ("a\n  b\n", "a\n  b\n"),  # a file that begins right behind its mark
    ):
        calls = [("read_file", {"note": value})]
        text = written(dialect, calls)
        if f"\n{value}\n" in text:
            text = text.replace(f"\n{value}\n", value)
        assert _read_calls(read(text, "stop", FILE)) == [("read_file", {"note": expected})], text


def test_a_mark_within_a_line_of_a_value_is_text() -> None:
    note = "Write <parameter=x> or <arg_key>, and </function> after it: a < b > c."
    for name in ("qwen3_coder", "glm", "invoke"):
        (dialect,) = (one for one in TAGGED if one.name == name)
        call: Call = ("read_file", {"note": note})
        assert _read_calls(read(written(dialect, [call]), "stop", FILE)) == [call]


def test_elements_in_an_element_are_items_or_members() -> None:
    mark = "]<]minimax[>["

    def element(tag: str, *inside: str) -> str:
        return f"{mark}<{tag}>{''.join(inside)}{mark}</{tag}>"

    point = {"type": "object", "properties": {"x": {"type": "number"}, "name": {"type": "string"}}}
    properties = {"points": {"type": "array", "items": point}, "first": point}
    rules = ReadingRules(catalog={"draw": {"type": "object", "properties": properties}})
    item = element("item", element("x", "1.5"), element("name", "5"))
    first = element("first", "\n", element("x", "2"), "\n")
    for body, arguments in (
        (element("points", item, item) + first, {"points": [{"x": 1.5, "name": "5"}] * 2}),
        (element("first", element("x", "1"), element("x", "2")), None),
        (element("points", item, element("x", "1")), None),
        (f"{mark}<first>{mark}<x>1{mark}</first>", None),
    ):
        call = f'{mark}<invoke name="draw">{body}{mark}</invoke>'
        reading = read(f"{mark}<tool_call>{call}{mark}</tool_call>", "stop", rules)
        calls = [dict(one.arguments) for one in reading.messages if isinstance(one, ToolCall)]
        assert calls == ([] if arguments is None else [{**arguments, "first": {"x": 2}}]), body
