"""Runs one call within its time, and makes an observation of whatever comes of it.

Needs asyncio's event loop: a tool that swallows its cancellation can be left behind there, so that
the call ends in time all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import inspect
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from pathlib import PurePath
from time import perf_counter
from typing import Any, Final, Literal, get_args

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
from mlx_tools.tools.tool import ToolLike, member_of
from mlx_tools.transcript import FileView, Sources, render_sources, sources_of

MAX_OUTPUT_CHARS: Final = 10_000_000

_MOST_WORDS: Final = 100_000
"""Characters of an error's words that are looked at."""

_GRACE: Final = 1.0
"""Seconds that an asynchronous tool has to clean up after it was cancelled. Nobody waits for it."""

_LOOK: Final = 0.05
"""Seconds between two looks at whether a person is still waited for."""


class ToolResult(Struct, frozen=True):
    """The end of a call: ``content`` or ``error``, never both.

    ``duration_ms`` is the time it took. ``output_size_chars`` is the size of what the tool
    returned, in characters, also where it was too large to be kept; 0 where it returned nothing.
    ``cached``: it is what the same call was answered before, and nothing ran.
    ``sources`` is what it found, where it returned that; ``content`` then has them numbered from 1.
    ``files`` is what the model knows of files by it.
    """

    content: str | None
    error: ErrorInfo | None
    duration_ms: int
    output_size_chars: int
    cached: bool = False
    sources: Sources | None = None
    files: tuple[FileView, ...] = ()


async def execute(
    tool: ToolLike,
    arguments: Mapping[str, Any],
    context: ToolContext | None = None,
    *,
    timeout: float,
    clean: Callable[[str], str] = str,
) -> ToolResult:
    """Calls a tool with arguments that were validated and allowed.

    ``timeout`` is in seconds; where the tool declares a time of its own, the shorter one holds. A
    function in a thread cannot be stopped and is left running; an asynchronous one is cancelled,
    and left behind where it swallows that. Either way the call ends in time, as ``timeout``. Time
    in which a person is waited for on behalf of the call does not count.

    Every exception of the tool is a ``tool_error``, ``sys.exit()`` too; arguments that its types
    refuse are ``invalid_arguments``; an output of more than `MAX_OUTPUT_CHARS` is
    ``payload_too_large``. A call that failed is made once more, within the same time, where the
    tool says so and the call can change nothing; a timeout, refused arguments and a `ToolError`
    that does not say otherwise are final. ``clean`` is what an error's words pass before they are
    cut.

    ``context`` is what the tool may know of the call, and is completed here; a second try gets a
    copy. Its ``report`` is called in the event loop, before this returns; see `Reports` for reports
    that come fast.

    Raises nothing but cancellation of the caller and KeyboardInterrupt.
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
        runs_on = "; it may still be running" if member_of(tool, "blocking") else ""
        return _failed_result("timeout", late + runs_on, duration_ms)
    result = _result(outcome, duration_ms, clean)
    return replace(result, files=tuple(context.files)) if result.error is None else result


async def _attempt(
    tool: ToolLike, arguments: Mapping[str, Any], context: ToolContext
) -> Outcome | None:
    """One call. Returns its outcome, the value as text or sources, or None where time is over."""
    loop = asyncio.get_running_loop()
    running: Coroutine[Any, Any, None] | None = None
    token = CONTEXT.set(context)
    try:
        blocking = member_of(tool, "blocking")
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
        left = end + context.waited - loop.time()
        if left <= 0:
            settle(outcome, None)
        else:
            timer = loop.call_later(max(left, _LOOK), expire)

    try:
        if outcome.done():
            await asyncio.sleep(0)  # whatever else waits for the loop has its turn all the same
        else:
            timer = loop.call_at(end, expire)
        ended = await outcome
    except asyncio.CancelledError:  # the caller's own
        ended = None
        raise
    finally:
        if timer is not None:
            timer.cancel()
        context.cancelled = True
        if context.asking is not None:  # nobody waits for that either
            context.asking.cancel()
        if ended is None and running is not None:
            _leave(task, running)
    return ended


async def _run_guarded(
    tool: ToolLike, arguments: Mapping[str, Any], outcome: asyncio.Future[Outcome | None]
) -> None:
    """An asynchronous call that settles ``outcome``; none of its exceptions reaches the loop."""
    try:
        settle(outcome, (to_result(await tool.call(arguments)), None))
    except asyncio.CancelledError:  # the tool's own doing, or nobody waits any more
        settle(outcome, (None, ToolError("the tool was cancelled")))
        raise
    except (KeyboardInterrupt, GeneratorExit) as error:  # the latter, too, where it was closed
        settle(outcome, (None, error))
        raise
    except BaseException as error:
        settle(outcome, (None, error))


async def _drain(running: Coroutine[Any, Any, None]) -> None:
    """Lets a task end quietly whose call was closed by `_leave`."""
    with contextlib.suppress(RuntimeError):
        await running


_abandoned_calls: set[asyncio.Future[Any]] = set()
"""Tasks that were cancelled and have not ended; the loop itself holds them weakly."""


def _leave(task: asyncio.Task[Any], running: Coroutine[Any, Any, Any]) -> None:
    """Cancels a task that nobody waits for, and sees to it that it cannot keep the loop open."""
    task.cancel()
    _abandoned_calls.add(task)

    def end() -> None:  # it swallowed its cancellation: what it waits for is closed
        with contextlib.suppress(Exception):
            running.close()
        task.cancel()

    timer = asyncio.get_running_loop().call_later(_GRACE, end)

    def ended(task: asyncio.Future[Any]) -> None:
        timer.cancel()
        _abandoned_calls.discard(task)
        running.close()  # where it was cancelled before it began

    task.add_done_callback(ended)


def _copy_value(value: Any) -> Any:
    """A JSON value that the tool may change."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key: _copy_value(item) for key, item in value.items()}
    return [*map(_copy_value, value)] if isinstance(value, list) else value


