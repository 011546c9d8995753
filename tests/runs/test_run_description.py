"""``/v1/runs`` holds to its own description, whatever is asked: requests that schemathesis makes of
it, those that fit it and those that just do not, of runs that stand as runs can."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_tools.backends import Chunk, CompletionRequest
from mlx_tools.gateway.openapi import OPERATIONS, SCHEMAS, openapi_document
from mlx_tools.plugins.runs.description import RUN_OPERATIONS, RUN_SCHEMAS
from mlx_tools.testing import answer, call
from tests.runs.conftest import KEY
from tests.waiting import HANG

pytestmark = pytest.mark.hypothesis

OWN = {"type": "function", "function": {"name": "own", "parameters": {"type": "object"}}}
FITTING_RUN = {
    "POST /v1/runs/{id}/approvals": "please keep",
    "POST /v1/runs/{id}/tool_results": "please own",
}
"""Questions of runs that wait for a person and for their client, by what is asked of those."""

SOUND: Any = {
    "messages": st.just([{"role": "user", "content": "x"}]),
    "client_tools": st.just([OWN]),
    "limits": st.fixed_dictionaries({"max_iterations": st.integers(1, 5)}),
    "schema": st.just({"type": "object"}),
    "webhook": st.none(),
    "profile": st.none(),
    "tools": st.lists(st.sampled_from(["area", "keep"]), unique=True),
}
"""Fields of which the description says less than what must hold."""


class Willing:
    """A model that makes the call that the question asks for, and else answers."""

    model = "scripted"

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        made = {"please keep": call("keep", text="a"), "please own": call("own")}
        wanted = next((one for one in made if one in request.prompt), "")
        yield Chunk(made.get(wanted, answer("done")))
        yield Chunk("", "stop")


class Served:
    """A gateway on a socket."""

    def __init__(self, app: Any) -> None:
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
        self.url = "http://{}:{}".format(*self.server.servers[0].sockets[0].getsockname())

    def run(self, question: str) -> dict[str, Any]:
        """A run that rests."""
        body = {"question": question, "client_tools": [OWN]}
        made: dict[str, Any] = self.ask("POST", json=body)
        while made["status"] in ("queued", "running"):
            made = self.ask("GET", f"/{made['id']}")
        return made

    def ask(self, method: str, path: str = "", **more: Any) -> Any:
        url = f"{self.url}/v1/runs{path}"
        import requests

        return requests.request(method, url, headers=KEY, timeout=HANG, **more).json()


@pytest.fixture
def served(begin: Any) -> Iterator[Served]:
    one = begin(file='[gateway]\napprovals = "client"\n', most=10_000)
    one.speaker.backend = Willing()
    made = Served(one.app)
    yield made
    made.server.should_exit = True
    made.thread.join()


def operations() -> dict[str, Any]:
    """The operations on runs, by method and path."""
    schemathesis = pytest.importorskip("schemathesis")  # which takes seconds to import
    described = schemathesis.openapi.from_dict(
        openapi_document((*OPERATIONS, *RUN_OPERATIONS), {**SCHEMAS, **RUN_SCHEMAS})
    )
    found = described.include(path_regex="^/v1/runs").get_all_operations()
    by_label = {one.ok().label: one.ok() for one in found}
    assert by_label, "the description has no operations of runs"
    return by_label


@pytest.mark.heavy
def test_what_is_asked_of_runs_is_answered_as_described(served: Served) -> None:
    for operation in operations().values():
        is_answered_as_described(served, operation, fits=True)


@pytest.mark.heavy
def test_what_does_not_fit_the_description_of_runs_is_refused_as_described(served: Served) -> None:
    for operation in operations().values():
        if operation.body or operation.query or operation.headers:  # else nothing can be wrong
            is_answered_as_described(served, operation, fits=False)


def is_answered_as_described(served: Served, operation: Any, *, fits: bool) -> None:
    """A request about runs that exist is taken if it fits, and one that does not is refused for
    what is wrong with it. Of others it is refused."""
    from schemathesis import GenerationMode

    mode = GenerationMode.POSITIVE if fits else GenerationMode.NEGATIVE
    label = operation.label
    question = FITTING_RUN.get(label, "x")

    def statuses(of_a_run: bool) -> list[int]:
        found = []

        @settings(max_examples=settings.default.max_examples // 6, database=None)
        @given(operation.as_strategy(generation_mode=mode), st.data())
        def check(case: Any, data: st.DataObject) -> None:
            if of_a_run:
                make_of_a_run(case, served.run(question), fits)
            elif fits and label == "POST /v1/runs":
                for name in SOUND.keys() & case.body.keys():
                    case.body[name] = case.body[name] and data.draw(SOUND[name])
            response = case.call(base_url=served.url, headers=KEY)
            if response.status_code != 422:  # the key of an earlier one, with another body
                case.validate_response(response, headers=KEY)
                found.append(response.status_code)

        check()
        return found

    found = statuses(of_a_run="{id}" in label)
    assert found, label
    if fits:
        assert any(200 <= status < 300 for status in found), (label, found)
    else:
        assert {400, 409} & set(found), (label, found)
    if "{id}" in label:
        assert set(statuses(of_a_run=False)) <= {400, 404}, label


def make_of_a_run(case: Any, run: dict[str, Any], fits: bool) -> None:
    """Name a run that exists in a request, and, where it fits, the call that waits in it."""
    case.path_parameters["id"] = run["id"]
    if fits and run["pending"] and isinstance(case.body, dict):
        waits = run["pending"][0]
        case.body |= {name: waits[name] for name in ("call_id", "digest") & case.body.keys()}
        if case.body.get("decision") == "edit":
            case.body["arguments"] = {"text": "b"}


@pytest.mark.heavy
def test_a_run_that_waits_is_described_as_well(served: Served) -> None:
    """Those that wait for a person and for their client."""
    for question in FITTING_RUN.values():
        run = served.run(question)
        assert run["status"] == "paused" and len(run["pending"]) == 1
        operation = operations()["GET /v1/runs/{id}"]
        case = operation.Case(path_parameters={"id": run["id"]})
        response = case.call(base_url=served.url, headers=KEY)
        case.validate_response(response, headers=KEY)
        assert response.json()["pending"] == run["pending"]
