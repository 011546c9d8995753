"""One turn, and nothing runs: what a model would write, how it is read, what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from time import monotonic
from typing import Any, Final

from msgspec import Struct, field

from mlx_tools.backends import Backend
from mlx_tools.controller import Complete, Controller, RunSettings, Session, SessionInputs
from mlx_tools.errors import BackendError, wrong_argument
from mlx_tools.messages import FinalAnswer, ToolCall, ToolSpec, Usage, replace, total_usage
from mlx_tools.policy import Limits, Policy
from mlx_tools.protocol import Reading, judge, read, with_mended
from mlx_tools.store import MemoryStore, SessionFiles, load_words
from mlx_tools.tools import Registry, Tool
from mlx_tools.transcript import (
    CompletionRecord,
    Header,
    MendRecord,
    Record,
    StoppedRecord,
)

_COMPLETING: Final = (MendRecord, CompletionRecord)
"""The records of the model's turn."""


class Proposal(Struct, frozen=True, kw_only=True):
    """One turn as a model would write it.

    ``calls`` are those it makes, right or wrong, with the arguments as the tools would get them;
    ``answered`` says that it answers. ``valid``: it keeps to the protocol with no repair, and every
    call names a known tool and fits its schema. ``error`` is the code of the first fault.
    ``strategy`` is how the turn was written at last. ``requests``, ``usage``, ``pieces`` (of text,
    with a stock server as many as tokens) and ``seconds`` are of the whole turn, a first try
    included; ``completion`` is its text, the host's part included. ``tools`` are those it was held
    to: the given ones, and `tool_search` where they do not all fit into the catalog.
    """

    calls: tuple[ToolCall, ...] = ()
    answered: bool = False
    valid: bool = False
    error: str | None = None
    strategy: str = "free"
    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    pieces: int | None = None
    seconds: float = 0.0
    completion: str = ""
    reasoning: str = ""
    reading: Reading = field(default_factory=Reading)
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)


class Proposer:
    """Asks for one turn as a run does: same prompt, same limits.

    Every call waits for an approval that nobody gives, so nothing runs.
    """

    def __init__(
        self, backend: Backend, *, settings: RunSettings | None = None, limits: Limits | None = None
    ) -> None:
        self._backend = backend
        self._settings = settings or RunSettings()
        self._limits = limits

    async def __call__(
        self,
        question: str,
        tools: Mapping[str, ToolSpec],
        *,
        history: Sequence[Mapping[str, Any]] = (),
        context: str = "",
    ) -> Proposal:
        """Return what the model would write.

        ``history`` are earlier messages as `Controller.run` takes them; ``context`` is told to the
        model besides the settings' project context. Raises the `BackendError` that left no turn to
        be had; `BackendTimeout` where there was no time for one.
        """
        if not isinstance(tools, Mapping):
            raise wrong_argument("tools", tools, "give specs by name")
        settings = self._settings
        if context:
            parts = filter(None, (settings.project_context, context))
            settings = replace(settings, project_context="\n\n".join(parts))
        registry = Registry([Tool(spec, _never) for spec in tools.values()])
        controller = Controller(
            self._backend,
            registry,
            Policy(allow=["*"], ask=["*"]),
            limits=self._limits,
            settings=settings,
            store=_StoreWithoutArtifacts(),
        )
        began = monotonic()
        async with await controller.conversation(history=history) as conversation:
            await conversation.take_turn(question)
            records = [*conversation.files.transcript]
        return _proposal(records, registry.specs(), settings, seconds=monotonic() - began)


def _proposal(
    records: Sequence[Record],
    tools: Mapping[str, ToolSpec],
    settings: RunSettings,
    *,
    seconds: float,
) -> Proposal:
    completions = [record for record in records if isinstance(record, CompletionRecord)]
    if not completions:
        ends = (record.message for record in records if isinstance(record, StoppedRecord))
        raise BackendError(next(ends, "there was no completion"))
    opening = [*takewhile(lambda record: not isinstance(record, _COMPLETING), records)]
    last = completions[-1]
    reading = _reading(opening, last, tools)
    judged = judge(reading, tools, tool_choice=settings.tool_choice)
    errors = [error for error in (reading.error, *(call.error for call in judged)) if error]
    calls = tuple(call.call for call in judged)
    answers = [message for message in reading.messages if isinstance(message, FinalAnswer)]
    repaired = any(call.repairs for call in calls) or any(answer.repairs for answer in answers)
    native = isinstance(opening[0], Header) and opening[0].style == "native"
    bare = reading.bare_text and not native  # where bare text is how an answer is written
    return Proposal(
        calls=calls,
        answered=bool(answers),
        valid=bool(reading.messages) and not (errors or repaired or bare),
        error=errors[0].code if errors else None,
        strategy=last.strategy,
        requests=sum(completion.requests for completion in completions),
        usage=total_usage([completion.usage for completion in completions]),
        pieces=_total([completion.pieces for completion in completions]),
        seconds=seconds,
        completion=last.prefix + last.text,
        reasoning=last.reasoning,
        reading=reading,
        tools=tools,
    )


def _total(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _reading(
    opening: Sequence[Record], completion: CompletionRecord, tools: Mapping[str, ToolSpec]
) -> Reading:
    """Return how a completion of the first turn is read."""
    if completion.error is not None:
        return Reading(error=completion.error)
    due = Session.from_records(opening, SessionInputs(specs=tools, words=load_words())).next_step()
    assert isinstance(due, Complete)
    rules = replace(due.rules, prefix=completion.prefix)
    reading = read(completion.text, completion.finish_reason or "stop", rules)
    return with_mended(reading, completion.mended)


class _StoreWithoutArtifacts(MemoryStore):
    """Keeps no long outputs: their reader would be a tool that nobody named."""

    def create(self) -> SessionFiles:
        return replace(super().create(), artifacts=None)


def _never(arguments: Mapping[str, Any]) -> Any:
    raise AssertionError("a proposed call must not run")
