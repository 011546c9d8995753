"""Starting of our commands by the system, and the commands that make them known to it."""

from __future__ import annotations

import configparser
import plistlib
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlx_tools.app.autostart import Autostart, make_systemd_unit
from mlx_tools.app.machine_checks import check_autostart
from mlx_tools.errors import UsageError

COMMAND = ("/opt/a b/mlx-tools", "serve", "--model", '100% "mine" $HOME \\')


class Machine:
    """Runs nothing: remembers the commands, and says whether they work."""

    def __init__(self, *, works: bool = True) -> None:
        self.ran: list[str] = []
        self.works = works

    def __call__(self, command: Sequence[str]) -> bool:
        self.ran.append(shlex.join(command))
        return self.works


def made(home: Path, platform: str, machine: Machine, every: int = 0) -> Autostart:
    environ = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    return Autostart(
        name="it", interval=every, platform=platform, home=home, environ=environ, run=machine
    )


def written(home: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in home.rglob("org.mlx-tools.it.*")}


@pytest.mark.parametrize("every", [0, 5])
def test_on_a_mac_it_is_an_agent_of_launchd(tmp_path: Path, every: int) -> None:
    machine = Machine()
    assert made(tmp_path, "darwin", machine, every).install(COMMAND) == []
    (text,) = written(tmp_path).values()
    agent = plistlib.loads(text.encode())
    assert agent["ProgramArguments"] == list(COMMAND)
    assert agent["RunAtLoad"] is True and ("KeepAlive" in agent) is not bool(every)
    assert [one["Minute"] for one in agent.get("StartCalendarInterval", ())] == (
        [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55] if every else []
    )
    assert [line.split()[1] for line in machine.ran] == ["bootout", "bootstrap", "print"]


VARIABLES = {
    "PATH": "/opt/homebrew/bin:/usr/bin",
    "XDG_STATE_HOME": '/x/a "b" 100%\\$y',
    "HF_HOME": "/models",
    "MLX_TOOLS_MODEL_NAME": "a/b",
    "MLX_TOOLS_LIMITS_MAX_TOKENS": "20000",
    "HTTPS_PROXY": "http://proxy:3128",
    "SSL_CERT_FILE": "/certificates.pem",
}
SECRETS = {
    "HF_TOKEN": "hf_secret",
    "MLX_TOOLS_GATEWAY_API_KEY": "k",
    "MLX_TOOLS_SESSIONS": "postgresql://me:pass@host/name",
    "MLX_TOOLS_BACKEND_URL": "http://me:pass@studio:8080",
    "ALL_PROXY": "http://me:pass@proxy:1",
}
OTHERS = {"XDG_RUNTIME_DIR": "/run", "EDITOR": "vi", "HF_EMPTY": "", "HF_LINES": "a\nb"}


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_it_gets_what_a_shell_has_of_folders_and_settings_and_no_secrets(
    tmp_path: Path, platform: str
) -> None:
    environ = {**VARIABLES, **SECRETS, **OTHERS}
    home = tmp_path / "home"
    options = {"platform": platform, "home": home, "run": Machine()}
    autostart = Autostart(name="it", environ={**environ, "XDG_CONFIG_HOME": str(home)}, **options)
    has = {**VARIABLES, "XDG_CONFIG_HOME": str(home)}
    assert autostart.variables == has
    assert autostart.left_out == sorted(SECRETS)
    assert not any(
        secret in "".join(autostart.texts(COMMAND).values()) for secret in ("pass@", "hf_secret")
    )
    if platform == "darwin":
        (text,) = autostart.texts(COMMAND).values()
        assert plistlib.loads(text.encode())["EnvironmentVariables"] == has


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_doctor_says_where_it_sees_other_folders_than_a_shell(
    tmp_path: Path, platform: str
) -> None:
    base = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / 'a "b" %'), "HF_HOME": "/m"}
    options = {"name": "it", "platform": platform, "home": tmp_path, "run": Machine()}
    before = Autostart(environ=base, **options)

    def known(words: Sequence[str]) -> str:
        return "state = running\n\tlast exit code = (never exited)\n"

    assert check_autostart(before, output=known) == []
    before.install(COMMAND)
    (check,) = check_autostart(before, output=known)
    assert check.status == "ok"
    (check,) = check_autostart(
        Autostart(environ={**base, "HF_HOME": "/other"}, **options), output=known
    )
    assert check.status == "warn" and "HF_HOME" in check.detail
    assert "mlx-tools it install" in (check.hint or "")
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("org.mlx-tools.it.*"))


