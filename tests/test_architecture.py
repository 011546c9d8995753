"""The house holds: an order of rooms, rooms without I/O, light imports, short functions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import cast

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlx_tools.app import plugins
from scripts import import_diagram as house
from scripts.generated_part import ROOT

pytestmark = pytest.mark.check

PURE = (
    "errors",
    "messages",
    "schema",
    "parsing",
    "protocol",
    "policy",
    "transcript",
    "prompt",
    "decoding",
    "controller.call_beginning",
    "controller.result",
    "controller.session",
    "controller.state",
    "controller.turn",
)
"""Rooms and modules that do no I/O."""

NO_IO_MODULES = {
    *("aiofiles", "anyio", "asyncio", "ctypes", "fcntl", "fileinput", "ftplib", "glob", "http"),
    *("httpx", "io", "logging", "mlx", "mlx_lm", "mmap", "multiprocessing", "os", "pathlib"),
    *("platformdirs", "requests", "rich", "select", "selectors", "shutil", "signal", "smtplib"),
    *("socket", "socketserver", "sqlite3", "ssl", "starlette", "subprocess", "sys", "tempfile"),
    *("threading", "time", "typer", "urllib", "uvicorn", "webbrowser"),
}
NO_IO_CALLS = {
    *("breakpoint", "eval", "exec", "getenv", "input", "mkdir", "now", "open", "print"),
    *("read_bytes", "read_text", "today", "token_bytes", "token_hex", "token_urlsafe", "unlink"),
    *("urandom", "utcnow", "uuid1", "uuid4", "write_bytes", "write_text"),
}
HEAVY = {
    *("ddgs", "httpx", "jinja2", "json_repair", "jsonschema", "justhtml", "llguidance", "mcp"),
    *("mlx", "mlx_lm"),
    *("numpy", "pydantic", "rich", "starlette", "tokenizers", "transformers", "typer", "uvicorn"),
}
MODULES = house.find_modules()


def nodes(name: str) -> tuple[ast.AST, ...]:
    return house.list_nodes(MODULES[name])


def pure_modules() -> list[str]:
    return [name for name in MODULES if f"{name}.".startswith(tuple(f"{one}." for one in PURE))]


def functions(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(name):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_room_imports_one_that_stands_after_it() -> None:
    assert house.find_violations() == []


def test_no_room_imports_a_plugin_and_no_plugin_imports_another() -> None:
    edges = house.collect_room_imports()
    plugin_rooms = {room for room in edges if room.startswith("plugins.")}
    assert {room.partition(".")[2] for room in plugin_rooms} == set(plugins().names())
    assert {room for room, there in edges.items() if plugin_rooms & there.keys()} == set()


def test_files_of_a_room_import_one_another_in_one_direction() -> None:
    assert house.find_cycles() == []


def test_a_room_takes_from_another_only_what_its_init_offers() -> None:
    """But for parts of commands, which plugins may take."""
    faults = [
        f"{name}, line {node.lineno}: {node.module}"
        for name in MODULES
        for node in nodes(name)
        if isinstance(node, ast.ImportFrom) and name != house.FACE
        for package, room, *inner in [[*(node.module or "").split("."), ""]]
        if package == house.PACKAGE and inner[:-1] and room != name.partition(".")[0]
        if not (room == "cli" and name.startswith("plugins."))
    ]
    assert faults == []


def test_the_diagram_in_the_docs_is_that_of_the_real_imports() -> None:
    page, wanted = house.PART.render_page()
    assert page == wanted, "out of date: make docs"


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    source = tmp_path / "tools" / "late.py"
    source.parent.mkdir()
    source.write_text(
        "from . import registry\n"
        "from ..cli import main\n"
        "def f():\n"
        "    import mlx_tools.controller.controller\n"
        "    from importlib import import_module\n"
        "    import_module('mlx_tools.app.config')\n"
        "if TYPE_CHECKING:\n"
        "    from mlx_tools import doctor\n"
    )
    rooms = frozenset({"app", "cli", "controller", "doctor", "tools"})
    found = {
        house.find_room(dotted, rooms) for _, dotted in house.list_imports("tools.late", source)
    }
    assert found - {None, house.FACE} == rooms


def test_a_pure_room_does_no_io() -> None:
    faults = [
        f"{name}, line {line}: imports {dotted}"
        for name in pure_modules()
        for line, dotted in house.list_imports(name, MODULES[name])
        if dotted.partition(".")[0] in NO_IO_MODULES and not dotted.startswith("urllib.parse")
    ]
    for name in pure_modules():
        for node in nodes(name):
            if (
                isinstance(node, ast.Call)
                and (called := house.find_called_name(node)) in NO_IO_CALLS
            ):
                faults.append(f"{name}, line {node.lineno}: calls {called}()")
    assert faults == []


def test_what_differs_by_system_can_be_asked_as_if_it_were_another() -> None:
    scripts = {
        "toolbox.isolated",
        "plugins.folders.child_process",
    }  # are alone
    faults = []
    for name in MODULES.keys() - scripts:
        defaults = {
            id(default)
            for node in nodes(name)
            if isinstance(node, ast.FunctionDef)
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults))
        }
        faults += [
            f"{name}, line {node.lineno}: give it a parameter, platform: str = sys.platform"
            for node in nodes(name)
            if isinstance(node, ast.Attribute)
            and ast.unparse(node) == "sys.platform"
            and id(node) not in defaults
        ]
    assert faults == []


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running ``code``."""
    script = f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.splitlines()[-1].split())


