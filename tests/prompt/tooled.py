"""Templates that tell of tools, as well-known families write them, and what is known of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlx_tools.messages import ToolSpec
from mlx_tools.prompt import ChatFormat, format_from_template
from tests.prompt.conversations import TEMPLATES


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


def template_text(name: str) -> str:
    """The text of a template."""
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def tooled_format(name: str, *, adds_bos: bool = False) -> ChatFormat:
    """The chat format that is read from one of `TOOLED`."""
    model = TOOLED[name]
    tokens = [token for token in (model.bos, model.eos, *model.special) if token]
    return format_from_template(
        template_text(name),
        name=name,
        bos_token=model.bos,
        eos_token=model.eos,
        special_tokens=tokens,
        adds_bos=adds_bos,
    )


def as_openai(spec: ToolSpec) -> dict[str, Any]:
    """A tool as templates are given it."""
    function = {
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(spec.parameters),
    }
    return {"type": "function", "function": function}


def rendered_with_tools(
    name: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec]
) -> str:
    """What the template itself makes of a conversation, as transformers would have it made."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, **{"ensure_ascii": False, **options}
    )
    model, given = TOOLED[name], [as_openai(tool) for tool in tools]
    sent = [dict(message) for message in messages]
    if name == "phi4-mini-tools":
        sent[0]["tools"] = json.dumps([tool["function"] for tool in given])
    return environment.from_string(template_text(name)).render(
        messages=sent,
        tools=given,
        bos_token=model.bos,
        eos_token=model.eos,
        add_generation_prompt=True,
    )
