"""The standard tests of LangChain's chat models, for ``ChatOpenAI`` on the gateway.

For pytest; its command tells of each test as the other scripts do.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import checks
import pytest
from checks import HELLO, MODEL, SUM, URL
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

GATEWAY: dict[str, Any] = {
    "model": MODEL,
    "base_url": f"{URL}/v1",
    "api_key": "none",
    "stream_usage": True,
}


class TestGateway(ChatModelIntegrationTests):
    """The abilities of a text-only model. Pictures, sound and PDFs stay as the suite has them: not
    supported."""

    @property
    def chat_model_class(self) -> Any:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return GATEWAY

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "default"


class Told:
    """Tells of each test, by its name in the suite."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.passed:
            return
        why = ""
        if report.skipped:
            why = str(report.longrepr[2]).removeprefix("Skipped: ")
        elif report.failed:
            why = getattr(report.longrepr, "reprcrash", report.longrepr).message
        name = report.nodeid.partition("::TestGateway::")[2]
        row = {"client": "langchain-tests", "test": name, "passed": report.passed}
        print(json.dumps(row | {"why": why[:300], "skipped": report.skipped}), flush=True)


# --- by hand, for a model that may do anything ----------------------------------------------------


def answer() -> None:
    checks.check_answer(ChatOpenAI(**GATEWAY, max_tokens=checks.MOST).invoke(HELLO).text)


def call() -> None:
    called = list[str]()

    @tool
    def calculator(expression: str) -> str:
        """Work out an arithmetic expression."""
        called.append(expression)
        return checks.calculate(expression)

    model = ChatOpenAI(**GATEWAY, max_tokens=checks.MOST).bind_tools([calculator])
    messages: list[Any] = [{"role": "user", "content": SUM}]
    for _ in range(4):
        said = model.invoke(messages)
        if not said.tool_calls:
            checks.check_sum(called, said.text)
            return
        messages += [said, *(calculator.invoke(one) for one in said.tool_calls)]
    raise AssertionError("it calls and calls")


if __name__ == "__main__":
    checks.run("langchain-openai", {"answer": answer, "call": call})
    if not sys.argv[1:]:
        # One loop for all: the client keeps its connections from test to test.
        loop = [f"asyncio_default_{kind}_loop_scope=session" for kind in ("test", "fixture")]
        options = [part for one in ("asyncio_mode=auto", *loop) for part in ("-o", one)]
        quiet = ["-q", "-s", "-p", "no:cacheprovider", "--no-header", "--no-summary"]
        alone = ["-c", os.devnull, "--rootdir", str(Path(__file__).parent)]
        pytest.main([__file__, *alone, *options, *quiet], plugins=[Told()])
