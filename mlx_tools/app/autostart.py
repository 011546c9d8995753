"""Commands of ours that start by themselves: with the user's session, or every few minutes.

A launchd agent on macOS; on Linux units of systemd's user manager, or a line of cron's.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct, field

from mlx_tools.errors import UsageError
from mlx_tools.paths import state_dir

Starter = Literal["launchd", "systemd", "cron"]


class SystemAnswer(NamedTuple):
    """The exit code of a command of the system's, and what it printed."""

    code: int
    out: str = ""
    err: str = ""


Run = Callable[[Sequence[str], str], SystemAnswer]
"""Runs a command, with a text on its standard input."""


def run_command(command: Sequence[str], text: str) -> SystemAnswer:
    """The end of a command; one that cannot be run ends with 1."""
    try:
        done = subprocess.run(  # noqa: S603 - an argument list, no shell
            command, check=False, capture_output=True, timeout=30, input=text, encoding="utf-8"
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeError) as error:
        return SystemAnswer(1, err=str(error))
    return SystemAnswer(done.returncode, done.stdout, done.stderr)


def starters(platform: str = sys.platform, run: Run = run_command) -> tuple[Starter, ...]:
    """What may start commands on this machine, the first of them best."""
    if platform == "darwin":
        return ("launchd",)
    reached = run(("systemctl", "--user", "show-environment"), "").code == 0
    return ("systemd", "cron") if reached else ("cron", "systemd")


class Autostart(Struct, frozen=True, kw_only=True):
    """How one of our commands is started: ``name`` is that of its files. With ``every`` it runs
    each time when so many minutes are full, else it is kept running.

    ``home`` is the user's home folder. ``run`` runs a command of the system.
    """

    name: str
    every: int = 0
    starter: Starter
    home: Path = field(default_factory=Path.home)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = run_command

    @property
    def label(self) -> str:
        """What it is known by to the system."""
        return f"org.mlx-tools.{self.name}"

    def texts(self, command: Sequence[str]) -> dict[Path, str]:
        """The files that have this command started; for cron the line, under no file's name."""
        folder = self._folder
        if self.starter == "cron":
            log = shlex.quote(str(self._log))
            line = f"*/{self.every} * * * * {shlex.join(command)} >>{log} 2>&1 # {self.label}"
            return {Path("crontab"): line.replace("%", "\\%") + "\n"}
        if self.starter == "launchd":
            agent = launch_agent(self.label, command, self._log, self.every)
            return {folder / f"{self.label}.plist": agent}
        units = {folder / f"{self.label}.service": systemd_unit(command, self.every)}
        if self.every:
            units[folder / f"{self.label}.timer"] = systemd_timer(self.every)
        return units

    def install(self, command: Sequence[str]) -> list[str]:
        """Have this command started from now on, in place of what was installed before.

        Return what the user is still to do, empty where all is done. Raises `UsageError` where a
        file cannot be written, or what cron has cannot be read.
        """
        texts = self.texts(command)
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            if self.starter != "cron":
                self._folder.mkdir(parents=True, exist_ok=True)
                for path, text in texts.items():
                    path.write_text(text, encoding="utf-8")
        except OSError as error:
            where = error.filename or self._folder
            raise UsageError(f"{where}: {error.strerror or error}") from None
        if self.starter == "cron":
            return self._write_crontab("".join(texts.values()))
        if self.starter == "launchd":
            self.run(("launchctl", "bootout", *self._agent), "")  # an older one
            return self._left(("launchctl", "bootstrap", *self._agent))
        unit = self._file.name
        words = (("daemon-reload",), ("enable", unit), ("restart", unit))
        return self._left(*(("systemctl", "--user", *one) for one in words))

    @property
    def installed(self) -> bool:
        """True where `install` was here."""
        if self.starter == "cron":
            return any(map(self._is_ours, self._crontab()))
        return self._file.exists()

    def uninstall(self) -> list[str]:
        """Stop it, and start it no more; return what the user is still to do. Raises `UsageError`
        where nothing is installed."""
        if not self.installed:
            raise UsageError("nothing is installed", hint=f"mlx-tools {self.name} install")
        if self.starter == "cron":
            return self._write_crontab("")
        stops: tuple[str, ...] = ("systemctl", "--user", "disable", "--now", self._file.name)
        if self.starter == "launchd":
            stops = ("launchctl", "bootout", *self._agent)
        left = self._left(stops)
        for path in self.texts(()):
            path.unlink(missing_ok=True)
        return left

    # --- where things stand, and who is told ---

    @property
    def _folder(self) -> Path:
        if self.starter == "launchd":
            return self.home / "Library" / "LaunchAgents"
        own = self.environ.get("XDG_CONFIG_HOME")
        return (Path(own) if own else self.home / ".config") / "systemd" / "user"

    @property
    def _file(self) -> Path:
        """The file that the system is told of."""
        kind = "plist" if self.starter == "launchd" else "timer" if self.every else "service"
        return self._folder / f"{self.label}.{kind}"

    @property
    def _log(self) -> Path:
        return state_dir(self.environ) / "logs" / f"{self.name}.log"

    @property
    def _agent(self) -> tuple[str, str]:
        """The domain of launchd's, and the file, that it is known by there."""
        return f"gui/{os.getuid()}", str(self._file)

    def _left(self, *commands: tuple[str, ...]) -> list[str]:
        return [shlex.join(command) for command in commands if self.run(command, "").code != 0]

    # --- cron: one table of lines for all that a user has ---

    def _is_ours(self, line: str) -> bool:
        return line.endswith(f"# {self.label}")

    def _crontab(self) -> list[str]:
        """The lines that there are. Raises `UsageError` where they cannot be read: they would be
        lost with what is written."""
        ran = self.run(("crontab", "-l"), "")
        if ran.code and "no crontab" not in ran.err:
            raise UsageError(
                "neither systemd nor cron can be asked to start it",
                hint=f"have mlx-tools {self.name} run --loop started as this system does it",
            )
        return [] if ran.code else ran.out.splitlines()

    def _write_crontab(self, line: str) -> list[str]:
        others = [one for one in self._crontab() if not self._is_ours(one)]
        table = "".join(f"{one}\n" for one in others) + line
        if self.run(("crontab", "-"), table).code == 0:
            return []
        return [f"crontab -e, with this line: {line.strip()}" if line else "crontab -e"]


