"""Takes the environment of whoever runs the tests aside, before a test or the package reads it.

The tests have an empty home of their own. They read neither the person's files nor their settings,
and write nothing there. What they may read is named here: the embedded model where it was pulled
already, and how pip, uv, npm and pyenv are configured on this machine.
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
"""The variable that tells workers, and what they start, where the person's caches are."""

CACHES: Final = ("HOME", "XDG_CACHE_HOME", "MLX_TOOLS_CACHE_DIR")

PREFIXES: Final = ("XDG_", "MLX_TOOLS_", "PLUGIN_MLX_TOOLS", "ROUTING_LOCAL", "HF_", "PG")
NAMES: Final = (
    *("HOME", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE", "DBUS_SESSION_BUS_ADDRESS"),
    *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OLLAMA_HOST"),
    *("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "EDITOR", "VISUAL", "PAGER", "BROWSER"),
    *("SSH_CONNECTION", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"),
)
"""Variables of a person that the package and its libraries read, or that say how Python is to
run. Tests start it some hundred times: compiled anew each time, they take twice as long."""

CONFIGURED: Final = {
    "PIP_CONFIG_FILE": (".config/pip/pip.conf", ".pip/pip.conf", "Library/Application Support/pip"),
    "UV_CONFIG_FILE": (".config/uv/uv.toml",),
    "NPM_CONFIG_USERCONFIG": (".npmrc",),
    "PYENV_ROOT": (".pyenv",),
}
"""The folders in a home that configure other programs of tests, by their variable."""


def take_aside(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Replace the person's home and settings by empty ones; return what says where theirs are.

    A process that a test run started finds this done: it has the same home. Only each worker of
    pytest has one of its own: another one's tests would find what its tests leave there.
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
    process = os.getpid()  # a fork of it leaves the home alone
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(home, ignore_errors=True))
    return theirs


def is_personal(name: str) -> bool:
    """Return True if a variable belongs to the person, and not to the machine."""
    return name in NAMES or name.startswith(PREFIXES)


def cache_environs(theirs: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Environments with the person's cache, which is only read, and with the cache of the tests.

    ``MLX_TOOLS_CACHE_DIR`` names one to share between checkouts; else it stands in the checkout.
    """
    plain = dict(os.environ)
    place = ROOT / ".cache" if os.access(ROOT, os.W_OK) else Path(os.environ["HOME"], ".cache")
    return plain | theirs, plain | {
        "MLX_TOOLS_CACHE_DIR": theirs.get("MLX_TOOLS_CACHE_DIR") or str(place)
    }
