"""Things that the repository must not hold: secrets, paths and hosts of one machine, clutter."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LARGEST_BYTES = 1_000_000

# Written so that this file does not hold what it looks for.
PATHS = re.compile(r"(?<![\w.~*-])/(?:ro{2}t|wor{1}k|tm{1}p/w|Use{1}rs/\w+)/")
HOSTS = re.compile(
    r"pypi\.or{1}g|pythonhoste{1}d\.org|npmj{1}s\.(?:org|com)|deb\.debia{1}n\.org"
    r"|crate{1}s\.io|proxy\.golan{1}g\.org|/op{1}t/(?:pypi|wheels)"
)
SECRETS = re.compile(
    r"\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36}|glpat-[\w-]{20}|xox[abprs]-[\w-]{10,}"
    r"|sk-[A-Za-z0-9_-]{32,}|hf_[A-Za-z0-9]{34}|AIza[\w-]{35})"
    r"|-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"
)
HISTORY = re.compile(
    r"\bissue[ ]\d+\b|\bsub-?agent{1}s?\b|\bsh{1}ared/|\bCONTRAC{1}T\.md"
    r"|\bclaud{1}e\b(?![ ](?:Code|Desktop|-p)\b|-(?:code\b|\*)|\x22\)|/settings|/claud{1}e_desktop"
    r"|\.json)",
    re.IGNORECASE,
)
"""Programs that keep servers, and that chat stands beside, are named as such."""


@cache
def tracked() -> list[Path]:
    """The files of the next commit: tracked ones and new ones that are not ignored."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout: what belongs to the repository is not known")
    listed = subprocess.run(
        [git, "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


@cache
def text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def places(pattern: re.Pattern[str], *, leave_out: tuple[str, ...] = ()) -> list[str]:
    found = []
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if name in leave_out:
            continue
        text = text_of(path)
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{name}:{line}: {match[0]}")
    return found


def test_no_file_holds_a_secret() -> None:
    assert places(SECRETS) == []


def test_no_file_names_a_path_of_one_machine() -> None:
    assert places(PATHS) == []


def test_no_file_names_a_package_registry() -> None:
    assert places(HOSTS) == []


def test_no_file_speaks_of_how_it_was_made() -> None:
    assert places(HISTORY) == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (SECRETS, "AKIA" + "A1B2" * 4),
        (PATHS, '"/' + 'root/.cache"'),
        (PATHS, "cd /" + "work/main"),
        (HOSTS, "https://" + "pypi" + ".org/simple"),
        (HISTORY, "see Issue" + " 12"),
        (HISTORY, "../sha" + "red/x"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


def test_no_file_is_large_or_generated() -> None:
    clutter = re.compile(r"(?:^|/)(?:__pycache__|\.DS_Store|\.venv|dist|build)(?:/|$)|\.pyc$")
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        assert path.stat().st_size <= LARGEST_BYTES, name
        assert not clutter.search(name), name


def test_text_files_end_in_one_newline_and_hold_no_trailing_space() -> None:
    trailing = re.compile(r"[^\S\n](?=\n|\Z)")
    suffixes = {".cff", ".lock", ".md", ".py", ".sh", ".toml", ".yaml", ".yml"}
    names = {"Makefile", "LICENSE", "run"}
    faults = []
    for path in tracked():
        if path.suffix not in suffixes and path.name not in names:
            continue
        text = text_of(path)
        name = path.relative_to(ROOT).as_posix()
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            faults.append(f"{name}: does not end in one newline")
        if trailing.search(text):
            lines = enumerate(text.split("\n"), start=1)
            faults += [f"{name}:{i}: trailing space" for i, line in lines if line != line.rstrip()]
    assert faults == []


BRACKETS_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
POSSESSIVE_GROUP = re.compile(r"[^(]\)(?:[*+?]|\{[0-9,]+\})\+")


POSSESSIVE = re.compile(r"[*+?}][rRbBfFuU\"'\s]*\+")
"""A possessive repetition, also one that goes on in the next literal of a string."""


def possessive_groups(pattern: str) -> list[str]:
    """Return what repeats a group possessively, such as ``(?:ab?)*+``, in a regular expression.

    Escaped characters and character classes hold no group; a single class may be repeated so.
    """
    plain = BRACKETS_CLASS.sub("x", re.sub(r"\\.", "x", pattern, flags=re.DOTALL))
    return POSSESSIVE_GROUP.findall(plain)


def string_constants(path: Path) -> list[str]:
    """The strings in a file of Python; what is put into an f-string stands for a group."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = node.values
            texts = [part.value if isinstance(part, ast.Constant) else "(x)" for part in parts]
            found.append("".join(map(str, texts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Before 3.11.5 `re` matches such a pattern wrongly; an atomic group is right everywhere."""
    faults = []
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if name == Path(__file__).relative_to(ROOT).as_posix():
            continue
        if not POSSESSIVE.search(text_of(path)):
            continue
        if path.suffix == ".py":
            texts = string_constants(path)
        else:
            is_data = path.suffix in (".toml", ".json", ".yaml") and "golden" not in name
            texts = text_of(path).split("\n") if is_data else []
        faults += [f"{name}: {text[:80]!r}" for text in texts if possessive_groups(text)]
    assert faults == []


@pytest.mark.parametrize(
    ("pattern", "is_refused"),
    [
        *((r"(?:ab?)*+", True), (r"x(a|b)++y", True), (r"(?:[ab]c)?+", True)),
        *((r"(?:ab){2,3}+", True), (r"(a[)]b)*+", True)),
        *((r"[ab]*+", False), (r"(?>(?:ab?)*)", False), (r"\)*+", False), (r"[()]*+", False)),
        *((r"\w{1,64}+(?:a)*", False), (r"(?:a*+)+", False), ("!$&'()*+,", False)),
    ],
)
def test_a_possessive_group_is_told_from_a_possessive_class(pattern: str, is_refused: bool) -> None:
    assert bool(possessive_groups(pattern)) is is_refused


BROAD = {"Exception", "BaseException"}
LOG_LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
QUIET_HANDLERS = {
    # Pure rooms do no I/O, and a log line is I/O. What each returns instead says that it failed.
    "errors.for_message": "the message says the type in place of the text",
    "errors.read_attribute": "the attribute counts as absent, and is refused by name where needed",
    "messages.effects_of": "the call has all effects, which the decision on it records",
    "protocol.objects.may_mutate": "the call counts as one that can change things",
    "parsing.scan._agree": "a second reader without an opinion leaves the first reader's",
}
"""Functions that catch everything and neither log, raise nor use the error, with the reason."""


def is_broad(expression: ast.expr | None) -> bool:
    if isinstance(expression, ast.Tuple):
        return any(map(is_broad, expression.elts))
    return expression is None or ast.unparse(expression).rpartition(".")[2] in BROAD


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Return True if the handler raises, logs, or uses the exception that it caught."""
    return any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Name) and node.id == handler.name)
        or (
            isinstance(node, ast.Attribute)
            and node.attr in LOG_LEVELS
            and "log" in ast.unparse(node.value).lower()
        )
        for statement in handler.body
        for node in ast.walk(statement)
    )


def called_name(node: ast.Call) -> str:
    """The last word of what is called."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def swallowing(source: str) -> list[tuple[str, int]]:
    """Return the function and the line of each place that catches every error without a trace."""
    faults = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type) and not passes_on(node):
            faults.append((function, node.lineno))
        if isinstance(node, ast.Call) and called_name(node).endswith("suppress"):
            faults.extend((function, node.lineno) for one in node.args if is_broad(one))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), "")
    return faults


