"""Storage: sessions, artifacts, access lists, old contents, roots, prompt texts."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names
from mlx_tools.paths import read_data
from mlx_tools.store.access_list import ConsumedApprovals, RunPermit, StoredRunPermit, fingerprints
from mlx_tools.store.artifacts import ArtifactStore, BlobStore, Change, UndoStore
from mlx_tools.store.changes import (
    ABSENT,
    MAX_UNDO_BYTES,
    NameTaken,
    Place,
    digest_content,
    get_status,
    open_place,
    open_present,
    write_file,
)
from mlx_tools.store.roots import (
    FOLDERS,
    PathAbsent,
    PathPatterns,
    PathRefused,
    PathUnlisted,
    PrivateNames,
    Root,
    RootName,
    WrongFileKind,
    can_open_safely,
    check_patterns,
    expand_home,
    find_private_part,
    fold_name,
    get_identity,
)
from mlx_tools.store.session_folder import TranscriptStore
from mlx_tools.store.session_store import (
    LAST,
    ListedSession,
    MemoryStore,
    SessionFiles,
    SessionPart,
    SessionStatus,
    SessionStore,
    SessionSummary,
    StoreKeys,
    check_part,
    find_question_time,
    is_session_id,
    make_session_id,
    session_status,
)
from mlx_tools.store.template_file import TemplateFile
from mlx_tools.store.transcript import (
    FORMAT_VERSION,
    MAX_TRANSCRIPT,
    NAME,
    SessionInUse,
    Transcript,
    encode,
    from_json,
    load,
    parse,
    to_json,
)

if TYPE_CHECKING:
    from mlx_tools.prompt import PromptWords
    from mlx_tools.store.copying import CopyReport, copy_store
    from mlx_tools.store.tables import (
        DAMAGED,
        VALUE_ERRORS,
        FileFormat,
        Presence,
        Rows,
        SqliteFile,
        Statements,
        Tables,
        is_transient,
        to_storable,
    )

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "copying": ("CopyReport", "copy_store"),
        "tables": (
            "DAMAGED",
            "VALUE_ERRORS",
            "FileFormat",
            "Presence",
            "Rows",
            "SqliteFile",
            "Statements",
            "Tables",
            "is_transient",
            "to_storable",
        ),
    },
)


@functools.cache
def load_words() -> PromptWords:
    """Load the texts that a model reads: the files of ``prompts/``."""
    from mlx_tools.prompt import FILES, parse_words

    return parse_words({name: read_data(f"prompts/{name}") for name in FILES})


@functools.cache
def digest_word_files() -> Mapping[str, str]:
    """Return a digest of 16 digits for each file of ``prompts/``."""
    from mlx_tools.prompt import FILES

    return {
        name: hashlib.sha256(read_data(f"prompts/{name}").encode()).hexdigest()[:16]
        for name in FILES
    }


def digest_words() -> str:
    """Return one digest of 16 digits for all files of ``prompts/``.

    The file for answers that must fit a schema is left out: probes do not use it.
    """
    from mlx_tools.prompt import RESULT

    names = sorted(name for name in digest_word_files() if name != RESULT)
    words = "\0".join(read_data(f"prompts/{name}") for name in names)
    return hashlib.sha256(words.encode()).hexdigest()[:16]
