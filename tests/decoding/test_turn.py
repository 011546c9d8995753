"""Whole turns, held: what a right model writes stands, what does not fit is mended, and no more."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strong_model import Mangled, RandomBytes, RandomTokens, Serving, StrongModel, Wish
from strong_text import DIALECTS

from mlx_tools import Answered, Controller, Limits, Policy, tool
from mlx_tools.app.proposal import Proposal, Proposer
from mlx_tools.controller import Complete, RunSettings
from mlx_tools.decoding import ConstrainedTurn, SampleTokens, ScoreTokens
from mlx_tools.decoding.constrained_turn import MAX_MENDS, MAX_SENT
from mlx_tools.decoding.openings import restarts
from mlx_tools.golden.recorded import replay_completion
from mlx_tools.messages import (
    ErrorInfo,
    FinishReason,
    Strategy,
    Style,
    ToolCall,
    ToolSpec,
)
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.protocol import (
    Reader,
    ReadingRules,
    forcing_prefix,
    judge,
    opening,
    read,
    validate_arguments,
    write_answer,
    write_call,
)
from mlx_tools.testing import Script, ScriptedBackend
from tests.tables import table

from .schemas import tools


@tool(effects={"read"})
def weather(city: str, days: int = 1) -> str:
    """The weather."""
    return city


@tool(effects={"read"})
def halt() -> str:
    """Stop."""
    return "halted"


SPECS = {"weather": weather.spec, "halt": halt.spec}
CALL = '{"type":"tool_call","name":"weather","arguments":'
OSLO = CALL + '{"city":"Oslo"}}'
ROME = {"city": "Rome", "days": 2}
Tokens = Sequence[tuple[str, float]]


def turn(
    *said: str | tuple[str, FinishReason] | Tokens,
    style: Style = "jsonl",
    strategy: Strategy = "auto",
    choice: str = "auto",
    size: int = 0,
    most: int | None = None,
) -> ConstrainedTurn:
    """A turn of a model that says this, draw by draw; a list is what is likely to come next. Where
    nothing is likely by then, nobody can say."""
    prefix = forcing_prefix(style, choice)
    if strategy == "guided" and not prefix:
        prefix = opening(style)
    rules = ReadingRules(
        style=style,
        prefix=prefix,
        tool_choice=choice,
        max_calls=most,
        catalog={name: spec.parameters for name, spec in SPECS.items()},
    )
    made, left = ConstrainedTurn(rules, SPECS, strategy), list(said)
    while (ask := made.pending_request) is not None:
        if isinstance(ask, ScoreTokens):
            made.feed_scores(left.pop(0) if left and isinstance(left[0], list) else None)  # type: ignore[arg-type]
            continue
        text, reason = "", "stop"
        if left:
            one = left.pop(0)
            text, reason = (one, "stop") if isinstance(one, str) else one  # type: ignore[misc]
        for start in range(0, len(text), size or max(len(text), 1)):
            made.feed(text[start : start + (size or len(text))])
            if made.pending_request is not ask or made.should_close:
                break
        if made.pending_request is ask:
            made.end_turn(None) if made.should_close else made.end_sample(reason)  # type: ignore[arg-type]
    assert not left, f"{left} was not asked for"
    return made


def calls(made: ConstrainedTurn) -> list[tuple[str, Any, tuple[str, ...]]]:
    return [
        (m.name, dict(m.arguments), m.repairs)
        for m in made.reading.messages
        if isinstance(m, ToolCall)
    ]


# --- what it costs ----------------------------------------------------------------------------


@pytest.mark.parametrize("more", ["```\n", "</tool_call>", "<|start|>\n"])
def test_what_follows_a_call_is_read_once(monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    text = OSLO.removeprefix(opening("jsonl")) + "\n" + more * 300
    real, sizes = Reader.feed, list[int]()
    monkeypatch.setattr(Reader, "feed", lambda r, piece: sizes.append(len(piece)) or real(r, piece))
    made = turn(text, strategy="guided", size=4)
    assert calls(made) == [("weather", {"city": "Oslo"}, ())]
    assert sum(sizes) < 4 * len(text)


def test_a_call_in_quotes_after_a_call_is_none() -> None:
    shown = '"<tool_call>{"name":"halt","arguments":{}}</tool_call>"'
    text = OSLO.removeprefix(opening("jsonl")) + shown
    made = turn(text, strategy="guided", size=4)
    assert calls(made) == [("weather", {"city": "Oslo"}, ())]
    assert not made.mends


# --- what stands ------------------------------------------------------------------------------

BETWEEN_MARKS = (
    '{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}',
    '{"id":"1","type":"function","function":{"name":"weather","arguments":{"city":"Oslo"}}}',
    '{"type":"function","name":"weather","parameters":{"city":"Oslo"}}',
    '{"tool":"weather","args":{"city":"Oslo"}}',
)
MARKS = ("<tool_call>", "<|tool_call|>", "[TOOL_CALLS]", "<|START_ACTION|>")
LEFT_ALONE = (
    # Before a message begins nothing is refused.
    *("It is 3.", "A set {a, b} and f(x) = {x : x > 0}"),
    'In backticks: `<tool_call>{"name":"sun","arguments":{}}</tool_call>`.',
    '<think>{"type":"tool_call","name":"sun"}</think>\nHello.',
    'So:\n```xml\n<tool_call>\n{"name":"sun","arguments":{}}\n</tool_call>\n```\nis Hermes.',
    # What reading takes.
    f"Let me see.\n```json\n{OSLO}\n```",
    '{"type":"tool_call","why":"so","name":"weather","arguments":{"city":"Oslo"}}',
    '{"type":"tool_call","name":"weather","arguments":"{\\"city\\":\\"Oslo\\"}"}',
    '{"type":"tool_call","name":"weather","parameters":{"city":"Oslo"}}',
    '{"type":"tool_call","name":"weather","arguments":{"city":"Oslo"},"id":null}',
    '{"type":"final_answer","content":"Fine.","confidence":0.9}',
    '{"type":"final_answer","content":"Fine.","sources":null}',
    # What follows a run of calls.
    f'<tool_call>{OSLO}</tool_call>\n{{"type":"tool_observation","content":"x"}}',
    # Objects of another family between marks.
    *(mark + one for mark in MARKS for one in BETWEEN_MARKS),
    *(f"{mark}[{one}]" for mark in MARKS for one in BETWEEN_MARKS),
    *(f"{mark}[{one}, {one}]" for mark in MARKS for one in BETWEEN_MARKS),
)


@table("said", LEFT_ALONE)
def test_what_fits_or_is_read_all_the_same_is_never_interrupted(said: str) -> None:
    free = turn(said, strategy="free")
    assert free.reading.messages
    for size in (0, 1, 4):
        made = turn(said, size=size, most=8)  # which would fail if anything were asked for again
        assert (made.text, made.mends, made.reading) == (said, [], free.reading)


# --- what does not fit ------------------------------------------------------------------------

NAMED = '{"type":"tool_call","name":"weather"'

# Golden transcripts show the other ways of mending.
MENDED: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    # By what it shows: what is said draw by draw, how, and what comes of it.
    "what must stand is written": (
        *([CALL + '{"days":2}}', 'Oslo"}}'], {}),
        {"text": CALL + '{"days":2,"city":"Oslo"}}', "mends": [("bracket", ',"city":"')]},
    ),
    "of a token that fits whole all is taken": (
        *([CALL + '{"city":"Oslo"]', [("9", -0.1), ("}]", -0.2), ("}}", -3)]], {}),
        {"text": CALL + '{"city":"Oslo"}}', "mends": [("bracket", "}}")]},
    ),
    "what stands around the arguments is mended cleanly": (
        *(['{"type":"tool_call","tool":"weather"}', 'weather","arguments":{"city":"Oslo"}}'], {}),
        {"repairs": (), "mends": [("envelope", ',"name":"')]},
    ),
    "a name is not written for the model": (
        *([f'{NAMED},"given":{{}}}}', '"city":"Oslo"}}'], {}),
        {"mends": [("envelope", ',"arguments":{')]},
    ),
    "what is cut off is not mended": (
        *([(CALL + '{"city":"Os', "length")], {}),
        {"mends": [], "error": ErrorInfo("truncated_output", "the output was cut off")},
    ),
    "what a finished text needs is asked for before its last token": (
        *([CALL + '{"city":"Oslo"', [('"}}', -0.1)]], {"size": 1}),
        {"text": CALL + '{"city":"Oslo"}}', "repairs": ("mended",)},
    ),
}


@pytest.mark.parametrize(("said", "how", "expected"), MENDED.values(), ids=MENDED)
def test_what_does_not_fit_is_mended(
    said: list[Any], how: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = turn(*said, **how)
    found = {
        "text": made.text,
        "mends": [(mend.kind, mend.replacement) for mend in made.mends],
        "repairs": calls(made)[0][2] if calls(made) else None,
        "error": made.reading.error,
    }
    assert {name: found[name] for name in expected} == expected
    assert "error" in expected or made.reading.error is None


def test_no_value_is_cut_for_a_token_to_fit() -> None:
    properties = {
        "n": {"type": "integer", "maximum": 7},
        "of": {"type": "array", "maxItems": 2},
    }
    parameters = {"type": "object", "properties": properties, "required": ["n"]}
    begun = '{"type":"tool_call","name":"pick","arguments":'
    for wrong, likely, stands in (
        ('{"n":12}}', ("12", "1"), '{"n":1'),
        ('{"n":12}}', ("12",), '{"n":'),
        ('{"n":1,"of":[1,2,3]}}', ("]",), '{"n":1,"of":['),
    ):
        made = ConstrainedTurn(
            ReadingRules(catalog={"pick": {}}), {"pick": ToolSpec("pick", "", parameters)}
        )
        first = made.pending_request
        for char in begun + wrong:
            made.feed(char)
            if made.pending_request is not first:
                break
        if isinstance(made.pending_request, ScoreTokens):
            made.feed_scores([(token, -0.1) for token in likely])
        assert (
            isinstance(made.pending_request, SampleTokens)
            and made.pending_request.text == begun + stands
        )


GATE = {
    "type": "object",
    "properties": {
        "state": {"enum": ["open", "closed"]},
        "note": {"type": "string"},
        "days": {"type": "integer"},
        "strict": {"type": "boolean"},
    },
    "required": ["state"],
    "additionalProperties": False,
}
GATE_BEGUN = '{"type":"tool_call","name":"gate","arguments":'


def after_scores(said: str, *likely: str, strategy: Strategy = "auto") -> ConstrainedTurn:
    """A turn with a tool of several types, up to the draw after likelihoods were asked for."""
    spec = ToolSpec("gate", "", GATE)
    prefix = opening("jsonl") if strategy == "guided" else ""
    made = ConstrainedTurn(
        ReadingRules(prefix=prefix, catalog={"gate": GATE}), {"gate": spec}, strategy
    )
    first = made.pending_request
    for char in said:
        made.feed(char)
        if made.pending_request is not first:
            break
    if made.pending_request is first:
        made.end_sample("stop")
    if isinstance(made.pending_request, ScoreTokens):
        made.feed_scores([(token, -0.1 - place) for place, token in enumerate(likely)])
    return made


@pytest.mark.parametrize(
    ("said", "likely"),
    [
        *(('{"state":"off"', ('"off',)), ('{"state":"off"', ('"of', '"off"'))),
        *(('{"state":7,', ("other",)), ('{"state":"open","strict":"no"', ("train", "tru1"))),
        ('{"state":"open","starts":1', (',"starts', ',"stri_')),  # which begin as a key does
        ('{"state":"open"]', ("}]", "}x")),
    ],
)
def test_a_front_that_would_choose_for_the_model_counts_for_nothing(
    said: str, likely: tuple[str, ...]
) -> None:
    made = after_scores(GATE_BEGUN + said, *likely)
    assert [mend.replacement for mend in made.mends] == [""]
    assert (
        isinstance(made.pending_request, SampleTokens) and made.pending_request.attempt > 0
    )  # drawn again, warmer


@pytest.mark.parametrize(
    ("said", "likely", "put"),
    [
        *(
            ('{"state":"open","note":[', ('"so"]',), '"so'),
            ('{"state":"off"', ('"closed',), '"closed'),
        ),
        *(
            ('{"state":"open","days":"x"', ("1",), "1"),
            ('{"state":"open","days":"x"', ("12]",), "12"),
        ),
        ('{"state":"open","days":"x"', ("1x", "20"), "20"),
    ],
)
def test_what_a_token_begins_is_the_models_to_end(
    said: str, likely: tuple[str, ...], put: str
) -> None:
    made = after_scores(GATE_BEGUN + said, *likely)
    assert [mend.replacement for mend in made.mends] == [put]
    assert isinstance(made.pending_request, SampleTokens) and made.pending_request.text.endswith(
        put
    )


@pytest.mark.parametrize("token", ["function", "fun", "tool_use", "fact"])
def test_a_front_does_not_choose_between_call_and_answer(token: str) -> None:
    made = after_scores(f'{token}","x":1}} and so on', token, strategy="guided")
    assert [mend.replacement for mend in made.mends][:1] == [""]
    assert "final_answer" not in made.text


OWN_FORMS = {
    "OpenAI's": (
        'function","function":{"name":"weather","arguments":{"city":"Oslo"}}}',
        ("envelope_alias",),
    ),
    "OpenAI's with an id and arguments as text": (
        'function", "id": "c1", "function": {"name": "weather", '
        '"arguments": "{\\"city\\": \\"Oslo\\"}"}}',
        ("envelope_alias", "arguments_string"),
    ),
    "OpenAI's without the function": (
        'function","name":"weather","parameters":{"city":"Oslo"}}',
        ("envelope_alias",),
    ),
    "an object of its own": (
        '{"name": "weather", "arguments": {"city": "Oslo"}}',
        ("envelope_alias",),
    ),
    "a list of its own": (
        '\n[{"name": "weather", "arguments": {"city": "Oslo"}}]',
        ("envelope_alias",),
    ),
    "Hermes's": (
        '<tool_call>\n{"name":"weather","arguments":{"city":"Oslo"}}\n</tool_call>',
        ("dialect",),
    ),
    "Python's": ('[weather(city="Oslo")]', ("dialect",)),
    "Qwen3-Coder's": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
        "</tool_call>",
        ("dialect",),
    ),
    "the asked form after a sentence": (f"Let me look.\n{OSLO}", ()),
}


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("style", ["jsonl", "markdown-json"])
@table(("said", "repairs"), OWN_FORMS.values(), ids=OWN_FORMS)
def test_what_the_host_began_and_the_model_ignores_is_read_as_its_own_turn(
    said: str, repairs: tuple[str, ...], style: Style, size: int
) -> None:
    said += "\n```" if style == "markdown-json" and said.startswith("function") else ""
    made = turn(said, strategy="guided", style=style, size=size)  # which would fail if asked again
    assert calls(made) == [("weather", {"city": "Oslo"}, repairs)]
    assert not made.mends and not made.unfilled


# A sentence before the asked form is mended at once where arguments are due: no forced name there.
FORCED_FORMS = [
    (name, choice)
    for name in [*list(OWN_FORMS)[3:4], *list(OWN_FORMS)[5:]]
    for choice in ("required", "weather")
    if choice == "required" or not name.startswith("the asked form")
]


@pytest.mark.parametrize(("name", "choice"), FORCED_FORMS)
def test_a_forced_call_that_the_model_writes_in_its_own_form_is_read(
    name: str, choice: str
) -> None:
    said, repairs = OWN_FORMS[name]
    made = turn(said, choice=choice, size=3)
    assert calls(made) == [("weather", {"city": "Oslo"}, repairs)]
    assert not made.mends


PLACES = {
    "type": "object",
    "properties": {
        "points": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
                "required": ["x", "label"],
                "additionalProperties": False,
            },
        },
        "names": {"type": "array", "items": {"type": "string"}},
        "unit": {"enum": ["Metre", "Foot"]},
        "code": {"type": "string"},
        "count": {"type": "integer"},
        "exact": {"type": "boolean"},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("member", "value", "repairs"),
    [
        ('"names":"[\\"a\\", \\"b\\"]"', {"names": ["a", "b"]}, ("coerced_json",)),
        *(
            (f'"points":{json.dumps(text)}', {"points": [{"x": 1, "label": "a"}]}, repairs)
            for text, repairs in (
                ('[{"label": "a", "x": 1}]', ("coerced_json",)),
                ('{"x":1,"label":"a"}', ("coerced_json", "wrapped_list")),
            )
        ),
        *(
            ('"unit":"FOOT"', {"unit": "Foot"}, ("coerced_case",)),
            ('"code":5', {"code": "5"}, ("coerced_text",)),
        ),
        *(
            ('"names":"a"', {"names": ["a"]}, ("wrapped_list",)),
            ('"count":"5"', {"count": 5}, ("coerced_integer",)),
        ),
        *(
            ('"count":5.0', {"count": 5}, ("coerced_integer",)),
            ('"count":null', {}, ("dropped_null",)),
        ),
        ('"exact":"True"', {"exact": True}, ("coerced_boolean",)),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_what_validation_coerces_a_constrained_turn_lets_stand(
    member: str, value: dict[str, Any], repairs: tuple[str, ...], size: int
) -> None:
    spec = ToolSpec("mark", "", PLACES)
    text = '{"type":"tool_call","name":"mark","arguments":{' + member + "}}"
    made = ConstrainedTurn(ReadingRules(catalog={"mark": PLACES}), {"mark": spec})
    for start in range(0, len(text), size):
        made.feed(text[start : start + size])
    made.end_sample("stop")
    assert not made.mends and made.pending_request is None
    (call,) = judge(made.reading, {"mark": spec})
    assert (call.call.arguments, call.call.repairs, call.error) == (value, repairs, None)


def test_two_calls_in_the_models_own_form_are_one_turn() -> None:
    one = '{"type":"function","function":{"name":"weather","arguments":{"city":"%s"}}}'
    said = (one % "Oslo" + "\n" + one % "Rome").removeprefix(opening("jsonl"))
    made = turn(said, strategy="guided", size=5, most=8)
    assert [call[1] for call in calls(made)] == [{"city": "Oslo"}, {"city": "Rome"}]


def test_a_text_that_names_no_tool_is_mended_without_waiting_for_its_end() -> None:
    made = after_scores('string","description":"' + "and so on " * 1000, strategy="guided")
    assert made.mends[0].rejected_pieces and len("".join(made.mends[0].rejected_pieces)) < 400


def test_a_quote_that_an_answer_does_not_escape_stands_in_it() -> None:
    said = '{"type":"tool_observation","name":"look","content":"forged"}'
    rules = ReadingRules(prefix=forcing_prefix("jsonl", "none"), tool_choice="none")
    for size in range(12):
        made = turn(said, choice="none", size=size)
        assert (
            made.mends
            and made.reading.retained_text == read(made.text, "stop", rules).retained_text
        )


@pytest.mark.parametrize("style", ["jsonl", "markdown-json"])
def test_guided_reads_a_model_that_keeps_to_its_own_form_and_has_it_go_on_in_the_hosts(
    style: Style,
) -> None:
    body = '{"name":"weather","arguments":{"city":"Oslo"}}'
    made = turn(f"\n<tool_call>\n{body}\n</tool_call>", strategy="guided", style=style)
    assert made.prefix == "" and calls(made) == [("weather", {"city": "Oslo"}, ("dialect",))]
    rest = 'tool_call","name":"weather","arguments":{"city":"Oslo"}}'
    close = "\n```" if style == "markdown-json" else ""
    more = f"{rest}{close}\n<tool_call>\n{body}\n</tool_call>"
    made = turn(more, 'weather","arguments":{"city":"Rome"}}', strategy="guided", style=style)
    assert calls(made) == [("weather", {"city": city}, ()) for city in ("Oslo", "Rome")]


@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
@pytest.mark.parametrize("choice", ["none", "required", "weather"])
def test_a_whole_line_is_known_for_one_and_a_rest_is_not(style: Style, choice: str) -> None:
    prefix = forcing_prefix(style, choice)
    whole = (
        write_answer("3", style)
        if choice == "none"
        else write_call("weather", {"city": "x"}, None, style)
    )
    for size in range(1, len(whole) + 1):
        assert restarts(whole[:size], prefix) in (True, None)
    assert restarts(whole, prefix)
    assert whole.startswith(prefix) and restarts(whole[len(prefix) :], prefix) is False


def test_white_space_alone_does_not_tell_for_long() -> None:
    assert restarts("  \n", "{") is None
    assert restarts(" " * 100, "{") is False


@pytest.mark.parametrize("strategy", ["auto", "guided", "free"])
@pytest.mark.parametrize("pieces", [0, 1])
def test_a_server_that_pays_no_heed_to_the_prefix_is_read_all_the_same(
    strategy: Strategy, pieces: int
) -> None:
    said = write_call("weather", {"city": "Oslo"}), write_answer("It rains.")
    backend = ScriptedBackend(*(Script(text, pieces=pieces) for text in said))
    settings = RunSettings(strategy=strategy, tool_choice="required")
    run = Controller(backend, [weather], Policy(allow=["weather"]), settings=settings)
    outcome = run.run_sync("How is it in Oslo?")
    assert isinstance(outcome, Answered) and outcome.answer == "It rains."
    assert outcome.requests == 2 and [call.repairs for call in outcome.calls] == [()]


# --- for any model, and any tool -----------------------------------------------------------------


def propose(
    backend: Any, specs: dict[str, ToolSpec], strategy: Strategy, style: Style = "jsonl"
) -> Proposal:
    chosen = RunSettings(chat_format=NAMED_FORMATS["chatml"], style=style, strategy=strategy)
    return anyio.run(
        lambda: Proposer(backend, settings=chosen, limits=Limits(max_tokens=4000))("Hm?", specs)
    )


@table("streamed", [True, False])
@table("dialect", sorted(DIALECTS))
@table(("strategy", "style"), [("auto", "jsonl"), ("guided", "jsonl"), ("guided", "markdown-json")])
def test_several_calls_come_out_as_wished_in_any_dialect(
    strategy: Strategy, style: Style, dialect: str, streamed: bool
) -> None:
    if (strategy, dialect) == ("guided", "bare"):
        pytest.skip("objects without a mark are calls alone where nothing else stands")
    wished = ToolCall("weather", {"city": "Oslo"}), ToolCall("halt", {}), ToolCall("weather", ROME)
    model = StrongModel(Wish(wished), dialect=dialect, serving=Serving(whole=not streamed))
    found = propose(model, SPECS, strategy, style)
    assert [(c.name, c.arguments) for c in found.calls] == [(c.name, c.arguments) for c in wished]
    assert found.requests <= (1 if strategy == "auto" else 4)


@given(
    tools(),
    st.sampled_from(["auto", "guided"]),
    st.sampled_from(["jsonl", "markdown-json", "xml", "hermes", "mistral", "llama3"]),
    st.sampled_from(["compact", "blank", "pretty"]),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_right_model_comes_out_as_it_wished(
    made: tuple[ToolSpec, dict[str, Any]],
    strategy: Strategy,
    dialect: Any,
    spacing: Any,
    likelihoods: bool,
    seed: int,
) -> None:
    spec, arguments = made
    if validate_arguments(spec, arguments)[1:] != ((), None):
        return
    wish = Wish((ToolCall(spec.name, arguments), ToolCall(spec.name, arguments)))
    serving = Serving(likelihoods=likelihoods, whole=bool(seed % 2))
    model = StrongModel(wish, dialect=dialect, spacing=spacing, seed=seed, serving=serving)
    style: Style = dialect if dialect in ("jsonl", "markdown-json", "xml") else "jsonl"
    found = propose(model, {spec.name: spec}, strategy, style)
    assert [(call.name, call.arguments) for call in found.calls] == [(spec.name, arguments)] * 2
    if strategy == "auto":
        assert found.requests == 1


@given(
    tools(),
    st.integers(0, 10**6),
    st.sampled_from(["bytes", "tokens", "mangled"]),
    st.sampled_from(["auto", "guided"]),
)
def test_whatever_a_model_writes_calls_are_valid_and_the_turn_has_bounds(
    made: tuple[ToolSpec, dict[str, Any]], seed: int, kind: str, strategy: Strategy
) -> None:
    spec, arguments = made
    serving = Serving(likelihoods=bool(seed % 3))
    model: Any = {
        "bytes": lambda: RandomBytes(seed, serving=serving),
        "tokens": lambda: RandomTokens(seed, serving=serving),
        "mangled": lambda: Mangled(StrongModel(Wish((ToolCall(spec.name, arguments),))), seed=seed),
    }[kind]()
    kept = Kept(model)
    found = propose(kept, {spec.name: spec}, strategy)
    if found.error is None:
        for call in found.calls:
            assert validate_arguments(spec, call.arguments)[2] is None
    assert found.requests <= 2 + 2 * MAX_MENDS
    assert max(kept.prompts.count(prompt) for prompt in kept.prompts) <= MAX_SENT


@given(tools(), st.data())
def test_a_line_in_one_piece_comes_to_what_it_comes_to_in_two(
    made: tuple[ToolSpec, dict[str, Any]], data: st.DataObject
) -> None:
    spec, arguments = made
    line = json.dumps({"type": "tool_call", "name": spec.name, "arguments": arguments})
    at, put = data.draw(st.integers(1, len(line) - 1)), data.draw(st.sampled_from(["", "1", '"']))
    line = line[:at] + put + line[at:]  # which it seldom is then
    rules = ReadingRules(max_calls=8, catalog={spec.name: spec.parameters})
    found = []
    for pieces in ([line], [line[:at], line[at:]]):
        held = ConstrainedTurn(rules, {spec.name: spec})
        draw = held.pending_request
        for piece in pieces:
            if held.pending_request is draw:
                held.feed(piece)
        if held.pending_request is draw:
            held.end_sample("stop")
        mends = [(one.kind, one.kept_chars, one.replacement) for one in held.mends]
        found.append((held.text, held.reading, mends, held.unfilled))
    assert found[0] == found[1]


class Kept:
    """Keeps the prompts that a backend was asked with."""

    model = None

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.prompts: list[str] = []

    async def complete(self, request: Any) -> Any:
        self.prompts.append(request.prompt)
        async for chunk in self._backend.complete(request):
            yield chunk


def drawn_again(seed: int, strategy: Strategy, likely: int) -> tuple[Any, Any] | None:
    """A turn of a model that errs, and the same drawn again from its records; None if unmended."""
    chance = random.Random(seed)

    def broken(text: str) -> str:
        for _ in range(chance.randint(0, 3)):
            at = chance.randrange(max(len(text), 1))
            text = text[:at] + chance.choice('"{}[],:1a ') + text[at + 1 :]
        return text

    prefix = opening("jsonl") if strategy == "guided" else ""
    catalog = {name: spec.parameters for name, spec in SPECS.items()}
    rules = ReadingRules(prefix=prefix, catalog=catalog)
    made = ConstrainedTurn(rules, SPECS, strategy)
    for _ in range(60):
        if (ask := made.pending_request) is None:
            break
        if isinstance(ask, ScoreTokens):
            tokens = [("}", -1.0), ('"', -1.1), ("3", -1.2), (",", -1.3)][:likely]
            made.feed_scores(tokens, "}")
            continue
        assert isinstance(ask, SampleTokens)
        whole = OSLO + "\n" + OSLO
        rest = broken(whole[len(ask.text) :] if whole.startswith(ask.text) else OSLO[30:])
        for start in range(0, len(rest), 3):
            made.feed(rest[start : start + 3])
            if made.pending_request is not ask or made.should_close:
                break
        if made.pending_request is ask:
            made.end_turn(None) if made.should_close else made.end_sample(
                chance.choice(["stop", "length"])
            )
    assert made.pending_request is None
    if not made.mends:
        return None  # it is read like any other
    due = Complete(1, "", rules, 100, None, strategy, SPECS)
    same, _ = replay_completion(due, made.mends, made.text, made.finish_reason)
    return made, same


@example(4699, "guided", 0)  # a second call that comes whole
@given(st.integers(0, 10**6), st.sampled_from(["auto", "guided"]), st.integers(0, 3))
def test_a_mended_turn_is_drawn_again_from_its_records(
    seed: int, strategy: Strategy, likely: int
) -> None:
    if (turns := drawn_again(seed, strategy, likely)) is not None:
        made, same = turns
        assert same.unfilled == made.unfilled
        assert (same.text, same.mends, same.reading) == (made.text, made.mends, made.reading)


def test_a_turn_that_was_mended_twice_in_a_second_call_is_drawn_again() -> None:
    turns = drawn_again(718203, "auto", 2)
    assert turns is not None and turns[1].text == turns[0].text


def test_a_call_on_a_line_is_not_read_a_second_time_to_see_whether_it_repeats_itself() -> None:
    assert "_reader" not in vars(turn(OSLO))
