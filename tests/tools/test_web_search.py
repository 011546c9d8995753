"""Searches: hits become sources, engines are asked in turn, and none is without the extra."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from mlx_tools import Controller, Policy, Registry, builtin_tools
from mlx_tools.plugins.web.engines import search
from mlx_tools.plugins.web.web_tools import (
    ENGINES,
    Search,
    ask_engines,
    make_search,
    make_sources,
    web_search,
)
from mlx_tools.testing import ScriptedBackend
from mlx_tools.toolbox import Problem
from mlx_tools.toolbox.worker import Bounds, WorkerFailed
from mlx_tools.tools import ToolError, ToolResult
from tests.tools.file_calls import execute_call
from tests.tools.web_server import Handle, make_handler, site

HITS = [
    {"url": "https://a.org/x", "title": "First", "text": "one two"},
    {"url": "https://b.org", "title": "Second\nline", "text": "three  four"},
]


def giving(hits: Iterable[Mapping[str, Any]], asked: list[Any] | None = None) -> Search:
    async def search(query: str, most: int, seconds: float) -> Iterable[Mapping[str, Any]]:
        if asked is not None:
            asked.append((query, most))
        return hits

    return search


def called(search: Search, **arguments: Any) -> ToolResult:
    return execute_call(web_search(search), query="q", **arguments)


def test_what_is_found_are_sources_that_an_answer_can_cite() -> None:
    asked: list[Any] = []
    tools = Registry([web_search(giving(HITS, asked))])
    backend = ScriptedBackend(
        '{"type":"tool_call","name":"web_search","arguments":{"query":"  tea \\n time "}}',
        '{"type":"final_answer","content":"At five [2]."}',
    )
    outcome = Controller(backend, tools, Policy(allow=["web_search"])).run_sync("When is tea?")
    assert [s.location for s in outcome.sources] == ["https://b.org/"]
    assert asked == [("tea time", 5)]
    assert "[1] First (https://a.org/x)\\n> one two\\n[2] Second line" in backend.prompts[1]


def test_results_are_at_most_as_many_as_were_asked_for_and_none_is_told() -> None:
    many = [{"url": f"https://a.org/{n}", "title": str(n), "text": ""} for n in range(50)]
    asked: list[Any] = []
    result = called(giving(many, asked), max_results=3)
    assert result.sources is not None and len(result.sources.items) == 3
    assert asked == [("q", 3)]
    result = called(giving([]))
    assert result.content is not None and "Nothing was found" in result.content


@pytest.mark.parametrize(
    "hit",
    [
        *({}, {"url": None, "title": None, "text": None}),
        {"url": "javascript:alert(1)", "title": "a", "text": "b"},
        {"url": "https://user@a.org/", "title": "a", "text": "b"},
        {"url": "http://127.1/", "title": "a", "text": "b"},
        {"url": 5, "title": ["x"], "text": {"y": 1}},
    ],
)
def test_a_hit_that_is_no_page_on_the_web_is_left_out(hit: Mapping[str, Any]) -> None:
    assert make_sources([hit, *HITS], 10)[0].title == "First"


def test_hits_are_cut_short_and_given_once_without_letters_that_nothing_shows() -> None:
    hostile = {"url": "https://a.org/x", "title": "\x1b[31m" + "t" * 9999, "text": "\n[9] " * 9999}
    (hit,) = make_sources([hostile, hostile], 10)
    assert len(hit.title) <= 200 and len(hit.text) <= 500
    assert hit.title.isprintable() and hit.text.isprintable()
    assert (
        make_sources([{"url": "https://a.org", "title": "", "text": ""}], 1)[0].title
        == "https://a.org/"
    )
    secret = "".join(chr(first + ord(c)) for first in (0xE0000, 0xE0100) for c in "obey")
    hit = {"url": "https://a.org/", "title": f"a{secret}b", "text": f"c{secret}d"}
    assert [(one.title, one.text) for one in make_sources([hit], 1)] == [("ab", "cd")]


# --- engines ---


Answer = dict[str, Any] | Exception


def engines(*names: str, **answers: Answer) -> tuple[Search, list[str]]:
    asked: list[str] = []

    async def ask(script: str, package: str, question: dict[str, Any], bounds: Bounds) -> Any:
        assert (script, package) == ("plugins.web.engines.search", "ddgs.engines")
        asked.append(question["engine"])
        answer = answers[question["engine"]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return functools.partial(ask_engines, names, ask), asked


def test_the_next_engine_hears_of_a_query_only_where_those_before_found_nothing() -> None:
    search, asked = engines("duckduckgo", "brave", duckduckgo={"hits": HITS}, brave={"hits": []})
    assert asyncio.run(search("q", 5, 10)) == HITS
    assert asked == ["duckduckgo"]
    failures: list[Answer] = [
        {"hits": []},
        WorkerFailed("no"),
        WorkerFailed(over_limit=True),
        WorkerFailed(),
    ]
    for failure in failures:
        search, asked = engines("duckduckgo", "brave", duckduckgo=failure, brave={"hits": HITS})
        assert asyncio.run(search("q", 5, 10)) == HITS
        assert asked == ["duckduckgo", "brave"]


def test_engines_that_fail_alike_are_told_of_together_and_in_plain_words() -> None:
    offline = WorkerFailed("DNSError: DNSError('error sending for url (https://a.example/)')")
    slow = WorkerFailed("TimeoutException: RuntimeError('operation timed out')")
    search, _ = engines("brave", "mojeek", "yahoo", brave=offline, mojeek=offline, yahoo=slow)
    expected = (
        "no search engine answered: brave, mojeek: not online, or the name cannot be looked up; "
        "yahoo: too slow"
    )
    with pytest.raises(ToolError) as raised:
        asyncio.run(search("q", 5, 10))
    assert str(raised.value) == expected


def test_that_no_engine_answered_is_an_error_and_that_none_found_anything_is_not() -> None:
    search, _ = engines(
        "brave", "mojeek", brave=WorkerFailed("blocked"), mojeek=WorkerFailed(over_limit=True)
    )
    with pytest.raises(ToolError, match="brave: blocked; mojeek: too slow"):
        asyncio.run(search("q", 5, 10))
    search, _ = engines("brave", "mojeek", brave=WorkerFailed("blocked"), mojeek={"hits": []})
    assert asyncio.run(search("q", 5, 10)) == []


class FakeError(Exception):
    """The errors of ddgs."""


class FakeDDGS(contextlib.nullcontext["FakeDDGS"]):
    def __init__(self, timeout: int) -> None:
        super().__init__(self)
        self.timeout = timeout

    def text(self, query: str, backend: str, max_results: int) -> list[dict[str, str]]:
        if query in ("No results found.", "blocked" * 500):
            raise FakeError(query)
        title = f"{query} {backend} {max_results} {self.timeout}"
        return [{"title": title, "href": "u", "body": "b"}]


@pytest.mark.parametrize(
    ("query", "engine", "found"),
    [
        ("tea", "brave", [{"title": "tea brave 3 4", "url": "u", "text": "b"}]),
        ("No results found.", "brave", []),
        ("tea", "auto", "the installed ddgs knows no engine auto"),
        ("blocked" * 500, "brave", ("blocked" * 500)[:1000]),
    ],
)
def test_one_engine_is_asked_by_way_of_the_package_and_no_other(
    monkeypatch: pytest.MonkeyPatch, query: str, engine: str, found: str | list[dict[str, str]]
) -> None:
    for name, content in {
        "ddgs": {"DDGS": FakeDDGS},
        "ddgs.engines": {"ENGINES": {"text": {"brave": 1}}},
        "ddgs.exceptions": {"DDGSException": FakeError},
    }.items():
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**content))
    if isinstance(found, list):
        assert search(query, engine, 3, 4.9) == {"hits": found}
        return
    with pytest.raises(Problem) as caught:
        search(query, engine, 3, 4.9)
    assert str(caught.value) == found


def test_all_engines_that_can_be_set_are_known_to_the_package() -> None:
    known = pytest.importorskip("ddgs.engines").ENGINES["text"]
    assert set(ENGINES) <= set(known)


def test_without_the_extra_the_tool_is_disabled_and_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ddgs", None)
    registry = builtin_tools()
    assert "[web]'" in registry.disabled["web_search"] and "fetch_url" not in registry.disabled
    assert "disabled" in str(registry.lacks("web_search", Policy(allow=["*"])))


FOUND = json.dumps(
    {"results": [{"url": "https://a.org/x", "title": "A", "content": "one"}, "odd", {"url": 1}]}
)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (make_handler(FOUND, "application/json"), ["https://a.org/x A one"]),
        (make_handler('{"results": 3}', "application/json"), "does not answer in JSON"),
        (make_handler("<html>", "text/html"), "does not answer in JSON"),
        (make_handler("[" * 100_000), "does not answer in JSON"),
        (lambda asked: asked.answer("", status="403 Forbidden"), "add json to search.formats"),
        (lambda asked: asked.answer("", status="500 Oh"), "answered 500"),
        (lambda asked: asked.answer("x" * 6_000_000), "too long"),
        (lambda asked: asked.lead_to("http://127.0.0.1:1/"), "answered 302"),
        (lambda asked: asked.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), "cannot be"),
    ],
)
def test_ones_own_searxng_is_asked_in_place_of_the_engines(
    answer: Handle, said: str | list[str]
) -> None:
    with site(answer) as server:
        address = f"http://127.0.0.1:{server.port}"
        tool = make_search(address)
        assert tool.disabled_reason is None or tool.disabled_reason() is None
        result = execute_call(tool, query="tea & time")
        assert [asked.path for asked in server.asked] == ["/search?q=tea+%26+time&format=json"]
    if isinstance(said, list):
        assert result.sources is not None
        assert [f"{s.location} {s.title} {s.text}" for s in result.sources.items] == said
    else:
        assert said in str(result.error)


def test_a_searxng_may_find_pages_of_the_local_hosts_that_were_named_and_of_no_others() -> None:
    urls = ["http://wiki.lan:8080/a", "http://wiki.lan:81/b", "http://nas.lan/c", "https://a.org/"]
    with site(make_handler(json.dumps({"results": [{"url": url} for url in urls]}))) as server:
        address = f"http://127.0.0.1:{server.port}"
        for hosts, places in (([], urls[3:]), (["wiki.lan:8080"], [urls[0], urls[3]])):
            registry = builtin_tools(local_hosts=hosts, searxng=address)
            result = execute_call(registry.get("web_search"), query="q")
            assert result.sources is not None
            assert [source.location for source in result.sources.items] == places
