"""Policies and presets: what may be called, how often, and how long a run may take.

`mlx_tools.policy.decision` holds calls to them. A policy names tools by patterns: exact, a glob
where one is written, or a plugin.

    calculator            this tool and no other
    notes_*               a glob, because ``*``, ``?`` or ``[`` is written
    plugin:weather        every tool of the plugin ``weather``
    plugin:weather/get_*  of that plugin, the tools that match

Another name of a tool (`mlx_tools.messages.ALIASES`) means the tool. A pattern never gains a ``*``
that nobody wrote, and upper and lower case differ.

Pure: what time it is, and when calls were made, comes from records. A call whose time is not known,
or that by its time is yet to come (a clock was set back), counts as made within every window.
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
    names_of,
    own_name,
    replace,
)

PLUGIN: Final = "plugin:"
FUNCTIONS: Final = "functions"
"""The plugin of the tools that a person's Python file defines."""
PLUGIN_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,100}", re.ASCII)
"""Plugins' names are ASCII, like tools'."""

_GLOB: Final = r"(?=[^*?\[/]*[*?\[])[A-Za-z0-9_.:@*?\[\]!-]{1,100}"
_TOOL: Final = f"(?:{TOOL_NAME.pattern}|{_GLOB})"
_PATTERN = re.compile(
    f"(?!{PLUGIN}){_TOOL}|{PLUGIN}(?:{PLUGIN_NAME.pattern}|{_GLOB})(?:/{_TOOL})?", re.ASCII
)


def is_glob(text: str) -> bool:
    """Return whether the text has a character that makes it a pattern."""
    return any(character in "*?[" for character in text)


def check_patterns(patterns: object, field: str) -> tuple[str, ...]:
    """The patterns as a tuple; UsageError, naming ``field``, for one that could never match."""
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
    """The first pattern that means this tool, an exact name before all others, or None."""
    if spec.name in patterns:
        return spec.name
    return next((pattern for pattern in patterns if matches(pattern, spec)), None)


def matches(pattern: str, spec: ToolSpec) -> bool:
    """Return whether a checked pattern means this tool."""
    if not pattern.startswith(PLUGIN):
        return _means(pattern, spec.name)
    plugin, _, name = pattern.removeprefix(PLUGIN).partition("/")
    of_it = bool(spec.plugin) and _same(plugin, spec.plugin)
    return of_it and (not name or _means(name, spec.name))


def covers(pattern: str, name: str) -> bool:
    """Return whether an exact name means the tool that another one names."""
    return own_name(pattern) == own_name(name)


def _means(pattern: str, name: str) -> bool:
    """Return whether a pattern means the tool of this name, by any of its names."""
    if not is_glob(pattern):
        return own_name(pattern) == own_name(name)
    return any(fnmatchcase(one, pattern) for one in {name, *names_of(name)})


DEEP: Final = "**"
"""In a pattern of a path: any folders, none included."""


def parts_reached(
    parts: Iterable[str], pattern: Sequence[str], fits: Callable[[str, str], bool] = fnmatchcase
) -> set[int]:
    """How much of a path's pattern, name by name, these names may have used up: each way to read
    `DEEP` at once, so that no pattern takes more than linear time. ``fits`` says whether a name is
    what a part of the pattern says."""

    def opened(places: Iterable[int]) -> set[int]:
        found = set(places)
        for place in range(len(pattern)):
            if place in found and pattern[place] == DEEP:
                found.add(place + 1)
        return found

    places = opened({0})
    for name in parts:
        left = (place for place in places if place < len(pattern))
        places = opened(
            place if pattern[place] == DEEP else place + 1
            for place in left
            if pattern[place] == DEEP or fits(name, pattern[place])
        )
    return places


def _same(pattern: str, text: str) -> bool:
    return fnmatchcase(text, pattern) if is_glob(pattern) else text == pattern


_DAY: Final = 86_400.0
MIN_OBSERVATION_CHARS: Final = 100
"""The least characters of an observation: an error and the notice of a cut still fit."""

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

_FOLLOW_MODEL: Final = frozenset(("max_tokens", "max_observation_chars"))
"""Limits that may be None: their number follows from the model."""

