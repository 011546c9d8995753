"""The model's context in runs: counted before anything is sent, made room in, refused in time."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import (
    Answered,
    Controller,
    Limits,
    Policy,
    RunSettings,
    Tool,
    TranscriptStore,
    UsageError,
    tool,
)
from mlx_tools.backends import Chunk, CompletionRequest
from mlx_tools.backends.models.files import estimate_tokens
from mlx_tools.errors import BackendError, BackendRefused, TranscriptError
from mlx_tools.messages import Usage
from mlx_tools.prompt import format_for_name
from mlx_tools.store.transcript import load
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.transcript import STOP_WORDS, events, stopped_in_words
from mlx_tools.transcript.records import (
    CompactedRecord,
    CompletionRecord,
    State,
    UserRecord,
)
from tests.controller.sessions import (
    collect_events,
    make_session_in_state,
    read_records,
    require_answer,
    resume_session,
)
from tests.controller.test_shortlist import DEEDS, THINGS
from tests.controller.test_shortlist import made as tool_for

SIZE = 2000
MANY = Limits(max_iterations=40, max_observation_chars=1500, max_calls_per_turn=4, max_tokens=512)


@tool(effects=["read"])
def log(n: int, length: int = 1200) -> str:
    """Shows part of the log."""
    return (f"line {n} of the log. " * 400)[:length]


def controller(*script: Any, tools: Sequence[Tool] = (log,), **more: Any) -> Controller:
    backend = more.pop("backend", None) or ScriptedBackend(*script)
    given: dict[str, Any] = {"limits": MANY, "settings": RunSettings(context=SIZE), **more}
    return Controller(backend, tools, Policy(allow=["log", "read_artifact"]), **given)


def backend_of(made: Controller) -> ScriptedBackend:
    assert isinstance(made.backend, ScriptedBackend)
    return made.backend


def last(happened: Sequence[events.Event]) -> Any:
    assert isinstance(happened[-1], events.Finished)
    return happened[-1].outcome


def within(made: Controller, size: int = SIZE) -> bool:
    """Return True if no request could have gone over the context, as far as anybody can count."""
    return all(estimate_tokens(r.prompt) + r.max_tokens <= size for r in backend_of(made).requests)


def looks(number: int, length: int = 1200) -> list[str]:
    return [call("log", n=n, length=length) for n in range(number)]


# --- known and unknown ---


def test_where_nobody_says_the_size_nothing_is_counted_and_nothing_refused() -> None:
    made = controller(*looks(9), answer(), settings=RunSettings())
    happened = collect_events(made, "x " * 4000)
    assert isinstance(last(happened), Answered)
    assert last(happened).to_json()["context"] == {"size": None, "used": None}
    assert not [e for e in happened if isinstance(e, events.ContextFilling | events.Compacted)]
    assert {request.max_tokens for request in backend_of(made).requests} == {MANY.max_tokens}


def test_a_backend_may_say_the_size_and_the_settings_say_it_louder() -> None:
    backend = ScriptedBackend(answer(), answer())
    backend.context = 5000  # type: ignore[attr-defined]
    made = controller(backend=backend, settings=RunSettings())
    assert made.run_sync("Hi").context.size == 5000
    made = controller(backend=backend)
    assert made.run_sync("Hi").context.size == SIZE


class AllAtOnce:
    """A backend that sends a completion, its end and its usage in one chunk, and so is never
    closed before the usage is known."""

    def __init__(self, usage: Usage | None, *texts: str) -> None:
        self.usage, self.texts = usage, [*texts]

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        yield Chunk(self.texts.pop(0), "stop", self.usage)


THINKS = RunSettings(context=100_000, chat_format=format_for_name("qwen3"), reasoning=1000)


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ([call("log", n=1)], RunSettings(context=100_000)),
        (
            ['{"type":"tool_call","nonsense":1}', 'log","arguments":{"n":1}}'],
            RunSettings(context=100_000, strategy="auto"),
        ),
        (["hm</think>", call("log", n=1)], THINKS),
    ],
    ids=["one request", "mended", "after a thought"],
)
def test_the_context_in_use_is_the_prompt_once_however_many_requests_a_turn_took(
    tmp_path: Path, said: list[str], settings: RunSettings
) -> None:
    """A server counts the prompt again for each request of a turn."""

    def context(usage: Usage | None) -> int | None:
        backend = AllAtOnce(usage, *said, *said[:-1][:thinks], answer())
        store = TranscriptStore(tmp_path)
        made = controller(backend=backend, settings=settings, store=store)
        records = read_records(made.run_sync("What happened?"))
        first = next(r for r in records if isinstance(r, CompletionRecord))
        assert (first.requests, bool(first.usage.prompt_tokens)) == (len(said), usage is not None)
        return first.context

    thinks = settings is THINKS
    counted = context(None)
    assert counted is not None
    assert context(Usage(300, 0, 10)) == (300 if len(said) == 1 else counted)


# --- what is sent ---


def test_a_thought_and_what_follows_share_what_is_left() -> None:
    thinking = RunSettings(
        context=SIZE,
        chat_format=format_for_name("qwen3"),
        reasoning=30_000,
        tool_choice="required",
    )
    limits = Limits(max_tokens=32_000)
    made = controller(
        *("hm</think>", 'log","arguments":{"n":1}}', "hm</think>", answer()),
        settings=thinking,
        limits=limits,
    )
    assert isinstance(made.run_sync("Hi"), Answered)
    thought, call_, *_ = backend_of(made).requests
    assert thought.max_tokens > 100 and call_.max_tokens > 100
    assert estimate_tokens(thought.prompt) + thought.max_tokens + call_.max_tokens <= SIZE


def test_a_question_that_is_too_long_by_itself_is_refused_before_anybody_is_asked() -> None:
    made = controller()
    outcome = made.run_sync("why " * 3000)
    assert (outcome.reason, outcome.exit_code) == ("context_full", 1)
    context = outcome.to_json()["context"]
    assert context["size"] == SIZE and context["used"] > SIZE
    assert outcome.message == (
        f"the prompt takes {context['used']} tokens, and the model's context holds {SIZE}"
    )
    told_line = stopped_in_words(outcome.records)
    assert told_line == f"stopped: {outcome.message} ({STOP_WORDS['context_full'][1]})"
    assert backend_of(made).requests == []


# --- told ---


def test_a_person_is_told_once_when_four_fifths_are_used() -> None:
    made = controller(*looks(30, 60), answer())
    happened = collect_events(made)
    told = [e for e in happened if isinstance(e, events.ContextFilling)]
    assert len(told) == 1
    assert told[0].size == SIZE and SIZE * 4 // 5 <= told[0].used_tokens <= SIZE
    assert isinstance(last(happened), Answered)


# --- what leaves ---


def test_the_oldest_observations_leave_for_references_that_can_be_read(tmp_path: Path) -> None:
    made = controller(*looks(6), answer(), store=TranscriptStore(tmp_path))
    outcome = require_answer(made.run_sync("What happened?"))
    assert within(made)
    (first, *_) = compactions(outcome)
    assert (first.reason, first.removed) == ("full", 0)
    assert (
        first.tokens_before is not None
        and first.tokens_after is not None
        and first.tokens_after < first.tokens_before
    )
    for text, key in zip(first.observations.values(), first.artifacts, strict=True):
        kept = Path(outcome.transcript or "").parent / "artifacts" / key
        assert key in text and "read_artifact" in text
        assert kept.read_text().startswith("line ")


def test_turns_leave_where_observations_are_not_enough(tmp_path: Path) -> None:
    made = controller(*looks(40, 100), store=TranscriptStore(tmp_path), backend=None)
    outcome = made.run_sync("What happened?")
    assert any(record.turns for record in compactions(outcome))
    assert within(made)
    assert "What happened?" in backend_of(made).prompts[-1]


def test_the_prefix_is_broken_only_where_a_record_says_so(tmp_path: Path) -> None:
    made = controller(*looks(12), answer(), store=TranscriptStore(tmp_path))
    outcome = made.run_sync("What happened?")
    prompts = itertools.pairwise(backend_of(made).prompts)
    broken = [not after.startswith(before) for before, after in prompts]
    assert sum(broken) == len(compactions(outcome)) > 0


# --- what servers report ---


class Counting:
    """A server that counts ``chars`` a token, and refuses what its context does not hold."""

    model = "counting"

    def __init__(
        self, *script: str, size: int = SIZE, reports: bool = True, chars: float = 4
    ) -> None:
        self._chars = chars
        self._script = list(script)
        self._size = size
        self._reports = reports
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        self.requests.append(request)
        tokens = math.ceil(len(request.prompt) / self._chars)
        if tokens + request.max_tokens > self._size:
            raise BackendRefused("the context is full")
        text = self._script.pop(0)
        usage = Usage(tokens, None, -(-len(text) // 4)) if self._reports else None
        yield Chunk(text)
        yield Chunk("", "stop", usage)


def test_what_the_server_counted_makes_the_count_exact(tmp_path: Path) -> None:
    backend = Counting(*looks(12), answer())
    made = controller(backend=backend, store=TranscriptStore(tmp_path))
    outcome = require_answer(made.run_sync("What happened?"))
    completions = read_records(outcome, CompletionRecord)
    exact = -(-len(backend.requests[1].prompt) // 4)
    assert completions[1].context is not None
    tail = backend.requests[1].prompt[len(backend.requests[0].prompt) :]
    assert exact <= completions[1].context <= exact + estimate_tokens(tail) - len(tail) // 4
    assert outcome.context.used_tokens == sum(
        -(-len(text) // 4) for text in (backend.requests[-1].prompt, answer())
    )


def test_a_server_that_counts_more_than_we_do_is_believed_from_then_on(tmp_path: Path) -> None:
    backend = Counting(*looks(20), answer(), size=6000, chars=1.2)
    settings = RunSettings(context=6000)
    made = controller(backend=backend, settings=settings, store=TranscriptStore(tmp_path))
    outcome = made.run_sync("What happened?")
    assert isinstance(outcome, Answered)  # and nothing was refused
    assert compactions(outcome)


# --- summed up ---


def test_where_it_is_wanted_the_model_sums_up_the_oldest_turns(tmp_path: Path) -> None:
    def say(prompt: str) -> str:
        return "They spoke of rain." if "Sum it up" in prompt else answer("so it is " * 40)

    made = controller(
        *[say] * 14,
        settings=RunSettings(context=SIZE, compact="auto"),
        store=TranscriptStore(tmp_path),
    )

    async def main() -> Any:
        async with await made.conversation() as talk:
            return [await talk.run(f"Question {n}? " + "why " * 50) for n in range(9)]

    outcomes = anyio.run(main)
    assert {outcome.status for outcome in outcomes} == {"answered"}
    assert within(made)
    (first, *_) = compactions(outcomes[-1])
    assert (first.reason, first.requests) == ("filling", 1)
    assert "They spoke of rain." in first.content and first.artifacts[0] in first.content
    assert "They spoke of rain." in backend_of(made).prompts[-1]
    assert sum(outcome.requests for outcome in outcomes) == len(backend_of(made).requests)


def test_in_one_long_run_it_sums_up_again_and_again(tmp_path: Path) -> None:
    def say(prompt: str) -> str:
        return "The log was read." if "Sum it up" in prompt else calls.pop(0)

    calls = [*looks(16, 500), answer()]
    made = controller(
        *[say] * 30,
        settings=RunSettings(context=SIZE, compact="auto"),
        store=TranscriptStore(tmp_path),
    )
    outcome = require_answer(made.run_sync("What happened?"))
    assert within(made)
    assert [record.reason for record in compactions(outcome)].count("filling") > 1
    assert backend_of(made).prompts[-1].count("in short: The log was read.") == 1


@pytest.mark.parametrize("summary", ["", "雪" * 600], ids=["none", "larger than the turns"])
def test_a_model_that_cannot_sum_up_is_not_asked_again_and_the_run_goes_on(
    tmp_path: Path, summary: str
) -> None:
    def say(prompt: str) -> Any:
        return summary if "Sum it up" in prompt else calls.pop(0)

    calls = [*looks(9), answer()]
    made = controller(
        *[say] * 12,
        settings=RunSettings(context=SIZE, compact="auto"),
        store=TranscriptStore(tmp_path),
    )
    outcome = require_answer(made.run_sync("What happened?"))
    assert {record.reason for record in compactions(outcome)} == {"full"}
    assert sum("Sum it up" in prompt for prompt in backend_of(made).prompts) == 1
    assert within(made)


def test_by_hand_what_was_said_is_summed_up_and_the_next_question_sees_it() -> None:
    made = controller(answer("Rain."), answer("Snow."), "Of weather.", answer("Sun."))

    async def main() -> Any:
        async with await made.conversation() as talk:
            assert await talk.compact() is None  # nothing was said
            await talk.run("First?")
            await talk.run("Second?")
            done = await talk.compact()
            return done, await talk.run("Third?")

    done, outcome = anyio.run(main)
    assert (done.reason, done.turns, done.summary) == ("asked", 1, True)
    prompt = backend_of(made).prompts[-1]
    assert "Of weather." in prompt and "Second?" in prompt and "Third?" in prompt
    assert "First?" not in prompt
    assert outcome.usage == Usage() and outcome.requests == 1


@pytest.mark.parametrize("summed_up", [True, False])
def test_a_tool_whose_line_has_left_comes_again_with_a_question_that_it_fits(
    tmp_path: Path, summed_up: bool
) -> None:

    tools = [tool_for(deed, thing) for deed in DEEDS[:8] for thing in THINGS[:8]]
    settings = RunSettings(catalog_budget=200, context=60_000)
    script = [answer()] * 3 + ["All done."] * summed_up + [answer()]
    store, policy = TranscriptStore(tmp_path), Policy(allow=["*"])
    one = Controller(ScriptedBackend(*script), tools, policy, settings=settings, store=store)
    garden = "Measure the garden, please."

    async def main() -> str:
        async with await one.conversation() as talk:
            for question in ("Print the invoice.", garden, "Thanks."):
                await talk.run(question)
            if summed_up:
                await talk.compact()
            return (await talk.run(garden)).transcript or ""

    asked = [r for r in load(Path(anyio.run(main))) if isinstance(r, UserRecord)]
    assert any("measure_garden" in line for line in asked[1].tools)
    assert any("measure_garden" in line for line in asked[3].tools) == summed_up


def test_a_failing_server_leaves_the_conversation_as_it_was() -> None:
    made = controller(answer("Rain."), BackendRefused("no"), "", answer("Sun."))

    async def main() -> Any:
        async with await made.conversation() as talk:
            await talk.run("First?")
            for _ in range(2):
                with pytest.raises(BackendError):
                    await talk.compact()
            return await talk.run("Second?")

    assert isinstance(anyio.run(main), Answered)
    assert "First?" in backend_of(made).prompts[-1]


def test_in_the_middle_of_a_question_nothing_is_summed_up() -> None:
    @tool(effects=["write"])
    def change() -> str:
        """Changes something."""
        return "changed"

    made = Controller(
        ScriptedBackend(call("change")), [change], Policy(allow=["change"], ask=["change"])
    )

    async def main() -> None:
        async with await made.conversation() as talk:
            await talk.run("Do it")
            with pytest.raises(UsageError, match="in the middle"):
                await talk.compact()

    anyio.run(main)


# --- folding again ---


def compactions(outcome: Any) -> list[CompactedRecord]:
    return read_records(outcome, CompactedRecord)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_record_it_goes_on_with_the_same_prompts(tmp_path: Path, step: int) -> None:
    store = TranscriptStore(tmp_path)
    texts = [*looks(6), answer()]
    made = controller(*texts, store=store)
    outcome = made.run_sync("What happened?")
    whole = Path(outcome.transcript or "")
    lines = whole.read_bytes().splitlines(keepends=True)
    records = load(whole)
    for number in range(2, len(lines), step):
        whole.write_bytes(b"".join(lines[:number]))
        done = sum(isinstance(record, CompletionRecord) for record in records[:number])
        again = controller(*texts[done:], store=store)
        assert isinstance(resume_session(again, whole), Answered)
        assert prompts_without_ids(again) == prompts_without_ids(made)[done:]


def prompts_without_ids(made: Controller) -> list[str]:
    """The prompts with the ids of artifacts left out, which are drawn anew."""
    return [re.sub(r"[0-9a-f]{32}", "ID", prompt) for prompt in backend_of(made).prompts]


@given(
    size=st.integers(400, 4000),
    steps=st.lists(st.lists(st.integers(0, 1500), min_size=1, max_size=4), min_size=1, max_size=12),
    words=st.integers(1, 200),
    most=st.integers(1, 3000),
    reports=st.booleans(),
)
def test_no_request_goes_over_the_context_whatever_happens(
    size: int, steps: list[list[int]], words: int, most: int, reports: bool
) -> None:
    script = [
        "\n".join(call("log", n=10 * turn + n, length=length) for n, length in enumerate(lengths))
        for turn, lengths in enumerate(steps)
    ]
    backend = Counting(*script, answer(), answer(), size=size, reports=reports)
    limits = Limits(max_iterations=40, max_tokens=most, max_observation_chars=1500)
    made = controller(backend=backend, settings=RunSettings(context=size), limits=limits)

    async def main() -> Any:
        async with await made.conversation() as talk:
            return [await talk.run("why " * words), await talk.run("Hi")]

    for outcome in anyio.run(main):
        # the server refuses what it cannot hold: no run has ended so
        assert outcome.status == "answered" or outcome.reason == "context_full"
        assert outcome.context.size == size
        if outcome.status == "stopped":
            assert outcome.context.used_tokens > size - max(16, min(most, 512, size // 8))


def test_a_record_that_takes_away_what_is_no_whole_turn_is_refused() -> None:
    for state in (State.IDLE, State.COMPLETING, State.STOPPED):
        session = make_session_in_state(state)
        with pytest.raises(TranscriptError, match="no whole turn"):
            session.apply(CompactedRecord(reason="full", removed=7))
