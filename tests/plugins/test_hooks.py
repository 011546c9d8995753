"""Plugins are found by folder and by entry point; a faulty one is named, and takes nothing down."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import Struct

from mlx_tools.app import (
    Check,
    Command,
    Plugins,
    SessionTable,
    SourceMaker,
    StoreKind,
    ToolRequest,
    hookimpl,
    plugins,
)
from mlx_tools.app.builtin import list_plugin_tools
from mlx_tools.cli.command_table import COMMANDS
from mlx_tools.errors import UsageError
from mlx_tools.policy import Policy
from mlx_tools.tools import FOLDER, Registry, ToolOffer, tool
from tests.tables import table

ROOT = Path(__file__).resolve().parent.parent.parent

HEAD = "from mlx_tools.app import Command, hookimpl\n@hookimpl\n"
GOOD = f"{HEAD}def commands():\n    return [Command('{{0}}', 'Do {{0}}.', '{{0}}:app')]\n"
FAULTY = {
    "import": ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
    "syntax": ("def\n", "SyntaxError"),
    "call": (f"{HEAD}def commands():\n    raise ValueError('no luck')\n", "ValueError: no luck"),
    "exit": (f"{HEAD}def commands():\n    raise SystemExit(3)\n", "SystemExit: 3"),
    "parameter": (f"{HEAD}def commands(place):\n    return []\n", "PluginValidationError"),
    "iterator": (f"{HEAD}def commands():\n    yield 1 / 0\n", "ZeroDivisionError"),
}
UNKNOWN = f"{HEAD}def orders():\n    return []\n"

Make = Callable[[dict[str, str]], Plugins]


@pytest.fixture
def with_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Plugins whose built-in ones are folders with such a file ``commands.py``."""

    def make(files: dict[str, str]) -> Plugins:
        package = tmp_path / f"plugins_of_{tmp_path.name}".replace("-", "_")
        package.mkdir()
        (package / "__init__.py").write_text("")
        for name, text in files.items():
            (package / name).mkdir()
            (package / name / "__init__.py").write_text("")
            (package / name / "commands.py").write_text(text.format(name))
        monkeypatch.syspath_prepend(tmp_path)
        return Plugins(package.name, lambda group: [])

    return make


@pytest.fixture
def with_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Plugins of packages with such a module, and no built-in ones."""

    def make(modules: dict[str, str]) -> Plugins:
        points = []
        for name, text in modules.items():
            module = f"{name}_of_{tmp_path.name}".replace("-", "_")
            (tmp_path / f"{module}.py").write_text(text.format(name))
            points.append(EntryPoint(name, module, "mlx_tools"))
        monkeypatch.syspath_prepend(tmp_path)
        return Plugins("mlx_tools.no_such_package", lambda group: points)

    return make


def offered(hooks: Plugins) -> list[str]:
    return [command.name for _, found in hooks.call("commands") for command in found]


def test_folders_are_plugins_in_the_order_of_their_names(with_folders: Make) -> None:
    hooks = with_folders({"tides": GOOD, "maps": GOOD})
    assert hooks.names() == ["maps", "tides"]
    assert offered(hooks) == ["maps", "tides"]
    assert list(hooks.call("tools", request=ToolRequest())) == []
    assert hooks.faults == {}


def test_packages_are_plugins_too(with_packages: Make) -> None:
    hooks = with_packages({"tides": GOOD, "maps": GOOD})
    assert offered(hooks) == ["tides", "maps"] and hooks.faults == {}


def test_without_the_folder_of_plugins_there_is_none() -> None:
    hooks = Plugins("mlx_tools.no_such_package", lambda group: [])
    assert hooks.names() == [] and list(hooks.call("commands")) == []


@pytest.mark.parametrize("kind", FAULTY)
@pytest.mark.parametrize("place", ["with_folders", "with_packages"])
def test_a_faulty_plugin_is_named_and_the_others_go_on(
    place: str, kind: str, request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    text, problem = FAULTY[kind]
    hooks: Plugins = request.getfixturevalue(place)({"maps": GOOD, "broken": text, "tides": GOOD})
    with caplog.at_level(logging.WARNING):
        assert offered(hooks) == ["maps", "tides"] and offered(hooks) == ["maps", "tides"]
    assert [fault for fault in hooks.faults.values() if problem in fault]
    assert len(hooks.faults) == 1 and "broken" in next(iter(hooks.faults))
    assert len([one for one in caplog.records if "broken" in one.getMessage()]) == 1


@pytest.mark.parametrize("place", ["with_folders", "with_packages"])
def test_threads_that_call_a_hook_at_once_get_all_plugins(
    place: str, request: Any, switch_often: None
) -> None:
    names = [f"tides{number}" for number in range(8)]
    hooks: Plugins = request.getfixturevalue(place)(dict.fromkeys(names, GOOD))
    together = threading.Barrier(8)

    def offer(_: int) -> list[str]:
        together.wait()
        return offered(hooks)

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(offer, range(8))] == [names] * 8
    assert hooks.faults == {}


@pytest.fixture
def switch_often() -> Iterator[None]:
    """Threads that take turns after microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_hook_that_does_not_exist_is_a_fault(with_packages: Make) -> None:
    hooks = with_packages({"broken": UNKNOWN})
    assert offered(hooks) == []
    assert "there is no hook orders" in str(hooks.faults)


