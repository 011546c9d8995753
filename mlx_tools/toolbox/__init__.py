"""The built-in tools, one file each. Their texts are in ``prompts/tools/``.

The core does not know them: it finds them by the entry point ``mlx_tools.tools``, like the tools of
any package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.toolbox.builtin import builtin_tools, tools
    from mlx_tools.toolbox.clock import find_local_zone, find_zone
    from mlx_tools.toolbox.file_access import create_file, file_access_spec
    from mlx_tools.toolbox.kb.documents import BINARY
    from mlx_tools.toolbox.kb.knowledge_base import (
        DEFAULT_CORPUS,
        DEFAULT_LIMIT,
        MAX_LIMIT,
        AddReport,
        Corpus,
        KnowledgeBase,
    )
    from mlx_tools.toolbox.kb.search import Hit
    from mlx_tools.toolbox.knowledge import Knowledge
    from mlx_tools.toolbox.notes import Notes, notes_create, notes_search
    from mlx_tools.toolbox.restore import Undo, UndoStep, find_outermost, find_undoable
    from mlx_tools.toolbox.sandbox import try_sandbox
    from mlx_tools.toolbox.schedule.job_store import (
        OPEN,
        SCHEDULE,
        Job,
        JobListing,
        JobRun,
        JobStore,
        RunEnd,
        RunInspection,
        utc_now,
    )
    from mlx_tools.toolbox.schedule.runner import FinishedRun, Runner, settle
    from mlx_tools.toolbox.schedule.when import parse_when
    from mlx_tools.toolbox.schedule_task import Jobs
    from mlx_tools.toolbox.text_files import guess_kind
    from mlx_tools.toolbox.urls import (
        Target,
        UrlRefused,
        is_public,
        read_local,
        read_url,
    )
    from mlx_tools.toolbox.web_fetch import Fetcher

__getattr__, __dir__ = names_of(
    globals(),
    {
        "builtin": ("builtin_tools", "tools"),
        "clock": ("find_local_zone", "find_zone"),
        "file_access": ("create_file", "file_access_spec"),
        "kb.documents": ("BINARY",),
        "kb.knowledge_base": (
            "DEFAULT_CORPUS",
            "DEFAULT_LIMIT",
            "MAX_LIMIT",
            "AddReport",
            "Corpus",
            "KnowledgeBase",
        ),
        "kb.search": ("Hit",),
        "knowledge": ("Knowledge",),
        "notes": ("Notes", "notes_create", "notes_search"),
        "restore": ("Undo", "UndoStep", "find_outermost", "find_undoable"),
        "sandbox": ("try_sandbox",),
        "schedule.job_store": (
            "OPEN",
            "SCHEDULE",
            "Job",
            "JobRun",
            "JobStore",
            "JobListing",
            "RunEnd",
            "RunInspection",
            "utc_now",
        ),
        "schedule.runner": ("FinishedRun", "Runner", "settle"),
        "schedule.when": ("parse_when",),
        "schedule_task": ("Jobs",),
        "text_files": ("guess_kind",),
        "urls": ("Target", "UrlRefused", "is_public", "read_local", "read_url"),
        "web_fetch": ("Fetcher",),
    },
)
