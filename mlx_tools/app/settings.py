"""All settings: their types, limits, help texts, and rules for a project's file.

Settings are declared only here. Environment variables, options, error messages, `mlx-tools config
show` and the table in the documentation follow from it (`mlx_tools.app.setting_rows`). Defaults are
only in ``config/default.toml``.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from msgspec import Meta

from mlx_tools.app.setting_rows import (
    Section,
    Setting,
    SettingRow,
    find_declaration_fault,
    iter_rows,
)
from mlx_tools.backends import (
    BackendKind,
    RouteChoice,
    StrategyChoice,
    StyleChoice,
)
from mlx_tools.errors import UsageError
from mlx_tools.policy import (
    ASKABLE,
    RATES,
    check_effects,
    check_patterns,
    check_rates,
)


def _check_no_wildcards(value: Any) -> None:
    """Refuse texts with ``*``, because each text is compared as a whole."""
    for text in value:
        if "*" in text:
            raise UsageError(f"{text[:80]!r}: * is no wildcard here; write each name in full")


def _check_database(value: Any) -> None:
    from mlx_tools.app.hooks import find_store_kind

    find_store_kind(value)


def _check_server_addresses(value: Any) -> None:
    from mlx_tools.app.hooks import check_server_address

    for url in addresses(value):
        check_server_address(url)


def _check_server_options(value: Any) -> None:
    from mlx_tools.backends import check_options

    check_options(value)


_TOOL = "NAME, a glob such as notes_*, plugin:NAME or plugin:NAME/TOOL"
ValueRule = Mapping[str, Any]
"""Arguments of `Setting`: the allowed values in words, and a function that checks a value."""

TOOLS: ValueRule = {
    "allowed": f"a list of tools, each {_TOOL}",
    "test": lambda value: check_patterns(value, "tools"),
}
EFFECTS: ValueRule = {"allowed": f"a list of {', '.join(ASKABLE)}", "test": check_effects}
SESSION = "session"
"""The name that limits all tools together in a table of rates."""
RATE_TABLE: ValueRule = {
    "allowed": f"rates by tool, each tool {_TOOL}, each rate {RATES}",
    "test": lambda value: check_rates(value, "rates"),
}
ADDRESSES: ValueRule = {
    "allowed": "an address such as http://127.0.0.1:8080, or a list of several",
    "test": lambda value: _check_server_addresses(value),
}

Names = tuple[str, ...]

PROFILES = "profiles"
"""The table of profiles in the user's file. Each profile is a table of settings."""

RESERVED = frozenset({PROFILES})
"""Tables of the configuration file that are not sections of settings."""

OTHER_VARIABLES = frozenset(
    f"MLX_TOOLS_{name}" for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "STATE_DIR", "SUITES")
)
"""Variables with the prefix of settings that set folders and test suites instead."""


def addresses(value: str | Names | None) -> Names:
    """Return the value of ``backend.url`` as a tuple of addresses."""
    return (value,) if isinstance(value, str) else value or ()


# \Z, because $ would also match before a final newline. Lone surrogates come from environment
# variables that are not UTF-8, and cannot be written to a file.
Name = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]{1,500}\Z")]
Text = Annotated[str, Meta(max_length=100_000, pattern=r"^[^\ud800-\udfff]*\Z")]
Key = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,4000}\Z")]
Root = Annotated[str, Meta(pattern=r"^[^\x00\ud800-\udfff]+\Z")]
Program = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,99}\Z")]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]