def test_a_wrong_option_of_a_built_in_plugin_is_told_to_the_caller(with_folders: Make) -> None:
    text = "from mlx_tools.errors import UsageError\n" + HEAD
    hooks = with_folders({"maps": text + "def commands():\n    raise UsageError('no such map')\n"})
    with pytest.raises(UsageError, match="no such map"):
        list(hooks.call("commands"))


class KbNames(Struct, frozen=True):
    KnowledgeBase: Any


def test_what_a_plugin_exports_is_had_by_its_name() -> None:
    assert plugins().exports("kb", KbNames).KnowledgeBase.__name__ == "KnowledgeBase"
    with pytest.raises(UsageError, match="needs the plugin tides"):
        plugins().exports("tides", KbNames)
    with pytest.raises(UsageError, match=r"the plugin mcp does not fit: .*KnowledgeBase"):
        plugins().exports("mcp", KbNames)


# --- results that cannot be used ------------------------------------------------------------------


class Offer:
    """The entry point of a plugin that is made here: what each of its hooks returns."""

    dist = None

    def __init__(self, name: str, results: dict[str, Any]) -> None:
        self.name = self.module = name
        self._plugin = ModuleType(name)
        for hook, result in results.items():
            setattr(self._plugin, hook, hookimpl(self._function(result)))

    @staticmethod
    def _function(result: Any) -> Any:
        return lambda: result() if callable(result) and not isinstance(result, type) else result

    def load(self) -> Any:
        return self._plugin


def make_plugins(**results: dict[str, Any]) -> Plugins:
    offers: Any = [Offer(name, result) for name, result in results.items()]
    return Plugins("mlx_tools.no_such_package", lambda group: offers)


class FaultyMapping(dict[str, Any]):
    def items(self) -> Any:
        raise LookupError("no items")


class FaultyText:
    def __repr__(self) -> str:
        raise ValueError("no text")

    __str__ = __repr__


def break_off() -> Any:
    yield FaultyText()
    raise LookupError("broken off")


