"""Types of the functions and classes of other plugins that the tasks use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from mlx_tools.store import FileFormat, Root, Tables
from mlx_tools.tools import Tool


class BasicsNames(Struct, frozen=True):
    """Functions of the plugin ``basics``."""

    calculator: Callable[[], Tool]
    clock: Callable[..., Tool]
    format_xml: Callable[[], Tool]


class FilesNames(Struct, frozen=True):
    """Functions of the plugin ``files``."""

    create_file: Callable[[Sequence[Root]], Tool]
    file_access: Callable[[Sequence[Root]], Tool]
    search_files: Callable[[Sequence[Root]], Tool]


class KnowledgeFile(Protocol):
    """A knowledge base to which documents are added."""

    def add(self, paths: Sequence[Path], corpus: str, /) -> Any: ...


class KnowledgeTools(Protocol):
    """The tools of a knowledge base."""

    def tools(self) -> list[Tool]: ...


class NoteText(Protocol):
    """A note."""

    @property
    def path(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def text(self) -> str: ...


class NoteTexts(Protocol):
    """All notes."""

    @property
    def notes(self) -> Sequence[NoteText]: ...


class NoteFolder(Protocol):
    """A folder of notes."""

    def read_all(self) -> NoteTexts: ...


class KbNames(Struct, frozen=True):
    """Functions and classes of the plugin ``kb``."""

    KnowledgeBase: Callable[[Path], KnowledgeFile]
    Knowledge: Callable[[Path], KnowledgeTools]
    Notes: Callable[..., NoteFolder]
    notes_create: Callable[[NoteFolder], Tool]
    notes_search: Callable[[NoteFolder], Tool]


class ListedJob(Protocol):
    """A job, and the time of its next run."""

    @property
    def job(self) -> Any: ...
    @property
    def next_due(self) -> datetime | None: ...


class StoredJobs(Protocol):
    """The jobs in a store."""

    def listing(self) -> Sequence[ListedJob]: ...


class ScheduleNames(Struct, frozen=True):
    """Functions and classes of the plugin ``schedule``."""

    SCHEDULE: FileFormat
    JobStore: Callable[[Tables, Callable[[], bytes], Callable[[], datetime]], StoredJobs]
    Jobs: Callable[..., Any]
    schedule_task: Callable[[Any], Tool]
