"""The tests and scripts run on a Mac: what only Linux or GNU's programs have is searched for.

Code that needs it is skipped elsewhere, or stands in `EXCEPTIONS` with the reason why it does no
harm. `make check` also has mypy look at the package as macOS sees it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parent.parent

LINUX_PATHS = re.compile(r"(?:^|[\s'\"=({:])/(?:proc|sys|run|dev/shm|dev/full)\b")
GNU_COMMANDS = re.compile(
    r"(?:^|[\s'\"`(|;&])(?:"
    r"sed\s+(?:\S+\s+)*?-\w*[ir]\b|sed\s+(?:\S+\s+)*?--|readlink\s+-f|stat\s+(?:-c|--)"
    r"|date\s+(?:-d|--)|xargs\s+(?:-r|-d)\b|grep\s+-\w*P|head\s+-n\s*-\d|mktemp\s+--|cp\s+--"
    r"|tac|sha256sum|md5sum|nproc|taskset|setsid|unshare|useradd|getent|prlimit|ldd|strace"
    r"|apt-get|systemctl|bwrap|chattr|ionice|timeout\s+[\d-]|mapfile|readarray"
    r")(?=[\s'\"`);|&]|$)"
)
"""Programs that a Mac has not, and options that its programs do not take."""

BASH_4 = re.compile(
    r"\$\{\w+\[-\d+\]\}|\$\{\w+(?:,,?|\^\^?)\}|declare\s+-[An]|local\s+-n|\|&|&>>|;;&|;&"
    r"|\bcoproc\b|\$\{\w+@[A-Za-z]\}|\bmapfile\b|\breadarray\b|\[\[ -v |%\(.*\)T|\bwait -n\b"
)
"""Features that the bash 3.2 of macOS does not have."""

MAKE_4 = re.compile(r"^\w[\w.-]*\s*!=|\.ONESHELL|\$\(file |\$\(guile|&:|^undefine\b|:::?=", re.M)
"""Features that the make 3.81 of Apple's command line tools does not have."""

