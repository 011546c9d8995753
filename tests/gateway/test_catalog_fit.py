"""A client's words about its tools reach the model, as far as the context can hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.gateway.request import ClientMessage, TurnRequest
from mlx_tools.messages import ToolSpec
from mlx_tools.testing import ScriptedBackend, make_turn_runner
from tests.gateway.conftest import chat, respond, send, write_message

LONG = " ".join(f"Rule {number} of the tool says this." for number in range(400))
TOOL = {
    "name": "look",
    "description": LONG,
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string", "description": f"The place. {LONG[::-1]}"}},
    },
}
CHAT_TOOLS = [{"type": "function", "function": TOOL}]
HERE = Path(__file__)
AGENTS: dict[str, Any] = json.loads(
    (HERE.parents[2] / "benchmarks" / "agent_requests.json").read_text(encoding="utf-8")
)["agents"]


def told(text: str, prompt: str) -> bool:
    return " ".join(text.split()) in " ".join(prompt.split())


@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
@pytest.mark.parametrize("context", [None, 40_000])
def test_every_description_reaches_the_model(serving: Any, style: str, context: int | None) -> None:
    one = serving("Done.", style=style, context=context)
    response = chat(one, tools=CHAT_TOOLS)
    assert "x-mlx-tools-shortened" not in response.headers
    assert told(LONG, one.backend.prompts[0])
    assert told(TOOL["parameters"]["properties"]["place"]["description"], one.backend.prompts[0])


def test_a_compact_catalog_is_one_line_of_each_tool(begin: Any) -> None:
    from mlx_tools.messages import replace

    one = begin("Done.")
    one.speaker.profile = replace(one.speaker.profile, catalog="compact")
    chat(one, tools=CHAT_TOOLS)
    assert "Rule 0 of the tool says this." in one.backend.prompts[0]
    assert not told(LONG[:300], one.backend.prompts[0])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [chat, respond, write_message])
def test_what_the_context_cannot_hold_is_shortened_and_named(
    serving: Any, ask: Any, stream: bool
) -> None:
    tools = {
        chat: CHAT_TOOLS,
        respond: [{"type": "function", **TOOL}],
        write_message: [{"name": "look", "description": LONG, "input_schema": TOOL["parameters"]}],
    }[ask]
    one = serving("Done.", context=4_000)
    response = ask(one, tools=tools, stream=stream)
    assert response.status_code == 200
    size = 2 * len(LONG) + len("The place. ")
    left, of, whole, *_ = response.headers["x-mlx-tools-shortened"].split()
    assert (of, int(whole)) == ("of", size) and 2_000 < int(left) < size
    assert "Rule 0 of the tool says this." in one.backend.prompts[0]


def test_the_prompt_of_a_conversation_with_shortened_tools_only_grows(serving: Any) -> None:
    one = serving(*["Done."] * 3, context=4_000)
    messages = [{"role": "user", "content": "Look."}]
    for number in range(3):
        chat(one, tools=CHAT_TOOLS, messages=messages)
        messages += [
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": f"And again, {number}: {'more ' * 60}"},
        ]
    first, second, third = one.backend.prompts
    begun = "<|im_start|>assistant\n"
    assert second.startswith(first[: first.rfind(begun)])
    assert third.startswith(second[: second.rfind(begun)])


def test_tokens_are_counted_of_the_prompt_as_it_is_sent(serving: Any) -> None:
    one = serving("Done.", context=4_000)
    tools = [{"name": "look", "description": LONG, "input_schema": TOOL["parameters"]}]
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Rome?"}], "tools": tools}
    counted = send(one, "POST", "/v1/messages/count_tokens", body).json()["input_tokens"]
    assert counted == write_message(one, tools=tools).json()["usage"]["input_tokens"] < 4_000


# --- the first requests of agents ----------------------------------------------------------------


def tools_like(agent: str) -> tuple[ToolSpec, ...]:
    """Tools with as many descriptions as an agent sends, each as long: of other words."""
    specs = []
    for number, tool in enumerate(AGENTS[agent]["tools"]):
        if not tool["descriptions"]:  # one that a server would run
            continue
        texts = [
            f"{number}.{place} " + "word " * (size // 5)
            for place, (size, _) in enumerate(tool["descriptions"])
        ]
        members = {f"p{place}": {"description": text} for place, text in enumerate(texts[1:])}
        specs.append(ToolSpec(tool["name"], texts[0], {"properties": members}, plugin="client"))
    return tuple(specs)


@pytest.mark.anyio
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("context", [None, 131_072, 8_192])
async def test_descriptions_as_long_as_those_of_agents_reach_the_model(
    agent: str, context: int | None
) -> None:
    speaker = make_turn_runner(ScriptedBackend("Done."), context=context)
    messages = (ClientMessage("system", "You help."), ClientMessage("user", "List the files."))
    request = TurnRequest(messages=messages, tools=tools_like(agent))
    fitted = await speaker.prepare(request)
    await speaker.run(fitted, lambda event: None, str)
    prompt = speaker.backend.prompts[0]
    texts = [
        text
        for spec in request.tools
        for text in (
            spec.description,
            *(one["description"] for one in spec.parameters["properties"].values()),
        )
    ]
    missing = [text for text in texts if not told(text, prompt)]
    assert bool(missing) == bool(fitted.catalog_note)
    is_large = sum(map(len, texts)) > 14_000
    assert bool(missing) <= (context == 8_192) and bool(missing) >= (context == 8_192 and is_large)
