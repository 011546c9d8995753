"""Commands of ours that start by themselves: with the user's session, or every few minutes.

A launchd agent on macOS, units of systemd's user manager elsewhere.
"""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from mlx_tools.errors import UsageError
from mlx_tools.paths import state_dir, write_whole

_KEPT: Final = re.compile(
    r"PATH|LANG|LC_ALL|LC_CTYPE|XDG_(?:CONFIG|DATA|STATE|CACHE)_HOME"
    r"|(?:HF|MLX_TOOLS|PLUGIN_MLX_TOOLS|HUGGINGFACE|TRANSFORMERS)_\w+|ROUTING_LOCAL_ENABLED"
    r"|(?:HTTP|HTTPS|ALL|NO)_PROXY|(?:http|https|all|no)_proxy"
    r"|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
)
"""The variables that say where things are, how the network is reached, and how we are set up. A job
of launchd's or systemd's has none of a shell's."""

_SECRET: Final = re.compile(r"(?i)key|token|secret|password|authorization")
"""In the name of a variable: what it holds is written to no file."""

_USUAL_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

TRIES: Final = 3
"""How often launchd is asked to start an agent. What was there before ends in its own time, and
until then launchd refuses with *Input/output error* or *Operation already in progress*."""

PAUSE: Final = 1.0
"""Seconds between two tries."""

Run = Callable[[Sequence[str]], bool]
"""Runs a command of the system's; whether it did what it was to do."""


