"""`tool_search`: finds what may be called, and says what it does not show."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Controller, RunSettings, builtin_tools
from mlx_tools.controller import call_tool
from mlx_tools.messages import Effects, ToolSpec
from mlx_tools.policy import Policy
from mlx_tools.prompt import signature
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.tools import Finder, Registry, Tool, ToolContext, execute, find_tools, tool_search

READ: Effects = frozenset({"read"})
ALL = Policy(allow=["*"])


def named(name: str, description: str, effects: Effects = READ, plugin: str = "") -> Tool:
    return Tool(ToolSpec(name, description, effects=effects, plugin=plugin), lambda arguments: "")


def shelf() -> Registry:
    registry = Registry(
        [
            named("send_letter", "Sends a letter by post."),
            named("read_letter", "Reads a letter aloud."),
            named("burn_letter", "Burns a letter."),
            named("feed_cat", "Feeds the cat."),
            named("letter_scale", "Weighs a letter.", plugin="scales"),
        ]
    )
    registry.provide(tool_search())
    return registry


def search(registry: Registry, policy: Policy, **arguments: Any) -> str:
    done = asyncio.run(call_tool(registry, policy, "tool_search", arguments))
    assert done.result is not None, done.error
    return done.result.content or done.error.message  # type: ignore[union-attr]


def test_what_is_found_is_written_as_in_the_catalog() -> None:
    specs = shelf().specs()
    assert search(shelf(), ALL, query="feed my cat") == signature(specs["feed_cat"])
    assert "No tool here matches" in search(shelf(), ALL, query="translate")
    told = search(shelf(), ALL, query="letter", limit=2).split("\n")
    assert len(told) == 3 and told[-1] == "2 more match."


def test_a_disabled_tool_is_told_from_one_that_is_not_permitted() -> None:
    registry = shelf()
    registry.disable("burn_letter", "there is no fire.")
    registry.disable("send_letter", "there is no stamp")
    told = search(
        registry, Policy(allow=["*"], deny=["send_letter"]), query="burn or send a letter"
    )
    assert "1 of the best matches may not be called here." in told
    assert "1 of the best matches cannot be used now: there is no fire." in told
    assert "stamp" not in told and "burn_letter" not in told and "send_letter" not in told


def test_without_a_policy_nothing_is_found() -> None:
    registry = shelf()
    tool = registry.get("tool_search")
    context = ToolContext(tools=registry)
    result = asyncio.run(execute(tool, {"query": "letter"}, context, timeout=120))
    assert result.content is not None and "(" not in result.content
    assert "4 of the best matches may not be called here." in result.content


def test_the_search_itself_is_never_found() -> None:
    assert "tool_search" not in search(shelf(), ALL, query="find more tools by what they do")


def test_the_search_is_added_once_and_takes_nobodys_name() -> None:
    registry = shelf()
    before = registry.get("tool_search")
    registry.provide(tool_search())
    assert registry.get("tool_search") is before
    own = Registry([named("tool_search", "My own.")])
    own.provide(tool_search())
    assert own.specs()["tool_search"].description == "My own."


def test_it_searches_the_registry_of_the_call_and_not_the_one_that_it_comes_from() -> None:
    mine = named("send_parcel", "Sends a parcel by post.")
    both = Registry([*shelf(), mine])
    assert search(both, ALL, query="parcel") == signature(mine.spec)
    alone = Registry([shelf().get("tool_search"), mine])
    assert "letter" not in search(alone, ALL, query="send")
    assert "parcel" not in search(shelf(), ALL, query="parcel")


def test_a_run_finds_a_tool_beside_the_built_in_ones() -> None:
    mine = named("send_parcel", "Sends a parcel by post.")
    backend = ScriptedBackend(call("tool_search", query="send a parcel"), answer("Found."))
    tools, free = [*builtin_tools(), mine], RunSettings(strategy="free")
    outcome = Controller(backend, tools, ALL, settings=free).run_sync("Send it.")
    assert outcome.calls[0].output is not None
    assert outcome.calls[0].output.split("\n")[0] == signature(mine.spec)


def test_outside_of_a_run_nothing_is_found() -> None:
    result = asyncio.run(execute(tool_search(), {"query": "letter"}, timeout=120))
    assert result.content is not None and "No tool here matches" in result.content


def test_what_was_found_fits_into_an_observation() -> None:
    schema = {
        "type": "object",
        "properties": {f"argument_{n}": {"enum": ["letter" * 9]} for n in range(9)},
    }
    many = [
        Tool(ToolSpec(f"letter_{n}", "letter " * 90, schema, READ), lambda a: "") for n in range(50)
    ]
    registry = Registry(many)
    registry.provide(tool_search())
    told = search(registry, ALL, query="letter", limit=20)
    assert len(told) < 3_600 and "more match." in told
    json.dumps(told)


NAMES = ("send_letter", "read_letter", "burn_letter", "feed_cat", "letter_scale")
LISTS = st.lists(st.sampled_from([*NAMES, "*", "*_letter", "plugin:scales"]), max_size=4)
QUERIES = st.lists(st.sampled_from(["letter", "cat", "send", "weigh", "x"]), max_size=3).map(
    " ".join
)


@given(allow=LISTS, deny=LISTS, off=LISTS, query=QUERIES, limit=st.integers(1, 6))
def test_hits_are_the_permitted_and_enabled_and_all_others_are_counted(
    allow: list[str], deny: list[str], off: list[str], query: str, limit: int
) -> None:
    registry = shelf()
    for pattern in off:
        registry.disable(pattern, "off")
    policy = Policy(allow=allow, deny=deny)
    found = find_tools(registry, policy, query, limit)
    rows = {row["name"]: row for row in registry.listing(policy)}
    usable = [n for n in NAMES if rows[n]["permitted"]]
    ranked = Finder(registry.all_specs()[n] for n in usable).hits(query)
    assert [spec for spec, _ in found.hits] == ranked[:limit]
    assert found.hidden_count == len(ranked) - len(found.hits)
    best = Finder(registry.all_specs()[n] for n in NAMES).hits(query)[:limit]
    hidden = [spec.name for spec in best if spec.name not in usable]
    assert found.denied + len(found.disabled) == len(hidden)
    assert all(not rows[name]["enabled"] for name, _ in found.disabled)
    everything = find_tools(registry, policy, query, limit, include_hidden=True)
    assert [spec for spec, _ in everything.hits] == best
    assert (everything.denied, everything.disabled) == (0, ())
