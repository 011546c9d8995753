"""Every setting: its type, its bounds, what it means, and who may set it.

This is the only place that knows them. Environment names, the help of the command line's options,
the errors, `mlx-tools config show` and the table in the documentation are made from it; the default
values stand in ``config/default.toml`` and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from mlx_tools.backends.transport import parse_address
from mlx_tools.errors import MlxToolsError, UsageError
from mlx_tools.policy import (
    ASKABLE,
    RATES,
    Rate,
    checked,
    checked_effects,
    checked_rates,
    checked_templates,
)

ProjectRule = Literal[
    "never", "any", "only_true", "only_false", "lower", "rarer", "stricter", "allow", "add", "more"
]
"""What a project's file may do with a setting. Such a file comes with a cloned repository, so it
can take power away and never give it.

``never``: not set it. ``any``: set it, it gives no power. ``only_true`` and ``only_false``: switch
it that way. ``lower``: make a number smaller. ``rarer``: add rates, and make
those that are there lower. ``stricter``: move towards the first of the choices.
``allow``: name some of what was allowed before. ``add``: add to the list. ``more``: name all that
was in the list before, and more.
"""

Group = Literal["", "backend", "writing", "mode", "policy", "run"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a setting has besides its type.

    ``project`` says what a project's file may do with it, ``help`` what it means. ``option`` is its
    option on the command line with what stands for the value, which times ``scale`` is the
    setting's; ``group`` names the options that commands take together. ``env`` is its environment
    variable, by default ``MLX_TOOLS_<SECTION>_<KEY>``. ``allowed`` says in words what its type
    cannot say. ``run`` is the field of `RunSettings` that takes the setting's value.
    """

    project: ProjectRule
    help: str
    option: str = ""
    group: Group = ""
    scale: int = 1
    env: str = ""
    allowed: str = ""
    secret: bool = False
    run: str = ""

    @property
    def flag(self) -> str:
        """The option, empty where there is none."""
        return self.option.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a type cannot test: ``test`` raises an `MlxToolsError`. ``allowed`` says it in words."""

    allowed: str
    test: Callable[[Any], object]


def _domains(value: Any) -> object:
    from mlx_tools.toolbox.urls import UrlRefused, read_domain

    try:
        return [read_domain(text) for text in value]
    except UrlRefused as error:
        raise UsageError(str(error)) from None


_TOOL = "NAME, a glob such as notes_*, plugin:NAME or plugin:NAME/TOOL"
TOOLS = Checked(f"a list of tools, each {_TOOL}", lambda value: checked(value, "tools"))
EFFECTS = Checked(f"a list of {', '.join(ASKABLE)}", checked_effects)
CALLS = Checked(
    f"a list of calls, each {_TOOL}, with ARGUMENT=VALUE behind it or not",
    lambda value: checked_templates(value, "calls"),
)
RATE = Checked(RATES, Rate.parse)
RATE_TABLE = Checked(
    f"rates by tool, each tool {_TOOL}, each rate {RATES}",
    lambda value: checked_rates(value, "rates"),
)
ADDRESS = Checked("an address such as http://127.0.0.1:8080", parse_address)
DOMAINS = Checked("a list of domains such as example.org; each means all names below it", _domains)

Names = tuple[str, ...]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,500}$")]
Text = Annotated[str, StringConstraints(max_length=100_000)]
Key = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,4000}$")]
Root = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$")]
Program = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,99}$")]
Milliseconds = Annotated[int, Field(ge=1, le=86_400_000)]


class Section(BaseModel):
    """A table of the configuration file. Types are exact: "5" is not 5."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PolicySection(Section):
    allow: Annotated[
        Names | None,
        TOOLS,
        Setting(
            "allow",
            "The tools that may be called, exactly these; replaces the preset",
            option="--tools A,B",
            env="MLX_TOOLS_ALLOWED_TOOLS",
            group="policy",
        ),
    ] = None
    preset: Annotated[
        Name | None,
        Setting(
            "allow",
            "A named set of tools that may be called; replaces the list",
            option="--preset NAME",
            group="policy",
            allowed="the name of a preset",
        ),
    ] = None
    deny: Annotated[
        Names,
        TOOLS,
        Setting("add", "Tools that may not be called, whatever else allows them; adds up"),
    ]
    ask: Annotated[
        Names, TOOLS, Setting("add", "Tools that need an approval for every call; adds up")
    ]
    ask_effects: Annotated[
        Names,
        EFFECTS,
        Setting(
            "more",
            "Effects that ask a person before every call that has one of them, whichever tool it "
            "is; network may be added, and an empty list asks about none",
        ),
    ]
    standing_approvals: Annotated[
        Names,
        CALLS,
        Setting(
            "never",
            "Calls that need no approval for their effects: a tool, or a tool with some of its "
            'arguments, such as file_access operation=write "path=drafts/*"; never for one that '
            "was repaired or echoed",
        ),
    ]
    local_only: Annotated[
        bool,
        Setting(
            "only_true",
            "No tool with the network effect runs, and the backend is on loopback",
            option="--local-only",
            group="policy",
        ),
    ]
    dry_run: Annotated[
        bool,
        Setting(
            "only_true",
            "Tools that write, execute or use the network report what they would do, and do not",
            option="--dry-run",
            env="MLX_TOOLS_DRY_RUN",
            group="policy",
        ),
    ]
    approve: Annotated[
        Literal["never", "auto", "ask", "always"],
        Setting(
            "stricter",
            "Calls that need approval: never pauses the run, ask asks at the terminal, always "
            "approves all but repaired and echoed calls; auto is ask at a terminal and never "
            "elsewhere",
            option="--approve WHEN",
            group="policy",
        ),
    ]
    rate_limits: Annotated[
        dict[str, str],
        RATE_TABLE,
        Setting("rarer", "How often each tool may be called, by tool; adds up"),
    ]
    session_rate_limit: Annotated[
        str | None,
        RATE,
        Setting("rarer", "How often all tools together may be called in a session"),
    ] = None
    network_after_read: Annotated[
        Literal["deny", "ask", "allow"],
        Setting(
            "stricter",
            "What becomes of calls that may use the network once a tool has shown private data, "
            "such as your files",
        ),
    ]
    redact: Annotated[
        bool, Setting("only_true", "Secrets of known kinds are taken out of what tools return")
    ]
    redact_paths: Annotated[
        bool, Setting("only_true", "Paths are taken out of what tools return, too")
    ]


