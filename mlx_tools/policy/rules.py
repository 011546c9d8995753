"""Policies and presets: allowed calls, their rates, and the limits of a run.

`mlx_tools.policy.decision` applies them to calls. A policy names tools by patterns: an exact name,
a glob, or a plugin.

    calculator            this tool only
    notes_*               a glob: it contains ``*``, ``?`` or ``[``
    plugin:weather        every tool of the plugin ``weather``
    plugin:weather/get_*  the tools of that plugin that match

An alias of a tool (`mlx_tools.messages.ALIASES`) means the tool. No ``*`` is added to a pattern.
Patterns are case-sensitive.

Pure: the time, and the times of earlier calls, come from records. If the time of a call is unknown
or in the future (a clock was set back), the call counts in every window of a rate.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import MAXYEAR, UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from mlx_tools.errors import (
    ToolDefinitionError,
    UsageError,
    for_message,
    require_instance,
    require_items,
)
from mlx_tools.messages import (
    MUTATING,
    TOOL_NAME,
    Effect,
    Effects,
    ToolSpec,
    list_names,
    own_name,
    replace,
)

PLUGIN: Final = "plugin:"
FUNCTIONS: Final = "functions"
"""The plugin of the tools that a person's Python file defines."""
PLUGIN_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,100}", re.ASCII)
"""Names of plugins: ASCII, like names of tools."""

_GLOB: Final = r"(?=[^*?\[/]*[*?\[])[A-Za-z0-9_.:@*?\[\]!-]{1,100}"
_TOOL: Final = f"(?:{TOOL_NAME.pattern}|{_GLOB})"
_PATTERN = re.compile(
    f"(?!{PLUGIN}){_TOOL}|{PLUGIN}(?:{PLUGIN_NAME.pattern}|{_GLOB})(?:/{_TOOL})?", re.ASCII
)


def is_glob(text: str) -> bool:
    """Return whether the text has a character that makes it a glob."""
    return any(character in "*?[" for character in text)


def check_patterns(patterns: object, field: str) -> tuple[str, ...]:
    """Return the patterns as a tuple.

    Args:
        patterns: the value to check.
        field: the name of the setting, for the message.

    Raises:
        UsageError: it is not a list, or a pattern could never match.
    """
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise UsageError(f"{field}: expected a list of tool names, not {for_message(patterns)}")
    for pattern in patterns:
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            raise UsageError(
                f"{field}: {for_message(pattern)} cannot name a tool",
                hint="write NAME, a glob such as notes_*, plugin:NAME or plugin:NAME/TOOL",
            )
    return tuple(patterns)


def first_match(patterns: Sequence[str], spec: ToolSpec) -> str | None:
    """Return the first pattern that matches a tool, or None.

    The exact name of the tool comes before all other patterns.
    """
    if spec.name in patterns:
        return spec.name
    return next((pattern for pattern in patterns if matches(pattern, spec)), None)


def matches(pattern: str, spec: ToolSpec) -> bool:
    """Return whether a checked pattern matches the tool."""
    if not pattern.startswith(PLUGIN):
        return _matches_name(pattern, spec.name)
    plugin, _, name = pattern.removeprefix(PLUGIN).partition("/")
    same_plugin = bool(spec.plugin) and _matches_glob(plugin, spec.plugin)
    return same_plugin and (not name or _matches_name(name, spec.name))


def names_same_tool(pattern: str, name: str) -> bool:
    """Return whether two names mean the same tool."""
    return own_name(pattern) == own_name(name)


def _matches_name(pattern: str, name: str) -> bool:
    """Return whether a pattern matches one of the names of a tool."""
    if not is_glob(pattern):
        return own_name(pattern) == own_name(name)
    return any(fnmatchcase(alias, pattern) for alias in {name, *list_names(name)})


DEEP: Final = "**"
"""Any number of folders, in a pattern of a path."""


def match_path_parts(
    parts: Iterable[str], pattern: Sequence[str], fits: Callable[[str, str], bool] = fnmatchcase
) -> set[int]:
    """Return the numbers of parts of a pattern that a path may have matched.

    `DEEP` may match several numbers of folders. All of these are followed at once, so the time is
    linear in the path and in the pattern.

    Args:
        parts: the names in the path.
        pattern: the parts of the pattern.
        fits: returns whether a name matches a part of the pattern.
    """

    def expand_deep(places: Iterable[int]) -> set[int]:
        expanded = set(places)
        for place in range(len(pattern)):
            if place in expanded and pattern[place] == DEEP:
                expanded.add(place + 1)
        return expanded

    places = expand_deep({0})
    for name in parts:
        unfinished = (place for place in places if place < len(pattern))
        places = expand_deep(
            place if pattern[place] == DEEP else place + 1
            for place in unfinished
            if pattern[place] == DEEP or fits(name, pattern[place])
        )
    return places


