"""The gateway started with the user's session: a launchd agent, on Linux a systemd user unit."""

from __future__ import annotations

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.paths import state_dir

LABEL: Final = "org.mlx-tools.serve"

Run = Callable[[Sequence[str]], int]
"""Runs a command; gives its exit code."""


def _run(command: Sequence[str]) -> int:
    try:
        return subprocess.run(command, check=False, capture_output=True, timeout=30).returncode  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Autostart:
    """Where the file stands that starts the gateway, and which commands make it known.

    ``home`` is the user's home folder. ``run`` runs a command of the system.
    """

    home: Path
    mac: bool = sys.platform == "darwin"
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = _run

    @property
    def file(self) -> Path:
        """The file that says what to start."""
        if self.mac:
            return self.home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        own = self.environ.get("XDG_CONFIG_HOME")
        folder = Path(own) if own else self.home / ".config"
        return folder / "systemd" / "user" / f"{LABEL}.service"

    def install(self, command: Sequence[str]) -> list[str]:
        """Have this command started now, with each session, and again when it ends.

        Return what the user is still to do, empty where all is done. Raises `UsageError` where the
        file cannot be written.
        """
        log = state_dir(self.environ) / "logs" / "serve.log"
        text = launch_agent(command, log) if self.mac else systemd_unit(command)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{self.file}: {error.strerror or error}") from None
        if self.mac:
            self.run(("launchctl", "bootout", self._domain, str(self.file)))  # an older one
        return self._done(*self._starts)

    def uninstall(self) -> list[str]:
        """Stop it, and remove the file; return what the user is still to do.

        Raises `UsageError` where nothing is installed.
        """
        if not self.file.exists():
            raise UsageError("nothing is installed", hint="mlx-tools serve install")
        left = self._done(*self._stops)
        self.file.unlink()
        return left

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    @property
    def _starts(self) -> tuple[tuple[str, ...], ...]:
        if self.mac:
            return (("launchctl", "bootstrap", self._domain, str(self.file)),)
        name = self.file.name
        return (
            ("systemctl", "--user", "daemon-reload"),
            ("systemctl", "--user", "enable", name),
            ("systemctl", "--user", "restart", name),
        )

    @property
    def _stops(self) -> tuple[tuple[str, ...], ...]:
        if self.mac:
            return (("launchctl", "bootout", self._domain, str(self.file)),)
        return (("systemctl", "--user", "disable", "--now", self.file.name),)

    def _done(self, *commands: tuple[str, ...]) -> list[str]:
        return [shlex.join(command) for command in commands if self.run(command) != 0]


def launch_agent(command: Sequence[str], log: Path) -> str:
    """A launchd agent that keeps this command running."""
    agent = {
        "Label": LABEL,
        "ProgramArguments": [*command],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 30,
        "StandardErrorPath": str(log),
    }
    return plistlib.dumps(agent).decode()


def systemd_unit(command: Sequence[str]) -> str:
    """A systemd unit that keeps this command running."""
    words = " ".join(f'"{_escaped(word)}"' for word in command)
    return f"""\
[Unit]
Description=mlx-tools gateway

[Service]
ExecStart={words}
Restart=on-failure
RestartSec=30

[Install]
WantedBy=default.target
"""


def _escaped(word: str) -> str:
    """A word as it stands between quotes in a unit."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(plain, escaped)
    return word
