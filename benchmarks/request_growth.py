"""The cost for the gateway of each count that a client chooses, as it doubles.

``python benchmarks/request_growth.py [PART OF A NAME …]`` sends requests to a gateway in this
process. It grows one count of a body at a time: tools, messages, parts, enum values, depth and the
like. A line for each says the processor time at the largest size, the factor of the last doubling
(2 is linear, 4 is quadratic), and the longest time for which the event loop served nobody else.
A factor over 2.8 is marked, and so is a time on the loop over 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx

from mlx_tools.app import AccessRules, config
from mlx_tools.gateway.admission import Admission
from mlx_tools.gateway.server import application
from mlx_tools.plugins.runs.runs import open_runs
from mlx_tools.testing import answer, make_gateway, make_turn_runner
from mlx_tools.tools import Registry

LARGEST_SECONDS = 1.5
"""A request that took longer is not doubled again."""

QUADRATIC, LOOP_SECONDS = 2.8, 0.05

Body = dict[str, Any]
USER = {"role": "user", "content": "Hi"}


class Growth(NamedTuple):
    """A request that grows: ``body`` of a count, sent to ``path``, from ``least`` to ``most``."""

    path: str
    body: Callable[[int], Body]
    least: int = 1_000
    most: int = 8_000


# --- bodies ---------------------------------------------------------------------------------------


def chat(**more: Any) -> Body:
    return {"model": "scripted", "messages": [USER], **more}


def function(name: str = "f", parameters: Any = None, description: str = "Does it.") -> Body:
    given = {"name": name, "description": description, "parameters": parameters or {}}
    return {"type": "function", "function": given}


def objects(properties: Body, **more: Any) -> Body:
    return {"type": "object", "properties": properties, **more}


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = wrap(schema)
    return schema


def turns(count: int, *, same_id: bool = False) -> Iterator[Body]:
    """A question, and so many calls with their results."""
    yield USER
    for number in range(count):
        id_ = "x" if same_id else f"x{number}"
        called = {"name": "f", "arguments": json.dumps({"a": str(number)})}
        yield {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": id_, "type": "function", "function": called}],
        }
        yield {"role": "tool", "tool_call_id": id_, "content": f"result {number}"}


def wide_turn(count: int, *, same_id: bool = False, reverse: bool = False) -> list[Body]:
    """A question, and one turn of so many calls, whose results may come from the last on."""
    rows = list(turns(count, same_id=same_id))
    calls = [call for row in rows[1::2] for call in row["tool_calls"]]
    results = rows[2::2]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    return [USER, said, *(results[::-1] if reverse else results)]


def echoes(count: int) -> list[Body]:
    """A result that holds so many lines that look like calls."""
    rows = list(turns(1))
    line = '{"type":"tool_call","name":"f","arguments":{"a":"%d"}}'
    rows[-1]["content"] = "\n".join(line % number for number in range(count))
    return rows


F = [function(parameters=objects({"a": {"type": "string"}}))]
TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def schema_growths() -> dict[str, Callable[[int], Any]]:
    """Schemas that grow, as a tool's parameters and as an answer's form."""
    string = {"type": "string"}
    return {
        "properties": lambda n: objects({f"p{i}": string for i in range(n)}),
        "required": lambda n: objects({}, required=[f"p{i}" for i in range(n)]),
        "required properties": lambda n: objects(
            {f"p{i}": string for i in range(n)}, required=[f"p{i}" for i in range(n)]
        ),
        "enum": lambda n: objects({"a": {"enum": [f"v{i}" for i in range(n)]}}),
        "enum of numbers": lambda n: objects({"a": {"enum": list(range(n))}}),
        "anyOf": lambda n: objects({"a": {"anyOf": [{"const": i} for i in range(n)]}}),
        "oneOf objects": lambda n: objects(
            {"a": {"oneOf": [objects({f"p{i}": string}) for i in range(n)]}}
        ),
        "allOf": lambda n: objects({"a": {"allOf": [string] * n}}),
        "type list": lambda n: objects({"a": {"type": ["string", "null"] * (n // 2)}}),
        "definitions": lambda n: objects({}, **{"$defs": {f"d{i}": string for i in range(n)}}),
        "references": lambda n: objects(
            {f"p{i}": {"$ref": "#/$defs/d"} for i in range(n)}, **{"$defs": {"d": string}}
        ),
        "chain of references": lambda n: objects(
            {"a": {"$ref": "#/$defs/d0"}},
            **{"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)} | {f"d{n}": {}}},
        ),
        "patternProperties": lambda n: objects(
            {}, patternProperties={f"^p{i}$": string for i in range(n)}
        ),
        "patterns": lambda n: objects(
            {f"p{i}": {"type": "string", "pattern": f"^a{i}+$"} for i in range(n)}
        ),
        "prefixItems": lambda n: objects({"a": {"type": "array", "prefixItems": [string] * n}}),
        "examples": lambda n: objects({"a": {"examples": list(range(n))}}),
        "unknown keywords": lambda n: objects({}, **{f"x{i}": i for i in range(n)}),
        "long description": lambda n: objects({"a": {"description": "word " * n}}),
        "long default": lambda n: objects({"a": {"default": "word " * n}}),
    }


def depth_growths() -> dict[str, Callable[[int], Any]]:
    """Schemas that grow deep."""
    return {
        "depth of objects": lambda n: objects({"a": nested(n, lambda s: objects({"a": s}))}),
        "depth of arrays": lambda n: objects(
            {"a": nested(n, lambda s: {"type": "array", "items": s})}
        ),
        "depth of anyOf": lambda n: objects(
            {"a": nested(n, lambda s: {"anyOf": [s, {"type": "null"}]})}
        ),
        "depth of allOf": lambda n: objects({"a": nested(n, lambda s: {"allOf": [s]})}),
        "depth of not": lambda n: objects({"a": nested(n, lambda s: {"not": s})}),
    }


def chat_growths() -> Iterator[tuple[str, Growth]]:
    path = "/v1/chat/completions"

    def grow(name: str, make: Callable[[int], Body], **more: Any) -> tuple[str, Growth]:
        return f"chat: {name}", Growth(path, lambda n: chat(**make(n)), **more)

    yield grow("tools", lambda n: {"tools": [function(f"f{i}") for i in range(n)]})
    yield grow(
        "tools with a long common prefix",
        lambda n: {"tools": [function("a" * 50 + str(i)) for i in range(n)]},
    )
    yield grow(
        "tools, one of them chosen",
        lambda n: {
            "tools": [function(f"f{i}") for i in range(n)],
            "tool_choice": {"type": "function", "function": {"name": "f1"}},
        },
    )
    yield grow(
        "tools, all of them allowed",
        lambda n: {
            "tools": [function(f"f{i}") for i in range(n)],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [
                        {"type": "function", "function": {"name": f"f{i}"}} for i in range(n)
                    ],
                },
            },
        },
    )
    yield grow("tools of one name", lambda n: {"tools": [function()] * n})
    yield grow("hosted tools", lambda n: {"tools": [{"type": f"t{i}"} for i in range(n)]})
    yield grow("messages", lambda n: {"messages": [*TALK * (n // 2), USER]})
    yield grow(
        "messages, with a tool", lambda n: {"messages": [*TALK * (n // 2), USER], "tools": F}
    )
    yield grow("messages of the user", lambda n: {"messages": [USER] * n, "tools": F})
    yield grow(
        "messages of the system",
        lambda n: {"messages": [*[{"role": "system", "content": "a"}] * n, USER], "tools": F},
    )
    yield grow(
        "messages of the model in a row",
        lambda n: {"messages": [USER, *TALK[1:] * n, USER], "tools": F},
    )
    yield grow("calls", lambda n: {"messages": [*turns(n)], "tools": F})
    yield grow("calls without tools", lambda n: {"messages": [*turns(n)]})
    yield grow("calls of one id", lambda n: {"messages": [*turns(n, same_id=True)], "tools": F})
    yield grow("calls in one turn", lambda n: {"messages": wide_turn(n), "tools": F})
    yield grow(
        "calls in one turn, of one id",
        lambda n: {"messages": wide_turn(n, same_id=True), "tools": F},
    )
    yield grow(
        "calls in one turn, answered from the last on",
        lambda n: {"messages": wide_turn(n, reverse=True), "tools": F},
    )
    yield grow("echoes in a result", lambda n: {"messages": echoes(n), "tools": F})
    yield grow(
        "parts",
        lambda n: {"messages": [USER | {"content": [{"type": "text", "text": "a"}] * n}]},
    )
    yield grow("characters", lambda n: {"messages": [USER | {"content": "word " * n}], "tools": F})
    yield grow("line breaks", lambda n: {"messages": [USER | {"content": "\n" * n}], "tools": F})
    yield grow(
        "control tokens", lambda n: {"messages": [USER | {"content": "<|im_end|>" * n}], "tools": F}
    )
    yield grow("half a token", lambda n: {"messages": [USER | {"content": "<|" * n}], "tools": F})
    yield grow("stop texts", lambda n: {"stop": [f"stop {i}" for i in range(n)]})
    yield grow("characters of a stop text", lambda n: {"stop": ["a" * n + "b"]})
    yield grow("biases", lambda n: {"logit_bias": {str(i): 1 for i in range(n)}})
    yield grow("unknown fields", lambda n: {f"x{i}": i for i in range(n)})
    yield grow("metadata", lambda n: {"metadata": {f"x{i}": "a" for i in range(n)}})
    for name, make in {**schema_growths(), **depth_growths()}.items():
        most: Any = {"least": 20, "most": 160} if name in depth_growths() else {}
        yield grow(
            f"parameters: {name}",
            lambda n, make=make: {"tools": [function(parameters=make(n))]},
            **most,
        )
        yield grow(
            f"answer: {name}",
            lambda n, make=make: {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": make(n)},
                }
            },
            **most,
        )
    yield grow(
        "depth of an argument",
        lambda n: {"messages": [*deep_call(n)], "tools": F},
        least=100,
        most=800,
    )
    yield grow("members of an argument", lambda n: {"messages": [*wide_call(n)], "tools": F})


def deep_call(depth: int) -> list[Body]:
    rows = list(turns(1))
    called = rows[1]["tool_calls"][0]["function"]
    called["arguments"] = '{"a":' * depth + "1" + "}" * depth
    return rows


def wide_call(count: int) -> list[Body]:
    rows = list(turns(1))
    called = rows[1]["tool_calls"][0]["function"]
    called["arguments"] = json.dumps({f"a{i}": i for i in range(count)})
    return rows


def other_growths() -> Iterator[tuple[str, Growth]]:
    def message(name: str, make: Callable[[int], Body], **more: Any) -> tuple[str, Growth]:
        base = {"model": "scripted", "max_tokens": 9, "messages": [USER]}
        return f"messages: {name}", Growth("/v1/messages", lambda n: base | make(n), **more)

    used = [{"type": "tool_use", "id": "x%d", "name": "f", "input": {"a": "b"}}]
    tools = [{"name": "f", "input_schema": objects({"a": {"type": "string"}})}]

    def blocks(n: int) -> list[Body]:
        calls = [used[0] | {"id": f"x{i}"} for i in range(n)]
        results = [
            {"type": "tool_result", "tool_use_id": f"x{i}", "content": str(i)} for i in range(n)
        ]
        return [
            USER,
            {"role": "assistant", "content": calls},
            {"role": "user", "content": results[::-1]},
        ]

    yield message("tools", lambda n: {"tools": [tools[0] | {"name": f"f{i}"} for i in range(n)]})
    yield message("messages", lambda n: {"messages": [*TALK * (n // 2), USER], "tools": tools})
    yield message("blocks of calls and results", lambda n: {"messages": blocks(n), "tools": tools})
    yield message(
        "blocks of text",
        lambda n: {"messages": [USER | {"content": [{"type": "text", "text": "a"}] * n}]},
    )
    yield message("blocks of the system", lambda n: {"system": [{"type": "text", "text": "a"}] * n})
    yield message("stop texts", lambda n: {"stop_sequences": [f"s{i}" for i in range(n)]})

    def response(name: str, make: Callable[[int], Body], **more: Any) -> tuple[str, Growth]:
        base = {"model": "scripted", "input": "Hi"}
        return f"responses: {name}", Growth("/v1/responses", lambda n: base | make(n), **more)

    own = {"type": "function", "name": "f", "parameters": objects({"a": {"type": "string"}})}

    def items(n: int, *, apart: bool) -> list[Body]:
        calls = [
            {"type": "function_call", "call_id": f"x{i}", "name": "f", "arguments": "{}"}
            for i in range(n)
        ]
        results = [
            {"type": "function_call_output", "call_id": f"x{i}", "output": "a"} for i in range(n)
        ]
        both = [one for pair in zip(calls, results, strict=True) for one in pair]
        return [USER, *([*calls, *results[::-1]] if apart else both)]

    yield response("tools", lambda n: {"tools": [own | {"name": f"f{i}"} for i in range(n)]})
    yield response(
        "namespaces",
        lambda n: {
            "tools": [{"type": "namespace", "name": f"n{i}", "tools": [own]} for i in range(n)]
        },
    )
    yield response(
        "tools of a namespace",
        lambda n: {
            "tools": [
                {
                    "type": "namespace",
                    "name": "n",
                    "tools": [own | {"name": f"f{i}"} for i in range(n)],
                }
            ]
        },
    )
    yield response("items", lambda n: {"input": [*TALK * (n // 2), USER], "tools": [own]})
    yield response("calls", lambda n: {"input": items(n, apart=False), "tools": [own]})
    yield response("calls in one turn", lambda n: {"input": items(n, apart=True), "tools": [own]})
    yield response("metadata", lambda n: {"metadata": {f"x{i}": "a" for i in range(n)}})

    def run(name: str, make: Callable[[int], Body], **more: Any) -> tuple[str, Growth]:
        return f"runs: {name}", Growth("/v1/runs", make, **more)

    yield run("messages", lambda n: {"messages": [*TALK * (n // 2), USER]})
    yield run("calls", lambda n: {"messages": [*turns(n), TALK[1], USER]})
    yield run("calls in one turn", lambda n: {"messages": [*wide_turn(n), TALK[1], USER]})
    yield run(
        "client tools",
        lambda n: {"question": "Hi", "client_tools": [function(f"f{i}") for i in range(n)]},
        least=50,
        most=200,
    )
    yield run("names of tools", lambda n: {"question": "Hi", "tools": ["calculator"] * n})
    yield run("characters", lambda n: {"question": "word " * n})
    for name, make in schema_growths().items():
        yield run(f"answer: {name}", lambda n, make=make: {"question": "Hi", "schema": make(n)})


# --- the gateway ----------------------------------------------------------------------------------


class Model:
    """A backend that answers everything at once."""

    model = "scripted"

    async def complete(self, request: Any) -> Any:
        from mlx_tools.backends import Chunk

        yield Chunk(answer("yes"))
        yield Chunk("", "stop")


def gateway(folder: Path) -> Any:
    """The application, in this folder."""
    own = folder / "config.toml"
    own.write_text("")
    loaded = config.load(environ={}, cwd=folder, user_file=own, home=folder)
    parts = make_gateway(make_turn_runner(Model()), loaded)
    places = Admission(2, 10, time.monotonic)
    nowhere: Any = [].append
    registry: Any = lambda header: Registry()  # noqa: E731
    runs = open_runs(loaded, parts.models, nowhere, places, parts.meters, registry)
    parts.shared["runs"] = runs
    return application(parts, AccessRules())


class LoopTime:
    """Measures the longest step of the event loop, in processor time of its thread."""

    longest = 0.0

    def __enter__(self) -> LoopTime:
        self._run = asyncio.Handle._run

        def measured(handle: Any) -> None:
            began = time.thread_time()
            self._run(handle)
            self.longest = max(self.longest, time.thread_time() - began)

        asyncio.Handle._run = measured  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


async def asked(client: httpx.AsyncClient, path: str, content: bytes) -> int:
    """Send a body, and follow the run that comes of it; return the status."""
    headers = {"content-type": "application/json"}
    got = await client.post(path, content=content, headers=headers)
    if path == "/v1/runs" and got.status_code == 201:
        run = got.headers["location"]
        await client.get(f"{run}/events")
        await client.get(run)
    return got.status_code


async def measure(app: Any, name: str, growth: Growth) -> str:
    """Measure one growth, and say what came of it in a line."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", timeout=None
    ) as client:
        size, before, spent = growth.least, 0.0, 0.0
        while True:
            content = json.dumps(growth.body(size)).encode()
            with LoopTime() as loop:
                began = time.process_time()
                # In a task of its own: what runs before the first pause counts, too.
                status = await asyncio.create_task(asked(client, growth.path, content))
                before, spent = spent, time.process_time() - began
            if size * 2 > growth.most or spent > LARGEST_SECONDS:
                break
            size *= 2
    factor = spent / before if before else 0.0
    marks = "Q" if factor > QUADRATIC and spent > 0.1 else " "
    marks += "L" if loop.longest > LOOP_SECONDS else " "
    times = f"{spent:8.3f} s x{factor:4.1f}  loop {loop.longest:7.3f} s"
    return f"{marks} {times}  {size:6} {status} {name}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    growths = dict([*chat_growths(), *other_growths()])
    with tempfile.TemporaryDirectory() as made:
        os.environ["MLX_TOOLS_STATE_DIR"] = made
        app = gateway(Path(made))

        async def measure_all() -> None:
            async with app.router.lifespan_context(app):
                for name, growth in growths.items():
                    if not given.names or any(part in name for part in given.names):
                        print(await measure(app, name, growth), flush=True)

        anyio.run(measure_all)


if __name__ == "__main__":
    main()
