"""Asks the items that a file of results lacks, one by one, and writes each result.

A file of results has JSON lines. Each is flushed at once, so that a run can be resumed. The first
line has the settings of all results; a file with other settings is refused. Every other line is the
result of one item with one strategy. An incomplete line from a crash is dropped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import asdict

from mlx_tools.app.proposal import Proposal
from mlx_tools.app.statistics import Share
from mlx_tools.backends import DEFAULT_STYLE, VerdictChoice
from mlx_tools.controller import RunSettings
from mlx_tools.errors import (
    BackendError,
    BackendRefused,
    BackendTimeout,
    MlxToolsError,
    UsageError,
)
from mlx_tools.policy import Limits
from mlx_tools.store import digest_words

FORMAT: Final = 1

REFUSALS: Final = 3
"""Refusals in a row after which the server is at fault, and not the items."""

_MAX_NAMED: Final = 3
"""Differing settings that an error names. More do not fit on a line."""

Result = Mapping[str, Any]
Ask = Callable[[], Awaitable[Result]]


class Key(NamedTuple):
    """The identity of a result."""

    category: str
    id: str
    strategy: str


class Results:
    """The results of a run: those in ``path``, and added ones.

    Without a path they are stored in memory. Use it with ``with``: the file is locked meanwhile.

    Raises:
        UsageError: the file is no file of results, has other settings or another benchmark, cannot
            be written, or is written by another run.
    """

    def __init__(self, path: Path | None, benchmark: str, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._results: dict[Key, Result] = {}
        self._file: BinaryIO | None = None
        plain = json.loads(_encode(settings))
        self.fingerprint = hashlib.sha256(_encode(plain).encode()).hexdigest()[:16]
        self._header: dict[str, Any] = {
            "type": "settings",
            "format": FORMAT,
            "benchmark": benchmark,
            "fingerprint": self.fingerprint,
            "settings": plain,
        }
        if path is not None:
            self._open(path)

    def get(self, key: Key) -> Result | None:
        """Return the result of ``key``, or None."""
        return self._results.get(key)

    def add(self, key: Key, result: Result) -> Result:
        """Write a result, and return it in its written form."""
        line = {"type": "item"} | key._asdict() | {"settings": self.fingerprint} | dict(result)
        self._write(line)
        self._results[key] = line
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: Result) -> None:
        if self._file is None:
            return
        try:
            self._file.write(_encode(line).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from error

    def _open(self, path: Path) -> None:
        try:
            self._file = open(path, "a+b")  # noqa: PTH123, SIM115 (closed by `with`)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from None
        try:
            if not path.is_file():
                raise UsageError(f"{path} is no regular file, so results cannot be read back")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._load(path, self._file)
        except BlockingIOError:
            self.__exit__()
            raise UsageError(f"{path}: another run writes it", hint="name another file") from None
        except BaseException:
            self.__exit__()
            raise

    def _load(self, path: Path, file: BinaryIO) -> None:
        """Read the results, drop an incomplete line, and write a header to an empty file."""
        file.seek(0)
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and _encode(self._header).encode().startswith(data):
            file.truncate(0)
            self._write(self._header)
            return
        lines = whole.decode("utf-8", errors="replace").split("\n")[:-1]
        self._check(path, _decode(lines[0]) if lines else {})
        for number, text in enumerate(lines[1:], start=2):
            line = _decode(text)
            key = [line.get(name) for name in Key._fields]
            if line.get("type") != "item" or not all(isinstance(part, str) for part in key):
                raise UsageError(f"{path}: line {number} is no result", hint="name another file")
            self._results.setdefault(Key(*map(str, key)), line)
        file.truncate(len(whole))

    def _check(self, path: Path, header: Mapping[str, Any]) -> None:
        """Raise UsageError if the run cannot be resumed with this file."""
        settings, wrong = header.get("settings"), ""
        if header.get("type") != "settings" or not isinstance(settings, dict):
            wrong = "is no file of results"
        elif (file_format := header.get("format")) != FORMAT:
            wrong = f"is of format {file_format}, not {FORMAT}"
        elif (benchmark := header.get("benchmark")) != self._header["benchmark"]:
            wrong = f"holds results of {benchmark}"
        elif header.get("fingerprint") != self.fingerprint:
            differ = _describe_differences(settings, self._header["settings"])
            raise UsageError(
                f"{path} was written with other settings: {differ}",
                hint="name another file, or ask with the settings of this one",
            )
        if wrong:
            raise UsageError(f"{path} {wrong}", hint="name another file")


def _encode(value: Any) -> str:
    """Return one line of JSON in ASCII, because a model may write lone surrogates."""
    return json.dumps(value, separators=(",", ":"), default=str)


def _decode(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _describe_differences(old_settings: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the settings that differ."""
    old, new = _flatten(old_settings), _flatten(now)
    differences = [
        f"{key} was {_shorten(old.get(key))}, is {_shorten(new.get(key))}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]
    rest = [f"and {len(differences) - _MAX_NAMED} more"] if len(differences) > _MAX_NAMED else []
    return "; ".join([*differences[:_MAX_NAMED], *rest])


def _flatten(value: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        nested = isinstance(inner, dict) and inner
        flat |= _flatten(inner, f"{path}{key}.") if nested else {f"{path}{key}": inner}
    return flat


def _shorten(value: Any) -> str:
    text = _encode(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


# --- asking -----------------------------------------------------------------------------------


async def run_all(
    todo: Sequence[tuple[Key, Ask]], results: Results, step: Callable[[], None] = lambda: None
) -> list[Result]:
    """Return the results of all keys, in order, and ask for those that are missing.

    If a completion takes too long, its result has no calls. The same is true if the server refuses
    it although it accepts others, for example because the prompt is too long. Any other failure of
    the backend is raised, after the results before it were written.
    """
    results_by_key: dict[Key, Result] = {}
    refused: list[tuple[Key, BackendError]] = []

    def take_refused() -> None:
        for key, error in refused:
            results_by_key[key] = results.add(key, make_failed_result("refused", error))
        refused.clear()

    for key, ask in todo:
        result = results.get(key)
        if result is None:
            try:
                result = results.add(key, await ask())
            except BackendTimeout as error:
                result = results.add(key, make_failed_result("timeout", error))
            except BackendRefused as error:
                refused.append((key, error))
                # Until another item is answered, the item or the server may be at fault. So refused
                # items are written only then.
                if len(refused) >= REFUSALS:
                    raise
        if result is not None:
            results_by_key[key] = result
            take_refused()
        step()
    if refused and not results_by_key:
        raise refused[-1][1]
    take_refused()
    return [results_by_key[key] for key, _ in todo]


def make_result(proposal: Proposal, *, correct: bool, valid: bool, **fields: Any) -> Result:
    """Return the result of an item from its proposal."""
    return {
        "correct": correct,
        "valid": valid,
        **fields,
        "answered": proposal.answered,
        "error": proposal.error,
        "used": proposal.strategy,
        "calls": [
            {"name": call.name, "arguments": dict(call.arguments), "repairs": list(call.repairs)}
            for call in proposal.calls
        ],
        "completion": proposal.completion,
        "requests": proposal.requests,
        "prompt_tokens": proposal.usage.prompt_tokens,
        "cached_tokens": proposal.usage.cached_tokens,
        "completion_tokens": proposal.usage.completion_tokens,
        "pieces": proposal.pieces,
        "seconds": round(proposal.seconds, 3),
    }


def make_failed_result(kind: str, error: MlxToolsError) -> dict[str, Any]:
    """Return the result of an item if the backend failed: no calls, no answer."""
    return {"correct": False, "valid": False, "error": kind, "message": str(error), "calls": []}


def describe_run(settings: RunSettings, limits: Limits, **fields: Any) -> dict[str, Any]:
    """Return the settings that results depend on, as JSON.

    They are the header of a file of results, without question and strategy. ``prompts``
    is a digest of the texts that the model reads.
    """
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    for name in ("backend", "roots", "strategy", "require_tools", "verdict"):
        values.pop(name, None)
    if settings.chat_format is not None:
        values["chat_format"] = settings.chat_format.to_json()
    if settings.style == "auto":
        verdict_choice = settings.verdict or VerdictChoice()
        values["style"] = (
            verdict_choice.verdict.style if verdict_choice.verdict is not None else DEFAULT_STYLE
        )
    kind, digest = settings.backend.get("kind"), digest_words()
    return values | {"backend": kind, "limits": limits.to_json(), "prompts": digest} | fields


# --- the summary ----------------------------------------------------------------------------------


class SummaryRow(Struct, frozen=True):
    """One category with one strategy.

    A number is None if the server did not report it for all results.
    """

    category: str
    strategy: str
    correct: Share
    valid: Share
    answered: int
    errors: Mapping[str, int]
    requests: int
    generated_tokens: int | None
    uncached_tokens: int | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the row in the form of ``--json``."""
        shares = {"correct": _encode_share(self.correct), "valid": _encode_share(self.valid)}
        number = {"items": self.correct.total, "seconds": round(self.seconds, 3)}
        return asdict(self) | shares | number


def summarise(results: Sequence[Result]) -> tuple[SummaryRow, ...]:
    """Summarise the results by category and strategy, in their order."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result["category"], result["strategy"]), []).append(result)
    return tuple(_make_row(*key, group) for key, group in groups.items())


def _make_row(category: str, strategy: str, group: Sequence[Result]) -> SummaryRow:
    prompts = _sum([result.get("prompt_tokens") for result in group])
    cached = _sum([result.get("cached_tokens") for result in group])
    counts = [(result.get("completion_tokens"), result.get("pieces")) for result in group]
    # if no count was reported, the number of pieces
    generated = _sum([pieces if tokens is None else tokens for tokens, pieces in counts])
    return SummaryRow(
        category=category,
        strategy=strategy,
        correct=Share(sum(bool(result["correct"]) for result in group), len(group)),
        valid=Share(sum(bool(result["valid"]) for result in group), len(group)),
        answered=sum(bool(result.get("answered")) for result in group),
        errors=dict(Counter(result["error"] for result in group if result.get("error"))),
        requests=sum(result.get("requests") or 0 for result in group),
        generated_tokens=generated,
        uncached_tokens=None if prompts is None or cached is None else prompts - cached,
        seconds=float(sum(result.get("seconds") or 0 for result in group)),
    )


def _sum(numbers: Sequence[Any]) -> int | None:
    return None if None in numbers else sum(numbers)


def _encode_share(share: Share) -> dict[str, Any]:
    low, high = share.interval
    return {"hits": share.hits, "share": share.value, "low": low, "high": high}


# --- for people -------------------------------------------------------------------------------


def format_table(summary: Sequence[SummaryRow]) -> str:
    """Return the summary as text: one line for each category, strategies side by side.

    It does not end in a newline.
    """
    strategies = list(dict.fromkeys(row.strategy for row in summary))
    categories = list(dict.fromkeys(row.category for row in summary))
    rows = {(row.category, row.strategy): row for row in summary}
    columns = ("valid", "tokens", "time")
    lines = [
        ["", "items", *(head for strategy_name in strategies for head in (strategy_name, *columns))]
    ]
    for category in categories:
        category_rows = [rows.get((category, strategy)) for strategy in strategies]
        counts = sorted({row.correct.total for row in category_rows if row is not None})
        cells = [
            cell
            for row in category_rows
            for cell in (_format_cells(row) if row is not None else [""] * 4)
        ]
        lines.append([category, "-".join(map(str, counts)), *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = []
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        aligned.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(aligned)


def _format_cells(row: SummaryRow) -> list[str]:
    tokens = "" if row.generated_tokens is None else str(row.generated_tokens)
    low, high = (100 * end for end in row.correct.interval)
    right = f"{100 * (row.correct.value or 0.0):.1f} % ({low:.0f}-{high:.0f})"
    return [right, f"{100 * (row.valid.value or 0.0):.0f} %", tokens, f"{row.seconds:.0f} s"]
