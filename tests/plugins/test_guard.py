"""Functions of plugins that are called later: what they raise names the plugin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from mlx_tools.app import Plugins, SessionTable, SourceMaker, StoreKind, ToolRequest
from mlx_tools.backends import CompletionRequest, ErrorMappingBackend, Health
from mlx_tools.errors import BackendBroken, PluginError, UsageError
from mlx_tools.plugins.schedule import SCHEDULE
from mlx_tools.tools import ToolOffer, tool
from tests.plugins.test_hooks import make_plugins
from tests.tables import table


class TextlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class OwnError(BaseException):
    """Is no `Exception`."""


ERRORS: list[BaseException] = [
    *(LookupError("no luck"), OSError(28, "No space left"), SystemExit(3), AssertionError()),
    *(TextlessError(), ImportError("no such module"), RecursionError("too deep")),
    *(OwnError("x"), GeneratorExit("x"), asyncio.CancelledError("x")),
]


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def giving(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def one_part(hook: str, part: Any, **arguments: Any) -> Any:
    """The part of a hook's result, as those get it who use it."""
    hooks = make_plugins(moon={hook: lambda: part if isinstance(part, dict) else [part]})
    ((_, parts),) = hooks.call(hook, **arguments)
    return parts["moon"] if isinstance(parts, dict) else parts[0]


def call_backend(function: Any) -> None:
    one_part("backends", {"moon": function})("moon:http://127.0.0.1:1", None, api_key=None)


def open_store(function: Any) -> None:
    one_part("store", StoreKind(("moon",), function, giving(None))).open("moon://x")


def check_store(function: Any) -> None:
    one_part("store", StoreKind(("moon",), giving(None), function)).check("moon://x")


def make_owner(function: Any) -> None:
    one_part("tables", SessionTable(SCHEDULE, function)).owner(None)


def ask_owner(function: Any) -> None:
    one_part("tables", SessionTable(SCHEDULE, giving(function))).owner(None)("session")


def remove_tool(function: Any) -> None:
    offer = ToolOffer("moon", "phase", giving(None), function)
    one_part("offers", offer, request=ToolRequest()).remove(giving(True))


def last_output(function: Any) -> None:
    offer = ToolOffer("moon", "phase", giving(None), None, function)
    one_part("offers", offer, request=ToolRequest()).last_output()


USES = [call_backend, open_store, check_store, make_owner, ask_owner, remove_tool, last_output]


