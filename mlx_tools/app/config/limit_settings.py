"""The settings ``limits``: what a run may take."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mlx_tools.app.config.setting import Milliseconds, Section, Setting


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