class WebSettings(Section):
    domains: Annotated[
        Names,
        DOMAINS,
        Setting("never", "The only domains that fetch_url asks; empty: any on the internet"),
    ]


class ToolSettings(Section):
    roots: Annotated[
        tuple[Root, ...],
        Setting(
            "never",
            "Folders that file tools may see: DIR or DIR:ro, or DIR:rw",
            option="--root DIR[:rw]",
            group="policy",
            allowed="a list of folders, each DIR, DIR:ro or DIR:rw",
        ),
    ]
    disabled: Annotated[Names, TOOLS, Setting("add", "Tools that are switched off; adds up")]
    commands: Annotated[
        tuple[Program, ...],
        Setting(
            "never",
            "Programs that run_command may run besides its own, with any arguments; they are "
            "looked for in the system's folders alone",
            allowed="a list of programs by name, without a folder",
        ),
    ]
    notes: Annotated[
        Root | None,
        Setting(
            "never",
            "The folder of the notes; without it, notes in the data folder",
            allowed="a folder",
        ),
    ] = None
    cache: Annotated[
        Literal["off", "run", "session"],
        Setting(
            "stricter",
            "How long what a call that only reads was answered serves the same call again, if "
            "nothing was changed since: for one question, or for all of a session",
            run="cache",
        ),
    ]


class LimitsSection(Section):
    max_iterations: Annotated[
        int,
        Field(ge=1, le=1000),
        Setting(
            "lower",
            "Completions in one run; then the model must answer",
            option="--max-iterations N",
            env="MLX_TOOLS_MAX_ITERATIONS",
            group="run",
        ),
    ]
    max_format_errors: Annotated[
        int,
        Field(ge=1, le=100),
        Setting("lower", "Unreadable completions in a row before the run stops"),
    ]
    total_timeout_ms: Annotated[
        Milliseconds,
        Setting(
            "lower",
            "Time for the whole run; time waiting for a person does not count",
            option="--timeout SECONDS",
            env="MLX_TOOLS_TOTAL_TIMEOUT_MS",
            group="run",
            scale=1000,
        ),
    ]
    completion_timeout_ms: Annotated[Milliseconds, Setting("lower", "Time for one completion")]
    idle_timeout_ms: Annotated[Milliseconds, Setting("lower", "Time a server may be silent")]
    tool_timeout_ms: Annotated[
        Milliseconds,
        Setting(
            "lower",
            "Time for one tool call, where the tool sets no shorter one",
            env="MLX_TOOLS_TOOL_TIMEOUT_MS",
        ),
    ]
    max_tokens: Annotated[
        int,
        Field(ge=1, le=1_000_000),
        Setting("lower", "Tokens of one completion", option="--max-tokens N", group="writing"),
    ]
    max_argument_bytes: Annotated[
        int, Field(ge=1, le=100_000_000), Setting("lower", "Size of one call's arguments as JSON")
    ]
    max_observation_chars: Annotated[
        int,
        Field(ge=100, le=10_000_000),
        Setting("lower", "Characters of a tool's output the model sees"),
    ]


