"""Limits of all kinds, failing tools and backends, runs within runs, what a prompt begins with."""

from __future__ import annotations

import re
from collections.abc import Iterator

import anyio

from mlx_tools import Policy, Registry, Tool, ToolSpec
from mlx_tools.backends import ModelFiles
from mlx_tools.errors import BackendBroken, BackendTimeout
from mlx_tools.prompt import NAMED_FORMATS

from .reading import answer, call
from .scene import ALL, FREELY, Scene, Stage, make_limits
from .tools import KEY, READ, asking, failing, giving, look, many, save, slow

LOOK = call("look", text="a")
SAVE = call("save", path="a.txt", text="a")
LOOKED = [{"id": "l1", "function": {"name": "look", "arguments": '{"text": "door"}'}}]
LINES = "\n".join(f"{number:03}: all work and no play" for number in range(90))


def scenes() -> Iterator[Scene]:
    """All of this theme."""
    yield from _iterations()
    yield from _sizes()
    yield from _contexts()
    yield from _times()
    yield from _nested()
    yield from _beginnings()
    yield from _formats()
    yield from _thinking()


def _iterations() -> Iterator[Scene]:
    yield Scene(
        name="limits/told-to-finish",
        about="After its last turn the model is told to answer, and does.",
        features=("iterations",),
        tools=lambda: [look()],
        says=[LOOK, call("look", text="b"), answer("From what I know: b.")],
        limits=make_limits(max_iterations=2),
    )
    yield Scene(
        name="limits/does-not-finish",
        about="A model that calls on after it was told to answer is stopped.",
        features=("iterations",),
        tools=lambda: [look()],
        says=[LOOK, call("look", text="b")],
        limits=make_limits(max_iterations=1),
    )
    yield Scene(
        name="limits/format-errors",
        about="Two turns in a row that cannot be read end the run.",
        features=("correction",),
        tools=lambda: [look()],
        says=['{"type":"tool_call","name":', ""],
    )
    loop = "over and over " * 2_000
    yield Scene(
        name="limits/repetition-in-a-call",
        about="A call that repeats one text is stopped, and corrected once.",
        features=("repetition",),
        tools=lambda: [look()],
        says=[
            f'{{"type":"tool_call","name":"look","arguments":{{"text":"{loop}',
            LOOK,
            answer("Yes."),
        ],
    )
    yield Scene(
        name="limits/repetition-in-a-thought",
        about="A thought that repeats one text is closed, and the turn goes on.",
        features=("repetition",),
        tools=lambda: [look()],
        says=[f"<think>{loop[:4_000]}", LOOK, answer("Yes.")],
    )
    yield Scene(
        name="limits/repetition-in-an-answer",
        about="An answer that repeats one text ends there, and says so.",
        features=("repetition", "truncated"),
        tools=lambda: [look()],
        says=[f"Here it is: {loop[:7_000]}"],
    )
    yield Scene(
        name="limits/repeated-call",
        about="A call that only reads and is made again is served, and the model is told so.",
        features=("repeated",),
        tools=lambda: [look()],
        says=[LOOK, LOOK, answer("It was found.")],
    )
    yield Scene(
        name="limits/repeated-change",
        about="A call that changes something and was made before is not run again.",
        features=("repeated",),
        tools=lambda: [save()],
        policy=FREELY,
        says=[SAVE, SAVE, answer("It is saved.")],
    )
    yield Scene(
        name="limits/repeated-call-stops",
        about="A call that only reads ends the run when it is made the third time.",
        features=("repeated",),
        tools=lambda: [look()],
        says=[LOOK, LOOK, LOOK],
    )


