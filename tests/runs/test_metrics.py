"""`/metrics`: what was done, in Prometheus' form, with labels that nobody outside can add to."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest

from mlx_tools.gateway.meters import Meters
from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.paths import read_data
from mlx_tools.plugins.runs.meters import RUN_METERS, count_event
from mlx_tools.testing import answer, call
from mlx_tools.transcript import events
from tests.runs.conftest import ask, wait_for_rest

pytestmark = pytest.mark.anyio

SECRET = "zebra"
_LINE = re.compile(r'(mlx_tools_\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? ([-+\d.e]+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """The numbers of a page, by name and labels; each belongs to what was declared before it."""
    found: Samples = {}
    declared = ""
    for line in text.splitlines():
        if line.startswith("#"):
            declared = line.split()[2]
            continue
        read = _LINE.fullmatch(line)
        assert read is not None, line
        name, labels, value = read.groups()
        assert re.sub("_(bucket|sum|count)$", "", name) == declared
        key = name, tuple(sorted(_LABEL.findall(labels or "")))
        assert key not in found
        found[key] = float(value)
    return found


async def page(one: Any) -> Samples:
    return samples((await one.client.get("/metrics")).text)


async def used(begin: Any) -> Any:
    """A gateway that was asked for turns and for runs, by clients that make names up."""
    broken = call("area", width=2, height=3).replace('"height": 3}', '"height": 3,}')
    one = begin(
        SECRET,  # a turn
        *(broken, call("lookup", word=SECRET)),  # a run, until its client is to act
        *(call(SECRET), answer(SECRET)),
    )
    turn = {"messages": [{"role": "user", "content": SECRET}]}
    await one.client.post("/v1/chat/completions", json=turn)
    await one.client.post("/v1/chat/completions", json=turn | {"model": SECRET})
    own = {"name": "lookup", "description": SECRET, "parameters": {"type": "object"}}
    made = await ask(one, client_tools=[own])
    given = {"call_id": made["pending"][0]["call_id"], "output": SECRET}
    await one.client.post(f"/v1/runs/{made['id']}/tool_results", json=given)
    assert (await wait_for_rest(one, made["id"]))["status"] == "answered"
    return one


def test_turns_and_runs_are_counted_by_model_tool_and_end(begin: Any) -> None:
    async def main() -> None:
        found = await page(await used(begin))

        def number(name: str, **labels: str) -> float:
            return found[f"mlx_tools_{name}", tuple(sorted(labels.items()))]

        assert number("requests_total", path="/v1/chat/completions") == 2
        assert number("errors_total", code="model_not_found") == 1
        assert number("runs_total", model="scripted", end="paused") == 1
        assert number("runs_total", model="scripted", end="answered") == 1
        assert number("calls_total", tool="area", result="ok") == 1
        assert number("calls_total", tool="client", result="ok") == 1
        assert number("repairs_total", repair="trailing_comma") == 1
        assert number("mends_total", kind="name") == 1
        assert number("turn_seconds_count", model="scripted") == 4
        assert number("call_seconds_count", tool="area") == 1
        assert number("call_seconds_bucket", tool="area", le="+Inf") == 1
        assert number("active", of="turns") == number("waiting", of="runs") == 0

    anyio.run(main)


async def test_no_label_is_what_a_client_or_a_model_made_up(begin: Any) -> None:
    one = await used(begin)
    error = ErrorInfo("unknown_tool", SECRET)
    ended = {"preview": SECRET, "duration_ms": None, "output_size_chars": None}
    unknown = events.ToolEnded(call="c1", name=SECRET, error=error, **ended)
    count_event(one.meters, unknown, 'a "name"\n\\', {})
    one.meters.turn('a "name"\n\\', Usage(1), 0.2)
    found = await page(one)
    labels = {(key, value) for _, some in found for key, value in some}
    assert SECRET not in json.dumps(sorted(labels))
    assert "lookup" not in {value for _, value in labels}
    assert {value for key, value in labels if key == "tool"} <= {
        *("area", "keep", "read_artifact", "client", "unknown")
    }
    assert {value for key, value in labels if key == "model"} == {*("scripted", r"a \"name\"\n\\")}


async def test_every_query_of_the_dashboard_asks_for_what_there_is(begin: Any) -> None:
    one = await used(begin)
    text = (await one.client.get("/metrics")).text
    declared = {line.split()[2]: line.split()[3] for line in text.splitlines() if "TYPE" in line}
    labels: dict[str, set[str]] = {}
    for name, some in samples(text):
        labels.setdefault(name, set()).update(key for key, _ in some)
    panels = json.loads(read_data("config/grafana.json"))["panels"]
    asked = set()
    for target in (target for panel in panels for target in panel["targets"]):
        names = set(re.findall(r"mlx_tools_\w+", target["expr"]))
        assert names, target
        for name in names:
            base = name.removesuffix("_bucket")
            assert (declared[base] == "histogram") == (name != base)
            wanted = {
                word
                for some in re.findall(r"by \(([^)]*)\)", target["expr"])
                for word in some.split(", ")
            }
            wanted |= set(re.findall(r"(\w+)!?=\"", target["expr"]))
            assert wanted <= labels.get(name, wanted), target
            asked.add(base)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= (
            labels.get(max(names), set()) | wanted
        )
    assert asked == set(declared)


def test_a_call_that_an_earlier_answer_served_took_no_time() -> None:
    meters = Meters()
    meters.declare(RUN_METERS)
    for cached in (False, True):
        ended = events.ToolEnded(
            call="c1",
            name="area",
            error=None,
            preview="",
            duration_ms=0,
            output_size_chars=0,
            cached=cached,
        )
        count_event(meters, ended, "m", {"area": "area"})
    found = samples(meters.text({}))
    assert found["mlx_tools_calls_total", (("result", "ok"), ("tool", "area"))] == 2
    assert found["mlx_tools_call_seconds_count", (("tool", "area"),)] == 1


async def test_a_time_counts_in_each_bucket_that_is_no_shorter() -> None:
    meters = Meters()
    meters.declare(RUN_METERS)
    for seconds in (0.05, 0.5, 300, 301):
        meters.time("turn_seconds", seconds, model="m")
    found = samples(meters.text({}))
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in found.items()
        if name == "mlx_tools_turn_seconds_bucket"
    }
    assert buckets == {
        "0.1": 1,
        "0.5": 2,
        "1": 2,
        "2.5": 2,
        "5": 2,
        "10": 2,
        "30": 2,
        "60": 2,
        "300": 3,
        "+Inf": 4,
    }
    assert found["mlx_tools_turn_seconds_count", (("model", "m"),)] == 4
    assert found["mlx_tools_turn_seconds_sum", (("model", "m"),)] == 601.55
