"""Everything mlx-tools raises, and the one vocabulary of error codes.

Denial, pause and limits are values, never exceptions. An exception means that the caller, the
configuration, the backend or the disk is at fault, and its message says what to do next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

ErrorCode = Literal[
    "invalid_json",
    "truncated_output",
    "unknown_tool",
    "invalid_arguments",
    "unfilled",
    "not_allowed",
    "disabled",
    "requires_confirmation",
    "denied",
    "dry_run",
    "timeout",
    "tool_error",
    "payload_too_large",
    "rate_limited",
    "repeated_call",
    "repetition",
    "echoed_call",
    "iteration_limit",
    "in_doubt",
]
"""What may stand in an observation's ``error.code``, in records, and in the command line's JSON."""

StopReason = Literal[
    "total_timeout",
    "completion_timeout",
    "backend_error",
    "internal_error",
    "interrupted",
    "cancelled",
    "context_full",
    "format_errors",
    "iteration_limit",
    "repeated_call",
    "repetition",
]
"""Why a run ended without an answer: in records, outcomes, events and the command line's JSON."""

EXIT_OK: Final = 0
EXIT_STOPPED: Final = 1
EXIT_USAGE: Final = 2
EXIT_BACKEND: Final = 3
EXIT_PAUSED: Final = 4
EXIT_INTERRUPTED: Final = 130


def did_you_mean(word: str, candidates: Iterable[str], fallback: str = "") -> str:
    """A hint for a word that is none of those that are known: the closest of them, else what is
    said ``fallback``, else the first of them."""
    from difflib import get_close_matches

    names = list(candidates)
    if close := get_close_matches(word, names, n=1):
        return f"did you mean {close[0]}?"
    return fallback or f"there are {', '.join(names[:20])}{' …' if len(names) > 20 else ''}"


class MlxToolsError(Exception):
    """The root of the tree.

    ``message`` says what is wrong; ``hint``, where there is one, what to do about it. ``str()`` is
    both on one line.
    """

    exit_code: int = EXIT_USAGE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(MlxToolsError):
    """The caller asked for something that cannot be."""


class ConfigError(UsageError):
    """A setting is unknown or has a value that is not allowed."""


class ToolDefinitionError(UsageError):
    """A tool's name, schema or signature cannot be used."""


class ChatFormatError(UsageError):
    """A chat template cannot be turned into a chat format."""


class MissingDependency(UsageError):
    """An optional package is needed for this."""


class BackendError(MlxToolsError):
    """The model's server failed."""

    exit_code = EXIT_BACKEND


class BackendUnreachable(BackendError):
    """No connection to the server could be made, or none in time."""


class BackendRefused(BackendError):
    """The server answered with an error of its own. ``status`` is that of HTTP, 0 where there is
    none; ``retry_after`` is when to ask again, as the server wrote it, empty where it did not."""

    status: int = 0
    retry_after: str = ""


class BackendBroken(BackendError):
    """The stream broke off, or what came is no completion."""


class BackendTimeout(BackendError):
    """The completion did not end within its time."""


class BackendDead(BackendError):
    """The server still answers, but the thread that runs its model has died."""


class ModelError(MlxToolsError):
    """A model cannot be fetched, verified or converted."""

    exit_code = EXIT_BACKEND


class KnowledgeBaseError(MlxToolsError):
    """The knowledge base cannot be read or written: a full disk, a damaged file."""


class TranscriptError(MlxToolsError):
    """A transcript cannot be written, or what was read is not one."""


class StorageError(TranscriptError):
    """Something that a run must keep cannot be written: the disk is full, the database is gone. The
    run broke off there, and goes on where it can be. ``cure`` is what is to be done before."""

    cure: str = "free some space"


class ScheduleError(MlxToolsError):
    """The schedule of jobs cannot be read or written. ``passing`` is whether it may be so again
    without anybody's doing: another process holds it, or a disk is full."""

    passing: bool = False


@contextlib.contextmanager
def translate_os_error(
    kind: type[MlxToolsError], action: str, hint: str | None = None
) -> Iterator[None]:
    """What the system refuses meanwhile, as an error of this kind: what cannot be done, and why."""
    try:
        yield
    except OSError as error:
        raise kind(f"{action}: {error.strerror}", hint=hint) from None


# --- what a caller gave, checked where it comes in ---

T = TypeVar("T")

_SHOWN = 80


def wrong_argument(name: str, value: object, hint: str) -> UsageError:
    """The error for a ``value`` that cannot be what the caller calls ``name``; ``hint`` says what
    can."""
    return UsageError(f"{name} cannot be {for_message(value)}", hint=hint)


def for_message(value: object, max_chars: int = _SHOWN) -> str:
    """A caller's value for a message, at most so many characters of it."""
    try:
        text = repr(value)
    except Exception:  # a foreign object's own, or a very long number: it must not hide the fault
        text = f"a value of the type {type(value).__name__}"
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def require_instance(name: str, value: object, kind: type[T], hint: str) -> T:
    """``value``, which must be of this kind. Raises `UsageError`."""
    if not isinstance(value, kind):
        raise wrong_argument(name, value, hint)
    return value


def attribute_of(value: object, name: str, default: Any = None) -> Any:
    """An attribute of a foreign object; ``default`` where it has none, or where asking fails with
    another error than ours."""
    try:
        return getattr(value, name, default)
    except MlxToolsError:
        raise
    except Exception:  # a property of the object's own
        return default


def require_method(name: str, value: T, method: str, hint: str) -> T:
    """``value``, which must be an object (no class) with this method. Raises `UsageError`."""
    if isinstance(value, type) or not callable(attribute_of(value, method)):
        raise wrong_argument(name, value, hint)
    return value


def require_items(name: str, value: Iterable[T] | None, hint: str) -> list[T]:
    """The items of ``value``, none where it is None. Raises `UsageError` for what is no collection,
    a text and a mapping among it."""
    if value is None:
        return []
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong_argument(name, value, hint)
    return list(value)


def require_text(name: str, value: object, hint: str) -> str:
    """``value``, which must be a text. Raises `UsageError`."""
    return require_instance(name, value, str, hint)


def require_path(name: str, value: object, hint: str) -> str:
    """The text of a path, which may be a `pathlib.Path`. Raises `UsageError`."""
    path: Any = value
    if not isinstance(value, str) and (make := attribute_of(type(value), "__fspath__")) is not None:
        try:
            path = make(value)
        except Exception:  # a foreign object's own
            raise wrong_argument(name, value, hint) from None
    return require_text(name, path, hint)


def require_mapping(name: str, value: Any, hint: str) -> dict[Any, Any]:
    """The items of a mapping, none where it is None. Raises `UsageError`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_argument(name, value, hint)
    return dict(value)


def require_texts(name: str, value: Any, hint: str) -> tuple[str, ...]:
    """A collection of texts, as a tuple. Raises `UsageError`."""
    found = require_items(name, value, hint)
    if value is None or not all(isinstance(one, str) for one in found):
        raise wrong_argument(name, value, hint)
    return tuple(found)