def kept_variables(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that a command needs which starts by itself, and the names of those that
    are left out since they hold a secret."""
    kept, left_out = {"PATH": _USUAL_PATH}, []
    for name, value in sorted(environ.items()):
        if not _KEPT.fullmatch(name) or not value or not value.isprintable():
            continue
        if _SECRET.search(name) or ("proxy" in name.lower() and "@" in value):
            left_out.append(name)
        else:
            kept[name] = value
    return kept, left_out


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
    """How one of our commands is started: ``name`` is that of its files. With ``interval`` it runs
    each time when so many minutes are full, else it is kept running.

    ``home`` is the user's home folder. ``run`` runs a command of the system.
    """

    name: str
    interval: int = 0
    platform: str = sys.platform
    home: Path = field(default_factory=Path.home)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = run_command
    sleep: Callable[[float], None] = time.sleep

    @property
    def variables(self) -> dict[str, str]:
        """The variables that the command gets, of those that are set now."""
        return kept_variables(self.environ)[0]

    @property
    def left_out(self) -> list[str]:
        """The names of variables that it would need, and that hold a secret."""
        return kept_variables(self.environ)[1]

    def differences(self) -> list[str]:
        """Return the names of variables that what is installed has otherwise than they are now, but
        for PATH; none where nothing is installed, or its file cannot be read."""
        try:
            text = (self._file if self._is_mac else self._service).read_text(encoding="utf-8")
            has = _agent_variables(text) if self._is_mac else _unit_variables(text)
        except (OSError, ValueError):
            return []
        wants = self.variables
        names = (has.keys() | wants.keys()) - {"PATH", "LANG", "LC_ALL", "LC_CTYPE"}
        return sorted(name for name in names if has.get(name) != wants.get(name))

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
            agent = launch_agent(self.label, command, self.log, self.interval, self.variables)
            return {self._file: agent}
        units = {self._service: systemd_unit(command, self.interval, self.variables)}
        return units | ({self._file: systemd_timer(self.interval)} if self.interval else {})

    def install(self, command: Sequence[str]) -> list[str]:
        """Have this command started from now on, in place of what was installed before.

        Return what the user is still to do, empty where all is done. Raises `UsageError` where a
        file cannot be written.
        """
        try:
            for folder in (self.log.parent, self._file.parent):
                folder.mkdir(parents=True, exist_ok=True)
            for path, text in self.texts(command).items():
                write_whole(path, text.encode(), 0o600)
        except OSError as error:
            where = error.filename or self._file
            raise UsageError(f"{where}: {error.strerror or error}") from None
        if self._is_mac:
            return self._bootstrapped()
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
            stops = ("launchctl", "bootout", self._target)
        left = self._run_failing(stops)
        for path in self.texts(()):
            path.unlink(missing_ok=True)
        return left

    def _bootstrapped(self) -> list[str]:
        """Start the agent, in place of an older one; return what is left to do."""
        self.run(("launchctl", "bootout", self._target))
        start = ("launchctl", "bootstrap", *self._agent)
        for tries in range(TRIES):
            if tries:
                self.sleep(PAUSE)
            started = self.run(start)
            # it says itself whether it knows the agent, whatever it said to starting it
            if self.run(("launchctl", "print", self._target)) and started:
                return []
        return [shlex.join(start)]

    @property
    def _target(self) -> str:
        """The agent, as launchd names it."""
        return f"gui/{os.getuid()}/{self.label}"

    @property
    def _service(self) -> Path:
        return self._file.with_suffix(".service")

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
        return folder / f"{self.label}.{'timer' if self.interval else 'service'}"

    @property
    def log(self) -> Path:
        """The file that takes what it prints."""
        return state_dir(self.environ) / "logs" / f"{self.name}.log"

    @property
    def _agent(self) -> tuple[str, str]:
        """The domain of launchd's, and the file, that it is known by there."""
        return f"gui/{os.getuid()}", str(self._file)

    def _run_failing(self, *commands: tuple[str, ...]) -> list[str]:
        return [shlex.join(command) for command in commands if not self.run(command)]


def launch_agent(
    label: str, command: Sequence[str], log: Path, interval: int, variables: Mapping[str, str]
) -> str:
    """A launchd agent that keeps this command running, or runs it every so many minutes; what a
    Mac slept through is made up for once it wakes."""
    minutes = [{"Minute": minute} for minute in range(0, 60, interval)] if interval else []
    when = {"StartCalendarInterval": minutes, "StandardOutPath": str(log)}
    kept = {"KeepAlive": {"SuccessfulExit": False}, "ThrottleInterval": 30}
    agent = {
        "Label": label,
        "ProgramArguments": [*command],
        "EnvironmentVariables": {**variables},
        "RunAtLoad": True,
        "StandardErrorPath": str(log),
        **(when if interval else kept),
    }
    return plistlib.dumps(agent).decode()


def systemd_unit(
    command: Sequence[str], interval: int, variables: Mapping[str, str] | None = None
) -> str:
    """A systemd unit that keeps this command running, or that a timer has run once."""
    lines = (f'Environment="{_assigned(n, v)}"\n' for n, v in (variables or {}).items())
    environment = "".join(lines)
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
{environment}ExecStart={words}
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


def _assigned(name: str, value: str) -> str:
    """An assignment as it stands between quotes in a unit, where no variables are replaced."""
    marks = (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"))
    for plain, escaped in marks:
        value = value.replace(plain, escaped)
    return f"{name}={value}"


def _agent_variables(text: str) -> dict[str, str]:
    """The variables of an agent's file. Raises ValueError."""
    try:
        found = plistlib.loads(text.encode()).get("EnvironmentVariables", {})
    except Exception as error:  # expat's, and others
        raise ValueError(str(error)) from None
    return found if isinstance(found, dict) else {}


def _unit_variables(text: str) -> dict[str, str]:
    """The variables of a unit, as `systemd_unit` writes them."""
    found = {}
    for name, value in re.findall(r'(?m)^Environment="(\w+)=((?:[^"\\]|\\.)*)"$', text):
        found[name] = re.sub(r"\\(.)", r"\1", value).replace("%%", "%")
    return found


def _escaped(word: str) -> str:
    """A word as it stands between quotes in a unit."""
    marks = (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$"), ("\n", "\\n"))
    for plain, escaped in marks:
        word = word.replace(plain, escaped)
    return word
