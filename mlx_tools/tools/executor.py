"""Execution of one tool call within its time. Any outcome becomes a result.

It needs asyncio's event loop. If a tool ignores its cancellation, the call ends in time anyway, and
the tool is left running in the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import inspect
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from pathlib import PurePath
from time import perf_counter
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, json_bytes, replace
from mlx_tools.tools.context import (
    CONTEXT,
    MAX_ERROR_CHARS,
    Reports,
    ToolContext,
    ToolError,
)
from mlx_tools.tools.signature import InvalidArguments
from mlx_tools.tools.threads import Outcome, TooManyThreads, settle, submit
from mlx_tools.tools.tool import ToolLike, find_member
from mlx_tools.transcript import FileView, Sources, read_tool_sources, render_sources

_log = logging.getLogger(__name__)
MAX_OUTPUT_CHARS: Final = 10_000_000
"""The limit of an output in characters. An output of hundreds of megabytes would be in memory, in
the transcript and in the artifact; an error is better."""

_MAX_ERROR_TEXT: Final = 100_000
"""Characters of an exception's text that are redacted; the rest is dropped before.

The time of redaction grows with the text, and a model sees at most 4,000 characters."""

_GRACE: Final = 1.0
"""Seconds that a cancelled asynchronous tool has to clean up. Nobody waits for it."""

_TIMER_INTERVAL: Final = 0.05
"""Seconds between two checks of the time limit while a person is asked."""


class ToolResult(Struct, frozen=True):
    """The end of a call: either ``content`` or ``error``."""

    content: str | None
    """The output as text, with sources numbered from 1; None if the call failed."""
    error: ErrorInfo | None
    """The error; None if the call succeeded."""
    duration_ms: int
    """The duration of the call."""
    output_size_chars: int
    """The characters of the output, also if it was too large."""
    cached: bool = False
    """True if this is the result of an earlier call, and no tool ran."""
    sources: Sources | None = None
    """The sources that the tool returned, None if it returned none."""
    files: tuple[FileView, ...] = ()
    """The parts of files that the model knows after this output."""


async def execute(
    tool: ToolLike,
    arguments: Mapping[str, Any],
    context: ToolContext | None = None,
    *,
    timeout: float,
    clean: Callable[[str], str] = str,
) -> ToolResult:
    """Call a tool with arguments that were validated and allowed.

    A call that takes too long ends with ``timeout``. A function in a thread cannot be stopped, and
    is left running. An asynchronous tool is cancelled; if it ignores that, it is left running, too.
    The time in which a person is asked on behalf of the call does not count.

    Every exception of the tool becomes a ``tool_error``, also the one of ``sys.exit()``. Arguments
    that do not fit the function's types are ``invalid_arguments``. An output of more than
    `MAX_OUTPUT_CHARS` is ``payload_too_large``.

    A failed call is made once more, within the same time, if the tool declares so and the call
    cannot change anything. It is not repeated after a timeout, after refused arguments, or after a
    `ToolError` without ``passing``.

    Args:
        tool: the tool to call.
        arguments: the validated arguments.
        context: the context for the tool. It is completed here; a second try gets a copy. Its
            ``report`` is called in the event loop, before this returns (`Reports`).
        timeout: seconds for the call; a shorter time that the tool declares is used instead.
        clean: redacts the text of an error, before it is cut.

    Raises:
        CancelledError: the caller was cancelled.
        KeyboardInterrupt: the tool raised it.
    """
    spec, context = tool.spec, context or ToolContext()
    seconds = timeout if spec.timeout is None else min(timeout, spec.timeout)
    started = perf_counter()
    tries = 2 if spec.retry == "read_only" and not spec.mutates(arguments) else 1
    reports = Reports(context.report) if context.report is not None else None
    outcome: Outcome | None = None
    try:
        for number in range(tries):
            context = replace(context) if number else context
            context.timeout = max(seconds - (perf_counter() - started), 0.0)
            context.report = reports.take if reports is not None else None
            context.loop = asyncio.get_running_loop()
            outcome = await _attempt(tool, _copy_value(arguments), context)
            error = outcome[1] if outcome is not None else None
            final = (InvalidArguments, ResultError, TooManyThreads)
            # A timeout is not an exception here, so it ends the loop, too: no time is left for a
            # second try.
            if not isinstance(error, Exception) or isinstance(error, final):
                break
            if isinstance(error, ToolError) and not error.passing:
                break
    except BaseException:
        if reports is not None:
            reports.end(cancelled=True)
        raise
    if reports is not None:
        reports.end()
    duration_ms = round((perf_counter() - started) * 1000)
    if outcome is None:
        late = f"no result within {seconds:g} s"
        runs_on = "; it may still be running" if find_member(tool, "blocking") else ""
        return _failed_result("timeout", late + runs_on, duration_ms)
    result = _make_result(outcome, duration_ms, clean)
    return replace(result, files=tuple(context.files)) if result.error is None else result


async def _attempt(
    tool: ToolLike, arguments: Mapping[str, Any], context: ToolContext
) -> Outcome | None:
    """Make one call. Return its outcome, text or sources; None if its time is over."""
    loop = asyncio.get_running_loop()
    running: Coroutine[Any, Any, None] | None = None
    # A task and a thread's job copy the current context when they are created. So the variable has
    # to be set only during their creation, and other tasks never see it.
    token = CONTEXT.set(context)
    try:
        blocking = find_member(tool, "blocking")
        if blocking is not None:
            outcome = submit(lambda: to_result(blocking(arguments)))
        else:
            outcome = loop.create_future()
            running = _run_guarded(tool, arguments, outcome)
            task = loop.create_task(_drain(running))
    except TooManyThreads as error:
        return None, error
    finally:
        CONTEXT.reset(token)
    end = loop.time() + (context.timeout or 0.0)
    timer: asyncio.Handle | None = None

    def expire() -> None:
        nonlocal timer
        # Checked again and again, because `waited` grows while a person is asked.
        seconds_left = end + context.waited - loop.time()
        if seconds_left <= 0:
            settle(outcome, None)
        else:
            timer = loop.call_later(max(seconds_left, _TIMER_INTERVAL), expire)

    try:
        if outcome.done():
            await asyncio.sleep(0)  # so that other tasks of the loop have their turn
        else:
            timer = loop.call_at(end, expire)
        result = await outcome
    except asyncio.CancelledError:  # the caller was cancelled
        result = None
        raise
    finally:
        if timer is not None:
            timer.cancel()
        # Set first: a function in a thread checks this flag.
        context.cancelled = True
        if context.asking is not None:  # nobody waits for the model's answer, either
            context.asking.cancel()
        if result is None and running is not None:
            _abandon(task, running)
    return result


async def _run_guarded(
    tool: ToolLike, arguments: Mapping[str, Any], outcome: asyncio.Future[Outcome | None]
) -> None:
    """Run an asynchronous call, and settle ``outcome`` with its result or exception."""
    try:
        settle(outcome, (to_result(await tool.call(arguments)), None))
    except asyncio.CancelledError:  # the tool cancelled itself, or nobody waits any more
        settle(outcome, (None, ToolError("the tool was cancelled")))
        raise
    except (KeyboardInterrupt, GeneratorExit) as error:  # GeneratorExit: `_abandon` closed it
        settle(outcome, (None, error))
        raise
    except BaseException as error:
        settle(outcome, (None, error))


async def _drain(running: Coroutine[Any, Any, None]) -> None:
    """Await a call, without the error that is raised after `_abandon` has closed it."""
    with contextlib.suppress(RuntimeError):
        await running


_abandoned_calls: set[asyncio.Future[Any]] = set()
"""Cancelled tasks that have not ended.

