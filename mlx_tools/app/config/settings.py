"""Every setting: its type, its bounds, what it means, and who may set it.

This table is the only place that knows them. Environment names, the help of the command line's
options, the errors, `mlx-tools config show` and the table in the documentation are made from it;
the default values stand in ``config/default.toml`` and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from mlx_tools.app.config.setting import (
    CALLS_TEXT,
    EFFECTS_TEXT,
    RATES_TEXT,
    TOOLS_TEXT,
    Key,
    Milliseconds,
    Name,
    Names,
    Program,
    Root,
    Section,
    Setting,
    Text,
    a_rate,
    a_zone,
    an_absolute_path,
    an_address,
    effects,
    patterns,
    rates,
    templates,
)
from mlx_tools.errors import UsageError
from mlx_tools.policy import RATES


class PolicySection(Section):
    allow: Annotated[
        Names | None,
        Field(description="The tools that may be called, exactly these; replaces the preset"),
        Setting(
            "allow",
            env="MLX_TOOLS_ALLOWED_TOOLS",
            flag="--tools",
            group="policy",
            metavar="A,B",
            allowed=TOOLS_TEXT,
            check=patterns,
        ),
    ] = None
    preset: Annotated[
        Name | None,
        Field(description="A named set of tools that may be called; replaces the list"),
        Setting(
            "allow", flag="--preset", group="policy", metavar="NAME", allowed="the name of a preset"
        ),
    ] = None
    deny: Annotated[
        Names,
        Field(description="Tools that may not be called, whatever else allows them; adds up"),
        Setting("add", allowed=TOOLS_TEXT, check=patterns),
    ]
    ask: Annotated[
        Names,
        Field(description="Tools that need an approval for every call; adds up"),
        Setting("add", allowed=TOOLS_TEXT, check=patterns),
    ]
    ask_effects: Annotated[
        Names,
        Field(
            description="Effects that ask a person before every call that has one of them, "
            "whichever tool it is; network may be added, and an empty list asks about none"
        ),
        Setting("more", allowed=EFFECTS_TEXT, check=effects),
    ]
    standing_approvals: Annotated[
        Names,
        Field(
            description="Calls that need no approval for their effects: a tool, or a tool with "
            'some of its arguments, such as file_access operation=write "path=drafts/*"; never '
            "for one that was repaired or echoed"
        ),
        Setting("never", allowed=CALLS_TEXT, check=templates),
    ]
    local_only: Annotated[
        bool,
        Field(description="No tool with the network effect runs, and the backend is on loopback"),
        Setting("only_true", flag="--local-only", group="policy"),
    ]
    dry_run: Annotated[
        bool,
        Field(
            description="Tools that write, execute or use the network report what they would do, "
            "and do not"
        ),
        Setting("only_true", env="MLX_TOOLS_DRY_RUN", flag="--dry-run", group="policy"),
    ]
    approve: Annotated[
        Literal["never", "auto", "ask", "always"],
        Field(
            description="Calls that need approval: never pauses the run, ask asks at the "
            "terminal, always approves all but repaired and echoed calls; auto is ask at a "
            "terminal and never elsewhere"
        ),
        Setting("stricter", flag="--approve", group="policy", metavar="WHEN"),
    ]
    rate_limits: Annotated[
        dict[str, str],
        Field(description="How often each tool may be called, by tool; adds up"),
        Setting("rarer", allowed=RATES_TEXT, check=rates),
    ]
    session_rate_limit: Annotated[
        str | None,
        Field(description="How often all tools together may be called in a session"),
        Setting("rarer", allowed=RATES, check=a_rate),
    ] = None
    network_after_read: Annotated[
        Literal["deny", "ask", "allow"],
        Field(
            description="What becomes of calls that may use the network once a tool has shown "
            "private data, such as your files"
        ),
        Setting("stricter"),
    ]
    redact: Annotated[
        bool,
        Field(description="Secrets of known kinds are taken out of what tools return"),
        Setting("only_true"),
    ]
    redact_paths: Annotated[
        bool,
        Field(description="Paths are taken out of what tools return, too"),
        Setting("only_true"),
    ]


_DOMAINS = "a list of domains such as example.org; each means all names below it too"
_ENGINES = "a list of duckduckgo, brave, mojeek, startpage, yahoo and wikipedia"


def _domains(value: Any) -> object:
    from mlx_tools.toolbox.urls import UrlRefused, read_domain

    try:
        return [read_domain(text) for text in value]
    except UrlRefused as error:
        raise UsageError(str(error)) from None


def _engines(value: Any) -> object:
    from mlx_tools.toolbox.web_tools import ENGINES

    if not value or not set(value) <= set(ENGINES):
        raise UsageError(f"search engines: {_ENGINES}")
    return value


class Web(Section):
    timeout_ms: Annotated[
        Milliseconds,
        Field(description="Time for one page or one search, where the call has not less"),
        Setting("lower"),
    ]
    max_kb: Annotated[
        int,
        Field(
            ge=1,
            le=20_000,
            description="Kilobytes of a page that are read, before and after unpacking",
        ),
        Setting("lower"),
    ]
    domains: Annotated[
        Names,
        Field(description="The only domains that fetch_url asks; empty: any on the internet"),
        Setting("never", allowed=_DOMAINS, check=_domains),
    ]
    blocked_domains: Annotated[
        Names,
        Field(description="Domains that fetch_url never asks; adds up"),
        Setting("add", allowed=_DOMAINS, check=_domains),
    ]
    search_engines: Annotated[
        Names,
        Field(
            description="Whom web_search asks, one after the other: the next one only where those "
            "before it found nothing"
        ),
        Setting("never", allowed=_ENGINES, check=_engines),
    ]


class ToolSettings(Section):
    roots: Annotated[
        tuple[Root, ...],
        Field(description="Folders that file tools may see: DIR or DIR:ro, or DIR:rw"),
        Setting(
            "never",
            flag="--root",
            group="policy",
            metavar="DIR[:rw]",
            allowed="a list of folders, each DIR, DIR:ro or DIR:rw",
        ),
    ]
    disabled: Annotated[
        Names,
        Field(description="Tools that are switched off; adds up"),
        Setting("add", allowed=TOOLS_TEXT, check=patterns),
    ]
    commands: Annotated[
        tuple[Program, ...],
        Field(
            description="Programs that run_command may run besides its own, with any arguments; "
            "they are looked for in the system's folders alone"
        ),
        Setting("never", allowed="a list of programs by name, without a folder"),
    ]
    notes: Annotated[
        Root | None,
        Field(description="The folder of the notes; without it, notes in the data folder"),
        Setting("never", allowed="a folder"),
    ] = None
    entry_points: Annotated[
        bool,
        Field(description="Whether tools of installed packages (mlx_tools.tools) are loaded"),
        Setting("only_false"),
    ]
    folder: Annotated[
        Name | None,
        Field(
            description="The folder whose folders are tools; without it tools/ where data is kept"
        ),
        Setting("never", allowed="an absolute path, or one from ~", check=an_absolute_path),
    ] = None
    cache: Annotated[
        Literal["off", "run", "session"],
        Field(
            description="How long what a call that only reads was answered serves the same call "
            "again, if nothing was changed since: for one question, or for all of a session"
        ),
        Setting("stricter", flag="--cache", group="outputs", run="cache", metavar="HOW_LONG"),
    ]


class LimitsSection(Section):
    max_iterations: Annotated[
        int,
        Field(ge=1, le=1000, description="Completions in one run; then the model must answer"),
        Setting(
            "lower",
            env="MLX_TOOLS_MAX_ITERATIONS",
            flag="--max-iterations",
            group="run",
            metavar="N",
        ),
    ]
    max_format_errors: Annotated[
        int,
        Field(ge=1, le=100, description="Unreadable completions in a row before the run stops"),
        Setting("lower"),
    ]
    total_timeout_ms: Annotated[
        Milliseconds,
        Field(description="Time for the whole run; time waiting for a person does not count"),
        Setting(
            "lower",
            env="MLX_TOOLS_TOTAL_TIMEOUT_MS",
            flag="--timeout",
            group="run",
            metavar="SECONDS",
            scale=1000,
        ),
    ]
    completion_timeout_ms: Annotated[
        Milliseconds, Field(description="Time for one completion"), Setting("lower")
    ]
    idle_timeout_ms: Annotated[
        Milliseconds, Field(description="Time a server may be silent"), Setting("lower")
    ]
    tool_timeout_ms: Annotated[
        Milliseconds,
        Field(description="Time for one tool call, where the tool sets no shorter one"),
        Setting("lower", env="MLX_TOOLS_TOOL_TIMEOUT_MS"),
    ]
    max_tokens: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="Tokens of one completion"),
        Setting("lower", flag="--max-tokens", group="writing", metavar="N"),
    ]
    max_argument_bytes: Annotated[
        int,
        Field(ge=1, le=100_000_000, description="Size of one call's arguments as JSON"),
        Setting("lower"),
    ]
    max_observation_chars: Annotated[
        int,
        Field(ge=100, le=10_000_000, description="Characters of a tool's output the model sees"),
        Setting("lower"),
    ]
    max_calls_per_turn: Annotated[
        int,
        Field(ge=1, le=100, description="Calls the model may make in one turn"),
        Setting("lower"),
    ]
    parallel: Annotated[
        int, Field(ge=1, le=4, description="Calls that run at the same time"), Setting("lower")
    ]


class Routing(Section):
    local_enabled: Annotated[
        bool,
        Field(description="Whether questions may go to a local model by way of a prompt"),
        Setting("only_false", env="ROUTING_LOCAL_ENABLED"),
    ]


class BackendSettings(Section):
    kind: Annotated[
        Literal["auto", "completions", "server", "local", "native"],
        Field(
            description="Where the model runs: on a completions server that is up, on one that is "
            "started for the run, in this process (local), or (auto) at the named address, else at "
            "127.0.0.1:8080 where a server answers, else the embedded model is started"
        ),
        Setting(
            "never",
            flag="--backend",
            group="backend",
            metavar="KIND",
            available=("auto", "completions", "server", "local"),
        ),
    ]
    url: Annotated[
        str | None,
        Field(description="The completions server's address, with or without /v1"),
        Setting(
            "never",
            flag="--url",
            group="backend",
            metavar="URL",
            allowed="an address such as http://127.0.0.1:8080",
            check=an_address,
        ),
    ] = None
    api_key: Annotated[
        Key | None,
        Field(description="Sent to that address as a bearer token", repr=False),
        Setting("never", allowed="a key without spaces", secret=True),
    ] = None


class Model(Section):
    name: Annotated[
        Name | None,
        Field(description="The model: the server's name for it, or a folder that holds one"),
        Setting(
            "never", flag="--model", group="backend", metavar="NAME", allowed="a name or a folder"
        ),
    ] = None
    prompt_style: Annotated[
        Literal["auto", "jsonl", "markdown-json", "xml", "native"],
        Field(
            description="How the model is told to write its messages; native as its own template "
            "has it, auto as measured, else jsonl"
        ),
        Setting("any", flag="--style", group="writing", run="style", metavar="STYLE"),
    ]
    chat_format: Annotated[
        Literal["auto", "chatml", "llama3", "gemma", "mistral", "phi", "plain"],
        Field(description="The delimiters of turns; auto reads them from the model's own template"),
        Setting("never", flag="--chat-format", group="writing", metavar="FORMAT"),
    ]
    reasoning: Annotated[
        Literal["off", "auto"] | Annotated[int, Field(ge=1, le=100_000)],
        Field(description="Whether a model that can think may, and for how many tokens"),
        Setting("any", flag="--reasoning", group="writing", run="reasoning", metavar="off|auto|N"),
    ]
    response_mode: Annotated[
        Literal["answer-first", "rag-first"],
        Field(description="Whether the model answers what it knows, or looks things up first"),
        Setting(
            "any", flag="--response-mode", group="writing", run="response_mode", metavar="MODE"
        ),
    ]
    strategy: Annotated[
        Literal["auto", "free", "guided", "grammar"],
        Field(
            description="How a completion is held to the protocol: where a message begins (auto), "
            "never (free), from its first character on (guided), or by a mask of the sampler "
            "(grammar)"
        ),
        Setting(
            "never",
            flag="--strategy",
            group="writing",
            run="strategy",
            metavar="STRATEGY",
            available=("auto", "free", "guided", "grammar"),
        ),
    ]
    long_observations: Annotated[
        Literal["cut", "summary"],
        Field(
            description="What the model is shown of an output of more than "
            "limits.max_observation_chars: head and tail (cut), or between them a summary that it "
            "is asked for (summary)"
        ),
        Setting(
            "any",
            flag="--long-observations",
            group="outputs",
            run="long_observations",
            metavar="cut|summary",
        ),
    ]
    context: Annotated[
        Annotated[int, Field(ge=1, le=100_000_000)] | None,
        Field(
            description="How many tokens the model can take; without it as its server or its files "
            "say, and where neither does it is unknown"
        ),
        Setting("any", run="context"),
    ] = None
    compact: Annotated[
        Literal["off", "auto"],
        Field(
            description="Whether the model sums up the oldest turns by itself once four fifths of "
            "its context are used (auto), or only where that is asked for (off)"
        ),
        Setting("any", run="compact"),
    ]
    temperature: Annotated[
        float,
        Field(ge=0, le=2, description="Randomness of sampling; 0 always takes the likeliest token"),
        Setting("any", flag="--temperature", group="writing", run="temperature", metavar="T"),
    ]
    seed: Annotated[
        Annotated[int, Field(ge=0, le=4_294_967_295)] | None,
        Field(description="Seed of sampling"),
        Setting("any", flag="--seed", group="writing", run="seed", metavar="N"),
    ] = None


class PromptSection(Section):
    persona: Annotated[
        Text | None,
        Field(description="Who the model is told to be, in place of the built-in words"),
        Setting("never", allowed="text", run="persona"),
    ] = None
    project_context: Annotated[
        Text,
        Field(description="What the model is told of the project; never read as instructions"),
        Setting("any", allowed="text", run="project_context"),
    ]
    catalog_tokens: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            description="Tokens that the tools may take in the prompt; past it those that match "
            "the question are shown, and tool_search finds the others",
        ),
        Setting("lower", run="catalog_budget"),
    ]


class ArtifactSettings(Section):
    keep: Annotated[
        Literal["when_needed", "always"],
        Field(
            description="Which tools' outputs are stored whole: those that the model cannot see "
            "whole and all of a run in which a tool failed, or always all of them"
        ),
        Setting("stricter"),
    ]
    keep_days: Annotated[
        int,
        Field(ge=1, le=3650, description="Days after which stored outputs are deleted"),
        Setting("lower"),
    ]
    max_mb: Annotated[
        int,
        Field(
            ge=1,
            le=100_000,
            description="Megabytes that the stored outputs of one session may take; the oldest go",
        ),
        Setting("lower"),
    ]


class ScheduleSection(Section):
    timezone: Annotated[
        str | None,
        Field(description="The time zone of jobs that name none; without it, this machine's"),
        Setting(
            "never",
            flag="--timezone",
            metavar="ZONE",
            allowed="an IANA name such as Europe/Berlin",
            check=a_zone,
        ),
    ] = None


class Settings(Section):
    """All settings, each with a value."""

    enabled: Annotated[
        bool,
        Field(description="The switch of the whole program: with false, no tool runs"),
        Setting("only_false", env="PLUGIN_MLX_TOOLS_ENABLED"),
    ]
    routing: Routing
    backend: BackendSettings
    model: Model
    prompt: PromptSection
    policy: PolicySection
    tools: ToolSettings
    web: Web
    limits: LimitsSection
    artifacts: ArtifactSettings
    schedule: ScheduleSection = ScheduleSection()
