"""Calls in the models' own forms (reading rules 8a to 8c): written here, and read back."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import TOOL_NAME, ToolCall
from mlx_tools.protocol import DIALECTS, Dialect, Reader, Reading, ReadingRules, read
from tests.examples import FEW

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


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _object(dialect: Dialect, call: Call) -> str:
    name, arguments = call
    if not dialect.name_key:
        return json.dumps({name: arguments}, ensure_ascii=False)
    keyed = {dialect.name_key: name, dialect.arguments_key: arguments}
    return json.dumps(keyed, ensure_ascii=False)


def _json(dialect: Dialect, calls: list[Call]) -> str:
    objects = [_object(dialect, call) for call in calls]
    if dialect.form in ("array", "any"):
        return f"{dialect.open}[{', '.join(objects)}]{dialect.close}"
    if dialect.form == "objects":
        return dialect.open + f"{dialect.separator} ".join(objects) + dialect.close
    return "\n".join(f"{dialect.open}{one}{dialect.close}" for one in objects)


def _named(dialect: Dialect, calls: list[Call]) -> str:
    written = [(name, json.dumps(arguments)) for name, arguments in calls]
    match dialect.name:
        case "mistral_args":
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{body}" for name, body in written)
        case "deepseek":
            begin, part, end = dialect.inner
            each = (f"{begin}function{part}{name}\n```json\n{b}\n```{end}" for name, b in written)
            return dialect.open + "\n".join(each) + dialect.close
        case "kimi":
            begin, part, end = dialect.inner
            numbered = enumerate(written)
            each = (f"{begin}functions.{n}:{i}{part}{b}{end}" for i, (n, b) in numbered)
            return dialect.open + "".join(each) + dialect.close
        case "harmony":
            to = "commentary to=functions.{} <|constrain|>json<|message|>"
            each = (f"{dialect.open}{to.format(n)}{b}{dialect.close}" for n, b in written)
            return "<|start|>assistant".join(each)
        case "llama3_function":
            return "".join(f"<function={name}>{body}</function>" for name, body in written)
        case "functionary":
            return ">>>".join(f"{name}\n{body}" for name, body in written)
        case "react":
            each = (f"Action: {name}\nAction Input: {body}\n" for name, body in written)
            return "".join(each) + "Observation: so"
    return "\n".join(f"call: {name}({body})" for name, body in written)


def _python(dialect: Dialect, calls: list[Call]) -> str:
    each = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    ]
    match dialect.name:
        case "olmo3" | "gemma3":
            return dialect.open + "\n".join(each) + f"\n{dialect.close}"
        case "pythonic":
            return f"[{', '.join(each)}]"
        case "llama3_builtin":
            return dialect.open + each[0].replace("(", ".call(", 1)
    return f"{dialect.open}[{', '.join(each)}]{dialect.close}"


def _tagged(dialect: Dialect, calls: list[Call]) -> str:
    each = []
    for name, arguments in calls:
        match dialect.name:
            case "qwen3_coder" | "qwen3_coder_bare" | "seed":
                inside = "".join(
                    f"<parameter={key}>\n{_plain(value)}\n</parameter>\n"
                    for key, value in arguments.items()
                )
                each.append(f"<function={name}>\n{inside}</function>")
            case "minicpm":
                inside = "".join(
                    f'<param name="{key}"><![CDATA[{_plain(value)}]]></param>'
                    for key, value in arguments.items()
                )
                each.append(f'<function name="{name}">{inside}</function>')
            case "minimax_m3":
                m = "]<]minimax[>["
                inside = "".join(f"{m}<{k}>{_plain(v)}{m}</{k}>" for k, v in arguments.items())
                each.append(f'{m}<invoke name="{name}">{inside}{m}</invoke>\n')
            case "kimi_k3":
                inside = "".join(_k3_argument(key, value) for key, value in arguments.items())
                begin = f'<|open|>call tool="{name}" index="1"<|sep|>'
                each.append(f"{begin}{inside}<|close|>call<|sep|>")
            case _:
                space = {"muse": "atem:", "step3": "steptml:"}.get(dialect.name, "")
                space = "｜DSML｜" if dialect.name.startswith("deepseek") else space
                each.append(_invoke(space, name, arguments))
    if dialect.open in ("<function=", "<function name="):
        return "".join(each)
    if dialect.name == "step3":
        each = [f"<｜tool_call_begin｜>{one}<｜tool_call_end｜>" for one in each]
    if dialect.name in ("qwen3_coder", "seed"):
        return "\n".join(f"{dialect.open}\n{one}\n{dialect.close}" for one in each)
    return f"{dialect.open}\n" + "\n".join(each) + dialect.close


def _invoke(space: str, name: str, arguments: Mapping[str, Any]) -> str:
    inside = ""
    for key, value in arguments.items():
        kind = f' string="{str(isinstance(value, str)).lower()}"' if "DSML" in space else ""
        inside += f'<{space}parameter name="{key}"{kind}>{_plain(value)}</{space}parameter>\n'
    return f'<{space}invoke name="{name}">\n{inside}</{space}invoke>'


def _k3_argument(key: str, value: Any) -> str:
    kinds = {str: "string", bool: "boolean", list: "array", dict: "object"}
    kind = kinds.get(type(value), "number")
    begin = f'<|open|>argument key="{key}" type="{kind}"<|sep|>'
    return f"{begin}{_plain(value)}<|close|>argument<|sep|>"


def _pairs(dialect: Dialect, calls: list[Call]) -> str:
    p = "longcat_" if dialect.name.startswith("longcat") else ""
    each = []
    for name, arguments in calls:
        inside = "".join(
            f"<{p}arg_key>{key}</{p}arg_key>\n<{p}arg_value>{_plain(value)}</{p}arg_value>\n"
            for key, value in arguments.items()
        )
        each.append(name + ("<tool_sep>" if dialect.name == "hunyuan_v3" else "\n") + inside)
    if dialect.name == "hunyuan_v3":
        inner = "".join(f"<tool_call>{one}</tool_call>" for one in each)
        return f"{dialect.open}{inner}{dialect.close}"
    return "".join(f"{dialect.open}{one}{dialect.close}" for one in each)


def _literal(dialect: Dialect, calls: list[Call]) -> str:
    quote = dialect.inner[0]

    def write(value: Any) -> str:
        if isinstance(value, str):
            return f"{quote}{value}{quote}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{write(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(write, value)) + "]"
        return json.dumps(value)

    return "".join(
        f"{dialect.open}call:{name}{write(arguments)}{dialect.close}" for name, arguments in calls
    )


WRITERS: Mapping[str, Callable[[Dialect, list[Call]], str]] = {
    "json": _json,
    "named_json": _named,
    "python": _python,
    "xml": _tagged,
    "pairs": _pairs,
    "literal": _literal,
}
SINGLE = frozenset(("llama3_builtin",))
"""Families that write one call a turn."""


def written(dialect: Dialect, calls: list[Call]) -> str:
    """The calls as this family writes them."""
    return WRITERS[dialect.body](dialect, calls)


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


def _in_pieces(text: str, rules: ReadingRules, sizes: random.Random) -> Reading:
    reader = Reader(rules)
    pos = 0
    while pos < len(text):
        size = sizes.choice((1, 1, 2, 5, 30))
        reader.feed(text[pos : pos + size])
        pos += size
    return reader.finish("stop")


def _read_calls(reading: Reading) -> list[Call]:
    return [(m.name, m.arguments) for m in reading.messages if isinstance(m, ToolCall)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@FEW
@given(calls=_calls, before=_beside, seed=st.integers(0, 99))
def test_what_a_family_writes_is_read_back_streamed_as_whole(
    dialect: Dialect, calls: list[Call], before: str, seed: int
) -> None:
    calls = calls[:1] if dialect.name in SINGLE else calls
    if (dialect.line and not before.endswith("\n")) or dialect.name == "functionary":
        before = ""
    text = before + written(dialect, calls)
    reading = read(text, "stop", _rules(calls))
    assert _read_calls(reading) == calls, text
    assert all("dialect" in m.repairs for m in reading.messages)
    assert _in_pieces(text, _rules(calls), random.Random(seed)) == reading


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_call_that_is_cut_off_anywhere_is_no_answer_and_no_other_call(dialect: Dialect) -> None:
    call = ("get_weather", {"city": "Paris in spring"})
    text = written(dialect, [call])
    beginning = text.find("city")
    for end in range(beginning, text.rfind("spring") + 3):
        reading = read(text[:end], "length", WEATHER)
        assert reading.messages == () and reading.error is not None, text[:end]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_without_tools_a_dialect_is_prose(dialect: Dialect) -> None:
    text = f"So:\n{written(dialect, [('get_weather', ARGUMENTS)])}"
    assert _read_calls(read(text)) == []


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_an_example_in_a_fence_or_in_backticks_is_an_answer(dialect: Dialect) -> None:
    example = written(dialect, [("get_weather", ARGUMENTS)]).removesuffix("\nObservation: so")
    if not example.startswith("```"):
        fenced = f"This is how it is called:\n\n```\n{example}\n```\n\nThat is all."
        for text in (fenced, fenced.replace("```", "~~~"), fenced.removesuffix("\n\nThat is all.")):
            reading = read(text, "stop", WEATHER)
            assert reading.bare_text and reading.messages[0].content == text, reading.error
    inline = f"One writes `{example.splitlines()[0]}` for that."
    assert read(inline, "stop", WEATHER).bare_text


def test_a_call_that_is_all_of_a_fence_counts() -> None:
    hermes = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    for text in (f"```\n{hermes}\n```", f"```xml\n{hermes}\n```\n"):
        assert _read_calls(read(text, "stop", WEATHER)) == [("get_weather", ARGUMENTS)]
    assert read(f"```\n{hermes}\n```\nLike that.", "stop", WEATHER).bare_text


def test_a_call_that_prose_follows_in_its_line_is_refused() -> None:
    hermes = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    reading = read(f"Write {hermes} to ask for it.", "stop", WEATHER)
    assert (reading.messages, reading.call_like) == ((), True)
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


@pytest.mark.parametrize(
    "text",
    [
        *("<tool_call>", "I will use <tool_call> now.", "<tool_call>nonsense</tool_call>"),
        *('<tool_call>{"name": 5}</tool_call>', '[TOOL_CALLS]{"city": "Paris"}'),
        *("<|python_tag|>print(1 + 1)", 'get_weather({"city": "Paris"})'),
        *("I call get_weather(city='Paris')", "Thought: rain?\nAction: get_weather"),
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
    assert reading.counted.strip() == "It rains."
    shown = "In `a</s>b` and\n```\n<|im_end|>\n```\n<s>old</s> it stands."
    assert read(shown, "stop", rules).messages[0].content == shown


@given(st.lists(st.sampled_from([d.open for d in DIALECTS] + [d.close for d in DIALECTS] + [
    "`", "```", "\n", " ", "{", "}", "[", "]", "(", ")", "get_weather", '"city"', ":", ",", "'",
    "Paris", "<parameter=city>", "</parameter>", "</function>", "<arg_key>", "</arg_key>", "to=",
    "<arg_value>", "</arg_value>", "call:", "Action Input:", "</s>", "<think>", "</think>", "=",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}', "Observation:", "<|message|>", ";",
]), max_size=14).map("".join), st.integers(0, 9), st.sampled_from(["stop", "length"]))  # fmt: skip
def test_any_mixture_is_read_streamed_as_whole_and_invents_nothing(
    text: str, seed: int, reason: Any
) -> None:
    whole = read(text, reason, WEATHER)
    reader = Reader(WEATHER)
    sizes = random.Random(seed)
    pos = 0
    while pos < len(text):
        size = sizes.choice((1, 2, 7))
        reader.feed(text[pos : pos + size])
        pos += size
    assert reader.finish(reason) == whole
    for name, arguments in _read_calls(whole):
        assert name in text
        assert all(isinstance(value, str) <= (str(value) in text) for value in arguments.values())


@pytest.mark.parametrize("mark", ["<|tool_call|>", "<TOOLCALL>", "[TOOL_CALLS]"])
def test_of_an_array_no_more_calls_count_than_may_be_made(mark: str) -> None:
    one = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    text = f"{mark}[{one}, {one}, {one}]"
    for most, counted in ((1, f"{mark}[{one}"), (2, f"{mark}[{one}, {one}"), (3, text)):
        rules = replace(WEATHER, native=frozenset((mark,)), max_calls=most)
        reading = read(text, "stop", rules)
        assert len(reading.messages) == most and reading.error is None
        assert reading.counted == counted and bool(reading.dropped) == (most < 3)
        reader = Reader(rules)
        for char in text:
            reader.feed(char)
        assert reader.finish() == reading