class Routing(Section):
    local_enabled: Annotated[
        bool,
        Setting(
            "only_false",
            "Whether questions may go to a local model by way of a prompt",
            env="ROUTING_LOCAL_ENABLED",
        ),
    ]


class BackendSettings(Section):
    kind: Annotated[
        Literal["auto", "completions", "server", "local", "native"],
        Setting(
            "never",
            "Where the model runs: on a completions server that is up, on one that is started for "
            "the run, in this process (local), or (auto) at the named address, else at "
            "127.0.0.1:8080 where a server answers, else the embedded model is started",
            option="--backend KIND",
            group="backend",
        ),
    ]
    url: Annotated[
        str | None,
        ADDRESS,
        Setting(
            "never",
            "The completions server's address, with or without /v1",
            option="--url URL",
            group="backend",
        ),
    ] = None
    api_key: Annotated[
        Key | None,
        Field(repr=False),
        Setting(
            "never",
            "Sent to that address as a bearer token",
            allowed="a key without spaces",
            secret=True,
        ),
    ] = None


class Model(Section):
    name: Annotated[
        Name | None,
        Setting(
            "never",
            "The model: the server's name for it, or a folder that holds one",
            option="--model NAME",
            group="backend",
            allowed="a name or a folder",
        ),
    ] = None
    prompt_style: Annotated[
        Literal["auto", "jsonl", "markdown-json", "xml", "native"],
        Setting(
            "any",
            "How the model is told to write its messages; native as its own template has it, auto "
            "as measured, else jsonl",
            option="--style STYLE",
            group="writing",
            run="style",
        ),
    ]
    chat_format: Annotated[
        Literal["auto", "chatml", "llama3", "gemma", "mistral", "phi", "plain"],
        Setting(
            "never",
            "The delimiters of turns; auto reads them from the model's own template",
            option="--chat-format FORMAT",
            group="writing",
        ),
    ]
    reasoning: Annotated[
        Literal["off", "auto"] | Annotated[int, Field(ge=1, le=100_000)],
        Setting(
            "any",
            "Whether a model that can think may, and for how many tokens",
            option="--reasoning off|auto|N",
            group="mode",
            run="reasoning",
        ),
    ]
    response_mode: Annotated[
        Literal["answer-first", "rag-first"],
        Setting(
            "any",
            "Whether the model answers what it knows, or looks things up first",
            option="--response-mode MODE",
            group="mode",
            run="response_mode",
        ),
    ]
    strategy: Annotated[
        Literal["auto", "free", "guided", "grammar"],
        Setting(
            "never",
            "How a completion is held to the protocol: where a message begins (auto), never "
            "(free), from its first character on (guided), or by a mask of the sampler (grammar)",
            option="--strategy STRATEGY",
            group="writing",
            run="strategy",
        ),
    ]
    long_observations: Annotated[
        Literal["cut", "summary"],
        Setting(
            "any",
            "What the model is shown of an output of more than limits.max_observation_chars: head "
            "and tail (cut), or between them a summary that it is asked for (summary)",
            run="long_observations",
        ),
    ]
    context: Annotated[
        Annotated[int, Field(ge=1, le=100_000_000)] | None,
        Setting(
            "any",
            "How many tokens the model can take; without it as its server or its files say, and "
            "where neither does it is unknown",
            run="context",
        ),
    ] = None
    compact: Annotated[
        Literal["off", "auto"],
        Setting(
            "any",
            "Whether the model sums up the oldest turns by itself once four fifths of its context "
            "are used (auto), or only where that is asked for (off)",
            run="compact",
        ),
    ]
    temperature: Annotated[
        float,
        Field(ge=0, le=2),
        Setting(
            "any",
            "Randomness of sampling; 0 always takes the likeliest token",
            option="--temperature T",
            group="writing",
            run="temperature",
        ),
    ]
    seed: Annotated[
        Annotated[int, Field(ge=0, le=4_294_967_295)] | None,
        Setting("any", "Seed of sampling", option="--seed N", group="writing", run="seed"),
    ] = None


