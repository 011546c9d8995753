"""The report in a real browser: it fits, is read in both schemes, and loads and obeys nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.golden import Column, Difference, GoldenCheck, Sample, write_report
from tests.golden.chromium import Page, find_chromium, started
from tests.golden.report_input import live, replayed

pytestmark = pytest.mark.slow

NAMES = ("replayed", "live", "hostile")

CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const curve = (s) => (s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4);
  const light = (c) => curve(c / 255);
  const of = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = rgb(getComputedStyle(at).backgroundColor);
      if (a === 1) return [r, g, b];
      if (a > 0) return [NaN, NaN, NaN]; // mixed colours are not worked out
    }
    return [255, 255, 255];
  };
  const bad = [];
  let seen = 0;
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const [one, other] = [of(rgb(style.color)), of(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    seen += 1;
    if (!(ratio >= 4.5)) bad.push([element.tagName, element.className, ratio]);
  }
  return [seen, bad];
})()
"""


def hostile() -> list[GoldenCheck]:
    """Checks whose every text tries to get out."""
    bad = (
        "</script></style></pre></title><script>window.hit = 1</script>"
        "<svg onload='window.hit = 2'></svg><img src=https://example.com/x.png onerror='hit = 3'>"
        "\" onmouseover='window.hit = 4' style='position:fixed;inset:0' "
        "<style>body{display:none}</style><base href=https://example.com/>"
        "<meta http-equiv=refresh content='0;url=https://example.com/'>"
        "\0\x1b[31m\u202egnp.exe\u2066\ud800\ufeff\u2028 <a href=javascript:hit=5>x</a><!-- "
        + "o"
        + "\u0301" * 300
        + "W" * 3000
    )
    kinds: list[Any] = [
        *("header", "golden", "user", "completion", "tool_call", "repair", "decision", "paused"),
        *("edited", "approval", "resumed", "execution_started", "nested_run", "tool_observation"),
        *("correction", "final_answer", "stopped", bad),
    ]
    keys = (
        *(
            "model",
            "style",
            "system",
            "content",
            "text",
            "prefix",
            "prompt",
            "name",
            "call",
            "rule",
        ),
        *("reason", "message", "error", "arguments", "expect", "decision", "reasoning", "partial"),
        *("finish_reason", "turn", "strategy", "code", "artifact", "duration_ms", "sources"),
    )
    records = [{**dict.fromkeys(keys, bad), "type": kind} for kind in kinds]
    sample = Sample(
        differences=(Difference("prompt", bad, bad, bad, bad.replace("hit", "hat")),),
        records=(*records, bad, None, 7, [bad], {bad: bad}),
        error=bad,
    )
    cells = [Column(bad, bad, bad), Column("m", bad, "s")]
    return [
        GoldenCheck(
            name=bad, path=bad, cell=cell, source=bad, about=bad, features=(bad,), samples=many
        )
        for cell in cells
        for many in ((sample,), (sample, Sample()))
    ]


@dataclass(frozen=True)
class Reports:
    """The pages that are looked at, in one tab."""

    page: Page
    folder: Path

    def open(self, name: str, *, width: int = 1280, scheme: str = "light") -> Page:
        """One of them, all of it unfolded."""
        self.page.media(scheme)
        self.page.size(width)
        self.page.open((self.folder / f"{name}.html").as_uri())
        return self.page


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    command = find_chromium()
    if command is None:
        pytest.skip("there is no chromium here, so no browser looks at the report")
    folder = tmp_path_factory.mktemp("reports")
    made = {"replayed": replayed(), "live": live(3), "hostile": hostile()}
    for name, checks in made.items():
        write_report(checks, folder / f"{name}.html", title=name)
    with started(command, tmp_path_factory.mktemp("browser")) as browser:
        yield Reports(browser.page(), folder)


def unfold(page: Page) -> None:
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def loaded(page: Page) -> list[str]:
    """What was asked for, but for the page itself."""
    asked = [event["request"]["url"] for event in page.of("Network.requestWillBeSent")]
    return asked[1:]


