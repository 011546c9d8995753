"""Messages and tool specs as plain, frozen values.

A message is what the model wrote, or what the host answers to it. A tool spec is all that code
needs to know of a tool if it does not run it: name, description, schema, effects. Nothing here
reads, shows or stores them.
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
from mlx_tools.packages import must_pass

_BREAKS: Final = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "\x85\u2028\u2029"})
"""Characters that some readers take for the end of a line, and their JSON escapes."""


_line: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode  # `json.dumps` would make an encoder each time


def json_line(value: Any) -> str:
    """Return one line of JSON as text for UTF-8.

    Nothing in it ends a line for any reader of lines. Half a surrogate pair, which UTF-8 cannot
    hold, is written as its escape.

    Raises:
        ValueError: a number that JSON does not have.
    """
    line = _line(value)
    if line.isascii():
        return line
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return line.translate(_BREAKS)


_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def json_bytes(value: Any) -> bytes:
    """Return compact JSON with sorted keys: the same bytes for the same value.

    It is much faster than `json`. Half a surrogate pair is written as its escape.
    """
    try:
        return _sorted(value)
    except UnicodeEncodeError:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


if TYPE_CHECKING:
    from dataclasses import replace as replace  # which holds the changes to the fields' types
else:

    def replace(value, /, **changes):
        """Return a copy of a Struct or a dataclass with some ``changes``."""
        change = structs.replace if isinstance(value, Struct) else dataclasses.replace
        return change(value, **changes)


Style = Literal["jsonl", "markdown-json", "xml", "native"]
"""The way messages are written: see `mlx_tools.protocol.delimiters`.

``native`` is the way of the model's own template.
"""

Strategy = Literal["auto", "free", "guided", "grammar"]
"""The way a completion is made.

- ``guided``: held to the protocol from the beginning of each message.
- ``free``: never held.
- ``grammar``: masked by a grammar.
- ``auto``: chosen by the host.
"""

LongObservations = Literal["cut", "summary"]
"""The part of a long output that the model reads: head and tail, or a summary between them."""
Compaction = Literal["off", "auto"]
"""The shown part of an output that is too long: head and tail, or a summary between them."""

FinishReason = Literal["stop", "length", "tool_calls"]
"""The reason why a completion ended.

``stop``: by itself. ``length``: by its token limit. ``tool_calls``: at native tool markers, which
breaks the format.
"""


class ErrorInfo(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An error that a model or a program can act on: at most 500 characters."""

    code: ErrorCode
    message: str
    form: str = ""
    """The call at fault as the model should write it; empty if that is unknown."""


class ToolCall(Struct, frozen=True):
    """A call as it was read."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    """The model's own id, None if it wrote none."""
    repairs: tuple[str, ...] = ()
    """Names of the repairs that reading it took."""
    type: ClassVar[str] = "tool_call"


class FinalAnswer(Struct, frozen=True):
    """The answer that ends a run."""

    content: str
    sources: tuple[Any, ...] = ()
    repairs: tuple[str, ...] = ()
    type: ClassVar[str] = "final_answer"


Message = ToolCall | FinalAnswer


class ToolObservation(Struct, frozen=True):
    """The host's answer to a call: the tool's output or an error; the other is None."""

    name: str
    content: str | None = None
    error: ErrorInfo | None = None
    id: str | None = None


class Usage(Struct, frozen=True, forbid_unknown_fields=True):
    """The tokens of one completion.

    A number that the server did not report is None, never 0.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Return the sums of token counts; a count that one completion lacks is None."""
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
"""The effects of a tool that declares none."""

MUTATING: Final[Effects] = frozenset(("write", "execute"))

TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
"""Valid names of tools.

Only ASCII: a look-alike in another script would be another name.
"""

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"queryKnowledgeBase": "query_knowledge_base", "scheduleAgentTask": "schedule_task"}
)
"""Further names that are accepted for tools, each with the tool's own name."""


def own_name(name: str, aliases: Mapping[str, str] = ALIASES) -> str:
    """Return a tool's own name for an alias; any other name as it is."""
    return aliases.get(name, name)


_SEPARATORS: Final = re.compile(r"[-_.]")


