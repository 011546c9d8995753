"""What a call was recorded to give, and the observation that is made of it today."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Session
from mlx_tools.messages import ErrorInfo
from mlx_tools.tools import ToolResult
from mlx_tools.transcript.records import ObservationRecord

Given = str | ErrorInfo
"""What a tool gave: its output, or an error."""


@dataclass(frozen=True, slots=True)
class RecordedArtifacts:
    """Stands for the store of artifacts: what was kept, is kept under the id that it had."""

    artifact: str | None

    @property
    def keep_all(self) -> bool:
        """Whether an output is kept that a model can be shown whole."""
        return self.artifact is not None

    def put(self, text: str) -> str | None:
        """The id."""
        return self.artifact

    def sweep(self) -> None:
        """There is nothing to remove."""


def given_by(session: Session, record: ObservationRecord) -> Given:
    """What the tool gave, as far as the record says, without the host's own words around it."""
    if record.error is not None:
        message = record.whole if record.whole is not None else record.error.message
        return ErrorInfo(record.error.code, message)
    if record.whole is not None:
        return record.whole
    text = record.content or ""
    if session.current.was_edited(record.call):
        arguments = session.current.call(record.call).arguments
        text = text.removeprefix(session.words.edited_notice(arguments))
    return text


def observed(session: Session, record: ObservationRecord, given: Given) -> ObservationRecord:
    """The record of the same call, had its tool given ``given``: cut and cleaned as today."""
    failed = isinstance(given, ErrorInfo)
    size = record.output_size_chars
    result = ToolResult(
        None if failed else cast(str, given),
        cast(ErrorInfo, given) if failed else None,
        record.duration_ms or 0,
        size or 0,
    )
    outputs = Outputs(session, cast(Any, RecordedArtifacts(record.artifact)))
    shown = outputs.take(session.current.call(record.call), result)
    return replace(record, content=shown.content, error=shown.error, artifact=shown.artifact)
