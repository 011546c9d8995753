"""What a setting is, and the types that several settings have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from mlx_tools.backends import parse_address
from mlx_tools.errors import UsageError
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


Group = Literal["", "backend", "writing", "policy", "outputs", "run"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a setting has besides its type.

    ``env`` is its environment variable, None for ``MLX_TOOLS_<SECTION>_<KEY>``; ``flag`` is its
    option on the command line, whose value times ``scale`` is the setting's. ``allowed`` says in
    words what its type cannot say, and ``check`` tests what its type cannot test (raising an
    `MlxToolsError`). Of several choices, ``available`` are those that this version can do.
    ``metavar`` stands for the option's value in help, ``group`` names the options that commands
    take together. ``run`` is the field of `RunSettings` that takes the setting's value.
    """

    project: ProjectRule
    env: str | None = None
    flag: str | None = None
    scale: int = 1
    allowed: str = ""
    check: Callable[[Any], object] | None = None
    secret: bool = False
    available: tuple[str, ...] = ()
    metavar: str = ""
    group: Group = ""
    run: str = ""


def patterns(value: Any) -> object:
    return value is None or checked(value, "tools")


def effects(value: Any) -> object:
    return checked_effects(value)


def templates(value: Any) -> object:
    return checked_templates(value, "calls")


def an_address(value: Any) -> object:
    return value is None or parse_address(value)


def an_absolute_path(value: Any) -> object:
    try:
        if value is None or Path(value).expanduser().is_absolute():
            return value
    except RuntimeError:  # ~NAME, and there is nobody of that name
        pass
    raise UsageError(f"{value} is not absolute")


def rates(value: Any) -> object:
    return checked_rates(value, "rates")


def a_rate(value: Any) -> object:
    return value is None or Rate.parse(value)


def a_zone(value: Any) -> object:
    from mlx_tools.toolbox.clock import zone_of

    return value is None or zone_of(value)


Names = tuple[str, ...]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,500}$")]
Text = Annotated[str, StringConstraints(max_length=100_000)]
Key = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,4000}$")]
Root = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$")]
Program = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,99}$")]
Milliseconds = Annotated[int, Field(ge=1, le=86_400_000)]

TOOL_TEXT = "NAME, a glob such as notes_*, plugin:NAME or plugin:NAME/TOOL"
EFFECTS_TEXT = f"a list of {', '.join(ASKABLE)}"
CALLS_TEXT = f"a list of calls, each {TOOL_TEXT}, with ARGUMENT=VALUE behind it or not"
TOOLS_TEXT = f"a list of tools, each {TOOL_TEXT}"
RATES_TEXT = f"rates by tool, each tool {TOOL_TEXT}, each rate {RATES}"


class Section(BaseModel):
    """A table of the configuration file. Types are exact: "5" is not 5."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
