"""Commands of mlx-tools that the system starts, at log-in or every few minutes.

On macOS this is done by a launchd agent, elsewhere by units of systemd's user manager.
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

from mlx_tools.app.settings import table
from mlx_tools.errors import UsageError
from mlx_tools.paths import state_dir, write_whole

_PASSED_VARIABLES: Final = re.compile(
    r"PATH|LANG|LC_ALL|LC_CTYPE|XDG_(?:CONFIG|DATA|STATE|CACHE)_HOME"
    r"|(?:HF|MLX_TOOLS|PLUGIN_MLX_TOOLS|HUGGINGFACE|TRANSFORMERS)_\w+|ROUTING_LOCAL_ENABLED"
    r"|(?:HTTP|HTTPS|ALL|NO)_PROXY|(?:http|https|all|no)_proxy"
    r"|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
)
"""Variables for folders, the network and our own settings.

They are stored, because a job of launchd or systemd has none of a shell's variables.
"""

_SECRET: Final = re.compile(r"(?i)key|token|secret|password|authorization")
"""Parts of names of foreign variables whose values must not be written to a file."""

_PASSWORD: Final = re.compile(r"://[^/\s@]*:[^/\s@]*@")
"""A user and a password in an address."""

_DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

TRIES: Final = 3
"""Tries to make launchd start an agent.

The old agent takes some time to end. Until then launchd refuses with *Input/output error* or
*Operation already in progress*.
"""

PAUSE: Final = 1.0
"""Seconds between two tries."""

Run = Callable[[Sequence[str]], bool]
"""Runs a command of the system; returns True if it succeeded."""


def select_variables(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that an autostarted command needs.

    The second value has the names of variables that are left out because they are secrets.
    """
    selected, left_out = {"PATH": _DEFAULT_PATH}, []
    # Our own settings declare if they are secrets: MLX_TOOLS_LIMITS_MAX_TOKENS is not.
    settings = {row.env: row.setting.secret for row in table().values()}
    for name, value in sorted(environ.items()):
        if not _PASSED_VARIABLES.fullmatch(name) or not value or not value.isprintable():
            continue
        is_secret = settings.get(name, _SECRET.search(name) is not None)
        if is_secret or _PASSWORD.search(value) or ("proxy" in name.lower() and "@" in value):
            left_out.append(name)
        else:
            selected[name] = value
    return selected, left_out


