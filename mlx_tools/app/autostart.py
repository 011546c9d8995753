"""Commands of ours that start by themselves: with the user's session, or every few minutes.

A launchd agent on macOS, units of systemd's user manager elsewhere.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from mlx_tools.errors import UsageError
from mlx_tools.paths import state_dir

Run = Callable[[Sequence[str]], bool]
"""Runs a command of the system's; whether it did what it was to do."""


def run_command(command: Sequence[str]) -> bool:
    """Run a command and wait for its end."""
    try:
        done = subprocess.run(  # noqa: S603 - an argument list, no shell
            command, check=False, capture_output=True, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class Autostart(Struct, frozen=True, kw_only=True):
    """How one of our commands is started: ``name`` is that of its files. With ``every`` it runs
    each time when so many minutes are full, else it is kept running.

    ``home`` is the user's home folder. ``run`` runs a command of the system.
    """

    name: str
    every: int = 0
    platform: str = sys.platform
    home: Path = field(default_factory=Path.home)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = run_command

    @property
    def label(self) -> str:
        """What it is known by to the system."""
        return f"org.mlx-tools.{self.name}"

    @property
    def installed(self) -> bool:
        """True where `install` was here."""
        return self._file.exists()

    def texts(self, command: Sequence[str]) -> dict[Path, str]:
        """The files that have this command started."""
        if self._is_mac:
            return {self._file: launch_agent(self.label, command, self._log, self.every)}
        service = self._file.with_suffix(".service")
        units = {service: systemd_unit(command, self.every)}
        return units | ({self._file: systemd_timer(self.every)} if self.every else {})

    def install(self, command: Sequence[str]) -> list[str]:
        """Have this command started from now on, in place of what was installed before.

        Return what the user is still to do, empty where all is done. Raises `UsageError` where a
        file cannot be written.
        """
        try:
            for folder in (self._log.parent, self._file.parent):
                folder.mkdir(parents=True, exist_ok=True)
            for path, text in self.texts(command).items():
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            where = error.filename or self._file
            raise UsageError(f"{where}: {error.strerror or error}") from None
        if self._is_mac:
            self.run(("launchctl", "bootout", *self._agent))  # an older one
            return self._run_failing(("launchctl", "bootstrap", *self._agent))
        unit = self._file.name
        words = (("daemon-reload",), ("enable", unit), ("restart", unit))
        return self._run_failing(*(("systemctl", "--user", *one) for one in words))

    def uninstall(self) -> list[str]:
        """Stop it, and start it no more; return what the user is still to do. Raises `UsageError`
        where nothing is installed."""
        if not self.installed:
            raise UsageError("nothing is installed", hint=f"mlx-tools {self.name} install")
        stops: tuple[str, ...] = ("systemctl", "--user", "disable", "--now", self._file.name)
        if self._is_mac:
            stops = ("launchctl", "bootout", *self._agent)
        left = self._run_failing(stops)
        for path in self.texts(()):
            path.unlink(missing_ok=True)
        return left

    @property
    def _is_mac(self) -> bool:
        return self.platform == "darwin"

    @property
    def _file(self) -> Path:
        """The file that the system is told of."""
        if self._is_mac:
            return self.home / "Library" / "LaunchAgents" / f"{self.label}.plist"
        own = self.environ.get("XDG_CONFIG_HOME")
        folder = (Path(own) if own else self.home / ".config") / "systemd" / "user"
        return folder / f"{self.label}.{'timer' if self.every else 'service'}"

    @property
    def _log(self) -> Path:
        return state_dir(self.environ) / "logs" / f"{self.name}.log"

    @property
    def _agent(self) -> tuple[str, str]:
        """The domain of launchd's, and the file, that it is known by there."""
        return f"gui/{os.getuid()}", str(self._file)

    def _run_failing(self, *commands: tuple[str, ...]) -> list[str]:
        return [shlex.join(command) for command in commands if not self.run(command)]


def launch_agent(label: str, command: Sequence[str], log: Path, interval: int) -> str:
    """A launchd agent that keeps this command running, or runs it every so many minutes; what a
    Mac slept through is made up for once it wakes."""
    minutes = [{"Minute": minute} for minute in range(0, 60, interval)] if interval else []
    when = {"StartCalendarInterval": minutes, "StandardOutPath": str(log)}
    kept = {"KeepAlive": {"SuccessfulExit": False}, "ThrottleInterval": 30}
    agent = {
        "Label": label,
        "ProgramArguments": [*command],
        "RunAtLoad": True,
        "StandardErrorPath": str(log),
        **(when if interval else kept),
    }
    return plistlib.dumps(agent).decode()


def systemd_unit(command: Sequence[str], interval: int) -> str:
    """A systemd unit that keeps this command running, or that a timer has run once."""
    words = " ".join(f'"{_escaped(word)}"' for word in command)
    # 1 and 4 are runs that stopped, or that wait for a person: our own list tells of them
    kind = (
        "Type=oneshot\nSuccessExitStatus=1 4" if interval else "Restart=on-failure\nRestartSec=30"
    )
    wanted = "" if interval else "\n[Install]\nWantedBy=default.target\n"
    return f"""\
[Unit]
Description=mlx-tools

[Service]
ExecStart={words}
{kind}
{wanted}"""


def systemd_timer(interval: int) -> str:
    """A systemd timer that starts the unit of its name every so many minutes."""
    return f"""\
[Unit]
Description=mlx-tools

[Timer]
OnCalendar=*:0/{interval}
AccuracySec=1s
Persistent=true

[Install]
WantedBy=timers.target
"""


def _escaped(word: str) -> str:
    """A word as it stands between quotes in a unit."""
    marks = (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$"), ("\n", "\\n"))
    for plain, escaped in marks:
        word = word.replace(plain, escaped)
    return word
