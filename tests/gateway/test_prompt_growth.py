"""Whatever is said in a conversation: the prompt of its longer form begins with that of the shorter
one, and any gateway makes the same of it."""

from __future__ import annotations

import gc
import itertools
import json
import tracemalloc
from cProfile import Profile
from typing import Any, Final

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.gateway.chat_completions import read_chat_completion
from mlx_tools.gateway.conversation import BeginningMemory
from mlx_tools.gateway.request import TurnDone
from mlx_tools.gateway.turn import TurnRunner
from mlx_tools.messages import Style, replace
from mlx_tools.prompt import NAMED_FORMATS, format_from_template
from mlx_tools.protocol import write_answer, write_call
from mlx_tools.testing import ScriptedBackend, make_turn_runner
from tests.examples import FEW
from tests.gateway.conftest import WEATHER
from tests.prompt.conversations import load_template

QWEN: Final = format_from_template(
    load_template("qwen2.5-tools"), name="qwen", eos_token="<|im_end|>", adds_bos=False
)
STYLES: Final[tuple[Style, ...]] = ("jsonl", "xml", "markdown-json", "native")

texts = st.text(st.sampled_from('ab \n"\\{}[]<>|/:é🌍'), max_size=12) | st.sampled_from(
    ["<|im_end|>", '{"type":"final_answer"', "</tool_call>", "```", "<think>"]
)
cities = st.text(st.sampled_from('aé "\\\n'), max_size=4)


@st.composite
def written_turns(draw: st.DrawFn, style: Style) -> str:
    """The text of a model: an answer, or calls behind a word or none, spaced as it likes."""
    lines = [
        write_call("get_weather", {"city": city}, style=style)
        for city in draw(st.lists(cities, max_size=3))
    ]
    if not lines:
        words = draw(st.sampled_from(["Sunny.", "It\nrains.", 'A "quote", é.']))
        return words if style == "native" else write_answer(words, style)
    if style == "jsonl" and draw(st.booleans()):
        lines = [json.dumps(json.loads(line)) for line in lines]
    return "\n".join([*draw(st.sampled_from([[], ["Let me look."]])), *lines])


def asked(speaker: TurnRunner, raw: str, body: dict[str, Any]) -> tuple[str, TurnDone]:
    """The prompt of a turn in which the model writes this, and what came of it."""
    backend = ScriptedBackend(raw)
    speaker.backend = backend
    request, _ = read_chat_completion(body, new_id=lambda: "x", now=lambda: 0.0)
    request = replace(request, size=len(json.dumps(body)))
    ids = itertools.count()
    done = anyio.run(speaker.run, request, lambda text: None, lambda: f"c{next(ids) % 2}")
    (prompt,) = backend.prompts
    return prompt, done


def sent_back(draw: st.DrawFn, done: TurnDone) -> list[dict[str, Any]]:
    """A turn as its client sends it back, with the results of its calls and what the user says."""
    message: dict[str, Any] = {"role": "assistant", "content": done.text or None}
    calls = []
    for call in done.calls:
        arguments = json.dumps(json.loads(call.arguments), indent=draw(st.sampled_from([None, 1])))
        function = {"name": call.name, "arguments": arguments}
        calls.append({"id": call.id, "type": "function", "function": function})
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": draw(texts)}
        for call in draw(st.permutations(done.calls))
    ]
    more = [{"role": "user", "content": draw(texts)}] if not calls or draw(st.booleans()) else []
    return [message | ({"tool_calls": calls} if calls else {}), *results, *more]


@pytest.mark.parametrize("style", STYLES)
@FEW
@given(data=st.data())
def test_a_prompt_grows_at_its_end_alone_and_is_the_same_anywhere(
    style: Style, data: st.DataObject
) -> None:
    manner = {"style": style, "chat_format": QWEN if style == "native" else NAMED_FORMATS["chatml"]}
    remembering = [make_turn_runner(None, **manner), make_turn_runner(None, **manner)]
    draw: Any = data.draw
    systems = draw(st.lists(texts, max_size=2))
    told: list[dict[str, Any]] = [{"role": "system", "content": text} for text in systems]
    told += [{"role": "user", "content": draw(texts)}]
    before = remembered = ""
    for _ in range(draw(st.integers(1, 4))):
        body = {"messages": told, "tools": [WEATHER]}
        raw = draw(written_turns(style))
        prompts, dones = zip(*(asked(one, raw, body) for one in remembering), strict=True)
        fresh = [asked(make_turn_runner(None, **manner), raw, body)[0] for _ in range(2)]
        assert prompts[0] == prompts[1] and fresh[0] == fresh[1]
        assert prompts[0].startswith(remembered) and fresh[0].startswith(before)
        assert dones[0].calls or dones[0].text
        remembered, before = prompts[0] + raw, fresh[0]
        told = [*told, *sent_back(draw, dones[0])]


