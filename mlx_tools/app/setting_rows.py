"""Declarations of settings, and the settings as rows.

A `Section` is a table of the configuration file. Each of its fields is annotated with its type and
a `Setting`. `iter_rows` makes a `SettingRow` of each, which reads and describes values.
"""

import contextlib
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct, structs

from mlx_tools.packages import must_pass

ProjectRule = Literal[
    "never", "any", "only_true", "only_false", "lower", "rarer", "stricter", "allow", "add", "more"
]
"""The rule for a setting in a project's file.

Such a file comes with a cloned repository, so it may only make settings stricter.

- ``never``: it must not set it.
- ``any``: it may set it to any value, because the setting gives no rights.
- ``only_true``, ``only_false``: it may set it to this value.
- ``lower``: it may make a number smaller.
- ``rarer``: it may add rates, and lower existing ones.
- ``stricter``: it may choose a value nearer to the first of the choices.
- ``allow``: it may name some of the tools that are allowed without it.
- ``add``: it may add to the list.
- ``more``: its list must have all items that the list has without it, and may have more.
"""

_RULE_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "only_true": frozenset({"boolean"}),
    "only_false": frozenset({"boolean"}),
    "lower": frozenset({"integer", "number", "null"}),
    "rarer": frozenset({"string", "object", "null"}),
    "stricter": frozenset({"string"}),
    "add": frozenset({"array"}),
    "more": frozenset({"array"}),
}
"""The types of values, in JSON Schema, that a rule can compare. Other rules take all types."""

Group = Literal["", "own", "backend", "writing", "policy", "run", "gateway"]


class Setting(Struct, frozen=True):
    """A setting's properties besides its type."""

    project: ProjectRule
    """The rule for a project's file."""
    help: str
    option: str = ""
    """Its option: the long name, a short one after a comma, and a word for the value."""
    group: Group = ""
    """The group of the option. A command has all options of a group."""
    scale: int = 1
    """The factor from the option's value to the setting's value."""
    env: str = ""
    """Its environment variable, by default ``MLX_TOOLS_<SECTION>_<KEY>``."""
    allowed: str = ""
    """The allowed values in words, if the type does not show them."""
    test: Callable[[Any], object] | None = None
    """Raises an exception for a value of the right type that is not allowed."""
    secret: bool = False
    """True for a secret. It is never shown, and its option names a file that has it."""
    run: str = ""
    """The field of `RunSettings` for the value."""

    @property
    def flags(self) -> tuple[str, ...]:
        """The names of the option, the long one first; empty without an option."""
        return tuple(filter(None, self.option.partition(" ")[0].split(",")))

    @property
    def flag(self) -> str:
        """The option's long name, empty without one."""
        return next(iter(self.flags), "")


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the configuration file. Types are exact: "5" is not 5."""

    def __repr__(self) -> str:
        """Return the values without secrets, since a traceback or a log may show them."""
        shown = (
            f"{name}={getattr(self, name)!r}"
            for name, kind in _iter_fields(type(self))
            if (declared := _find_setting(kind)) is None or not declared.secret
        )
        return f"{type(self).__name__}({', '.join(shown)})"


_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,9})?", re.ASCII)
_NOUNS = {"integer": "an integer", "number": "a number"}
_PLAIN_NOUNS = {**_NOUNS, "string": "text", "array": "a list", "object": "a table"}
_KINDS: Final[Mapping[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    types.NoneType: "null",
    tuple: "array",
    dict: "object",
}
"""The type of a value in JSON Schema, by its type in Python."""


class _Part(Struct, frozen=True):
    """One of the types of a setting's values."""

    kind: str
    """Its name in JSON Schema."""
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


def _iter_parts(kind: Any) -> Iterator[_Part]:
    """Yield the types of a union, or the single type."""
    kind, *metas = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        for member in get_args(kind):
            yield from _iter_parts(member)
    elif origin is Literal:
        yield _Part("string", get_args(kind))
    else:
        limits = next((meta for meta in metas if isinstance(meta, Meta)), None)
        low, high = (limits.ge, limits.le) if limits else (None, None)
        yield _Part(_KINDS[origin or kind], (), low, high)


