"""Every setting: its type, its bounds, what it means, and who may set it.

This table is the only place that knows them. Environment names, the help of the command line's
options, the errors, `mlx-tools config show` and the table in the documentation are made from it;
the default values stand in ``config/default.toml`` and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mlx_tools.app.config.allowed import PolicySection
from mlx_tools.app.config.limit_settings import LimitsSection
from mlx_tools.app.config.setting import (
    Key,
    Name,
    Section,
    Setting,
    Text,
    a_zone,
    an_address,
)
from mlx_tools.app.config.tool_settings import ToolSettings
from mlx_tools.app.config.web import Web


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
