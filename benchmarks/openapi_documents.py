"""Public OpenAPI documents as bound tools: what is bound, called, and let through.

``python benchmarks/openapi_documents.py`` binds each of three documents that npm has with
``mlx-tools tools bind``; calls operations of it, by the tools that a run has, against a stand-in
that answers only what the document has; and holds our validation to the values that schemathesis
makes of it, in an environment of its own (``benchmarks/.venv-openapi``). It also tells what a run
costs that knows the tools and calls none. Writes openapi_documents.json and the table of
docs/tools.md.

A body is judged as schemathesis made it; a parameter, which it makes as text, by the value that the
text stands for where one is wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from mcp_start import cost  # noqa: E402

from mlx_tools.plugins.openapi.request import make_operation  # noqa: E402
from mlx_tools.schema import fits  # noqa: E402
from mlx_tools.testing import ScriptedServer, answer  # noqa: E402
from mlx_tools.tools import BoundSource, BoundSources, BoundTool, execute  # noqa: E402
from scripts.mcp_table import write_page  # noqa: E402

RESULTS = HERE / "openapi_documents.json"
ENVIRONMENT = HERE / ".venv-openapi"
PACKAGES = {"@octokit/openapi": "23.0.2", "@readme/oas-examples": "8.2.2"}
SCHEMATHESIS = "4.32.5"
OCTOKIT, README = (f"node_modules/{name}" for name in PACKAGES)
DOCUMENTS = {
    "GitHub": (f"{OCTOKIT}/generated/api.github.com.json", 2),
    "Train Travel": (f"{README}/3.1/json/train-travel.json", 20),
    "Petstore": (f"{README}/3.0/json/petstore.json", 20),
}
"""Each document, and how many examples of each of its operations are made."""


def install() -> Path:
    """The interpreter that has schemathesis."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        wanted = f"schemathesis=={SCHEMATHESIS}"
        subprocess.run([str(python), "-m", "pip", "install", "-qq", wanted], check=True)
    if not (ENVIRONMENT / "node_modules").exists():
        npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(ENVIRONMENT)]
        wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
        subprocess.run([*npm, *wanted], check=True, stdout=sys.stderr)
    return python


