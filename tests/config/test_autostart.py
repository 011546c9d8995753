"""What starts our commands by themselves, and the commands that make it known to the system."""

from __future__ import annotations

import configparser
import plistlib
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlx_tools.app.autostart import Autostart, systemd_unit
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
        name="it", every=every, platform=platform, home=home, environ=environ, run=machine
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
    assert [line.split()[1] for line in machine.ran] == ["bootout", "bootstrap"]


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
    unit = systemd_unit(("it", "a\nExecStartPre=b"), 0)
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
