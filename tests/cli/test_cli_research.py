"""A web search from the shell: pages are found, read and summarised, and the summary is saved."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.testing import ScriptedServer, answer, call
from tests.tools.searxng import search_engine
from tests.tools.web_server import Site

QUESTION = "Search for tutorials on sourdough, summarise the top three, and save the summary."
TITLES = ("Starter", "Dough", "Oven")
PAGES = {title: f"How to: {title}." for title in (*TITLES, "Fourth")}
SUMMARY = "Feed it daily. Fold it thrice. Bake it hot.\n"


@pytest.fixture
def web(home: Path) -> Iterator[Site]:
    """The search engine and its pages."""
    with search_engine(PAGES) as server:
        assert server is not None
        yield server


def fetch_top_three(prompt: str) -> str:
    """Fetch the first three results that the prompt shows."""
    urls = re.findall(r"\(http://localhost:\d+/\w+\)", prompt)
    return "\n".join(call("fetch_url", url=url.strip("()")) for url in urls[:3])


def save(prompt: str) -> str:
    """Save a summary once the prompt shows all three pages."""
    assert all(f"How to: {title}." in prompt for title in TITLES)
    return call("create_file", path="sourdough.md", content=SUMMARY)


def test_pages_are_found_read_and_summarised_and_the_saving_is_asked_about(
    run: Any, web: Site, home: Path
) -> None:
    notes = home / "here" / "notes"
    notes.mkdir()
    search = call("web_search", query="sourdough tutorials", max_results=3)
    done = answer("Saved: feed [1], fold [2], bake [3].")
    with ScriptedServer(search, fetch_top_three, save, done) as model:
        options = ("--url", model.url, "--preset", "research", "--root", "notes", "--json")
        paused = run("ask", *options, QUESTION)
        assert paused.code == 4 and "disabled" not in paused.err, paused.err
        calls = [(made["name"], made["status"]) for made in paused.json["calls"]]
        reads = [("web_search", "ok"), *[("fetch_url", "ok")] * 3]
        assert calls == [*reads, ("create_file", "pending")]
        assert web.asked[0].path.startswith("/search?q=sourdough+tutorials")
        assert sorted(one.path for one in web.asked[1:]) == sorted(f"/{title}" for title in TITLES)
        (pending,) = paused.json["pending"]
        assert pending["arguments"] == {"path": "sourdough.md", "content": SUMMARY}
        assert list(notes.iterdir()) == []
        approval = f"{pending['call_id']}={pending['digest']}"
        resumed = run("sessions", "resume", paused.json["session"], "--approve", approval, "--json")
    assert (resumed.code, resumed.json["status"]) == (0, "answered"), resumed.err
    assert (notes / "sourdough.md").read_text() == SUMMARY
    assert [one["title"] for one in resumed.json["sources"]] == list(TITLES)


def test_a_piped_answer_stands_alone_and_its_sources_follow_on_standard_error(
    run: Any, web: Site
) -> None:
    search = call("web_search", query="sourdough", max_results=3)
    for text, cited in (("Fold it [2].", ["Dough"]), ("I do not know.", [])):
        with ScriptedServer(search, answer(text)) as model:
            result = run("ask", "--url", model.url, "--preset", "research", "--root", ".", "How?")
        assert result.out == f"{text}\n"
        place = f"http://localhost:{web.port}"
        told = [f"mlx-tools: source: [2] {title} ({place}/{title})" for title in cited]
        assert [line for line in result.err.splitlines() if "source" in line] == told


def test_in_local_only_mode_the_preset_searches_nothing(run: Any, web: Site) -> None:
    with ScriptedServer(call("web_search", query="x"), answer("No.")) as model:
        options = ("--url", model.url, "--preset", "research", "--root", ".", "--local-only")
        run("ask", *options, "--json", QUESTION)
        assert "file_access" in model.prompts[0] and "web_search" not in model.prompts[0]
    assert web.connected == 0


def test_a_chosen_presets_tool_that_cannot_work_is_noted(
    run: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ddgs", None)
    with ScriptedServer(answer("No."), answer("No.")) as model:
        ask = ("ask", "--url", model.url, "--root", ".")
        chosen = run(*ask, "--preset", "research", QUESTION)
        assert "note: web_search of the preset research is disabled: " in chosen.err
        assert "pip install" in chosen.error
        assert run(*ask, QUESTION).err == ""