def requests(python: Path, document: Path, most: int) -> Iterator[dict[str, Any]]:
    command = [str(python), str(HERE / "openapi_values.py"), str(document), str(most)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in made.stderr.splitlines():
        print(line[:200], file=sys.stderr)
    yield from map(json.loads, made.stdout.splitlines())


def meant(schema: Any, text: Any, root: Mapping[str, Any]) -> Any:
    """The value that a parameter's text stands for."""
    whole = {**root, "properties": {"one": schema}, "required": []}
    values = [text, unquote(text), text.split(",")] if isinstance(text, str) else [text]
    with contextlib.suppress(ValueError, TypeError):
        values.append(json.loads(text))
    return next((value for value in values if fits({"one": value}, whole)), text)


def arguments(tool: BoundTool, row: Mapping[str, Any]) -> dict[str, Any]:
    properties = tool.parameters["properties"]
    found = {}
    for place in tool.location["parameters"]:
        given = row["at"] if place["in"] == "path" else row["query"]
        name = place["argument"]
        if place["in"] in ("path", "query") and place["name"] in given:
            found[name] = meant(properties[name], given[place["name"]], tool.parameters)
    if "body" in row:
        found["body"] = row["body"]
    return found


def body_of(tool: BoundTool) -> dict[str, Any]:
    """The schema of its body alone."""
    return {**tool.parameters, "required": ["body"]}


def ranged(schema: Any) -> Any:
    """The schema with the range of an integer's format, which is a note in JSON Schema 2020-12."""
    if isinstance(schema, list):
        return [ranged(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: ranged(one) for key, one in schema.items()}
    most = RANGES.get(made["format"]) if isinstance(made.get("format"), str) else None
    return {"minimum": -most, "maximum": most - 1, **made} if most else made


RANGES = {"int32": 2**31, "int64": 2**63}


class StandIn:
    """Answers what the document has, and 404 all else."""

    def __init__(self, source: BoundSource) -> None:
        base = source.location["server"]
        self.known = [
            (
                tool.location["method"],
                re.compile(re.escape(tool.location.get("server", base)) + self.path(tool)),
            )
            for tool in source.tools
        ]
        self.asked = Counter[str]()

    @staticmethod
    def path(tool: BoundTool) -> str:
        parts = re.split(r"\{[^{}]*\}", tool.location["path"])
        return r"[^/?]+".join(map(re.escape, parts)) + r"(\?.*)?"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        found = any(m == request.method and p.fullmatch(str(request.url)) for m, p in self.known)
        self.asked["known" if found else "unknown"] += 1
        return httpx.Response(200 if found else 404, json={"asked": request.url.path})


def judged(source: BoundSource, rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Return the accepted values, and the calls of valid ones that are answered."""
    tools = {(tool.location["method"], tool.location["path"]): tool for tool in source.tools}
    stand_in = StandIn(source)
    network = httpx.MockTransport(stand_in)
    counts, wrong = Counter[str](), []
    for row in rows:
        tool = tools.get((row["method"], row["path"]))
        if tool is None or row["media"] not in (None, tool.location.get("body")):
            counts["of no tool"] += 1
            continue
        if not row["valid"]:
            body, schema = {"body": row["body"]}, body_of(tool)
            if fits(body, schema) and not fits(body, ranged(schema)):
                counts["invalid by an integer's format"] += 1
                continue
            right = not fits(body, schema)
            counts["invalid"] += 1
            counts["invalid, refused"] += right
        else:
            given = arguments(tool, row)
            needed = set(tool.parameters.get("required", ()))
            if needed - given.keys():  # a header, which schemathesis makes as text
                counts["of no tool"] += 1
                continue
            right = fits(given, tool.parameters)
            counts["valid"] += 1
            counts["valid, let through"] += right
            if right:
                plain = BoundTool(
                    tool.name, "", tool.parameters, tool.effects, {**tool.location, "security": []}
                )
                made = make_operation(source, plain, transport=network)
                result = asyncio.run(execute(made, given, timeout=60))
                counts["called"] += 1
                counts["answered"] += result.error is None
                if result.error is not None:
                    wrong.append(f"{tool.name}: {result.error.message}"[:200])
        if not right:
            wrong.append(f"{tool.name}: {json.dumps(row)}"[:400])
    return {**counts, **stand_in.asked, "wrong": wrong[:50]}


def start(name: str) -> float:
    """Processor seconds of a run that has all tools of a document, and calls none."""
    with ScriptedServer(*[answer("Done.")] * 3) as server:
        command = [sys.executable, "-P", "-m", "mlx_tools", "ask", "--url", server.url]
        command += ["--tools", f"plugin:openapi:{name}" if name else "calculator", "Go."]
        return min(cost(command, dict(os.environ)) for _ in range(3))


def main() -> None:
    python, rows = install(), []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("CONFIG", "STATE", "DATA"):
            os.environ[f"XDG_{kind}_HOME"] = folder
        none = start("")
        for title, (path, most) in DOCUMENTS.items():
            name = title.lower().replace(" ", "-")
            command = [sys.executable, "-P", "-m", "mlx_tools", "tools", "bind", "--name", name]
            command += ["--yes", str(ENVIRONMENT / path)]
            bound = subprocess.run(command, capture_output=True, text=True, check=True)
            source = BoundSources().read(name)
            found = judged(source, requests(python, ENVIRONMENT / path, most))
            left_out = re.search(r"and (\d+) more are left out", bound.stderr)
            shown = bound.stderr.count("left out: ")
            row = {"document": title, "version": source.version, "bound": len(source.tools)}
            row["left_out"] = shown + (int(left_out[1]) if left_out else 0)
            row["seconds"] = round(start(name) - none, 2)
            BoundSources().remove(name)
            rows.append(row | found)
            print(json.dumps(rows[-1], indent=1), file=sys.stderr)
    results = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "schemathesis": SCHEMATHESIS, "rows": rows}
    results["packages"] = PACKAGES
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_page()


if __name__ == "__main__":
    main()