CHARS_OF_TOKEN: Final = 3
"""Characters of a token, cautiously: code and languages other than English have about three."""
_MOST_TOKENS: Final = 16_384
"""Tokens of a completion in any context: some 1,500 lines of code."""
_UNKNOWN_TOKENS: Final = 8_192
"""Tokens of a completion if the context's size is unknown: half of the usual 16,384 or more."""
_WEAK_TOKENS: Final = 512
"""Tokens of a completion of a weak model: it writes one line, or rambles."""
_UNKNOWN_CHARS: Final = 8_000
"""Characters of an observation if the context's size is unknown: a third of 8,192 tokens."""
_OBSERVATION_CHARS: Final = (4_000, 32_000)
"""The least and most characters of an observation: a page of a file, and ten of them."""


# --- the limits of one run ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one run may use. Reaching a limit is never an exception.

    Raises UsageError, naming the limit, for a value of the wrong type or out of bounds.
    """

    max_iterations: int = 24
    """Completions of one question; then the model is told to finish."""
    max_format_errors: int = 2
    """Unreadable completions in a row before the run stops."""
    total_timeout: float = 1_800.0
    """Seconds for the whole run. Time spent waiting for a person does not count."""
    completion_timeout: float = 900.0
    """Seconds for one completion: 16,384 tokens at 18 a second, which a slow machine writes."""
    idle_timeout: float = 60.0
    """Seconds without a byte from the server before a completion is given up."""
    tool_timeout: float = 30.0
    """Seconds for one call, unless the tool declares a shorter time."""
    max_tokens: int | None = None
    """Tokens of one completion. None follows the model (`for_model`)."""
    max_argument_bytes: int = 1_000_000
    """Bytes of one call's arguments as JSON: a file of 16,384 tokens fits many times."""
    max_observation_chars: int | None = None
    """Characters of a tool's output that the model sees. None follows the model (`for_model`)."""
    max_calls_per_turn: int = 16
    """Calls of one completion that run. Any further one gets an observation that says so."""
    parallel: int = 4
    """Calls that run at the same time, at most 4."""

    @property
    def completion_tokens(self) -> int:
        """Tokens of one completion, for a context of unknown size if nothing else is set."""
        return _UNKNOWN_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def observation_chars(self) -> int:
        """Characters of an observation, for a context of unknown size if nothing else is set."""
        known = self.max_observation_chars
        return _UNKNOWN_CHARS if known is None else known

    def for_model(self, context: int | None, *, weak: bool = False) -> Limits:
        """Return the limits with each one that follows the model set to a number.

        Args:
            context: tokens that the model's context holds, None if unknown.
            weak: the model's verdict says that it rarely calls tools correctly. It writes little
                that is of use, so its completions stay short.
        """
        tokens, chars = self.max_tokens, self.max_observation_chars
        if tokens is None:
            known = _UNKNOWN_TOKENS if context is None else min(_MOST_TOKENS, context)
            tokens = min(known, _WEAK_TOKENS) if weak else known
        if chars is None:
            eighth = _UNKNOWN_CHARS if context is None else context // 8 * CHARS_OF_TOKEN
            least, most = _OBSERVATION_CHARS
            chars = max(least, min(eighth, most))
        return replace(self, max_tokens=max(1, tokens), max_observation_chars=chars)

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None and name in _FOLLOW_MODEL:
                continue
            seconds = name.endswith("_timeout")
            sound = isinstance(value, int | float if seconds else int)
            if not sound or isinstance(value, bool) or not least <= value <= most:
                unit = "seconds" if seconds else "a whole number"
                raise UsageError(
                    f"limits.{name}: {for_message(value, 60)} is not allowed",
                    hint=f"{unit}, from {least:g} to {most:.0f}",
                )

    def lower(self, second: Limits) -> Limits:
        """The lower of both, one by one. One that follows the model is the higher."""
        lower = self.to_json()
        for name, most in (
            require_instance("second", second, Limits, "write Limits(…)").to_json().items()
        ):
            if lower[name] is None or (most is not None and most < lower[name]):
                lower[name] = most
        return Limits(**lower)

    def to_json(self) -> dict[str, Any]:
        """The limits as JSON values; `from_json` reads them back."""
        return {name: getattr(self, name) for name in _BOUNDS}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Limits:
        """The limits that `to_json` wrote; one that is missing has its default. UsageError for an
        unknown name or a value out of bounds."""
        if not isinstance(value, Mapping):
            raise UsageError("limits: expected an object")
        if unknown := set(value) - set(_BOUNDS):
            raise UsageError(
                f"limits: unknown name {min(map(str, unknown))!r}",
                hint=f"one of {', '.join(_BOUNDS)}",
            )
        return cls(**value)