def _sizes() -> Iterator[Scene]:
    def page(prompt: str) -> str:
        key = re.findall(r"with id (\S+) and offset (\d+)", prompt)[-1]
        return call("read_artifact", id=key[0], offset=int(key[1]))

    yield Scene(
        name="limits/argument-bytes",
        about="Arguments beyond the limit are not passed on.",
        tools=lambda: [save()],
        says=[call("save", path="a", text="é" * 60), answer("Too much.")],
        limits=make_limits(max_argument_bytes=100),
    )
    yield Scene(
        name="limits/observation-cut-and-read-on",
        about="A long output is cut, kept whole, and the model reads on in it.",
        features=("artifact",),
        tools=lambda: [giving("lines", LINES)],
        says=[call("lines"), page, answer("Only work.")],
        limits=make_limits(max_observation_chars=600),
    )
    yield Scene(
        name="limits/observation-summarised",
        about="A long output is cut, and the model itself says what was left out.",
        features=("artifact", "summary"),
        tools=lambda: [giving("lines", LINES)],
        says=[call("lines"), "All of it\n is work.", answer("Only work.")],
        limits=make_limits(max_observation_chars=1000),
        settings={"long_observations": "summary"},
    )
    yield Scene(
        name="limits/observation-cut",
        about="A long output is cut where the model may not read on.",
        features=("artifact",),
        tools=lambda: [giving("lines", LINES)],
        says=[call("lines"), answer("Only work.")],
        limits=make_limits(max_observation_chars=300),
        policy=Policy(allow=["lines"]),
    )


def _contexts() -> Iterator[Scene]:
    def said(prompt: str) -> str:
        return "Weather was asked for." if "Sum it up" in prompt else answer("It rains. " * 40)

    books = ("first", "second", "third", "fourth")
    yield Scene(
        name="limits/context-observations-leave",
        about="The context is full: the oldest observations give way to what they can be read by.",
        features=("artifact", "compacted"),
        tools=lambda: [giving(name, LINES) for name in books],
        says=[*map(call, books), answer("Only work.")],
        limits=make_limits(max_iterations=6, max_observation_chars=1500),
        settings={"context": 2400},
    )
    yield Scene(
        name="limits/context-summed-up",
        about="The context fills, and the model sums up the oldest turns.",
        features=("compacted",),
        asks=[f"How is the weather on day {number}?" for number in range(4)],
        says=[said] * 6,
        settings={"context": 960, "compact": "auto"},
    )
    yield Scene(
        name="limits/context-full",
        about="A question that the context does not hold ends the run before the model is asked.",
        features=("context-full",),
        asks=["Why? " * 900, "Please help me."],
        says=[answer("With pleasure.")],
        settings={"context": 1200},
    )


def _times() -> Iterator[Scene]:
    async def interrupted(stage: Stage) -> str:
        scope = anyio.CancelScope()

        async def run(arguments: object) -> str:
            scope.cancel()
            await anyio.sleep_forever()
            return ""

        stage.registry = Registry([Tool(look().spec, run)])
        sessions: list[str] = []
        async with await stage.controller(LOOK).conversation() as conversation:
            sessions.append(conversation.session)
            with scope:
                await conversation.run("Please help me.")
        return sessions[0]

    yield Scene(
        name="limits/tool-timeout",
        about="A tool that takes too long is given up, and the model is told.",
        features=("tool-timeout",),
        tools=lambda: [slow(timeout=0.05)],
        says=[call("slow"), answer("It took too long.")],
    )
    yield Scene(
        name="limits/total-timeout",
        about="The time of the run is over while a tool works.",
        features=("total-timeout",),
        tools=lambda: [slow(), look()],
        says=[call("slow")],
        limits=make_limits(total_timeout=1.5),
    )
    yield Scene(
        name="limits/completion-timeout",
        about="The server takes too long for a completion.",
        features=("completion-timeout",),
        tools=lambda: [look()],
        says=[LOOK, BackendTimeout("no completion within 120 s")],
    )
    yield Scene(
        name="limits/backend-error",
        about="The server breaks off in the midst of a run.",
        features=("backend-error",),
        tools=lambda: [look()],
        says=[LOOK, BackendBroken("the stream broke off")],
    )
    yield Scene(
        name="limits/interrupted",
        about="Somebody ends the run while a tool works.",
        tools=lambda: [look()],
        play=interrupted,
    )
    yield Scene(
        name="limits/tool-error-of-any-kind",
        about="Whatever a tool raises comes back as its error, without a traceback.",
        tools=lambda: [_raising()],
        says=[call("broken"), answer("It is broken.")],
    )


