"""Things that the repository must not hold: secrets, paths and hosts of one machine, clutter."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

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


# --- private names of the package in tests --------------------------------------------------------

PRIVATE = re.compile(r"_[A-Za-z]\w*")
MAY_REACH_IN = re.compile(
    r"(?<!\bself)(?<!\bcls)\._[A-Za-z]|[(,\s]_[A-Za-z]\w*=|[\"'.]_[A-Za-z]\w*[\"']"
    r"|\bimport\b[^\n]* _[A-Za-z]|^ +_[A-Za-z]\w*,$",
    re.MULTILINE,
)
MAY_INHERIT = re.compile(r"^class \w+\([A-Z]", re.MULTILINE)

FOREIGN = {"os", "sys"}
"""Modules with functions of a name that begins with ``_``, such as ``os._exit``."""
ATTRIBUTE_FUNCTIONS = {"setattr", "getattr", "hasattr", "delattr"}


class PackageNames:
    """The private names of the package: all of them, and those of one of its classes."""

    def __init__(self) -> None:
        paths = sorted((ROOT / "mlx_tools").rglob("*.py"))
        self._texts = [path.read_text(encoding="utf-8") for path in paths]
        defined = re.compile(
            r"(?:def|class) +(_[A-Za-z]\w*)|self\.(_[A-Za-z]\w*)[^\n]*="
            r"|^ *(_[A-Za-z]\w*)(?: *:[^\n]*)? *=",
            re.MULTILINE,
        )
        self.all = {
            name for text in self._texts for found in defined.findall(text) for name in found
        } - {""}

    def of_class(self, name: str) -> set[str]:
        """Return the private names of a class and of its bases in the package."""
        begin = re.compile(rf"^class {name}\b", re.MULTILINE)
        text = next((text for text in self._texts if begin.search(text)), "")
        names: set[str] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                names |= own_names(node).union(*map(self.of_class, base_names(node)))
        return names


def base_names(node: ast.ClassDef) -> list[str]:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return [ast.unparse(base).rpartition(".")[2] for base in bases]


def own_names(node: ast.ClassDef) -> set[str]:
    """Return the private names that a class defines, or uses of itself."""
    names = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and ast.unparse(part.value) in ("self", "super()")
    }
    names |= {
        part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return set(filter(PRIVATE.fullmatch, names))


def private_uses(source: str, package: PackageNames) -> list[tuple[int, str]]:
    """Return the line and the name of each private name of the package that a test uses."""
    faults = []
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlx_tools")
        for alias in node.names
    }
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("mlx_tools"):
                names = [*module.split("."), *(alias.name for alias in node.names)]
            case ast.Import():
                ours = [alias.name for alias in node.names if alias.name.startswith("mlx_tools")]
                names = [part for name in ours for part in name.split(".")]
            case ast.Attribute(value=ast.Name(id=name)) if name in {"self", "cls", *FOREIGN}:
                pass
            case ast.Attribute():
                names = [node.attr] if node.attr in package.all else []
            case ast.Call():
                names = [key.arg for key in node.keywords if key.arg in package.all]
                if ast.unparse(node.func).rpartition(".")[2] in ATTRIBUTE_FUNCTIONS:
                    texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
                    parts = [part for text in texts for part in str(text).split(".")]
                    names += [part for part in parts if part in package.all]
            case ast.ClassDef():
                bases = [package.of_class(name) for name in base_names(node) if name in imported]
                names = sorted(own_names(node).intersection(*bases)) if bases else []
        faults += [(node.lineno, name) for name in names if PRIVATE.fullmatch(name)]
    return faults


def test_tests_use_public_names_of_the_package_alone() -> None:
    """A private name may change with no other test to tell that its behaviour did not."""
    package, faults = PackageNames(), []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        # To read all files in full would take seconds.
        inherits = "self._" in source and MAY_INHERIT.search(source)
        if inherits or MAY_REACH_IN.search(source):
            name = path.relative_to(ROOT).as_posix()
            faults += [f"{name}:{line}: {used}" for line, used in private_uses(source, package)]
    assert faults == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from mlx_tools.tools.signature import _refers", ["_refers"]),
        ("import mlx_tools.store._files", ["_files"]),
        ("models._lock", ["_lock"]),
        ("Reader(_source=1)", ["_source"]),
        ("monkeypatch.setattr(one, '_lock', None)", ["_lock"]),
        ("monkeypatch.setattr('mlx_tools.store.transcript._read', None)", ["_read"]),
        (
            "from mlx_tools.protocol import Reader\nclass A(Reader):\n  x = self._source",
            ["_source"],
        ),
        ("class A:\n  def f(self): self._source = 1", []),
        ("os._exit(1)\nimport re._parser\none._no_name_of_the_package", []),
    ],
)
def test_a_private_name_is_told_from_a_public_one(source: str, names: list[str]) -> None:
    package = PackageNames()
    package.all |= {"_lock", "_source", "_read"}
    assert [name for _, name in private_uses(source, package)] == names