# --- rates: so many calls in a window of time that slides along -----------------------------------

UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
)
"""The windows by name, in seconds."""

RATES: Final = f"calls/unit, such as 10/minute (units: {', '.join(UNITS)})"
_RATE: Final = re.compile(r"([1-9][0-9]{0,5})/([a-z]+)", re.ASCII)

RateCounts = dict[str, tuple[str, str]]
"""The calls that a session was let make, by their keys: the tool, and the time (ISO 8601) of the
completion that they stood in."""


class Rate(Struct, frozen=True):
    """At most ``calls`` in any ``seconds``."""

    calls: int
    seconds: int

    @classmethod
    def parse(cls, text: object, field: str = "a rate") -> Rate:
        """The rate that ``10/minute`` writes; UsageError, naming ``field``, for anything else."""
        found = _RATE.fullmatch(text) if isinstance(text, str) else None
        if found is None or found[2] not in UNITS:
            raise UsageError(f"{field}: {for_message(text, 60)} is not a rate", hint=RATES)
        return cls(int(found[1]), UNITS[found[2]])

    def within(self, second: Rate) -> bool:
        """Return whether this rate leaves no room wherever the other one leaves none, whatever
        calls were made: no more calls, in a window that is no shorter."""
        return self.calls <= second.calls and self.seconds >= second.seconds

    def full(self, timestamps: Iterable[str], timestamp: str) -> FullRate | None:
        """Return how it is used up where calls at these times leave no room for one more at
        ``timestamp``; None where there is room."""
        now, window = instant(timestamp), timedelta(seconds=self.seconds)
        times = map(instant, timestamps)
        counted = [t for t in times if now is None or t is None or now - t < window]
        if len(counted) < self.calls:
            return None
        # One more is free once all but ``calls - 1`` of these are out of the window. Those whose
        # time is not known never are.
        leaving = sorted(t for t in counted if t is not None)
        needed = len(counted) - self.calls
        known = now is not None and needed < len(leaving)
        return FullRate(len(counted), leaving[needed] + window if known else None)


class FullRate(Struct, frozen=True):
    """A rate that is used up. ``again`` is when one more call may be made, None where no time is
    known at which it may."""

    used: int
    again: datetime | None

    @property
    def when(self) -> str:
        """``again`` in words; a second is rounded up."""
        if self.again is None:
            return "it is not known when it may be called again"
        whole = self.again.replace(microsecond=0)
        whole += timedelta(seconds=1) if whole < self.again else timedelta()
        return f"it may be called again at {whole.isoformat().replace('+00:00', 'Z')}"


def checked_rates(rates: object, field: str) -> Mapping[str, str]:
    """The table of rates by pattern, sorted; UsageError, naming ``field``, for what is none."""
    if not isinstance(rates, Mapping):
        raise UsageError(
            f"{field}: expected a table of rates by tool, not {for_message(rates, 60)}"
        )
    check_patterns(tuple(rates), field)
    for pattern, rate in rates.items():
        Rate.parse(rate, f"{field}.{pattern}")
    return MappingProxyType({pattern: rates[pattern] for pattern in sorted(rates)})


def instant(timestamp: str) -> datetime | None:
    """The time that a record names (ISO 8601, with its offset); None where it names none."""
    try:
        found = datetime.fromisoformat(timestamp)
        if found.tzinfo is None:
            return None
        found = found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return found if found.year < MAXYEAR else None  # a window can be added to it


READ_ONLY: Final = "readonly_"
"""A preset whose name starts so grants no effect that changes anything."""

BUILTIN: Final = "builtin"
"""The plugin of the built-in tools."""


# --- policies -------------------------------------------------------------------------------------


