"""Reading a client's body: strict, with one error that names one field; its tools and their names.

What the interfaces share in reading. A field that nobody knows is no error; it is named.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlx_tools.controller import check_output_schema
from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.gateway.request import ApiError, invalid, unsupported
from mlx_tools.messages import TOOL_NAME, ToolSpec
from mlx_tools.schema import check_parameters, matchable


class Body(BaseModel):
    """A part of a client's body. No value becomes another type; unknown fields are kept apart."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)


AnyBody = TypeVar("AnyBody", bound=Body)

JsonObject = dict[str, Any]

TEXT_ONLY: Final = (
    "the model reads text only; have an image put into words (the tool describe_image does it for "
    "a file), or ask a vision model's own server"
)

_MOST: Final = 2**63 - 1
"""The largest number that a server in any language can read."""


def read(kind: type[AnyBody], value: Any, at: str = "") -> AnyBody:
    """``value``, found in the body at this place, as what it must be. Raises `ApiError` for the
    first field that is wrong."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = place(at, *first["loc"])
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        message = f"{param or 'the body'}: {first['msg']}"
        raise ApiError(400, code, message, param=param or None) from None


def place(at: str, *path: str | int) -> str:
    """Where a field stands in a body, as ``input[0].content[1].type``."""
    for step in path:
        at += f"[{step}]" if isinstance(step, int) else f".{step}" if at else step
    return at


def check_plain(body: Mapping[str, Any]) -> None:
    """Return where a body can be written as text again. Raises `ApiError` for half of a surrogate
    pair, a number that JSON does not have, and nesting without end."""
    for param, value in body.items():
        try:
            json.dumps({param: value}, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            problem = "a text holds half of a surrogate pair"
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"the body is not plain JSON: {error}"
        else:
            continue
        raise invalid(param.encode(errors="replace").decode(), problem)


def check_text(part: Mapping[str, Any], at: str, kinds: Container[str]) -> None:
    """Return where a part of a message, found in the body at this place, is of the ``kinds`` that
    are text, or says none. Raises `ApiError` for an image and the like."""
    kind = part.get("type")
    if isinstance(kind, str) and kind not in kinds:
        raise unsupported(place(at, "type"), f"{kind!r}: {TEXT_ONLY}")


def unknown_fields(body: Body, accepted: Container[str]) -> tuple[str, ...]:
    """The fields of a body that have a value, and no meaning to anybody here."""
    extra = body.model_extra or {}
    return tuple(name for name in extra if extra[name] is not None and name not in accepted)


def as_parts(value: Any, kind: str) -> Any:
    """Content that is given as a text, as the list with this one part."""
    return [{"type": kind, "text": value}] if isinstance(value, str) else value


class Sampled(Body):
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
        found = {name: getattr(self, name) for name in Sampled.model_fields}
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
    at: str,
    left_out: list[str],
) -> ToolSpec:
    """A client's tool. ``at`` is where its schema stands in the body. Raises `ApiError` for a
    schema that arguments cannot be held to; a pattern that they cannot be held to is added to
    ``left_out``, for its client holds them to it."""
    given = {"type": "object", "properties": {}, **(parameters or {})}
    try:
        schema, unmatched = matchable(given)
    except ToolDefinitionError as error:
        raise invalid(at, str(error)) from None
    left_out += [f"{at}{pointer}/pattern" for pointer in unmatched]
    return ToolSpec(name=name, description=description or "", parameters=checked_schema(schema, at))


def checked_schema(schema: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    """``schema``, to which a JSON object can be held. Raises `ApiError` for any other."""
    try:
        check_parameters(schema)
    except ToolDefinitionError as error:
        raise invalid(at, str(error)) from None
    return schema


def answer_schema(schema: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    """``schema``, to which an answer can be held. Raises `ApiError` for any other."""
    try:
        return check_output_schema(schema, at)
    except UsageError as error:
        raise ApiError(400, "invalid_value", str(error), param=at) from None


def check_choice(
    choice: str, allowed: frozenset[str] | None, tools: Iterable[ToolSpec], at: str
) -> None:
    """Return where what must be called, and what may be, is among the tools. Raises `ApiError`."""
    names = {spec.name for spec in tools}
    named = set(allowed or ()) | ({choice} - {"auto", "none", "required"})
    if strangers := sorted(named - names):
        raise invalid(at, f"{strangers[0]!r} is not among the tools that can be called here")
    if choice == "required" and not (names if allowed is None else allowed):
        raise invalid(at, "a call is required, and there is no tool that can be called here")


def check_names(tools: Iterable[ToolSpec], at: str = "tools") -> None:
    """Return where every tool, found in the body at this place, has a name of its own. Raises
    `ApiError`."""
    seen: set[str] = set()
    for spec in tools:
        if spec.name in seen:
            raise invalid(at, f"{spec.name!r} names two of them")
        seen.add(spec.name)
