"""For tests that need a sandbox which works here: without one they say so and are skipped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlx_tools import builtin_tools
from mlx_tools.plugins.command.sandbox import NoSandbox, detect_sandbox
from mlx_tools.tools import ToolLike, ToolResult
from tests.tools.file_calls import execute_call
from tests.waiting import HANG


def find_skip_reason() -> str | None:
    try:
        detect_sandbox()
    except NoSandbox as error:
        return str(error)
    return None


WHY_NOT = find_skip_reason()
needs_sandbox = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
"""Tests of either sandbox: they run on Linux and on a Mac."""

needs_bwrap = pytest.mark.skipif(
    WHY_NOT is not None or not sys.platform.startswith("linux"),
    reason=str(WHY_NOT or "bwrap is Linux's"),
)
"""Tests of what ``sandbox-exec`` says or limits in another way, and of namespaces."""


def make_tool(*roots: str | Path, commands: Sequence[str] = ()) -> ToolLike:
    return builtin_tools([str(root) for root in roots], commands=commands).get("run_command")


def run_program(
    callee: ToolLike, program: str, *arguments: str, timeout: float = HANG
) -> ToolResult:
    return execute_call(callee, timeout=timeout, program=program, arguments=list(arguments))


def read_output(callee: ToolLike, program: str, *arguments: str) -> str:
    """Return the output of a program that exits with 0."""
    result = run_program(callee, program, *arguments)
    assert result.content is not None, result.error
    first, _, rest = result.content.partition("\n")
    assert first == "[exit code 0]", result.content
    return rest


def read_refusal(callee: ToolLike, program: str, *arguments: str) -> tuple[str, str]:
    result = run_program(callee, program, *arguments)
    assert result.error is not None, result.content
    return result.error.code, result.error.message