def test_the_pure_rooms_load_nothing_foreign() -> None:
    before = loaded_by("pass")
    named = set(pure_modules()) - {"prompt.template_sandbox"}  # imported where there is a template
    after = loaded_by("\n".join(f"import mlx_tools.{name}" for name in named))
    values = {"msgspec", "typing_extensions"}  # which it loads where it is there
    foreign = after - before - set(sys.stdlib_module_names) - {"mlx_tools"} - values
    assert foreign == set()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import mlx_tools").isdisjoint(HEAVY)


def test_importing_the_command_line_loads_no_model_or_network_library() -> None:
    assert loaded_by("import mlx_tools.cli").isdisjoint(HEAVY - {"rich", "typer"})


def test_every_foreign_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = (
        *("anthropic", "gateway", "keychain", "mcp", "mlx", "ollama", "openapi", "pdf"),
        *("postgres", "pytest", "speech", "telemetry", "vision", "web"),
    )
    texts = [*project["dependencies"], *(text for extra in named for text in extras[extra])]
    declared: set[str] = {canonicalize_name(Requirement(text).name) for text in texts}
    declared.add("pydantic-core")  # pydantic names its exact version
    providers = packages_distributions()

    def offering(top: str) -> Iterator[str]:
        """The packages that hold a module: those that are installed, else those named like it."""
        alike = [name for name in declared if top in (name.split("-")[0], name.replace("-", "_"))]
        return map(canonicalize_name, providers.get(top, alike))

    missing = {
        f"{name} imports {top}"
        for name, path in MODULES.items()
        for _, dotted in house.list_imports(name, path)
        if (top := dotted.partition(".")[0]) not in {house.PACKAGE, *sys.stdlib_module_names}
        and declared.isdisjoint(offering(top))
    }
    assert missing == set()


def test_a_function_stays_under_70_lines() -> None:
    long = [
        f"{name}, {function.name}: {length} lines"
        for name in MODULES
        for function in functions(name)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > 70
    ]
    assert long == []


def test_nothing_is_left_undone() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error")
    undone = re.compile(rf"\b(?:{'|'.join(words)})\b")
    assert {n for n, path in MODULES.items() if undone.search(path.read_text("utf-8"))} == set()


def test_every_module_says_what_it_is_for() -> None:
    assert [n for n in MODULES if not ast.get_docstring(cast(ast.Module, nodes(n)[0]))] == []


def test_no_class_name_stands_for_two_things() -> None:
    seen: dict[str, set[str]] = {}
    for name in MODULES:
        for node in nodes(name):
            if isinstance(node, ast.ClassDef):
                seen.setdefault(node.name, set()).add(name)
    assert {name: places for name, places in seen.items() if len(places) > 1} == {}
