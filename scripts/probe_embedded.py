"""Measures the embedded model and writes the verdict that comes with mlx-tools.

    python scripts/probe_embedded.py                 # on a server of its own: some minutes
    python scripts/probe_embedded.py --within 3600   # seconds it may take

It is what `mlx-tools doctor --probe` measures with the default settings, whatever the files and the
environment of whoever runs it say. Run it again when the prompts, the reading or decoding have
changed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mlx_tools.backends import DEFAULT_MODEL
from mlx_tools.backends.verdicts import parse_verdict
from mlx_tools.paths import cache_dir

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "config" / "verdicts" / f"{DEFAULT_MODEL}.json"
COMMAND = "python scripts/probe_embedded.py"
OWN = ("MLX_TOOLS_", "PLUGIN_MLX_TOOLS_", "ROUTING_LOCAL_")


def probe(within: float) -> dict[str, Any]:
    """The output of `mlx-tools doctor --probe --json` on the embedded model, with no settings."""
    with tempfile.TemporaryDirectory() as empty:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OWN)}
        folders = {f"MLX_TOOLS_{kind}_DIR": empty for kind in ("CONFIG", "DATA", "STATE")}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        doctor = ["doctor", "--probe", "--json", "--within", str(within)]
        run = subprocess.run(
            [
                sys.executable,
                "-m",
                "mlx_tools",
                *doctor,
                "--backend",
                "server",
                "--model",
                DEFAULT_MODEL,
            ],
            env={**kept, **folders, "MLX_TOOLS_CACHE_DIR": str(cache_dir()), "PYTHONPATH": path},
            cwd=empty,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    try:
        found: dict[str, Any] = json.loads(run.stdout)
    except ValueError:
        sys.exit(f"the probe printed nothing that can be read (exit code {run.returncode})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--within", type=float, default=3600.0, metavar="SECONDS")
    found = probe(parser.parse_args().within)
    value = found.get("probe", {}).get("verdict")
    if value is None:
        checks = [one for one in found["checks"] if one["status"] in ("warn", "fail")]
        sys.exit("\n".join(f"{one['name']}: {one['detail']}" for one in checks))
    text = json.dumps({"command": COMMAND, **value}, indent=1) + "\n"
    verdict = parse_verdict(text.encode(), DEFAULT_MODEL)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    for cell in verdict.rows:
        right, valid, asked = cell["correct"], cell["valid"], cell["questions"]
        print(f"{cell['style']:14} {cell['strategy']:8} right {right}, valid {valid} of {asked}")
    print(f"{TARGET.relative_to(ROOT)}: style {verdict.style}, strategy {verdict.strategy}")


if __name__ == "__main__":
    main()