def complaints(page: Page) -> list[Any]:
    return page.of("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_window(reports: Reports, name: str, width: int) -> None:
    page = reports.open(name, width=width)
    assert page.run("document.documentElement.scrollWidth") == width
    page.run(
        "document.querySelectorAll('.run').forEach((r) => { r.style.contentVisibility='visible' })"
    )
    unfold(page)
    assert page.run("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    outside = page.run(
        "[...document.querySelectorAll('.run *')].filter((e) => !e.closest('svg') &&"
        f" e.getBoundingClientRect().right > {width} + 1).length"
    )
    assert outside == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_what_is_behind_it(
    reports: Reports, name: str, scheme: str
) -> None:
    page = reports.open(name, scheme=scheme)
    unfold(page)
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(250, 249, 247)", "dark": "rgb(20, 22, 25)"}[scheme]
    seen, bad = page.run(CONTRAST)
    assert seen > 40
    assert bad == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_loaded_logged_or_obeyed(reports: Reports, name: str) -> None:
    page = reports.open(name)
    unfold(page)
    page.run(
        "document.querySelectorAll('*').forEach((e) => e.dispatchEvent(new Event('mouseover')))"
    )
    assert page.run("typeof window.hit") == "undefined"
    assert page.run("location.protocol") == "file:"
    assert page.run("document.querySelectorAll('script, style').length") == 2
    assert page.run("document.querySelectorAll('img, iframe, object, base, link').length") == 0
    assert loaded(page) == []
    assert complaints(page) == []


def test_its_policy_stops_what_would_get_in_all_the_same(reports: Reports) -> None:
    page = reports.open("replayed")
    page.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.hit = 9';"
        " document.body.append(s); const i = new Image(); i.src = 'https://example.com/x.png';"
        " document.body.append(i); document.body.setAttribute('style', 'display: none'); })()"
    )
    assert page.run("typeof window.hit") == "undefined"
    assert page.run("getComputedStyle(document.body).display") == "block"
    assert len(page.of("Log.entryAdded")) >= 2
    assert not [e for e in page.of("Network.responseReceived") if "example" in str(e)]


def test_what_differs_is_unfolded(reports: Reports) -> None:
    page = reports.open("replayed")
    assert page.run("document.querySelectorAll('.difference').length") > 10
    assert page.run("document.querySelectorAll('.difference:not([open])').length") == 0
    hidden = "!d.checkVisibility({contentVisibilityAuto: false})"
    assert page.run(f"[...document.querySelectorAll('.diff')].filter((d) => {hidden}).length") == 0
    passed = "[...document.querySelectorAll('.run[data-state=passed] > details')]"
    assert page.run(f"{passed}.filter((d) => d.open).length") == 0


def filtered(page: Page, **values: str) -> list[Any]:
    """What is left of rows and runs, and what is said of it."""
    for name in ("state", "room", "text"):
        page.run(
            f"document.getElementById('filter').elements.{name}.value = {values.get(name, '')!r}"
        )
    page.run("document.getElementById('filter').dispatchEvent(new Event('input'))")
    left = "document.querySelectorAll({!r}).length"
    return [
        page.run(left.format("tbody tr[data-state]:not([hidden])")),
        page.run(left.format("article.run:not([hidden])")),
        page.run("document.querySelector('output').value"),
    ]


def test_the_filter_leaves_what_was_asked_for(reports: Reports) -> None:
    page = reports.open("replayed")
    assert page.run("document.getElementById('filter').checkVisibility()")
    assert filtered(page) == [9, 7, "9 transcripts"]
    assert filtered(page, state="failed") == [3, 3, "3 of 9 transcripts"]
    assert filtered(page, state="passed") == [6, 4, "6 of 9 transcripts"]
    assert filtered(page, room="tools") == [1, 1, "1 of 9 transcripts"]
    assert filtered(page, text="LONG-log") == [1, 1, "1 of 9 transcripts"]
    assert filtered(page, text="lightly") == [1, 1, "1 of 9 transcripts"]  # within a run
    assert filtered(page, room="policy", text="damaged")[0] == 0


def test_a_link_unfolds_the_run_that_it_leads_to(reports: Reports) -> None:
    page = reports.open("replayed")
    filtered(page, state="failed")
    page.run("location.hash = '#run7'")
    folded = (
        "document.querySelector('#run7 > details').open && !document.getElementById('run7').hidden"
    )
    page.run("new Promise((done) => setTimeout(done, 200))")
    assert page.run(folded)


def test_the_page_is_whole_without_scripts(reports: Reports) -> None:
    reports.page.scripts(False)
    try:
        page = reports.open("replayed")
        assert not page.run("document.getElementById('filter').checkVisibility()")
        assert page.run("document.querySelectorAll('article.run').length") == 7
        assert "the system prompt" in page.run("document.body.innerText")
        assert complaints(page) == []
    finally:
        reports.page.scripts(True)


def test_it_prints_dark_on_white_and_without_what_only_a_screen_needs(reports: Reports) -> None:
    page = reports.open("replayed", scheme="dark")
    page.media("dark", "print")
    try:
        assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.run("getComputedStyle(document.body).color") == "rgb(30, 32, 36)"
        assert not page.run("document.getElementById('filter').checkVisibility()")
    finally:
        page.media("light")


def test_what_has_the_focus_is_seen(reports: Reports) -> None:
    page = reports.open("replayed")
    for _ in range(3):
        for kind in ("keyDown", "keyUp"):
            page.send(
                "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
            )
    outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
    assert page.run("document.activeElement.tagName") == "A"
    assert outline == "solid"