def _matches_glob(pattern: str, text: str) -> bool:
    return fnmatchcase(text, pattern) if is_glob(pattern) else text == pattern


_DAY: Final = 86_400.0
MIN_OBSERVATION_CHARS: Final = 100
"""The lowest limit for observations. An error and the notice about a cut still fit."""

_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "max_iterations": (1, 1_000),
    "max_format_errors": (1, 100),
    "total_timeout": (0.001, _DAY),
    "completion_timeout": (0.001, _DAY),
    "idle_timeout": (0.001, _DAY),
    "tool_timeout": (0.001, _DAY),
    "max_tokens": (1, 1_000_000),
    "max_argument_bytes": (1, 100_000_000),
    "max_observation_chars": (MIN_OBSERVATION_CHARS, 10_000_000),
    "max_calls_per_turn": (1, 10_000),
    "parallel": (1, 4),
}
"""The lowest and highest value of each limit. A run can still work with the lowest. The highest
catches typing errors and wrong units, such as milliseconds in place of seconds."""

_FOLLOW_MODEL: Final = frozenset(("max_tokens", "max_observation_chars"))
"""Limits that may be None: their value depends on the model."""

MIN_CHARS_PER_TOKEN: Final = 3
"""Characters of a token, as a low estimate. Code and other languages than English have about
three."""
_MAX_TOKENS: Final = 16_384
"""Tokens of a completion in any context: some 1,500 lines of code."""
_UNKNOWN_TOKENS: Final = 8_192
"""Tokens of a completion if the context's size is unknown: half of the usual 16,384 or more."""
_WEAK_TOKENS: Final = 512
"""Tokens of a completion of a weak model. It writes one line, or does not stop."""
_UNKNOWN_CHARS: Final = 8_000
"""Characters of an observation if the context's size is unknown: a third of 8,192 tokens."""
_OBSERVATION_CHARS: Final = (4_000, 32_000)
"""The least and most characters of an observation: a page of a file, and ten of them."""


