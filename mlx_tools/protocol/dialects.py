"""The forms in which models were trained to call tools (reading rule 8a): one table of families.

Many models share a form, so a family is named by its marks, not by a model. What stands between the
marks is read by few readers, chosen by ``body``; see `mlx_tools.protocol.runs`.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Body = Literal["json", "named_json", "python", "xml", "pairs", "literal"]
Form = Literal["object", "objects", "array", "any"]


class Dialect(Struct, frozen=True):
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
    close: str
    body: Body
    form: Form = "object"
    name_key: str = "name"
    arguments_key: str = "arguments"
    separator: str = ""
    inner: tuple[str, ...] = ()
    line: bool = False

    @property
    def is_token(self) -> bool:
        """True if the mark is spelt like a control token, and so is no part of anyone's prose."""
        return any(char in self.open for char in "|｜▁[]")


_FUNCTION: Final = "<function=", "</function>", "<parameter=", "</parameter>"
_INVOKE: Final = "<invoke name=", "</invoke>"
_PAIRS: Final = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"

DIALECTS: Final[tuple[Dialect, ...]] = (
    # JSON between marks.
    Dialect("hermes", "<tool_call>", "</tool_call>", "json"),
    Dialect("granite", "<|tool_call|>", "<|/tool_call|>", "json", "array"),
    Dialect("jamba", "<tool_calls>", "</tool_calls>", "json", "any"),
    Dialect("nemotron", "<TOOLCALL>", "</TOOLCALL>", "json", "array"),
    Dialect("mistral", "[TOOL_CALLS]", "", "json", "any"),
    Dialect("llama3", "<|python_tag|>", "", "json", "objects", "name", "parameters", ";"),
    Dialect("granite_20b", "<function_call>", "", "json"),
    Dialect("gigachat", "<|function_call|>", "", "json"),
    Dialect("gigachat_roles", "<|message_sep|>\n\nfunction call<|role_sep|>\n", "", "json"),
    Dialect(
        *("internlm", "<|action_start|><|plugin|>", "<|action_end|>", "json"),
        arguments_key="parameters",
    ),
    Dialect("longcat", "<longcat_tool_call>", "</longcat_tool_call>", "json"),
    Dialect(
        *("cohere", "<|START_ACTION|>", "<|END_ACTION|>", "json", "array"),
        *("tool_name", "parameters"),
    ),
    Dialect("apertus", "<|tools_prefix|>", "<|tools_suffix|>", "json", "array", "", ""),
    Dialect("phi", "functools[", "]", "json", "objects", separator=",", line=True),
    # The name, then the arguments as JSON.
    Dialect("mistral_args", "[TOOL_CALLS]", "", "named_json", inner=("[CALL_ID]", "[ARGS]")),
    Dialect(
        *("deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "named_json"),
        inner=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    Dialect(
        *("kimi", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "named_json"),
        inner=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    Dialect(
        *("harmony", "<|channel|>", "<|call|>", "named_json"),
        inner=("<|start|>", "<|constrain|>", "<|message|>"),
    ),
    Dialect("llama3_function", "<function=", "</function>", "named_json"),
    Dialect("functionary", ">>>", "", "named_json", line=True),
    Dialect("react", "Action:", "", "named_json", line=True),
    Dialect("call", "call:", "", "named_json", line=True),
    # Calls as Python writes them.
    Dialect("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", "python"),
    Dialect("llama4", "<|python_start|>", "<|python_end|>", "python"),
    Dialect("llama3_builtin", "<|python_tag|>", "", "python"),
    Dialect("olmo3", "<function_calls>", "</function_calls>", "python"),
    Dialect("gemma3", "```tool_code\n", "```", "python", line=True),
    Dialect("pythonic", "[", "]", "python", line=True),
    # A tag a parameter.
    Dialect("qwen3_coder", "<tool_call>", "</tool_call>", "xml", inner=_FUNCTION),
    Dialect("qwen3_coder_bare", "<function=", "</function>", "xml", inner=_FUNCTION[2:]),
    Dialect("seed", "<seed:tool_call>", "</seed:tool_call>", "xml", inner=_FUNCTION),
    Dialect("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", "xml", inner=_INVOKE),
    Dialect(
        *("minimax_m3", "]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>", "xml"),
        inner=("]<]minimax[>[",),
    ),
    Dialect("invoke", "<function_calls>", "</function_calls>", "xml", inner=_INVOKE),
    Dialect("dots", "<dots_function_call>", "</dots_function_call>", "xml", inner=_INVOKE),
    Dialect(
        *("muse", "<atem:function_calls>", "</atem:function_calls>", "xml"),
        inner=("<atem:invoke name=", "</atem:invoke>"),
    ),
    *(
        Dialect(
            *(name, f"<｜DSML｜{tag}>", f"</｜DSML｜{tag}>", "xml"),
            inner=("<｜DSML｜invoke name=", "</｜DSML｜invoke>"),
        )
        for name, tag in (("deepseek_dsml", "function_calls"), ("deepseek_v4", "tool_calls"))
    ),
    Dialect(
        *("step3", "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "xml"),
        inner=("<｜tool_call_begin｜>", "<steptml:invoke name=", "<｜tool_call_end｜>"),
    ),
    Dialect("minicpm", "<function name=", "</function>", "xml", inner=("<param name=", "</param>")),
    Dialect(
        *("kimi_k3", "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", "xml"),
        inner=("<|open|>call", "<|open|>argument", "<|close|>argument", "<|close|>call"),
    ),
    # The name, then keys and values in turn.
    Dialect("glm", "<tool_call>", "</tool_call>", "pairs", inner=_PAIRS),
    Dialect(
        *("longcat_pairs", "<longcat_tool_call>", "</longcat_tool_call>", "pairs"),
        inner=("<longcat_arg_key>", "<longcat_arg_value>"),
    ),
    Dialect(
        *("hunyuan_v3", "<tool_calls>", "</tool_calls>", "pairs"), inner=("<tool_sep>", *_PAIRS)
    ),
    # Bare keys, and strings in marks of their own.
    Dialect("gemma4", "<|tool_call>", "<tool_call|>", "literal", inner=('<|"|>',)),
    Dialect(
        *("functiongemma", "<start_function_call>", "<end_function_call>", "literal"),
        inner=("<escape>",),
    ),
)
"""Every family. Where several have one opening mark, what follows it tells which is meant."""

BY_MARK: Final = {dialect.open: dialect for dialect in reversed(DIALECTS)}
"""By its opening mark, the first family that has it."""

HARMONY: Final = BY_MARK["<|channel|>"]
