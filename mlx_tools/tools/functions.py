"""Tools from a Python file: typed, documented functions, and those made by `tool`."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from threading import current_thread, main_thread
from types import ModuleType

from mlx_tools.errors import ToolDefinitionError, UsageError, describe_error, translate_os_error
from mlx_tools.paths import expand_user
from mlx_tools.policy import FUNCTIONS
from mlx_tools.tools.tool import Tool, tool, with_plugin


def load_functions(path: str) -> list[Tool]:
    """Return the tools that a Python file defines, in their order.

    The file is imported, with its folder first on the import path. A public function is a tool if
    it is defined there, documented, and each of its parameters has a type. Any other function is
    ignored. A function that declares no effects has all of them, so each call asks.

    Args:
        path: the file, named by a person: whoever names it lets its code run.

    Raises:
        UsageError: there is no such file, it cannot be imported, or it defines no tool.
    """
    file = expand_user(path)
    with translate_os_error(UsageError, f"{path} cannot be read"):
        is_file = file.is_file()
    if not is_file:
        raise UsageError(f"{path}: there is no such file", hint="name a Python file with functions")
    module = _import_file(file.resolve(), path)
    candidates = (_make_tool(name, value, module) for name, value in vars(module).items())
    tools = [candidate for candidate in candidates if candidate is not None]
    if not tools:
        raise UsageError(
            f"{path}: it defines no tool",
            hint="give a function types for its parameters and a docstring, or decorate it with "
            "@mlx_tools.tool",
        )
    return tools


def _import_file(file: Path, path: str) -> ModuleType:
    """Import a file under a name that no other file of the same name takes."""
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
    except BaseException as error:  # somebody else's code: nothing is known of it
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
            raise  # Ctrl-C, which no other thread gets
        raise UsageError(f"{path} cannot be imported: {_describe_error(error, file)}") from None
    finally:
        sys.path.remove(str(file.parent))
    return module


def _describe_error(error: BaseException, file: Path) -> str:
    """Describe an exception, and its line in the file."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{describe_error(error, 500)}"


def _make_tool(name: str, value: object, module: ModuleType) -> Tool | None:
    """Return the tool of a name in the module, or None."""
    if name.startswith("_"):
        return None
    if isinstance(value, Tool):
        tool_object = value
    elif inspect.isfunction(value) and value.__module__ == module.__name__ and value.__doc__:
        try:
            tool_object = tool(value)
        except ToolDefinitionError:
            return None  # a parameter has no type: it is no tool, but a helper of one
    else:
        return None
    return with_plugin(tool_object, FUNCTIONS)
