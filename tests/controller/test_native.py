"""Whole sessions in the style ``native``: a strong model calls in the form of its own template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from strong_model import Asked, Served, Serving, StrongModel, Token, Wish, tokens_of

from mlx_tools import Controller, Limits, Policy, RunSettings, Tool, ToolSpec
from mlx_tools.backends import StyleVerdict, Verdict, VerdictChoice, find_setup
from mlx_tools.errors import UsageError
from mlx_tools.messages import ToolCall, replace
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.transcript.outcome import Answered
from tests.controller.sessions import require_answer
from tests.prompt.tooled import TOOLED, tooled_format
from tests.tables import table

DIALECTS = {
    "qwen2.5-tools": "hermes",
    "qwen3-tools": "hermes",
    "granite3.3-tools": "granite",
    "phi4-mini-tools": "phi",
    "glm4.6-tools": "glm",
}
"""The templates that open the model's turn with a mark, and in which of the strong model's dialects
their models call."""

COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string"}},
    "required": ["colour"],
}
CITY = 'Köln <|im_end|> "x"'
WISH = Wish(
    (ToolCall("weather", {"city": CITY, "days": 2}), ToolCall("clock", {})), "It rains at noon."
)


class Said(Served):
    """A model that says given texts, one a request."""

    def __init__(self, *texts: str) -> None:
        super().__init__(self)
        self._texts = list(texts)

    def tokens(self, asked: Asked) -> Any:
        """The next text, token by token."""
        for token in tokens_of(self._texts.pop(0)):
            yield Token(token)
        yield Token(b"")


def tools() -> list[Tool]:
    """Two that only read."""
    city = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    }
    reads = frozenset({"read"})
    return [
        Tool(ToolSpec("weather", "The forecast.", city, effects=reads), lambda _: "rain </s>"),
        Tool(ToolSpec("clock", "The time.", effects=reads), lambda _: "noon"),
    ]


def controller(name: str, model: Any, **more: Any) -> Controller:
    """A controller for a session in the format of one of `TOOLED`."""
    store, limits = more.pop("store", None), more.pop("limits", None)
    given = {"style": "native", "chat_format": tooled_format(name), "verdict": VerdictChoice()}
    settings = RunSettings(**given | more)
    return Controller(
        model, tools(), Policy(allow=["*"]), settings=settings, store=store, limits=limits
    )


def strong(name: str, **more: Any) -> StrongModel:
    """A model that calls both tools in its own form, and answers once it sees what came of it."""
    chat_format = tooled_format(name)
    assert chat_format.tools is not None
    return StrongModel(
        WISH,
        dialect=DIALECTS[name],
        assistant=chat_format.assistant[0],
        observed=[
            chat_format.tools.results_prefix[0].strip() + text
            for text in ("rain", "\nrain", '"rain')
        ],
        **more,
    )


@table("strategy", ["auto", "guided", "free"])
@table("name", sorted(DIALECTS))
def test_calls_in_the_templates_own_form_run_at_a_request_a_turn(name: str, strategy: str) -> None:
    for spacing in ("compact", "blank"):
        model = strong(name, spacing=spacing)
        outcome = controller(name, model, strategy=strategy).run_sync("How is it?")
        assert isinstance(outcome, Answered) and outcome.answer == WISH.answer
        told = outcome.to_json()
        calls = [(call["name"], call["arguments"], call["status"]) for call in told["calls"]]
        assert calls == [(call.name, dict(call.arguments), "ok") for call in WISH.calls]
        assert not told["repairs"] and not told["mends"]
        first, second = (asked.prompt for asked in model.asked)
        assert second.startswith(first)


def test_calls_that_the_server_cut_out_are_begun_by_the_host() -> None:
    model = strong("qwen2.5-tools", serving=Serving(cuts=True))
    told = controller("qwen2.5-tools", model).run_sync("How is it?").to_json()
    assert (told["answer"], told["mends"], told["repairs"]) == (WISH.answer, 1, {})
    assert [call["status"] for call in told["calls"]] == ["ok"]
    assert model.asked[1].prompt.endswith('<tool_call>\n{"name": "')


@table("choice", ["required", "weather"])
@table("name", sorted(TOOLED))
def test_a_call_that_is_due_is_begun_and_is_held(name: str, choice: str) -> None:
    said = TOOLED[name].calls("x").replace("look", "weather").replace("text", "city")
    tools_of = tooled_format(name).tools
    assert tools_of is not None
    prefix = tools_of.call[0] if choice == "required" else ""
    if choice == "weather":
        begun = said.index("weather") + len("weather") + len(tools_of.call[1])
        brace = 1 if tools_of.call[1].endswith(": ") else 0
        prefix = said[: begun + brace]
    model = Said(said.removeprefix(prefix), "It rains.")
    outcome = controller(name, model, tool_choice=choice).run_sync("How is it?")
    assert model.asked[0].prompt.endswith(prefix) and prefix
    told = outcome.to_json()
    assert [call["arguments"] for call in told["calls"]] == [{"city": "x"}]
    assert (told["status"], told["calls"][0]["status"]) == ("answered", "ok")
    assert not told["repairs"] and not told["mends"]


def test_that_no_tool_may_be_called_is_said_in_words_and_holds() -> None:
    call = TOOLED["qwen2.5-tools"].calls("x").replace("look", "clock")
    for strategy in ("auto", "guided", "free"):
        model = Said(call, "It rains.")
        run = controller("qwen2.5-tools", model, tool_choice="none", strategy=strategy)
        told = run.run_sync("How is it?").to_json()
        assert "Answer in words, without calling a tool." in model.asked[0].prompt
        assert told["answer"] == "It rains." and [c["status"] for c in told["calls"]] != ["ok"]


def test_the_last_word_is_asked_for_in_words() -> None:
    call = TOOLED["qwen2.5-tools"].calls("x").replace("look", "weather").replace("text", "city")
    model = Said(call, "It rains.")
    limits = Limits(max_iterations=1)
    require_answer(controller("qwen2.5-tools", model, limits=limits).run_sync("How is it?"))
    last = model.asked[-1].prompt
    assert "</tool_response><|im_end|>\n<|im_start|>user\nNo more tool calls." in last
    assert last.startswith(model.asked[0].prompt)


def test_a_line_that_cannot_be_read_is_corrected_in_plain_words() -> None:
    model = Said('<tool_call>\n{"name": weather(Oslo)}\n</tool_call>', "It rains.")
    run = controller("qwen2.5-tools", model, strategy="free")
    assert isinstance(run.run_sync("How is it?"), Answered)
    told = model.asked[-1].prompt.rpartition("<|im_start|>user\n")[2]
    assert "Write the call again, in the form that you were told." in told
    assert '{"name": "weather", "arguments": {"city":…}}<|im_end|>' in told


def test_more_tools_than_fit_are_searched_for(tmp_path: Path) -> None:
    many = [
        Tool(ToolSpec(f"paint_{n}", f"Paints thing {n}.", COLOUR, frozenset({"read"})), str)
        for n in range(60)
    ]
    search = (
        '<tool_call>\n{"name": "tool_search", "arguments": {"query": "thing 41"}}\n</tool_call>'
    )
    found = '<tool_call>\n{"name": "paint_41", "arguments": {"colour": "red"}}\n</tool_call>'
    model = Said(search, found, "Painted.")
    given = RunSettings(
        style="native",
        chat_format=tooled_format("qwen2.5-tools"),
        catalog_budget=400,
        verdict=VerdictChoice(),
    )
    outcome = Controller(model, many, Policy(allow=["*"]), settings=given).run_sync("Paint one.")
    first, second = model.asked[0].prompt, model.asked[1].prompt
    assert '"name": "tool_search"' in first and "paint_41" not in first
    assert "more tools are not listed here. Look for one with tool_search" in first
    assert "paint_41(colour: string)" in second.removeprefix(first)
    assert [call["status"] for call in outcome.to_json()["calls"]] == ["ok", "ok"]


def test_without_such_a_template_the_style_is_refused_with_the_reason() -> None:
    settings = RunSettings(style="native", chat_format=NAMED_FORMATS["chatml"])
    run = Controller(Said("x"), tools(), settings=settings)
    with pytest.raises(UsageError, match="template is not at hand") as refused:
        run.run_sync("How is it?")
    assert "jsonl, markdown-json or xml" in str(refused.value.hint)
    kept = VerdictChoice(
        verdict=Verdict(model="m", style="native", styles={"native": StyleVerdict("auto", "auto")})
    )
    found = anyio.run(find_setup, Said("x"), replace(settings, style="auto", verdict=kept))
    assert found.decided.style == "jsonl" and "native" in found.decided.reasons["passed_over"]
    given = RunSettings(
        style="native", strategy="grammar", chat_format=tooled_format("qwen2.5-tools")
    )
    with pytest.raises(UsageError, match="no grammar"):
        anyio.run(find_setup, Said("x"), given)