def test_the_past_calls_of_a_client_are_not_decided_about_again() -> None:
    called = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    messages: list[Any] = [{"role": "user", "content": "How is it there?"}]
    for number in range(9):
        call = {"id": f"c{number}", "type": "function", "function": called}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": "It rains."},
        ]
    body = {"model": "m", "messages": messages, "tools": [WEATHER]}
    speaker, profile = make_turn_runner(ScriptedBackend()), Profile()
    profile.runcall(asked, speaker, write_answer("It rains.", "jsonl"), body)
    names = [getattr(entry.code, "co_qualname", "") for entry in profile.getstats()]
    assert "ConversationFold._speak" in names and "decide" not in names


def conversation_of(turns: int) -> list[Any]:
    """So many questions, each with a call, its result and an answer."""
    messages: list[Any] = []
    for number in range(turns):
        arguments = json.dumps({"city": f"City {number}"})
        function = {"name": "get_weather", "arguments": arguments}
        messages += [
            {"role": "user", "content": f"How is it there ({number})?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"It rains ({number})."},
            {"role": "assistant", "content": f"It rains there ({number})."},
        ]
    return messages


def body_of(messages: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": messages, "tools": [WEATHER], **more}


@pytest.mark.parametrize("style", STYLES)
def test_a_beginning_that_is_remembered_gives_the_same_prompt_as_one_that_is_not(
    style: Style,
) -> None:
    """In any order: also where an earlier question is asked again, or something is changed."""
    chat_format = QWEN if style == "native" else NAMED_FORMATS["chatml"]
    options: dict[str, Any] = {"style": style, "chat_format": chat_format}
    remembering = make_turn_runner(ScriptedBackend(), **options)
    forgetful = make_turn_runner(ScriptedBackend(), **options)
    forgetful.beginnings = BeginningMemory(0)
    whole, raw = conversation_of(4), write_answer("It rains.", style)
    changed = [*whole[:8], {**whole[8], "content": "Another one?"}, *whole[9:]]
    for end in (1, 3, 5, 11, 5, 13, 3, 13):
        for messages in (whole[:end], changed[:end]):
            for more in ({}, {"temperature": 1}, {"tool_choice": "required"}):
                body = body_of(messages, **more)
                text = write_call("get_weather", {"city": "Rome"}, style=style) if more else raw
                prompts = {asked(one, text, body)[0] for one in (remembering, forgetful)}
                assert len(prompts) == 1, (end, more)


def result_of(call: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def test_a_beginning_that_differs_in_any_message_is_not_taken_for_the_one_remembered() -> None:
    """Its length and its last messages are the same: by these it is looked up."""
    function = {"name": "get_weather", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function} for name in ("a", "b")]
    called: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls}

    def messages_of(first: str, *results: dict[str, Any]) -> list[Any]:
        said = [{"role": "assistant", "content": "Well."}, {"role": "user", "content": "And now?"}]
        return [{"role": "user", "content": first}, called, *results, *said * 3]

    conversations = [
        messages_of("How is it?", result_of("a", "It rains."), result_of("b", "It snows.")),
        messages_of("How is it?", result_of("b", "It rains."), result_of("a", "It snows.")),
        messages_of("Where is it?", result_of("a", "It rains."), result_of("b", "It snows.")),
    ]
    speaker, raw = make_turn_runner(ScriptedBackend()), write_answer("It rains.", "jsonl")
    for end in (6, 8, 6, 8):
        for messages in conversations:
            body = body_of(messages[:end])
            fresh = asked(make_turn_runner(ScriptedBackend()), raw, body)[0]
            assert asked(speaker, raw, body)[0] == fresh


def calls_in_this_thread(name: str, speaker: TurnRunner, body: dict[str, Any]) -> int:
    """So often this function was called in this thread while the model was asked."""
    profile = Profile()
    profile.runcall(asked, speaker, write_answer("It rains.", "jsonl"), body)
    entries = (e for e in profile.getstats() if getattr(e.code, "co_qualname", "") == name)
    return sum(entry.callcount for entry in entries)


@pytest.mark.parametrize("function", ["Session.fold", "next_key"])
def test_of_a_conversation_that_goes_on_only_what_is_new_is_folded(function: str) -> None:
    def calls(turns: int) -> int:
        messages = conversation_of(turns)[:-3]  # up to the last question
        return calls_in_this_thread(function, speaker, body_of(messages))

    speaker = make_turn_runner(ScriptedBackend())
    first = calls(20)
    assert calls(21) < 12 < first


def test_conversations_that_differ_in_tools_or_system_alone_are_all_remembered() -> None:
    asked_before = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes."}]
    messages: list[Any] = [*asked_before * 20, {"role": "user", "content": "How?"}]
    system = {"role": "system", "content": "Be brief."}
    bodies = [body_of(messages), {"messages": messages}, body_of([system, *messages])]
    speaker = make_turn_runner(ScriptedBackend())
    for wanted in (range(20, 99), range(12)):
        for body in bodies:
            assert calls_in_this_thread("Session.fold", speaker, body) in wanted
            body["messages"] = [*body["messages"], asked_before[1], messages[-1]]


def test_a_conversation_is_folded_in_a_thread_if_much_of_it_is_new() -> None:
    speaker = make_turn_runner(ScriptedBackend())
    long: dict[str, Any] = {"role": "user", "content": "How? " * 20_000}
    answer = {"role": "assistant", "content": "It rains."}
    known = [long, answer, {"role": "user", "content": "So?"}]
    for wanted, messages in ((0, [long]), (1, known), (0, [long, answer, long])):
        body = body_of(messages)
        assert calls_in_this_thread("ConversationFold.fold", speaker, body) == wanted


def test_what_is_remembered_is_bounded_and_shared_with_nobody() -> None:
    speaker = make_turn_runner(ScriptedBackend())
    speaker.beginnings = BeginningMemory(50_000)
    for turns in range(1, 9):
        messages = conversation_of(turns)[:-3]
        asked(speaker, write_answer("It rains.", "jsonl"), body_of(messages))
    kept = speaker.beginnings.folds.values()
    assert 0 < sum(one.size for one in kept) <= 50_000
    for session in [one.session for one in kept]:
        other = session.copy()
        for name, value in vars(session).items():
            if isinstance(value, frozenset) or name in ("specs", "disabled"):
                continue
            if isinstance(value, list | dict | set) or hasattr(value, "copy"):
                assert getattr(other, name) is not value, name


SPACED: Final = '{ "type": "tool_call",  "name": "get_weather", "arguments": { "city": "Rome" } }'
"""A call as a model may write it; the protocol's own form has no blanks."""


def prompts_of(order: str, raw: str = SPACED) -> list[str]:
    """The prompts of a conversation whose turns go to these gateways, which share nothing.

    A small letter is a turn that a stop text cut off.
    """
    gateways = {name: make_turn_runner(None) for name in order.upper()}
    messages: list[Any] = [{"role": "user", "content": "How is it in Rome?"}]
    prompts = []
    for name in order:
        written = write_answer("It rains.", "jsonl") if name.islower() else raw
        more = {"stop": "ains"} if name.islower() else {}
        prompt, done = asked(gateways[name.upper()], written, body_of(messages, **more))
        prompts.append(prompt)
        function = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
        calls = [{"id": call.id, "type": "function", "function": function} for call in done.calls]
        messages += [
            {"role": "assistant", "content": done.text or None, "tool_calls": calls or None},
            *(
                {"role": "tool", "tool_call_id": call.id, "content": "It rains."}
                for call in done.calls
            ),
            {"role": "user", "content": "And now?"},
        ]
    return prompts


@pytest.mark.parametrize("order", ["ABABAB", "ABCABC", "AABBAABB", "AAABAAAB", "ABBAAAB"])
def test_gateways_in_turns_share_all_that_was_asked_before_the_last_change(order: str) -> None:
    prompts = prompts_of(order)
    begin = 0  # of those in a row that one gateway got
    for number in range(1, len(order)):
        if order[number] == order[number - 1]:
            assert prompts[number].startswith(prompts[number - 1] + SPACED)
        else:
            assert prompts[number].startswith(prompts[begin]), number
            begin = number


def test_one_gateway_brings_back_what_the_model_wrote_beside_a_turn_that_was_cut_off() -> None:
    for number, prompt in enumerate(prompts_of("AAaAAaA")):
        calls = number - sum(number > cut for cut in (2, 5))
        assert prompt.count(SPACED) == calls


@pytest.mark.heavy
def test_what_is_remembered_takes_about_what_is_counted_for_it() -> None:
    speaker = make_turn_runner(ScriptedBackend())
    tools = [
        {**WEATHER, "function": {**WEATHER["function"], "name": f"tool_{n}"}} for n in range(9)
    ]

    def ask(number: int) -> None:
        text = f"How is it in town {number}? " * 20
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "tools": tools}
        asked(speaker, write_answer("It rains.", "jsonl"), json.loads(json.dumps(body)))

    ask(0)  # what all share is there now
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, 11):
            ask(number)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Versions of Python differ in the sizes of their objects; it was seventeen times as much once.
    assert taken <= 2 * sum(one.size for one in speaker.beginnings.folds.values())