The loop has only weak references to tasks. Without these ones, a task could be deleted while it
cleans up."""


def _abandon(task: asyncio.Task[Any], running: Coroutine[Any, Any, Any]) -> None:
    """Cancel a task that nobody waits for; after `_GRACE` end it by force."""
    task.cancel()
    _abandoned_calls.add(task)

    def end() -> None:  # the tool has ignored its cancellation: close its coroutine
        try:
            running.close()
        except Exception as error:  # raised by the tool while it cleans up
            _log.debug("a cancelled call ended with %s", type(error).__name__)
        task.cancel()

    timer = asyncio.get_running_loop().call_later(_GRACE, end)

    def forget(task: asyncio.Future[Any]) -> None:
        timer.cancel()
        _abandoned_calls.discard(task)
        running.close()  # needed if it was cancelled before it began

    task.add_done_callback(forget)


def _copy_value(value: Any) -> Any:
    """Copy a JSON value, so that the tool may change it."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key: _copy_value(item) for key, item in value.items()}
    return [*map(_copy_value, value)] if isinstance(value, list) else value


def _make_result(outcome: Outcome, duration_ms: int, clean: Callable[[str], str]) -> ToolResult:
    text, error = outcome
    if error is not None:
        return _failed_result(*_describe_error(error, clean), duration_ms)
    sources = text if isinstance(text, Sources) else None
    if sources is not None:
        text = "\n".join(part for part in (render_sources(sources).text, sources.note) if part)
    if len(text) > MAX_OUTPUT_CHARS:
        message = (
            f"the call was made, but its output of {len(text)} characters is too large "
            f"(at most {MAX_OUTPUT_CHARS})"
        )
        return _failed_result("payload_too_large", message, duration_ms, len(text))
    return ToolResult(text, None, duration_ms, len(text), sources=sources)


