"""Spans of runs: by the conventions' names, and without a word of what was said."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from mlx_tools import Controller, Policy, tool
from mlx_tools.app import build_controller, config
from mlx_tools.controller import PauseApprover, RunSettings
from mlx_tools.errors import BackendBroken
from mlx_tools.messages import Usage
from mlx_tools.plugins.telemetry.spans import make_spans
from mlx_tools.testing import Script, ScriptedBackend, answer, call
from mlx_tools.tools import Registry
from mlx_tools.transcript import Header

SECRET = "zebra"
"""Stands in the question, the arguments, the outputs, the errors and the answer."""


@tool(effects={"read"})
def look(word: str = "") -> str:
    """Looks."""
    return f"{SECRET} seen"


@tool(effects={"read"})
def broken() -> str:
    """Fails."""
    raise ValueError(SECRET)


class Span:
    """A span that keeps what it is told."""

    def __init__(self, name: str, kind: str, attributes: dict[str, Any], parent: Any) -> None:
        self.name, self.kind, self.attributes, self.parent = name, kind, attributes, parent
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.status: tuple[str, str] | None = None
        self.ended = 0

    def is_recording(self) -> bool:
        return True

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def set_attributes(self, values: dict[str, Any]) -> None:
        self.attributes.update(values)

    def add_event(self, name: str, attributes: dict[str, Any]) -> None:
        self.events.append((name, attributes))

    def set_status(self, status: tuple[str, str]) -> None:
        self.status = status

    def end(self) -> None:
        self.ended += 1


class Api:
    """As much of ``opentelemetry.trace`` as is used."""

    SpanKind = SimpleNamespace(INTERNAL="internal", CLIENT="client")
    StatusCode = SimpleNamespace(ERROR="error")

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def get_tracer(self, name: str) -> Api:
        return self

    def start_span(
        self, name: str, *, kind: str, attributes: dict[str, Any], context: Any = None
    ) -> Span:
        self.spans.append(Span(name, kind, dict(attributes), context))
        return self.spans[-1]

    def set_span_in_context(self, span: Span) -> Span:
        return span

    def Status(self, code: str, description: str) -> tuple[str, str]:  # noqa: N802
        return code, description


async def traced(api: Any, *script: Any, question: str = f"Where is the {SECRET}?") -> Any:
    """Return the last record of a session whose second run was traced."""
    controller = Controller(
        ScriptedBackend(answer("hello"), *script),
        [look, broken],
        Policy(allow=["look", "broken"]),
        settings=RunSettings(strategy="free"),
        observers=[lambda records: make_spans(records, api) if len(records) > 1 else None],
    )
    async with await controller.conversation() as conversation:
        await conversation.run("Hello?")
        await conversation.run(question)
        return conversation.files.transcript[-1]


def run(*script: Any) -> list[Span]:
    api = Api()
    anyio.run(lambda: traced(api, *script))
    return api.spans


def test_a_run_its_completions_and_its_calls_are_spans() -> None:
    lines = call("look", word=SECRET) + "\n" + call("broken")
    usage = Usage(100, 40, 7)
    spans = run(Script(lines, usage=usage), Script(answer(SECRET), usage=usage))
    top, first, *calls, second = spans
    assert [span.name for span in spans] == [
        "invoke_agent mlx-tools",
        "text_completion scripted",
        "execute_tool look",
        "execute_tool broken",
        "text_completion scripted",
    ]
    assert [span.kind for span in spans] == ["internal", "client", *["internal"] * 2, "client"]
    assert all(span.ended == 1 for span in spans)
    assert top.parent is None and all(span.parent is top for span in spans[1:])
    assert top.attributes["gen_ai.usage.input_tokens"] == 200
    assert top.attributes["mlx_tools.transcript.outcome"] == "answered"
    assert first.attributes["gen_ai.operation.name"] == "text_completion"
    assert first.attributes["gen_ai.usage.input_tokens"] == 100
    assert first.attributes["gen_ai.usage.cache_read.input_tokens"] == 40
    assert first.attributes["gen_ai.usage.output_tokens"] == 7
    assert second.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {
        top.attributes["gen_ai.conversation.id"]
    }
    by_name = {span.attributes["gen_ai.tool.name"]: span for span in calls}
    assert by_name["look"].status is None
    assert by_name["look"].attributes["mlx_tools.output_size_chars"] == len(f"{SECRET} seen")
    assert by_name["broken"].status == ("error", "tool_error")
    assert by_name["broken"].attributes["error.type"] == "tool_error"


def test_no_span_holds_a_word_of_what_was_said() -> None:
    spans = run(
        f'{{"type": "tool_call", "name": "{SECRET}", "arguments": {{}}}}',
        call("broken"),
        call("look", word=SECRET),
        answer(SECRET),
    )
    told = json.dumps([[s.name, s.attributes, s.events, s.status] for s in spans])
    assert SECRET not in told
    refused = [values for name, values in spans[0].events if name == "mlx_tools.call_refused"]
    assert refused == [{"error.type": "unknown_tool"}]


def test_a_run_that_stops_has_its_reason_as_status() -> None:
    top, *_, last = run(call("look"), BackendBroken(SECRET))
    assert top.status == ("error", "backend_error")
    assert top.attributes["mlx_tools.transcript.outcome"] == "stopped"
    assert (last.name, last.status) == ("text_completion scripted", ("error", "backend_error"))
    assert last.ended == 1


class Faulty(Api):
    """An interface of which some part fails."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def __getattribute__(self, name: str) -> Any:
        if name != "_part" and name == self._part:
            raise RuntimeError("no telemetry today")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    "part", ["get_tracer", "start_span", "set_span_in_context", "SpanKind", "Status"]
)
def test_nothing_that_goes_wrong_with_spans_reaches_the_run(part: str) -> None:
    last = anyio.run(lambda: traced(Faulty(part), call("broken"), answer("Done.")))
    assert last.type == "final_answer"