def launch_agent(label: str, command: Sequence[str], log: Path, every: int) -> str:
    """A launchd agent that keeps this command running, or runs it every so many minutes; what a
    Mac slept through is made up for once it wakes."""
    minutes = [{"Minute": minute} for minute in range(0, 60, every)] if every else []
    when = {"StartCalendarInterval": minutes, "StandardOutPath": str(log)}
    kept = {"KeepAlive": {"SuccessfulExit": False}, "ThrottleInterval": 30}
    agent = {
        "Label": label,
        "ProgramArguments": [*command],
        "RunAtLoad": True,
        "StandardErrorPath": str(log),
        **(when if every else kept),
    }
    return plistlib.dumps(agent).decode()


def systemd_unit(command: Sequence[str], every: int) -> str:
    """A systemd unit that keeps this command running, or that a timer has run once."""
    words = " ".join(f'"{_escaped(word)}"' for word in command)
    # 1 and 4 are runs that stopped, or that wait for a person: our own list tells of them
    kind = "Type=oneshot\nSuccessExitStatus=1 4" if every else "Restart=on-failure\nRestartSec=30"
    wanted = "" if every else "\n[Install]\nWantedBy=default.target\n"
    return f"""\
[Unit]
Description=mlx-tools

[Service]
ExecStart={words}
{kind}
{wanted}"""


def systemd_timer(every: int) -> str:
    """A systemd timer that starts the unit of its name every so many minutes."""
    return f"""\
[Unit]
Description=mlx-tools

[Timer]
OnCalendar=*:0/{every}
AccuracySec=1s
Persistent=true

[Install]
WantedBy=timers.target
"""


def _escaped(word: str) -> str:
    """A word as it stands between quotes in a unit."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(plain, escaped)
    return word
