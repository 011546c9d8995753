"""Tools from a Python file: its typed and documented functions, and its tools."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from mlx_tools.errors import (
    ToolDefinitionError,
    UsageError,
    describe_error,
    translate_os_error,
)
from mlx_tools.packages import must_pass
from mlx_tools.paths import expand_user
from mlx_tools.policy import FUNCTIONS
from mlx_tools.tools.tool import Tool, tool, with_plugin


def load_functions(path: str) -> list[Tool]:
    """Return the tools that a Python file defines, in their order.

    The file is imported, with its folder first on the import path. A public function is a tool if
    the file defines it, it has a docstring, and each parameter has a type. Any other function is
    ignored. A function that declares no effects has all of them, so each call needs an approval.

    Args:
        path: the file. Its code runs, so a person must have named it.

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
    """Import a file under a module name that is unique, even if file names are equal."""
    digest = hashlib.sha256(str(file).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = f"mlx_tools_functions_{digest}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: it is no Python file", hint="its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Python looks up annotations that are texts in this module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # the file's code may raise anything
        del sys.modules[name]
        if must_pass(error):
            raise
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
            return None  # a parameter has no type: it is a helper function, not a tool
    else:
        return None
    return with_plugin(tool_object, FUNCTIONS)
