"""A streamed text is redacted as the whole one is, wherever it was cut."""

from __future__ import annotations

import base64
import json
from random import Random
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.policy.redact import MAX_KEY_OFFSET, OVERLAP, WINDOW, Redactor, find_secrets
from tests.policy.secret_samples import ALNUM, ASSIGNED, TOKENS, drawn, pem, value
from tests.tables import table

REDACTOR = Redactor(paths=True, folders=["/home/ann", "/home/ann/work", "/srv/my data"])
DASHES = "-" * 5

ENCODINGS = (
    lambda text: text,
    lambda text: base64.b64encode(text.encode()).decode(),
    lambda text: base64.urlsafe_b64encode(b"?" + text.encode()).decode(),
    lambda text: base64.encodebytes(text.encode()).decode(),
    lambda text: quote(text, safe=""),
    json.dumps,
    lambda text: "".join(f"\\u{ord(sign):04x}" for sign in text),
)


@st.composite
def atoms(draw: st.DrawFn) -> str:
    random = Random(draw(st.integers(0, 10**6)))
    kind = draw(st.sampled_from(("token", "key", "assigned", "run", "piece", "prose")))
    if kind == "token":
        return TOKENS[draw(st.sampled_from(sorted(TOKENS)))](random)
    if kind == "key":
        key = pem(random, lines=draw(st.integers(0, 30)))
        return key[: draw(st.sampled_from((None, len(key) - 30, len(key) // 2)))]
    if kind == "assigned":
        return draw(st.sampled_from(ASSIGNED)).format(value(random))
    if kind == "run":
        return drawn(random, ALNUM, draw(st.sampled_from((3, 5, 6, 60, 76, 300))))
    if kind == "prose":
        return draw(st.text(max_size=20))
    pieces = (*' "\\\r\n-=', "BEGIN", "---- BEGIN SSH2 PRIVATE KEY ----", "Private-Lines: 3\n")
    pieces += (f"{DASHES}BEGIN", f"{DASHES}BEGIN PRIVATE KEY{DASHES}\n", f"{DASHES}END KEY{DASHES}")
    pieces += ("/home/ann/work/x", "/home/an", "/srv/my data/", "%2Fhome", "password: ", "Bearer ")
    pieces += ("'/my x'", "-I/", "file:/", "//etc/x", "~/", "C:\\x")
    return draw(st.sampled_from(pieces))


TEXTS = st.lists(
    st.builds(lambda encode, text: encode(text), st.sampled_from(ENCODINGS), atoms()), max_size=6
).flatmap(lambda parts: st.sampled_from(("", " ", "\n")).map(lambda sign: sign.join(parts)))


def streamed(text: str, sizes: list[int]) -> tuple[str, tuple[str, ...]]:
    stream = REDACTOR.stream()
    out, at = [], 0
    for size in sizes:
        out.append(stream.feed(text[at : at + size]))
        at += size
    out += (stream.feed(text[at:]), stream.close())
    return "".join(out), stream.kinds


@given(TEXTS, st.lists(st.integers(1, 90), max_size=60))
def test_a_text_in_pieces_is_redacted_like_the_whole(text: str, sizes: list[int]) -> None:
    whole = REDACTOR.redact(text)
    assert streamed(text, sizes) == (whole.text, whole.kinds)


@given(TEXTS)
def test_character_by_character_too(text: str) -> None:
    text = text[:3000]
    whole = REDACTOR.redact(text)
    assert streamed(text, [1] * len(text)) == (whole.text, whole.kinds)


@pytest.mark.parametrize("kind", ["aws_access_key", "github_personal_token", "jwt", "slack_token"])
def test_every_split_in_two_of_every_encoding(kind: str) -> None:
    secret = TOKENS[kind](Random(kind))
    for encode in ENCODINGS:
        text = f"see {encode(secret)} and more"
        whole = REDACTOR.redact(text)
        assert whole.kinds == (kind,)
        for cut in range(len(text) + 1):
            assert streamed(text, [cut]) == (whole.text, whole.kinds)


def test_no_prefix_of_a_stream_ever_shows_a_part_of_the_secret() -> None:
    secret = TOKENS["github_personal_token"](Random(1))
    for encode in ENCODINGS:
        hidden = encode(secret).strip('"\n')
        stream, shown = Redactor().stream(), ""
        for sign in f"see {hidden} and more":
            shown += stream.feed(sign)
            assert hidden[4:12] not in shown


@table(
    "unit",
    [
        *("A", "a1B2", "%41", "\\u0041", f"{DASHES}BEGIN PRIVATE KEY{DASHES}", "sk-", "x=", "eyJ."),
        *("QUFB" * 19 + "\n", "/home/an", "BEGIN ", "---- BEGIN "),
    ],
)
def test_what_is_held_back_is_bounded(unit: str) -> None:
    stream, fed, shown = Redactor().stream(), 0, 0
    text = (unit * (2 * WINDOW // len(unit) + 1))[: 2 * WINDOW]
    for at in range(0, len(text), 97):
        fed += len(text[at : at + 97])
        shown += len(stream.feed(text[at : at + 97]))
        assert fed - shown <= WINDOW + MAX_KEY_OFFSET


def test_a_secret_longer_than_what_is_held_back_is_redacted_to_its_end() -> None:
    random = Random(2)
    token = "sk-" + "proj-" + drawn(random, ALNUM, 5 * WINDOW)
    assert REDACTOR.redact(f"a {token} b").text == "a [redacted:openai_key] b"
    assert streamed(f"a {token} b", [1] * 9000)[0] == "a [redacted:openai_key] b"
    key = pem(random, lines=2000)
    assert REDACTOR.redact(f"a {key} b").text == "a [redacted:private_key] b"
    for encoded in (base64.b64encode(key.encode()), base64.encodebytes(key.encode()).strip()):
        shown = REDACTOR.redact(f"a {encoded.decode()} b").text
        assert shown.startswith("a [redacted:private_key]")
        assert len(shown) < 60


def test_a_secret_anywhere_in_a_long_run_is_found() -> None:
    random = Random(3)
    filling = drawn(random, ALNUM, WINDOW + 2 * OVERLAP)
    secret = base64.b64encode(TOKENS["slack_token"](random).encode() + b" ").decode()
    for at in range(WINDOW - OVERLAP - 300, WINDOW + 300, 1009):
        shown = REDACTOR.redact(f"{filling[:at]}{secret}{filling[at:]}")
        assert shown.kinds == ("slack_token",)


def test_a_long_token_anywhere_in_a_long_run_is_redacted_from_its_beginning_to_its_end() -> None:
    head, payload, signature = "eyJ" + "b7" * 1999, "eyJ" + "c3" * 1999, "d5" * 2000
    token = f"{head}.{payload}.{signature}"
    edge = WINDOW - OVERLAP
    for at in (1, edge - len(token), edge - 4001, edge - 1, edge, edge + 1, WINDOW - 1, WINDOW):
        text = f"{'a' * at}/{token}/{'b' * WINDOW}"
        (found,) = find_secrets(text)
        assert (found.kind, found.start) == ("jwt", at + 1), at
        assert found.end >= at + 1 + len(token)
    text = f"{'a' * (edge - 1)}/{token}/{'b' * WINDOW}"
    assert [(one.start, one.end) for one in find_secrets(text)] == [(edge, edge + len(token))]