def _raising() -> Tool:
    async def run(arguments: object) -> str:
        raise KeyError("no such thing")

    nothing = {"type": "object", "properties": {}}
    return Tool(ToolSpec("broken", "Is broken.", nothing, READ), run)


def _nested() -> Iterator[Scene]:
    async def inner(stage: Stage) -> str:
        outer = await stage.ask_all(stage.controller(*stage.scene.says))
        folders = (stage.folder / "sessions").glob("*/transcript.jsonl")
        return next(path.parent.name for path in folders if path.parent.name != outer)

    says = [call("ask_around", text="Where is the tea?"), call("look", text="tea")]
    says += [answer("On the shelf."), answer("They say: on the shelf.")]
    yield Scene(
        name="nested/outer",
        about="A tool asks the model itself; its completions count against the run's.",
        features=("nested",),
        tools=lambda: [asking(), look()],
        says=says,
    )
    yield Scene(
        name="nested/inner",
        about="The run within a call is a session of its own, under a narrower policy.",
        features=("nested", "narrowed"),
        tools=lambda: [asking(), look()],
        says=says,
        play=inner,
    )
    yield Scene(
        name="nested/no-completions-left",
        about="A run within gets none where the outer run has no completions left.",
        features=("nested", "iterations"),
        tools=lambda: [asking(), look()],
        says=[says[0], answer("Nobody could be asked.")],
        limits=make_limits(max_iterations=1),
    )


def _beginnings() -> Iterator[Scene]:
    yield Scene(
        name="prompt/history",
        about="Earlier messages stand before the question.",
        features=("history",),
        tools=lambda: [look()],
        says=[answer("Green, as you said.")],
        history=[
            {"role": "system", "content": "The user lives by the sea."},
            {"role": "user", "content": "My door is green."},
            {"role": "assistant", "tool_calls": LOOKED},
            {"role": "tool", "tool_call_id": "l1", "content": "a green door"},
            {"role": "assistant", "content": "I see."},
        ],
        asks=["What colour is my door?"],
    )
    yield Scene(
        name="prompt/two-questions",
        about="The second question of a session sees the first one and its tools' outputs.",
        features=("two-questions",),
        tools=lambda: [look()],
        says=[LOOK, answer("One."), call("look", text="b"), answer("Two.")],
        asks=["First?", "And second?"],
    )
    yield Scene(
        name="prompt/question-after-a-stop",
        about="A question that was stopped is told to be unanswered when the next one comes.",
        features=("two-questions", "unanswered"),
        tools=lambda: [look()],
        says=['{"type":', "", answer("Now I can.")],
        asks=["First?", "And now?"],
    )
    yield Scene(
        name="prompt/project-and-persona",
        about="A persona and the words about a project stand in the system prompt.",
        features=("project-context", "persona"),
        tools=lambda: [look()],
        says=[answer("Arr.")],
        settings={"persona": "You are a pirate.", "project_context": "The ship is the Beagle."},
    )
    yield Scene(
        name="prompt/rag-first",
        about="In this mode the model is told to look facts up before it answers.",
        features=("rag-first",),
        tools=lambda: [look()],
        says=[LOOK, answer("It says so.")],
        settings={"response_mode": "rag-first"},
    )
    yield Scene(
        name="prompt/no-tools",
        about="Without tools the model is told that there are none.",
        features=("no-tools",),
        says=[answer("By myself.")],
    )
    for choice, says in (
        ("none", [LOOK, answer("Without.")]),
        ("required", ['look","arguments":{"text":"a"}}', answer("With.")]),
        ("save", [LOOK, call("save", path="a", text="b"), answer("Saved.")]),
    ):
        named = "named" if choice == "save" else choice
        yield Scene(
            name=f"prompt/tool-choice-{named}",
            about=f"What the caller said of calls holds: {named}.",
            features=(f"tool-choice-{named}",),
            tools=lambda: [look(), save()],
            says=says,
            policy=FREELY if named == "named" else ALL,
            choices=[choice],
        )
    yield Scene(
        name="prompt/shortlist-and-search",
        about="Where not all tools fit the model looks for one, then calls what it found.",
        features=("shortlist", "tool-search"),
        tools=many,
        says=[
            call("tool_search", query="high water harbour"),
            call("tide_table", text="Brest"),
            answer("At 09:15."),
            call("song_words", text="Yesterday"),
            answer("All my troubles."),
        ],
        asks=["When does the next bus leave?", "What are the words of that song?"],
        settings={"catalog_budget": 60},
    )
    yield Scene(
        name="prompt/shortlist-without-search",
        about="Where the search may not be called, the model is told how many tools are hidden.",
        features=("shortlist",),
        tools=many,
        says=[call("bus_times", text="Centre"), answer("At 09:15.")],
        asks=["When does the next bus leave?"],
        settings={"catalog_budget": 60},
        policy=Policy(allow=["*_*"], deny=["tool_search"]),
    )
    yield Scene(
        name="prompt/redacted-output",
        about="A secret in a tool's output is taken out before anybody sees it.",
        features=("redaction",),
        tools=lambda: [giving("notes", f"The key is {KEY}, keep it.")],
        says=[call("notes"), answer("There is a key.")],
    )