def test_a_run_that_nobody_records_has_no_spans() -> None:
    class Idle(Api):
        def start_span(self, name: str, **more: Any) -> Any:
            return SimpleNamespace(is_recording=lambda: False)

    class Unset(Api):
        class ProxyTracerProvider:
            pass

        def get_tracer_provider(self) -> Any:
            return self.ProxyTracerProvider()

    transcript = [Header(session="s", created="")]
    assert make_spans(transcript, Idle()) is None
    assert make_spans(transcript, Unset()) is None
    assert make_spans(transcript, Api()) is not None


def test_runs_of_the_settings_are_traced_once_the_program_has_loaded_opentelemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_file = tmp_path / "none.toml"
    loaded = config.load(environ={}, cwd=tmp_path, user_file=user_file, home=tmp_path)
    monkeypatch.setenv("MLX_TOOLS_STATE_DIR", str(tmp_path))
    backend = ScriptedBackend(answer("one"), answer("two"))
    settings = RunSettings(strategy="free")
    controller = build_controller(loaded, Registry([look]), backend, settings, PauseApprover())
    for name in ("opentelemetry", "opentelemetry.trace"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert controller.run_sync("Hello?").answer == "one"
    api = Api()
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", api)
    assert controller.run_sync("Hello?").answer == "two"
    assert [span.name for span in api.spans][:1] == ["invoke_agent mlx-tools"]


@contextmanager
def exported() -> Iterator[Any]:
    """The spans that the real SDK gives to an exporter."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    api = SimpleNamespace(**{name: getattr(trace, name) for name in trace.__all__})
    api.get_tracer = provider.get_tracer
    yield api, exporter
    provider.shutdown()


def test_the_real_sdk_takes_the_spans() -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    with exported() as (api, exporter):
        script = (call("look", word=SECRET), call("broken"), answer(SECRET))
        anyio.run(lambda: traced(api, *script))
        spans = {span.name: span for span in exporter.get_finished_spans()}
    top = spans["invoke_agent mlx-tools"]
    assert spans["execute_tool look"].parent.span_id == top.context.span_id
    assert spans["execute_tool broken"].status.description == "tool_error"
    assert SECRET not in " ".join(span.to_json() for span in spans.values())


def test_names_are_those_of_the_conventions() -> None:
    known = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    # All say that they moved to a repository of their own; some, what stands in their place.
    said = re.findall(r'Final = \(?\s*"(gen_ai[^"]*)"\s*\)?\n"""([^"]*)', inspect.getsource(known))
    names = {name for name, about in said if not re.match(r"\s*Deprecated: Re", about)}
    assert "gen_ai.provider.name" in names and "gen_ai.system" not in names
    usage = Usage(100, 40, 7)
    spans = run(Script(call("look"), usage=usage), Script(answer(), usage=usage))
    used = {name for span in spans for name in span.attributes if not name.startswith("mlx_tools.")}
    assert {"gen_ai.request.model", "gen_ai.tool.name", "gen_ai.usage.input_tokens"} <= used
    assert used <= names
    operations = {span.attributes["gen_ai.operation.name"] for span in spans}
    assert operations <= {one.value for one in known.GenAiOperationNameValues}
