"""``scripts/mac_check.sh``, run with stand-ins for the programs of a Mac."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "mac_check.sh"

PROGRAMS = {
    "uname": "echo Darwin",
    "sw_vers": "echo 'ProductVersion: 15.6'",
    "sysctl": "echo 17179869184",
    "csrutil": "echo enabled",
    "xcode-select": "echo /Library/Developer/CommandLineTools",
    "scutil": "echo 'Alices-Mac'",
    # A second takes no time; where the script waits for its tool, it is as long as the tool needs.
    "sleep": """
tool="$(cat "$STATE/folder" 2>/dev/null)" || exit 0
until [ -s "$tool/sleeper.pid" ]; do /bin/sleep 0.05; done
""",
    "curl": "exit 0",
    "log": "exit 0",
    "pmset": "echo caffeinate",
    "pbcopy": 'cat >"${0%/*}/../state/clipboard"',
    "pbpaste": 'cat "$STATE/clipboard"',
    "launchctl": '[ -f "$STATE/agent" ] && echo "org.mlx-tools.schedule PATH state = running"',
    "sandbox-exec": """
case "$*" in
  *out.d/f* | *mv\\ *) [ -f "$STATE/leaks" ] && cat "$(dirname "$STATE")/secret"; exit 1 ;;
  *) [ ! -f "$STATE/refuses" ] || { echo 'Abort trap: 6' >&2; exit 134; } ;;
esac
""",
    # of Python only what a Mac alone has is left out
    "python": """
if [ "$1" = - ] && [ "$#" = 2 ] && [ "${2##*/}" = in ]; then cat >/dev/null; exit 0; fi
exec "$PYTHON" "$@"
""",
    "mlx-tools": """
case "$*" in
  "doctor --json") echo '{"checks": [{"name": "sandbox", "status": "ok", "detail": ""}]}' ;;
  doctor*) echo "ok    model: smollm2-135m, at $HOME/models of $(id -un)" ;;
  *'"a.txt"'*) echo hello ;;
  *'"ls"'*/IN\\ * | *status*) echo a.txt ;;
  *CAF*) echo accents ;;
  "tools add"*) dirname "$(dirname "$3")" >"$STATE/folder" ;;
  *sleeper*)
    pid=999999999
    if [ -f "$STATE/leaves" ]; then /bin/sleep 611 </dev/null >/dev/null 2>&1 & pid=$!; fi
    echo "$pid" >"$(cat "$STATE/folder")/sleeper.pid" ;;
  "schedule install"*) : >"$STATE/agent" ;;
  "schedule uninstall"*) rm "$STATE/agent" ;;
esac
""",
}


def run(
    folder: Path, *words: str, shell: str = "sh", faults: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs the script on a Mac that is played by stand-ins, some of them with faults."""
    programs, state = folder / "bin", folder / "state"
    for made in (programs, state, folder / "tmp"):
        made.mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    for fault in faults:
        (state / fault).touch()
    (folder / "secret").write_text("outside-text hidden-text\n", encoding="utf-8")
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHON": sys.executable,
        "STATE": str(state),
        "PY": str(programs / "python"),
        "MT": str(programs / "mlx-tools"),
        "TMPDIR": str(folder / "tmp"),
    }
    done = subprocess.run(
        [shell, str(SCRIPT), *words],
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert list((folder / "tmp").iterdir()) == []
    return done


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
def test_each_shell_of_a_mac_can_read_the_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is missing")
    subprocess.run([shell, "-n", str(SCRIPT)], check=True)


@pytest.mark.skipif(sys.platform == "darwin", reason="this is a Mac")
def test_elsewhere_it_says_that_it_is_for_a_mac() -> None:
    done = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "mac_check: this is for macOS\n")


@pytest.mark.heavy
@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
def test_on_a_mac_that_is_as_it_should_be_everything_holds(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is missing")
    done = run(tmp_path / "it", "--yes", shell=shell)
    assert "FALSE" not in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    assert "23 hold, 0 do not" in done.stdout
    assert done.stderr == ""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("refuses", "a program starts under the profile: Abort trap: 6"),
        ("leaks", "a file outside is not read"),
        ("leaks", "a hidden file stays hidden if its folder is renamed"),
        ("leaves", "what a tool started ends with the caller"),
    ],
)
def test_a_fault_is_told_and_ends_with_exit_code_1(tmp_path: Path, fault: str, said: str) -> None:
    done = run(tmp_path / "it", "--quick", faults=(fault,))
    assert done.returncode == 1
    assert f"FALSE {said}" in done.stdout


@pytest.mark.heavy
def test_the_report_names_no_person_machine_or_folder(tmp_path: Path) -> None:
    done = run(tmp_path / "it", "--quick", faults=("refuses",))
    for name in (str(tmp_path), str(ROOT), "Alices-Mac", socket.gethostname()):
        assert len(name) < 3 or name not in done.stdout, name
    assert "~/models" in done.stdout
    if getpass.getuser() != "root":
        assert getpass.getuser() not in done.stdout
