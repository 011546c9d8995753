"""Redaction: what is found, how it is shown, and what is left alone."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from random import Random
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import UsageError
from mlx_tools.policy.redact import (
    RedactedText,
    Redactor,
    find_secrets,
    holds_placeholder,
    merge_spans,
)
from mlx_tools.policy.secret_kinds import CONTEXT_KINDS, SecretSpan
from tests.policy.secret_samples import ASSIGNED, SURROUNDINGS, TOKENS, pem, value
from tests.tables import table

REDACTOR = Redactor()
KEYS = ("RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY")
KEYS += ("ENCRYPTED PRIVATE KEY", "DSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK")


@table("kind", TOKENS)
def test_a_token_is_found_wherever_it_stands(kind: str) -> None:
    random = Random(kind)
    for surrounding in SURROUNDINGS:
        secret = TOKENS[kind](random)
        shown = REDACTOR.redact(surrounding.format(secret))
        assert shown.kinds == (kind,), surrounding
        assert shown.text == surrounding.format(f"[redacted:{kind}]")


@table("form", ASSIGNED)
def test_a_value_is_found_by_what_stands_before_it(form: str) -> None:
    random = Random(form)
    for _ in range(50):
        secret = value(random)
        shown = REDACTOR.redact(form.format(secret))
        assert secret not in shown.text
        assert set(shown.kinds) <= set(CONTEXT_KINDS)
        begin, end = form.replace("{{", "{").replace("}}", "}").split("{}")
        assert shown.text.startswith(begin)
        assert shown.text.endswith(end)


@table("name", KEYS)
@table("escaped", [False, True])
def test_a_private_key_is_one_secret_whole_or_without_its_last_line(
    name: str, escaped: bool
) -> None:
    key = pem(Random(name), name)
    for text in (key, key.rpartition("\n")[0]):
        written = json.dumps(text)[1:-1] if escaped else text
        assert REDACTOR.redact(f"a {written} b").text.startswith("a [redacted:private_key]")
        assert not any(line in REDACTOR.redact(written).text for line in text.split("\n")[1:-1])
        numbered = "\n".join(f"{at:6}\t{line}" for at, line in enumerate(text.split("\n")))
        assert "[redacted:private_key]" in REDACTOR.redact(numbered).text
        assert not any(line in REDACTOR.redact(numbered).text for line in text.split("\n")[1:])


def test_a_putty_key_loses_its_private_part() -> None:
    body = pem(Random(1)).split("\n")[1:6]
    text = "\n".join(
        ("Public-Lines: 1", "AAAA", "Private-Lines: 5", *body, "Private-MAC: " + "ab" * 20)
    )
    assert REDACTOR.redact(text).text == "Public-Lines: 1\nAAAA\n[redacted:private_key]"


SPAN = st.builds(
    lambda kind, start, size: SecretSpan(kind, start, start + size),
    st.sampled_from(["password", "jwt", "private_key"]),
    st.integers(0, 20),
    st.integers(1, 12),
)


@given(st.lists(SPAN, min_size=2, max_size=6))
def test_what_overlaps_is_one_secret_and_none_of_it_is_left(found: list[SecretSpan]) -> None:
    made = merge_spans(found)
    assert all(one.end <= other.start for one, other in pairwise(made))
    covered = [
        {at for span in spans for at in range(span.start, span.end)} for spans in (found, made)
    ]
    assert covered[0] == covered[1]


def base64_within(text: str, before: int, url_safe: bool) -> str:
    data = b"\xf0\x9f\x8e"[:before] + b"~" + text.encode() + b" \xff"
    return (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()


def every_sign(text: str, form: str) -> str:
    return "".join(form.format(ord(sign)) for sign in text)


@pytest.mark.parametrize("kind", ["aws_access_key", "github_personal_token", "jwt", "slack_token"])
def test_an_encoded_secret_is_found_and_its_stretch_redacted(kind: str) -> None:
    random = Random(kind)
    secret = TOKENS[kind](random)
    encoded = [
        *(base64_within(secret, before, safe) for before in range(4) for safe in (False, True)),
        quote(f"a={secret}&", safe=""),
        every_sign(secret, "%{:02X}"),
        every_sign(secret, "%25{:02x}"),
        every_sign(secret, "\\u{:04x}"),
        secret.encode().hex(),
        base64.b64encode(base64.b64encode(secret.encode())).decode(),
        base64.b64encode(secret.encode("utf-16-le")).decode(),
        base64.encodebytes(b"some lines of a file " * 5 + secret.encode() + b" more" * 20).decode(),
        f"/download/{base64.b64encode(secret.encode()).decode()}",
    ]
    for text in encoded:
        shown = REDACTOR.redact(f"see {text} there")
        assert shown.kinds == (kind,), text
        for found in find_secrets(text):
            assert len(text[found.start : found.end]) >= len(secret)


def test_encoded_keys_and_assignments_are_found() -> None:
    key = pem(Random(3))
    for text in (quote(key), quote(key, safe=""), base64.b64encode(key.encode()).decode()):
        assert REDACTOR.redact(text).kinds == ("private_key",)
        assert len(REDACTOR.redact(text).text) < 60
    settings = base64.b64encode(b"user=app\npassword=tr0ub4dor&3\n").decode()
    assert REDACTOR.redact(settings).kinds == ("password",)
    assert REDACTOR.redact('{\\"password\\": \\"tr0ub4dor&3\\"}').text == (
        '{\\"password\\": \\"[redacted:password]\\"}'
    )


@table(
    "text",
    [
        *("API_KEY=<your key>", "password = changeme", 'password: "********"', "token: xxxxxxxx"),
        *("API_KEY=${API_KEY}", 'api_key = os.environ["API_KEY"]', "password = getpass()"),
        *("secret: {{ vault.secret }}", "password=%(password)s", 'token="your-token-here"'),
        *("https://user:password@example.com/", "postgres://app:${PASSWORD}@db/app"),
        *(
            "max_tokens = 4096",
            'next_page_token: "CAoQAA1b2c3d4e5f6"',
            "tokenizer: gpt2-medium-355M",
        ),
        *("self.password = self.config.password2", "def f(password: bytes32): ..."),
        'if "-----BEGIN PRIVATE' + ' KEY-----" in text: return None',
        *("commit 8f14e45fceea167a5a36dedd4bea2543f1c0a9d1", "sha256:" + "0123456789abcdef" * 4),
        *("The password is on the note.", "token_type: bearer", "keyboard=qwerty1234layout"),
        *("session 20260301-120000-1f2e3d4c", "The Basic idea of Bearer tokens, in short."),
        *(
            "import os.path as secret_path",
            "primary_key=True",
            "id: 550e8400-e29b-41d4-a716-446655440000",
        ),
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    ],
)
def test_what_only_speaks_of_a_secret_is_left_alone(text: str) -> None:
    assert find_secrets(text) == ()
    assert REDACTOR.redact(text).text == text


def test_redacting_again_changes_nothing() -> None:
    random = Random(5)
    for form in ASSIGNED:
        for secret in (value(random), TOKENS["jwt"](random)):
            once = REDACTOR.redact(form.format(secret))
            assert REDACTOR.redact(once.text).text == once.text


def test_findings_are_in_order_and_within_the_text() -> None:
    random = Random(6)
    text = " ".join(make(random) for make in TOKENS.values())
    found = find_secrets(text)
    assert [one.kind for one in found] == list(TOKENS)
    for one, following in pairwise(found):
        assert one.start < one.end <= following.start


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("key = [redacted:aws_access_key]\n", True),
        ("see [redacted:path]/notes.md", True),
        *(("[redacted]", False), ("[redacted: jwt]", False), ("redacted:jwt", False)),
        *(("[redacted:unheard_of]", False), ("the [REDACTED:jwt] part", False), ("", False)),
    ],
)
def test_only_our_own_placeholders_count(text: str, holds: bool) -> None:
    assert holds_placeholder(text) is holds


# --- paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_of_folders_within_each_other_the_inner_one_is_taken_out_whole(order: int) -> None:
    folders = ["/home/ann", "/home/ann/work"][::order]
    redactor = Redactor(secrets=False, paths=True, folders=folders)
    assert redactor.redact("see /home/ann/work/plan.txt").text == "see [redacted:path]/plan.txt"
    assert redactor.redact("see /home/ann/other.txt").text == "see [redacted:path]/other.txt"


@table(
    ("text", "shown"),
    [
        ("/home/ann/x.py", "[redacted:path]/x.py"),
        ("in /home/ann.", "in [redacted:path]."),
        *(("/home/anna/x", "[redacted:path]"), ("/home/ann-2/x", "[redacted:path]")),
        *(("cc -I/home/ann/i", "cc -I[redacted:path]/i"), ("x\n-I/usr/i", "x\n-I[redacted:path]")),
        ("file:///srv/my%20data/x", "file://[redacted:path]/x"),
        ("/srv/my data/x", "[redacted:path]/x"),
        ('"\\/home\\/ann\\/x"', '"[redacted:path]\\/x"'),
        ("a%2Fhome%2Fann%2Fx", "a[redacted:path]%2Fx"),
        ("see /etc/passwd.", "see [redacted:path]."),
        ("PATH=/usr/bin:/bin:~/bin", "PATH=" + ":".join(["[redacted:path]"] * 3)),
        ("//etc/ssl, ~root/x", "[redacted:path], [redacted:path]"),
        *(("file:///etc/hosts", "file://[redacted:path]"), ("?q=%2Fetc", "?q=[redacted:path]")),
        ('"/Volumes/My Disk/x"', '"[redacted:path]"'),
        ('{"p":"\\/etc\\/ssl"}', '{"p":"[redacted:path]"}'),
        ("/Library/My\\ App/x", "[redacted:path]"),
        *(("C:\\Users\\ann\\x", "[redacted:path]"), ("in /tmp/ü/é", "in [redacted:path]")),
        *(
            ("路径是/etc/ssl。", "路径是[redacted:path]。"),
            ("db:////var/x", "db:///[redacted:path]"),
        ),
    ],
)
def test_paths_become_placeholders(text: str, shown: str) -> None:
    redactor = Redactor(secrets=False, paths=True, folders=["/home/ann/", "/srv/my data"])
    assert redactor.redact(text) == RedactedText(shown, ("path",))
    assert redactor.redact(shown).text == shown
    stream = redactor.stream()
    assert "".join(map(stream.feed, text)) + stream.close() == shown
    assert Redactor(secrets=False).redact(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        *("https://example.com/a/b?x=1", "http://h:80/a", "</p><br/>", "and/or 1/2 km/h / ~ //x y"),
        *(
            "docs/a.md ../x ./x",
            "$HOME/x ${A}/b **/*.md */c",
            "--- a/x\n+++ b/x",
            "text/html",
            "資料/a/b",
        ),
    ],
)
def test_what_is_no_path_from_a_root_is_left_alone(text: str) -> None:
    assert Redactor(secrets=False, paths=True).redact(text).text == text


@pytest.mark.parametrize("path", ["", "/", "//", "home/ann", "~/x", 3])
def test_a_folder_must_be_absolute_and_below_the_root(path: str) -> None:
    with pytest.raises(UsageError, match="absolute path"):
        Redactor(folders=[path])
