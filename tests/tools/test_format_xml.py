"""``format_xml``: each element on its line, no character of content changed, no attack taken."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.plugins.basics.format_xml import MAX_DEPTH, format_document, format_xml
from mlx_tools.tools import Tool, ToolResult
from tests.tables import table
from tests.tools.file_calls import execute_call

MOST = 100_000
"""Characters that a result of `SHORT` may have."""
SHORT = format_xml(MOST)


def formatted(text: str, tool: Tool | None = None) -> ToolResult:
    return execute_call(tool or builtin_tools().get("format_xml"), content=text)


def fault(text: str, tool: Tool | None = None) -> str:
    result = formatted(text, tool)
    assert result.error is not None
    assert result.error.code == "tool_error"
    return result.error.message


@table(
    ("text", "lines"),
    [
        *(("<a/>", ["<a/>"]), ("<a></a>", ["<a/>"])),
        ("<a><b>1</b><c x='2'/></a>", ["<a>", "  <b>1</b>", '  <c x="2"/>', "</a>"]),
        ("<a>\n\n <b> <c/>\t</b></a>", ["<a>", "  <b>", "    <c/>", "  </b>", "</a>"]),
        ("<a> </a>", ["<a> </a>"]),
        ("<a>one <b>two</b> three</a>", ["<a>one <b>two</b> three</a>"]),
        ('<a xml:space="preserve"> <b/> </a>', ['<a xml:space="preserve"> <b/> </a>']),
        (
            '<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?><!-- c --><a/><?p q?>',
            [
                '<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?>',
                *("<!-- c -->", "<a/>", "<?p q?>"),
            ],
        ),
        ("<a><!-- one --><b/></a>", ["<a>", "  <!-- one -->", "  <b/>", "</a>"]),
        ("<a><![CDATA[<x> & ]]]]><![CDATA[>]]></a>", ["<a><![CDATA[<x> & ]]]]><![CDATA[>]]></a>"]),
        ("<a>&lt;&amp;&gt;&quot;&#13;&#x20AC;</a>", ['<a>&lt;&amp;&gt;"&#13;€</a>']),
        ("<a b='&#10;&#9;&lt;&quot;'/>", ['<a b="&#10;&#9;&lt;&quot;"/>']),
        ("<a>&#32;<b/></a>", ["<a>&#32;<b/></a>"]),
        ('<n:a xmlns:n="u"><n:b/></n:a>', ['<n:a xmlns:n="u">', "  <n:b/>", "</n:a>"]),
        ("\ufeff\n  <?xml version='1.0'?>\n<a/>", ['<?xml version="1.0"?>', "<a/>"]),
        ("<é ü='ß'>日本</é>", ['<é ü="ß">日本</é>']),
    ],
)
def test_elements_stand_on_lines_of_their_own(text: str, lines: list[str]) -> None:
    assert formatted(text).content == "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain", "malformed in line 1, column 1: syntax error"),
        ("<a>\n<b></a>", "malformed in line 2, column 6: mismatched tag"),
        ("\n\n<a>\n<b></a>", "malformed in line 4, column 6: mismatched tag"),
        *(("<a>", "no element found"), (" ", "no element found")),
        *(("<a/><b/>", "junk after document element"), ("<a b='1' b='2'/>", "duplicate attribute")),
        ("<a>&nbsp;</a>", "an entity that XML does not have by itself"),
        *(("<a>\x00</a>", "not well-formed"), ("<a>\ud800</a>", "half a character")),
        ("<!DOCTYPE html><a/>", "a document type"),
    ],
)
def test_what_is_no_xml_is_said(text: str, said: str) -> None:
    assert said in fault(text)


def laughs(depth: int) -> str:
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, depth))
    return f'<!DOCTYPE a [<!ENTITY l0 "lol">{entities}]><a>&l{depth - 1};</a>'


@pytest.mark.parametrize(
    "text",
    [
        laughs(10),
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/x.dtd"><a/>',
        '<!DOCTYPE a [<!ENTITY % x SYSTEM "file:///etc/passwd"> %x;]><a/>',
        f'<!DOCTYPE a [<!ENTITY x "{"x" * 100_000}">]><a>{"&x;" * 10_000}</a>',
        '<?xml version="1.0"?><!-- c --><!DOCTYPE a [<!ATTLIST a b CDATA "c">]><a/>',
    ],
)
def test_nothing_is_expanded_and_nothing_fetched(text: str) -> None:
    assert fault(text).startswith("a document type (<!DOCTYPE …>) is not taken")


def test_depth_and_length_are_limited() -> None:
    deep = "<a>" * MAX_DEPTH + "</a>" * MAX_DEPTH
    assert formatted(deep).error is None
    assert fault(f"<a>{deep}</a>") == f"elements stand more than {MAX_DEPTH} levels deep"
    assert "levels deep" in fault("<a>" * 10_000)
    wide = "<a>" * 190 + "<b/>" * 500 + "</a>" * 190
    assert fault(wide, SHORT) == f"the formatted text would have more than {MOST} characters"
    assert "more than" in fault(f"<a>{'&gt;' * (MOST // 4 + 1)}</a>", SHORT)


def test_what_will_be_too_long_is_not_read_to_its_end() -> None:
    endless = f"<a>{'<b/>' * (MOST // 2)}<b"
    assert fault(endless, SHORT) == f"the formatted text would have more than {MOST} characters"
    layout = f"<a>{' ' * MOST}<b></b>{' ' * MOST}</a>"
    assert formatted(layout, SHORT).content == "<a>\n  <b/>\n</a>"


TEXT = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\ufffe\uffff")
    | st.sampled_from("\t\n \r"),
    max_size=8,
)
NAMES = st.sampled_from(["a", "b", "long-name", "n.2"])


@st.composite
def elements(draw: st.DrawFn, depth: int = 3) -> ElementTree.Element:
    found = ElementTree.Element(draw(NAMES), draw(st.dictionaries(NAMES, TEXT, max_size=2)))
    found.text = draw(st.none() | TEXT)
    if depth:
        for _ in range(draw(st.integers(0, 3))):
            inner = draw(elements(depth=depth - 1))
            inner.tail = draw(st.none() | TEXT)
            found.append(inner)
    return found


def content(element: ElementTree.Element) -> object:
    """All that an element holds, but for layout: blanks between elements where that is all."""
    texts = [element.text or "", *(child.tail or "" for child in element)]
    layout = len(element) > 0 and not any(text.strip(" \t\r\n") for text in texts)
    inner = [content(child) for child in element]
    return element.tag, element.attrib, [] if layout else texts, inner


@given(elements())
def test_the_content_is_what_it_was_and_formatting_again_changes_nothing(
    element: ElementTree.Element,
) -> None:
    text = ElementTree.tostring(element, encoding="unicode")
    before = ElementTree.fromstring(text)  # as XML reads it: line ends are made equal
    once = format_document(text)
    assert content(ElementTree.fromstring(once)) == content(before)
    assert format_document(once) == once


@given(st.text(max_size=60) | st.text("<>/a &;![]?-'\"=x", max_size=60))
def test_any_text_is_formatted_or_refused(text: str) -> None:
    result = formatted(text)
    assert (result.content is None) != (result.error is None)