def _iter_fields(section: type[Section]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a table, each with its annotation."""
    yield from get_type_hints(section, include_extras=True).items()


def _find_setting(annotation: Any) -> Setting | None:
    """Return the setting that an annotation declares; None for a table."""
    metas = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((meta for meta in metas if isinstance(meta, Setting)), None)


@dataclass(frozen=True)
class SettingRow:
    """One setting."""

    key: str
    """Its dotted name in a file."""
    type: Any
    setting: Setting

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return self.setting.env or "MLX_TOOLS_" + self.key.upper().replace(".", "_")

    @property
    def optional(self) -> bool:
        """True if it may have no value."""
        return self.is_a("null")

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The words that it can be, empty if it is no choice."""
        return tuple(word for part in self._parts for word in part.choices)

    @property
    def may_be_empty(self) -> bool:
        """True if an empty text is a value: if it is a list that cannot be a single text."""
        return self.is_a("array") and not self.is_a("string")

    def is_a(self, kind: str) -> bool:
        """Return True if its values can be of this JSON Schema type."""
        return any(part.kind == kind for part in self._parts)

    @cached_property
    def _parts(self) -> tuple[_Part, ...]:
        return tuple(_iter_parts(self.type))

    def check(self, value: Any) -> Any:
        """Return the checked value in the type of the setting.

        Raises:
            ValueError: it is not allowed.
        """
        if isinstance(value, list) and self.is_a("array"):
            value = tuple(value)
        # `convert` would also accept a set as a list, and None means no value.
        if type(value) not in _KINDS or value is None:
            raise ValueError
        try:
            value = msgspec.convert(value, self.type)
        except msgspec.ValidationError:
            raise ValueError from None
        if self.setting.test is not None:
            try:
                self.setting.test(value)
            except BaseException as error:  # a plugin's test may raise anything
                if must_pass(error):
                    raise
                raise ValueError from None
        return value

    def read(self, text: str, *, scale: int = 1) -> Any:
        """Return the value of the text of a variable or an option.

        An empty text is an empty list or table. It means no value if the setting may have none.

        Raises:
            ValueError: it is not allowed.
        """
        if self.is_a("object"):
            return self.check(_parse_pairs(text))
        text = text.strip()
        if self.is_a("array") and text == "[]":
            text = ""
        if self.is_a("array") and (text or self.may_be_empty):
            return self.check(_parse_items(text))
        if not text and self.optional:
            return None
        if self.is_a("boolean"):
            word = text.casefold()
            return self.check(word in _TRUE if word in _TRUE + _FALSE else None)
        if self.is_a("integer") and _NUMBER.fullmatch(text):
            number = Decimal(text) * scale
            return self.check(int(number) if number == int(number) else number)
        return self.check(float(text) if self.is_a("number") else text)

    def allowed(self, scale: int = 1) -> str:
        """Return the allowed values in words."""
        if self.setting.allowed:
            return self.setting.allowed
        unit = " seconds" if scale == 1000 else ""  # of a setting in milliseconds
        words = [*self.choices, *(("true", "false") if self.is_a("boolean") else ())]
        for part in self._parts:
            if part.low is not None and part.high is not None:
                noun = _NOUNS[part.kind if scale == 1 else "number"]
                low, high = (f"{end / scale:.12g}" for end in (part.low, part.high))
                words.append(f"{noun} from {low} to {high}{unit}")
        if not words:  # a plugin's setting without a description
            words = [_PLAIN_NOUNS[part.kind] for part in self._parts if part.kind != "null"]
        return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _parse_items(text: str) -> list[Any]:
    """Return the items of ``a, b``, or of a list as in a file: ``["a", "b"]``."""
    if text.startswith("["):  # a pattern may begin so too
        import tomllib

        with contextlib.suppress(tomllib.TOMLDecodeError, RecursionError):
            values = tomllib.loads(f"items = {text}")
            if values.keys() == {"items"}:
                return list(values["items"])
    return [item for part in text.split(",") if (item := part.strip())]


def _parse_pairs(text: str) -> dict[str, str]:
    """Return the table of ``name=value, name=value``."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if name and sign and value and name not in pairs:
            pairs[name] = value
        elif part.strip():
            raise ValueError
    return pairs


def iter_rows(section: type[Section], prefix: str = "") -> Iterator[SettingRow]:
    """Yield the settings of a table and of those in it, in the order of the code."""
    for name, annotation in _iter_fields(section):
        if (declared := _find_setting(annotation)) is None:
            yield from iter_rows(annotation, f"{prefix}{name}.")
        else:
            yield SettingRow(f"{prefix}{name}", annotation, declared)


def find_declaration_fault(section: type[Section], name: str) -> str | None:
    """Return the fault in the declaration of a plugin's table, or None.

    Args:
        section: the table.
        name: its name.
    """
    try:
        annotations = dict(_iter_fields(section))
        for field in structs.fields(section):
            declared = _find_setting(annotations[field.name])
            if declared is None:
                return f"{field.name} has no Setting"
            if field.required:
                return f"{field.name} has no default"
            row = SettingRow(f"{name}.{field.name}", annotations[field.name], declared)
            default = field.default_factory() if field.default is NODEFAULT else field.default
            if (fault := _find_row_fault(row) or _find_default_fault(row, default)) is not None:
                return f"{field.name}: {fault}"
        msgspec.convert(structs.asdict(section()), section)  # values are read so later
    except BaseException as error:  # foreign code may raise anything
        if must_pass(error):
            raise
        return f"it cannot be read: {type(error).__name__}: {error}"
    return None


def _find_row_fault(row: SettingRow) -> str | None:
    """Return the fault of a plugin's setting besides its default, or None."""
    setting = row.setting
    try:
        msgspec.convert(structs.asdict(setting) | {"test": None}, Setting)
    except msgspec.ValidationError as error:
        return f"its Setting is wrong: {error}"
    if setting.project == "allow":
        return "the project rule allow is for the list of allowed tools only"
    if setting.test is not None and not callable(setting.test):
        return "its test is no function"
    if setting.env and not re.fullmatch(r"MLX_TOOLS_[A-Z0-9_]+", setting.env):
        return f"its variable {setting.env} does not begin with MLX_TOOLS_"
    if not all(re.fullmatch(r"--?[a-z][a-z0-9-]*", flag) for flag in setting.flags):
        return f"{setting.option} is no option"
    try:
        kinds = {kind for kind in _KINDS.values() if row.is_a(kind)}
        row.allowed()
    except (KeyError, TypeError):
        return f"settings have no type {getattr(row.type, '__origin__', row.type)}"
    is_comparable = setting.project != "stricter" or all(part.choices for part in row._parts)
    if not is_comparable or not kinds <= _RULE_KINDS.get(setting.project, kinds):
        return f"the project rule {setting.project} does not fit its type"
    return None


def _find_default_fault(row: SettingRow, default: Any) -> str | None:
    if default is None and row.optional:
        return None
    try:
        row.check(default)
    except BaseException as error:  # other exceptions for types that msgspec refuses
        if must_pass(error):
            raise
        reason = f"{type(error).__name__}, allowed: {row.allowed()}"
        return f"its default {default!r} is not allowed ({reason})"
    return None
