"""A completion as it was written and read, and its record."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlx_tools.due import Complete
from mlx_tools.messages import FinishReason, Usage
from mlx_tools.protocol import Reading
from mlx_tools.records import CompletionRecord


@dataclass(slots=True)
class Written:
    """What the model wrote, and how it was read. ``thought`` came before the forced prefix;
    ``requests`` and ``pieces`` are what a `CompletionRecord` says of its cost."""

    thought: str = ""
    prefix: str = ""
    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    closed_early: bool = False
    requests: int = 0
    pieces: int = 0
    reading: Reading = field(default_factory=Reading)

    def record(
        self, due: Complete, asked: str, *, duration_ms: int | None = None, at: str = ""
    ) -> CompletionRecord:
        """The record of what came of ``due``; ``asked`` is the prompt before it."""
        reading = self.reading
        kept = len(asked) if due.prompt.startswith(asked) else 0
        unfilled = reading.error is not None and reading.error.code == "unfilled"
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
            requests=self.requests,
            pieces=self.pieces,
            at=at,
            error=reading.error if unfilled else None,
            prompt=due.prompt[kept:],
            kept=kept,
        )
