"""Asks what a file of results does not hold yet, one item after the other, and writes down each.

A file of results is JSON lines, each on disk as it comes, so that a run can be gone on with. The
first names the settings under which all others were found; a file of other settings is refused.
Every other line is one item, by one strategy. What a crash left of a line is dropped.
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

from mlx_tools.app import Proposal, Share
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
from mlx_tools.store import words_digest

FORMAT: Final = 1

REFUSALS: Final = 3
"""So many refusals in a row are the server's state, and no longer the items'."""

_NAMED: Final = 3
"""So many settings that differ are named in an error."""

Result = Mapping[str, Any]
Ask = Callable[[], Awaitable[Result]]


class Key(NamedTuple):
    """What a result is of."""

    category: str
    id: str
    strategy: str


class Results:
    """The results of a run: those of ``path``, and those that are added.

    Without a path they are kept in memory alone. Use it with ``with``: the file is locked
    meanwhile.

    Raises:
        UsageError: the file is no file of results, is one of other settings or another benchmark,
            cannot be written, or another run writes it.
    """

    def __init__(self, path: Path | None, benchmark: str, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._results: dict[Key, Result] = {}
        self._file: BinaryIO | None = None
        plain = json.loads(_text(settings))
        self.fingerprint = hashlib.sha256(_text(plain).encode()).hexdigest()[:16]
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
        """The result of ``key``, None where there is none yet."""
        return self._results.get(key)

    def add(self, key: Key, result: Result) -> Result:
        """Write a result, and give it as it was written."""
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
            self._file.write(_text(line).encode() + b"\n")
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
                raise UsageError(f"{path} is no file that results can be read back from")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._take_in(path, self._file)
        except BlockingIOError:
            self.__exit__()
            raise UsageError(f"{path}: another run writes it", hint="name another file") from None
        except BaseException:
            self.__exit__()
            raise

    def _take_in(self, path: Path, file: BinaryIO) -> None:
        """Read what is there, drop what a crash left of a line, begin an empty file."""
        file.seek(0)
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and _text(self._header).encode().startswith(data):
            file.truncate(0)
            self._write(self._header)
            return
        lines = whole.decode("utf-8", errors="replace").split("\n")[:-1]
        self._check(path, _object(lines[0]) if lines else {})
        for number, text in enumerate(lines[1:], start=2):
            line = _object(text)
            key = [line.get(name) for name in Key._fields]
            if line.get("type") != "item" or not all(isinstance(part, str) for part in key):
                raise UsageError(f"{path}: line {number} is no result", hint="name another file")
            self._results.setdefault(Key(*map(str, key)), line)
        file.truncate(len(whole))

    def _check(self, path: Path, header: Mapping[str, Any]) -> None:
        """Raise where the file is not one to go on with."""
        settings, wrong = header.get("settings"), ""
        if header.get("type") != "settings" or not isinstance(settings, dict):
            wrong = "is no file of results"
        elif (found := header.get("format")) != FORMAT:
            wrong = f"is of format {found}, not {FORMAT}"
        elif (other := header.get("benchmark")) != self._header["benchmark"]:
            wrong = f"holds results of {other}"
        elif header.get("fingerprint") != self.fingerprint:
            differ = _differences(settings, self._header["settings"])
            raise UsageError(
                f"{path} was written with other settings: {differ}",
                hint="name another file, or ask with the settings of this one",
            )
        if wrong:
            raise UsageError(f"{path} {wrong}", hint="name another file")


def _text(value: Any) -> str:
    """One line of JSON, in ASCII: half of a surrogate pair, which a model may write, is no text."""
    return json.dumps(value, separators=(",", ":"), default=str)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _differences(old_settings: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The settings that differ, in words."""
    old, new = _flat(old_settings), _flat(now)
    told = [
        f"{key} was {_short(old.get(key))}, is {_short(new.get(key))}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]
    more = [f"and {len(told) - _NAMED} more"] if len(told) > _NAMED else []
    return "; ".join([*told[:_NAMED], *more])


def _flat(value: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        nested = isinstance(inner, dict) and inner
        found |= _flat(inner, f"{path}{key}.") if nested else {f"{path}{key}": inner}
    return found


def _short(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


# --- asking -----------------------------------------------------------------------------------


async def run_all(
    todo: Sequence[tuple[Key, Ask]], results: Results, step: Callable[[], None] = lambda: None
) -> list[Result]:
    """The results of all keys, in order: those that are there, and the others asked for.

    A completion that takes too long is a result without calls, and so is one that the server
    refuses (a prompt too long for it, say) while it takes others. Any other failure of the backend
    is raised, with everything before it written down.
    """
    found: dict[Key, Result] = {}
    refused: list[tuple[Key, BackendError]] = []

    def take_refused() -> None:
        for key, error in refused:
            found[key] = results.add(key, failed_result("refused", error))
        refused.clear()

    for key, ask in todo:
        known = results.get(key)
        if known is None:
            try:
                known = results.add(key, await ask())
            except BackendTimeout as error:
                known = results.add(key, failed_result("timeout", error))
            except BackendRefused as error:
                refused.append((key, error))
                if len(refused) >= REFUSALS:
                    raise
        if known is not None:
            found[key] = known
            take_refused()
        step()
    if refused and not found:
        raise refused[-1][1]
    take_refused()
    return [found[key] for key, _ in todo]


def result_of(proposal: Proposal, *, correct: bool, valid: bool, **fields: Any) -> Result:
    """The result of an item for which one turn was asked: whether it is right, what it said, what
    it cost."""
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


def failed_result(kind: str, error: MlxToolsError) -> dict[str, Any]:
    """The result of an item that the backend failed: no calls, no answer."""
    return {"correct": False, "valid": False, "error": kind, "message": str(error), "calls": []}


def describe_run(settings: RunSettings, limits: Limits, **fields: Any) -> dict[str, Any]:
    """All that results depend on besides question and strategy, as JSON: a file of results is of
    these settings. ``prompts`` is a digest of the words that the model reads."""
    given = {name: getattr(settings, name) for name in settings.__struct_fields__}
    for name in ("backend", "roots", "strategy", "require_tools", "verdict"):
        given.pop(name, None)
    if settings.chat_format is not None:
        given["chat_format"] = settings.chat_format.to_json()
    if settings.style == "auto":
        known = settings.verdict or VerdictChoice()
        given["style"] = known.verdict.style if known.verdict is not None else DEFAULT_STYLE
    kind, digest = settings.backend.get("kind"), words_digest()
    return given | {"backend": kind, "limits": limits.to_json(), "prompts": digest} | fields


# --- the summary ----------------------------------------------------------------------------------


class SummaryRow(Struct, frozen=True):
    """One category by one strategy. A number that the server did not report for all is None."""

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
        """The row as ``--json`` prints it."""
        shares = {"correct": _share(self.correct), "valid": _share(self.valid)}
        number = {"items": self.correct.total, "seconds": round(self.seconds, 3)}
        return asdict(self) | shares | number


def summarise(results: Sequence[Result]) -> tuple[SummaryRow, ...]:
    """What the results come to, in their order."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result["category"], result["strategy"]), []).append(result)
    return tuple(_row(*key, group) for key, group in groups.items())


def _row(category: str, strategy: str, group: Sequence[Result]) -> SummaryRow:
    prompts = _sum([one.get("prompt_tokens") for one in group])
    cached = _sum([one.get("cached_tokens") for one in group])
    told = [(one.get("completion_tokens"), one.get("pieces")) for one in group]
    # where no count was reported, the pieces in which it came
    generated = _sum([pieces if tokens is None else tokens for tokens, pieces in told])
    return SummaryRow(
        category=category,
        strategy=strategy,
        correct=Share(sum(bool(one["correct"]) for one in group), len(group)),
        valid=Share(sum(bool(one["valid"]) for one in group), len(group)),
        answered=sum(bool(one.get("answered")) for one in group),
        errors=dict(Counter(one["error"] for one in group if one.get("error"))),
        requests=sum(one.get("requests") or 0 for one in group),
        generated_tokens=generated,
        uncached_tokens=None if prompts is None or cached is None else prompts - cached,
        seconds=float(sum(one.get("seconds") or 0 for one in group)),
    )


def _sum(numbers: Sequence[Any]) -> int | None:
    return None if None in numbers else sum(numbers)


def _share(share: Share) -> dict[str, Any]:
    low, high = share.interval
    return {"hits": share.hits, "share": share.value, "low": low, "high": high}


# --- for people -------------------------------------------------------------------------------


def table(summary: Sequence[SummaryRow]) -> str:
    """The summary as text: strategies side by side, a line for each category; no line's end."""
    strategies = list(dict.fromkeys(row.strategy for row in summary))
    categories = list(dict.fromkeys(row.category for row in summary))
    rows = {(row.category, row.strategy): row for row in summary}
    columns = ("valid", "tokens", "time")
    lines = [["", "items", *(head for one in strategies for head in (one, *columns))]]
    for category in categories:
        found = [rows.get((category, strategy)) for strategy in strategies]
        counts = sorted({row.correct.total for row in found if row is not None})
        cells = [cell for row in found for cell in (_cells(row) if row is not None else [""] * 4)]
        lines.append([category, "-".join(map(str, counts)), *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = []
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        aligned.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(aligned)


def _cells(row: SummaryRow) -> list[str]:
    tokens = "" if row.generated_tokens is None else str(row.generated_tokens)
    low, high = (100 * end for end in row.correct.interval)
    right = f"{100 * (row.correct.value or 0.0):.1f} % ({low:.0f}-{high:.0f})"
    return [right, f"{100 * (row.valid.value or 0.0):.0f} %", tokens, f"{row.seconds:.0f} s"]
