"""How a model's turns are delimited, and the formats that are known by name.

A format is read from the model's own template by `mlx_tools.prompt.chat_template`; the named ones
are for servers that do not say which template their model has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final

from mlx_tools.errors import ChatFormatError
from mlx_tools.prompt.markers import KNOWN_TOKENS
from mlx_tools.prompt.tool_format import ToolFormat

HINT: Final = "choose a format with --chat-format chatml|llama3|gemma|mistral|phi|plain"

_PAIRS: Final = frozenset({"system", "user", "assistant", "reasoning", "system_in_user"})
_OPTIONAL: Final = frozenset({"system", "reasoning", "answer_header", "history_header", "tools"})
_LISTS: Final = frozenset({"control_tokens", "end_tokens", "trims", "dialects"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """What stands before and after the text of each turn.

    ``bos`` is written at the start where the tokenizer does not add it itself. Where ``system`` is
    None the system text goes into the first user turn, between the two of ``system_in_user``;
    ``default_system`` is what the model's template writes by itself where there is no such text.
    ``assistant[0]`` is what asks the model to write, the opening of a thought included where
    ``opens_thought``. ``answer_header`` is written instead where the model must not think, or where
    the host begins its text; ``history_header`` stands before the text of an earlier turn, whose
    thought is not sent again. Both go on from ``assistant[0]``, so that a prompt only grows; where
    they are not given they close an empty thought, if the format has ``reasoning`` (the markers of
    a thought). ``trims`` names the roles whose text the template strips of outer white
    space, ``dialects`` the marks in it with which its model opens a call of its own. ``tools`` is
    how its template tells of tools; where that is None, ``toolless`` says why.
    """

    name: str
    bos: str = ""
    system: tuple[str, str] | None
    user: tuple[str, str]
    assistant: tuple[str, str]
    reasoning: tuple[str, str] | None = None
    opens_thought: bool = False
    control_tokens: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ()
    system_in_user: tuple[str, str] = ("", "\n\n")
    default_system: str = ""
    answer_header: str | None = None
    history_header: str | None = None
    trims: tuple[str, ...] = ()
    dialects: tuple[str, ...] = ()
    tools: ToolFormat | None = None
    toolless: str = field(default="its own template is not at hand", compare=False)

    def __post_init__(self) -> None:
        if self.opens_thought and self.reasoning is None:
            raise ChatFormatError(
                f"the chat format {self.name!r} opens a thought and names no markers", hint=HINT
            )
        for header in (self.answering, self.remembered):
            if not header.startswith(self.assistant[0]):
                raise ChatFormatError(
                    f"in the chat format {self.name!r} {header!r} does not go on from "
                    f"{self.assistant[0]!r}",
                    hint=HINT,
                )

    @property
    def answering(self) -> str:
        """What opens an assistant's turn in which the text follows at once."""
        if self.answer_header is not None:
            return self.answer_header
        if self.reasoning is None:
            return self.assistant[0]
        after = self.assistant[0] if self.opens_thought else None
        return self.assistant[0] + empty_thought(self.reasoning, after=after)

    @property
    def remembered(self) -> str:
        """What opens an earlier turn, in which the model had been free to think."""
        if self.history_header is not None:
            return self.history_header
        return self.answering if self.opens_thought else self.assistant[0]

    @property
    def turn_ends(self) -> tuple[str, ...]:
        """What ends the model's turn: its end tokens, and what opens the next one. Words that open
        a turn do so at the start of a line, a newline before them."""
        opening = self.user[0].strip()
        if opening and not opening.startswith(("<", "[")):
            opening = f"\n{opening}"
        return tuple(dict.fromkeys(end for end in (*self.end_tokens, opening) if end))

    def to_json(self) -> dict[str, Any]:
        """The format as a JSON object, for a transcript's header."""
        value = {
            field.name: _to_json(getattr(self, field.name))
            for field in fields(self)
            if field.compare
        }
        if self.tools is None:
            del value["tools"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ChatFormat:
        """The format that `to_json` gave. Raises `ChatFormatError` for anything else."""
        known = {field.name for field in fields(cls)}
        try:
            return cls(**{key: _from_json(key, value[key]) for key in value if key in known})
        except (TypeError, ValueError) as error:
            raise ChatFormatError(f"this is no chat format: {error}", hint=HINT) from None


def empty_thought(reasoning: tuple[str, str], after: str | None = None) -> str:
    """A thought without content: all of it, or what closes the one that ``after`` opened."""
    opening, closing = reasoning
    if after is None:
        return f"{opening}\n\n{closing}\n\n"
    breaks = len(after) - len(after.rstrip("\n"))
    return "\n" * max(0, 2 - breaks) + f"{closing}\n\n"


def _to_json(value: Any) -> Any:
    if isinstance(value, ToolFormat):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value


def _from_json(key: str, value: Any) -> Any:
    if value is None and key in _OPTIONAL:
        return None
    if key == "tools":
        return ToolFormat.from_json(value)
    if key in _LISTS or key in _PAIRS:
        if not isinstance(value, list | tuple) or not {*map(type, value)} <= {str}:
            raise ValueError(f"{key} must be a list of strings")
        if key in _PAIRS and len(value) != 2:
            raise ValueError(f"{key} must be a pair")
        return tuple(value)
    if not isinstance(value, bool if key == "opens_thought" else str):
        raise ValueError(f"{key} has a value of the wrong type")
    return value


def _named(name: str, **parts: Any) -> ChatFormat:
    own = parts.pop("control_tokens", ())
    return ChatFormat(name=name, control_tokens=(*KNOWN_TOKENS, *own), **parts)


# A tokenizer that has a beginning-of-text token nearly always adds it to a prompt itself, and a
# second one does more harm than a missing one: the named formats write none.
NAMED_FORMATS: Final[Mapping[str, ChatFormat]] = MappingProxyType(
    {
        chat_format.name: chat_format
        for chat_format in (
            _named(
                "chatml",
                system=("<|im_start|>system\n", "<|im_end|>\n"),
                user=("<|im_start|>user\n", "<|im_end|>\n"),
                assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
                end_tokens=("<|im_end|>", "<|endoftext|>"),
            ),
            _named(
                "llama3",
                system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
                user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
                assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
                end_tokens=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
                trims=("system", "user"),
            ),
            _named(
                "gemma",
                system=None,
                user=("<start_of_turn>user\n", "<end_of_turn>\n"),
                assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
                end_tokens=("<end_of_turn>", "<eos>"),
                trims=("system", "user"),
            ),
            _named(
                "mistral",
                system=None,
                user=("[INST] ", "[/INST]"),
                assistant=("", "</s>"),
                answer_header=" ",
                history_header=" ",
                end_tokens=("</s>",),
            ),
            _named(
                "phi",
                system=("<|system|>\n", "<|end|>\n"),
                user=("<|user|>\n", "<|end|>\n"),
                assistant=("<|assistant|>\n", "<|end|>\n"),
                end_tokens=("<|end|>", "<|endoftext|>"),
            ),
            _named(
                "plain",
                system=("", "\n\n"),
                user=("User: ", "\n\n"),
                assistant=("Assistant:", "\n\n"),
                answer_header="Assistant: ",
                history_header="Assistant: ",
                control_tokens=("\nUser:", "\nAssistant:", "\nSystem:"),
                end_tokens=("\nUser:",),
                trims=("system", "user"),
            ),
        )
    }
)
"""The formats that ``--chat-format`` knows by name. Their control tokens are the built-in list."""

_FAMILIES: Final = (
    (r"gemma-?4", "plain"),
    (r"(smollm-?3|qwen-?3(?!.*(instruct|thinking|coder))|qwen-?3\.5)", "chatml+think"),
    (r"(deepseek-?r1|r1-distill|thinking|qwq)", "plain"),
    (
        r"(smollm|qwen|hermes|chatml|dolphin|internlm|yi-\d|openhermes|starcoder2.*instruct)",
        "chatml",
    ),
    (r"llama-?3", "llama3"),
    (r"gemma", "gemma"),
    (r"(mistral|mixtral|ministral|codestral)", "mistral"),
    (r"phi-?(3|3\.5|4-mini)", "phi"),
)


def format_for_name(model_name: str) -> ChatFormat:
    """The format that models of this name are known to have, else ``plain``.

    A guess for servers that do not show their model's template; a base model, or a family whose
    format is none of the named ones, gets ``plain``, which any model can follow.
    """
    name = model_name.lower().replace("_", "-").rstrip("/").rpartition("/")[2]
    for pattern, family in _FAMILIES:
        if not re.search(pattern, name):
            continue
        if family == "chatml+think":
            return _thinking_chatml()
        if "base" in re.split(r"[-.]", name):
            break
        return NAMED_FORMATS[family]
    return NAMED_FORMATS["plain"]


def _thinking_chatml() -> ChatFormat:
    return replace(NAMED_FORMATS["chatml"], reasoning=("<think>", "</think>"))