# --- the limits of one run ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one run. Reaching a limit is never an exception.

    Raises:
        UsageError: a value has the wrong type or is out of bounds.
    """

    max_iterations: int = 24
    """Completions of one question. After these the model is told to finish."""
    max_format_errors: int = 2
    """Unreadable completions in a row before the run stops."""
    total_timeout: float = 1_800.0
    """Seconds for the whole run. Time spent waiting for a person does not count."""
    completion_timeout: float = 900.0
    """Seconds for one completion: 16,384 tokens at 18 a second, which a slow machine writes."""
    idle_timeout: float = 60.0
    """Seconds without a byte from the server before a completion fails."""
    tool_timeout: float = 30.0
    """Seconds for one call, unless the tool declares a shorter time."""
    max_tokens: int | None = None
    """Tokens of one completion. None follows the model (`for_model`)."""
    max_argument_bytes: int = 1_000_000
    """Bytes of one call's arguments as JSON. A file of 16,384 tokens is far below it."""
    max_observation_chars: int | None = None
    """Characters of a tool's output that the model sees. None follows the model (`for_model`)."""
    max_calls_per_turn: int = 16
    """Calls of one completion that run. The model is told about each further one."""
    parallel: int = 4
    """Calls that run at the same time, at most 4."""

    @property
    def completion_tokens(self) -> int:
        """Tokens of one completion; the default if the size of the context is unknown."""
        return _UNKNOWN_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def observation_chars(self) -> int:
        """Characters of an observation; the default if the size of the context is unknown."""
        known = self.max_observation_chars
        return _UNKNOWN_CHARS if known is None else known

    def for_model(self, context: int | None, *, weak: bool = False) -> Limits:
        """Return the limits with a number for each one that depends on the model.

        Args:
            context: tokens that the model's context holds, None if unknown.
            weak: the model's verdict says that it rarely calls tools correctly. Its completions
                stay short.
        """
        tokens, chars = self.max_tokens, self.max_observation_chars
        if tokens is None:
            default_tokens = _UNKNOWN_TOKENS if context is None else min(_MAX_TOKENS, context)
            tokens = min(default_tokens, _WEAK_TOKENS) if weak else default_tokens
        if chars is None:
            # An eighth, so that the prompt, a few observations and the answer fit into the context.
            eighth = _UNKNOWN_CHARS if context is None else context // 8 * MIN_CHARS_PER_TOKEN
            lowest, highest = _OBSERVATION_CHARS
            chars = max(lowest, min(eighth, highest))
        return replace(self, max_tokens=max(1, tokens), max_observation_chars=chars)

    def __post_init__(self) -> None:
        for name, (lowest, highest) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None and name in _FOLLOW_MODEL:
                continue
            is_time = name.endswith("_timeout")
            has_type = isinstance(value, int | float if is_time else int)
            if not has_type or isinstance(value, bool) or not lowest <= value <= highest:
                unit = "seconds" if is_time else "a whole number"
                raise UsageError(
                    f"limits.{name}: {for_message(value, 60)} is not allowed",
                    hint=f"{unit}, from {lowest:g} to {highest:.0f}",
                )

    def lower(self, second: Limits) -> Limits:
        """Return the lower value of each limit.

        A limit that depends on the model counts as higher than any number.
        """
        lower = self.to_json()
        require_instance("second", second, Limits, "write Limits(…)")
        for name, second_limit in second.to_json().items():
            if lower[name] is None or (second_limit is not None and second_limit < lower[name]):
                lower[name] = second_limit
        return Limits(**lower)

    def to_json(self) -> dict[str, Any]:
        """Return the limits as JSON values for `from_json`."""
        return {name: getattr(self, name) for name in _BOUNDS}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Limits:
        """Read limits that `to_json` wrote; a missing one has its default.

        Raises:
            UsageError: a name is unknown, or a value is out of bounds.
        """
        if not isinstance(value, Mapping):
            raise UsageError("limits: expected an object")
        if unknown := set(value) - set(_BOUNDS):
            raise UsageError(
                f"limits: unknown name {min(map(str, unknown))!r}",
                hint=f"one of {', '.join(_BOUNDS)}",
            )
        return cls(**value)


# --- rates: a number of calls in a sliding window of time -----------------------------------------

UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
)
"""The windows by name, in seconds."""

RATES: Final = f"calls/unit, such as 10/minute (units: {', '.join(UNITS)})"
_RATE: Final = re.compile(r"([1-9][0-9]{0,5})/([a-z]+)", re.ASCII)

RateCounts = dict[str, tuple[str, str]]
"""The allowed calls of a session by key: the tool, and the time (ISO 8601) of the completion with
the call."""


class Rate(Struct, frozen=True):
    """A rate limit: at most ``calls`` in any ``seconds``."""

    calls: int
    seconds: int

    @classmethod
    def parse(cls, text: object, field: str = "a rate") -> Rate:
        """Read a rate such as ``10/minute``.

        Raises:
            UsageError: the text is not a rate. ``field`` names the setting in the message.
        """
        match = _RATE.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[2] not in UNITS:
            raise UsageError(f"{field}: {for_message(text, 60)} is not a rate", hint=RATES)
        return cls(int(match[1]), UNITS[match[2]])

    def is_as_strict_as(self, second: Rate) -> bool:
        """Return whether this rate forbids every call that the second one forbids.

        It does if it allows no more calls in a window that is no shorter.
        """
        return self.calls <= second.calls and self.seconds >= second.seconds

    def find_full(self, timestamps: Iterable[str], timestamp: str) -> FullRate | None:
        """Return how the rate is exceeded by one more call, or None if there is room.

        Args:
            timestamps: the times of the calls so far.
            timestamp: the time of the next call.
        """
        now, window = parse_timestamp(timestamp), timedelta(seconds=self.seconds)
        times = map(parse_timestamp, timestamps)
        counted = [t for t in times if now is None or t is None or now - t < window]
        if len(counted) < self.calls:
            return None
        # The next call is possible when all but ``calls - 1`` of these are out of the window. A
        # call with an unknown time never leaves it.
        leaving = sorted(t for t in counted if t is not None)
        needed = len(counted) - self.calls
        is_known = now is not None and needed < len(leaving)
        return FullRate(len(counted), leaving[needed] + window if is_known else None)