class PolicySection(Section, frozen=True):
    """Rules for calls: those that may run, and those that need an approval."""

    allow: Annotated[
        Names | None,
        Setting(
            "allow",
            "The only tools that may be called; replaces the preset",
            **TOOLS,
            option="--tools,-t A,B",
            env="MLX_TOOLS_ALLOWED_TOOLS",
            group="policy",
        ),
    ]
    preset: Annotated[
        Name | None,
        Setting(
            "allow",
            "A named set of tools that may be called; replaces the list of tools",
            option="--preset NAME",
            group="policy",
            allowed="the name of a preset",
        ),
    ]
    deny: Annotated[
        Names,
        Setting(
            "add",
            "Tools that may never be called, even if another setting allows them; the lists of all "
            "files are combined",
            **TOOLS,
        ),
    ]
    ask: Annotated[
        Names,
        Setting(
            "add",
            "Tools that need an approval for every call; the lists of all files are combined",
            **TOOLS,
        ),
    ]
    ask_effects: Annotated[
        Names,
        Setting(
            "more",
            "Effects that need an approval: every call with one of them asks first; you can add "
            "network, and an empty list asks for no effect",
            **EFFECTS,
        ),
    ]
    local_only: Annotated[
        bool,
        Setting(
            "only_true",
            "Run no tool with the network effect, and use only a backend on loopback",
            option="--local-only",
            group="policy",
        ),
    ]
    dry_run: Annotated[
        bool,
        Setting(
            "only_true",
            "Tools that write, execute or use the network only report what they would do",
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
            "approves all except repaired and echoed calls; auto is ask at a terminal and never "
            "elsewhere",
            option="--approve WHEN",
            group="policy",
        ),
    ]
    rate_limits: Annotated[
        dict[str, str],
        Setting(
            "rarer",
            f"How often each tool may be called; the name {SESSION} limits all tools together in a "
            "session; the tables of all files are combined",
            **RATE_TABLE,
        ),
    ]
    network_after_read: Annotated[
        Literal["deny", "ask", "allow"],
        Setting(
            "stricter",
            "What to do with calls that may use the network after a tool has shown private data, "
            "such as your files",
        ),
    ]
    redact_paths: Annotated[
        bool,
        Setting("only_true", "Remove paths from the outputs of tools, in the same way as secrets"),
    ]


class ToolSettings(Section, frozen=True):
    """Folders, programs and functions for tools."""

    roots: Annotated[
        tuple[Root, ...],
        Setting(
            "never",
            "Folders that file tools may use: DIR or DIR:ro to read, DIR:rw to write too; "
            "DIR:ro:**/*.md allows only files that match the pattern",
            option="--root DIR[:rw]",
            group="policy",
            allowed="a list of folders, each DIR, DIR:ro or DIR:rw, with or without :PATTERN",
        ),
    ]
    commands: Annotated[
        tuple[Program, ...],
        Setting(
            "never",
            "More programs that run_command may run, with any arguments; naming one allows "
            "run_command, which asks before each run. They are searched in the system's folders",
            option="--commands A,B",
            group="policy",
            run="commands",
            allowed="a list of programs by name, without a folder",
        ),
    ]
    program_folders: Annotated[
        tuple[Root, ...],
        Setting(
            "never",
            "Folders of programs that you trust, searched after the system's and, on a Mac, before "
            "Homebrew's; a program below a :rw root is refused",
            allowed="a list of folders, each with its whole path",
        ),
    ]
    functions: Annotated[
        tuple[Root, ...],
        Setting(
            "never",
            "Python files with typed, documented functions that the model may call; a function "
            "without declared effects asks before each call",
            option="--functions FILE.py",
            group="policy",
            allowed="a list of Python files",
        ),
    ]
    cache: Annotated[
        Literal["off", "run", "session"],
        Setting(
            "stricter",
            "How long the result of a call that only reads is reused for the same call, unless "
            "something was changed since: for one question (run), or for the whole session",
            run="cache",
        ),
    ]


class LimitsSection(Section, frozen=True):
    """Limits of one question, one call and one completion."""

    max_iterations: Annotated[
        int,
        Meta(ge=1, le=1000),
        Setting(
            "lower",
            "Maximum number of completions for one question; after them the model must answer",
            option="--max-iterations N",
            env="MLX_TOOLS_MAX_ITERATIONS",
            group="run",
        ),
    ]
    total_timeout_ms: Annotated[
        Milliseconds,
        Setting(
            "lower",
            "Time limit for one question; time spent waiting for a person does not count",
            option="--timeout SECONDS",
            env="MLX_TOOLS_TOTAL_TIMEOUT_MS",
            group="run",
            scale=1000,
        ),
    ]
    tool_timeout_ms: Annotated[
        Milliseconds,
        Setting(
            "lower",
            "Time limit for one tool call, unless the tool sets a shorter one",
            env="MLX_TOOLS_TOOL_TIMEOUT_MS",
        ),
    ]
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Setting(
            "lower",
            "Maximum tokens of one completion; if unset, as many as fit: at most 16384, 8192 if "
            "the context is unknown, and 512 for a model that was measured as weak",
            option="--max-tokens N",
            group="writing",
        ),
    ]
    max_observation_chars: Annotated[
        Annotated[int, Meta(ge=100, le=10_000_000)] | None,
        Setting(
            "lower",
            "Maximum characters of a tool's output that the model sees; if unset, an eighth of the "
            "context, from 4000 to 32000 (8000 if the context is unknown)",
        ),
    ]


