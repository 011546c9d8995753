"""The tools that there are, and those that are disabled, with the reason."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from mlx_tools import builtin_tools
from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.messages import ALL_EFFECTS, ToolSpec
from mlx_tools.plugins.schedule.task_tool import Jobs
from mlx_tools.policy import Policy
from mlx_tools.tools import Registry, Tool, ToolOffer, find_entry_points, tool
from mlx_tools.tools.tool import make_preview, with_plugin
from tests.schedule.kept_jobs import open_job_store
from tests.tables import table


@tool(effects={"read"})
def forecast(city: str) -> str:
    """The weather of tomorrow."""
    return city


@tool
def rename(old: str, new: str) -> None:
    """Renames something."""


EVERY = [
    *("calculator", "clock", "format_xml", "run_command"),
    *("file_access", "create_file", "edit_file", "search_files"),
    *("query_knowledge_base", "list_corpora", "notes_create", "notes_search"),
    *("translate", "describe_image", "transcribe_audio"),
    *("schedule_task", "fetch_url", "web_search"),
    *("tool_search", "read_artifact"),
]
EXTRA = {"web_search", "describe_image", "transcribe_audio"}
"""An extra decides about these."""
OUTSIDE = {"type": "object", "properties": {"a": {"$ref": "https://example.org"}}}
KNOWLEDGE = {"query_knowledge_base", "list_corpora"}
"""Disabled as long as nothing was added."""

EFFECTS = {
    **{name: {"write"} for name in ("create_file", "schedule_task", "notes_create")},
    "edit_file": {"read", "write"},
    "run_command": {"read", "write", "execute"},
    **{name: {"read", "network"} for name in ("fetch_url", "web_search")},
}
USABLE = [
    *("calculator", "clock", "format_xml", "translate", "fetch_url"),
    *("tool_search", "read_artifact"),
]
"""Without a folder, but for what extras decide about."""


def usable(registry: Registry) -> list[str]:
    """The enabled tools, but for those that an extra decides about."""
    return [name for name in registry.specs() if name not in EXTRA]


def made(name: str) -> Tool:
    return tool(name=name, effects={"read"})(lambda: name)


def offering(*offers: tuple[str, str, Any]) -> Registry:
    """The built-in tools and what these packages offer: package, entry point, what it gives."""

    def loader(value: Any) -> Any:
        def load() -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

        return load

    listed = [ToolOffer(package, name, loader(value)) for package, name, value in offers]
    return builtin_tools().with_entry_points(lambda: listed)


def test_the_callers_tools_are_there_in_order_each_name_once() -> None:
    registry = Registry([rename, forecast])
    assert list(registry.specs()) == ["rename", "forecast"]
    assert registry.get("forecast") is forecast
    assert dict(registry.disabled) == {}
    with pytest.raises(ToolDefinitionError, match="forecast already"):
        registry.add(forecast)
    with pytest.raises(UsageError, match="did you mean forecast"):
        registry.get("forcast")
    with pytest.raises(UsageError, match="no tool"):
        registry.describe("x" * 1000)


@pytest.mark.parametrize("value", [lambda: 1, None, "forecast", ToolSpec("x"), forecast.spec])
def test_what_is_no_tool_is_refused(value: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="@tool"):
        Registry([value])


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"parameters": OUTSIDE}, "^t: .*outside"),
        ({"description": "half \ud800"}, "t: the description holds half of a surrogate"),
    ],
)
def test_what_no_text_or_schema_can_be_is_refused_with_the_tools_name(
    declared: Any, said: str
) -> None:
    with pytest.raises(ToolDefinitionError, match=said):
        Registry([tool(name="t", **declared)(lambda: 1)])


def test_the_built_in_tools_without_a_folder() -> None:
    registry = builtin_tools()
    assert usable(registry) == USABLE
    assert list(registry.all_specs()) == EVERY
    for name in ("file_access", "create_file", "edit_file", "search_files"):
        assert "--root" in registry.disabled[name]
    with pytest.raises(UsageError, match="--root"):
        registry.get("file_access")
    for spec in registry.all_specs().values():
        assert spec.plugin == "builtin"
        effects = EFFECTS.get(spec.name, {"read"})
        assert spec.possible_effects == effects


def test_the_built_in_tools_with_a_folder(tmp_path: Path) -> None:
    store = open_job_store(tmp_path / "schedule.sqlite")
    registry = builtin_tools([f"{tmp_path}:rw"], notes=tmp_path / "notes", jobs=Jobs(store=store))
    late = {"run_command", *EXTRA, *KNOWLEDGE}  # where there is no sandbox, or not the extra
    assert set(EVERY) - late <= set(registry.specs())
    assert set(registry.disabled) <= late
    assert ":rw" in builtin_tools([str(tmp_path)]).disabled["edit_file"]


@pytest.mark.parametrize("root", ["", ":rw", "/nowhere/at/all", "\0", __file__])
def test_a_root_that_is_no_folder_is_the_callers_fault(root: str) -> None:
    with pytest.raises(UsageError, match="root"):
        builtin_tools([root])


def test_tools_are_switched_off_by_name_glob_and_plugin() -> None:
    off = {"clock": "not wanted", "fore*": "by a glob", "plugin:w": "the whole plugin"}
    registry = builtin_tools(switched_off=off)
    registry.add(forecast)
    registry.add(with_plugin(rename, "w"))
    assert usable(registry) == [name for name in USABLE if name != "clock"]
    assert {name: registry.disabled[name] for name in ("clock", "forecast", "rename")} == {
        "clock": "not wanted",
        "forecast": "by a glob",
        "rename": "the whole plugin",
    }
    registry.disable("calculator", "later")
    assert usable(registry) == [name for name in USABLE if name not in ("clock", "calculator")]


# --- packages ---


def test_a_package_offers_a_tool_a_list_or_a_function() -> None:
    registry = offering(
        ("one", "t", forecast),
        ("two", "t", [made("a"), made("b")]),
        ("three", "t", lambda: made("c")),
    )
    assert usable(registry)[len(USABLE) :] == ["forecast", "a", "b", "c"]
    assert registry.specs()["forecast"].plugin == "one"
    assert forecast.spec.plugin == ""
    assert registry.specs()["c"].plugin == "three"


def test_nothing_is_loaded_before_it_is_needed() -> None:
    loaded: list[str] = []

    def find() -> list[ToolOffer]:
        loaded.append("looked")
        return [ToolOffer("one", "t", lambda: loaded.append("imported") or forecast)]

    registry = builtin_tools().with_entry_points(find)
    registry.get("calculator")
    assert loaded == []
    registry.specs()
    registry.specs()
    assert loaded == ["looked", "imported"]


def fails(*_: Any) -> Any:
    raise RuntimeError("no device")


class Fake:
    spec = ToolSpec("fake")


class Sly:
    @property
    def spec(self) -> ToolSpec:
        raise RuntimeError("sly")

    async def call(self, arguments: Mapping[str, Any]) -> None: ...


def undecorated(place: str) -> str:
    return place


async def awaited() -> str:
    return "now"


@table(
    ("value", "reason"),
    [
        (ImportError("no module named frob"), "ImportError: no module named frob"),
        (SystemExit(1), "SystemExit"),
        (GeneratorExit("as a library's own"), "GeneratorExit: as a library's own"),
        (AttributeError("gone"), "AttributeError"),
        (fails, "RuntimeError: no device"),
        (5, "int, which is no tool (is @tool missing?)"),
        (lambda: None, "NoneType, which is no tool"),
        (lambda: "forecast", "str, which is no tool"),
        ({"forecast": forecast}, "dict, which is no tool"),
        (undecorated, "missing 1 required positional argument: 'place' (is @tool missing?)"),
        (awaited, "it offers function, which is no tool (is @tool missing?)"),
        ([5], "int, which is no tool"),
        ([Fake()], "no tool"),
        ([Sly()], "sly"),
    ],
)
def test_an_offer_that_is_broken_is_disabled_with_the_reason(value: Any, reason: str) -> None:
    registry = offering(("bad", "thing", value), ("good", "t", forecast))
    assert "forecast" in registry.specs()
    assert reason in registry.disabled["plugin:bad/thing"]


def test_one_bad_tool_does_not_take_the_others_along() -> None:
    def wrong(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    registry = offering(("mixed", "all", [made("a"), tool(wrong), made("b")]))
    assert {"a", "b"} <= set(registry.specs())
    assert "Missing" in registry.disabled["plugin:mixed/wrong"]


def test_a_package_cannot_take_a_name_that_is_taken() -> None:
    tools = [made("calculator"), made("file_access"), made("own")]
    registry = offering(("evil", "t", tools), ("good", "t", made("own")))
    assert registry.specs()["calculator"].plugin == "builtin"
    assert "already" in registry.disabled["plugin:evil/calculator"]
    assert registry.all_specs()["file_access"].plugin == "builtin"
    assert registry.specs()["own"].plugin == "evil"
    assert "already" in registry.disabled["plugin:good/own"]


@pytest.mark.parametrize("package", ["builtin", "folder", "wеather", "a/b", "a b", ""])
def test_a_package_whose_name_could_mislead_offers_nothing(package: str) -> None:
    registry = offering((package, "t", forecast))
    assert "forecast" not in registry.specs()


def test_a_package_that_is_switched_off_is_not_imported() -> None:
    offers = [ToolOffer("weather", "t", lambda: pytest.fail("it was imported"))]
    registry = Registry(switched_off={"plugin:weather": "not trusted"})
    assert registry.with_entry_points(lambda: offers).specs() == {}
    assert registry.disabled["plugin:weather/t"] == "not trusted"


def test_metadata_that_cannot_be_read_costs_no_other_tool() -> None:
    registry = builtin_tools().with_entry_points(lambda: fails())
    assert "calculator" in registry.specs()
    assert "no device" in registry.disabled["plugin:any/entry_points"]


def test_what_is_installed_is_found_by_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather_tools.py").write_text(
        "from mlx_tools.tools import tool\n"
        "@tool(effects={'read'})\n"
        "def tide(place: str) -> str:\n"
        "    return place\n"
    )
    info = tmp_path / "weather_tools-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weather-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mlx_tools.tools]\ntide = weather_tools:tide\ngone = weather_tools:gone\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry = builtin_tools().with_entry_points()
    assert registry.specs()["tide"].plugin == "weather-tools"
    assert "AttributeError" in registry.disabled["plugin:weather-tools/gone"]


OWN_TOOL = """
import sys
from mlx_tools import Controller, Policy, tool
from mlx_tools.testing import ScriptedBackend

