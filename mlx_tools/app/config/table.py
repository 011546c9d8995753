"""The settings as rows: how each is named, read from text, checked and described."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from mlx_tools.app.config.setting import Setting
from mlx_tools.app.config.settings import Settings
from mlx_tools.errors import MlxToolsError

TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True)
class SettingRow:
    """One setting. ``key`` is its dotted name in a file, ``default`` not among what it holds."""

    key: str
    type: Any
    description: str
    setting: Setting

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return self.setting.env or "MLX_TOOLS_" + self.key.upper().replace(".", "_")

    @property
    def optional(self) -> bool:
        """Whether it may be without a value."""
        return NoneType in get_args(self.type)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it may be, empty where it is no choice."""
        return tuple(c for part in _parts(self.type) for c in _words(part))

    def is_a(self, kind: type) -> bool:
        """Whether its values may be of this Python type."""
        return any(
            part is kind or get_origin(part) is kind for part, _ in map(_bare, _parts(self.type))
        )

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    def check(self, value: Any) -> Any:
        """The value as the setting holds it. Raises ValueError where it is not allowed."""
        if isinstance(value, list) and self.is_a(tuple):
            value = tuple(value)
        if value is None:
            raise ValueError
        try:
            value = self._adapter.validate_python(value, strict=True)
            if self.setting.check is not None:
                self.setting.check(value)
        except (ValidationError, MlxToolsError):
            raise ValueError from None
        return value

    def read(self, text: str, *, scale: int = 1) -> Any:
        """The value that a variable or an option writes. Raises ValueError as `check` does.

        An empty text is an empty list or table, or no value where the setting may be without one.
        """
        if self.is_a(dict):
            return self.check(_pairs(text))
        if self.is_a(tuple):
            return self.check([item for part in text.split(",") if (item := part.strip())])
        text = text.strip()
        if not text and self.optional:
            return None
        if self.is_a(bool):
            return self.check(_boolean(text))
        if self.is_a(int) and _NUMBER.fullmatch(text):
            number = Decimal(text) * scale
            return self.check(int(number) if number == int(number) else number)
        if self.is_a(float):
            return self.check(float(text))
        return self.check(text)

    def allowed(self, scale: int = 1) -> str:
        """What it may be, in words."""
        if self.setting.allowed:
            return self.setting.allowed
        words = list(self.choices)
        for part in _parts(self.type):
            kind, bounds = _bare(part)
            if kind is bool:
                words += ["true", "false"]
            elif kind in (int, float):
                words.append(_range("a number" if scale != 1 else _NUMBERS[kind], bounds, scale))
        return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


_NUMBERS: dict[Any, str] = {int: "an integer", float: "a number"}


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, without None."""
    if get_origin(annotation) is Annotated and get_origin(get_args(annotation)[0]) in (
        Union,
        UnionType,
    ):
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(p for p in get_args(annotation) if p is not NoneType)
    return (annotation,)


def _bare(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type without its metadata, and the metadata with what pydantic wraps opened."""
    extras: list[Any] = []
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        for item in more:
            extras += item.metadata if isinstance(item, FieldInfo) else [item]
    return annotation, tuple(extras)


def _words(part: Any) -> tuple[str, ...]:
    kind, _ = _bare(part)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _range(noun: str, bounds: tuple[Any, ...], scale: int) -> str:
    low = next((b.ge for b in bounds if hasattr(b, "ge")), None)
    high = next((b.le for b in bounds if hasattr(b, "le")), None)
    return f"{noun} from {_plain(low, scale)} to {_plain(high, scale)}"


def _plain(number: Any, scale: int) -> str:
    return f"{number / scale:g}" if scale != 1 else str(number)


def _boolean(text: str) -> bool:
    word = text.casefold()
    if word in TRUE or word in FALSE:
        return word in TRUE
    raise ValueError


def _pairs(text: str) -> dict[str, str]:
    """The table that ``name=value, name=value`` writes."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if name and sign and value and name not in pairs:
            pairs[name] = value
        elif part.strip():
            raise ValueError
    return pairs


@cache
def table() -> dict[str, SettingRow]:
    """All settings by key, in the order they are declared."""
    return {row.key: row for row in _rows(Settings, "")}


@cache
def by_env() -> dict[str, SettingRow]:
    """All settings by environment variable."""
    return {row.env: row for row in table().values()}


def _rows(model: type[BaseModel], prefix: str) -> list[SettingRow]:
    rows: list[SettingRow] = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            rows += _rows(kind, f"{prefix}{name}.")
            continue
        setting = next(m for m in field.metadata if isinstance(m, Setting))
        bounds = tuple(m for m in field.metadata if not isinstance(m, Setting))
        annotated: Any = Annotated[(kind, *bounds)] if bounds else kind
        rows.append(SettingRow(f"{prefix}{name}", annotated, field.description or "", setting))
    return rows
