"""A completion as it was written and read, and its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlx_tools.controller.step import Complete
from mlx_tools.messages import FinishReason, Usage, total_usage
from mlx_tools.protocol import Reading
from mlx_tools.transcript.records import CompletionRecord, MendRecord


@dataclass(slots=True)
class Written:
    """What the model wrote, and how it was read. ``thought`` came before the forced prefix;
    ``requests`` and ``pieces`` are what a `CompletionRecord` says of its cost, ``tokens`` how many
    the model wrote, as far as is known."""

    thought: str = ""
    prefix: str = ""
    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    closed_early: bool = False
    _spent: bool = False
    requests: int = 0
    pieces: int = 0
    tokens: int = 0
    reading: Reading = field(default_factory=Reading)
    mends: tuple[MendRecord, ...] = ()
    mended: tuple[int, ...] = ()

    def spend(self, usage: Usage | None) -> None:
        """Adds what one request cost. A stream that was closed reports nothing: a number that one
        request did not report is not known of them all."""
        said = usage or Usage()
        self.usage = total_usage((self.usage, said)) if self._spent else said
        self._spent = True

    def record(
        self, due: Complete, asked: str, *, duration_ms: int | None = None, at: str = ""
    ) -> CompletionRecord:
        """The record of what came of ``due``; ``asked`` is the prompt before it."""
        reading = self.reading
        kept = len(asked) if due.prompt.startswith(asked) else 0
        code = None if reading.error is None else reading.error.code
        return CompletionRecord(
            turn=due.turn,
            prefix=self.prefix,
            text=self.text,
            counted=reading.counted,
            finish_reason=self.finish_reason,
            closed_early=self.closed_early,
            usage=self.usage,
            duration_ms=duration_ms,
            reasoning=self.thought + reading.reasoning,
            commentary=reading.commentary,
            dropped=reading.dropped,
            bare_text=reading.bare_text,
            strategy=due.strategy,
            mended=self.mended,
            requests=self.requests,
            pieces=self.pieces,
            at=at,
            error=reading.error if code in ("unfilled", "unknown_tool") else None,
            prompt=due.prompt[kept:],
            kept=kept,
        )


def misfits(mends: Sequence[MendRecord]) -> Iterator[tuple[str, str]]:
    """What stood of the turn at each of its mends, and what stood there that did not fit."""
    stood = ""
    for mend in mends:
        text = stood + "".join(mend.drawn)
        kept = 0 if mend.anew else mend.kept
        yield text[:kept], text[kept:]
        stood = text[:kept] + mend.put
