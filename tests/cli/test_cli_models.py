"""`mlx-tools models serve`: mlx-lm's server in the foreground."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.backends import foreground_command
from mlx_tools.errors import UsageError
from tests.ports import free_port
from tests.waiting import HANG

STAND_IN = """
import json, os, sys
names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
print(json.dumps({"arguments": sys.argv[1:], "environ": [os.environ.get(name) for name in names]}))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_serve_becomes_the_models_server_on_this_machine_alone(model: Path, home: Path) -> None:
    package = home / "packages" / "mlx_lm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN, encoding="utf-8")
    port = free_port()
    done = subprocess.run(
        [sys.executable, "-m", "mlx_tools", "models", "serve", str(model), "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["arguments"][:7] == [
        *("server", "--model", str(model), "--host", "127.0.0.1", "--port", str(port))
    ]
    origin = said["arguments"][said["arguments"].index("--allowed-origins") + 1]
    assert origin.startswith("http://") and origin.endswith(".invalid")
    assert said["environ"] == ["1", "1"]
    assert f"serving {model} at http://127.0.0.1:{port}" in done.stderr
    assert f"mlx-tools chat --url http://127.0.0.1:{port}" in done.stderr


def test_a_port_that_another_program_holds_is_one_line(model: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(UsageError, match=r"cannot be used.* in use") as caught:
            foreground_command(model, holder.getsockname()[1])
    assert "--port" in str(caught.value.hint)


def test_a_model_that_is_not_here_is_told_with_the_command_that_fetches_it(run: Any) -> None:
    result = run("models", "serve", "owner/name")
    assert result.code == 3 and "mlx-tools models pull owner/name" in result.error
    assert run("models", "serve", "no such model").code == 2