class FullRate(Struct, frozen=True):
    """A rate that has no room for one more call."""

    used_calls: int
    """The number of calls in the window."""
    available_at: datetime | None
    """The time at which the next call may be made, None if unknown."""

    def describe_end(self) -> str:
        """Return in words when the next call may be made, rounded up to a second."""
        if self.available_at is None:
            return "it is not known when it may be called again"
        whole = self.available_at.replace(microsecond=0)
        whole += timedelta(seconds=1) if whole < self.available_at else timedelta()
        return f"it may be called again at {whole.isoformat().replace('+00:00', 'Z')}"


def check_rates(rates: object, field: str) -> Mapping[str, str]:
    """Return the table of rates by pattern, sorted.

    Raises:
        UsageError: it is no such table. ``field`` names the setting in the message.
    """
    if not isinstance(rates, Mapping):
        raise UsageError(
            f"{field}: expected a table of rates by tool, not {for_message(rates, 60)}"
        )
    check_patterns(tuple(rates), field)
    for pattern, rate in rates.items():
        Rate.parse(rate, f"{field}.{pattern}")
    return MappingProxyType({pattern: rates[pattern] for pattern in sorted(rates)})


def parse_timestamp(timestamp: str) -> datetime | None:
    """Parse the time of a record (ISO 8601 with its offset). None if it is not one."""
    try:
        parsed = datetime.fromisoformat(timestamp)
        if parsed.tzinfo is None:
            return None
        parsed = parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    # In the last year a window could not be added to it.
    return parsed if parsed.year < MAXYEAR else None


READ_ONLY: Final = "readonly_"
"""The beginning of the names of presets that grant no effect that changes anything."""

BUILTIN: Final = "builtin"
"""The plugin of the built-in tools."""


# --- policies -------------------------------------------------------------------------------------


class Preset(Struct, frozen=True):
    """A named set of tools that a policy can allow, with the effects that it grants.

    Presets are constants, so no configuration can change what a name grants. The effects are
    checked for each call. So a ``readonly_`` preset allows only the reading calls of a tool that
    reads or writes, depending on its arguments. A tool of a plugin never belongs to a preset,
    because the plugin itself declares the effects of its tools.

    No preset grants ``execute``, because the policy does not apply to an executed program. The
    program could change the configuration, or start a run under another policy. So such a tool must
    be allowed by name.
    """

    name: str
    tools: tuple[str, ...]
    effects: Effects

    def __post_init__(self) -> None:
        if self.name.startswith(READ_ONLY) and not MUTATING.isdisjoint(self.effects):
            raise ToolDefinitionError(f"preset {self.name} grants effects that change things")
        if "execute" in self.effects:
            raise ToolDefinitionError(
                f"preset {self.name} grants execute, which can widen a policy"
            )

    def has_tool(self, spec: ToolSpec) -> bool:
        """Return whether this tool belongs to the preset. Its effects are not checked."""
        return spec.name in self.tools and spec.plugin in ("", BUILTIN)


_READ: Effects = frozenset(("read",))
_FILES: Effects = frozenset(("read", "write"))

_PRESETS: Final = (
    Preset(
        "readonly_basic",
        ("calculator", "clock", "file_access", "search_files", "read_artifact"),
        _READ,
    ),
    Preset("readonly_files", ("file_access", "search_files", "format_xml", "read_artifact"), _READ),
    Preset(
        "readonly_knowledge",
        ("query_knowledge_base", "list_corpora", "calculator", "clock", "read_artifact"),
        _READ,
    ),
    Preset(
        "workspace",
        (
            *("calculator", "clock", "file_access", "create_file", "edit_file", "search_files"),
            *("format_xml", "read_artifact"),
        ),
        _FILES,
    ),
    Preset("notes", ("clock", "notes_create", "notes_search", "read_artifact"), _FILES),
    Preset(
        "research",
        ("web_search", "fetch_url", "create_file", "file_access", "read_artifact"),
        _FILES | {"network"},
    ),
)
PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {preset.name: preset for preset in _PRESETS}
)


