"""Approval templates: which calls they cover, and all the ways not to be one of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ToolSpec, replace
from mlx_tools.policy import ApprovalTemplate, CallContext, compute_pin
from mlx_tools.policy.approval_template import fits
from tests.tables import table

SAVE = ToolSpec("save", "Saves.", {"type": "object"}, frozenset({"write"}))
NOW = datetime(2026, 3, 1, tzinfo=UTC)
YES = ApprovalTemplate(
    id="1",
    tool="save",
    pin=compute_pin(SAVE, "v1"),
    arguments={"path": "drafts/*.md", "text": "*"},
    roots=("/home/u/work", "/srv/x"),
    made_at="2026-02-01T00:00:00+00:00",
    expires_at="2026-04-01T00:00:00+00:00",
)
CALL = CallContext(
    spec=SAVE,
    pinned="v1",
    arguments={"path": "anything", "text": "tea"},
    paths={"path": "/home/u/work/drafts/a.md"},
    roots=("/home/u/work/sub",),
    nested=False,
    now=NOW,
)


@table(
    ("pattern", "value", "fit"),
    [
        ("write", "write", True),
        ("write", "Write", False),
        ("write", "rewrite", False),
        ("write", "writer", False),
        ("write", "wr\u0456te", False),
        ("caf\u00e9", "cafe\u0301", False),
        ("a*", "abc", True),
        ("a*", "a/b", False),
        ("a*", "ba", False),
        ("a/**", "a/b/c", True),
        ("a/**", "a", False),
        ("a/b**", "a/bc", True),
        ("a/**", "a/../b", False),
        ("a/**", "a/b/..", False),
        ("a/**", "a/%2e%2e/b", False),
        ("a/**", "a\\..\\b", False),
        ("a/*", "a/b\nc", False),
        ("a/*", "a/\u202eb", False),
        ("a/*", "a/..", False),
        ("a/*", "a/", False),
        ("a/**/z.md", "a/z.md", True),
        ("a/**/z.md", "a/b/c/z.md", True),
        ("a/**/z.md", "a/b/c/zz.md", False),
        ("?[ab]", "xa", True),
        ("[*]", "*", True),
        ("[*]", "x", False),
        ("https://docs.example/**", "https://docs.example/a/b", True),
        ("https://docs.example/**", "https://docs.example.evil/a", False),
        ("https://docs.example/**", "http://x/https://docs.example/a", False),
        ("*", "a/../b\n", True),
        ("*", {"any": [1]}, True),
        ("3", 3, False),
        (3, 3, True),
        (3, 3.0, False),
        (1, True, False),
        (None, None, True),
        (["commit", "-m", "*"], ["commit", "-m", "a\nb"], True),
        (["commit", "-m", "*"], ["commit", "-m", "a", "--no-verify"], False),
        (["status"], "status", False),
        ("s*", ["status"], False),
        ({"a": "x*"}, {"a": "xy"}, True),
        ({"a": "x*"}, {"a": "xy", "b": 1}, False),
        ({"a": "x*"}, {}, False),
    ],
)
def test_a_pattern_is_held_against_the_whole_value(pattern: Any, value: Any, fit: bool) -> None:
    assert fits(pattern, value) is fit


SITE = "https://*.example.com/*"
OTHER_HOSTS = (
    *("example.com", ".example.com", "a..example.com", "a.example.com.", "a.example.com.evil.test"),
    *("a.example.com@evil.test", "a.example.com:8", "a.example.com:443", "a.example.com:"),
    *("u@a.example.com", "u:p@a.example.com", "evil.test@a.example.com", "@a.example.com"),
    *("b\u00fccher.example.com", "\u0430.example.com", "a\u3002b.example.com", "%61.example.com"),
    *(f"evil.test{sign}a.example.com" for sign in "?#/@\\:;,&%! \t\u2044\uff0f_"),
    *(f"evil.test{sign}.example.com" for sign in "?#/@\\:"),
    *(f"evil.test%{code}a.example.com" for code in ("2f", "252f", "3f", "2523", "40", "00")),
)
OTHER_PATHS = (
    *("x/y", "", ".", "..", "%2e%2e", "%252e%252e", "%25252e%25252e", "a%2fb", "a%252fb"),
    *("..\\x", "a%5cb", "x?y", "x#y", "x?", "x ", "%00"),
)
OTHER_URLS = (
    *("http://a.example.com/x", "HTTPS://a.example.com/x", "https:/a.example.com/x"),
    *(
        "//a.example.com/x",
        "https:a.example.com/x",
        " https://a.example.com/x",
        "https://x/https://a.example.com/x",
    ),
    *(f"https://{host}/x" for host in OTHER_HOSTS),
    *(f"https://a.example.com/{path}" for path in OTHER_PATHS),
)


def test_a_url_that_a_pattern_does_not_mean_part_by_part_is_asked_about() -> None:
    assert [url for url in OTHER_URLS if fits(SITE, url)] == []
    for host in ("a.example.com", "a.b-c.example.com", "7.example.com"):
        assert fits(SITE, f"https://{host}/x")
    for path in ("a%20b", "a@b", "caf\u00e9", "a;b", "a,b"):
        assert fits(SITE, f"https://a.example.com/{path}")


@table(
    ("pattern", "value", "fit"),
    [
        ("https://*/*", "https://evil.test/x", True),
        ("https://*:*/x", "https://a.test:8443/x", True),
        ("https://*:*/x", "https://a.test/x", False),
        ("http*://a.test/x", "https://a.test/x", True),
        ("http*://a.test/x", "http://evil.test?://a.test/x", False),
        ("https://a.test/s?q=*", "https://a.test/s?q=tea%20cup", True),
        ("https://a.test/s?q=*", "https://a.test/s?q=tea&to=evil", False),
        ("https://a.test/s?q=*", "https://a.test/s?q=tea%26to=evil", False),
        ("https://a.test/s?q=*", "https://a.test/sXq=tea", False),
        ("https://a.test/**", "https://a.test/b/c", True),
        ("https://a.test/**", "https://a.test/b/c?d", False),
        ("https://[::1]:8080/*", "https://[::1]:8080/x", True),
        ("https://[::1]/*", "https://1/x", False),
        ("https://u@a.test/*", "https://u@a.test/x", True),
        ("https://a[0-9].test/*", "https://a7.test/x", True),
        ("https://a[!x]evil.test/*", "https://a@evil.test/x", False),
        ("https://a[9-0].test/*", "https://a7.test/x", False),
        ("*.example.com/*", "a.example.com/x", True),
        ("*.example.com/*", "evil.test?a.example.com/x", False),
        ("*.example.com", "user@evil.test:x.example.com", False),
        ("**/page", "https://evil.test/page", False),
    ],
)
def test_a_wildcard_in_a_url_means_its_own_part_alone(pattern: str, value: str, fit: bool) -> None:
    assert fits(pattern, value) is fit


HOSTS_OF_PATTERNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # pattern: hosts that it takes, hosts that it does not take
    "10.*": (
        ("10.0.0.1", "10.255.255.255"),
        ("10.evil.test", "10.1.2.3.evil.test", "10.1", "10.1.2", "10.1.2.3.4", "10.1.2.256"),
    ),
    "10.*.*.*": (("10.1.2.3",), ("10.a.b.c", "10.1.2.evil", "10.1.2.3.4.5.6", "10.1.02.3")),
    "192.168.*": (("192.168.7.9",), ("192.168.evil.test", "192.168.1", "192.168.1.0x1")),
    "192.168.1.*": (("192.168.1.20",), ("192.168.1.evil.test", "192.168.1.2.test", "192.168.1.")),
    "192.168.1.1*": (("192.168.1.1", "192.168.1.19"), ("192.168.1.1.evil.test", "192.168.1.1x")),
    "1*": (("1.2.3.4", "127.0.0.1"), ("1.evil.test", "1evil.test", "1", "16777217")),
    "192.168*": (("192.168.1.2",), ("192.168.evil.test", "192.168", "192.1680.1.2")),
    "*.1": (("10.0.0.1",), ("evil.test.1", "evil.1", "1.1")),
    "10.*.1": (("10.2.3.1",), ("10.evil.test.1", "10.x.1", "10.1")),
    "10.0.0.[1-9]": (("10.0.0.7",), ("10.0.0.0", "10.0.0.x")),
    "10.[a-z0-9]*": ((), ("10.evil.test",)),
    "0x0a.*": ((), ("0x0a.evil.test", "10.0.0.1")),
    "*.10.example.com": (("a.10.example.com",), ("10.example.com",)),
    "10.*.example.com": (("10.a.example.com",), ("10.1.2.3",)),
    "10-*.example.com": (("10-1-2-3.example.com",), ()),
    "[fd00::*]": ((), ("[fd00::1]", "f", "0", "d", "evil.test")),
    "[::1]": (("[::1]",), ("1", "[::2]")),
}


@pytest.mark.parametrize("form", ["https://{}/x", "https://{}:*/x", "ann@{}"])
def test_a_pattern_of_addresses_takes_no_names(form: str) -> None:
    for pattern, (taken, others) in HOSTS_OF_PATTERNS.items():
        if form == "ann@{}" and ":" in pattern:
            continue  # a mail address has no IPv6 address
        host = form.replace("*", "8443")
        wrong = [one for one in taken if not fits(form.format(pattern), host.format(one))]
        wrong += [one for one in others if fits(form.format(pattern), host.format(one))]
        assert wrong == [], pattern


@pytest.mark.parametrize(
    ("pattern", "value", "fit"),
    [
        ("10.*", "10.1.2.3", True),
        ("10.*", "10.evil.test", False),
        ("10.*:80", "10.1.2.3:80", True),
        ("10.*:80", "10.evil.test:80", False),
        ("10.*:*", "10.1.2.3:8080", True),
        ("10.?.?.?", "10.1.2.3", True),
        ("10.?.?.?", "10.a.b.c", False),
        ("192.168.*/x", "192.168.1.2/x", True),
        ("192.168.*/x", "192.168.evil.test/x", False),
        ("2024.*", "2024.txt", True),
        ("10*", "10 cups", True),
        ("v1.*", "v1.beta", True),
    ],
)
def test_a_text_that_begins_like_an_address_goes_on_like_one(
    pattern: str, value: str, fit: bool
) -> None:
    assert fits(pattern, value) is fit


@table(
    ("pattern", "value", "fit"),
    [
        ("*@example.com", "ann.b+c@example.com", True),
        ("*@*.example.com", "ann@mail.example.com", True),
        ("*@example.com", "evil@evil.test,ann@example.com", False),
        ("*@example.com", "evil@evil.test ann@example.com", False),
        *(("*@example.com", f"evil.test{sign}ann@example.com", False) for sign in ",; <>\"'()"),
        *(("*@example.com", f"evil.test{sign}ann@example.com", False) for sign in "%!:&|/"),
        ("*@example.com", "ann@example.com,evil@evil.test", False),
        ("*@example.com", "ann@example.com@evil.test", False),
        ("*@example.com", "ann%40evil.test@example.com", False),
        ("ann@*.com", "ann@evil.test/x.com", False),
        ("mailto:*@example.com", "mailto:ann@example.com", True),
        ("mailto:*@example.com", "mailto:ann@example.com?bcc=evil.test", False),
        ("team-*", "team-a", True),
        ("team-*", "team-a, evil@evil.test", False),
        ("team-*", "team-a;b", False),
        ("ls *", "ls a b", True),
        *(("ls *", f"ls a{sign}rm b", False) for sign in (";", "|", "&&", "\n", "`", "$(")),
        *(("ls *", f"ls a{sign}rm b", False) for sign in (">", "%3b", "&", "{")),
        ("[,]*", ",a", False),
        ("a,*", "a,b", True),
        ("a,*", "a,b,c", False),
    ],
)
def test_a_wildcard_means_one_address_and_one_command(pattern: str, value: str, fit: bool) -> None:
    assert fits(pattern, value) is fit


def test_many_wildcards_take_linear_time() -> None:
    for pattern in ("https://a.test/" + "*a" * 200 + "b", "*a" * 200 + "@b.test", "*a" * 200 + "b"):
        assert not fits(pattern, "https://a.test/" + "a" * 20_000)
        assert not fits(pattern, "a" * 20_000 + "@c.test")
        assert not fits(pattern, "a" * 20_000)


def test_a_file_may_have_any_name_below_its_folder() -> None:
    for name in ("a,b.md", "C#.md", "who@home.md", "100%.md", "a%2fb.md", "what?.md"):
        assert YES.covers(replace(CALL, paths={"path": f"/home/u/work/drafts/{name}"}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON, JSON)
def test_any_two_values_can_be_held_against_each_other(pattern: Any, value: Any) -> None:
    assert fits("*", value)
    if fits(pattern, value) and not any(c in repr(pattern) for c in "*?["):
        assert pattern == value


def test_a_call_of_the_shape_is_covered() -> None:
    assert YES.covers(CALL)
    assert replace(YES, arguments={"path": "/home/u/work/drafts/*", "text": "*"}).covers(CALL)
    assert YES.covers(replace(CALL, paths={"path": "/srv/x/drafts/b.md"}, roots=()))
    assert replace(YES, nested=True).covers(replace(CALL, nested=True))


OTHER: dict[str, dict[str, Any]] = {
    "one more argument": {"arguments": {**CALL.arguments, "mode": "x"}},
    "one argument less": {"arguments": {"path": "anything"}},
    "another tool": {"spec": replace(SAVE, name="save_")},
    "another schema": {"spec": replace(SAVE, parameters={"type": "object", "properties": {}})},
    "other words of the tool": {"spec": replace(SAVE, description="Saves!")},
    "other effects": {"spec": replace(SAVE, effects=frozenset({"write", "network"}))},
    "another plugin": {"spec": replace(SAVE, plugin="stranger")},
    "another version": {"pinned": "v2"},
    "no version": {"pinned": None},
    "a run within a call": {"nested": True},
    "another folder of the run": {"roots": ("/home/u/work", "/home/u")},
    "a folder beside it": {"roots": ("/home/u/work-evil",)},
    "a relative folder": {"roots": ("work",)},
    "a path beside": {"paths": {"path": "/home/u/work/drafts-evil/a.md"}},
    "a path deeper": {"paths": {"path": "/home/u/work/drafts/b/a.md"}},
    "a path elsewhere": {"paths": {"path": "/etc/drafts/a.md"}},
    "a path up": {"paths": {"path": "/home/u/work/drafts/../drafts/a.md"}},
    "a path nowhere": {"paths": {"path": ""}},
    "a path of two slashes": {"paths": {"path": "//home/u/work/drafts/a.md"}},
    "a path that looks alike": {"paths": {"path": "/home/u/work/dr\u0430fts/a.md"}},
    "a path that goes to the left": {"paths": {"path": "/home/u/work/drafts/\u202edm.a.md"}},
    "too late": {"now": datetime(2026, 4, 1, tzinfo=UTC)},
    "a clock set back": {"now": datetime(2026, 1, 31, tzinfo=UTC)},
}


@table("change", OTHER.values(), ids=OTHER)
def test_a_call_that_differs_in_anything_is_not_covered(change: dict[str, Any]) -> None:
    assert not YES.covers(replace(CALL, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"roots": ()},
        {"roots": ("/home/u/work/drafts",)},
        {"arguments": {"path": ["drafts/*.md"], "text": "*"}},
        {"expires_at": "soon"},
        {"made_at": ""},
        {"expires_at": "2026-04-01T00:00:00"},
    ],
)
def test_a_template_that_cannot_be_right_covers_nothing(change: dict[str, Any]) -> None:
    assert not replace(YES, **change).covers(CALL)


def test_a_clock_may_be_a_little_behind() -> None:
    made = datetime.fromisoformat(YES.made_at)
    assert YES.holds(made - timedelta(minutes=4)) and not YES.holds(made - timedelta(minutes=6))
