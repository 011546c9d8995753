"""The reading of completions: styles, repairs, coercions, what is no message at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

from mlx_tools.backends import ModelFiles, find_chat_format
from mlx_tools.messages import Style
from mlx_tools.protocol import write_answer, write_call
from mlx_tools.testing import Script

from .scene import FREELY, Scene, make_limits
from .tools import failing, lamp, look, save, transfer

STYLES: tuple[Style, ...] = get_args(Style)


_TEMPLATES: Final = Path(__file__).resolve().parents[2] / "tests" / "prompt" / "templates"


def spoken(style: Style) -> dict[str, Any]:
    """The settings of a scene in this style, of a model whose own template tells of tools."""
    if style != "native":
        return {"settings": {"style": style}}
    files = ModelFiles(
        path=Path(),
        name="hermes",
        chat_template=(_TEMPLATES / "qwen2.5-tools.jinja").read_text(encoding="utf-8"),
        bos_token=None,
        eos_token="<|im_end|>",
        adds_bos=False,
        special_tokens=("<|im_start|>", "<|im_end|>"),
        end_tokens=("<|im_end|>",),
    )
    chat_format = find_chat_format(files=files).chat_format
    return {"settings": {"style": style, "chat_format": chat_format}, "files": files}


def call(name: str, style: Style = "jsonl", **arguments: Any) -> str:
    """A call as a model should write it."""
    return write_call(name, arguments, style=style)


def answer(content: str = "Done.", style: Style = "jsonl") -> str:
    """An answer as a model should write it."""
    return write_answer(content, style)


def scenes() -> Iterator[Scene]:
    """All of this theme."""
    for style in STYLES:
        yield from _in_style(style)
    yield from _repairs()
    yield from _rules()
    yield from _faults()


def _in_style(style: Style) -> Iterator[Scene]:
    calls = (
        call("save", style, path="größe.txt", text='語 \U0001f642 "quoted" \\ and\ttab'),
        call("look", style, text="two", count=2, tags=["a", "b"], ratio=-0.5, exact=False),
        call("transfer", style, to="x", memo={"lines": ["a", {"b": None}], "ok": True}),
    )
    yield Scene(
        name=f"styles/{style}-parallel",
        about="Three calls in one turn run, and their observations come back in order.",
        features=("parallel",),
        tools=lambda: [look(), save(), transfer()],
        says=["\n".join(calls), answer("All of them are done.", style)],
        policy=FREELY,
        **spoken(style),
    )
    yield Scene(
        name=f"styles/{style}-error-and-answer",
        about="A tool fails, the model is told so, and answers.",
        tools=lambda: [failing()],
        says=[call("shelf", style), answer("The shelf\nis empty.", style)],
        **spoken(style),
    )


REPAIRS = {
    "quotes": (
        "{'type':'tool_call','name':'look','arguments':{'text':'a'}}",
        '{type:"tool_call",name:"look",arguments:{text:"b"}}',
        '{"type":"tool_call","name":"look","arguments":{"text":"c","exact":True}}',
    ),
    "commas": (
        '{"type":"tool_call","name":"look","arguments":{"text":"a",}}',
        '{"type":"tool_call" "name":"look","arguments":{"text":"b"}}',
        '{"type":"tool_call","name":"look",/* soon */"arguments":{"text":"c"}}',
    ),
    "strings": (
        '{"type":"tool_call","name":"look","arguments":{"text":"a\nb"}}',
        '{"type":"tool_call","name":"look","arguments":{"text":"c\td"}}',
        '{"type":"tool_call","name":"look","arguments":{"text":"C:\\data"}}',
    ),
    "places": (
        'I will look: {"type":"tool_call","name":"look","arguments":{"text":"a"}}',
        '{"type":"tool_call","name":"look","arguments":{"text":"b"}',
    ),
    "envelope": (
        '{"name":"look","arguments":{"text":"a"}}',
        '{"type":"function","function":{"name":"look","arguments":"{\\"text\\":\\"b\\"}"}}',
        '{"type":"tool_call","name":"shelf"}',
        '{"type":"tool_call","id":7,"name":"look","arguments":{"text":"c"}}',
    ),
    "tool-name": ('{"type":"tool_call","name":"Lo-ok","arguments":{"text":"a"}}',),
}
"""By theme, lines that are almost what they should be: a turn each."""

COERCED = (
    {"text": "a", "count": "3"},
    {"text": "b", "ratio": "0.5"},
    {"text": "c", "exact": "True"},
    {"text": "d", "tags": "one"},
    {"text": "e", "note": None},
    {"text": 6},
    {"text": "g", "tags": '["one", "two"]'},
)


def _repairs() -> Iterator[Scene]:
    for theme, lines in REPAIRS.items():
        yield Scene(
            name=f"reading/repairs-{theme}",
            about="Lines that are almost right are repaired, and the calls run.",
            features=("repairs",),
            tools=lambda: [look(), failing()],
            says=[*lines, '{"type":"final_answer","content":"Read."}'],
            limits=make_limits(max_iterations=8),
        )
    yield Scene(
        name="reading/coercions",
        about="Arguments of the wrong type that can mean but one thing are taken as that.",
        features=("coercions",),
        tools=lambda: [look()],
        says=[*(call("look", **arguments) for arguments in COERCED), answer()],
        limits=make_limits(max_iterations=10),
    )
    yield Scene(
        name="reading/coercions-of-choices",
        about="A choice in another case is taken as that choice, and empty arguments as none.",
        features=("coercions",),
        tools=lambda: [lamp(), failing()],
        says=[
            call("lamp", state="ON"),
            '{"type":"tool_call","name":"shelf","arguments":""}',
            answer(),
        ],
    )
    yield Scene(
        name="reading/repaired-call-that-writes",
        about="A repaired call that can change things is not run before a person has agreed.",
        features=("repairs", "unclean"),
        tools=lambda: [save()],
        says=['{"type":"tool_call","name":"save","arguments":{"path":"a","text":"b",}}'],
    )
    yield Scene(
        name="reading/repaired-answer",
        about="An answer with a trailing comma is repaired.",
        features=("repairs",),
        says=['{"type":"final_answer","content":"Here.",}'],
    )


def _rules() -> Iterator[Scene]:
    yield Scene(
        name="reading/bare-text",
        about="Plain prose is taken as the answer.",
        features=("bare-text",),
        tools=lambda: [look()],
        says=["It is a fine day."],
    )
    yield Scene(
        name="reading/commentary-and-leftover",
        about="Prose before a call is kept apart, and what follows the call is dropped.",
        features=("commentary", "leftover"),
        tools=lambda: [look()],
        says=[f"Let me see.\n{call('look', text='a')}\nNow I know.", answer()],
    )
    yield Scene(
        name="reading/thought-in-text",
        about="A thought that the model writes of itself is taken out of its text.",
        features=("reasoning",),
        tools=lambda: [look()],
        says=[f"<think>They want a look.</think>\n{call('look', text='a')}", answer()],
    )
    yield Scene(
        name="reading/too-many-calls",
        about="More calls than one turn may make are dropped.",
        features=("calls-per-turn",),
        tools=lambda: [look()],
        says=["\n".join(call("look", text=word) for word in ("a", "b", "c")), answer()],
        limits=make_limits(max_calls_per_turn=2),
    )
    yield Scene(
        name="reading/answer-after-calls",
        about="An answer that the model writes behind its call, before it has seen the result, is "
        "not taken.",
        features=("leftover",),
        tools=lambda: [look()],
        says=[f"{call('look', text='a')}\n{answer('Guessed.')}", answer("Looked up.")],
    )
    yield Scene(
        name="reading/own-ids",
        about="The ids that a model gives its calls come back with the observations.",
        features=("parallel", "ids"),
        tools=lambda: [look()],
        says=[
            "\n".join(
                json.dumps(
                    {"type": "tool_call", "id": key, "name": "look", "arguments": {"text": key}}
                )
                for key in ("x", "y")
            ),
            answer(),
        ],
    )
    yield Scene(
        name="reading/sources",
        about="An answer names its sources.",
        features=("sources",),
        says=['{"type":"final_answer","content":"So it is.","sources":["a.txt",{"page":2}]}'],
    )


def _faults() -> Iterator[Scene]:
    yield Scene(
        name="reading/invalid-json",
        about="A line that cannot be read is sent back with a word on how to mend it.",
        features=("correction",),
        tools=lambda: [look()],
        says=[
            '{"type":"tool_call","name":"look","arguments":{"text":}}',
            call("look", text="a"),
            answer(),
        ],
    )
    yield Scene(
        name="reading/cut-off",
        about="A call that the limit of tokens cut off is not run, not even in part.",
        features=("correction", "cut-off"),
        tools=lambda: [save()],
        says=[
            Script('{"type":"tool_call","name":"save","arguments":{"path":"a.txt"', "length"),
            answer("It did not fit."),
        ],
    )
    yield Scene(
        name="reading/cut-off-after-call",
        about="Of two calls, the second cut off, none is run.",
        features=("correction", "cut-off"),
        tools=lambda: [look()],
        says=[
            Script(f'{call("look", text="a")}\n{{"type":"tool_call","name":"lo', "length"),
            answer("Never mind."),
        ],
    )
    yield Scene(
        name="reading/unknown-tool",
        about="A tool that does not exist is told, with the nearest name.",
        tools=lambda: [look()],
        says=[call("lok", text="a"), answer("There is none.")],
    )
    yield Scene(
        name="reading/invalid-arguments",
        about="Arguments that do not fit are told with all that is wrong.",
        tools=lambda: [look()],
        says=[call("look", count="many", tags=[1]), answer("I cannot.")],
    )
    yield Scene(
        name="reading/duplicate-keys",
        about="An object with one key twice is no call: nobody knows which is meant.",
        features=("correction",),
        tools=lambda: [save()],
        says=[
            '{"type":"tool_call","name":"save","arguments":{"path":"a","path":"b","text":"c"}}',
            answer(),
        ],
    )
