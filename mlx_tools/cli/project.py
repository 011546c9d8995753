"""A project's own instructions for agents, in the file ``AGENTS.md`` of a root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from mlx_tools.app import Configuration, RunOptions, list_roots
from mlx_tools.cli.output import note
from mlx_tools.messages import replace
from mlx_tools.paths import check_regular
from mlx_tools.policy import Redactor
from mlx_tools.store import RootName

FILE_NAME: Final = "AGENTS.md"

MAX_CHARS: Final = 8_000
"""Some 2,000 tokens, which are in every prompt: an eighth of a context of 16,000."""

_MAX_BYTES: Final = 1 << 20


def with_project(run: RunOptions) -> RunOptions:
    """Return the options of a run whose model gets the project's instructions."""
    return replace(run, configuration=with_instructions(run.configuration))


def with_instructions(configuration: Configuration) -> Configuration:
    """Return settings with the project's instructions, as text for the prompt.

    The text comes from others: it has no part in deciding what may run, and what asks first. A text
    that the user has set stays in its place.
    """
    if configuration.settings.prompt.project_context.strip():
        return configuration
    for root in list_roots(configuration):
        path = Path(RootName.parse(root).path) / FILE_NAME
        if text := _read(path).strip():
            cut = text[:MAX_CHARS]
            part = f"{len(cut):,} of " if len(cut) < len(text) else ""
            note(f"the model is told what {path} says ({part}{len(text):,} characters)")
            return configuration.with_options(
                {"prompt.project_context": Redactor().redact(cut).text}
            )
    return configuration


def _read(path: Path) -> str:
    """Return the text of a regular file that is no link, empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            check_regular(fd, _MAX_BYTES)
            return file.read().decode()
    except (OSError, UnicodeDecodeError):
        return ""
