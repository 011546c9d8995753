"""The style ``native``: what is learnt of a template's tools, and what is written by it."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import ChatFormatError
from mlx_tools.messages import ErrorInfo, ToolSpec, replace
from mlx_tools.prompt import (
    NAMED_FORMATS,
    ChatFormat,
    Frame,
    Neutraliser,
    Prompt,
    build_system,
    format_from_template,
)
from mlx_tools.prompt.neutralise import KNOWN_TOKENS
from mlx_tools.protocol import ReadingRules, forcing_prefix, read
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    ObservationRecord,
    UserRecord,
)
from tests.prompt.conversations import MODELS, WORDS, load_format, load_template
from tests.prompt.tooled import TOOLED, rendered_with_tools, tooled_format
from tests.tables import table

NAMES = sorted(TOOLED)
LOOK = ToolSpec(
    "look",
    "Looks it up.",
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
CLOCK = ToolSpec("clock", "Tells the time.")


def opened(
    chat_format: ChatFormat, *tools: ToolSpec, persona: str | None = None, **more: Any
) -> Prompt:
    """The prompt of a session that was not asked anything yet."""
    neutraliser = Neutraliser(chat_format.control_tokens)
    system = build_system(
        Frame(
            words=WORDS,
            style="native",
            tools=tools,
            persona=persona,
            neutraliser=neutraliser,
            native=chat_format.tools,
        )
    )
    return Prompt(
        chat_format=chat_format,
        style="native",
        system=system.text,
        neutraliser=neutraliser,
        words=WORDS,
        **more,
    )


def called(prompt: Prompt, said: str, *results: str, prefix: str = "") -> None:
    """A turn that calls ``look`` once for each result, and the results."""
    text = said.removeprefix(prefix)
    prompt.add(CompletionRecord(turn=1, prefix=prefix, text=text, retained_text=said))
    for number, _ in enumerate(results):
        prompt.add(CallRecord(turn=1, call=f"c{number}", name="look", arguments={}))
    for number, result in enumerate(results):
        prompt.add(ObservationRecord(call=f"c{number}", name="look", content=result))


@table("adds_bos", [False, True])
@table("name", NAMES)
def test_a_template_that_tells_of_tools_is_learnt(name: str, adds_bos: bool) -> None:
    tools = tooled_format(name, adds_bos=adds_bos).tools
    assert tools is not None and tools.dialect == TOOLED[name].dialect


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_is_what_the_template_itself_would_write(name: str) -> None:
    chat_format, model = tooled_format(name), TOOLED[name]
    prompt = opened(chat_format, LOOK, CLOCK, persona="You help.", reasoning="auto")
    prompt.add(UserRecord(content="What is it?"))
    system = build_system(
        Frame(
            words=WORDS,
            style="native",
            tools=[LOOK, CLOCK],
            persona="You help.",
            neutraliser=Neutraliser(),
            native=replace(_tools(chat_format), opening=("", "system", "")),
        )
    ).text
    asked = [{"role": "system", "content": system}, {"role": "user", "content": "What is it?"}]
    assert prompt.render() == rendered_with_tools(name, asked, [LOOK, CLOCK])
    if name == "mistral-nemo-tools":  # it moves the system text to the last question
        return
    called(prompt, model.calls("a"), "It is this.")
    call = {"name": "look", "arguments": {"text": "a"}}
    said: dict[str, Any] = {"role": "assistant", "content": ""}
    if name in ("granite3.3-tools", "phi4-mini-tools"):
        said["content"] = model.calls("a")
    else:
        said["tool_calls"] = [{"id": "a1b2c3d4e", "type": "function", "function": call}]
    asked += [said, {"role": "tool", "name": "look", "content": "It is this."}]
    assert prompt.render() == rendered_with_tools(name, asked, [LOOK, CLOCK])


def _tools(chat_format: ChatFormat) -> Any:
    assert chat_format.tools is not None
    return chat_format.tools


@pytest.mark.parametrize("name", NAMES)
def test_what_was_learnt_survives_a_transcripts_header(name: str) -> None:
    chat_format = tooled_format(name)
    kept = json.loads(json.dumps(chat_format.to_json()))
    assert ChatFormat.from_json(kept) == chat_format
    for key in kept["tools"]:
        for wrong in (None, 7.5, ["a", 1], {}):
            with pytest.raises(ChatFormatError):
                ChatFormat.from_json(kept | {"tools": kept["tools"] | {key: wrong}})


def test_templates_without_tools_say_so() -> None:
    for name in MODELS:
        chat_format = load_format(name)
        assert chat_format.tools is None and "tools" in chat_format.toolless
    assert "not at hand" in NAMED_FORMATS["chatml"].toolless


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("tool | tojson", "tool.function.name", "another form than JSON"),
        ('\'\\n<tool_call>\\n{"name": "\'', "'\\n{{'", "form that is not known"),
        ("{{- message.content }}{{- '\\n</tool_response>' }}", "", "results of tools"),
        ("loop.index0 == 0", "raise_exception('No tools!')", "refuses it: No tools!"),
        ("'\\n</tool_response>'", "'\\n</tool_response>' + message.content|upper", "no fixed form"),
        ("{%- for tool in tools %}", "{%- for tool in tools[:2] %}", "no fixed form"),
        ("tool_call.arguments | tojson", "tool_call.arguments.values()|join", "does not write the"),
    ],
)
def test_what_cannot_be_learnt_is_told_with_its_reason(old: str, new: str, reason: str) -> None:
    text = load_template("qwen2.5-tools")
    assert old in text
    found = format_from_template(
        text.replace(old, new), name="odd", eos_token="<|im_end|>", adds_bos=False
    )
    assert found.tools is None and reason in found.toolless


@pytest.mark.parametrize("name", ["qwen3-coder-tools", "deepseek-v3.1-tools"])
def test_tools_in_a_form_of_the_templates_own_are_not_had(name: str) -> None:
    found = format_from_template(load_template(name), name=name, eos_token="</s>", adds_bos=False)
    assert found.tools is None and "tells of tools in" in found.toolless


def test_in_brief_arguments_keep_their_names_and_lose_what_is_said_of_them() -> None:
    tools = _tools(tooled_format("qwen2.5-tools"))
    said = {"type": "string", "description": "said of it", "default": "x"}
    properties = {"title": said, "description": {"enum": ["title", {"title": 1}]}}
    parameters = {"title": "T", "properties": properties, "required": ["title"]}
    written = tools.render_tool(ToolSpec("look", f"Looks\n{'!' * 300}", parameters), brief=True)
    function = json.loads(written)["function"]
    assert len(function["description"]) == 160 and "\n" not in function["description"]
    assert function["parameters"] == {
        "properties": properties | {"title": {"type": "string"}},
        "required": ["title"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_forced_call_is_begun_as_the_model_would_begin_it(name: str) -> None:
    chat_format, model = tooled_format(name), TOOLED[name]
    tools = _tools(chat_format)
    for choice in ("required", "look"):
        prefix = forcing_prefix("native", choice, tools.call)
        said = model.calls("a")
        if choice == "required":
            assert said.startswith(prefix)
        assert prefix.startswith((*tools.marks[:1], "{"))  # the mark whole
        begin = said.index("look") if choice == "required" else len(prefix)
        rules = ReadingRules(
            style="native",
            prefix=prefix,
            tool_choice=choice,
            catalog={"look": LOOK.parameters},
            native=frozenset((*chat_format.dialects, tools.marks[0] if tools.marks else "")),
            call=tools.call,
        )
        assert said[: len(prefix)] == prefix
        reading = read(said[begin:], "stop", rules)
        assert [call.name for call in reading.messages] == ["look"]  # type: ignore[union-attr]
        assert reading.clean and not reading.messages[0].repairs
    assert forcing_prefix("native", "none", tools.call) == ""


# --- control tokens -----------------------------------------------------------------------------


ORIGINS = (
    *("persona", "description", "question", "brought", "prose", "argument"),
    *("other_argument", "result", "fault", "unknown", "broken", "correction", "answer"),
)


def texts_of(**given: str) -> Any:
    """A text of every origin: those that are given, else one in which there is nothing."""
    return SimpleNamespace(**{**dict.fromkeys(ORIGINS, "x"), **given})


def conversation(name: str, texts: Any) -> list[str]:
    """The prompts of a conversation in which those texts stand."""
    model = TOOLED[name]
    tool = replace(LOOK, description=texts.description)
    prompt = opened(tooled_format(name), tool, persona=texts.persona)
    prompt.add(UserRecord(content=f"q{texts.question}", tools=(f"f() - {texts.brought}",)))
    rendered = [prompt.render()]
    lead = "" if name == "llama3.1-tools" else f"{texts.prose}\n"
    said = lead + model.calls(texts.argument, texts.other_argument)
    prompt.add(CompletionRecord(turn=1, text=said, retained_text=said))
    for number, called_name in enumerate(("look", f"l{texts.unknown}")):
        prompt.add(CallRecord(turn=1, call=f"c{number}", name=called_name, arguments={}))
    error = ErrorInfo("tool_error", f"e{texts.fault}"[:300])
    prompt.add(ObservationRecord(call="c0", name="look", content=texts.result))
    prompt.add(ObservationRecord(call="c1", name=f"l{texts.unknown}", error=error))
    rendered.append(prompt.render())
    prompt.add(CompletionRecord(turn=2, text=f"b{texts.broken}", retained_text=f"b{texts.broken}"))
    error = ErrorInfo("invalid_json", f"c{texts.correction}"[:300])
    prompt.add(CorrectionRecord(turn=2, error=error))
    rendered.append(prompt.render())
    prompt.add(CompletionRecord(turn=3, text=f"a{texts.answer}", retained_text=f"a{texts.answer}"))
    prompt.add(AnswerRecord(turn=3, content=f"a{texts.answer}"))
    prompt.add(UserRecord(content="And now?"))
    return [*rendered, prompt.render()]


@cache
def harmless(name: str) -> list[str]:
    """The same prompts with texts in which there is nothing."""
    return conversation(name, texts_of())


def control_tokens(chat_format: ChatFormat, text: str) -> list[str]:
    """The control tokens in a text, as a tokenizer would find them, and delimiters of lines."""
    tokens = sorted({*chat_format.control_tokens}, key=len, reverse=True)
    return re.findall("|".join(map(re.escape, tokens)), text)


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "</arg_value>"),
        *("<arg_key>", "[TOOL_RESULTS]", "<tool_response>", "<|im_end|>", "<|eot_id|>", "</s>"),
        *("<", "|im_end|>", "tool_call>", "[TOOL_", "CALLS]", '"', "\\", "{", "}", "]", "a", " "),
        *('{"name": "look", "arguments": {}}', "\n<tool_call>\n", "`", "·", "é", "&lt;", "\\u003c"),
        *TOOLED["qwen2.5-tools"].calls("b").split("\n"),
    ]
)
HOSTILE = st.lists(st.one_of(PIECES, st.sampled_from(KNOWN_TOKENS)), max_size=5).map("".join)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_no_text_adds_a_control_token_to_those_of_the_host_and_of_calls(
    name: str, data: st.DataObject
) -> None:
    changed = data.draw(st.sets(st.sampled_from(ORIGINS)))
    texts = texts_of(**{one: data.draw(HOSTILE, one) for one in sorted(changed)})
    chat_format = tooled_format(name)
    prompts = conversation(name, texts)
    calls = _calls_as_written(name, texts)
    for plain, hostile in zip(harmless(name), prompts, strict=True):
        expected = control_tokens(chat_format, plain)
        found = control_tokens(chat_format, hostile)
        if calls:
            assert found == expected
        else:  # what it wrote is no call: none of its marks stays
            marks = _tools(chat_format).marks
            assert [t for t in found if t not in marks] == [t for t in expected if t not in marks]
    for before, after in pairwise(prompts):
        assert after.startswith(before)


def _calls_as_written(name: str, texts: Any) -> bool:
    """Return True if the reader takes the calls of the conversation for two calls."""
    lead = "" if name == "llama3.1-tools" else f"{texts.prose}\n"
    said = lead + TOOLED[name].calls(texts.argument, texts.other_argument)
    chat_format = tooled_format(name)
    rules = ReadingRules(
        style="native",
        catalog={"look": LOOK.parameters},
        native=frozenset(chat_format.dialects),
    )
    reading = read(said, "stop", rules)
    whole = len(reading.messages) == 2 and reading.retained_text == said and reading.error is None
    return whole and not reading.commentary.replace("x", "")
