"""The values that settings take: typed ones from files, texts from variables and options."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.app import as_toml, config
from mlx_tools.app.settings import Settings
from tests.tables import table

NO: Final = object()
"""The value is refused."""

ADDRESS: Final = "http://127.0.0.1:8080"
KEY: Final = "whsec_" + "A" * 32

_BOOLEANS: Final = {
    **dict.fromkeys(("true", "TRUE", " 1 ", "yes", "On"), True),
    **dict.fromkeys(("false", "False", "0", "no", "OFF\n"), False),
    **dict.fromkeys(("", "t", "y", "2", "-1", "truе", "１", "true,"), NO),
}
_INTEGERS: Final = {
    **dict.fromkeys(("5", "+5", "005", "5.0", " 5\n", "5.000"), 5),
    "1": 1,
    "1000": 1000,
    "1000.0": 1000,
    **dict.fromkeys(("", "0", "-5", "1001", "5.5", "5.", ".5", "1_0", "1e2", "5 5"), NO),
    **dict.fromkeys(("nan", "inf", "-inf", "0x5", "٣", "５", "½", "9" * 18, "9" * 400), NO),
}
_NUMBERS: Final = {
    "0": 0.0,
    "-0": -0.0,
    "2": 2.0,
    "0.5": 0.5,
    "5e-1": 0.5,
    ".5": 0.5,
    "1.": 1.0,
    "0_1": 1.0,
    "１": 1.0,
    "1e-400": 0.0,
    **dict.fromkeys(("", "-0.1", "2.1", "1_000", "1e3", "nan", "inf", "Infinity", "0x1"), NO),
}
_NAMES: Final = {
    "a": "a",
    " a ": "a",
    "日本": "日本",
    "a b": "a b",
    "x" * 500: "x" * 500,
    "": None,
    " ": None,
    **dict.fromkeys(("a\x00b", "a\nb", "a\x7f", "x" * 501, "a\udcff"), NO),
}
_LISTS: Final = {
    "": (),
    ",": (),
    "a": ("a",),
    "a, b ,,c,": ("a", "b", "c"),
    "a=b": ("a=b",),
    "[]": (),
    ' ["a", "b,c"] ': ("a", "b,c"),
    "['a']": ("a",),
    "[1]": NO,
    "[[]]": NO,
}

TEXTS: Final = {
    "policy.dry_run": _BOOLEANS,
    "limits.max_iterations": _INTEGERS,
    "model.temperature": _NUMBERS,
    "model.name": _NAMES,
    "gateway.hosts": _LISTS,
    "policy.allow": {"[ab]*, c": ("[ab]*", "c"), "[ab]*": ("[ab]*",), '["[ab]*"]': ("[ab]*",)},
    "model.seed": {"": None, "0": 0, "4294967295": 4294967295, "4294967296": NO, "-1": NO},
    "model.reasoning": {"off": "off", "auto": "auto", "7": 7, "0": NO, "OFF": NO, "": NO},
    "model.prompt_style": {"xml": "xml", " xml ": "xml", "XML": NO, "": NO, "jsonl,xml": NO},
    "backend.url": {
        "": None,
        ADDRESS: (ADDRESS,),
        f"{ADDRESS}, {ADDRESS}": (ADDRESS, ADDRESS),
        "ftp://a": NO,
        f"{ADDRESS},ftp://a": NO,
        "http://u:p@a": NO,
    },
    "backend.api_key": {"a-b_c": "a-b_c", "": None, "a b": NO, "é": NO, "x" * 4001: NO},
    "tools.roots": {"/a, ~/b:rw": ("/a", "~/b:rw"), "": (), "a\x00": NO, "a\udcff": NO},
    "tools.commands": {"make,g++": ("make", "g++"), "/bin/sh": NO, "-x": NO, "a b": NO},
    "prompt.project_context": {"": "", "a\nb": "a\nb", "x" * 100_001: NO, "a\ud800": NO},
    "gateway.models": {
        "": {},
        "a=b": {"a": "b"},
        "a = b, gpt-* = c ,": {"a": "b", "gpt-*": "c"},
        "a": NO,
        "a=": NO,
        "=b": NO,
        "a=b,a=c": NO,
        "a=b\x00": NO,
    },
    "policy.rate_limits": {"*=3/hour": {"*": "3/hour"}, "clock=often": NO, "clock": NO},
    "runs.webhooks": {f"https://h.example={KEY}": {"https://h.example": KEY}, f"x={KEY}": NO},
}
"""The text of a variable or an option, and the value; by setting."""

VALUES: Final[dict[str, list[tuple[Any, Any]]]] = {
    "policy.dry_run": [
        *((value, value) for value in (True, False)),
        *((value, NO) for value in (0, 1, 1.0, "true", "", None, [], [True], {})),
    ],
    "limits.max_iterations": [
        *((value, value) for value in (1, 5, 1000)),
        *((value, NO) for value in (True, 0, -1, 1001, 10**30, 5.0, 5.5, "5", [5], None)),
        *((value, NO) for value in (Decimal(5), float("nan"), float("inf"), 5j, b"5")),
    ],
    "model.temperature": [
        *((value, float(value)) for value in (0, 1, 2, 0.5, -0.0)),
        *((value, NO) for value in (True, -1, 2.1, 3, "1", None, [1.0])),
        *((value, NO) for value in (float("nan"), float("inf"), Decimal(1), 10**400)),
    ],
    "model.seed": [(0, 0), (2**32 - 1, 2**32 - 1), (2**32, NO), (None, NO), (False, NO)],
    "model.reasoning": [("off", "off"), (1, 1), (100_000, 100_000), (100_001, NO), (True, NO)],
    "model.prompt_style": [("xml", "xml"), ("XML", NO), ("xml\n", NO), (["xml"], NO), (1, NO)],
    "model.name": [("a", "a"), ("", NO), ("a\n", NO), (1, NO), (["a"], NO), (b"a", NO)],
    "gateway.hosts": [
        *(([], ()), (["a", "b"], ("a", "b")), (("a",), ("a",)), (["a"] * 9999, ("a",) * 9999)),
        *((value, NO) for value in ("a", {"a"}, frozenset("a"), {"a": "b"}, [1], [["a"]], [None])),
    ],
    "backend.url": [
        *((ADDRESS, ADDRESS), ([ADDRESS], (ADDRESS,)), ([], ())),
        *((value, NO) for value in (f"{ADDRESS},{ADDRESS}", {ADDRESS}, 8080, [8080])),
    ],
    "gateway.models": [
        *(({}, {}), ({"a": "b"}, {"a": "b"}), ({"": "b"}, {"": "b"})),
        *((value, NO) for value in ({"a": 1}, {"a": ""}, {"a": ["b"]}, {1: "b"}, ["a"], "a=b")),
    ],
}
"""The text of a file, and the value; by setting."""


@table(
    "key, text, value",
    ((key, text, value) for key, texts in TEXTS.items() for text, value in texts.items()),
)
def test_a_text_is_read_as_the_value_that_it_writes(key: str, text: str, value: Any) -> None:
    row = config.table()[key]
    if value is NO:
        with pytest.raises(ValueError):
            row.read(text)
    else:
        read = row.read(text)
        assert (type(read), repr(read)) == (type(value), repr(value))


@table(
    "key, given, value",
    ((key, given, value) for key, values in VALUES.items() for given, value in values),
)
def test_a_files_value_is_taken_or_refused_by_its_type(key: str, given: Any, value: Any) -> None:
    row = config.table()[key]
    if value is NO:
        with pytest.raises(ValueError):
            row.check(given)
    else:
        checked = row.check(given)
        assert (type(checked), repr(checked)) == (type(value), repr(value))


@given(st.sampled_from([*config.table().values()]), st.text() | st.from_regex(r"[0-9eE+._-]{1,9}"))
def test_any_text_is_refused_or_written_into_a_file_as_the_same_value(row: Any, text: str) -> None:
    try:
        value = row.read(text)
    except ValueError:
        return
    if value is not None:
        import tomllib

        written = tomllib.loads(f"value = {as_toml(value)}")["value"]
        assert row.check(written) == value


def test_a_time_in_seconds_may_have_a_fraction_if_it_is_whole_in_milliseconds() -> None:
    row = config.table()["limits.total_timeout_ms"]
    assert row.read("2.5", scale=1000) == 2500
    for text in ("0.0001", "86400.001", "0", "-1", "1e3", "1_0"):
        with pytest.raises(ValueError):
            row.read(text, scale=1000)


def test_a_secret_is_not_shown_with_the_settings(place: Any) -> None:
    loaded = place.load(
        "sessions = 'postgresql://me:hush@db/a'\n[backend]\napi_key = 'hush'\n"
        f"[gateway]\napi_key = 'hush'\n[runs]\nwebhooks = {{ 'https://h.example' = '{KEY}' }}\n"
    )
    settings: Settings = loaded.settings
    assert loaded.section("runs").webhooks == {"https://h.example": KEY}
    assert KEY not in repr(loaded.section("runs"))
    assert settings.backend.api_key == "hush"
    assert not re.search(f"hush|{KEY}", repr(settings)) and "max_iterations=24" in repr(settings)
