"""The forms in which models were trained to call tools (reading rule 8a): one table of families.

Many models share a form, so a family is named by its marks, not by a model. What stands between the
marks is read by few readers, chosen by ``body``; see `mlx_tools.protocol.bodies`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Body = Literal["json", "named_json", "python", "xml", "pairs", "literal"]
Form = Literal["object", "objects", "array", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One family: what opens and closes its calls, and what stands between.

    ``open`` and ``close`` are the marks as the model writes them; ``close`` is empty where the
    turn's end closes, and may be missing at the very end anyway, for servers cut stop tokens out.
    ``inner`` are the family's further marks.

    ``body``: ``json`` (objects with a name and arguments), ``named_json`` (the name, then the
    arguments as an object), ``python`` (calls with keywords), ``xml`` (a tag a parameter),
    ``pairs`` (the name, then a key and a value in turn), ``literal`` (the name, then an object with
    bare keys and strings in marks of their own).

    The rest is for ``json``. ``form``: one ``object``, several ``objects`` with ``separator``
    between them (white space aside), an ``array`` of them, or ``any`` of these. ``name_key`` and
    ``arguments_key`` are the keys of an object; both empty: the name is the one key, and the
    arguments are its value. Reading takes the other families' keys too.

    ``line``: the mark counts at the start of a line alone, because it may stand in prose.
    """

    name: str
    open: str
    close: str = ""
    body: Body
    form: Form = "object"
    name_key: str = "name"
    arguments_key: str = "arguments"
    separator: str = ""
    inner: tuple[str, ...] = ()
    line: bool = False

    @property
    def is_token(self) -> bool:
        """Whether the mark is spelt like a control token, and so is no part of anyone's prose."""
        return any(char in self.open for char in "|｜▁[]")


def _json(name: str, open_: str, close: str = "", form: Form = "object", **more: str) -> Dialect:
    return Dialect(name=name, open=open_, close=close, body="json", form=form, **more)  # type: ignore[arg-type]


_DEEPSEEK: Final = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_KIMI: Final = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

