"""Twenty tool tasks with a model that drifts: done through the gateway, and through its peers.

``python benchmarks/gateway_peers.py`` lets the official ``openai`` client do the same tasks through
each. The model is scripted: it knows the right call, and writes it in another model's dialect, with
broken JSON, after prose, or stops too early; the same text for all, whatever the prompt says. It
writes gateway_peers.json and the table of docs/clients.md.

- The gateway asks the scripted model for completions: one that writes the same again when it is
  told that its turn was wrong, and one that heeds it.
- mlx_lm.server is its own request handler, text state machine, parser for the Hermes form (the one
  that most models have) and tool call formatter; its token generator alone is replaced, by one that
  gives the scripted text.
- LiteLLM's proxy, of the environment of gateway_clients.py, stands before that server.

Run by the interpreter that has mlx-tools with its extras ``gateway`` and ``mlx``, and ``openai``.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from http.server import ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gateway_clients import HERE, SMALL, free_port, gateway, made, process, say, versions
from mlx_lm.server import APIHandler, GenerationContext, Response, ResponseGenerator
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools
from model import seen
from openai import APIError, OpenAI
from transformers import AutoTokenizer

from mlx_tools.testing import USAGE, Completion, ScriptedServer
from scripts.clients_table import write_page

RESULTS = HERE / "gateway_peers.json"

Form = Callable[[str, dict[str, Any]], str]


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{named(name, arguments)}\n</tool_call>"


def named(name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments})


def python_call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


FORMS: dict[str, Form] = {
    "Hermes": hermes,
    "python call": python_call,
    "Llama": lambda name, given: f"<|python_tag|>{named(name, given, 'parameters')}",
    "bare JSON": named,
    "fenced JSON": lambda name, given: f"```json\n{named(name, given)}\n```",
    "single quotes": lambda name, given: hermes(name, given).replace('"', "'"),
    "trailing comma": lambda name, given: hermes(name, given).replace("}}", ",}}"),
    "missing brace": lambda name, given: hermes(name, given).replace("}}", "}"),
    "prose before": lambda name, given: f"Let me look that up for you.\n{hermes(name, given)}",
    "stops early": lambda name, given: hermes(name, given).partition("}}")[0],
}
"""The text of a call that the model knows."""

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"}},
                "required": [key],
            },
        },
    }
    for name, about, key in (
        ("calculator", "Work out an arithmetic expression.", "expression"),
        ("get_weather", "The weather of a city.", "city"),
    )
]
STEPS = (
    (("calculator", {"expression": "17 * 23"}, "391"),),
    (
        ("get_weather", {"city": "Rome"}, "12 degrees"),
        ("calculator", {"expression": "12 * 9 / 5 + 32"}, "53.6"),
    ),
)
"""Calls of a task, one after the other, each with its result."""

TASKS = [(form, steps) for form in FORMS for steps in STEPS]


def task_of(question: str) -> tuple[str, Any]:
    return TASKS[int(re.findall(r"Task (\d+)", question)[-1])]


def written(question: str, results: int) -> str:
    """The text of the model in the task that the question names, after so many results."""
    form, steps = task_of(question)
    if results >= len(steps):
        return f"The result is {steps[-1][2]}."
    name, arguments, _ = steps[results]
    return FORMS[form](name, arguments)


# --- what stands between --------------------------------------------------------------------------


class Drifting(ScriptedServer):
    """Serves the model's completions. ``heeds``: what it is told was wrong, it writes as asked."""

    def __init__(self, *, heeds: bool) -> None:
        super().__init__(model="drifting-chatml")
        self.heeds = heeds

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        now, prompt = seen(body["prompt"]), body["prompt"]
        text = written(now.question, len(now.results))
        told = '"name":"protocol"' in prompt[prompt.rfind("<|im_start|>user\n") :]
        if self.heeds and told:
            _, steps = task_of(now.question)
            name, arguments, _ = steps[len(now.results)]
            call = {"type": "tool_call", "name": name, "arguments": arguments}
            text = json.dumps(call, separators=(",", ":"))
        return Completion(text.removeprefix(now.begun), usage=USAGE)


def printed(*command: str) -> str:
    run = [sys.executable, "-P", "-m", "mlx_tools", *command]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()


class Quiet(APIHandler):  # type: ignore[misc]
    def log_message(self, *_: object) -> None:
        return


