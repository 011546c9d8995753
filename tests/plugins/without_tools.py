"""A pytest plugin that leaves out the tests of tools that are not there.

The variable ``WITHOUT_TOOLS`` names the tools, with commas. A test is left out if a text in it
names one, or a text in a function, fixture or constant of its module that it uses.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from pathlib import Path
from typing import Final

import pytest

VARIABLE: Final = "WITHOUT_TOOLS"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tools = os.environ[VARIABLE].split(",")
    word = re.compile(rf"\b(?:{'|'.join(map(re.escape, tools))})\b")
    left_out = {
        item for item in items if isinstance(item, pytest.Function) and word.search(texts_of(item))
    }
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def texts_of(test: pytest.Function) -> str:
    """The texts in a test, and in all that it uses of its module."""
    parts = module_parts(test.path)
    texts, waiting, seen = list[str](), [test.originalname], set[str]()
    while waiting:
        name = waiting.pop()
        if name in parts and name not in seen:
            seen.add(name)
            for node in ast.walk(parts[name]):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
                if isinstance(node, ast.Name):
                    waiting.append(node.id)
                if isinstance(node, ast.arg):  # a fixture
                    waiting.append(node.arg)
    return "\n".join(texts)


@functools.cache
def module_parts(path: Path) -> dict[str, ast.stmt]:
    """The functions, classes and constants of a module, by their names."""
    found = dict[str, ast.stmt]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        found |= dict.fromkeys([getattr(node, "name", ""), *names], node)
    return found