class Preset(Struct, frozen=True):
    """A named set of tools: what the name grants is these, and of their effects no more than these.

    They are frozen here so that no configuration can change what a name grants. The ceiling on
    effects holds for each call: a tool that reads or writes, as its arguments say, is admitted by a
    ``readonly_`` preset for its reads alone. A tool of a plugin is never meant, whatever its name:
    its words about itself are its own.

    No preset grants ``execute``. What a call executes is not held to the policy (it might change
    the configuration, or start a run under another policy), so such a tool can widen a policy, and
    is allowed by name or not at all.
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

    def names(self, spec: ToolSpec) -> bool:
        """Return whether this tool is one that the preset means, whatever it may do."""
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
PRESETS: Final[Mapping[str, Preset]] = MappingProxyType({one.name: one for one in _PRESETS})


def check_presets(specs: Mapping[str, ToolSpec], presets: Iterable[Preset] = _PRESETS) -> None:
    """Hold the presets to the tools that are registered; a program starts with this.

    ``specs`` are all registered tools, disabled ones too. Raises ToolDefinitionError where a preset
    names a tool that is not registered or belongs to a plugin, or a tool that always has effects
    beyond the preset's, as when a tool in a ``readonly_`` preset has come to write. A tool whose
    effects depend on its arguments is held to the preset's effects at every call instead.
    """
    for preset in presets:
        for name in preset.tools:
            spec = specs.get(name)
            if spec is None:
                raise ToolDefinitionError(f"preset {preset.name}: no tool {name} is registered")
            if not preset.names(spec):
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
"""The effects that ask a person first where nobody said which."""

ASKABLE: Final[tuple[Effect, ...]] = (*ASK_EFFECTS, "network")

AfterRead = Literal["allow", "ask", "deny"]
"""What becomes of calls that may use the network once private data has been read, the stricter the
later."""

AFTER_READ: Final[tuple[AfterRead, ...]] = get_args(AfterRead)

_LISTS: Final = ("allow", "deny", "ask")
_SWITCHES: Final = ("local_only", "dry_run", "redact", "redact_paths")
_WRITTEN: Final = (*_LISTS, "preset", "local_only", "dry_run")
"""Fields that JSON holds in any case; others only where they are not at their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of what may be called. The empty policy allows nothing.

    ``allow``, ``deny`` and ``ask`` list names, globs and plugins (see the top of this file);
    ``ask`` adds an approval to calls that are allowed. ``ask_effects`` are the effects (write,
    execute, network) that ask a person before every call that has one of them for its arguments,
    whichever tool it is. ``preset`` names a set of tools that is allowed besides ``allow``
    (`PRESETS`). ``local_only`` denies every call that
    may use the network. ``dry_run`` lets no call run that can change things, may use the network or
    would have asked. ``rate_limits`` says by pattern how often each tool that it means may be
    called (``{"notes_*": "100/hour"}``), ``session_rate_limit`` how often all tools together;
    every rate that means a tool holds. ``network_after_read`` is what becomes of calls that may use
    the network once a private tool has answered. ``redact`` and ``redact_paths`` say whether
    secrets and paths are taken out of what tools return; they decide about no call.
    ``narrowing`` holds further policies, each of which must allow a call too.

    ``parts`` are this policy and all that narrow it, ``redacts`` and ``redacts_paths`` what any of
    them says. Raises UsageError where a list, a pattern, a rate, a switch or the preset's name is
    not one.
    """

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    ask: Sequence[str] = ()
    preset: str | None = None
    local_only: bool = False
    dry_run: bool = False
    rate_limits: Mapping[str, str] = field(default_factory=dict, hash=False)
    ask_effects: Sequence[str] = ASK_EFFECTS
    session_rate_limit: str | None = None
    network_after_read: AfterRead = "allow"
    redact: bool = True
    redact_paths: bool = False
    narrowing: tuple[Policy, ...] = ()
    parts: tuple[Policy, ...] = field(init=False, repr=False, compare=False)
    redacts: bool = field(init=False, repr=False, compare=False)
    redacts_paths: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        said: dict[str, Any] = {
            name: check_patterns(getattr(self, name), f"policy.{name}") for name in _LISTS
        }
        if self.ask_effects != ASK_EFFECTS:
            said["ask_effects"] = checked_effects(self.ask_effects)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"policy.{name}: expected true or false")
        said["rate_limits"] = checked_rates(self.rate_limits, "policy.rate_limits")
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
        said |= {"narrowing": narrowing, "parts": parts}
        said["redacts"] = any(part.redact for part in parts)
        said["redacts_paths"] = any(part.redact_paths for part in parts)
        for name, value in said.items():
            object.__setattr__(self, name, value)

    def narrowed_by(self, second: Policy) -> Policy:
        """The policy that allows what both allow: never more than either.

        A restriction that takes away one thing, and has nothing to say about the rest, is made by
        `restriction`, as in ``restriction(local_only=True)``.
        """
        require_instance("a narrowing policy", second, Policy, "write Policy(allow=[…])")
        held = {replace(self, narrowing=()), *self.narrowing}
        more = (replace(second, narrowing=()), *second.narrowing)
        added = tuple(dict.fromkeys(part for part in more if part not in held))
        return replace(self, narrowing=self.narrowing + added) if added else self

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON values; `from_json` reads them back."""
        had = {name: getattr(self, name) for name in _DEFAULTS}
        value: dict[str, Any] = {
            name: list(one) if isinstance(one, tuple) else one
            for name, one in had.items()
            if name in _WRITTEN or one != _DEFAULTS[name]
        }
        if self.rate_limits:
            value["rate_limits"] = dict(self.rate_limits)
        if self.narrowing:
            value["narrowing"] = [part.to_json() for part in self.narrowing]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Policy:
        """The policy that `to_json` wrote. Raises UsageError for anything else: a policy that
        cannot be read whole grants nothing."""
        if not isinstance(value, Mapping):
            raise UsageError("policy: expected an object")
        if unknown := set(value) - set(_DEFAULTS):
            raise UsageError(f"policy: unknown key {min(map(str, unknown))!r}")
        narrowing = value.get("narrowing", ())
        if isinstance(narrowing, str) or not isinstance(narrowing, Sequence):
            raise UsageError("policy.narrowing: expected a list of policies")
        if any(isinstance(part, Mapping) and part.get("narrowing") for part in narrowing):
            raise UsageError("policy.narrowing: a policy in this list has none of its own")
        return cls(**{**value, "narrowing": tuple(map(cls.from_json, narrowing))})

    @lru_cache(maxsize=64)  # noqa: B019  # of a plain value, which is small
    def digest(self) -> str:
        """SHA-256 of the policy in canonical form, 64 hexadecimal digits.

        Changes with anything that may change a decision, the content of the preset included; not
        with the order or the repetition of names.
        """
        text = json.dumps(self._canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def _canonical(self) -> dict[str, Any]:
        value = self.to_json()
        lists = (*_LISTS, "ask_effects")
        value |= {name: sorted(set(value[name])) for name in lists if name in value}
        if self.preset is not None:
            preset = PRESETS[self.preset]
            value["preset"] = [preset.name, sorted(preset.tools), sorted(preset.effects)]
        parts = [part._canonical() for part in self.narrowing]
        value["narrowing"] = sorted(parts, key=lambda part: json.dumps(part, sort_keys=True))
        return value


_DEFAULTS: Final[Mapping[str, Any]] = {
    one.name: {} if one.default is MISSING else one.default for one in fields(Policy) if one.init
}


def checked_effects(effects: Any) -> tuple[str, ...]:
    """The effects that ask, each once, in the order of `ASKABLE`. Raises UsageError for others."""
    if isinstance(effects, str) or not isinstance(effects, Collection):
        raise UsageError("policy.ask_effects: expected a list of effects")
    if wrong := [effect for effect in effects if effect not in ASKABLE]:
        raise UsageError(
            f"policy.ask_effects: {wrong[0]!r:.60} is not allowed", hint=f"of {', '.join(ASKABLE)}"
        )
    return tuple(effect for effect in ASKABLE if effect in effects)


def restriction(allow: Sequence[str] = ("*",), **rules: Any) -> Policy:
    """The policy that takes away what ``rules`` say and leaves all else as it is: what another one
    is narrowed by."""
    return Policy(allow=allow, **{"redact": False, "ask_effects": (), **rules})
