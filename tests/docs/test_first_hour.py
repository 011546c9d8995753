"""The first hour of a new user: installed into an empty home by either installer, then every
command of the README and of the page for Macs, in order, as it stands there.

The model is a stand-in, the hub serves the embedded model under the names of larger ones, and git,
make, brew and what starts services by itself are stand-ins. The rest is what a user gets: packages
come from the index, so this needs a network.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mlx_tools.testing import ScriptedServer, answer, call
from tests.backends.loopback import Connection, Server
from tests.docs.scripted_sections import SCRIPTS
from tests.docs.test_readme import ROOT, Block, Command, commands, matches, sections_of
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.real]

SECONDS = 900
PAGES = (ROOT / "README.md", ROOT / "docs" / "macos.md")
LEFT_OUT = ("For developers",)
"""Sections whose commands run the tests."""

PROGRAMS = {
    # `git clone URL mlx-tools` copies this checkout; anything else is git's
    "git": 'if [ "$1" = clone ]; then exec "$GIT" clone -q "$CHECKOUT" "$3"; fi; exec "$GIT" "$@"',
    "brew": '[ "$1" = install ] && ln -sf "$TOOLS/$2" "$STAND_INS/$2"',
    "xcode-select": "exit 0",
    "launchctl": "exit 0",
    "systemctl": "exit 0",
}


def solve(prompt: str) -> str:
    """Play a model that calls the calculator for the first question, and then answers."""
    last = prompt.rpartition("17 * 23")[2]
    return answer("17 * 23 is 391.") if "391" in last else call("calculator", expression="17 * 23")


@contextmanager
def hub(model: Path) -> Iterator[str]:
    """A hub that has the files of one model under every name."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    files = {path.name: path for path in model.iterdir() if path.is_file()}

    def handle(request: Connection) -> None:
        path, name = request.path.partition("?")[0], request.path.partition("?")[0].split("/")[-1]
        if "/tree/" in path:
            entries = [
                {"type": "file", "path": n, "size": p.stat().st_size, "oid": _oid(n)}
                for n, p in files.items()
            ]
            request.answer(200, entries)
        elif path.startswith("/api/models/"):
            listed = [{"rfilename": n, "size": p.stat().st_size} for n, p in files.items()]
            request.answer(200, {"id": "org/model", "sha": commit, "siblings": listed})
        elif "/resolve/" in path and name in files:
            size = files[name].stat().st_size
            head = f'ETag: "{_oid(name)}"\r\nX-Repo-Commit: {commit}\r\nContent-Length: {size}\r\n'
            text = b"" if request.method == "HEAD" else files[name].read_bytes()
            request.answer(200, text, "text/plain", head)
        else:
            request.answer(404, {"error": "no"}, head="X-Error-Code: EntryNotFound\r\n")

    server = Server(handle)
    try:
        yield server.url
    finally:
        server.stop()


