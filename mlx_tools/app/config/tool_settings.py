"""The settings ``tools``: where tools come from, and what they may see."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mlx_tools.app.config.setting import (
    TOOLS_TEXT,
    Name,
    Names,
    Program,
    Root,
    Section,
    Setting,
    an_absolute_path,
    patterns,
)


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