def _result(outcome: Outcome, duration_ms: int, clean: Callable[[str], str]) -> ToolResult:
    text, error = outcome
    if error is not None:
        return _failed_result(*_words(error, clean), duration_ms)
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


def _words(error: BaseException, clean: Callable[[str], str]) -> tuple[ErrorCode, str]:
    """The code and the message of what a tool raised: type and text, no traceback."""
    try:
        text = clean(str(error)[:_MOST_WORDS]).strip()
    except Exception:  # a tool's own exception, whose text cannot be made
        text = ""
    match error:
        case ToolError():
            return error.code, _cut(text or "the tool failed", error.max_chars)
        case InvalidArguments():
            return "invalid_arguments", _cut(text)
        case ResultError() | TooManyThreads():
            return "tool_error", _cut(text)
        case KeyboardInterrupt():
            raise error
    kind = type(error).__name__
    return "tool_error", _cut(f"{kind}: {text}" if text else kind)


def _cut(text: str, max_chars: int = MAX_ERROR_CHARS) -> str:
    text = whole_characters(text)
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


# --- calls that only read, made again -------------------------------------------------------------
#
# Nothing is kept across a call that can change things: whatever begins to change anything empties
# the cache, and while that goes on nothing is kept or found. A call that changes things and did not
# end in time may still be at it, so after it nothing is kept any more.

CacheScope = Literal["off", "run", "session"]
SCOPES: Final[tuple[CacheScope, ...]] = get_args(CacheScope)

MAX_ANSWERS: Final = 200
MAX_CHARS: Final = 5_000_000
"""Of all that is kept together."""


