"""Messages and tool specs, plain, frozen values.

What the model wrote, or the host answers on the wire; and what a tool is to everything that does
not run it: name, words, schema, effects. Nothing here knows how they are read, shown or stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Struct, structs

from mlx_tools.errors import ErrorCode, ToolDefinitionError, for_message

_BREAKS: Final = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "\x85\u2028\u2029"})


def json_line(value: Any) -> str:
    """One line of JSON, as it is told everywhere: UTF-8, with nothing in it where anybody who reads
    lines would break it. Half a surrogate pair, which is no text, stands as its escape. Raises
    ValueError for a number that JSON does not have."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if line.isascii():
        return line
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return line.translate(_BREAKS)


_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def json_bytes(value: Any) -> bytes:
    """Compact JSON with its keys sorted, the same for the same value; made in far less time than
    `json` takes. Half a surrogate pair stands as its escape."""
    try:
        return _sorted(value)
    except UnicodeEncodeError:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


if TYPE_CHECKING:
    from dataclasses import replace as replace  # which holds the changes to the fields' types
else:

    def replace(value, /, **changes):
        """Return a value, a Struct or a dataclass, that has other ``changes`` and else the same."""
        change = structs.replace if isinstance(value, Struct) else dataclasses.replace
        return change(value, **changes)


Style = Literal["jsonl", "markdown-json", "xml", "native"]
"""How messages are written: as `mlx_tools.protocol.delimiters` has it, or (native) as the model's
own template does."""

Strategy = Literal["auto", "free", "guided", "grammar"]
"""How a completion comes about: held where a message begins, never held, held from its first
character on, or masked by a grammar."""

LongObservations = Literal["cut", "summary"]
Compaction = Literal["off", "auto"]
"""What a model is shown of an output that is too long: head and tail, or a summary between them."""

FinishReason = Literal["stop", "length", "tool_calls"]
"""Why a completion ended: by itself, by its token limit, or (a break of format) at native tool
markers."""


class ErrorInfo(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fault in words that a model or a program can act on: at most 500 characters."""

    code: ErrorCode
    message: str
    form: str = ""
    """The call at fault as the model should write it; empty if that is unknown."""


class ToolCall(Struct, frozen=True):
    """A call as it was read. ``id`` is the model's own, None where it gave none."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    repairs: tuple[str, ...] = ()
    type: ClassVar[str] = "tool_call"


class FinalAnswer(Struct, frozen=True):
    """The answer that ends a run."""

    content: str
    sources: tuple[Any, ...] = ()
    repairs: tuple[str, ...] = ()
    type: ClassVar[str] = "final_answer"


Message = ToolCall | FinalAnswer


class ToolObservation(Struct, frozen=True):
    """The host's answer to a call: the tool's output, or an error. One of the two is None."""

    name: str
    content: str | None = None
    error: ErrorInfo | None = None
    id: str | None = None


class Usage(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens of one completion. A number the server did not report is None, never 0."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


def total_usage(usages: Sequence[Usage]) -> Usage:
    """The sums. One that a completion did not report is unknown for all."""
    if len(usages) == 1:
        return usages[0]
    sums: dict[str, int | None] = {}
    for name in Usage.__struct_fields__:
        reported = [getattr(usage, name) for usage in usages]
        sums[name] = sum(reported) if reported and None not in reported else None
    return Usage(**sums)


Effect = Literal["read", "write", "execute", "network"]
Effects = frozenset[Effect]

ALL_EFFECTS: Final[Effects] = frozenset(("read", "write", "execute", "network"))
"""What a tool is taken to do when it declares nothing."""

MUTATING: Final[Effects] = frozenset(("write", "execute"))

TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
"""Names are ASCII: a look-alike in another script is another name, and is refused."""

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"queryKnowledgeBase": "query_knowledge_base", "scheduleAgentTask": "schedule_task"}
)
"""Other names that are accepted wherever a tool is named, each with the tool's own."""


def own_name(name: str, aliases: Mapping[str, str] = ALIASES) -> str:
    """The tool's own name where ``name`` is another one of it, else ``name``."""
    return aliases.get(name, name)


def tool_named(name: str, known_names: Container[str], aliases: Mapping[str, str] = ALIASES) -> str:
    """Which of the ``known_names`` names is meant; ``name`` as it is where none is. A tool that
    bears the very name comes first."""
    own = aliases.get(name, name)
    return own if name not in known_names and own in known_names else name