ARGUMENTS: dict[str, dict[str, Any]] = {
    "tools": {"request": ToolRequest()},
    "offers": {"request": ToolRequest()},
    "commands": {},
    "checks": {"configuration": None},
    "routes": {"gateway": None},
    "store": {},
    "tables": {},
    "observers": {},
    "settings": {},
    "backends": {},
    "sources": {"sources": None, "roots": ()},
}
BY_NAME = ("settings", "backends", "sources")
NONSENSE: dict[str, Any] = {
    "a number": 7,
    "a text": "x",
    "bytes": b"x",
    "an object": FaultyText(),
    "a class": int,
    "a list of numbers": [1],
    "a list of None": [None],
    "a list of classes": [int],
    "a list of odd objects": [FaultyText()],
    "a generator that breaks off": break_off,
    "values by a number": {7: 7},
    "values by name": {"x": 7},
    "values by an odd name": {"\n\x1b[1m": FaultyText},
    "a mapping that breaks off": FaultyMapping(),
}
CASES = [
    (hook, kind)
    for hook in ARGUMENTS
    for kind in NONSENSE
    if (hook, kind.partition(" ")[0]) != ("settings", "values")  # see test_rights.py
    if (hook, kind) != ("observers", "a list of classes")  # one makes an observer for each run
]