def check_presets(
    specs: Mapping[str, ToolSpec],
    presets: Iterable[Preset] = _PRESETS,
    *,
    complete: bool = True,
) -> None:
    """Check the presets against the registered tools, at the start of the program.

    A tool whose effects depend on its arguments is checked at each call instead.

    Args:
        specs: all registered tools, disabled ones too.
        presets: the presets to check.
        complete: False if a plugin, and so tools of a preset, may be missing.

    Raises:
        ToolDefinitionError: a preset names a tool that is not registered, that belongs to a plugin,
            or that has effects beyond the preset's.
    """
    for preset in presets:
        for name in preset.tools:
            spec = specs.get(name)
            if spec is None and not complete:
                continue
            if spec is None:
                raise ToolDefinitionError(f"preset {preset.name}: no tool {name} is registered")
            if not preset.has_tool(spec):
                raise ToolDefinitionError(
                    f"preset {preset.name}: {name} belongs to the plugin {spec.plugin}, "
                    "and a preset's tools are built in"
                )
            beyond = spec.possible_effects - preset.effects
            if beyond and not callable(spec.effects):
                raise ToolDefinitionError(
                    f"preset {preset.name}: {name} has the effects {', '.join(sorted(beyond))}, "
                    "which the preset does not grant"
                )


ASK_EFFECTS: Final[tuple[Effect, ...]] = ("write", "execute")
"""Effects that need an approval by default."""

ASKABLE: Final[tuple[Effect, ...]] = (*ASK_EFFECTS, "network")

AfterRead = Literal["allow", "ask", "deny"]
"""The decision on network calls after private data was read, from lax to strict."""

AFTER_READ: Final[tuple[AfterRead, ...]] = get_args(AfterRead)

