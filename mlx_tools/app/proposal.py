"""A proposal: one turn of a model, whose calls do not run, and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from time import monotonic
from typing import Any, Final

from msgspec import Struct, field

from mlx_tools.app.hooks import collect
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
    """One turn of a model, whose calls did not run."""

    calls: tuple[ToolCall, ...] = ()
    """Its calls, right or wrong, with the arguments that the tools would get."""
    answered: bool = False
    """True if it answers."""
    valid: bool = False
    """True if it needs no repair, and every call names a known tool and fits its schema."""
    error: str | None = None
    """The code of the first error, None if there is none."""
    strategy: str = "free"
    """The strategy of the last completion."""
    requests: int = 0
    """Requests of the whole turn. A first try that failed counts here and in the sums below."""
    usage: Usage = field(default_factory=Usage)
    pieces: int | None = None
    """Pieces of text. Most servers send one for each token."""
    seconds: float = 0.0
    completion: str = ""
    """The text, including the part that the host wrote."""
    reasoning: str = ""
    reading: Reading = field(default_factory=Reading)
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    """The tools of the turn: the given ones, and `tool_search` if not all fit the catalog."""


class Proposer:
    """Asks for one turn with the same prompt and the same limits as a run.

    Every call waits for an approval that never comes, so no tool runs.
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
        """Return the turn that the model would write.

        Args:
            question: the question.
            tools: the tools by name.
            history: earlier messages, as in `Controller.run`.
            context: a text for the model besides the settings' project context.

        Raises:
            BackendTimeout: the time was too short.
            BackendError: the backend failed before the turn was complete.
        """
        if not isinstance(tools, Mapping):
            raise wrong_argument("tools", tools, "give specs by name")
        settings = self._settings
        if context:
            parts = filter(None, (settings.project_context, context))
            settings = replace(settings, project_context="\n\n".join(parts))
        registry = Registry([Tool(spec, _refuse_call) for spec in tools.values()])
        controller = Controller(
            self._backend,
            registry,
            Policy(allow=["*"], ask=["*"]),
            limits=self._limits,
            settings=settings,
            store=_StoreWithoutArtifacts(),
            observers=collect("observers"),
        )
        started_at = monotonic()
        async with await controller.conversation(history=history) as conversation:
            await conversation.take_turn(question)
            records = [*conversation.files.transcript]
        return _make_proposal(records, registry.specs(), settings, seconds=monotonic() - started_at)


def _make_proposal(
    records: Sequence[Record],
    tools: Mapping[str, ToolSpec],
    settings: RunSettings,
    *,
    seconds: float,
) -> Proposal:
    completions = [record for record in records if isinstance(record, CompletionRecord)]
    if not completions:
        stops = [record for record in records if isinstance(record, StoppedRecord)]
        is_full = any(stop.reason == "context_full" for stop in stops)
        raise BackendError(
            stops[0].message if stops else "there was no completion",
            hint="ask for less at once" if is_full else None,
        )
    opening = [*takewhile(lambda record: not isinstance(record, _COMPLETING), records)]
    last = completions[-1]
    reading = _find_reading(opening, last, tools)
    judged = judge(reading, tools, tool_choice=settings.tool_choice)
    errors = [error for error in (reading.error, *(call.error for call in judged)) if error]
    calls = tuple(call.call for call in judged)
    answers = [message for message in reading.messages if isinstance(message, FinalAnswer)]
    repaired = any(call.repairs for call in calls) or any(answer.repairs for answer in answers)
    native = isinstance(opening[0], Header) and opening[0].style == "native"
    bare = reading.bare_text and not native  # the native style writes answers as bare text
    return Proposal(
        calls=calls,
        answered=bool(answers),
        valid=bool(reading.messages) and not (errors or repaired or bare),
        error=errors[0].code if errors else None,
        strategy=last.strategy,
        requests=sum(completion.requests for completion in completions),
        usage=total_usage([completion.usage for completion in completions]),
        pieces=_sum_known([completion.pieces for completion in completions]),
        seconds=seconds,
        completion=last.prefix + last.text,
        reasoning=last.reasoning,
        reading=reading,
        tools=tools,
    )


def _sum_known(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _find_reading(
    opening: Sequence[Record], completion: CompletionRecord, tools: Mapping[str, ToolSpec]
) -> Reading:
    """Return the reading of a completion of the first turn."""
    if completion.error is not None:
        return Reading(error=completion.error)
    step = Session.from_records(opening, SessionInputs(specs=tools, words=load_words())).next_step()
    assert isinstance(step, Complete)
    rules = replace(step.rules, prefix=completion.prefix)
    reading = read(completion.text, completion.finish_reason or "stop", rules)
    return with_mended(reading, completion.mended_messages)


class _StoreWithoutArtifacts(MemoryStore):
    """A store that keeps no long outputs, since their reader would be one more tool."""

    def create(self) -> SessionFiles:
        return replace(super().create(), artifacts=None)


def _refuse_call(arguments: Mapping[str, Any]) -> Any:
    raise AssertionError("a proposed call must not run")