def run_command(command: Sequence[str]) -> bool:
    """Run a command and wait for its end; return True if it succeeded."""
    try:
        result = subprocess.run(  # noqa: S603 - an argument list, no shell
            command, check=False, capture_output=True, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


class Autostart(Struct, frozen=True, kw_only=True):
    """The autostart of one command."""

    name: str
    """The name of its files."""
    interval: int = 0
    """Minutes between two runs; 0 to keep the command running."""
    platform: str = sys.platform
    home: Path = field(default_factory=Path.home)
    """The user's home folder."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = run_command
    """Runs a command of the system."""
    sleep: Callable[[float], None] = time.sleep

    @property
    def variables(self) -> dict[str, str]:
        """The variables that the command gets, with their present values."""
        return select_variables(self.environ)[0]

    @property
    def left_out(self) -> list[str]:
        """The names of variables that the command needs, but which are secrets."""
        return select_variables(self.environ)[1]

    def differences(self) -> list[str]:
        """Return the variables whose installed value differs from the present one.

        PATH and the locale are ignored. Empty if nothing is installed, or if its file cannot be
        read.
        """
        try:
            text = (self._file if self._is_mac else self._service).read_text(encoding="utf-8")
            installed = _read_agent_variables(text) if self._is_mac else _read_unit_variables(text)
        except (OSError, ValueError):
            return []
        present = self.variables
        names = (installed.keys() | present.keys()) - {"PATH", "LANG", "LC_ALL", "LC_CTYPE"}
        return sorted(name for name in names if installed.get(name) != present.get(name))

    @property
    def label(self) -> str:
        """The name that the system knows it by."""
        return f"org.mlx-tools.{self.name}"

    @property
    def installed(self) -> bool:
        """True if it is installed."""
        return self._file.exists()

    def texts(self, command: Sequence[str]) -> dict[Path, str]:
        """Return the files that start this command, with their texts."""
        if self._is_mac:
            agent = make_launch_agent(self.label, command, self.log, self.interval, self.variables)
            return {self._file: agent}
        units = {self._service: make_systemd_unit(command, self.interval, self.variables)}
        return units | ({self._file: make_systemd_timer(self.interval)} if self.interval else {})

    def install(self, command: Sequence[str]) -> list[str]:
        """Start this command automatically from now on, in place of an earlier one.

        Returns:
            The commands that the user still has to run.

        Raises:
            UsageError: a file cannot be written.
        """
        try:
            for folder in (self.log.parent, self._file.parent):
                folder.mkdir(parents=True, exist_ok=True)
            for path, text in self.texts(command).items():
                write_whole(path, text.encode(), 0o600)
        except OSError as error:
            place = error.filename or self._file
            raise UsageError(f"{place}: {error.strerror or error}") from None
        if self._is_mac:
            return self._bootstrap()
        unit = self._file.name
        words = (("daemon-reload",), ("enable", unit), ("restart", unit))
        return self._run_failing(
            *(("systemctl", "--user", *words_of_command) for words_of_command in words)
        )

    def uninstall(self) -> list[str]:
        """Stop the command, and no longer start it automatically.

        Returns:
            The commands that the user still has to run.

        Raises:
            UsageError: nothing is installed.
        """
        if not self.installed:
            raise UsageError("nothing is installed", hint=f"mlx-tools {self.name} install")
        stops: tuple[str, ...] = ("systemctl", "--user", "disable", "--now", self._file.name)
        if self._is_mac:
            stops = ("launchctl", "bootout", self._target)
        failed_commands = self._run_failing(stops)
        for path in self.texts(()):
            path.unlink(missing_ok=True)
        return failed_commands

    def _bootstrap(self) -> list[str]:
        """Start the agent in place of an older one.

        Returns:
            The commands that the user still has to run.
        """
        # A loaded agent cannot be loaded again.
        self.run(("launchctl", "bootout", self._target))
        start = ("launchctl", "bootstrap", *self._agent)
        for tries in range(TRIES):
            if tries:
                self.sleep(PAUSE)
            has_started = self.run(start)
            # launchd may report success without knowing the agent, or an error although it does
            if self.run(("launchctl", "print", self._target)) and has_started:
                return []
        return [shlex.join(start)]

    @property
    def _target(self) -> str:
        """The agent's name for launchd."""
        return f"gui/{os.getuid()}/{self.label}"

    @property
    def _service(self) -> Path:
        return self._file.with_suffix(".service")

    @property
    def _is_mac(self) -> bool:
        return self.platform == "darwin"

    @property
    def _file(self) -> Path:
        """The file that the system reads."""
        if self._is_mac:
            return self.home / "Library" / "LaunchAgents" / f"{self.label}.plist"
        config_home = self.environ.get("XDG_CONFIG_HOME")
        folder = (Path(config_home) if config_home else self.home / ".config") / "systemd" / "user"
        return folder / f"{self.label}.{'timer' if self.interval else 'service'}"

    @property
    def log(self) -> Path:
        """The file with the command's output."""
        return state_dir(self.environ) / "logs" / f"{self.name}.log"

    @property
    def _agent(self) -> tuple[str, str]:
        """The domain of launchd, and the file of the agent."""
        return f"gui/{os.getuid()}", str(self._file)

    def _run_failing(self, *commands: tuple[str, ...]) -> list[str]:
        """Run commands; return those that failed."""
        return [shlex.join(command) for command in commands if not self.run(command)]


def make_launch_agent(
    label: str, command: Sequence[str], log: Path, interval: int, variables: Mapping[str, str]
) -> str:
    """Return a launchd agent for a command that keeps running, or runs at intervals.

    If a Mac sleeps at the time of a run, the run follows once it wakes.
    """
    minutes = [{"Minute": minute} for minute in range(0, 60, interval)] if interval else []
    timer = {"StartCalendarInterval": minutes, "StandardOutPath": str(log)}
    service = {"KeepAlive": {"SuccessfulExit": False}, "ThrottleInterval": 30}
    agent = {
        "Label": label,
        "ProgramArguments": [*command],
        "EnvironmentVariables": {**variables},
        "RunAtLoad": True,
        "StandardErrorPath": str(log),
        **(timer if interval else service),
    }
    return plistlib.dumps(agent).decode()


def make_systemd_unit(
    command: Sequence[str], interval: int, variables: Mapping[str, str] | None = None
) -> str:
    """Return a systemd unit for a command that keeps running, or that a timer starts."""
    lines = (f'Environment="{_format_assignment(n, v)}"\n' for n, v in (variables or {}).items())
    environment = "".join(lines)
    words = " ".join(f'"{_escape(word)}"' for word in command)
    # exit codes 1 and 4 are no failures: a run stopped, or waits for a person (`schedule runs`)
    kind = (
        "Type=oneshot\nSuccessExitStatus=1 4" if interval else "Restart=on-failure\nRestartSec=30"
    )
    install_section = "" if interval else "\n[Install]\nWantedBy=default.target\n"
    return f"""\
[Unit]
Description=mlx-tools

[Service]
{environment}ExecStart={words}
{kind}
{install_section}"""


def make_systemd_timer(interval: int) -> str:
    """Return a systemd timer that starts the unit of its name every few minutes."""
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


def _format_assignment(name: str, value: str) -> str:
    """Return an assignment for the quotes of a unit.

    There a unit does not replace variables.
    """
    marks = (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"))
    for plain, escaped in marks:
        value = value.replace(plain, escaped)
    return f"{name}={value}"


def _read_agent_variables(text: str) -> dict[str, str]:
    """Return the variables in an agent's file.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        variables = plistlib.loads(text.encode()).get("EnvironmentVariables", {})
    except Exception as error:  # errors of expat, and others
        raise ValueError(str(error)) from None
    return variables if isinstance(variables, dict) else {}


def _read_unit_variables(text: str) -> dict[str, str]:
    """Return the variables of a unit that `make_systemd_unit` wrote."""
    variables = {}
    for name, value in re.findall(r'(?m)^Environment="(\w+)=((?:[^"\\]|\\.)*)"$', text):
        variables[name] = re.sub(r"\\(.)", r"\1", value).replace("%%", "%")
    return variables


def _escape(word: str) -> str:
    """Return a word for the quotes of a unit."""
    marks = (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$"), ("\n", "\\n"))
    for plain, escaped in marks:
        word = word.replace(plain, escaped)
    return word