class Routing(Section, frozen=True):
    """The way in which a model gets the tools."""

    route: Annotated[
        RouteChoice,
        Setting(
            "never",
            "How the model gets the tools: through its server's own function calling (native), in "
            "the prompt (prompted), or (auto) native if that was tried and works",
            option="--route PATH",
            group="gateway",
        ),
    ]
    local_enabled: Annotated[
        bool,
        Setting(
            "only_false",
            "Whether a local model may get the tools in the prompt, without its server's function "
            "calling",
            env="ROUTING_LOCAL_ENABLED",
        ),
    ]


class BackendSettings(Section, frozen=True):
    """The place where the model runs."""

    kind: Annotated[
        BackendKind,
        Setting(
            "never",
            "Where the model runs: on a running server (completions), on a server started for the "
            "run (server), in this process (local), or on a server with its own function calling "
            "(native); auto takes the first of these: the address in url, a running gateway, a "
            "server on this machine, a new server with the embedded model",
            option="--backend KIND",
            group="backend",
        ),
    ]
    url: Annotated[
        str | Names | None,
        Setting(
            "never",
            "The server's address, with or without /v1; anthropic:URL and ollama:URL for servers "
            "with these interfaces; if one of several does not answer, the next is asked",
            **ADDRESSES,
            option="--url URL",
            group="backend",
        ),
    ]
    api_key: Annotated[
        Key | None,
        Setting(
            "never",
            "The key that is sent to these addresses (as a bearer token)",
            option="--api-key-file FILE",
            group="own",
            allowed="a key without spaces, or ${NAME} for what the variable NAME holds",
            secret=True,
        ),
    ]

    server_options: Annotated[
        Names,
        Setting(
            "never",
            "More options for a server that mlx-tools starts, such as --kv-bits, --draft-model, "
            "--adapter-path and --chat-template-args",
            allowed='a list of words, such as ["--kv-bits", "8"]',
            test=_check_server_options,
        ),
    ]


class Model(Section, frozen=True):
    """The model, and how it writes."""

    name: Annotated[
        Name | None,
        Setting(
            "never",
            "The model: the server's name for it, or the folder of a model",
            option="--model,-m NAME",
            group="backend",
            allowed="a name or a folder",
        ),
    ]
    prompt_style: Annotated[
        StyleChoice,
        Setting(
            "any",
            "How the model writes its messages; native is the form of its own template, auto the "
            "style that was measured as the best, else jsonl",
            option="--style STYLE",
            group="writing",
            run="style",
        ),
    ]
    chat_format: Annotated[
        Literal["auto", "chatml", "llama3", "gemma", "mistral", "phi", "plain"],
        Setting(
            "never",
            "The text before and after each turn; auto reads it from the model's own template",
            option="--chat-format FORMAT",
            group="writing",
        ),
    ]
    reasoning: Annotated[
        Literal["off", "auto"] | Annotated[int, Meta(ge=1, le=100_000)],
        Setting(
            "any",
            "Whether a reasoning model may think first, and for how many tokens",
            option="--reasoning off|auto|N",
            group="writing",
            run="reasoning",
        ),
    ]
    response_mode: Annotated[
        Literal["answer-first", "rag-first"],
        Setting(
            "any",
            "Whether the model answers from its own knowledge, or searches with tools first",
            run="response_mode",
        ),
    ]
    strategy: Annotated[
        StrategyChoice,
        Setting(
            "never",
            "When a completion must follow the protocol: once a message begins (auto), never "
            "(free), from the first character on (guided), or by a grammar in the sampler "
            "(grammar)",
            option="--strategy STRATEGY",
            group="writing",
            run="strategy",
        ),
    ]
    long_observations: Annotated[
        Literal["cut", "summary"],
        Setting(
            "any",
            "How to shorten an output longer than limits.max_observation_chars: keep its beginning "
            "and end (cut), or put a summary by the model between them (summary)",
            run="long_observations",
        ),
    ]
    context: Annotated[
        Annotated[int, Meta(ge=1, le=100_000_000)] | None,
        Setting(
            "any",
            "The size of the model's context in tokens; if unset, it comes from the server or from "
            "the model's files, else it is unknown",
            run="context",
        ),
    ]
    compact: Annotated[
        Literal["off", "auto"],
        Setting(
            "any",
            "When the model summarises the oldest turns: once four fifths of its context are used "
            "(auto), or only when you ask for it (off)",
            run="compact",
        ),
    ]
    temperature: Annotated[
        float,
        Meta(ge=0, le=2),
        Setting(
            "any",
            "Randomness of sampling; 0 always takes the likeliest token",
            option="--temperature T",
            group="writing",
            run="temperature",
        ),
    ]
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=4_294_967_295)] | None,
        Setting("any", "Seed of sampling", option="--seed N", group="writing", run="seed"),
    ]


