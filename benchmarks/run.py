"""Runs every benchmark and writes docs/benchmarks.md and benchmarks/results.json.

``python benchmarks/run.py`` makes an environment of its own with the versions of peers.txt and this
package in it, measures all competitors in one go, some minutes long, and writes both files. Python
3.11 or newer is all that it needs.

``--quick`` looks at small texts for a few rounds, to see that all of it works; what it finds goes
to standard output. ``--here`` uses the interpreter that runs it, with whatever peers it has.
``--lock`` renews peers.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import venv
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ENVIRONMENT = HERE / ".venv"
PEERS = HERE / "peers.txt"
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"

PACKAGES = (
    "mlx-tools",
    "json-repair",
    "langchain",
    "langchain-classic",
    "langchain-core",
    "llm",
    "pydantic-ai-slim",
    "smolagents",
)

QUICK = {
    "reading": ["--sizes", "100,1000,10000", "--rounds", "3", "--cap", "1", "--budget", "0.1"],
    "steps": ["--rounds", "3"],
    "startup": ["--rounds", "2"],
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def environment_python() -> Path:
    """The interpreter of the benchmarks' environment, made where it is missing or out of date."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / ".ready"
    wanted = "\n".join(
        (platform.python_version(), str(HERE), hashlib.sha256(PEERS.read_bytes()).hexdigest())
    )
    if not stamp.exists() or stamp.read_text() != wanted:
        say("making the environment of the peers (about a minute)")
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        install(python, "--requirement", str(PEERS))
        stamp.write_text(wanted)
    # As its users have it: a wheel, and always the present one.
    install(python, "--no-deps", "--force-reinstall", str(ROOT))
    return python


def install(python: Path, *what: str) -> None:
    command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *what]
    if subprocess.run(command).returncode:
        raise SystemExit("pip could not install the peers: see its message above")


def renew_lock() -> None:
    """Writes peers.txt anew: the newest versions that go with requirements.lock."""
    command = ["uv", "pip", "compile", "peers.in", "../pyproject.toml", "--no-config"]
    command += ["--constraint", "../requirements.lock", "--universal", "--python-version", "3.11"]
    command += ["--upgrade", "--no-annotate", "--quiet", "--output-file", "peers.txt"]
    command += ["--custom-compile-command", "python benchmarks/run.py --lock"]
    uv = Path(sys.executable).with_name("uv")
    command[0] = str(uv) if uv.exists() else "uv"
    subprocess.run(command, cwd=HERE, check=True)


def machine() -> dict[str, Any]:
    """The things that the figures depend on. No names of hosts or people, no paths."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": processor(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return ""


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            say(f"not installed: {name}")
    return found


def measured(script: str, options: list[str]) -> Any:
    command = [sys.executable, str(HERE / f"{script}.py"), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{script}.py failed: see its message above")
    return json.loads(done.stdout)


def run(options: argparse.Namespace) -> None:
    from report import dump, read_replays, render

    began, load = monotonic(), os.getloadavg()[0]
    results: dict[str, Any] = {
        "command": "python benchmarks/run.py" + (" --quick" if options.quick else ""),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "versions": versions(),
        "load": {"before": round(load, 2)},
    }
    need = ["--need", options.need]
    for script, quick in QUICK.items():
        results[script] = measured(script, [*need, *(quick if options.quick else [])])
    results["load"]["after"] = round(os.getloadavg()[0], 2)
    results["seconds"] = round(monotonic() - began)
    page = render(results, None if options.quick else read_replays())
    if options.results:
        options.results.write_text(dump(results), encoding="utf-8")
    if options.page:
        options.page.write_text(page, encoding="utf-8")
    else:
        print(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small texts, few rounds")
    parser.add_argument("--here", action="store_true", help="use this interpreter as it is")
    parser.add_argument("--need", choices=["any", "all"], default="any", help=argparse.SUPPRESS)
    parser.add_argument("--lock", action="store_true", help="renew peers.txt and end")
    parser.add_argument("--results", type=Path, help="where the figures go (JSON)")
    parser.add_argument("--page", type=Path, help="where the page goes (Markdown)")
    options = parser.parse_args()
    if options.lock:
        return renew_lock()
    if not options.quick:
        options.results = options.results or RESULTS
        options.page = options.page or PAGE
    if options.here:
        return run(options)
    python = environment_python()
    again = [str(python), str(HERE / "run.py"), "--here", "--need", "all", *sys.argv[1:]]
    raise SystemExit(subprocess.run(again).returncode)


if __name__ == "__main__":
    main()