LINUX_NAMES = {
    *("O_PATH", "O_TMPFILE", "memfd_create", "pidfd_open", "pidfd_send_signal", "eventfd"),
    *("sched_setaffinity", "sched_getaffinity", "setns", "unshare", "splice", "copy_file_range"),
    *("getxattr", "setxattr", "listxattr", "getrandom", "pipe2", "epoll", "prlimit", "prctl"),
    *("SOCK_CLOEXEC", "SOCK_NONBLOCK", "AF_NETLINK", "SO_PEERCRED", "TCP_USER_TIMEOUT"),
    *("RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "SIGRTMIN", "SIGPOLL", "CLONE_NEWNS"),
}
"""Attributes of `os`, `socket`, `signal` and `resource` that Python has on Linux alone."""

ANY = re.compile("|".join([LINUX_PATHS.pattern, GNU_COMMANDS.pattern, *sorted(LINUX_NAMES)]))
"""A text without these is not looked at further."""

SKIPS = re.compile(
    r"skip|needs_bwrap|linux\b|platform|HAS_PROC|reason=|exists\(\)|is_dir\(\)|which\("
)
"""Marks in or above a function that does not use on a Mac what is not there."""

EXCEPTIONS = {
    "tests/conftest.py": "takes the folder in memory only where there is one",
    "tests/policy/test_secret_names.py": "names of files that are not opened",
    "tests/docs/test_first_hour.py": "has stand-ins for both systems' programs",
    "tests/processes.py": "knows both ways",
    "tests/tools/test_command_escapes.py": "words of calls that must come to nothing anywhere",
    "tests/tools/test_command_sandbox.py": "options of bwrap and paths of profiles, as text",
    "tests/tools/test_traversal.py": "paths that must open nothing anywhere",
    "tests/app/test_autostart.py": "systemd's commands are recorded and not run",
    "tests/cli/test_cli_schedule.py": "systemd's commands are recorded and not run",
    "scripts/test_hard.sh": "says which of its runs are for Linux, and leaves them out elsewhere",
}


def python_faults(text: str) -> Iterator[str]:
    """Names of Linux alone in a text of Python, each with its line, unless it is skipped there."""
    if not ANY.search(text) or "allow_module_level" in text:
        return
    lines = text.splitlines()
    tree = ast.parse(text)
    nodes = [*ast.walk(tree)]
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        what = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings and " a " not in node.value:
                match = LINUX_PATHS.search(node.value) or GNU_COMMANDS.search(node.value)
                what = match[0].strip() if match else ""
        elif isinstance(node, ast.Attribute) and node.attr in LINUX_NAMES:
            what = node.attr
        if what and not _is_skipped(node, nodes, lines):
            yield f"{node.lineno}: {what}"


def _is_skipped(node: ast.expr, nodes: list[ast.AST], lines: list[str]) -> bool:
    """Return whether what a node needs is asked for in its line or in what it is a part of."""
    parts = [range(node.lineno, node.lineno + 1)]
    for outer in nodes:
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([outer.lineno, *(d.lineno for d in outer.decorator_list)])
            parts.append(range(first, (outer.end_lineno or 0) + 1))
    return any(
        node.lineno in part and SKIPS.search("\n".join(lines[part.start - 1 : part.stop - 1]))
        for part in parts
    )


def shell_faults(text: str) -> Iterator[str]:
    """Words of Linux, GNU's programs or a newer bash alone in a script, each with its line."""
    for number, line in enumerate(text.splitlines(), start=1):
        code = re.sub(r"(?:^|\s)#.*", "", line)
        for pattern in (LINUX_PATHS, GNU_COMMANDS, BASH_4):
            match = pattern.search(code)
            if match and not re.search(r"# .*\bLinux\b", line):
                yield f"{number}: {match[0].strip()}"


def repository_faults() -> Iterator[str]:
    for folder in ("tests", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name not in EXCEPTIONS and "tests/data/" not in name:
                yield from (f"{name}:{one}" for one in python_faults(path.read_text("utf-8")))
    for path in (ROOT / "Makefile", ROOT / ".ci" / "run", *(ROOT / "scripts").glob("*.sh")):
        name = path.relative_to(ROOT).as_posix()
        if name not in EXCEPTIONS:
            yield from (f"{name}:{one}" for one in shell_faults(path.read_text("utf-8")))


def test_tests_and_scripts_use_nothing_that_a_mac_has_not() -> None:
    assert [*repository_faults()] == []


def test_the_makefile_suits_the_make_of_macos() -> None:
    assert MAKE_4.findall((ROOT / "Makefile").read_text("utf-8")) == []


def test_exceptions_are_files_that_would_be_found() -> None:
    for name in EXCEPTIONS:
        path = ROOT / name
        faults = python_faults if name.endswith(".py") else shell_faults
        assert path.is_file() and [*faults(path.read_text("utf-8"))], f"{name} needs no exception"


def test_what_is_for_linux_alone_is_found() -> None:
    for text in (
        "import os\nos.O_PATH",
        "x = open('/proc/self/stat')",
        'VISUAL = "sed -i s/a/b/"',
        "def test_x():\n    run(['/dev/shm/x'])",
        "run('date -d yesterday')",
        "x = f'/proc/{pid}/stat'",
    ):
        assert [*python_faults(text)], text
    for text in (
        "@pytest.mark.skipif(sys.platform != 'linux', reason='x')\ndef test_x():\n    os.O_PATH",
        "def test_x():\n    if not Path('/proc').exists(): pytest.skip('no')\n    open('/proc/x')",
        "x = 'a text on /procedures'",
    ):
        assert not [*python_faults(text)], text
    for line in ("sed -i s/a/b/ f", 'echo "${all[-1]}"', "readlink -f x", "a=$(nproc)", "x |& y"):
        assert [*shell_faults(line)], line
    for line in ("sed 's/a/b/' f", "# taskset", "apt-get install x # Linux", 'echo "${all[0]}"'):
        assert not [*shell_faults(line)], line