def test_no_error_of_any_kind_is_dropped_without_a_trace() -> None:
    """A handler of every error logs it, raises, or passes the error on as a value."""
    faults, exempt = [], set[str]()
    for path in sorted((ROOT / "mlx_tools").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "mlx_tools").with_suffix("").parts)
        for function, line in swallowing(path.read_text(encoding="utf-8")):
            if (name := f"{module}.{function}") in QUIET_HANDLERS:
                exempt.add(name)
            else:
                faults.append(f"{module}, line {line}: log it, or catch what can be raised")
    assert faults == []
    assert exempt == QUIET_HANDLERS.keys()


@pytest.mark.parametrize(
    ("source", "is_fault"),
    [
        *(("try: f()\nexcept Exception: pass", True), ("try: f()\nexcept: x = 1", True)),
        ("try: f()\nexcept (OSError, builtins.BaseException) as error: x = 1", True),
        *(
            ("with contextlib.suppress(Exception): f()", True),
            ("with suppress(OSError): f()", False),
        ),
        *(("try: f()\nexcept Exception: raise", False), ("try: f()\nexcept OSError: x = 1", False)),
        ("try: f()\nexcept Exception as error: note(error)", False),
        ("try: f()\nexcept Exception: _log.debug('it failed')", False),
        ("try: f()\nexcept* Exception: pass", True),
    ],
)
def test_a_dropped_error_is_told_from_one_that_is_passed_on(source: str, is_fault: bool) -> None:
    assert bool(swallowing(source)) is is_fault


def test_every_sqlite_connection_is_closed() -> None:
    """``with`` on a connection ends the transaction only. Python warns of an open one from 3.13 on,
    and warnings are errors here."""
    opened = re.compile(r"\bwith sqlite3\.connec[t]\(")
    assert places(opened) == []