@pytest.mark.parametrize("use", USES)
@table("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_names_the_plugin(use: Callable[[Any], None], error: BaseException) -> None:
    with pytest.raises(PluginError, match="the plugin moon failed: ") as caught:
        use(raising(error))
    assert type(error).__name__ in caught.value.message and caught.value.__cause__ is error


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("error", [UsageError("no such moon"), KeyboardInterrupt()])
def test_what_a_plugin_means_to_say_is_passed_on(
    use: Callable[[Any], None], error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        use(raising(error))
    assert caught.value is error


class OddBackend:
    kind = "native"

    def complete(self, request: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("use", "value"),
    [
        *((call_backend, value) for value in (None, 7, OddBackend())),
        *((open_store, value) for value in (None, "moon", object())),
        *((make_owner, value) for value in (None, 7)),
    ],
)
def test_a_result_that_cannot_be_used_names_the_plugin(use: Any, value: Any) -> None:
    with pytest.raises(PluginError, match="the plugin moon failed: "):
        use(giving(value))


class MoonBackend:
    kind, model, forbidden_tokens, address = "native", "moon", (), "moon"

    def __init__(self, *_: Any, **__: Any) -> None:
        self.fails = True

    async def complete(self, request: Any) -> Any:
        yield 7
        raise LookupError("no moon")

    async def health(self, timeout: float = 5.0) -> Health:
        await self.start()
        return Health("ok", f"{timeout:g} s")

    async def models(self) -> list[str]:
        await self.start()
        return ["full", "new"]

    async def start(self) -> None:
        if self.fails:
            raise LookupError("no moon")

    aclose = start


def test_functions_of_a_backend_name_the_plugin() -> None:
    backend = one_part("backends", {"moon": MoonBackend})("moon:http://127.0.0.1:1", None)
    for name in ("health", "models", "start", "aclose"):
        with pytest.raises(PluginError, match=f"the plugin moon failed: {name} of its backend: "):
            asyncio.run(getattr(backend, name)())
    backend.fails = False  # as it is set from outside
    assert asyncio.run(backend.health(timeout=7.0)).detail == "7 s"
    assert asyncio.run(backend.models()) == ("full", "new") and not hasattr(backend, "context")
    assert (backend.kind, backend.model, backend.forbidden_tokens) == ("native", "moon", ())
    with pytest.raises(BackendBroken, match="backend MoonBackend of the plugin moon"):
        asyncio.run(complete_all(backend))


RESULTS: dict[str, list[Any]] = {
    "health": [None, True, "ok", {"status": "ok"}, Health("fine"), Health("ok", None)],  # type: ignore[arg-type]
    "models": [None, 7, "moon", {"moon": 1}, [7], ["moon", None]],
}


@table(("name", "value"), [(name, value) for name, values in RESULTS.items() for value in values])
def test_a_result_of_a_backend_that_cannot_be_used_names_the_plugin(name: str, value: Any) -> None:
    class OddResult(MoonBackend):
        async def give(self, *_: Any) -> Any:
            return value

        health = models = give

    backend = one_part("backends", {"moon": OddResult})("moon:http://127.0.0.1:1", None)
    with pytest.raises(PluginError, match=f"the plugin moon failed: {name} of its backend: "):
        asyncio.run(getattr(backend, name)())


async def complete_all(backend: Any) -> None:
    async for _ in ErrorMappingBackend(backend).complete(CompletionRequest(prompt="x")):
        pass


# --- what is left out instead ---------------------------------------------------------------------


@tool(effects={"read"})
def phase(day: int) -> str:
    """Tells the phase of the moon."""
    return str(day)


def break_off(_: Any) -> Any:
    yield phase
    raise LookupError("broken off")


def with_source(**functions: Any) -> tuple[Plugins, Any]:
    """Plugins of which one has a maker of bound tools with these functions."""
    maker = SourceMaker(giving(None), **functions)
    hooks = make_plugins(moon={"sources": lambda: {"moon": maker}})
    ((_, makers),) = hooks.call("sources", sources=None, roots=())
    return hooks, makers["moon"]


@pytest.mark.parametrize(
    "function",
    [*map(raising, ERRORS), raising(UsageError("x")), break_off]
    + [giving(value) for value in (None, 7, [7], [int], [None], "x", [object()])],
)
def test_further_tools_that_cannot_be_made_are_left_out_and_named(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hooks, maker = with_source(make_more=function)
    with caplog.at_level(logging.WARNING):
        assert maker.make_more([]) == []
    assert "sources: " in hooks.faults["moon"] and "the plugin moon" in caplog.text


def test_further_tools_that_can_be_made_are_there() -> None:
    hooks, maker = with_source(make_more=lambda sources: (one for one in (phase,)))
    assert maker.make_more([]) == [phase] and hooks.faults == {}


@pytest.mark.parametrize(
    "error",
    # a coroutine that is closed gets a GeneratorExit from outside
    [error for error in ERRORS if not isinstance(error, GeneratorExit)],
    ids=lambda error: type(error).__name__,
)
def test_a_source_that_cannot_be_closed_is_named(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    hooks, maker = with_source(close=raising(error))
    with caplog.at_level(logging.WARNING):
        asyncio.run(maker.close())
    assert "close: " in hooks.faults["moon"] and "the plugin moon" in caplog.text