def _failed_result(code: ErrorCode, message: str, duration_ms: int, size: int = 0) -> ToolResult:
    return ToolResult(None, ErrorInfo(code, message), duration_ms, size)


def _describe_error(error: BaseException, clean: Callable[[str], str]) -> tuple[ErrorCode, str]:
    """Return the code and the message (type and text) of an exception."""
    try:
        text = clean(str(error)[:_MAX_ERROR_TEXT]).strip()
    except Exception as failure:  # the tool's exception has no text
        _log.info("%s has no text: %s", type(error).__name__, type(failure).__name__)
        text = ""
    match error:
        case ToolError():
            return error.code, _cut_text(text or "the tool failed", error.max_chars)
        case InvalidArguments():
            return "invalid_arguments", _cut_text(text)
        case ResultError() | TooManyThreads():
            return "tool_error", _cut_text(text)
        case KeyboardInterrupt():
            raise error
    kind = type(error).__name__
    return "tool_error", _cut_text(f"{kind}: {text}" if text else kind)


def _cut_text(text: str, max_chars: int = MAX_ERROR_CHARS) -> str:
    text = whole_characters(text)
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


# --- cached results of calls that only read -------------------------------------------------------
#
# A call that can change things clears the cache when it begins. While it runs, no result is stored
# or used. If it does not end in time it may still be running, so nothing is cached after it.

CacheScope = Literal["off", "run", "session"]

MAX_CACHED_CALLS: Final = 200
"""The limit of cached results. A choice: a session makes a few hundred calls that read."""
MAX_CACHED_CHARS: Final = 5_000_000
"""The limit of all cached results in characters. One result may take a quarter of it, so that it
does not remove all others."""