_LIST_FIELDS: Final = ("allow", "deny", "ask")
_SWITCH_FIELDS: Final = ("local_only", "dry_run", "redact", "redact_paths")
_ALWAYS_IN_JSON: Final = (*_LIST_FIELDS, "preset", "local_only", "dry_run")
"""Fields that are always in the JSON. Others are in it if they differ from their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rules about allowed calls. The empty policy allows nothing.

    Patterns are explained at the top of this file.

    Raises:
        UsageError: a list, pattern, rate, switch or preset is not valid.
    """

    allow: Sequence[str] = ()
    """Patterns of allowed tools."""
    deny: Sequence[str] = ()
    """Patterns of tools that are never called."""
    ask: Sequence[str] = ()
    """Patterns of allowed tools that need approval."""
    preset: str | None = None
    """The name of a set of tools that is allowed in addition to ``allow`` (`PRESETS`)."""
    local_only: bool = False
    """Deny every call that may use the network."""
    dry_run: bool = False
    """Run no call that can change things, may use the network, or needs an approval."""
    rate_limits: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Rates by pattern, such as ``{"notes_*": "100/hour"}``. Each matching tool is counted
    separately, and every matching rate applies."""
    ask_effects: Sequence[str] = ASK_EFFECTS
    """Effects (write, execute, network) of calls that need an approval."""
    session_rate_limit: str | None = None
    """The rate of all tools together."""
    network_after_read: AfterRead = "allow"
    """The decision on network calls after a private tool has answered."""
    redact: bool = True
    """Replace secrets in the outputs of tools. It does not change decisions about calls."""
    redact_paths: bool = False
    """Replace absolute paths in the outputs of tools. It does not change decisions about calls."""
    narrowing: tuple[Policy, ...] = ()
    """More policies. Each of them must allow a call too."""
    parts: tuple[Policy, ...] = field(init=False, repr=False, compare=False)
    """This policy and all that narrow it."""
    redacts: bool = field(init=False, repr=False, compare=False)
    """True if any of ``parts`` redacts secrets."""
    redacts_paths: bool = field(init=False, repr=False, compare=False)
    """True if any of ``parts`` redacts paths."""

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            name: check_patterns(getattr(self, name), f"policy.{name}") for name in _LIST_FIELDS
        }
        if self.ask_effects != ASK_EFFECTS:
            checked["ask_effects"] = check_effects(self.ask_effects)
        for name in _SWITCH_FIELDS:
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"policy.{name}: expected true or false")
        checked["rate_limits"] = check_rates(self.rate_limits, "policy.rate_limits")
        if self.session_rate_limit is not None:
            Rate.parse(self.session_rate_limit, "policy.session_rate_limit")
        if self.network_after_read not in AFTER_READ:
            text = for_message(self.network_after_read, 60)
            raise UsageError(
                f"policy.network_after_read: {text} is not allowed",
                hint=f"one of {', '.join(AFTER_READ)}",
            )
        if self.preset not in (None, *PRESETS):
            raise UsageError(
                f"policy.preset: {for_message(self.preset)} is not a preset",
                hint=f"one of {', '.join(PRESETS)}",
            )
        policies = "give a tuple of policies"
        narrowing: tuple[Policy, ...] = ()
        if self.narrowing != ():
            narrowing = tuple(require_items("policy.narrowing", self.narrowing, policies))
        for part in narrowing:
            require_instance("policy.narrowing", part, Policy, policies)
        parts = (self, *narrowing)
        checked |= {"narrowing": narrowing, "parts": parts}
        checked["redacts"] = any(part.redact for part in parts)
        checked["redacts_paths"] = any(part.redact_paths for part in parts)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping cannot be pickled or copied, so the copy is made from JSON.
        return type(self).from_json, (self.to_json(),)

    def intersect(self, second: Policy) -> Policy:
        """Return the policy that allows a call only if both policies allow it.

        To forbid one thing only, use `restriction`, such as ``restriction(local_only=True)``.
        """
        require_instance("a narrowing policy", second, Policy, "write Policy(allow=[…])")
        present = {replace(self, narrowing=()), *self.narrowing}
        candidates = (replace(second, narrowing=()), *second.narrowing)
        added = tuple(dict.fromkeys(part for part in candidates if part not in present))
        return replace(self, narrowing=self.narrowing + added) if added else self

    def to_json(self) -> dict[str, Any]:
        """Return the policy as JSON values for `from_json`."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        value: dict[str, Any] = {
            name: list(item) if isinstance(item, tuple) else item
            for name, item in values.items()
            if name in _ALWAYS_IN_JSON or item != _DEFAULTS[name]
        }
        if self.rate_limits:
            value["rate_limits"] = dict(self.rate_limits)
        if self.narrowing:
            value["narrowing"] = [part.to_json() for part in self.narrowing]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Policy:
        """Read a policy that `to_json` wrote.

        Raises:
            UsageError: a part of it cannot be read. Without that part, the policy might allow too
                much.
        """
        if not isinstance(value, Mapping):
            raise UsageError("policy: expected an object")
        if unknown := set(value) - set(_DEFAULTS):
            raise UsageError(f"policy: unknown key {min(map(str, unknown))!r}")
        narrowing = value.get("narrowing", ())
        if isinstance(narrowing, str) or not isinstance(narrowing, Sequence):
            raise UsageError("policy.narrowing: expected a list of policies")
        if any(isinstance(part, Mapping) and part.get("narrowing") for part in narrowing):
            raise UsageError("policy.narrowing: a policy in this list must have no narrowing")
        return cls(**{**value, "narrowing": tuple(map(cls.from_json, narrowing))})

    @lru_cache(maxsize=64)  # noqa: B019  # policies are small and immutable
    def digest(self) -> str:
        """Return the SHA-256 of the policy in canonical form, 64 hexadecimal digits.

        It depends on everything that may change a decision, also on the content of the preset. It
        does not depend on the order or repetition of names.
        """
        text = json.dumps(self._canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def _canonical(self) -> dict[str, Any]:
        value = self.to_json()
        lists = (*_LIST_FIELDS, "ask_effects")
        value |= {name: sorted(set(value[name])) for name in lists if name in value}
        if self.preset is not None:
            preset = PRESETS[self.preset]
            value["preset"] = [preset.name, sorted(preset.tools), sorted(preset.effects)]
        parts = [part._canonical() for part in self.narrowing]
        value["narrowing"] = sorted(parts, key=lambda part: json.dumps(part, sort_keys=True))
        return value


_DEFAULTS: Final[Mapping[str, Any]] = {
    each.name: {} if each.default is MISSING else each.default
    for each in fields(Policy)
    if each.init
}


def check_effects(effects: Any) -> tuple[str, ...]:
    """Return the effects of ``ask_effects``, each once, in the order of `ASKABLE`.

    Raises:
        UsageError: it is not a list of these effects.
    """
    if isinstance(effects, str) or not isinstance(effects, Collection):
        raise UsageError("policy.ask_effects: expected a list of effects")
    if wrong := [effect for effect in effects if effect not in ASKABLE]:
        raise UsageError(
            f"policy.ask_effects: {wrong[0]!r:.60} is not allowed", hint=f"of {', '.join(ASKABLE)}"
        )
    return tuple(effect for effect in ASKABLE if effect in effects)


def restriction(allow: Sequence[str] = ("*",), **rules: Any) -> Policy:
    """Return a policy that only forbids something, for `Policy.intersect`.

    Args:
        allow: patterns of the tools that stay allowed.
        rules: other fields of the policy.
    """
    return Policy(allow=allow, **{"redact": False, "ask_effects": (), **rules})