@table(("hook", "kind"), CASES)
def test_nonsense_from_a_hook_is_left_out_and_named_once(
    hook: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    hooks = make_plugins(bad={hook: NONSENSE[kind]}, good={hook: None})
    with caplog.at_level(logging.WARNING):
        found = [list(hooks.call(hook, **ARGUMENTS[hook])) for _ in range(2)]
    empty: Any = {} if hook in BY_NAME else []
    assert found[0] == found[1] and ("good", empty) in found[0]
    assert [parts for name, parts in found[0] if parts] == []
    assert hook in hooks.faults["bad"] and len(hooks.faults) == 1
    (message,) = [record.getMessage() for record in caplog.records]
    assert "a part of the plugin bad is left out" in message and message.isprintable()


def nothing(*_: Any, **__: Any) -> None:
    """Stand for any function of a plugin."""


WRONG_PARTS: list[tuple[str, Any]] = [
    *(
        ("offers", ToolOffer(*values))  # type: ignore[arg-type]
        for values in ((7, "x", nothing), ("x", 7, nothing), ("x", "x", 7))
    ),
    ("offers", ToolOffer("x", "x", nothing, 7)),  # type: ignore[arg-type]
    ("offers", ToolOffer("x", "x", nothing, None, 7)),  # type: ignore[arg-type]
    *(
        ("commands", Command(name, "Do it.", "x:app"))  # type: ignore[arg-type]
        for name in (7, "", "--help", "-x", "a b c", "a\nb", "\x1b[1m", "Ask", " ask", None)
    ),
    *(("commands", Command("x", text, "x:app")) for text in ("", "a\nb", "\x1b[1m", 7, None)),  # type: ignore[arg-type]
    *(("commands", Command("x", "Do it.", place)) for place in ("", "x", "x:", ":x", 7, "x:a.b")),  # type: ignore[arg-type]
    ("checks", Check("bad", "purple", "x")),  # type: ignore[arg-type]
    ("checks", Check(7, "ok", "x")),  # type: ignore[arg-type]
    ("checks", Check("bad", "ok", None)),  # type: ignore[arg-type]
    ("checks", Check("bad", "ok", "x", 7)),  # type: ignore[arg-type]
    ("store", StoreKind(7, nothing, nothing)),  # type: ignore[arg-type]
    ("store", StoreKind("abc", nothing, nothing)),  # type: ignore[arg-type]
    ("store", StoreKind(("A b",), nothing, nothing)),
    ("store", StoreKind(("x",), 7, nothing)),  # type: ignore[arg-type]
    ("store", StoreKind(("x",), nothing, None)),  # type: ignore[arg-type]
    ("tables", SessionTable(7)),  # type: ignore[arg-type]
    ("backends", ("http", nothing)),
    ("backends", ("a b", nothing)),
    ("backends", ("x", None)),
    ("sources", ("x", SourceMaker(7))),  # type: ignore[arg-type]
    ("sources", ("x", SourceMaker(nothing, 7))),  # type: ignore[arg-type]
    ("sources", ("x", SourceMaker(nothing, None, 7))),  # type: ignore[arg-type]
]
RIGHT_PARTS: dict[str, Any] = {
    "offers": ToolOffer("moon", "phase", nothing),
    "commands": Command("tools moon-phase", "Show the phase of the moon.", "moon.app:app"),
    "checks": Check("moon", "ok", "it shines"),
    "store": StoreKind(("moon",), nothing, nothing),
    "backends": ("moon", nothing),
    "sources": ("moon", SourceMaker(nothing)),
}


def labels(parts: Any) -> list[Any]:
    """The names of parts, or what else tells them apart."""
    return [
        getattr(part, "name", None) or getattr(part, "schemes", part) if part != "moon" else part
        for part in parts
    ]


@table(("hook", "part"), WRONG_PARTS)
def test_a_wrong_part_is_left_out_and_the_others_stay(hook: str, part: Any) -> None:
    right = [RIGHT_PARTS[hook]] if hook in RIGHT_PARTS else []
    result: Any = [part, *right]
    hooks = make_plugins(bad={hook: dict(result) if hook in BY_NAME else result})
    ((_, parts),) = hooks.call(hook, **ARGUMENTS[hook])
    assert labels(parts) == labels(dict(right) if hook in BY_NAME else right)
    assert hook in hooks.faults["bad"]


def test_tools_of_a_package_are_made_from_what_built_in_ones_are_made_from() -> None:
    requests: list[ToolRequest] = []
    plugin = Offer("moon", {})
    setattr(plugin.load(), "tools", hookimpl(lambda request: requests.append(request)))  # noqa: B010
    points: Any = [plugin]
    hooks = Plugins("mlx_tools.no_such_package", lambda group: points)
    request = ToolRequest(options={"notes": "/notes"})
    (offer,) = list_plugin_tools(hooks, request)
    assert requests == [] and offer.plugin == "moon"
    assert offer.tools() == [] and requests == [request]


@tool(effects={"read"})
def tide(harbour: str) -> str:
    """Tells the tide."""
    return harbour


@pytest.mark.parametrize(("package", "plugin"), [("moon", "moon"), (FOLDER, None)])
def test_an_offer_of_a_package_is_its_own_whatever_it_says(package: str, plugin: Any) -> None:
    offer = ToolOffer(FOLDER, "tide", lambda: tide)
    hooks = make_plugins(**{package: {"offers": lambda: [offer]}})
    registry = Registry().with_entry_points(lambda: list_plugin_tools(hooks, ToolRequest()))
    specs = registry.all_specs()
    assert [spec.plugin for spec in specs.values()] == ([] if plugin is None else [plugin])
    assert registry.lacks("tide", Policy(allow=[f"plugin:{FOLDER}"])) is not None


def test_an_offer_that_cannot_be_loaded_is_a_disabled_tool() -> None:
    def fail() -> Any:
        raise LookupError("no such tide")

    offers = [ToolOffer("moon", "high", fail), ToolOffer("moon", "tide", lambda: tide)]
    registry = Registry().with_offers(offers)
    assert list(registry.specs()) == ["tide"]
    assert "no such tide" in registry.disabled["plugin:moon/high"]
    assert registry.find_offer("high") is offers[0] and registry.find_offer("low") is None


# --- the plugins that come along ------------------------------------------------------------------


MODULES = """
import sys
from mlx_tools.cli import main
code = main({arguments})
names = sorted(name for name in sys.modules if name.startswith("mlx_tools.plugins."))
print(*names, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["kb", "--help"], ["--version"]])
def test_help_imports_no_plugin(arguments: list[str]) -> None:
    program = MODULES.format(arguments=arguments)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stderr.strip()) == (0, "")


def test_the_commands_of_the_core_are_not_those_of_plugins() -> None:
    names = [command.name for _, found in plugins().call("commands") for command in found]
    assert sorted({*names} & COMMANDS.keys()) == [] and len(names) == len({*names})
