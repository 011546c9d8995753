"""OpenTelemetry spans of a run, if the program has loaded ``opentelemetry.trace``.

There is one span for the run, and below it one for each completion and each call that ran. Their
names are those of the semantic conventions for generative AI (1.41, still in development). Spans
have no texts, such as prompts, answers, arguments, outputs or error messages. They have only names,
numbers and codes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from mlx_tools.controller import RunObserver
from mlx_tools.messages import Usage, total_usage
from mlx_tools.transcript import (
    CompactedRecord,
    CompletionRecord,
    Header,
    Record,
    StoppedRecord,
    SummaryRecord,
    events,
)

NAME: Final = "mlx-tools"
"""The names in the conventions for the agent, and for the provider of prompted completions."""


_OUTCOMES: Final = {"final_answer": "answered", "paused": "paused", "stopped": "stopped"}


def trace_run(transcript: Sequence[Record]) -> RunObserver | None:
    """Return an observer that makes spans of a run, None if no spans are recorded.

    Args:
        transcript: the records of the session, the header first. It grows as the run goes on.
    """
    # Not imported here: without a program that records spans, the import would only cost time, half
    # as much as a whole start.
    api = sys.modules.get("opentelemetry.trace")
    return None if api is None else make_spans(transcript, api)


def make_spans(transcript: Sequence[Record], api: Any) -> RunObserver | None:
    """Return the spans of a run, None if ``api`` records none.

    Args:
        transcript: the records of the session.
        api: the module ``opentelemetry.trace``.
    """
    unset = getattr(api, "ProxyTracerProvider", None)  # the provider if no program has set one
    if unset is not None and isinstance(api.get_tracer_provider(), unset):
        return None
    spans = _Spans(transcript, api)
    return spans if spans.recording else None


class _Spans:
    """The open spans of a run."""

    def __init__(self, records: Sequence[Record], api: Any) -> None:
        self._api = api
        self._records = records
        self._start = len(records)
        self._tracer = api.get_tracer("mlx_tools")
        self._header = next(record for record in records if isinstance(record, Header))
        self._of_agent = {
            "gen_ai.provider.name": NAME,
            "gen_ai.request.model": self._header.model,
        }
        self._completion: Any = None
        self._calls: dict[str, Any] = {}
        self._enclosing_span: Any = None
        self._run = self._begin("invoke_agent", NAME, self._of_agent | {"gen_ai.agent.name": NAME})
        self._enclosing_span = api.set_span_in_context(self._run)
        self.recording = self._run.is_recording()

    def _begin(
        self, operation: str, name: str | None, values: dict[str, Any], kind: str = "INTERNAL"
    ) -> Any:
        common = {
            "gen_ai.operation.name": operation,
            "gen_ai.conversation.id": self._header.session,
        }
        return self._tracer.start_span(
            f"{operation} {name}" if name else operation,
            context=self._enclosing_span,
            kind=getattr(self._api.SpanKind, kind),
            attributes=_drop_unknown(common | values),
        )

    def tell(self, event: events.Event) -> None:
        """Open or close the span of an event."""
        match event:
            case events.TurnStarted():
                header = self._header
                values = self._of_agent | {
                    "gen_ai.request.temperature": header.sampling.get("temperature"),
                    "gen_ai.request.seed": header.sampling.get("seed"),
                    "gen_ai.request.max_tokens": header.limits.get("max_tokens"),
                    "mlx_tools.controller.turn": event.turn,
                    "mlx_tools.prompt_chars": event.prompt_chars,
                }
                self._completion = self._begin("text_completion", header.model, values, "CLIENT")
            case events.TurnEnded():
                self._end_completion(event)
            case events.FormatBroken():
                self._run.add_event("mlx_tools.correction", {"error.type": event.error.code})
            case events.ToolStarted():
                values = {
                    "gen_ai.tool.name": event.name,
                    "gen_ai.tool.type": "function",
                    "gen_ai.tool.call.id": event.call,
                }
                self._calls[event.call] = self._begin("execute_tool", event.name, values)
            case events.ToolEnded():
                self._end_call(event)

    def end(self, error: BaseException | None) -> None:
        """Close the open spans, and that of the run."""
        last = self._records[-1]
        code: str | None = last.reason if isinstance(last, StoppedRecord) else None
        if code is None and error is not None:
            code = type(error).__name__
        for span in (self._completion, *self._calls.values()):
            if span is not None:
                self._close(span, code or "interrupted")
        asked = (CompletionRecord, SummaryRecord, CompactedRecord)
        run = self._records[self._start :]
        usage = total_usage([record.usage for record in run if isinstance(record, asked)])
        outcome = _OUTCOMES.get(last.type, "unfinished")
        self._run.set_attributes(_make_usage(usage) | {"mlx_tools.transcript.outcome": outcome})
        self._close(self._run, code)

    def _end_completion(self, event: events.TurnEnded) -> None:
        span, self._completion = self._completion, None
        span.set_attributes(_make_usage(event.usage))
        record = self._records[-1]
        if isinstance(record, CompletionRecord):
            if record.finish_reason is not None:
                span.set_attribute("gen_ai.response.finish_reasons", [record.finish_reason])
            span.set_attribute("mlx_tools.strategy", record.strategy)
            span.set_attribute("mlx_tools.requests", record.requests)
        self._close(span, None)

    def _end_call(self, event: events.ToolEnded) -> None:
        span = self._calls.pop(event.call, None)
        code = event.error.code if event.error is not None else None
        if span is None:  # the call never ran
            # The name of an unknown tool is a text of the model, which spans must not have.
            name = event.name if code != "unknown_tool" else None
            values = {"error.type": code, "gen_ai.tool.name": name}
            self._run.add_event("mlx_tools.call_refused", _drop_unknown(values))
            return
        if event.output_size_chars is not None:
            span.set_attribute("mlx_tools.output_size_chars", event.output_size_chars)
        self._close(span, code)

    def _close(self, span: Any, code: str | None) -> None:
        if code is not None:
            span.set_attribute("error.type", code)
            span.set_status(self._api.Status(self._api.StatusCode.ERROR, code))
        span.end()


def _drop_unknown(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _make_usage(usage: Usage) -> dict[str, Any]:
    values = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
    }
    return _drop_unknown(values)