def _formats() -> Iterator[Scene]:
    for name in NAMED_FORMATS:
        yield Scene(
            name=f"formats/{name}",
            about=f"A run in the chat format {name}, with an error and a second question.",
            features=("chat-format",),
            tools=lambda: [look(), failing()],
            says=[f" {LOOK}", call("shelf"), answer("Well."), answer("Yes.")],
            asks=[" First? ", "And second?"],
            settings={"chat_format": NAMED_FORMATS[name]},
        )


_OWN = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}[[SYS]]{{ m['content'] | trim }}[[/SYS]]"
    "{% elif m['role'] == 'user' %}[[ASK]]{{ m['content'] }}[[/ASK]]"
    "{% else %}[[SAY]]{{ m['content'] }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[[SAY]]{% endif %}"
)
_THINKS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and '</think>' in m['content'] %}"
    "{{ m['content'].split('</think>')[-1].lstrip('\n') }}{% else %}{{ m['content'] }}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)


def _files(name: str, template: str, *tokens: str) -> ModelFiles:
    from pathlib import Path

    return ModelFiles(
        path=Path(),
        name=name,
        chat_template=template,
        bos_token="<s>",
        eos_token=tokens[-1],
        special_tokens=tokens,
        end_tokens=tokens[-1:],
    )


def _thinking() -> Iterator[Scene]:
    from mlx_tools.backends import find_chat_format

    own = _files("own", _OWN, "[[SYS]]", "[[/SYS]]", "[[ASK]]", "[[/ASK]]", "[[SAY]]", "</s>")
    yield Scene(
        name="formats/own-template",
        about="The chat format is read from a template that no list knows.",
        features=("chat-format", "template"),
        tools=lambda: [look()],
        says=[LOOK, answer()],
        files=own,
        settings={"chat_format": find_chat_format(files=own).chat_format},
        asks=["Is [[/ASK]] one of them?"],
    )
    thinks = _files("thinks", _THINKS, "<|im_start|>", "<|im_end|>")
    found = find_chat_format(files=thinks).chat_format
    for reasoning, says in (
        ("off", [LOOK, answer()]),
        (
            "auto",
            [f"They want a look.\n</think>\n\n{LOOK}", f"So it is.\n</think>\n\n{answer()}"],
        ),
        (64, ["They want a look.</think>", LOOK, "So it is.</think>", answer()]),
    ):
        name = "budget" if reasoning == 64 else reasoning
        yield Scene(
            name=f"formats/thinking-{name}",
            about=f"A model that thinks, and its reasoning: {name}.",
            features=("chat-format", "template", "reasoning", f"reasoning-{name}"),
            tools=lambda: [look()],
            says=says,
            files=thinks,
            settings={"chat_format": found, "reasoning": reasoning},
        )