def loose_name(name: str) -> str:
    """Return a name without case, ``-``, ``_`` and ``.`` (rule 10).

    A close match may differ in these.
    """
    return _SEPARATORS.sub("", name).lower()


def tool_named(name: str, known_names: Container[str], aliases: Mapping[str, str] = ALIASES) -> str:
    """Return the one of ``known_names`` that a name means.

    The name itself if it means none.

    A tool with exactly this name comes before one with this alias.
    """
    own = aliases.get(name, name)
    return own if name not in known_names and own in known_names else name


def list_names(name: str, aliases: Mapping[str, str] = ALIASES) -> tuple[str, ...]:
    """Return all names of the tool that has this name: its own first."""
    own = aliases.get(name, name)
    return (own, *(alias for alias, tool in aliases.items() if tool == own))


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model, the validator and the policy see it."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """A JSON Schema (2020-12) of type object."""
    effects: Effects | Callable[[Mapping[str, Any]], Effects] = ALL_EFFECTS
    """The effects, or a pure function that returns them for a copy of a call's arguments.

    If the function raises, or returns anything that is no effect, the call counts as having all
    effects.
    """
    timeout: float | None = None
    """Seconds for a call. None: the run's own limit."""
    retry: Literal["never", "read_only"] = "never"
    """``read_only`` or ``never``. A call that can change things is never retried."""
    needs_approval: bool = False
    plugin: str = ""
    """The source of the tool, for policy and listings."""
    private: bool = False
    """True if its output may be for the user only, such as their files
    (`Policy.network_after_read`)."""
    cache: bool = True
    """False if the same call may have another answer a moment later though nothing changed here.

    Its outputs are then never reused.
    """
    consent_argument: str | None = None
    """The argument that a consent for the session is bound to.

    The consent covers later calls with the same value only, and none without the argument.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not TOOL_NAME.fullmatch(self.name):
            raise ToolDefinitionError(
                f"{for_message(self.name)} cannot name a tool",
                hint="use 1 to 64 of A-Z a-z 0-9 _ . -",
            )

    def get_effects(self, arguments: Mapping[str, Any]) -> Effects:
        """Return the effects that a call with these arguments may have."""
        if not callable(self.effects):
            return self.effects
        try:
            effects = frozenset(self.effects(deepcopy(dict(arguments))))
        except BaseException as error:  # a tool author's function: fail closed
            if must_pass(error):
                raise
            return ALL_EFFECTS
        return effects if effects <= ALL_EFFECTS else ALL_EFFECTS

    def mutates(self, arguments: Mapping[str, Any]) -> bool:
        """Return True if a call with these arguments can write or execute.

        See reading rule 9 in docs/protocol.md.
        """
        return not MUTATING.isdisjoint(self.get_effects(arguments))

    def consent_binding(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the arguments that a consent for the session to such a call is bound to.

        Returns:
            The ``consent_argument`` with its value; empty for a tool that declares none. None if
                the call
            lacks that argument: no consent covers it.
        """
        name = self.consent_argument
        if name is None:
            return {}
        return {name: arguments[name]} if name in arguments else None

    @property
    def possible_effects(self) -> Effects:
        """All effects that any call may have.

        If a function returns the effects, its attribute ``possible`` names them; without it they
        are all effects.
        """
        if not callable(self.effects):
            return self.effects
        possible: Effects = getattr(self.effects, "possible", ALL_EFFECTS)
        return possible

    def to_json(self) -> dict[str, Any]:
        """Return the tool as a header stores it.

        Without the fields that have their default.

        ``by_arguments`` says that the effects depend on the arguments; then ``effects`` are all
        possible ones.
        """
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
        """Return the tool that `to_json` wrote.

        Args:
            value: the JSON object.
            effects: the function of its effects, if they depend on the arguments. Without it a call
                may have all possible effects.

        Raises:
            ToolDefinitionError: this is no tool.
        """
        try:
            possible = frozenset(value["effects"])
            texts = value["name"], value["description"], value["plugin"]
            is_valid = possible <= ALL_EFFECTS and isinstance(value["parameters"], Mapping)
            if not is_valid or not all(isinstance(text, str) for text in texts):
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
        """Return the tool's version: SHA-256 of the spec, 64 hexadecimal digits.

        It changes with anything that the tool declares. Effects that depend on the arguments count
        with all possible ones.
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
