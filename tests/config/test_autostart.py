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

from mlx_tools.app.autostart import Autostart, Starter, SystemAnswer, starters
from mlx_tools.errors import UsageError

COMMAND = ("/opt/a b/mlx-tools", "serve", "--model", '100% "mine" $HOME \\')
THEIRS = "MAILTO=me\n0 5 * * * backup 10\\%\n"


class Machine:
    """Runs nothing: remembers the commands, and keeps a crontab."""

    def __init__(self, code: int = 0, crontab: str | None = None) -> None:
        self.ran: list[str] = []
        self.code, self.crontab = code, crontab

    def __call__(self, command: Sequence[str], text: str) -> SystemAnswer:
        self.ran.append(shlex.join(command))
        if tuple(command) == ("crontab", "-l"):
            none = SystemAnswer(1, err="no crontab for me\n")
            return none if self.crontab is None else SystemAnswer(0, self.crontab)
        if tuple(command) == ("crontab", "-") and not self.code:
            self.crontab = text
        return SystemAnswer(self.code)


def made(home: Path, starter: Starter, machine: Machine, every: int = 0) -> Autostart:
    environ = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    return Autostart(
        name="it", every=every, starter=starter, home=home, environ=environ, run=machine
    )


def written(home: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in home.rglob("org.mlx-tools.it.*")}


@pytest.mark.parametrize("every", [0, 5])
def test_on_a_mac_it_is_an_agent_of_launchd(tmp_path: Path, every: int) -> None:
    machine = Machine()
    assert made(tmp_path, "launchd", machine, every).install(COMMAND) == []
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
    assert made(tmp_path, "systemd", machine, every).install(COMMAND) == []
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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own check")
def test_systemd_takes_its_units(tmp_path: Path) -> None:
    true = str(shutil.which("true"))
    made(tmp_path, "systemd", Machine(), 5).install((true, "a b", "100%"))
    timer = next(tmp_path.rglob("*.timer"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(timer)],
        capture_output=True,
        text=True,
        check=False,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert "org.mlx-tools" not in checked.stderr and checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("theirs", [None, THEIRS])
def test_without_systemd_it_is_a_line_of_cron_beside_those_that_were_there(
    tmp_path: Path, theirs: str | None
) -> None:
    machine = Machine(crontab=theirs)
    autostart = made(tmp_path, "cron", machine, 5)
    for _ in range(2):  # the second time takes the place of the first
        assert autostart.install(COMMAND) == []
        table = str(machine.crontab)
        line = table.removeprefix(theirs or "")
        assert table == (theirs or "") + line and line.count("\n") == 1
    fields = line.split(" ", 5)
    assert fields[:5] == ["*/5", "*", "*", "*", "*"]
    shell = fields[5].replace("\\%", "%").partition(" >>")[0]
    assert tuple(shlex.split(shell)) == COMMAND
    assert autostart.installed and autostart.uninstall() == []
    assert machine.crontab == (theirs or "") and not autostart.installed


def test_a_crontab_that_cannot_be_read_is_not_written_over(tmp_path: Path) -> None:
    class Locked(Machine):
        def __call__(self, command: Sequence[str], text: str) -> SystemAnswer:
            self.ran.append(command[-1])
            return SystemAnswer(1, err="crontab: you are not allowed to use this program")

    machine = Locked()
    with pytest.raises(UsageError, match="neither systemd nor cron"):
        made(tmp_path, "cron", machine, 5).install(COMMAND)
    assert "-" not in machine.ran


def test_which_of_them_there_is_is_found_by_asking() -> None:
    assert starters("darwin", Machine(code=1)) == ("launchd",)
    assert starters("linux", Machine())[0] == "systemd"
    assert starters("linux", Machine(code=1))[0] == "cron"


def test_what_the_system_refuses_is_left_to_the_user(tmp_path: Path) -> None:
    refusing = Machine(code=1, crontab="")
    systemd = made(tmp_path, "systemd", refusing)
    assert systemd.install(COMMAND)[0] == "systemctl --user daemon-reload"
    (told,) = made(tmp_path, "cron", refusing, 5).install(COMMAND)
    assert told.startswith("crontab -e, with this line: */5 ")


@pytest.mark.parametrize("starter", ["launchd", "systemd"])
def test_uninstalled_the_files_are_gone(tmp_path: Path, starter: Starter) -> None:
    autostart = made(tmp_path, starter, Machine(), 5)
    with pytest.raises(UsageError, match="nothing is installed"):
        autostart.uninstall()
    autostart.install(COMMAND)
    assert autostart.uninstall() == []
    assert written(tmp_path) == {}
