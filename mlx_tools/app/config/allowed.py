"""The settings ``policy``: what may be called, what is asked first, what is taken out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mlx_tools.app.config.setting import (
    CALLS_TEXT,
    EFFECTS_TEXT,
    RATES_TEXT,
    TOOLS_TEXT,
    Name,
    Names,
    Section,
    Setting,
    a_rate,
    effects,
    patterns,
    rates,
    templates,
)
from mlx_tools.policy.rates import ALLOWED as RATES


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
