"""Reading a client's body: strict, with one error that names one field; its tools and their names.

What the interfaces share in reading. A field that nobody knows is no error; it is named.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Struct
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)

from mlx_tools.controller import check_output_schema
from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.gateway.request import ApiError, JsonObject, invalid, missing, unsupported
from mlx_tools.messages import TOOL_NAME, ToolSpec
from mlx_tools.schema import check_parameters, matchable


class Body(BaseModel):
    """A part of a client's body. No value becomes another type; unknown fields are kept apart."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)


AnyBody = TypeVar("AnyBody", bound=Body)

TEXT_ONLY: Final = (
    "the model reads text only; have an image put into words (the tool describe_image does it for "
    "a file), or ask a vision model's own server"
)

MAX_TOOLS: Final = 4_096
"""Tools of a request: OpenAI takes 128, the largest set of a known agent has some hundreds."""

MAX_MESSAGES: Final = 10_000
"""Messages, items or blocks of a conversation: ten times those of the longest recorded session."""

_MOST: Final = 2**63 - 1
"""The largest number that a server in any language can read."""


def read(kind: type[AnyBody], value: Any, field_path: str = "") -> AnyBody:
    """``value``, found in the body at this place, as what it must be. Raises `ApiError` for the
    first field that is wrong."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = place(field_path, *_steps_in(value, first["loc"]))
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        message = f"{param or 'the body'}: {first['msg']}"
        raise ApiError(400, code, message, param=param or None) from None


def _steps_in(value: Any, steps: Iterable[str | int]) -> Iterator[str | int]:
    """The steps to a field, without those behind them that say which form of it was tried."""
    for step in steps:
        if isinstance(step, int) and isinstance(value, list):
            value = value[step]
        elif isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        else:
            return
        yield step


def place(field_path: str, *path: str | int) -> str:
    """Where a field stands in a body, as ``input[0].content[1].type``."""
    for step in path:
        field_path += f"[{step}]" if isinstance(step, int) else f".{step}" if field_path else step
    return field_path


def json_object(text: str, subject: str) -> JsonObject:
    """The JSON object that a text is, which can be written as text again. Raises `ApiError`, which
    calls the text ``subject``: also for half of a surrogate pair, a number that JSON does not have,
    and nesting without end."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"{subject} no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", f"{subject} no JSON object, such as {{}}")
    for name, part in value.items():
        try:
            json.dumps({name: part}, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            problem = "a text holds half of a surrogate pair"
        except (ValueError, RecursionError) as error:
            problem = f"{subject} not plain JSON: {error}"
        else:
            continue
        raise invalid(name.encode(errors="replace").decode(), problem)
    return value


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Parts = Annotated[
    list[JsonObject],
    BeforeValidator(_as_parts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]
"""Content: parts, or a text, which is the one part of it."""


def text_of(
    parts: Sequence[JsonObject] | None, field_path: str, kinds: Container[str] = ("text",)
) -> str:
    """What parts say that were found in the body at this place, a line or more each. Raises
    `ApiError` for one that is of none of the ``kinds``, such as an image."""
    return "\n".join(
        part_text(part, place(field_path, n), kinds) for n, part in enumerate(parts or ())
    )


def part_text(part: JsonObject, field_path: str, kinds: Container[str] = ("text",)) -> str:
    """What one part says, found in the body at this place. Raises `ApiError`."""
    kind = "text" if part.get("type") is None else part["type"]
    if kind not in kinds:
        raise unsupported(place(field_path, "type"), f"{kind!r}: {TEXT_ONLY}")
    field = "refusal" if kind == "refusal" and "refusal" in part else "text"
    if not isinstance(text := part.get(field), str):
        raise invalid(place(field_path, field), "a text")
    return text


def unknown_fields(body: Body, accepted: Container[str]) -> tuple[str, ...]:
    """The fields of a body that have a value, and no meaning to anybody here."""
    extra = body.model_extra or {}
    return tuple(name for name in extra if extra[name] is not None and name not in accepted)


class SamplingBody(Body):
    """A body with what says how tokens are chosen."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=_MOST)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-_MOST, le=_MOST)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0)

    def sampling(self) -> dict[str, Any]:
        """What goes to the server as it is."""
        found = {name: getattr(self, name) for name in SamplingBody.model_fields}
        return {name: value for name, value in found.items() if value is not None}


# --- tools ----------------------------------------------------------------------------------------

NAME_FORM: Final = "1 to 64 of A-Z a-z 0-9 _ . -"
"""What a tool's name may be, in words."""

_KEPT_CHARS: Final = 55


def usable_name(name: str, namespace: str = "") -> str:
    """The name by which a client's tool is known here, always the same: its own, after that of its
    namespace. What is too long for a tool's name, or holds what none may, is cut and numbered."""
    whole = f"{namespace}.{name}" if namespace else name
    if TOOL_NAME.fullmatch(whole):
        return whole
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9_.-]', '_', whole)[:_KEPT_CHARS]}_{digest}"


def tool_spec(
    name: str,
    description: str | None,
    parameters: Mapping[str, Any] | None,
    field_path: str,
    left_out: list[str],
) -> ToolSpec:
    """A client's tool. ``field_path`` is where its schema stands in the body. Raises `ApiError` for
    a schema that arguments cannot be held to; a pattern that they cannot be held to is added to
    ``left_out``, for its client holds them to it."""
    given = {"type": "object", "properties": {}, **(parameters or {})}
    try:
        schema, unmatched = matchable(given)
        check_parameters(schema)
    except ToolDefinitionError as error:
        raise invalid(field_path, str(error)) from None
    left_out += [f"{field_path}{pointer}/pattern" for pointer in unmatched]
    return ToolSpec(name=name, description=description or "", parameters=schema)


def check_names(tools: Iterable[ToolSpec], field_path: str = "tools") -> None:
    """Return where every tool, found in the body at this place, has a name of its own, and they
    are not too many, those of namespaces among them. Raises `ApiError`."""
    seen: set[str] = set()
    for spec in tools:
        if len(seen) >= MAX_TOOLS:
            raise invalid(field_path, f"more than {MAX_TOOLS}")
        if spec.name in seen:
            raise invalid(field_path, f"{spec.name!r} names two of them")
        seen.add(spec.name)


# --- what is chosen -------------------------------------------------------------------------------


class Choice(Struct, frozen=True):
    """Which tools must be called, and which may be. ``told`` is how a response says it."""

    tool: str = "auto"
    allowed: frozenset[str] | None = None
    told: Any = "auto"

    def among(self, tools: Iterable[ToolSpec]) -> Choice:
        """The same, of these tools. Raises `ApiError` where it is not."""
        names = {spec.name for spec in tools}
        named = set(self.allowed or ()) | ({self.tool} - {"auto", "none", "required"})
        if strangers := sorted(named - names):
            problem = f"{strangers[0]!r} is not among the tools that can be called here"
            raise invalid("tool_choice", problem)
        if self.tool == "required" and not (names if self.allowed is None else self.allowed):
            problem = "a call is required, and there is no tool that can be called here"
            raise invalid("tool_choice", problem)
        return self


def read_choice(value: str | JsonObject | None, hosted: Container[str]) -> Choice:
    """What a client of OpenAI's interfaces chose, in the form of either. What it allows of tools
    that are ``hosted`` elsewhere, by their types, is left out. Raises `ApiError`."""
    wrong = invalid("tool_choice", "none, auto, required, a function or allowed_tools")
    if value is None or isinstance(value, str):
        if value not in (None, "none", "auto", "required"):
            raise wrong
        return Choice(value or "auto", told=value or "auto")
    kind = value.get("type")
    if kind == "function":
        name = _tool_name(value, wrong)
        return Choice(name, told={"type": kind, "name": name})
    # In the chat interface the list stands under a key of its own.
    listed = value.get("allowed_tools", value)
    if kind != "allowed_tools" or not isinstance(listed, dict):
        raise wrong
    mode, tools = listed.get("mode") or "auto", listed.get("tools")
    if mode not in ("auto", "required", "none") or not isinstance(tools, list):
        raise wrong
    if not all(isinstance(tool, dict) for tool in tools):
        raise wrong
    names = [_tool_name(tool, wrong) for tool in tools if tool.get("type") not in hosted]
    if not names and mode == "auto":  # what may be called is nothing that could be, here
        return Choice("none", told="none")
    told = [{"type": "function", "name": name} for name in names]
    return Choice(mode, frozenset(names), {"type": kind, "mode": mode, "tools": told})


def _tool_name(tool: JsonObject, wrong: ApiError) -> str:
    """The name of a tool that is chosen."""
    function = tool.get("function", tool)
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise wrong
    name, namespace = function.get("name"), function.get("namespace") or ""
    if not isinstance(name, str) or not isinstance(namespace, str):
        raise wrong
    return usable_name(name, namespace)


class AnswerFormat(Body):
    """What an answer must be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None

    def held_to(self, field_path: str) -> Mapping[str, Any] | None:
        """The schema that it must fit, None for text. Raises `ApiError`, with the place
        ``field_path`` which the schema stands in the body."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "object"}
        if self.schema_ is None:
            raise missing(field_path)
        return answer_schema(self.schema_, field_path)


def answer_schema(schema: Mapping[str, Any], field_path: str) -> Mapping[str, Any]:
    """``schema``, to which an answer can be held. Raises `ApiError` for any other."""
    try:
        return check_output_schema(schema, field_path)
    except UsageError as error:
        raise ApiError(400, "invalid_value", str(error), param=field_path) from None