@tool(effects={"read"})
def area(width: float, height: float) -> float:
    "Area of a rectangle."
    return width * height

call = '{"type":"tool_call","name":"area","arguments":{"width":3.5,"height":4}}'
backend = ScriptedBackend(call, '{"type":"final_answer","content":"14"}')
outcome = Controller(backend, tools=[area], policy=Policy(allow=["area"])).run_sync("How large?")
assert outcome.answer == "14"
rooms = ("mlx_tools.toolbox", "mlx_tools.plugins")
print([name for name in sys.modules if name.startswith(rooms)])
"""


def test_a_run_with_a_tool_of_ones_own_loads_no_built_in_one() -> None:
    done = subprocess.run([sys.executable, "-c", OWN_TOOL], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_built_in_tools_are_no_offer_of_a_package(tmp_path: Path) -> None:
    assert all(offer.plugin != "mlx-tools" for offer in find_entry_points())
    assert "file_access" in builtin_tools([tmp_path]).specs()
    with pytest.raises(UsageError, match="root"):
        builtin_tools([tmp_path / "nowhere"])


# --- listings ---


def test_what_tools_keep_open_is_ended_with_the_registry() -> None:
    registry, ended = Registry(), list[str]()

    async def close() -> None:
        ended.append("a connection")

    registry.closers += [close, close]
    asyncio.run(registry.aclose())
    assert ended == ["a connection"] * 2


def test_a_listing_tells_enabled_from_permitted() -> None:
    registry = offering(("w", "t", [forecast, rename]), ("broken", "t", ImportError("frob")))
    rows = {row["name"]: row for row in registry.listing(Policy(allow=["forecast"], ask=["fore*"]))}
    assert json.loads(json.dumps(rows)) == rows
    assert rows["forecast"] == {
        "name": "forecast",
        "description": "The weather of tomorrow.",
        "effects": ["read"],
        "plugin": "w",
        "pinned": None,
        "enabled": True,
        "disabled_reason": None,
        "permitted": True,
        "denied_reason": None,
        "needs_approval": True,
    }
    assert rows["rename"]["effects"] == ["execute", "network", "read", "write"]
    assert (rows["rename"]["enabled"], rows["rename"]["permitted"]) == (True, False)
    assert (rows["calculator"]["enabled"], rows["calculator"]["permitted"]) == (True, False)
    assert not rows["file_access"]["enabled"]
    assert rows["t"]["plugin"] == "broken"
    assert "frob" in rows["t"]["disabled_reason"]
    assert len({frozenset(row) for row in rows.values()}) == 1


def test_the_words_of_the_built_in_tools_have_examples() -> None:
    from jsonschema import Draft202012Validator

    for spec in builtin_tools().all_specs().values():
        Draft202012Validator.check_schema(spec.parameters)
        properties: Mapping[str, Any] = spec.parameters["properties"]
        for schema in properties.values():
            assert schema.get("examples") or schema.get("enum")
            for example in schema.get("examples", ()):
                Draft202012Validator(schema).validate(example)


class TextlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class OwnError(BaseException):
    """Is no `Exception`."""


@table(
    "error",
    [
        *(LookupError("x"), SystemExit(3), TextlessError(), RecursionError()),
        *(OwnError("x"), GeneratorExit("x"), asyncio.CancelledError("x")),
        BaseExceptionGroup("x", [OwnError("x"), GeneratorExit("x")]),
    ],
)
def test_whatever_a_foreign_tools_functions_raise_is_told_and_ends_nothing(
    error: BaseException,
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    spec = ToolSpec("probe", "Probes.", {"type": "object"}, effects=fail)
    foreign = SimpleNamespace(spec=spec, call=AsyncMock(), disabled_reason=fail, preview=fail)
    registry = offering(("x", "pkg", foreign))
    why = {row["name"]: row["disabled_reason"] for row in registry.listing(Policy())}["probe"]
    assert why.startswith(f"it cannot say whether it works: {type(error).__name__}: ")
    assert f"told: {type(error).__name__}: " in make_preview(foreign, {}).text
    assert spec.get_effects({}) == ALL_EFFECTS


def test_ctrl_c_while_a_foreign_tool_is_asked_ends_the_program() -> None:
    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    foreign = SimpleNamespace(
        spec=ToolSpec("probe", "Probes.", {"type": "object"}, effects=fail), preview=fail
    )
    for ask in (lambda: make_preview(foreign, {}), lambda: foreign.spec.get_effects({})):
        with pytest.raises(KeyboardInterrupt):
            ask()
    told: list[Any] = []
    # Only the main thread gets Ctrl-C: in another one the tool itself has raised it.
    thread = Thread(target=lambda: told.append(make_preview(foreign, {}).text))
    thread.start()
    thread.join()
    assert told == ["What it would change cannot be told: KeyboardInterrupt: "]


@pytest.mark.parametrize(
    ("member", "value"),
    [
        *(("disabled_reason", value) for value in (fails, False, lambda: True, "no")),
        *(("preview", value) for value in (fails, True, lambda arguments: "all of it")),
        *(("blocking", value) for value in (True, "yes")),
    ],
)
def test_a_foreign_tools_other_members_harm_nobody(member: str, value: Any) -> None:
    foreign = SimpleNamespace(
        spec=ToolSpec("probe", "Probes.", {"type": "object"}, effects=frozenset({"write"})),
        call=AsyncMock(return_value="probed"),
    )
    setattr(foreign, member, value)
    registry = offering(("x", "pkg", foreign))
    reasons = {row["name"]: row["disabled_reason"] for row in registry.listing(Policy())}
    why = reasons["probe"]
    if (member, value) == ("disabled_reason", fails):
        assert why == "it cannot say whether it works: RuntimeError: no device"
        return
    assert why is None
    probe = registry.get("probe")
    seen = make_preview(probe, {})
    assert seen.text == "" or seen.text.endswith("told: RuntimeError: no device")
    assert asyncio.run(probe.call({})) == "probed"