class PromptSection(Section, frozen=True):
    """Texts of the prompt."""

    system: Annotated[
        Text | None,
        Setting(
            "never",
            "Who the model is; begins the system prompt, in place of the built-in text",
            option="--system,-s TEXT",
            group="writing",
            allowed="text",
            run="persona",
        ),
    ]
    project_context: Annotated[
        Text,
        Setting(
            "any",
            "A text about the project; the model gets it as data, not as instructions",
            allowed="text",
            run="project_context",
        ),
    ]


class ArtifactSettings(Section, frozen=True):
    """Stored outputs of tools."""

    keep: Annotated[
        Literal["when_needed", "always"],
        Setting(
            "stricter",
            "Which outputs of tools are stored in full: those that the model sees shortened, and "
            "all outputs of a run after a tool failed (when_needed), or every output (always)",
        ),
    ]
    keep_days: Annotated[
        int, Meta(ge=1, le=3650), Setting("lower", "Days after which stored outputs are deleted")
    ]


class GatewaySettings(Section, frozen=True):
    """The server for clients with OpenAI's or Anthropic's API."""

    host: Annotated[
        Name,
        Setting(
            "never",
            "The address that the gateway listens on; any except loopback needs a key",
            option="--host HOST",
            group="gateway",
            allowed="a host's name or address",
        ),
    ]
    port: Annotated[
        int,
        Meta(ge=0, le=65_535),
        Setting(
            "never",
            "The port that the gateway listens on; 0 takes a free one",
            option="--port N",
            group="gateway",
        ),
    ]
    api_key: Annotated[
        Key | None,
        Setting(
            "never",
            "The key that clients must send (as a bearer token or in x-api-key)",
            option="--api-key-file FILE",
            group="gateway",
            allowed="a key without spaces, or ${NAME} for what the variable NAME holds",
            secret=True,
        ),
    ]
    hosts: Annotated[
        Names,
        Setting(
            "never",
            "More host names that clients may use for the gateway; loopback is always allowed",
            option="--allow-host H",
            group="gateway",
            allowed="a list of host names, without wildcards",
            test=_check_no_wildcards,
        ),
    ]
    origins: Annotated[
        Names,
        Setting(
            "never",
            "Origins of web pages that may call the gateway, such as http://localhost:3000",
            option="--allow-origin O",
            group="gateway",
            allowed="a list of origins, without wildcards",
            test=_check_no_wildcards,
        ),
    ]
    concurrency: Annotated[
        int, Meta(ge=1, le=10_000), Setting("never", "Requests that are served at the same time")
    ]
    catalog: Annotated[
        Literal["whole", "compact"],
        Setting(
            "never",
            "How a client's tools are described to the model: in full, or in one line each",
        ),
    ]
    approvals: Annotated[
        Literal["person", "client"],
        Setting(
            "never",
            "Who approves the calls of a run that a client started: only a person, outside of that "
            "client (person), or the client too (client)",
        ),
    ]
    models: Annotated[
        dict[str, Name],
        Setting(
            "never",
            "More model names that clients may use, each with the model for it; `*` in a name "
            "matches any text, `default` is the first model",
            allowed='a table such as { "gpt-*" = "default" }',
        ),
    ]
    any_model: Annotated[
        bool, Setting("never", "Whether a gateway with one model accepts any name for it")
    ]


