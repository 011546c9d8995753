"""The file that starts the gateway with a session, and the commands that make it known."""

from __future__ import annotations

import plistlib
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlx_tools.errors import UsageError
from mlx_tools.gateway.autostart import Autostart

COMMAND = ("/opt/a b/mlx-tools", "serve", "--model", '100% "mine" $HOME \\')


def made(home: Path, *, mac: bool, code: int = 0) -> tuple[Autostart, list[str]]:
    ran: list[str] = []

    def run(command: Sequence[str]) -> int:
        ran.append(shlex.join(command))
        return code

    environ = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    return Autostart(home=home, mac=mac, environ=environ, run=run), ran


def test_on_a_mac_it_is_an_agent_that_launchd_keeps(tmp_path: Path) -> None:
    autostart, ran = made(tmp_path, mac=True)
    assert autostart.install(COMMAND) == []
    agent = plistlib.loads(autostart.file.read_bytes())
    assert agent["ProgramArguments"] == list(COMMAND)
    assert agent["RunAtLoad"] is True
    assert [line.split()[1] for line in ran] == ["bootout", "bootstrap"]


def test_elsewhere_it_is_a_unit_of_systemd_with_every_word_as_it_is(tmp_path: Path) -> None:
    autostart, ran = made(tmp_path, mac=False)
    assert autostart.install(COMMAND) == []
    line = next(x for x in autostart.file.read_text().splitlines() if x.startswith("ExecStart="))
    words = line.removeprefix("ExecStart=").replace("$$", "$").replace("%%", "%")
    assert tuple(shlex.split(words)) == COMMAND
    assert [line.split()[2] for line in ran] == ["daemon-reload", "enable", "restart"]


def test_what_the_system_refuses_is_left_to_the_user(tmp_path: Path) -> None:
    autostart, _ = made(tmp_path, mac=False, code=1)
    assert autostart.install(COMMAND)[0] == "systemctl --user daemon-reload"


def test_uninstalled_the_file_is_gone(tmp_path: Path) -> None:
    autostart, ran = made(tmp_path, mac=True)
    with pytest.raises(UsageError):
        autostart.uninstall()
    autostart.install(COMMAND)
    assert autostart.uninstall() == []
    assert not autostart.file.exists()
    assert ran[-1].split()[1] == "bootout"
