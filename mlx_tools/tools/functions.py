"""Tools out of a Python file: its typed, documented functions, and whatever `tool` made there."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.paths import expand_user
from mlx_tools.policy import FUNCTIONS
from mlx_tools.tools.tool import Tool, of_plugin, tool


def tools_of_file(path: str) -> list[Tool]:
    """Return the tools that a Python file defines, in the order in which they stand there.

    The file is imported, with its folder first among the places to import from. A public function
    is a tool if it is defined there, documented, and each of its parameters has a type; any other
    function is passed over. A function that declares no effects has all of them, so each call asks.

    Args:
        path: the file, named by a person: whoever names it lets its code run.

    Raises:
        UsageError: there is no such file, it cannot be imported, or it defines no tool.
    """
    file = expand_user(path)
    if not file.is_file():
        raise UsageError(f"{path}: there is no such file", hint="name a Python file with functions")
    module = _imported(file.resolve(), path)
    found = (_tool_of(name, value, module) for name, value in vars(module).items())
    tools = [made for made in found if made is not None]
    if not tools:
        raise UsageError(
            f"{path}: it defines no tool",
            hint="give a function types for its parameters and a docstring, or decorate it with "
            "@mlx_tools.tool",
        )
    return tools


def _imported(file: Path, path: str) -> ModuleType:
    """Import a file under a name of its own, which other files of the same name do not take."""
    digest = hashlib.sha256(str(file).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = f"mlx_tools_functions_{digest}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: it is no Python file", hint="its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations that are texts are looked up there
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{path} cannot be imported: {_describe_error(error, file)}") from None
    finally:
        sys.path.remove(str(file.parent))
    return module


def _describe_error(error: Exception, file: Path) -> str:
    """What went wrong, and in which line of the file."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {error}"[:500]


def _tool_of(name: str, value: object, module: ModuleType) -> Tool | None:
    """The tool that a name of the module stands for, None if it stands for none."""
    if name.startswith("_"):
        return None
    if isinstance(value, Tool):
        made = value
    elif inspect.isfunction(value) and value.__module__ == module.__name__ and value.__doc__:
        try:
            made = tool(value)
        except ToolDefinitionError:
            return None  # a parameter has no type: it is no tool, but a helper of one
    else:
        return None
    return of_plugin(made, FUNCTIONS)
