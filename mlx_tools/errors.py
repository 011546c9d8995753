"""The errors that mlx-tools raises, and the one vocabulary of error codes.

Denial, pause and limits are values, never exceptions. An exception means that the caller, the
configuration, the backend or the disk is at fault. Its message says what to do next.
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
"""The values of an observation's ``error.code``, in records and in the command line's JSON."""

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
"""Reasons why a run ended without an answer: in records, outcomes, events and the command line's
JSON."""

EXIT_OK: Final = 0
EXIT_STOPPED: Final = 1
EXIT_USAGE: Final = 2
EXIT_BACKEND: Final = 3
EXIT_PAUSED: Final = 4
EXIT_INTERRUPTED: Final = 130


def did_you_mean(word: str, candidates: Iterable[str], fallback: str = "") -> str:
    """Return a hint for an unknown word.

    It names the closest of the ``candidates``; if none is close it is ``fallback``, else the first
    of them.
    """
    from difflib import get_close_matches

    names = list(candidates)
    if close := get_close_matches(word, names, n=1):
        return f"did you mean {close[0]}?"
    return fallback or f"there are {', '.join(names[:20])}{' …' if len(names) > 20 else ''}"


class MlxToolsError(Exception):
    """The base class of all errors of mlx-tools.

    ``str()`` is the message and the hint on one line.
    """

    exit_code: int = EXIT_USAGE
    """The exit code of the command line."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        """The fault, as a sentence."""
        self.hint = hint
        """The next thing to do, None if unknown."""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(MlxToolsError):
    """The caller asked for something that is not possible."""


class PluginError(MlxToolsError):
    """A plugin failed: it raised an exception that nobody expects of it."""

    exit_code = EXIT_STOPPED


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
    """No connection to the server was made, or none in time."""


class BackendRefused(BackendError):
    """The server answered with an error of its own."""

    status: int = 0
    """The HTTP status, 0 if there is none."""
    retry_after: str = ""
    """The time to ask again, as the server wrote it; empty if it wrote none."""


class BackendBroken(BackendError):
    """The stream broke off, or the answer was no completion."""


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
    """A transcript cannot be written, or the data that was read is none."""


class StorageError(TranscriptError):
    """Data that a run must keep cannot be written.

    The disk is full, or the database is down.

    The run broke off there, and continues from there if it can.
    """

    cure: str = "free some space"
    """The thing to do first; empty if the run cannot go on."""


class ScheduleError(MlxToolsError):
    """The schedule of jobs cannot be read or written."""

    passing: bool = False
    """True if it may work again by itself: another process holds the file, or the disk is full."""


def describe_error(error: BaseException, max_chars: int = 300) -> str:
    """Return the class and the text of an exception that may be of anybody's class."""
    try:
        text = str(error)
    except Exception as failure:
        text = f"its text cannot be made: {type(failure).__name__}"
    return f"{type(error).__name__}: {text}"[:max_chars]


@contextlib.contextmanager
def translate_os_error(
    kind: type[MlxToolsError], action: str, hint: str | None = None
) -> Iterator[None]:
    """Turn an `OSError` within the block into an error of ours.

    Args:
        kind: the class of the error.
        action: what failed, the beginning of the message.
        hint: what to do.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{action}: {error.strerror}", hint=hint) from None


# --- checks of a caller's arguments ---

T = TypeVar("T")

_MAX_VALUE_CHARS = 80
"""Characters of a value in a message. A choice: the message stays on a line or two."""


def wrong_argument(name: str, value: object, hint: str) -> UsageError:
    """Return the error for a value that an argument cannot have.

    ``hint`` says which it can have.
    """
    return UsageError(f"{name} cannot be {for_message(value)}", hint=hint)


def for_message(value: object, max_chars: int = _MAX_VALUE_CHARS) -> str:
    """Return a caller's value for a message, at most ``max_chars`` characters of it."""
    try:
        text = repr(value)
    except Exception:  # repr() of a foreign object, or of a very long number, may raise
        text = f"a value of the type {type(value).__name__}"
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def require_instance(name: str, value: object, kind: type[T], hint: str) -> T:
    """Return ``value`` if it is of this kind, else raise `UsageError`."""
    if not isinstance(value, kind):
        raise wrong_argument(name, value, hint)
    return value


def read_attribute(value: object, name: str, default: Any = None) -> Any:
    """Return an attribute of a foreign object, ``default`` if it has none or raises.

    Errors of ours pass: they say what to do.
    """
    try:
        return getattr(value, name, default)
    except MlxToolsError:
        raise
    except Exception:  # the attribute may be a property that raises
        return default


def require_method(name: str, value: T, method: str, hint: str) -> T:
    """Return ``value`` if it is an object (no class) with this method.

    Raises:
        UsageError: it is not.
    """
    if isinstance(value, type) or not callable(read_attribute(value, method)):
        raise wrong_argument(name, value, hint)
    return value


def require_items(name: str, value: Iterable[T] | None, hint: str) -> list[T]:
    """Return the items of ``value``; None has none.

    Raises:
        UsageError: it is no collection. A text and a mapping are none.
    """
    if value is None:
        return []
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong_argument(name, value, hint)
    return list(value)


def require_text(name: str, value: object, hint: str) -> str:
    """Return ``value`` if it is a text, else raise `UsageError`."""
    return require_instance(name, value, str, hint)


def require_path(name: str, value: object, hint: str) -> str:
    """Return a path as text; it may be a `pathlib.Path`.

    Raises:
        UsageError: it is neither, or no file can have this name.
    """
    path: Any = value
    if (
        not isinstance(value, str)
        and (fspath := read_attribute(type(value), "__fspath__")) is not None
    ):
        try:
            path = fspath(value)
        except Exception:  # __fspath__ of a foreign object may raise anything
            raise wrong_argument(name, value, hint) from None
    text = require_text(name, path, hint)
    try:
        encoded = text.encode("utf-8", "surrogateescape")  # as names of files that are no UTF-8
    except UnicodeEncodeError:  # half of a surrogate pair
        raise wrong_argument(name, value, hint) from None
    if b"\0" in encoded:
        raise wrong_argument(name, value, hint)
    return text


def require_mapping(name: str, value: Any, hint: str) -> dict[Any, Any]:
    """Return a mapping as a dict; None is empty.

    Raises:
        UsageError: it is no mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_argument(name, value, hint)
    return dict(value)


def require_texts(name: str, value: Any, hint: str) -> tuple[str, ...]:
    """Return a collection of texts as a tuple.

    Raises:
        UsageError: it is no such collection.
    """
    items = require_items(name, value, hint)
    if value is None or not all(isinstance(item, str) for item in items):
        raise wrong_argument(name, value, hint)
    return tuple(items)
