"""A client's tools: names for the model, usable schemas, and choices."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from mlx_tools.gateway.body import MAX_TOOLS
from mlx_tools.gateway.content import gateway_text
from mlx_tools.gateway.request import ApiError, JsonObject, invalid
from mlx_tools.messages import ToolSpec
from mlx_tools.schema import LenientSchema, read_lenient_schema

CUSTOM_ARGUMENT: Final = "input"
"""The argument of a custom tool, as OpenAI's interfaces call its text."""

CUSTOM_BEGINNING: Final = f'{{"{CUSTOM_ARGUMENT}":"'
"""The beginning of a custom tool's arguments, up to the text."""

_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_STEM_CHARS: Final = 55  # with a digest of 8 digits after it a name has 64
_MAX_PLACES: Final = 4
"""Dropped places that are named for one tool; a header has little room."""

_MAX_TOOLS_WITH_PLACES: Final = 20
"""Tools of which places are named: with 4 places of 50 characters they fill a header of 4,000."""


class ClientTool(Struct, frozen=True):
    """A tool as its client knows it.

    Attributes:
        name: The client's own name, of any characters.
        namespace: The group that it is in, empty if it is in none.
        is_custom: It takes a text, not arguments.
    """

    name: str
    namespace: str = ""
    is_custom: bool = False


class ToolDefinition(Struct, frozen=True):
    """A tool that a client defines, as its body has it.

    Attributes:
        tool: Its name.
        description: What the client says of it; anything but a text counts as nothing.
        parameters: The schema of its arguments, of whatever sort.
        grammar: Of a custom tool, the syntax and definition of what its text must follow.
    """

    tool: ClientTool
    description: Any = None
    parameters: Any = None
    grammar: tuple[str, str] | None = None

    def spec(self, model_name: str) -> tuple[ToolSpec, Sequence[str]]:
        """Return the tool as the model sees it, and the faulty places of its schema."""
        description = self.description if isinstance(self.description, str) else ""
        if self.tool.is_custom:
            description = _describe_custom(description, self.grammar)
            schema = LenientSchema(_CUSTOM_PARAMETERS)
        else:
            schema = read_lenient_schema(self.parameters)
        spec = ToolSpec(name=model_name, description=description, parameters=schema.parameters)
        return spec, schema.dropped


class ClientTools:
    """The tools of one request, and how names of the client and the model's names map.

    Attributes:
        specs: The tools as the model is told of them.
        left_out: What of their schemas has no effect, after the names of the tools.
    """

    def __init__(
        self, definitions: Sequence[ToolDefinition] = (), field_path: str = "tools"
    ) -> None:
        """Raises `ApiError` if there are too many, or two of one name."""
        check_names(definitions, field_path)
        self._model_names = _model_names([definition.tool for definition in definitions])
        self._tools = {name: tool for tool, name in self._model_names.items()}
        self._by_key = {
            **{("", name): tool for name, tool in self._tools.items()},
            **{("", _full_name(tool.name, tool.namespace)): tool for tool in self._model_names},
            **{(tool.namespace, tool.name): tool for tool in self._model_names},
        }
        self._dropped: dict[str, Sequence[str]] = {}
        self.specs = tuple(self._spec(definition) for definition in definitions)
        self.left_out = name_dropped(self._dropped)

    def model_name(self, name: str, namespace: str = "") -> str:
        """Return the model's name of a tool, also of one that is no longer in the list."""
        if (tool := self._by_key.get((namespace, name))) is not None:
            return self._model_names[tool]
        found = readable_name(name, namespace)
        return _with_digest(found, name, namespace) if found in self._tools else found

    def find(self, name: str, namespace: str = "") -> ClientTool | None:
        """Return the client's tool of this name, or None.

        The name may stand with its namespace, or be the model's.
        """
        return self._by_key.get((namespace, name))

    @property
    def custom_names(self) -> frozenset[str]:
        """The model's names of the custom tools."""
        return frozenset(name for name, tool in self._tools.items() if tool.is_custom)

    def client_tool(self, model_name: str) -> ClientTool:
        """Return the client's tool that the model calls by this name."""
        tool = self._tools.get(model_name) or self.find(model_name)
        return ClientTool(model_name) if tool is None else tool

    def _spec(self, definition: ToolDefinition) -> ToolSpec:
        spec, dropped = definition.spec(self._model_names[definition.tool])
        if dropped:
            self._dropped[definition.tool.name] = dropped
        return spec


