"""Markdown on the page: drawn, and nothing in it is obeyed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from justhtml import JustHTML

from mlx_tools.plugins.page.markdown import MAX_CHARS, draw_markdown
from tests.tables import table

TAGS = {
    *("p", "h3", "em", "strong", "s", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "br"),
    *("a", "table", "thead", "tbody", "tr", "th", "td", "div", "span", "b"),
}
ATTRIBUTES = {
    *("class", "href", "rel", "target", "tabindex", "role", "aria-label", "start"),
}


def faults(html: str) -> list[str]:
    """The tags and attributes that are not the page's own, and links that do not lead out."""
    found = []
    for node in JustHTML(f"<div>{html}</div>", sanitize=False, fragment=True).query("*"):
        found += [] if node.name in TAGS else [node.name]
        found += [f"{node.name} {name}" for name in node.attrs if name not in ATTRIBUTES]
        href = node.attrs.get("href", "https://x")
        found += [] if href.startswith(("http://", "https://", "mailto:")) else [href]
    return found


@table(
    ("text", "html"),
    [
        ("# Beds", "<h3>Beds</h3>"),
        ("a **b** *c* ~~d~~ `e<f`", "<strong>b</strong> <em>c</em> <s>d</s> <code>e&lt;f</code>"),
        ("- a\n- b", "<ul>\n<li>a</li>\n<li>b</li>\n</ul>"),
        ("3. a\n4. b", '<ol start="3">'),
        ("| a | b |\n| --- | ---: |\n| 1 | 2 |", "<td>1</td>"),
        ("```python\nx = '<b>'\n```", "<code>x = &#x27;&lt;b&gt;&#x27;</code>"),
        ("    x", "<code>x</code>"),
        ("> quoted", "<blockquote>"),
        ("one\ntwo", "one<br />\ntwo"),
        ("[a](https://b.example/c)", '>a</a> <span class="host">(b.example)</span>'),
        ("<https://b.example/c>", ">https://b.example/c</a></p>"),
        ("[https://good.example](https://evil.example)", "(evil.example)"),
    ],
)
def test_markdown_is_drawn(text: str, html: str) -> None:
    drawn = str(draw_markdown(text))
    assert html in drawn, drawn
    assert faults(drawn) == []


@table(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "[x](data:text/html,x)",
        "[x](vbscript:x)",
        "[x](file:///etc/passwd)",
        "[x](//evil.example)",
        "[x](/page/sessions)",
        "[x](https://a\u202e.example)",
        "![x](https://evil.example/pixel.png)",
        "![x](javascript:alert(1))",
        '[x](https://a.example "onmouseover=alert(1)")',
        '[x](<https://a.example/" onclick="x>)',
        "```\n</code></pre><script>\n```",
        "`</code><script>`",
        "a | b\n--- | ---\n<script> | x",
        "&lt;script&gt;",
        "[a]\n\n[a]: javascript:x",
    ],
)
def test_what_is_hostile_is_text(text: str) -> None:
    drawn = str(draw_markdown(text))
    assert faults(drawn) == []
    assert "<script" not in drawn and "<img" not in drawn


def test_what_is_not_seen_is_marked_as_elsewhere() -> None:
    for text in ("a\u202eb", "`a\u202eb`", "```\na\u202eb\n```", "[a\u202eb](https://x.example)"):
        assert "U+202E" in str(draw_markdown(text)), text


def test_a_picture_is_its_description_and_is_not_fetched() -> None:
    drawn = str(draw_markdown("![a cat](https://a.example/cat.png)"))
    assert "Picture: a cat" in drawn and "https://a.example/cat.png" in drawn
    assert "src=" not in drawn


def test_a_text_that_is_too_long_or_nested_is_shown_as_it_is() -> None:
    assert str(draw_markdown("*" * (MAX_CHARS + 1))).startswith('<pre class="prose">')
    for text in ("[" * 900, "> " * 900, "- " * 900, "*" * 900, "`" * 900, "![" * 900):
        assert faults(str(draw_markdown(text))) == []


PIECES = st.sampled_from(
    [
        *("<", ">", "&", '"', "'", "[", "](", ")", "`", "```\n", "*", "_", "|", "\n", "![", "~~"),
        *("https://a.example", "<script>", "</p>", "# ", "- ", "1. ", "> ", "\u202e", "onload="),
        "javascript:",
    ]
)


@given(st.lists(PIECES | st.text(max_size=4), max_size=40).map("".join))
def test_whatever_is_written_only_the_pages_own_tags_come_out(text: str) -> None:
    assert faults(str(draw_markdown(text))) == []