class ReadCallCache:
    """The answers of one session and of the runs within its calls: kept for one question (``run``),
    for all (``session``), or not at all (``off``)."""

    def __init__(self, scope: CacheScope = "off") -> None:
        self._scope = scope
        self._kept: OrderedDict[bytes, ToolResult] = OrderedDict()
        self._chars = 0
        self._changing = 0  # calls that go on and may change something
        self._changes = 0  # how often something began to change

    def begin(self) -> None:
        """A new question begins."""
        if self._scope != "session":
            self._kept.clear()
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
        """Return what `mlx_tools.tools.execute` comes to: found here, or made and kept. A call that
        was approved on a state is made in any case. ``of_session``: what the tool answers is true
        of the session of the call alone, so runs within it get answers of their own."""
        spec, key, ask = tool.spec, b"", context.asks
        mutates = spec.mutates(arguments)
        if self._scope != "off" and spec.cache and not mutates:
            # one text for the same call; 1 and 1.0 are two calls: a tool may tell them apart
            key = json_bytes([spec.name, arguments, context.session if of_session else ""])
            found = None
            if context.expected is None and not self._changing:
                found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return replace(found, duration_ms=0, cached=True)
        changing = over = asked_model = False

        def change() -> None:
            nonlocal changing
            if not changing:
                changing = True
                self._changing += 1
                self._changes += 1
                self._kept.clear()
                self._chars = 0

        async def asked(inner: ToolContext, question: str, tools: Sequence[str] | None) -> str:
            nonlocal asked_model  # the calls of that run come here themselves
            asked_model = True
            assert ask is not None
            return await ask(inner, question, tools)

        if mutates:
            change()
        began = self._changes
        try:
            context.asks = None if ask is None else asked
            result = await execute(tool, arguments, context, **options)
            over = result.error is None or result.error.code != "timeout"
        finally:
            if changing and over:
                self._changing -= 1
        size = len(result.content or "")
        fits = result.content is not None and size <= MAX_CHARS // 4
        if key and fits and not asked_model and began == self._changes and not self._changing:
            old = self._kept.pop(key, None)
            self._kept[key] = result
            self._chars += size - len((old.content if old is not None else None) or "")
            while len(self._kept) > MAX_ANSWERS or self._chars > MAX_CHARS:
                _, dropped = self._kept.popitem(last=False)
                self._chars -= len(dropped.content or "")
        return result


class NestedReadCallCache(ReadCallCache):
    """The answers of the session that a run within a call belongs to: no question begins there."""

    def __init__(self, outer: ReadCallCache) -> None:
        super().__init__()
        self._outer = outer

    def begin(self) -> None:
        """The question of the outer session goes on."""

    async def call(
        self, tool: ToolLike, arguments: Mapping[str, Any], context: ToolContext, **options: Any
    ) -> ToolResult:
        """Do as the outer session does."""
        return await self._outer.call(tool, arguments, context, **options)


# --- a result as text -----------------------------------------------------------------------------


class ResultError(Exception):
    """The tool returned something that has no JSON."""


def to_text(value: Any) -> str:
    """A string as it is, anything else as compact JSON, so that nothing returned is ``null``.

    What JSON does not have is written as pydantic does: dataclasses, models, enums, dates, paths.
    Raises ResultError for NaN and infinity, and for objects that are no data.
    """
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str):
        return whole_characters(value)
    try:
        try:
            return whole_characters(_encoder().encode(value))
        except TypeError:  # a key that is no text
            return whole_characters(_encoder().encode(_plain(value)))
    except RecursionError:
        raise ResultError("the result is nested too deep for JSON") from None
    except ValueError as error:
        raise ResultError(f"the result cannot be written as JSON: {error}") from None


def to_result(value: Any) -> str | Sources:
    """Return what a tool returned: sources as they are, anything else as text. Raises
    ResultError."""
    sources = sources_of(value)
    return to_text(value) if sources is None else sources.cleaned(whole_characters)


def whole_characters(text: str) -> str:
    """The text with U+FFFD for every lone surrogate, which no UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@functools.cache
def _encoder() -> json.JSONEncoder:
    return json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
    )


def _plain(value: Any) -> Any:
    """A value that JSON does not have, as one that it has."""
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
