"""The forms in which models were trained to call tools (reading rule 8a).

One table of families. Many models share a form, so a family is named by its marks, not by a model.
A few readers read the text between the marks; the text itself decides which one does
(`mlx_tools.protocol.call_sequence`).
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Body = Literal["json", "named_json", "python", "xml", "pairs", "literal"]
Form = Literal["object", "objects", "array", "any"]


class Dialect(Struct, frozen=True):
    """One family: its marks, and the form of the text between them.

    Marks may begin alike (``internlm`` begins with another family's mark): the longest is read.
    """

    name: str
    open: str
    """The mark that opens its calls, as the model writes it."""
    close: str
    """The mark that closes them; empty if the end of the turn closes them.

    It may be missing at the end of a turn, since servers cut stop tokens out. Only ``pairs`` needs
    its own: without it the last value may be incomplete."""
    body: Body
    """The kind of text between the marks.

    - ``json``: objects with a name and arguments.
    - ``named_json``: the name, then the arguments as an object.
    - ``python``: calls with keywords.
    - ``xml``: a tag for each parameter.
    - ``pairs``: the name, then keys and values in turn.
    - ``literal``: the name, then an object with bare keys, its strings between own marks.

    It is only expected: what follows the mark chooses the reader (`CallSequenceReader._call`).
    """
    form: Form = "object"
    """For ``json``: one object, several ``objects``, an ``array`` of them, or ``any`` of these."""
    name_key: str = "name"
    """For ``json``: the key of the name. It is empty if the name is the only key, with the
    arguments as its value.

    Keys of other families are read too, also those of arguments."""
    arguments_key: str = "arguments"
    """For ``json``: the key of the arguments."""
    separator: str = ""
    """For ``json``: the text between two objects, besides white space."""
    call: tuple[str, ...] = ()
    """The marks around one call of several; the first opens calls if ``open`` was lost."""
    inner: tuple[str, ...] = ()
    """The marks within a call.

    For ``pairs`` the marks that open and close a key, then a value. For ``literal`` the marks
    around strings. For the others the marks between name and arguments."""
    line: bool = False
    """True if the mark counts only at the start of a line, since it may occur in prose."""
    last: bool = False
    """True if its calls count only if nothing but wrapping follows them."""
    tag: bool = False
    """True if the mark is the tag of a call, which has name and arguments."""
    brackets: tuple[str, str, str] = ("<", ">", "</")
    """The texts that begin and end a tag, and the text that begins a closing tag."""
    one_value: bool = False
    """True if all calls of a turn are in one array or object."""
    any_name: bool = False
    """True if a call counts whatever tool it names."""
    header: bool = False
    """True if the mark opens the header of a message, which says whom the message is for."""

    def skip(self, mark: str) -> int:
        """Return the number of characters of a mark before the first call."""
        return 0 if mark.endswith("=") or (self.tag and mark == self.open) else len(mark)

    @property
    def opens_tag(self) -> bool:
        """True if the opening mark begins a call's own tag."""
        return self.tag or self.open.endswith("=")

    @property
    def lists_code(self) -> bool:
        """True if the mark is the bracket of a list of calls in Python."""
        return self.body == "python" and self.open.endswith("[")

    @property
    def is_token(self) -> bool:
        """True if the mark is spelt like a control token, and so is no prose."""
        return any(char in self.open for char in "|｜▁[]✿")


_FUNCTION: Final = "<function=", "</function>"
_INVOKE: Final = "<invoke name=", "</invoke>"
_PAIRS: Final = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_PLAMO: Final = "<|plamo:{}_tool_{}:plamo|>"


def _around(tag: str) -> tuple[str, str]:
    return f"<{tag}>", f"</{tag}>"


def _plamo(part: str) -> tuple[str, str]:
    return _PLAMO.format("begin", part), _PLAMO.format("end", part)


DIALECTS: Final[tuple[Dialect, ...]] = (
    # JSON between marks.
    # Hermes 2 Pro, Qwen 2.5 and 3, SmolLM3
    Dialect("hermes", "<tool_call>", "</tool_call>", "json"),
    Dialect("granite", "<|tool_call|>", "<|/tool_call|>", "json", "array"),  # Granite 3
    Dialect("jamba", "<tool_calls>", "</tool_calls>", "json", "any"),  # Jamba 1.5
    Dialect("nemotron", "<TOOLCALL>", "</TOOLCALL>", "json", "array"),  # Llama-Nemotron, Nemotron-H
    Dialect("mistral", "[TOOL_CALLS]", "", "json", "any", one_value=True),  # Mistral 7B v0.3, Nemo
    Dialect("llama3", "<|python_tag|>", "", "json", "objects", "name", "parameters", ";"),
    Dialect("granite_20b", "<function_call>", "</function_call>", "json"),
    Dialect("glaive", "<functioncall>", "", "json"),
    Dialect("gigachat", "<|function_call|>", "", "json"),
    Dialect("gigachat_roles", "<|message_sep|>\n\nfunction call<|role_sep|>\n", "", "json"),
    Dialect(
        # InternLM 2.5
        *("internlm", "<|action_start|><|plugin|>", "<|action_end|>", "json"),
        arguments_key="parameters",
        call=("<|plugin|>",),
    ),
    Dialect("longcat", "<longcat_tool_call>", "</longcat_tool_call>", "json"),
    Dialect(
        # Command R7B, Command A
        *("cohere", "<|START_ACTION|>", "<|END_ACTION|>", "json", "array"),
        *("tool_name", "parameters"),
    ),
    Dialect("apertus", "<|tools_prefix|>", "<|tools_suffix|>", "json", "array", "", ""),
    Dialect("phi", "functools[", "]", "json", "objects", separator=",", line=True),  # Phi-4-mini
    Dialect("pangu", "[unused11]", "[unused12]", "json", "array"),
    Dialect("rwkv", "**Tool Call:**", "", "json", line=True),
    Dialect("lm_studio", "[TOOL_REQUEST]", "[END_TOOL_REQUEST]", "json"),
    # The name, then the arguments as JSON.
    Dialect("mistral_args", "[TOOL_CALLS]", "", "named_json", inner=("[CALL_ID]", "[ARGS]")),
    Dialect(
        # DeepSeek V3, R1 and V3.1
        *("deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "named_json"),
        call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        inner=("<｜tool▁sep｜>",),
    ),
    Dialect(
        # Kimi K2
        *("kimi", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "named_json"),
        call=("<|tool_call_begin|>", "<|tool_call_end|>"),
        inner=("<|tool_call_argument_begin|>",),
    ),
    Dialect(
        *("plamo", *_plamo("requests"), "named_json"),
        call=(*_plamo("request"), _plamo("arguments")[1]),
        inner=(*_plamo("name"), _plamo("arguments")[0]),
    ),
    Dialect(
        *("inkling", "<|message_model|>", "<|end_message|>", "named_json"),
        inner=("<|content_invoke_tool_json|>",),
    ),
    Dialect("functionary_v2", "<|recipient|>", "<|stop|>", "named_json", inner=("<|content|>",)),
    Dialect(
        # gpt-oss
        *("harmony", "<|channel|>", "<|call|>", "named_json"),
        call=("<|start|>assistant", "<|end|>"),
        inner=("<|constrain|>", "<|message|>"),
        header=True,
    ),
    # Llama 3.1, Functionary 3.1
    Dialect("llama3_function", "<function=", "</function>", "named_json"),
    # Cline and similar agents ask every model for this form in their prompts.
    Dialect("mcp_tool", "<use_mcp_tool>", "</use_mcp_tool>", "named_json", tag=True),
    Dialect("functionary", ">>>", "", "named_json", line=True),  # Functionary 3.2
    Dialect("qwen_agent", "✿FUNCTION✿:", "✿RESULT✿:", "named_json", inner=("✿ARGS✿:",)),
    Dialect("react", "Action:", "", "named_json", inner=("Action Input:",), line=True),
    *(
        Dialect(name, mark, "", "named_json", inner=(between,), line=True)
        for name, mark, between in (
            *(("tool_lines", "Tool:", "Tool Input:"), ("tool_names", "Tool Name:", "Parameters:")),
            *(("function_lines", "Function:", "Arguments:"), ("steps", "Tool Call:", "Input:")),
        )
    ),
    # Calls as Python writes them.
    Dialect("call", "call:", "", "python", line=True, any_name=True),
    Dialect("nexusraven", "Call:", "<bot_end>", "python", separator=";", line=True),
    Dialect("gorilla", "<<function>>", "", "python"),  # Gorilla OpenFunctions
    Dialect("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", "python"),
    Dialect("llama4", "<|python_start|>", "<|python_end|>", "python"),  # Llama 4
    Dialect("llama3_builtin", "<|python_tag|>", "", "python"),
    Dialect("olmo3", "<function_calls>", "</function_calls>", "python"),
    Dialect("gemma3", "```tool_code\n", "```", "python", line=True, last=True),
    Dialect("tool_code", "<tool_code>", "</tool_code>", "python"),
    # Llama 3.2 and 4, ToolACE. Brackets around names are common in prose, so it must be last.
    Dialect("pythonic", "[", "]", "python", line=True, last=True),
    Dialect("smollm3_code", "<code>\n", "</code>", "python", line=True),
    # A tag for each parameter. Qwen3-Coder often leaves its outer tag out, so there is a row
    # without it.
    Dialect("qwen3_coder", "<tool_call>", "</tool_call>", "xml", call=_FUNCTION),
    Dialect("qwen3_coder_bare", "<function=", "</function>", "xml"),
    Dialect("seed", "<seed:tool_call>", "</seed:tool_call>", "xml", call=_FUNCTION),
    Dialect("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", "xml", call=_INVOKE),
    Dialect(
        *("minimax_m3", "]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>", "xml"),
        call=("]<]minimax[>[<invoke name=", "]<]minimax[>[</invoke>"),
        brackets=("]<]minimax[>[<", ">", "]<]minimax[>[</"),
    ),
    # Anthropic's form; models that learned from outputs of its models write it, too.
    Dialect("invoke", "<function_calls>", "</function_calls>", "xml", call=_INVOKE),
    Dialect("dots", "<dots_function_call>", "</dots_function_call>", "xml", call=_INVOKE),
    *(
        Dialect(name, *_around(f"{ns}{tag}"), "xml", call=(f"<{ns}invoke name=", f"</{ns}invoke>"))
        for name, ns, tag in (
            *(("muse", "atem:", "function_calls"), ("antml", "antml:", "function_calls")),
            *(("deepseek_dsml", "｜DSML｜", "function_calls"),),
            *(
                ("deepseek_v4", "｜DSML｜", "tool_calls"),
                ("gigachat_xml", "｜GCML｜", "tool_calls"),
            ),
        )
    ),
    Dialect(
        # Step 3 has DeepSeek's tokens with underscores in place of blocks.
        *("step3", "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "xml"),
        call=("<｜tool_call_begin｜>", "<｜tool_call_end｜>"),
        inner=("<｜tool_sep｜>", "<steptml:invoke name=", "</steptml:invoke>"),
    ),
    Dialect("minicpm", "<function name=", "</function>", "xml", inner=("<param name=", "</param>")),
    Dialect(
        *("kimi_k3", "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", "xml"),
        call=("<|open|>call tool=", "<|close|>call<|sep|>"),
        inner=("<|open|>argument", "<|close|>argument<|sep|>"),
        brackets=("<|open|>", "<|sep|>", "<|close|>"),
    ),
    # The name, then keys and values in turn.
    Dialect("glm", "<tool_call>", "</tool_call>", "pairs", inner=_PAIRS),  # GLM 4.5 and later
    *(
        Dialect(name, *_around(f"{tag}_tool_call"), "pairs", inner=_PAIRS)
        for name, tag in (("iquest", "iquest"), ("iquest_coder", "iquestcoder"))
    ),
    Dialect(
        *("longcat_pairs", *_around("longcat_tool_call"), "pairs"),
        inner=(*_around("longcat_arg_key"), *_around("longcat_arg_value")),
    ),
    Dialect(
        *("hunyuan_v3", "<tool_calls>", "</tool_calls>", "pairs"), inner=(*_PAIRS, "<tool_sep>")
    ),
    Dialect(
        *("k2_horizon", *_around("ifm|tool_calls"), "pairs"),
        call=_around("ifm|tool_call"),
        inner=(*_around("ifm|arg_key"), *_around("ifm|arg_value")),
    ),
    Dialect(
        *("solar", "<|tool_call:start|>", "<|tool_call:end|>", "pairs"),
        inner=("<|tool_arg:start|>", "", "<|tool_arg:value|>", "<|tool_arg:end|>"),
    ),
    # Bare keys, and strings in marks of their own.
    Dialect("gemma4", "<|tool_call>", "<tool_call|>", "literal", inner=('<|"|>',)),
    Dialect(
        *("functiongemma", "<start_function_call>", "<end_function_call>", "literal"),
        inner=("<escape>",),
    ),
)
"""All families. If several have the same opening mark, the text after it decides."""

# A call's own mark opens calls as well, since models leave the outer mark out. If it is the outer
# mark of another family, it belongs to that family. Reversed, so that the first row wins.
BY_MARK: Final = {
    mark: dialect
    for dialect in reversed(DIALECTS)
    for mark in (*dialect.call[:1], dialect.open)
    if mark == dialect.open or not any(mark == one.open for one in DIALECTS)
}
"""The first family with each opening mark."""

HARMONY: Final = BY_MARK["<|channel|>"]

STRING_MARKS: Final = tuple(mark for one in DIALECTS if one.body == "literal" for mark in one.inner)
"""The marks before and after a string in the families that quote so."""

BARE: Final = Dialect("bare", "", "", "json", "objects", separator=";", line=True)
"""Calls without a mark: objects, calls as in Python, a name before an object, an element."""