class PromptSection(Section):
    persona: Annotated[
        Text | None,
        Setting(
            "never",
            "Who the model is told to be, in place of the built-in words",
            allowed="text",
            run="persona",
        ),
    ] = None
    project_context: Annotated[
        Text,
        Setting(
            "any",
            "What the model is told of the project; never read as instructions",
            allowed="text",
            run="project_context",
        ),
    ]
    catalog_tokens: Annotated[
        int,
        Field(ge=0, le=1_000_000),
        Setting(
            "lower",
            "Tokens that the tools may take in the prompt; past it those that match the question "
            "are shown, and tool_search finds the others",
            run="catalog_budget",
        ),
    ]


class ArtifactSettings(Section):
    keep: Annotated[
        Literal["when_needed", "always"],
        Setting(
            "stricter",
            "Which tools' outputs are stored whole: those that the model cannot see whole and all "
            "of a run in which a tool failed, or always all of them",
        ),
    ]
    keep_days: Annotated[
        int, Field(ge=1, le=3650), Setting("lower", "Days after which stored outputs are deleted")
    ]


class Settings(Section):
    """All settings, each with a value."""

    enabled: Annotated[
        bool,
        Setting(
            "only_false",
            "The switch of the whole program: with false, no tool runs",
            env="PLUGIN_MLX_TOOLS_ENABLED",
        ),
    ]
    routing: Routing
    backend: BackendSettings
    model: Model
    prompt: PromptSection
    policy: PolicySection
    tools: ToolSettings
    web: WebSettings
    limits: LimitsSection
    artifacts: ArtifactSettings


# --- the settings as rows: how each is named, read from text, checked and described -------------

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,9})?", re.ASCII)
_NOUNS = {"integer": "an integer", "number": "a number"}


@dataclass(frozen=True)
class SettingRow:
    """One setting. ``key`` is its dotted name in a file."""

    key: str
    type: Any
    setting: Setting
    checked: Checked | None = None

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return self.setting.env or "MLX_TOOLS_" + self.key.upper().replace(".", "_")

    @property
    def optional(self) -> bool:
        """Whether it may be without a value."""
        return self.is_a("null")

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The words it may be, empty where it is no choice."""
        return tuple(word for part in self._parts for word in part.get("enum", ()))

    def is_a(self, kind: str) -> bool:
        """Whether its values may be of this type of JSON Schema's."""
        return any(part["type"] == kind for part in self._parts)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    @cached_property
    def _parts(self) -> list[dict[str, Any]]:
        schema = self._adapter.json_schema()
        return schema.get("anyOf", [schema])  # type: ignore[no-any-return]

    def check(self, value: Any) -> Any:
        """The value as the setting holds it. Raises ValueError where it is not allowed."""
        if isinstance(value, list) and self.is_a("array"):
            value = tuple(value)
        if value is None:
            raise ValueError
        try:
            value = self._adapter.validate_python(value, strict=True)
            if self.checked is not None:
                self.checked.test(value)
        except (ValidationError, MlxToolsError):
            raise ValueError from None
        return value

    def read(self, text: str, *, scale: int = 1) -> Any:
        """The value that a variable or an option writes. Raises ValueError as `check` does.

        An empty text is an empty list or table, or no value where the setting may be without one.
        """
        if self.is_a("object"):
            return self.check(_pairs(text))
        if self.is_a("array"):
            return self.check([item for part in text.split(",") if (item := part.strip())])
        text = text.strip()
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
        """What it may be, in words."""
        if self.checked is not None or self.setting.allowed:
            return self.checked.allowed if self.checked is not None else self.setting.allowed
        words = [*self.choices, *(("true", "false") if self.is_a("boolean") else ())]
        for part in self._parts:
            if part["type"] in _NOUNS:
                noun = _NOUNS[part["type"] if scale == 1 else "number"]
                low, high = (f"{part[end] / scale:.12g}" for end in ("minimum", "maximum"))
                words.append(f"{noun} from {low} to {high}")
        return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


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


def _rows(model: type[BaseModel], prefix: str) -> list[SettingRow]:
    rows: list[SettingRow] = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            rows += _rows(kind, f"{prefix}{name}.")
            continue
        own = [one for one in field.metadata if not isinstance(one, Setting | Checked)]
        setting = next(one for one in field.metadata if isinstance(one, Setting))
        test = next((one for one in field.metadata if isinstance(one, Checked)), None)
        bounded: Any = Annotated[(kind, *own)] if own else kind
        rows.append(SettingRow(f"{prefix}{name}", bounded, setting, test))
    return rows
