"""The models of a gateway, which may be on several servers, and take long to be looked at."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from mlx_tools.app import AccessRules, RunOptions, config
from mlx_tools.backends import CompletionRequest, TokenCounter, UpstreamPool
from mlx_tools.backends.interface import BackendTraits
from mlx_tools.controller import RunSettings
from mlx_tools.gateway.request import ApiError
from mlx_tools.gateway.served_models import ServedModels
from mlx_tools.gateway.turn import STEP
from mlx_tools.messages import replace
from mlx_tools.testing import ScriptedServer, answer, make_turn_runner
from tests.gateway.conftest import WEATHER, chat, send
from tests.waiting import HANG


class Looking(ServedModels):
    """Models of which ``slow`` is looked at without end."""

    async def open_model(self, name: str | None, *, first: bool = False) -> Any:
        if name == "slow":
            await anyio.sleep_forever()

        async def models() -> tuple[str, ...]:
            return "quick", "slow"

        backend = SimpleNamespace(traits=BackendTraits(asks_server=True), models=models)
        one = make_turn_runner(backend)
        return replace(one, profile=replace(one.profile, settings=RunSettings(model="quick")))


@pytest.mark.anyio
async def test_a_model_that_is_being_looked_at_holds_up_no_other() -> None:
    served = Looking(SimpleNamespace(model_name=None), lambda line: None)  # type: ignore[arg-type]
    await served.open()
    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.speaker, "slow")
            await anyio.wait_all_tasks_blocked()
            assert (await served.speaker("quick")).profile.settings.model == "quick"
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_what_was_opened_for_a_model_is_closed_with_them() -> None:
    closed: list[str | None] = []

    class Opening(Looking):
        async def open_model(self, name: str | None, *, first: bool = False) -> Any:
            self.exit_stack.callback(closed.append, name)
            return await super().open_model(name, first=first)

    served = Opening(SimpleNamespace(model_name=None), lambda line: None)  # type: ignore[arg-type]
    await served.open()
    assert closed == []
    await served.aclose()
    assert closed == [None]


class Counted(TokenCounter):
    """Counts, and keeps how long the texts were."""

    def count(self, text: str) -> int:
        sizes.append(len(text) - self.count_known(text))
        return super().count(text)


sizes: list[int] = []


@pytest.mark.anyio
async def test_while_a_long_prompt_is_counted_others_are_served() -> None:
    text = "Some words, and then some more. " * 10_000
    speaker = replace(make_turn_runner(None), counter=Counted())
    served: list[int] = []

    async def others() -> None:
        while True:
            served.append(len(sizes))
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        whole = await speaker.measure(text)
        assert abs(whole - TokenCounter().count(text)) <= len(sizes)
        assert len(sizes) > 5 and max(sizes) <= STEP
        assert set(served) >= set(range(1, len(sizes)))
        sizes.clear()
        assert await speaker.measure(f"{text} More.") > whole
        assert sizes == [len(" More.")]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("more", [{}, {"tools": [WEATHER]}, {"stop": "mor"}])
def test_a_prompt_that_its_server_does_not_count_is_counted_in_steps(
    serving: Any, more: dict[str, Any]
) -> None:
    one = serving(answer("Some more."))
    one.speaker.counter = Counted()
    sizes.clear()
    said = [{"role": "user", "content": "Some words, and then some more. " * 5_000}]
    got = chat(one, messages=said, **more)
    assert (got.status_code, got.json()["usage"]["prompt_tokens"] > 20_000) == (200, True)
    assert len(sizes) > 5 and max(sizes) <= STEP


def test_conversations_are_spread_and_every_model_has_its_servers(tmp_path: Path) -> None:
    with ScriptedServer() as one, ScriptedServer() as two, ScriptedServer(model="other") as third:
        urls = f"{one.url},{two.url},{third.url}"
        found = config.load(
            options={"backend.url": urls}, environ={}, cwd=tmp_path, user_file=tmp_path / "none"
        )
        models = ServedModels(RunOptions(configuration=found), lambda _: None)

        async def open_both() -> tuple[UpstreamPool, UpstreamPool]:
            await models.open()
            pools = [(await models.speaker(name)).backend for name in ("default", "other")]
            await models.aclose()
            assert isinstance(pools[0], UpstreamPool) and isinstance(pools[1], UpstreamPool)
            return pools[0], pools[1]

        first, other = anyio.run(open_both)
    assert [row["id"] for row in models.rows()] == ["scripted", "other"]
    assert [upstream.address for upstream in first.upstreams] == [one.url, two.url]
    assert [upstream.address for upstream in other.upstreams] == [third.url]
    asked = [CompletionRequest(prompt="Hi", conversation=str(number)) for number in range(40)]
    homes = {first.order(request)[0].address for request in asked}
    assert homes == {one.url, two.url}


def served(*names: str, any_model: bool = False, **aliases: str) -> Any:
    """Models of these names, and what the person who serves was told."""
    notes: list[str] = []
    options: Any = SimpleNamespace(model_name=None)
    named = {key.replace("__", "-"): value for key, value in aliases.items()}
    return ServedModels(options, notes.append, named, any_model, names=names), notes


def test_other_names_lead_to_the_models_that_are_served() -> None:
    models, notes = served("tiny", "large", **{"clau__*": "default", "gpt-5": "large"})
    assert models.served_name("large") == "large"
    assert models.served_name("") == models.served_name("default") == "tiny"
    assert models.served_name("clau-opus-9") == "tiny"
    assert models.served_name("gpt-5") == "large"
    for stranger in ("clau", "gpt-5-mini", "x\nclau-a"):
        with pytest.raises(ApiError) as refused:
            models.served_name(stranger)
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")
    assert notes == []  # of several models none can be meant


def test_a_lone_model_answers_to_any_name_if_that_is_set_and_else_it_is_suggested() -> None:
    models, notes = served("tiny")
    for _ in range(3):
        with pytest.raises(ApiError):
            models.served_name("gpt-9")
    assert len(notes) == 1
    assert "'gpt-9'" in notes[0] and "any_model = true" in notes[0]
    for number in range(1000):
        with pytest.raises(ApiError):
            models.served_name(f"m{number}")
    assert len(notes) == 20  # the names come from clients
    assert served("tiny", any_model=True)[0].served_name("gpt-9") == "tiny"
    with pytest.raises(ApiError):
        served("tiny", "large", any_model=True)[0].served_name("gpt-9")


def test_an_unknown_target_of_an_alias_is_no_model() -> None:
    with pytest.raises(ApiError):
        served("tiny", a="gone")[0].served_name("a")


def test_the_context_length_stands_in_the_fields_that_clients_read(serving: Any) -> None:
    one = serving(context=4096)
    listed = send(one, "GET", "/v1/models").json()
    row = listed["data"][0]
    for name in ("context_length", "max_model_len", "max_input_tokens", "max_context_length"):
        assert row[name] == 4096
    assert (row["type"], row["display_name"]) == ("model", "scripted")
    assert (listed["first_id"], listed["has_more"]) == ("scripted", False)
    assert send(one, "GET", "/v1/models/scripted").json() == row


@pytest.mark.parametrize(
    ("method", "path", "headers", "is_anthropic"),
    [
        ("POST", "/v1/messages", {}, True),
        ("POST", "/v1/messages/count_tokens", {}, True),
        ("GET", "/v1/models/gone", {"anthropic-version": "2023-06-01"}, True),
        ("GET", "/v1/models/gone", {}, False),
        ("POST", "/v1/chat/completions", {}, False),
        ("POST", "/v1/responses", {}, False),
        ("GET", "/v1/nothing", {}, False),
    ],
)
def test_who_may_not_ask_is_told_in_the_form_of_the_interface(
    serving: Any, method: str, path: str, headers: dict[str, str], is_anthropic: bool
) -> None:
    door = AccessRules(key="secret")
    unknown = send(serving(door=door), method, path, {}, **headers)
    stranger = send(serving(door=door), method, path, {}, **headers, host="evil.example")
    key = {"authorization": "Bearer secret"}
    body = {"model": "gone", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
    missing = send(serving(door=door), method, path, {**body, "input": "a"}, **headers, **key)
    said = [response.json() for response in (unknown, stranger, missing)]
    assert [r.status_code for r in (unknown, stranger, missing)] == [401, 403, 404]
    if is_anthropic:
        assert [one["type"] for one in said] == ["error"] * 3
        kinds = [one["error"]["type"] for one in said]
        assert kinds == ["authentication_error", "permission_error", "not_found_error"]
    else:
        assert all("type" not in one and one["error"]["code"] for one in said)