class Settings(Section, frozen=True):
    """All settings, each with a value."""

    enabled: Annotated[
        bool,
        Setting(
            "only_false",
            "Whether tools may run at all: with false, no tool runs",
            env="PLUGIN_MLX_TOOLS_ENABLED",
        ),
    ]
    profile: Annotated[
        Name | None,
        Setting(
            "never",
            "The profile to use: settings under a name in your file that override its other values",
            option="--profile NAME",
            group="own",
            allowed="the name of a profile",
        ),
    ]
    sessions: Annotated[
        Key | None,
        Setting(
            "never",
            "The address of a PostgreSQL database that stores sessions, instead of files",
            allowed="postgresql://USER@HOST/NAME",
            test=_check_database,
            secret=True,
        ),
    ]
    routing: Routing
    backend: BackendSettings
    model: Model
    prompt: PromptSection
    policy: PolicySection
    tools: ToolSettings
    limits: LimitsSection
    artifacts: ArtifactSettings
    gateway: GatewaySettings


@cache
def table() -> dict[str, SettingRow]:
    """Return all settings by key, first the core's in the order of the code."""
    rows = {row.key: row for row in iter_rows(Settings)}
    for name, section in load_plugin_sections().items():
        rows |= {row.key: row for row in iter_rows(section, f"{name}.")}
    return rows


@cache
def load_plugin_sections() -> dict[str, type[Section]]:
    """Return the plugins' tables of settings by name, without faulty ones."""
    return _read_sections()[0]


def list_left_out_tables() -> frozenset[str]:
    """Return the names of the plugins' tables that were left out as faulty."""
    return _read_sections()[1]


@cache
def _read_sections() -> tuple[dict[str, type[Section]], frozenset[str]]:
    """Return the plugins' tables by name, and the names of faulty ones.

    Faulty tables are reported.
    """
    from mlx_tools.app.hooks import plugins

    hooks, sections, owners = plugins(), dict[str, type[Section]](), dict[str, str]()
    rows = list(iter_rows(Settings))
    core_names = {row.key.partition(".")[0] for row in rows} | RESERVED
    left_out: set[str] = set()
    for plugin, offered in hooks.call("settings"):
        for name, section in offered.items():
            fault = find_section_fault(name, section, rows)
            if fault is None:
                sections[name], owners[name] = section, plugin
                rows += iter_rows(section, f"{name}.")
                continue
            if name in owners:
                fault += f", from {owners[name]}"
            hooks.refuse(plugin, f"its settings {name}: {fault}")
            left_out.add(str(name))
    return sections, frozenset(left_out - core_names)


def find_section_fault(name: Any, section: Any, rows: Iterable[SettingRow]) -> str | None:
    """Return why a plugin's table cannot be added to the settings, or None.

    Args:
        name: the name of the table, as the plugin returned it.
        section: the table, as the plugin returned it.
        rows: the settings so far.
    """
    if not isinstance(section, type) or not issubclass(section, Section):
        return "this is no Section"
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        return "this is no name of a table"
    rows = list(rows)
    if name in RESERVED or any(row.key.partition(".")[0] == name for row in rows):
        return "there is such a table already"
    if (fault := find_declaration_fault(section, name)) is not None:
        return fault
    taken_names = OTHER_VARIABLES | {row.env for row in rows}
    reserved = taken_names.union(*(row.setting.flags for row in rows))
    for row in iter_rows(section, f"{name}."):
        if row.setting.run:
            return f"{row.key} would be a field of a run"
        if taken := reserved & {row.env, *row.setting.flags}:
            return f"{row.key} would set what {', '.join(sorted(taken))} sets already"
        reserved |= {row.env, *row.setting.flags}
    return None
