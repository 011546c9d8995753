"""Reading a client's body: strict, with one error that names one field.

These parts are shared by all interfaces. An unknown field is no error, but is reported.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)

from mlx_tools.controller import check_output_schema
from mlx_tools.errors import UsageError
from mlx_tools.gateway.request import ApiError, JsonObject, invalid, missing


class Body(BaseModel):
    """A part of a client's body, read strictly; unknown fields are kept separately."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)


AnyBody = TypeVar("AnyBody", bound=Body)

MAX_TOOLS: Final = 4_096
"""Tools of a request: OpenAI takes 128, the largest set of a known agent has some hundreds."""

MAX_MESSAGES: Final = 10_000
"""Messages, items or blocks of a conversation: ten times those of the longest recorded session."""

MAX_PARTS: Final = 2 * MAX_MESSAGES
"""Parts of one message, and messages and calls of a conversation: a call and its result are two."""

MAX_STOPS: Final = 256
"""Texts that end an answer: OpenAI takes 4. Each is looked for in each piece, 256 in 0.1 ms."""

_MAX_NUMBER: Final = 2**63 - 1
"""The largest number that a server in any language can read."""


def read(kind: type[AnyBody], value: Any, *path: str | int) -> AnyBody:
    """Read a value, found in the body at this path, as a part of this kind.

    Raises:
        ApiError: of the first field that is wrong.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = place(*path, *_find_steps(value, first["loc"]))
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        message = f"{param or 'the body'}: {first['msg']}"
        raise ApiError(400, code, message, param=param or None) from None


def _find_steps(value: Any, steps: Iterable[str | int]) -> Iterator[str | int]:
    """Yield the steps to a field, without pydantic's steps to the form that was tried."""
    for step in steps:
        if isinstance(step, int) and isinstance(value, list):
            value = value[step]
        elif isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        else:
            return
        yield step


def place(*path: str | int) -> str:
    """Return the place of a field in a body, as ``input[0].content[1].type``."""
    field_path = ""
    for step in path:
        field_path += f"[{step}]" if isinstance(step, int) else f".{step}" if field_path else step
    return field_path


def plain_object(text: str | bytes) -> JsonObject | None:
    """Return the JSON object that a text is; None if `json_object` must look closer."""
    try:
        value = _decode_json(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_object(text: str | bytes, subject: str) -> JsonObject:
    """Return the JSON object that a text is, which can be written as text again.

    Raises:
        ApiError: it is none; the error calls the text ``subject``. Refused are also half of a
            surrogate pair, a number that JSON does not have, and nesting without end.
    """
    if (plain := plain_object(text)) is not None:
        return plain
    try:
        value = json.loads(text if isinstance(text, str) else text.decode())
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


def _decode_json(text: str | bytes, levels: int = 30) -> Any:
    """Decode JSON, with levels of the stack left for writing the value again."""
    return _decode_json(text, levels - 1) if levels else msgspec.json.decode(text)


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Parts = Annotated[
    list[JsonObject],
    Field(max_length=MAX_PARTS),
    BeforeValidator(_as_parts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]
"""Content: parts, or a text, which counts as one part."""


def _as_texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stops = Annotated[
    list[str],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_as_texts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STOPS},
            ]
        }
    ),
]
"""Texts that end an answer, or one of them."""


def _as_whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_as_whole)]
"""A whole number, also one that is written as ``100.0``."""


def _as_limit(value: Any) -> Any:
    return None if (whole := _as_whole(value)) in (0, -1) and whole is not False else whole


TokenLimit = Annotated[
    Annotated[int, Field(ge=1)] | None,
    BeforeValidator(_as_limit),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": -1}, {"type": "null"}]}),
]
"""A limit of tokens. -1 and 0 mean no limit, as in LM Studio and llama.cpp."""


def unknown_fields(body: Body, accepted: Container[str]) -> tuple[str, ...]:
    """Return the fields of a body that have a value and that nothing here reads."""
    extra = body.model_extra or {}
    return tuple(name for name in extra if extra[name] is not None and name not in accepted)


class SamplingBody(Body):
    """A body with the parameters of sampling."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: Whole | None = Field(None, ge=-1, le=_MAX_NUMBER)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: Whole | None = Field(None, ge=-_MAX_NUMBER, le=_MAX_NUMBER)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0)

    def sampling(self) -> dict[str, Any]:
        """Return the parameters that go to the server as they are."""
        found = {name: getattr(self, name) for name in SamplingBody.model_fields}
        return {name: value for name, value in found.items() if value is not None}


# --- what an answer must be ---------------------------------------------------------------------


class AnswerFormat(Body):
    """The form that an answer must have."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None

    def get_schema(self, field_path: str) -> Mapping[str, Any] | None:
        """Return the schema that the answer must fit, None for text.

        ``field_path`` is the schema's place in the body, for the `ApiError` that it raises.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "object"}
        if self.schema_ is None:
            raise missing(field_path)
        return answer_schema(self.schema_, field_path)


def answer_schema(schema: Mapping[str, Any], field_path: str) -> Mapping[str, Any]:
    """Check that an answer can be held to ``schema``, and return it.

    Raises `ApiError` if it cannot.
    """
    try:
        return check_output_schema(schema, field_path)
    except UsageError as error:
        raise ApiError(400, "invalid_value", str(error), param=field_path) from None
