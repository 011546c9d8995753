"""Templates that tell of tools, as well-known families write them, and what is known of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlx_tools.messages import ToolSpec
from mlx_tools.prompt import ChatFormat, format_from_template
from tests.prompt.conversations import load_template, render_as_transformers


@dataclass(frozen=True)
class Tooled:
    """Tokens of a model, the family in whose form it calls, and a call of ``look`` in that form."""

    bos: str
    eos: str
    dialect: str
    call: str
    between: str = "\n"
    begins: str = ""
    ends: str = ""
    special: tuple[str, ...] = ()

    def calls(self, *texts: str) -> str:
        """A turn that calls ``look`` with each of these texts, as the model writes it."""
        said = [self.call.replace("@", _spelled(text, self.dialect)) for text in texts]
        return self.begins + self.between.join(said) + self.ends


def _spelled(text: str, dialect: str) -> str:
    return text if dialect == "glm" else json.dumps(text, ensure_ascii=False)


_OBJECT = '{"name": "look", "arguments": {"text": @}}'
_TAGGED = f"<tool_call>\n{_OBJECT}\n</tool_call>"
TOOLED = {
    "qwen2.5-tools": Tooled("", "<|im_end|>", "hermes", _TAGGED),
    "qwen3-tools": Tooled("", "<|im_end|>", "hermes", _TAGGED),
    "llama3.1-tools": Tooled(
        *("<|begin_of_text|>", "<|eot_id|>", ""),
        '{"name": "look", "parameters": {"text": @}}',
        between="; ",
    ),
    "mistral-nemo-tools": Tooled(
        *("<s>", "</s>", "mistral", _OBJECT), between=", ", begins="[TOOL_CALLS][", ends="]"
    ),
    "mistral-small-tools": Tooled(
        "<s>", "</s>", "mistral_args", '[TOOL_CALLS]look[ARGS]{"text": @}', between=""
    ),
    "granite3.3-tools": Tooled(
        *("", "<|end_of_text|>", "granite", _OBJECT),
        between=", ",
        begins="<|tool_call|>[",
        ends="]",
    ),
    "phi4-mini-tools": Tooled(
        *("", "<|endoftext|>", "granite", _OBJECT),
        between=", ",
        begins="<|tool_call|>[",
        ends="]<|/tool_call|>",
        special=("<|tool_call|>", "<|/tool_call|>"),
    ),
    "glm4.6-tools": Tooled(
        *("", "<|endoftext|>", "glm"),
        "<tool_call>look\n<arg_key>text</arg_key>\n<arg_value>@</arg_value>\n</tool_call>",
    ),
}
"""By the name of the template. Their texts are our own, their forms the families'."""


@cache
def tooled_format(name: str, *, adds_bos: bool = False) -> ChatFormat:
    """The chat format that is read from one of `TOOLED`."""
    model = TOOLED[name]
    tokens = [token for token in (model.bos, model.eos, *model.special) if token]
    return format_from_template(
        load_template(name),
        name=name,
        bos_token=model.bos,
        eos_token=model.eos,
        special_tokens=tokens,
        adds_bos=adds_bos,
    )


def rendered_with_tools(
    name: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec]
) -> str:
    """The text that the template makes of a conversation, as transformers would have it made."""
    functions = [
        {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
        for t in tools
    ]
    model, sent = TOOLED[name], [dict(message) for message in messages]
    if name == "phi4-mini-tools":
        sent[0]["tools"] = json.dumps(functions)
    given = [{"type": "function", "function": one} for one in functions]
    tokens = {"bos_token": model.bos, "eos_token": model.eos}
    return render_as_transformers(name, messages=sent, tools=given, **tokens)
