"""Documents of office programs and books are read as text, whatever they try, within bounds."""

from __future__ import annotations

import base64
import io
import zipfile
from pathlib import Path

import pytest

from mlx_tools.plugins.kb import office
from mlx_tools.plugins.kb.documents import UnreadableFile, read_document
from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase
from mlx_tools.toolbox.isolated import Problem
from tests.kb.shelf import paths

W = 'xmlns:w="urn:w"'


def zipped(members: dict[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in members.items():
            # A fixed date: the bytes are parameters of tests, whose ids all workers must share.
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def docx(body: str, head: str = "") -> bytes:
    style = '<w:style w:styleId="U1"><w:name w:val="heading 2"/></w:style>'
    return zipped(
        {
            "word/document.xml": f"{head}<w:document {W}><w:body>{body}</w:body></w:document>",
            "word/styles.xml": f"<w:styles {W}>{style}</w:styles>",
        }
    )


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def snapped(data: bytes) -> bytes:
    """A chunk in Snappy's form, as one piece; its last ten bytes are a copy of the ten before."""
    rest = data[:-10]
    literal = bytes([61 << 2]) + (len(rest) - 1).to_bytes(2, "little") + rest
    packed = varint(len(data)) + literal + bytes([9 << 2 | 2, 10, 0])
    return b"\0" + len(packed).to_bytes(3, "little") + packed


def iwa(*texts: tuple[int, str]) -> bytes:
    out = b""
    for kind, text in texts:
        content = field(1, kind) + field(3, text.encode())
        info = field(1, 2001) + field(3, len(content))
        described = field(1, 7) + field(2, info)
        out += varint(len(described)) + described + content
    return snapped(out)


def scripted(form: str, data: bytes) -> dict[str, str]:
    """The script's text of a document. Raises Problem."""
    return office.read_office(base64.b64encode(data).decode(), form)


KIWIS = "Kiwis\nKiwis cannot fly. 1234567890" * 2
PAGES = zipped({"Index/Document.iwa": iwa((1, "page header"), (0, KIWIS))})
ODT = zipped(
    {
        "content.xml": '<o xmlns:text="urn:t"><text:tracked-changes><text:p>gone</text:p>'
        '</text:tracked-changes><text:h text:outline-level="2">Kiwis</text:h>'
        "<text:p>Kiwis cannot<text:s/>fly.</text:p></o>",
        "meta.xml": '<m xmlns:dc="urn:dc"><dc:title>Birds</dc:title></m>',
    }
)
EPUB = zipped(
    {
        "META-INF/container.xml": '<c><rootfile full-path="OPS/book.opf"/></c>',
        "OPS/book.opf": '<p xmlns:dc="urn:dc"><dc:title>Birds</dc:title>'
        '<item id="b" href="two.xhtml"/><item id="a" href="one%20.xhtml"/>'
        '<itemref idref="a"/><itemref idref="b"/></p>',
        "OPS/one .xhtml": "<html><body><h2>Kiwis</h2><script>gone</script></body></html>",
        "OPS/two.xhtml": "<html><body><p>Kiwis cannot fly.</p></body></html>",
    }
)
DOCX = docx(
    '<w:p><w:pPr><w:pStyle w:val="U1"/></w:pPr><w:r><w:t>Kiwis</w:t></w:r></w:p>'
    "<w:p><w:r><w:t>Kiwis </w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
    "<w:r><w:t>cannot fly.</w:t></w:r></w:p>"
)
RTF = (
    rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\info{\title Birds}}{\*\generator gone;}"
    rb"\b Kiwis\b0\par Kiwis \{cannot\} fly. \'84 \u8364?\uc2\u20320ab\u-10179aa\u-8704bb\par}"
)


@pytest.mark.parametrize(
    ("form", "data", "title", "text"),
    [
        (".docx", DOCX, "", "## Kiwis\n\nKiwis cannot fly."),
        (".odt", ODT, "Birds", "## Kiwis\n\nKiwis cannot fly."),
        (".epub", EPUB, "Birds", "## Kiwis\n\nKiwis cannot fly."),
        (".rtf", RTF, "Birds", "Kiwis\nKiwis {cannot} fly. „ €你😀"),
        # the copy at the end repeats what stands before it
        (".pages", PAGES, "", KIWIS[:-10] + KIWIS[-20:-11]),
    ],
)
def test_the_text_of_a_document_is_read(form: str, data: bytes, title: str, text: str) -> None:
    assert scripted(form, data) == {"title": title, "text": text}


@pytest.mark.heavy
def test_such_documents_are_added_and_found(base: KnowledgeBase, tmp_path: Path) -> None:
    folder = tmp_path / "office"
    folder.mkdir()
    for suffix, data in ((".docx", DOCX), (".odt", ODT), (".epub", EPUB), (".pages", PAGES)):
        (folder / f"a{suffix}").write_bytes(data)
    (folder / "a.rtf").write_bytes(RTF)
    done = base.add([folder])
    assert (done.added_files, done.skipped) == (5, ())
    assert sorted(paths(base, "can kiwis fly?")) == [
        *("a.docx", "a.epub", "a.odt", "a.pages", "a.rtf")
    ]


LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9)
)
SECRETS = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">'


@pytest.mark.parametrize(
    ("form", "data", "why"),
    [
        (".docx", docx("<w:t>&j;</w:t>", LAUGHS + "]>"), "defines entities"),
        (".docx", docx("<w:t>&a;</w:t>", SECRETS + "]>"), "defines entities"),
        (".docx", docx(f"<w:p><w:t>{'a' * 1_100_000}</w:t></w:p>"), "more than 1 MB"),
        (".docx", docx("<w:p>"), "damaged"),
        (".docx", b"PK\x03\x04" + bytes(100), "damaged"),
        (".odt", zipped({"x": "y"}), "no such document"),
        (
            ".epub",
            zipped({"META-INF/container.xml": '<c><rootfile full-path="no"/></c>'}),
            "no such",
        ),
        (".rtf", b"no rich text", "no such document"),
    ],
)
def test_a_bomb_and_what_is_none_are_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, form: str, data: bytes, why: str
) -> None:
    monkeypatch.setattr(office, "MAX_UNPACKED", 1_000_000)
    with pytest.raises(Problem, match=why):
        scripted(form, data)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.pages", zipped({"Index/Document.iwa": b"\0\xff\xff\xff" + b"\xff" * 99}), "be read"),
        ("a.rtf", b"{\\rtf1{\\*\\x " + b"{" * 100_000, "no text"),
        ("a.docx", docx("<w:p>"), "cannot be read: its XML is damaged"),
    ],
)
def test_what_its_process_cannot_read_is_refused(name: str, data: bytes, why: str) -> None:
    with pytest.raises(UnreadableFile, match=why):
        read_document(name, data)


def test_what_snappy_repeats_is_bounded_and_costs_no_more_than_it_is() -> None:
    long, copies = bytes(5_000_000), 200_000  # hours, where each copy costs all that came before
    literal = bytes([63 << 2]) + (len(long) - 1).to_bytes(4, "little") + long
    copy = b"\x03" + len(long).to_bytes(4, "little")
    data = varint(len(long) + copies) + literal + copy * copies
    assert office.unpack_snappy(data, 6_000_000) == bytes(len(long) + copies)
    many = varint(1 << 30) + b"\0a" + b"\xfe\x01\0" * 1_000_000
    with pytest.raises(Problem, match="too much"):
        office.unpack_snappy(many, 1_000_000)
