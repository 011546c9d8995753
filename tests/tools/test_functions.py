"""The functions of a person's Python file as tools."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools.errors import UsageError
from mlx_tools.tools import Registry, load_functions
from tests.waiting import HANG

FILE = '''
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mlx_tools import tool
from helpers import halved, twice


@dataclass
class Size:
    width: float
    height: float


def area(size: Size, unit: str = "m") -> str:
    """Area of a rectangle.

    Args:
        size: its sides.
        unit: of length.
    """
    return f"{size.width * size.height} {unit}2"


async def later(number: int) -> int:
    """Twice a number, a moment later."""
    return twice(number)


@tool(effects={"read"}, name="look")
def looking(text: str) -> str:
    """Look at a text."""
    return text


def _hidden(number: int) -> int:
    """Not for the model."""
    return number


def undocumented(number: int) -> int:
    return number


def untyped(number):
    """It has no type."""
    return number
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "helpers.py").write_text(
        "def twice(number):\n    return 2 * number\n"
        'def halved(number: int) -> int:\n    """Half of it."""\n    return number // 2\n'
    )
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_typed_documented_functions_and_tools_of_the_file_are_tools(file: Path) -> None:
    registry = Registry(load_functions(str(file)))
    specs = registry.specs()
    assert [*specs] == ["area", "later", "look"]
    assert {spec.plugin for spec in specs.values()} == {"functions"}
    assert specs["area"].description == "Area of a rectangle."
    assert specs["look"].possible_effects == {"read"}
    assert specs["area"].mutates({}) and specs["later"].mutates({})  # so they ask
    assert "its sides." in json.dumps(specs["area"].parameters)

    async def made() -> list[Any]:
        size = {"size": {"width": 2, "height": 3}}
        calls = (("area", size), ("later", {"number": 4}), ("look", {"text": "hi"}))
        return [await registry.get(name).call(given) for name, given in calls]

    assert anyio.run(made) == ["6.0 m2", 8, "hi"]


def test_two_files_of_one_name_do_not_take_each_others_place(tmp_path: Path) -> None:
    made = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        name = f"number_{number}"
        (folder / "mine.py").write_text(
            f'def {name}() -> int:\n    """It."""\n    return {number}\n'
        )
        made += load_functions(str(folder / "mine.py"))
    assert [anyio.run(tool.call, {}) for tool in made] == [1, 2]
    paths = {str(tmp_path / str(number) / "mine.py") for number in (1, 2)}
    assert paths <= {getattr(module, "__file__", None) for module in [*sys.modules.values()]}


def test_ctrl_c_ends_an_import_in_the_main_thread_only(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise KeyboardInterrupt('no')\n")
    with pytest.raises(KeyboardInterrupt):
        load_functions(str(file))
    with ThreadPoolExecutor() as threads, pytest.raises(UsageError, match="line 1: Keyboard"):
        threads.submit(load_functions, str(file)).result(HANG)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(5)\n", "cannot be imported: line 2: SystemExit: 5"),
        (None, "there is no such file"),
        ("def f(:\n", "line 1: SyntaxError"),
        ("\n\nraise ValueError('no')\n", "line 3: ValueError: no"),
        ("class Gone(BaseException):\n    pass\nraise Gone('no')\n", "line 3: Gone: no"),
        ("import no_such_module_here\n", "line 1: ModuleNotFoundError"),
        ("def f(x):\n    return x\n", "it defines no tool"),
        ("", "it defines no tool"),
    ],
)
def test_a_file_that_gives_no_tool_is_told_in_a_line(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_functions(str(path))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    failed = "imported" in str(caught.value)
    files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    assert (str(path) in files) is (text is not None and not failed)
    assert str(tmp_path) not in sys.path


def test_a_folder_or_another_kind_of_file_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UsageError):
            load_functions(str(path))