class Generator(ResponseGenerator):  # type: ignore[misc]
    """mlx_lm's, which gives the scripted text, three characters a token."""

    def __init__(self) -> None:
        self._state_machine_cache: dict[Any, Any] = {}
        origins = {"allowed_origins": [], "num_draft_tokens": 0, "max_tokens": 512, "temp": 0.0}
        usual = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "model": "m", "chat_template_args": {}}
        self.model_provider = SimpleNamespace(cli_args=SimpleNamespace(**origins, **usual))
        marks = {"tool_call_start": "<tool_call>", "tool_call_end": "</tool_call>"}
        self._tokenizer = TokenizerWrapper(
            AutoTokenizer.from_pretrained(printed("models", "path", SMALL)),
            tool_parser=json_tools.parse_tool_call,
            **marks,
        )

    def generation_available(self) -> bool:
        return True

    def generate(self, request: Any, args: Any, progress_callback: Any = None) -> Any:
        tokenizer = self._tokenizer
        _, states = self._make_state_machine(None, tokenizer, args.stop_words)
        context = GenerationContext(
            has_tool_calling=tokenizer.has_tool_calling,
            has_thinking=tokenizer.has_thinking,
            tool_parser=tokenizer.tool_parser,
            text_sm=states,
            initial_state="normal",
            prompt=[0],
            prompt_cache_count=0,
        )
        messages = request.messages
        question = next(m["content"] for m in reversed(messages) if m["role"] == "user")
        text = written(str(question), sum(m["role"] == "tool" for m in messages))

        def tokens() -> Iterator[Any]:
            for at in range(0, len(text), 3):
                yield Response(text[at : at + 3], 0, 0.0, None, ())
            yield Response("", 0, 0.0, "stop", ())

        return context, tokens()


@contextlib.contextmanager
def mlx_lm_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, Generator()))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def litellm_proxy(upstream: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{free_port()}"
    model = {"model": "openai/m", "api_base": f"{upstream}/v1", "api_key": "none"}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "litellm.yaml"
        config.write_text(
            json.dumps({"model_list": [{"model_name": "default", "litellm_params": model}]})
        )
        command = [str(made("litellm") / "bin" / "litellm"), "--config", str(config)]
        command += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
        environ = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        }
        with process(command, f"{url}/health/liveliness", environ):
            yield url


# --- the tasks ------------------------------------------------------------------------------------


def done(client: OpenAI, number: int) -> str:
    """Do a task; what went wrong, empty where nothing did."""
    _, steps = TASKS[number]
    messages: list[Any] = [{"role": "user", "content": f"Task {number}: find it out."}]
    left = list(steps)
    for _ in range(len(steps) + 1):
        try:
            completion = client.chat.completions.create(
                model="default", messages=messages, tools=TOOLS
            )
        except APIError as error:
            return f"error: {error.message}"[:200]
        message: Any = completion.choices[0].message
        if not message.tool_calls:
            if left:
                return f"no call; it said {message.content!r}"[:200]
            right = message.content == f"The result is {steps[-1][2]}."
            return "" if right else f"it said {message.content!r}"[:200]
        messages.append(message)
        for call in message.tool_calls:
            name, arguments, result = left.pop(0) if left else ("", {}, "")
            got = (call.function.name, json.loads(call.function.arguments))
            if got != (name, arguments):
                return f"it called {got}"[:200]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "it calls and calls"


def main() -> None:
    rows = []
    with contextlib.ExitStack() as stack:
        urls = {}
        for name, heeds in {"": False, ", a model that heeds": True}.items():
            model = stack.enter_context(Drifting(heeds=heeds))
            options = ("--url", model.url, "--chat-format", "chatml")
            urls[f"mlx-tools serve{name}"] = stack.enter_context(gateway(*options))
        urls["mlx_lm.server"] = stack.enter_context(mlx_lm_server())
        proxy = litellm_proxy(urls["mlx_lm.server"])
        urls["LiteLLM's proxy before it"] = stack.enter_context(proxy)
        for peer, url in urls.items():
            client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
            for number, (form, _) in enumerate(TASKS):
                why = done(client, number)
                rows.append({"peer": peer, "form": form, "passed": not why, "why": why})
            passed = sum(one["passed"] for one in rows if one["peer"] == peer)
            say(f"{peer}: {passed} of {len(TASKS)}")
    results = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {"mlx-lm": version("mlx-lm"), "litellm": versions()["litellm[proxy]"]},
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_page()


if __name__ == "__main__":
    sys.exit(main())