def _oid(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()


class Home:
    """An empty home, in which commands are typed into a shell one after the other."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder / "home"
        self.work = self.folder / "work"
        (self.folder / "Documents" / "garden").mkdir(parents=True)
        self.work.mkdir()
        programs = folder / "programs"
        programs.mkdir()
        for name, text in PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            (programs / name).chmod(0o755)
        keep = {n: v for n, v in os.environ.items() if n.startswith(("PIP_", "UV_", "SSL_"))}
        self.environ = keep | {
            "HOME": str(self.folder),
            "PATH": f"{programs}:{self.folder}/.local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "COLUMNS": "100",
            "GIT": str(shutil.which("git")),
            "CHECKOUT": str(ROOT),
            "STAND_INS": str(programs),
            **environ,
        }
        self.staying: list[subprocess.Popen[bytes]] = []
        self.done: list[str] = []

    def type(self, command: Command) -> None:
        """Type a command, wait for its end, and compare what it prints with the page."""
        shell = shutil.which("zsh") or shutil.which("bash") or "sh"
        done = subprocess.run(
            [shell, *(["-f"] if "zsh" in shell else []), "-c", command.text],
            cwd=self.work,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        told = f"{command.text}\nexit code {done.returncode}, output:\n{done.stdout[-4000:]}"
        assert done.returncode == 0, told
        output = done.stdout.replace(self.environ["MLX_TOOLS_GATEWAY_PORT"], "8321")
        assert not command.shown or matches(command.shown, output), told
        self.done.append(command.text)

    def start(self, command: Command) -> None:
        """Type a command that stays, and wait for what the page shows under it."""
        words = command.text.split()
        if words[:3] == ["mlx-tools", "models", "serve"]:
            words += ["--port", str(free_port())]
        process = subprocess.Popen(
            words, cwd=self.work, env=self.environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.staying.append(process)
        assert process.stdout is not None
        output, wanted = "", command.shown or "..."
        while not (output and matches(f"...\n{wanted}\n...", output)):
            assert select.select([process.stdout], [], [], SECONDS)[0], output
            piece = os.read(process.stdout.fileno(), 1 << 16)
            assert piece, f"{command.text} ended:\n{output}"
            output += piece.decode().replace(self.environ["MLX_TOOLS_GATEWAY_PORT"], "8321")
        self.done.append(command.text)

    def stop(self) -> None:
        """End the commands that stay, as Ctrl-C does."""
        for process in self.staying:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=SECONDS)
        self.staying.clear()

    def run(self, block: Block, installer: str) -> None:
        """Do what a block of a page says."""
        if "file" in block.notes:
            (self.work / block.notes["file"]).write_text(block.body, encoding="utf-8")
        elif block.kind == "python":  # a client of the gateway, which brings its own packages
            text = block.body.replace("8321", self.environ["MLX_TOOLS_GATEWAY_PORT"])
            subprocess.run([sys.executable, "-c", text], check=True, cwd=self.work)
        elif block.kind == "console":
            for command in commands(block.body):
                text = with_installer(command.text, installer)
                if "stays" in block.notes or re.search(r"until it is stopped", str(block.notes)):
                    self.start(Command(text, command.shown))
                else:
                    self.type(Command(text, command.shown))


def with_installer(command: str, installer: str) -> str:
    """A command as a user of this installer types it."""
    if installer == "pipx":
        command = command.replace("brew install uv", "brew install pipx")
        command = command.replace("uv tool install", "pipx install")
    return command


@pytest.fixture(scope="module")
def installers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with uv and pipx, each as its own maker installs it."""
    folder = tmp_path_factory.mktemp("installers") / "venv"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [uv, "venv", "--quiet", "--seed", "--python", sys.executable, folder], check=True
    )
    python = folder / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "uv", "pipx"], check=True)
    return folder / "bin"


@pytest.mark.parametrize("installer", ["uv", "pipx"])
def test_every_command_of_the_first_hour_works_as_it_is_written(
    tmp_path: Path, installers: Path, installer: str, real_model: Path
) -> None:
    with ExitStack() as stack:
        address = stack.enter_context(hub(real_model))
        home = Home(
            tmp_path,
            TOOLS=str(installers),
            MLX_TOOLS_GATEWAY_PORT=str(free_port()),
            MLX_TOOLS_CACHE_DIR=str(real_model.parents[1]),
            HF_HUB_CACHE=str(tmp_path / "hub"),
            HF_ENDPOINT=address,
            HF_HUB_DISABLE_XET="1",
        )
        home.type(Command(f"brew install {installer}", ""))
        for page in PAGES:
            for section in sections_of(page):
                if any(name in section.name for name in LEFT_OUT):
                    continue
                script = SCRIPTS.get(section.name, ()) if page == PAGES[0] else ()
                model = stack.enter_context(ScriptedServer(*(script or [solve] * 2_000)))
                home.environ["MLX_TOOLS_BACKEND_URL"] = model.url
                try:
                    for block in section.blocks:
                        print(section.name, block.line, flush=True)
                        home.run(again(block, home), installer)
                finally:
                    home.stop()
        assert len(home.done) > 25


def again(block: Block, home: Home) -> Block:
    """The block without what the other page had done already: cloning and installing."""
    if "git clone" in block.body and any("git clone" in one for one in home.done):
        kept = [line for line in block.body.split("\n") if not re.search("clone|install ", line)]
        return Block(block.line, block.kind, "\n".join(kept), block.notes)
    return block