DIALECTS: Final[tuple[Dialect, ...]] = (
    # JSON between marks.
    _json("hermes", "<tool_call>", "</tool_call>"),
    _json("granite", "<|tool_call|>", "<|/tool_call|>", "array"),
    _json("jamba", "<tool_calls>", "</tool_calls>", "any"),
    _json("nemotron", "<TOOLCALL>", "</TOOLCALL>", "array"),
    _json("mistral", "[TOOL_CALLS]", "", "any"),
    _json("llama3", "<|python_tag|>", "", "objects", arguments_key="parameters", separator=";"),
    _json("granite_20b", "<function_call>", ""),
    _json("gigachat", "<|function_call|>", ""),
    _json("gigachat_roles", "<|message_sep|>\n\nfunction call<|role_sep|>\n", ""),
    _json("internlm", "<|action_start|><|plugin|>", "<|action_end|>", arguments_key="parameters"),
    _json("longcat", "<longcat_tool_call>", "</longcat_tool_call>"),
    _json(
        *("cohere", "<|START_ACTION|>", "<|END_ACTION|>", "array"),
        name_key="tool_name",
        arguments_key="parameters",
    ),
    _json(
        *("apertus", "<|tools_prefix|>", "<|tools_suffix|>", "array"),
        name_key="",
        arguments_key="",
    ),
    Dialect(
        name="phi",
        open="functools[",
        close="]",
        body="json",
        form="objects",
        separator=",",
        line=True,
    ),
    # The name, then the arguments as JSON.
    Dialect(
        name="mistral_args", open="[TOOL_CALLS]", body="named_json", inner=("[CALL_ID]", "[ARGS]")
    ),
    Dialect(
        name="deepseek",
        open=_DEEPSEEK[0],
        close=_DEEPSEEK[1],
        body="named_json",
        inner=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    Dialect(
        name="kimi",
        open=_KIMI[0],
        close=_KIMI[1],
        body="named_json",
        inner=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    Dialect(
        name="harmony",
        open="<|channel|>",
        close="<|call|>",
        body="named_json",
        inner=("<|start|>", "<|constrain|>", "<|message|>"),
    ),
    Dialect(name="llama3_function", open="<function=", close="</function>", body="named_json"),
    Dialect(name="functionary", open=">>>", body="named_json", line=True),
    Dialect(name="react", open="Action:", body="named_json", line=True),
    Dialect(name="call", open="call:", body="named_json", line=True),
    # Calls as Python writes them.
    Dialect(name="lfm2", open="<|tool_call_start|>", close="<|tool_call_end|>", body="python"),
    Dialect(name="llama4", open="<|python_start|>", close="<|python_end|>", body="python"),
    Dialect(name="llama3_builtin", open="<|python_tag|>", body="python"),
    Dialect(name="olmo3", open="<function_calls>", close="</function_calls>", body="python"),
    Dialect(name="gemma3", open="```tool_code\n", close="```", body="python", line=True),
    Dialect(name="pythonic", open="[", close="]", body="python", line=True),
    # A tag a parameter.
    Dialect(
        name="qwen3_coder",
        open="<tool_call>",
        close="</tool_call>",
        body="xml",
        inner=("<function=", "</function>", "<parameter=", "</parameter>"),
    ),
    Dialect(
        name="qwen3_coder_bare",
        open="<function=",
        close="</function>",
        body="xml",
        inner=("<parameter=", "</parameter>"),
    ),
    Dialect(
        name="seed",
        open="<seed:tool_call>",
        close="</seed:tool_call>",
        body="xml",
        inner=("<function=", "</function>", "<parameter=", "</parameter>"),
    ),
    Dialect(
        name="minimax_m2",
        open="<minimax:tool_call>",
        close="</minimax:tool_call>",
        body="xml",
        inner=("<invoke name=", "</invoke>"),
    ),
    Dialect(
        name="minimax_m3",
        open="]<]minimax[>[<tool_call>",
        close="]<]minimax[>[</tool_call>",
        body="xml",
        inner=("]<]minimax[>[",),
    ),
    Dialect(
        name="invoke",
        open="<function_calls>",
        close="</function_calls>",
        body="xml",
        inner=("<invoke name=", "</invoke>"),
    ),
    Dialect(
        name="dots",
        open="<dots_function_call>",
        close="</dots_function_call>",
        body="xml",
        inner=("<invoke name=", "</invoke>"),
    ),
    Dialect(
        name="muse",
        open="<atem:function_calls>",
        close="</atem:function_calls>",
        body="xml",
        inner=("<atem:invoke name=", "</atem:invoke>"),
    ),
    Dialect(
        name="deepseek_dsml",
        open="<｜DSML｜function_calls>",
        close="</｜DSML｜function_calls>",
        body="xml",
        inner=("<｜DSML｜invoke name=", "</｜DSML｜invoke>"),
    ),
    Dialect(
        name="deepseek_v4",
        open="<｜DSML｜tool_calls>",
        close="</｜DSML｜tool_calls>",
        body="xml",
        inner=("<｜DSML｜invoke name=", "</｜DSML｜invoke>"),
    ),
    Dialect(
        name="step3",
        open="<｜tool_calls_begin｜>",
        close="<｜tool_calls_end｜>",
        body="xml",
        inner=("<｜tool_call_begin｜>", "<steptml:invoke name=", "<｜tool_call_end｜>"),
    ),
    Dialect(
        name="minicpm",
        open="<function name=",
        close="</function>",
        body="xml",
        inner=("<param name=", "</param>"),
    ),
    Dialect(
        name="kimi_k3",
        open="<|open|>tools<|sep|>",
        close="<|close|>tools<|sep|>",
        body="xml",
        inner=("<|open|>call", "<|open|>argument", "<|close|>argument", "<|close|>call"),
    ),
    # The name, then keys and values in turn.
    Dialect(
        name="glm",
        open="<tool_call>",
        close="</tool_call>",
        body="pairs",
        inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    Dialect(
        name="longcat_pairs",
        open="<longcat_tool_call>",
        close="</longcat_tool_call>",
        body="pairs",
        inner=("<longcat_arg_key>", "<longcat_arg_value>"),
    ),
    Dialect(
        name="hunyuan_v3",
        open="<tool_calls>",
        close="</tool_calls>",
        body="pairs",
        inner=("<tool_sep>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    # Bare keys, and strings in marks of their own.
    Dialect(
        name="gemma4", open="<|tool_call>", close="<tool_call|>", body="literal", inner=('<|"|>',)
    ),
    Dialect(
        name="functiongemma",
        open="<start_function_call>",
        close="<end_function_call>",
        body="literal",
        inner=("<escape>",),
    ),
)
"""Every family. Where several have one opening mark, what follows it tells which is meant."""

DIALECT_MARKS: Final[tuple[str, ...]] = tuple(
    dict.fromkeys(
        mark
        for dialect in DIALECTS
        if not dialect.line
        for mark in (dialect.open, dialect.close, *dialect.inner)
        if mark
    )
)
"""Every mark of every family that is no ordinary word: for prompts to break in foreign text."""


_WRAPPING: Final = r"(?:[ \t\r\n]++|</tool_call>|```(?!tool_)[a-z]*+)*+"
_LINE_MARKS: Final = "|".join(re.escape(one.open) for one in DIALECTS if one.line)
_LINE_MARKS_BEGUN: Final = "|".join(
    re.escape(one.open[:size]) for one in DIALECTS if one.line for size in range(len(one.open))
)
_MARKS: Final = "|".join({re.escape(one.open) for one in DIALECTS if not one.line})
_NAMED: Final = rf"(?:{_LINE_MARKS})[ \t]*+(?P<name>[\w.$-]*+)"
_CALL_MARK: Final = re.compile(rf"{_WRAPPING}(?P<call>{_MARKS}|{_NAMED}(?=[^\w.$-]))")
_CALL_MARK_BEGUN: Final = re.compile(rf"{_WRAPPING}(?:{_LINE_MARKS_BEGUN}|{_NAMED})\Z")


def find_call_mark(text: str, begin: int, known: Callable[[str], object]) -> int | None:
    """Where a family's opening mark stands at ``begin``, wrapping aside, None where none does; a
    mark that may stand in prose counts before a name alone for which ``known`` gives something."""
    found = _CALL_MARK.match(text, begin)
    if found is None or (found["name"] is not None and not known(found["name"])):
        return None
    return found.start("call")


def call_mark_begins(text: str, begin: int) -> bool:
    """Whether the text from ``begin`` on may go on to be a mark that may stand in prose."""
    return _CALL_MARK_BEGUN.match(text, begin) is not None
