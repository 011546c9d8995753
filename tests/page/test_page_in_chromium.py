"""The page in a real browser, driven by its controls: each thing that a person does there."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.app import config
from mlx_tools.plugins.page.command import link_with_key
from mlx_tools.testing import Completion, answer, call
from scripts.browser import PROGRAM, Browser
from tests.gateway.processes import House

if PROGRAM is None:
    pytest.skip("chromium is not installed", allow_module_level=True)

pytestmark = pytest.mark.heavy

PLAN = "# Plan\n\n- tea\n- bread\n"
AXE = "4.11.0"
AXE_SHA256 = "e9e5863c33a874f09bc01acd9234b7e3c871479f5eef8802fa582544465e6d01"
"""The digest of its ``axe.min.js``, which npm fetches: half a megabyte, under the MPL 2."""

LOOKS = ({}, {"dark": True}, {"width": 390, "height": 844})
HOSTILE = "<img src=x onerror='window.harmed=1'><script>window.harmed=1</script>\u202eabc"


def writes(text: str) -> str:
    return call("file_access", operation="write", path="plan.md", content=text)


class Driven(House):
    """A gateway with its page in a browser."""

    def __init__(self, folder: Path, browser: Browser, *scripts: Any) -> None:
        super().__init__(folder, *scripts)
        self.browser = browser
        (self.files / "plan.md").write_text(PLAN)
        self.url = self.url.removesuffix("v1")
        loaded = config.load(environ={}, cwd=folder, user_file=folder / "none.toml", home=folder)
        key = link_with_key(loaded, "").partition("#")[2]
        browser.look()
        browser.open("about:blank")
        browser.asked.clear()
        browser.faults.clear()
        browser.open(f"{self.url}#{key}")
        browser.sees("Your question")

    @property
    def plan(self) -> str:
        return (self.files / "plan.md").read_text()

    def put(self, question: str, into: str = "Your question") -> None:
        self.browser.type(question, into=into)
        self.browser.press("Enter")

    def rests(self, *texts: str) -> None:
        """Wait until the run has ended, with these texts: nothing on its page moves any more."""
        self.browser.sees("Another question")
        assert all(text in self.browser.text for text in texts)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture
def drive(tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Begin a gateway whose model writes these completions, and open its page."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    begun: list[Driven] = []

    def begin(*scripts: Any) -> Driven:
        begun.append(Driven(tmp_path, browser, *scripts))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()
        assert {address.split("/")[2] for address in browser.asked if "//" in address} == {
            one.url.split("/")[2]
        }
    assert browser.faults == []


def test_a_person_asks_approves_what_the_diff_shows_denies_and_edits(drive: Any) -> None:
    slowly = Completion(answer("The plan has rye bread."), size=2, delay=0.02)
    one = drive(
        *(call("file_access", operation="read", path="plan.md"), writes(PLAN + "- rye\n"), slowly),
        *(writes("nothing\n"), answer("It stays.")),
        *(writes("salt\n"), answer("Salted.")),
    )
    page = one.browser
    one.put("Put rye on the plan.")
    page.sees("+- rye")
    assert one.plan == PLAN
    page.click("button", "Approve")
    page.sees("The plan")
    one.rests()
    assert one.plan == f"{PLAN}- rye\n"
    assert "at work" not in page.text

    one.put("Empty it.", "Another question")
    page.type("keep my plan", into="Reason for the model")
    page.click("button", "Deny")
    one.rests("It stays.")
    assert "keep my plan" in one.server.prompts[-1]

    one.put("Salt it.", "Another question")
    page.click("summary", "Edit the arguments")
    mine = {"operation": "write", "path": "plan.md", "content": "salt and pepper\n"}
    page.type(json.dumps(mine), into="Arguments as JSON")
    page.click("button", "Show what it would do")
    page.sees("with your arguments")
    page.sees("+salt and pepper")
    page.click("button", "Approve")
    one.rests("Salted.")
    assert one.plan == "salt and pepper\n"


def test_an_approval_is_of_what_was_seen_and_asked_anew_where_the_file_has_changed(
    drive: Any,
) -> None:
    one = drive(writes("new\n"), answer("Done."))
    page = one.browser
    one.put("Write it.")
    page.sees("-# Plan")
    (one.files / "plan.md").write_text("mine\n")
    page.click("button", "Approve")
    page.sees("has changed since it was shown")
    assert one.plan == "mine\n"
    (one.files / "plan.md").write_text("mine still\n")
    page.open(page.run("location.href").removesuffix("/decide"))
    page.sees("What it would do has changed")
    page.click("button", "Ask me about it as it is now")
    page.sees("-mine still")
    page.click("button", "Approve")
    one.rests("Done.")
    assert one.plan == "new\n"


def test_sessions_are_found_opened_and_kept_and_tools_and_models_are_told(
    drive: Any, tmp_path: Path
) -> None:
    one = drive(call("calculator", expression="6*7"), answer("It is 42."), answer("Hello."))
    page = one.browser
    one.put("What is six times seven?")
    one.rests("It is 42.")
    page.click("link", "Ask")
    one.put("Greet me.")
    one.rests("Hello.")
    page.click("link", "Sessions")
    page.sees("Greet me.")
    page.type("is 42", into="Find", role="searchbox")
    page.press("Enter")
    page.until(lambda: "Greet me." not in page.text, "what was found")
    page.click("link", "What is six times seven?")
    page.sees("calculator 6*7 42")
    page.click("summary", "This session")
    page.type("sums", into="Golden transcript")
    page.click("button", "Save")
    page.sees("golden_transcripts/sums.jsonl")
    assert "It is 42." in (tmp_path / "golden_transcripts" / "sums.jsonl").read_text()
    page.click("link", "Tools")
    page.sees("run_command is not among the allowed tools")
    page.click("link", "Models")
    page.sees("chatml")


def test_a_session_is_copied_from_undone_named_and_deleted(drive: Any) -> None:
    drawn = "**New** [plan](https://plan.example/x)\n\n| a |\n| --- |\n| 1 |"
    one = drive(writes("new\n"), answer(drawn))
    page = one.browser
    allowed = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    page.send("Browser.grantPermissions", permissions=allowed, origin=one.url.rstrip("/"))
    page.send("Emulation.setFocusEmulationEnabled", enabled=True)
    one.put("Write it.")
    page.sees("Approve")
    page.click("button", "Approve")
    one.rests("New plan (plan.example)")
    assert page.run("document.querySelectorAll('.drawn strong, .drawn table').length") == 2
    page.click("button", "Copy")
    page.sees("Copied")
    assert one.plan == "new\n"
    page.click("summary", "This session")
    page.type("The plan", into="Title")
    page.click("button", "Rename")
    page.until(lambda: page.run("document.title").startswith("The plan"), "the title")
    page.click("summary", "This session")
    page.click("link", "Undo what it changed")
    page.sees("gets its old content again")
    page.click("button", "Undo 1 change")
    page.sees("Undone: 1 of 1")
    assert one.plan == PLAN
    page.click("link", "Back to the session")
    page.click("summary", "This session")
    page.type("yes", into="Type yes to delete it for good")
    page.click("button", "Delete")
    page.sees("There are no sessions yet.")


def test_what_others_wrote_does_nothing_in_a_browser(drive: Any) -> None:
    one = drive(writes(HOSTILE), answer(HOSTILE))
    page = one.browser
    one.put(HOSTILE)
    page.sees("U+202E")
    page.click("button", "Approve")
    one.rests()
    for path in ("", "page/sessions"):
        page.open(one.url + path)
        page.sees("<img src=x")
    assert page.run("window.harmed ?? 0") == 0


@pytest.fixture(scope="module")
def axe(pytestconfig: pytest.Config) -> str:
    """The source of axe-core, fetched once."""
    kept: Path = pytestconfig.cache.mkdir(f"axe-core-{AXE}")  # type: ignore[union-attr]
    source = kept / "node_modules" / "axe-core" / "axe.min.js"
    npm = shutil.which("npm")
    if not source.exists() and npm is not None:
        install = [npm, "install", "--prefix", kept, "--ignore-scripts", "--no-audit"]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([*install, f"axe-core@{AXE}"], capture_output=True, timeout=60)
    text = source.read_bytes() if source.exists() else b""
    if hashlib.sha256(text).hexdigest() != AXE_SHA256:
        shutil.rmtree(kept)  # what came of it is fetched anew
        pytest.skip("axe-core could not be fetched: it needs npm, and a network once")
    return text.decode()


@pytest.mark.parametrize("step", [2 * len(LOOKS) + 1, pytest.param(1, marks=pytest.mark.slow)])
def test_every_page_is_fit_for_whoever_reads_it_in_both_schemes_and_on_a_small_screen(
    drive: Any, axe: str, step: int
) -> None:
    drawn = "# Hello\n\n| a |\n| --- |\n| 1 |\n\n```\ncode\n```\n\n[x](https://x.example)"
    one = drive(call("calculator", expression="6*7"), answer(drawn), writes("new\n"))
    page = one.browser
    one.put("Greet me.")
    one.rests()
    answered = page.run("location.pathname").lstrip("/")
    page.open(one.url)
    one.put("Write it.")
    page.sees("Approve")
    waits = page.run("location.pathname").lstrip("/")
    paths = ["", "?tools", "page/sessions", answered, f"{answered}/undo", waits]
    paths += ["page/tools", "page/models", "page/nothing"]
    looks = [(path, look) for path in [*paths, "key"] for look in LOOKS]
    for path, due in groupby(looks[step - 1 :: step], itemgetter(0)):
        if path == "key":
            page.send("Network.clearBrowserCookies")
        page.open(one.url + path.removeprefix("key"))
        page.run("document.querySelectorAll('details').forEach(one => (one.open = true))")
        page.run(axe + "; 0")
        for _, look in due:
            page.look(**look)
            found = page.run("axe.run().then(({violations}) => violations)")
            told = [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found]
            assert told == [], (path, look)
            wide = page.run("document.documentElement.scrollWidth")
            assert wide <= look.get("width", 1100), (path, look)
