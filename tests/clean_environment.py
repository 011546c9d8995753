"""Replaces the user's home and settings before a test or the package reads them.

The tests have an empty home. They do not read the user's files or settings, and write nothing
there. There are two exceptions: the embedded model, if the user has it in the cache, and the
configuration of pip, uv, npm and pyenv.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

PERSON: Final = "TESTS_OF_MLX_TOOLS_PERSON"
"""The variable with the user's cache folders, for workers and the processes that they start."""

CACHES: Final = ("HOME", "XDG_CACHE_HOME", "MLX_TOOLS_CACHE_DIR")

PREFIXES: Final = ("XDG_", "MLX_TOOLS_", "PLUGIN_MLX_TOOLS", "ROUTING_LOCAL", "HF_", "PG")
NAMES: Final = (
    *("HOME", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE", "DBUS_SESSION_BUS_ADDRESS"),
    *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OLLAMA_HOST"),
    *("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "EDITOR", "VISUAL", "PAGER", "BROWSER"),
    *("SSH_CONNECTION", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"),
)
"""A user's variables that the package and its libraries read, and variables that change how Python
runs. Tests start Python some hundred times; without compiled files they take twice as long."""

CONFIGURED: Final = {
    "PIP_CONFIG_FILE": (".config/pip/pip.conf", ".pip/pip.conf", "Library/Application Support/pip"),
    "UV_CONFIG_FILE": (".config/uv/uv.toml",),
    "NPM_CONFIG_USERCONFIG": (".npmrc",),
    "PYENV_ROOT": (".pyenv",),
}
"""Files in the user's home that configure other programs of tests, by their variable."""


def clean_environment(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Replace the user's home and settings by empty ones.

    A process that a test starts keeps the home of the test. Each worker of pytest has a home of its
    own, so that its tests do not find files of other workers' tests.

    Returns:
        The variables with the user's cache folders.
    """
    if PERSON in environ:
        theirs: dict[str, str] = json.loads(environ[PERSON])
        own = f"mlx-tools-home-{environ.get('PYTEST_XDIST_WORKER', '')}"
        if "PYTEST_XDIST_WORKER" in environ and Path(environ["HOME"]).name != own:
            place = Path(environ["HOME"], own)
            place.mkdir(exist_ok=True)
            environ["HOME"] = str(place)
        return theirs
    theirs = {name: environ[name] for name in CACHES if name in environ}
    for name in [*filter(is_personal, environ)]:
        del environ[name]
    home = tempfile.mkdtemp(prefix="mlx-tools-home-")
    environ |= {"HOME": home, PERSON: json.dumps(theirs)}
    for name, places in CONFIGURED.items():
        found = [path for place in places if (path := Path(theirs.get("HOME", ""), place)).exists()]
        if "HOME" in theirs and found:
            environ.setdefault(name, str(found[0]))
    process = os.getpid()  # a fork must not delete the home
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(home, ignore_errors=True))
    return theirs


def is_personal(name: str) -> bool:
    """Return True if a variable belongs to the user, and not to the machine."""
    return name in NAMES or name.startswith(PREFIXES)


def cache_environs(theirs: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return two environments: with the user's cache, to read from, and with the tests' cache.

    The tests' cache is in the checkout, unless ``MLX_TOOLS_CACHE_DIR`` names one for several
    checkouts.
    """
    plain = dict(os.environ)
    place = ROOT / ".cache" if os.access(ROOT, os.W_OK) else Path(os.environ["HOME"], ".cache")
    return plain | theirs, plain | {
        "MLX_TOOLS_CACHE_DIR": theirs.get("MLX_TOOLS_CACHE_DIR") or str(place)
    }
