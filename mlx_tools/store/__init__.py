"""Sessions, artifacts, access lists, old file contents, safe roots, model words."""

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
    check_patterns,
    expand_home,
    fold_name,
    get_identity,
    private_part,
    supported,
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
    asked_at,
    check_part,
    is_session_id,
    new_session_id,
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
        storable,
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
            "storable",
        ),
    },
)


@functools.cache
def load_words() -> PromptWords:
    """Load the words that a model reads: the files of ``prompts/``."""
    from mlx_tools.prompt import FILES, parse_words

    return parse_words({name: read_data(f"prompts/{name}") for name in FILES})


@functools.cache
def word_files() -> Mapping[str, str]:
    """Return a digest of 16 digits for each file with words that the model reads."""
    from mlx_tools.prompt import FILES

    return {
        name: hashlib.sha256(read_data(f"prompts/{name}").encode()).hexdigest()[:16]
        for name in FILES
    }


def words_digest() -> str:
    """Return a digest of the words that the model reads: 16 digits.

    It is of the words that come with mlx-tools. Those for answers that fit a schema are left out:
    nothing is measured with them.
    """
    from mlx_tools.prompt import RESULT

    names = sorted(name for name in word_files() if name != RESULT)
    words = "\0".join(read_data(f"prompts/{name}") for name in names)
    return hashlib.sha256(words.encode()).hexdigest()[:16]