class ReadCallCache:
    """The cached results of one session and of its nested runs.

    Args:
        scope: the time for which results are cached: one question (``run``), the whole session, or
            none (``off``).
    """

    def __init__(self, scope: CacheScope = "off") -> None:
        self._scope = scope
        self._results: OrderedDict[bytes, ToolResult] = OrderedDict()
        self._chars = 0
        self._changing = 0  # running calls that can change things
        self._changes = 0  # all calls so far that can change things

    def begin(self) -> None:
        """Begin a new question."""
        if self._scope != "session":
            self._results.clear()
            self._chars = 0

    async def call(
        self,
        tool: ToolLike,
        arguments: Mapping[str, Any],
        context: ToolContext,
        *,
        of_session: bool = False,
        **options: Any,
    ) -> ToolResult:
        """Return the cached result of a call, or the result of `mlx_tools.tools.execute`.

        A call that was approved with a certain state is always made. With ``of_session`` the result
        counts only for the session of the call, not for its nested runs.
        """
        spec, key, ask = tool.spec, b"", context.asks
        mutates = spec.mutates(arguments)
        if self._scope != "off" and spec.cache and not mutates:
            # The same call has the same key. 1 and 1.0 are different: a tool may distinguish them.
            key = json_bytes([spec.name, arguments, context.session if of_session else ""])
            result_before = None
            if context.expected is None and not self._changing:
                result_before = self._results.get(key)
            if result_before is not None:
                self._results.move_to_end(key)
                return replace(result_before, duration_ms=0, cached=True)
        # A call that can change things counts in `_changing` until it has certainly ended. After a
        # timeout that is uncertain: the count is not reduced, and nothing is cached any more.
        changing = has_ended = asked_model = False

        def change() -> None:
            nonlocal changing
            if not changing:
                changing = True
                self._changing += 1
                self._changes += 1
                self._results.clear()
                self._chars = 0

        async def ask_model(inner: ToolContext, question: str, tools: Sequence[str] | None) -> str:
            # The nested run's own calls use this cache. This call's result is not cached.
            nonlocal asked_model
            asked_model = True
            assert ask is not None
            return await ask(inner, question, tools)

        if mutates:
            change()
        # If this number has grown at the end, another call may have changed things meanwhile.
        count = self._changes
        try:
            context.asks = None if ask is None else ask_model
            result = await execute(tool, arguments, context, **options)
            has_ended = result.error is None or result.error.code != "timeout"
        finally:
            if changing and has_ended:
                self._changing -= 1
        size = len(result.content or "")
        fits = result.content is not None and size <= MAX_CACHED_CHARS // 4
        if key and fits and not asked_model and count == self._changes and not self._changing:
            previous = self._results.pop(key, None)
            self._results[key] = result
            self._chars += size - len((previous.content if previous is not None else None) or "")
            while len(self._results) > MAX_CACHED_CALLS or self._chars > MAX_CACHED_CHARS:
                _, dropped = self._results.popitem(last=False)
                self._chars -= len(dropped.content or "")
        return result


class NestedReadCallCache(ReadCallCache):
    """The cache of a nested run: that of the session that the run belongs to."""

    def __init__(self, outer: ReadCallCache) -> None:
        super().__init__()
        self._outer = outer

    def begin(self) -> None:
        """Do nothing, because the question of the outer session goes on."""

    async def call(
        self, tool: ToolLike, arguments: Mapping[str, Any], context: ToolContext, **options: Any
    ) -> ToolResult:
        """Use the cache of the outer session."""
        return await self._outer.call(tool, arguments, context, **options)


# --- a result as text -----------------------------------------------------------------------------


class ResultError(Exception):
    """The tool returned a value that cannot be written as JSON."""


def to_text(value: Any) -> str:
    """Return a string unchanged, any other value as compact JSON; None is ``null``.

    Values that JSON does not have are written as pydantic does: dataclasses, models, enums, dates,
    paths.

    Raises:
        ResultError: the value contains NaN, infinity, or an object that is not data.
    """
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str):
        return whole_characters(value)
    try:
        try:
            return whole_characters(_encoder().encode(value))
        except TypeError:  # a key is not a text
            return whole_characters(_encoder().encode(_to_plain(value)))
    except RecursionError:
        raise ResultError("the result is nested too deep for JSON") from None
    except ValueError as error:
        raise ResultError(f"the result cannot be written as JSON: {error}") from None


def to_result(value: Any) -> str | Sources:
    """Return sources as sources, any other value as text.

    Raises:
        ResultError: the value cannot be written as JSON.
    """
    sources = read_tool_sources(value)
    return to_text(value) if sources is None else sources.map_texts(whole_characters)


def whole_characters(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, with U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@functools.cache
def _encoder() -> json.JSONEncoder:
    return json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_to_plain
    )


def _to_plain(value: Any) -> Any:
    """Convert a value that JSON does not have into one that it has."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    match value:
        case bytes() | bytearray() | memoryview():
            raise ResultError("the result holds bytes; decode them, or encode them as base64")
        case PurePath():
            return str(value)
        case Set():
            return sorted(value, key=repr)  # the same text each time
        case Sequence():
            return list(value)
    if callable(getattr(value, "tolist", None)):  # arrays and numbers of numpy and mlx
        return value.tolist()
    if inspect.iscoroutine(value):
        value.close()
    try:
        if not isinstance(value, Iterator):  # which may never end
            return to_jsonable_python(value, by_alias=True)
    except (PydanticSerializationError, ValueError):
        pass
    raise ResultError(f"a result of type {type(value).__name__} cannot be written as JSON")