@pytest.mark.parametrize(("refusals", "left"), [(0, 0), (2, 0), (3, 1)])
def test_launchd_is_asked_three_times_while_the_older_agent_ends(
    tmp_path: Path, refusals: int, left: int
) -> None:
    ran: list[str] = []
    slept: list[float] = []

    def run(command: Sequence[str]) -> bool:
        ran.append(command[1])
        return command[1] != "bootstrap" or ran.count("bootstrap") > refusals

    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    autostart = Autostart(
        name="it", platform="darwin", home=tmp_path, environ=environ, run=run, sleep=slept.append
    )
    assert len(autostart.install(COMMAND)) == left
    assert ran.count("bootstrap") == min(refusals + 1, 3)
    assert len(slept) == min(refusals, 2)


def test_an_agent_that_launchd_does_not_know_afterwards_is_left_to_the_user(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    autostart = Autostart(
        name="it",
        platform="darwin",
        home=tmp_path,
        environ=environ,
        run=lambda command: command[1] != "print",
        sleep=lambda seconds: None,
    )
    assert autostart.install(COMMAND)[0].startswith("launchctl bootstrap gui/")


@pytest.mark.parametrize("every", [0, 5])
def test_elsewhere_it_is_a_unit_of_systemd_with_every_word_as_it_is(
    tmp_path: Path, every: int
) -> None:
    machine = Machine()
    assert made(tmp_path, "linux", machine, every).install(COMMAND) == []
    units = written(tmp_path)
    line = next(
        x for x in units["org.mlx-tools.it.service"].splitlines() if x.startswith("ExecStart=")
    )
    words = line.removeprefix("ExecStart=").replace("$$", "$").replace("%%", "%")
    assert tuple(shlex.split(words)) == COMMAND
    told = "org.mlx-tools.it.timer" if every else "org.mlx-tools.it.service"
    assert [line.split()[2] for line in machine.ran] == ["daemon-reload", "enable", "restart"]
    assert machine.ran[-1].endswith(told) and set(units) == {told, "org.mlx-tools.it.service"}
    if every:
        timer = configparser.ConfigParser()
        timer.read_string(units[told])
        assert timer["Timer"]["oncalendar"] == "*:0/5"


def test_a_line_break_in_a_word_begins_no_line_of_a_unit() -> None:
    unit = make_systemd_unit(("it", "a\nExecStartPre=b"), 0)
    assert r'ExecStart="it" "a\nExecStartPre=b"' in unit.splitlines()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own check")
def test_systemd_takes_its_units(tmp_path: Path) -> None:
    true = str(shutil.which("true"))
    made(tmp_path, "linux", Machine(), 5).install((true, "a b", "100%"))
    timer = next(tmp_path.rglob("*.timer"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(timer)],
        capture_output=True,
        text=True,
        check=False,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert "org.mlx-tools" not in checked.stderr and checked.returncode == 0, checked.stderr


def test_what_the_system_refuses_is_left_to_the_user(tmp_path: Path) -> None:
    refused = made(tmp_path, "linux", Machine(works=False)).install(COMMAND)
    assert refused[0] == "systemctl --user daemon-reload" and len(refused) == 3


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_uninstalled_the_files_are_gone(tmp_path: Path, platform: str) -> None:
    autostart = made(tmp_path, platform, Machine(), 5)
    with pytest.raises(UsageError, match="nothing is installed"):
        autostart.uninstall()
    autostart.install(COMMAND)
    assert autostart.installed and autostart.uninstall() == []
    assert written(tmp_path) == {}
