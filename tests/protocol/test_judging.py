"""The decision whether a text is a call: what it names, whether that fits, and where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_tools.messages import ToolCall, replace
from mlx_tools.protocol import Reading, ReadingRules, read
from tests.protocol.texts import streamed
from tests.tables import table

ANSWERS = Path(__file__).parents[1] / "data" / "answers" / "coding.txt"


def _schema(*required: str, **types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


CODING = ReadingRules(
    catalog={
        "read": _schema("path", path="string", offset="integer", limit="integer"),
        "list": _schema(path="string"),
        "write": _schema("path", "text", path="string", text="string"),
        "edit": _schema("path", "old", "new", path="string", old="string", new="string"),
        "task": _schema("name", name="string", prompt="string"),
        "bash": _schema("command", command="string", timeout="number"),
        "search": _schema("query", query="string", path="string"),
        "test": _schema(path="string", pattern="string"),
    }
)
CITY: Any = {"get_weather": _schema("city", city="string", days="integer"), "list_rooms": _schema()}
RULES = ReadingRules(catalog=CITY, mutates=lambda name, arguments: False)

HERMES = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
BARE = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
ARGUMENTS = '{"city": "Paris"}'
RECIPIENT = f'{{"recipient_name": "functions.get_weather", "parameters": {ARGUMENTS}}}'
OTHER_KEYS = '{"tool": "get_weather", "args": {"city": "Paris"}}'
OPENAI = (
    '{"tool_calls": [{"id": "c", "function": '
    '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}}]}'
)
PYTHON = "get_weather(city='Paris')"
NAMED = 'get_weather\n{"city": "Paris"}'
ELEMENT = "<get_weather>\n<city>Paris</city>\n</get_weather>"


def answers() -> list[str]:
    """The answers of coding agents, none of which is a call."""
    return ANSWERS.read_text(encoding="utf-8").rstrip("\n").split("\n%%\n")


def told(reading: Reading) -> str:
    """``call`` for the one call that is meant, else what comes of the text."""
    calls = [(m.name, m.arguments) for m in reading.messages if isinstance(m, ToolCall)]
    if calls:
        return "call" if calls == [("get_weather", {"city": "Paris"})] else str(calls)
    if reading.error is not None:
        return "call_like" if reading.call_like else reading.error.code
    return "text"


PLACES = {
    "alone": "{}",
    "in one fence": "```\n{}\n```",
    "last lines": "I will look.\n{}",
    "beside prose": "I will look.\n{}\nThat is how it is.",
    "last fence": "I will look.\n```\n{}\n```",
    "a fence amid text": "So:\n```\n{}\n```\nThat is all.",
    "backticks": "Write `{}` for that.",
    "a quotation": "> {}\nsays the log.",
    "a table": "| form | text |\n| --- | --- |\n| x | {} |",
    "a diff": "@@ -1 +1 @@\n+{}\n-x",
}
EXPECTED = {
    HERMES: ("call", "call", "call", "call", "call_like"),
    BARE: ("call", "call", "call_like", "call_like", "call_like"),
    OTHER_KEYS: ("call", "call", "call_like", "call_like", "call_like"),
    OPENAI: ("call", "call", "call", "call", "call_like"),
    PYTHON: ("call", "call", "call", "call_like", "text"),
    NAMED: ("call", "call", "call_like", "call_like", "call_like"),
}


@table(
    ("text", "place", "expected"),
    [
        (text, place, outcome)
        for text, outcomes in EXPECTED.items()
        for place, outcome in zip(PLACES, (*outcomes, *["text"] * 5), strict=True)
    ],
)
def test_the_same_text_is_judged_by_where_it_stands(text: str, place: str, expected: str) -> None:
    line = text if "\n" not in text or "fence" in place or place in ("alone", "last lines") else ""
    if not line:
        return  # of several lines: as the others
    whole = PLACES[place].replace("{}", line)
    reading = read(whole, "stop", RULES)
    assert told(reading) == expected, whole
    assert streamed(whole, RULES, sizes=(3, 1)) == reading


@table(
    ("text", "expected"),
    [
        # What cannot be read, and what does not fit.
        ("get_weather(city=Paris)", "call_like"),
        ('{"name": "get_weather", "arguments": {"city": }}', "invalid_json"),
        (
            '{"name": "get_weather", "arguments": {"town": "Paris"}}',
            "[('get_weather', {'town': 'Paris'})]",
        ),
        ("I wrote get_weather(town='Paris')", "text"),
        # Unknown names: in marks they are told as such.
        ('<tool_call>{"name": "nobody", "arguments": {}}</tool_call>', "[('nobody', {})]"),
        ('Action: nobody\nAction Input: {"a": 1}', "[('nobody', {'a': 1})]"),
        ("nobody(a=1)", "text"),
        ('{"nobody": 1, "arguments": 2}', "text"),
        ('{"name": "nobody", "arguments": {"a": 1}, "price": 3}', "text"),
        # ``arguments`` are a call's alone, ``parameters`` stand in data as well.
        ('{"name": "nobody", "arguments": {"a": 1}}', "[('nobody', {'a': 1})]"),
        ('[{"name": "Widget", "parameters": {"size": 3}}]', "text"),
        ('{"name": "get_wether", "parameters": {"a": 1}}', "[('get_wether', {'a': 1})]"),
        # Names behind a prefix.
        (
            HERMES.replace("get_", "functions.get_"),
            "call",
        ),
        ("print(default_api.get_weather(city='Paris'))", "call"),
        ("mcp__weather__get_weather(city='Paris')", "call"),
        # Forms of prompts and agents: attributes, JavaScript, other keys.
        ('<get_weather city="Paris"/>', "call"),
        ('<get_weather city="Paris"></get_weather>', "call"),
        ('<get_weather town="Paris"/>', "text"),
        (f"<tool_use><name>get_weather</name><args>{ARGUMENTS}</args></tool_use>", "call"),
        (f"get_weather({ARGUMENTS})", "call"),
        (f'{{"tool_uses": [{RECIPIENT}]}}', "call"),
        (RECIPIENT, "call"),
        (f'{{"thought": "So.", "action": {{"name": "get_weather", "args": {ARGUMENTS}}}}}', "call"),
        (f"[TOOL_REQUEST]\n{BARE}\n[END_TOOL_REQUEST]", "call"),
        # Marks that nobody knows, or that were damaged.
        ("<|zorp|>get_weather city=Paris<|/zorp|>", "call_like"),
        ("|tool_call|>" + BARE, "call_like"),
        ("<my_call name='get_weather'><x>Paris</x></my_call>", "call_like"),
        ("<get_weather>\n<city>Paris\n", "call_like"),
        ('"name": "get_weather", "arguments": {"city": "Paris"}}', "call_like"),
        # Control tokens that a server left out.
        ('commentary to=functions.get_weather json{"city": "Paris"}', "call"),
        ('functions.get_weather:0{"city": "Paris"}', "call"),
        ('functionget_weather\n```json\n{"city": "Paris"}\n```', "call"),
        # Several calls in numbered bullets.
        (f"1. {BARE}", "call_like"),
        ("shall I run get_weather(city='Paris')?", "text"),
        ("Error: get_weather() missing 1 required argument", "text"),
        ("[get_weather](https://example.org) is documented", "text"),
        ("I will look.\nget_weather()", "text"),
        ("I will look.\nlist_rooms()", "[('list_rooms', {})]"),
        ('Action: get_weather\nAction Input: {"city": "Paris"} is what I write.', "call_like"),
    ],
)
def test_what_is_named_and_whether_it_fits_decides(text: str, expected: str) -> None:
    reading = read(text, "stop", RULES)
    assert told(reading) == expected
    assert streamed(text, RULES, sizes=(1,)) == reading


def test_data_that_names_a_tool_is_text_unless_its_keys_are_parameters() -> None:
    shade = {"type": "object", "properties": {"shade": {"type": "string"}}}
    rules = ReadingRules(catalog={"color": shade})
    assert told(read('It is {"tool": "color", "hex": "#fff"} here.', "stop", rules)) == "text"
    assert (
        told(read('It is {"tool": "color", "shade": "#fff"} here.', "stop", rules)) == "call_like"
    )


@table(("choice", "is_answer"), [("auto", True), ("none", True), ("required", False)])
def test_an_answer_in_the_last_fence_counts_unless_a_call_is_required(
    choice: str, is_answer: bool
) -> None:
    text = 'So:\n```json\n{"type":"final_answer","content":"Yes."}\n```'
    reading = read(text, "stop", replace(RULES, tool_choice=choice))
    assert [getattr(one, "content", one) for one in reading.messages] == ["Yes."] * is_answer


def test_answers_of_coding_agents_are_shown_though_tools_are_named_as_words() -> None:
    """The texts were written before the code that reads them was run on them."""
    corrected, other = [], []
    for text in answers():
        reading = read(text, "stop", CODING)
        if not reading.bare_text:
            corrected.append(text)
        elif reading.messages[0].content != text.strip():
            other.append(text)
    assert len(corrected) <= 3, corrected
    assert other == ["The token <|im_end|> ends a turn in ChatML."]  # which ends the answer


@table(
    ("text", "answer", "thought"),
    [
        ("Final Answer: It rains.", "It rains.", ""),
        ("Thought: I know.\nFinal Answer: It rains.", "It rains.", "Thought: I know."),
        ("<answer>\nIt rains.\n</answer>", "It rains.", ""),
        ("assistant\nIt rains.", "It rains.", ""),
        ("<|START_TEXT|>It rains.<|whatever|>", "It rains.", ""),
        ("so\n[BEGIN FINAL RESPONSE]\nIt rains.", "It rains.", "so"),
        ("analysisWe know.assistantfinalIt rains.", "It rains.", "We know."),
        (
            'Action:\n```\n{"action": "Final Answer", "action_input": "It rains."}\n```',
            "It rains.",
            "",
        ),
        ("It rains.\nFinal Answer: yes", "It rains.\nFinal Answer: yes", ""),
        ("Use `<|whatever|>`", "Use `<|whatever|>`", ""),
    ],
)
def test_what_a_family_puts_around_an_answer_is_left_out(
    text: str, answer: str, thought: str
) -> None:
    reading = read(text, "stop", RULES)
    assert (reading.messages[0].content, reading.reasoning) == (answer, thought)  # type: ignore[union-attr]


@table(
    ("style", "native", "comes"),
    [
        ("xml", frozenset(), "call"),
        ("native", frozenset({"<tool_call>"}), "call"),
        ("jsonl", frozenset(), "text"),
    ],
)
def test_the_asked_form_counts_in_a_message_for_the_user_and_no_other(
    style: Any, native: frozenset[str], comes: str
) -> None:
    header = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
    rules = ReadingRules(style=style, native=native, catalog=CITY)
    for text in (header + HERMES, f"{header}\n{HERMES}"):
        reading = read(text, "stop", rules)
        assert ("call" if reading.messages[0].type == "tool_call" else "text") == comes
        assert streamed(text, rules) == reading