def name_dropped(dropped: Mapping[str, Sequence[str]]) -> list[str]:
    """Name the places that were dropped of each tool; of many tools only the tools."""
    if len(dropped) > _MAX_TOOLS_WITH_PLACES:
        return [f"{name}.parameters" for name in dropped]
    named: list[str] = []
    for name, pointers in dropped.items():
        named += [f"{name}.parameters{pointer}" for pointer in pointers[:_MAX_PLACES]]
        if len(pointers) > _MAX_PLACES:
            named.append(f"{name}.parameters ({len(pointers) - _MAX_PLACES} more)")
    return named


_CUSTOM_PARAMETERS: Final = {
    "type": "object",
    "properties": {CUSTOM_ARGUMENT: {"type": "string"}},
    "required": [CUSTOM_ARGUMENT],
    "additionalProperties": False,
}


def _describe_custom(description: str, grammar: tuple[str, str] | None) -> str:
    texts = [description, gateway_text("custom_input")]
    if grammar is not None:
        syntax, definition = grammar
        texts.append(gateway_text("custom_grammar", syntax=syntax, definition=definition))
    return "\n".join(filter(None, texts))


def custom_arguments(text: str) -> str:
    """Return the JSON text of a custom tool's arguments."""
    return json.dumps({CUSTOM_ARGUMENT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Return the text in the arguments of a custom tool's call."""
    text = json.loads(arguments).get(CUSTOM_ARGUMENT, "")
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


def custom_input_piece(piece: str) -> str:
    """Return the text in a piece of a custom tool's arguments, cut within the text."""
    text: str = json.loads(f'"{piece.removeprefix(CUSTOM_BEGINNING)}"')
    return text


def custom_grammar(form: Any) -> tuple[str, str] | None:
    """Return syntax and definition of a custom tool's ``format``, None if it has none."""
    inner = form.get("grammar", form) if isinstance(form, dict) else {}
    definition = inner.get("definition") if isinstance(inner, dict) else None
    if not isinstance(definition, str):
        return None
    syntax = inner.get("syntax")
    return (syntax if isinstance(syntax, str) else "context-free"), definition


# --- names --------------------------------------------------------------------------------------


def check_names(definitions: Sequence[ToolDefinition], field_path: str) -> None:
    """Raise `ApiError` if there are too many tools, or two of one name."""
    if len(definitions) > MAX_TOOLS:
        raise invalid(field_path, f"more than {MAX_TOOLS}")
    counts = Counter((one.tool.namespace, one.tool.name) for one in definitions)
    for (namespace, name), count in counts.items():
        if count > 1:
            problem = f"{_full_name(name, namespace)!r} names two of them"
            raise invalid(field_path, problem)


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _model_names(tools: Sequence[ClientTool]) -> dict[ClientTool, str]:
    """Give each tool a name that no other has, whatever the order of the tools."""
    stems = {tool: readable_name(tool.name, tool.namespace) for tool in tools}
    counts = Counter(stems.values())
    return {
        tool: stem
        if counts[stem] == 1 or (stem == tool.name and not tool.namespace)
        else _with_digest(stem, tool.name, tool.namespace)
        for tool, stem in stems.items()
    }


def readable_name(name: str, namespace: str = "") -> str:
    """Make a client's name one of 1 to 64 of ``A-Z a-z 0-9 _ -``."""
    full = _full_name(name, namespace)
    if _MODEL_NAME.fullmatch(full):
        return full
    letters = unicodedata.normalize("NFKD", full).encode("ascii", "ignore").decode()
    if not re.search("[A-Za-z0-9]", letters):
        return _with_digest("tool", name, namespace)
    plain = "".join(
        char for char in unicodedata.normalize("NFKD", full) if not unicodedata.combining(char)
    )
    stem = re.sub("[^A-Za-z0-9_-]", "_", plain)
    return stem if len(stem) <= 64 else _with_digest(stem, name, namespace)


def _with_digest(stem: str, name: str, namespace: str) -> str:
    key = f"{namespace}\0{name}".encode("utf-8", "surrogatepass")
    return f"{stem[:_MAX_STEM_CHARS]}_{hashlib.sha256(key).hexdigest()[:8]}"


# --- what is chosen -------------------------------------------------------------------------------


class Choice(Struct, frozen=True):
    """The tools that must be called, and those that may be.

    Attributes:
        tool: ``auto``, ``none``, ``required`` or the model's name of a tool.
        allowed: The model's names of the tools that may be called; None if all may.
        json_value: The choice as a response says it.
    """

    tool: str = "auto"
    allowed: frozenset[str] | None = None
    json_value: Any = "auto"

    def among(self, tools: Iterable[ToolSpec]) -> Choice:
        """Return the same choice, limited to these tools.

        Raises `ApiError` if a tool is not among them.
        """
        names = {spec.name for spec in tools}
        named = set(self.allowed or ()) | ({self.tool} - {"auto", "none", "required"})
        if strangers := sorted(named - names):
            problem = f"{strangers[0]!r} is not among the tools that can be called here"
            raise invalid("tool_choice", problem)
        if self.tool == "required" and not (names if self.allowed is None else self.allowed):
            problem = "a call is required, and there is no tool that can be called here"
            raise invalid("tool_choice", problem)
        return self


_MODES: Final = {"none": "none", "auto": "auto", "required": "required", "any": "required"}
_CLIENT_KINDS: Final = ("function", "custom", "tool")


def read_choice(
    value: str | JsonObject | None, tools: ClientTools, hosted: Container[str] = ()
) -> Choice:
    """Read what a client chose, in the form of any interface.

    Args:
        value: The body's ``tool_choice``.
        tools: The client's tools.
        hosted: The types of its tools that a server would run; a choice leaves them out.

    Raises:
        ApiError: it is no choice, or one of a tool that cannot be called here.
    """
    wrong = invalid("tool_choice", "none, auto, required, a function or allowed_tools")
    if value is None:
        return Choice()
    if isinstance(value, str):
        if value in _MODES:
            return Choice(_MODES[value], json_value=_MODES[value])
        if tools.find(value) is None:
            raise wrong
        value = {"type": "function", "name": value}
    kind = value.get("type", "function")
    if not isinstance(kind, str):
        raise wrong
    if kind in _MODES:
        return Choice(_MODES[kind], json_value=_MODES[kind])
    if kind in _CLIENT_KINDS:
        name = _chosen_name(value, tools, wrong)
        return Choice(name, json_value=_tool_json(name, tools)).among(tools.specs)
    # In the chat interface the list is under a key of its own.
    listed = value.get("allowed_tools", value)
    if kind != "allowed_tools" or not isinstance(listed, dict):
        raise wrong
    mode, named = listed.get("mode") or "auto", listed.get("tools")
    if not isinstance(mode, str) or mode not in _MODES or not isinstance(named, list):
        raise wrong
    if not all(isinstance(tool, dict) for tool in named):
        raise wrong
    if len(named) > MAX_TOOLS:
        raise invalid("tool_choice", f"more than {MAX_TOOLS} tools")
    names = [
        _chosen_name(tool, tools, wrong)
        for tool in named
        if not (isinstance(type_ := tool.get("type"), str) and type_ in hosted)
    ]
    if not names and mode == "auto":  # none of the tools that may be called exists here
        return Choice("none", json_value="none")
    told = [_tool_json(name, tools) for name in names]
    mode = _MODES[mode]
    return Choice(mode, frozenset(names), {"type": kind, "mode": mode, "tools": told})


def _tool_json(model_name: str, tools: ClientTools) -> JsonObject:
    is_custom = tools.client_tool(model_name).is_custom
    return {"type": "custom" if is_custom else "function", "name": model_name}


def _chosen_name(tool: JsonObject, tools: ClientTools, wrong: ApiError) -> str:
    """Return the model's name of a tool that is chosen."""
    if tool.get("type", "function") not in _CLIENT_KINDS:
        raise wrong
    named = tool.get("function", tool.get("custom", tool))
    if not isinstance(named, dict):
        raise wrong
    name, namespace = named.get("name"), named.get("namespace") or ""
    if not isinstance(name, str) or not isinstance(namespace, str):
        raise wrong
    return tools.model_name(name, namespace)