def names_of(name: str, aliases: Mapping[str, str] = ALIASES) -> tuple[str, ...]:
    """All names of the tool that bears this one: its own first."""
    own = aliases.get(name, name)
    return (own, *(alias for alias, tool in aliases.items() if tool == own))


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model, the validator and the policy see it.

    ``parameters`` is a JSON Schema (2020-12) of type object. ``effects`` may be a function of the
    call's arguments, of which it gets a copy; it must be pure, and where it raises, or names what
    is no effect, the call is taken to have all effects.
    ``timeout`` is in seconds; None means the run's own limit. ``retry`` is ``read_only`` or
    ``never``; a call that can change things is never retried, whatever stands here.
    ``plugin`` names where the tool comes from, for policy and listings. ``private``: what it
    answers may be what only the user should see, such as their files (`Policy.network_after_read`).
    ``cache`` False says that the same call may be answered otherwise a moment later, though nothing
    has changed here: what it answered is never used again. ``consent_argument`` names the argument
    that a consent for the session is bound to: it covers later calls with the same value only, and
    none where the call has no such argument.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    effects: Effects | Callable[[Mapping[str, Any]], Effects] = ALL_EFFECTS
    timeout: float | None = None
    retry: Literal["never", "read_only"] = "never"
    needs_approval: bool = False
    plugin: str = ""
    private: bool = False
    cache: bool = True
    consent_argument: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not TOOL_NAME.fullmatch(self.name):
            raise ToolDefinitionError(
                f"{for_message(self.name)} cannot name a tool",
                hint="use 1 to 64 of A-Z a-z 0-9 _ . -",
            )

    def effects_of(self, arguments: Mapping[str, Any]) -> Effects:
        """The effects that a call with these arguments may have."""
        if not callable(self.effects):
            return self.effects
        try:
            effects = frozenset(self.effects(deepcopy(dict(arguments))))
        except Exception:  # a tool author's function: fail closed
            return ALL_EFFECTS
        return effects if effects <= ALL_EFFECTS else ALL_EFFECTS

    def mutates(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments can write or execute (reading rule 9)."""
        return not MUTATING.isdisjoint(self.effects_of(arguments))

    def consent_binding(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what a consent for the session to such a call is bound to.

        Returns:
            The ``consent_argument`` with its value, nothing for a tool that declares none, and None
            if the call lacks that argument: no consent covers it.
        """
        name = self.consent_argument
        if name is None:
            return {}
        return {name: arguments[name]} if name in arguments else None

    @property
    def possible_effects(self) -> Effects:
        """The effects that a call may have at most: where the effects depend on the arguments, what
        their function names in its attribute ``possible``, or all effects where it has none."""
        if not callable(self.effects):
            return self.effects
        possible: Effects = getattr(self.effects, "possible", ALL_EFFECTS)
        return possible

    def to_json(self) -> dict[str, Any]:
        """The tool as a header keeps it: all that it declares, what is at its default left out; of
        effects that depend on the arguments (``by_arguments``) what they may be at most."""
        out = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
            "effects": sorted(self.possible_effects),
            "plugin": self.plugin,
        }
        declared = {
            "by_arguments": callable(self.effects),
            "timeout": self.timeout,
            "retry": self.retry if self.retry != "never" else None,
            "needs_approval": self.needs_approval,
            "private": self.private,
            "uncached": not self.cache,
            "consent_argument": self.consent_argument,
        }
        return out | {key: value for key, value in declared.items() if value}

    @classmethod
    def from_json(
        cls,
        value: Mapping[str, Any],
        effects: Callable[[Mapping[str, Any]], Effects] | None = None,
    ) -> ToolSpec:
        """The tool that `to_json` gave. ``effects`` is the function of its effects, where they
        depend on the arguments; without it a call may do all that is possible. Raises
        `ToolDefinitionError` for what is no tool."""
        try:
            possible = frozenset(value["effects"])
            texts = value["name"], value["description"], value["plugin"]
            sound = possible <= ALL_EFFECTS and isinstance(value["parameters"], Mapping)
            if not sound or not all(isinstance(text, str) for text in texts):
                raise ToolDefinitionError("this is no tool's description")
            return cls(
                name=value["name"],
                description=value["description"],
                parameters=value["parameters"],
                effects=effects if effects is not None else possible,
                timeout=value.get("timeout"),
                retry=value.get("retry", "never"),
                needs_approval=value.get("needs_approval", False),
                plugin=value["plugin"],
                private=value.get("private", False),
                cache=not value.get("uncached", False),
                consent_argument=value.get("consent_argument"),
            )
        except (KeyError, TypeError) as error:
            raise ToolDefinitionError(f"this is no tool's description: {error}") from None

    def digest(self) -> str:
        """SHA-256 of the spec, 64 hexadecimal digits: the tool's version. Changes with anything
        that the tool declares; of effects that depend on the arguments, with what they may be at
        most."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
