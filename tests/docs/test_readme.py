"""Every example in the documentation is run, and does what the page shows.

A page is Markdown. Its fenced blocks are taken in order; those under one second-level heading share
a folder and an environment, so that a tour can build on itself.

- ``console``: each line that starts with ``$`` is a command for bash. It must end with exit code 0,
  and what the page shows under it must come out (standard output and standard error together). A
  line ``...`` there stands for any lines, ``…`` within a line for any text. Where the page shows
  nothing under a command, only its exit code counts. Lines that start with ``#`` right above a
  command are comments on it. Behind a command there is none: see ``test_commands.py``.
- ``python``: a program that must end without an error.
- ``toml``, ``json``: must parse. ``mermaid``, ``text``: shown only.

A comment on the line before a fence says what differs:

- ``<!-- file: NAME -->``: the block is written to that file of the section's folder, not run. The
  file's folder is made.
- ``<!-- exit: N -->``: the last command ends with this exit code.
- ``<!-- stays: WHY -->``: the block is one command that runs until the section ends. What the page
  shows under it is awaited before the next block is run.
- ``<!-- scripted: WHY -->``: the block is run with a scripted model only, never with a real one.
- ``<!-- not run: WHY -->``: the block is left out, and this is why.

The pages speak of a server at 127.0.0.1:8080. Here that address stands for the real server of the
tests, which commands find in their configuration, as a user's would, with what the shipped verdict
says of its model; a section without a command that asks a model gets none. Sections that stand in
``scripted_sections.py`` get a server that writes what stands there. So the README's first things
are run by default; the heavy tests run those that a small model can do with the real one too. The
gateway at 127.0.0.1:8321 gets a free port.

A section that installs something has an environment of its own, in which it finds this package and
what it stands on. Its ``pip`` is pip, told to ask no index and to build with what is here.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from mlx_tools.testing import ScriptedServer
from tests.docs.scripted_sections import SCRIPTS
from tests.forked import Forked, Forks, forks, write_program
from tests.ports import free_port
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mlx_tools"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN_ADDRESS = "127.0.0.1:8080"
SHOWN_GATEWAY = "127.0.0.1:8321"
SECONDS = 300
SHORT = 2
"""Commands of a section that is run by default; every one starts Python anew."""

RUN = {"console", "python"}
PARSED = {"json": json.loads, "toml": tomllib.loads}
SHOWN = {"js", "mermaid", "text", "yaml"}

NEEDS_MODEL = re.compile(
    rf"mlx-tools (?:ask|chat|doctor|propose|golden record)\b|{re.escape(SHOWN_ADDRESS)}"
    f"|{re.escape(SHOWN_GATEWAY)}"
)
INSTALLS = re.compile(r"^\$ pip install ", re.MULTILINE)
NO_SERVER = "127.0.0.1:9"
VERDICT = json.loads((ROOT / "config" / "verdicts" / "smollm2-135m.json").read_text("utf-8"))
MODEL_SETTINGS = {
    "MLX_TOOLS_MODEL_STRATEGY": VERDICT["strategy"],
    "MLX_TOOLS_TOTAL_TIMEOUT_MS": "600000",
}
"""A server at an address does not say which model it runs. And the machine of the tests may have
more to do than a person's."""
NOTE = re.compile(r"<!-- (file|exit|stays|scripted|not run): (.+?) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, what it is, what it holds, and the notes before it."""

    line: int
    kind: str
    body: str
    notes: dict[str, str]

    @property
    def needs_model(self) -> bool:
        if self.kind not in RUN or "not run" in self.notes:
            return False
        return NEEDS_MODEL.search(self.body) is not None


@dataclass
class Section:
    """The blocks under one second-level heading of a page, which the name begins with."""

    name: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return any(b.kind in RUN and not {"not run", "file"} & set(b.notes) for b in self.blocks)

    @property
    def needs_model(self) -> bool:
        return any(block.needs_model for block in self.blocks)

    @property
    def installs(self) -> bool:
        return any(b.kind == "console" and INSTALLS.search(b.body) for b in self.blocks)

    @property
    def is_long(self) -> bool:
        return sum(len(commands(b.body)) for b in self.blocks if b.kind == "console") > SHORT

    @property
    def for_a_small_model(self) -> Section:
        """The section without the blocks that a scripted model is needed for."""
        blocks = [one for one in self.blocks if not {"scripted", "stays"} & set(one.notes)]
        return replace(self, blocks=blocks)


@dataclass(frozen=True)
class Command:
    """A command of a ``console`` block, with what the page shows under it."""

    text: str
    shown: str


def sections(page: str, name: str = "") -> list[Section]:
    """The sections of a page that has this name. A fence that is never closed is a fault."""
    found = [Section(f"{name}: ")]
    lines = iter(enumerate(page.split("\n"), start=1))
    notes: dict[str, str] = {}
    for number, line in lines:
        if fence := re.fullmatch(r" *(`{3,})(\w*)", line):
            body = []
            for _, inside in lines:
                if inside.strip() == fence[1]:
                    break
                body.append(inside)
            else:
                raise AssertionError(f"line {number}: the fence is not closed")
            found[-1].blocks.append(Block(number, fence[2], "\n".join(body) + "\n", notes))
            notes = {}
        elif noted := NOTE.findall(line):
            notes |= dict(noted)
        elif line.startswith("## "):
            found.append(Section(f"{name}: {line.removeprefix('## ')}"))
        elif line.strip():
            assert not notes, f"line {number}: a note must stand right before its fence"
    return found


def sections_of(page: Path) -> list[Section]:
    return sections(page.read_text(encoding="utf-8"), page.stem)


def first_things() -> Section:
    """The section of the README that shows the first things to do."""
    (found,) = (one for one in sections_of(PAGES[0]) if one.name.endswith("first things"))
    return found


def commands(body: str) -> list[Command]:
    """The commands of a ``console`` block; a backslash at a line's end continues a command."""
    found: list[tuple[list[str], list[str]]] = []
    without_comments = re.sub(r"^(?:# .*\n)+(?=\$ )", "", body, flags=re.MULTILINE)
    for line in without_comments.removesuffix("\n").split("\n"):
        if found and not found[-1][1] and found[-1][0][-1].endswith("\\"):
            found[-1][0].append(line)
        elif line.startswith("$ "):
            found.append(([line.removeprefix("$ ")], []))
        else:
            assert found, f"a console block starts with a command, not with {line!r}"
            found[-1][1].append(line)
    return [Command("\n".join(text), "\n".join(shown).strip("\n")) for text, shown in found]


def matches(shown: str, output: str) -> bool:
    """Return True if the output is what the page shows, its ``...`` and ``…`` taken as any text."""
    pattern = ""
    for line in shown.split("\n"):
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.rstrip().split("…")) + r"\n"
    text = "".join(f"{line.rstrip()}\n" for line in output.strip("\n").split("\n"))
    return re.fullmatch(pattern, text) is not None


@dataclass(frozen=True)
class Runner:
    """Runs blocks in a folder of their own, with nothing of the developer's settings.

    ``gateway`` is the address that stands for the gateway's, ``staying`` are the commands that run
    until the section ends.
    """

    folder: Path
    address: str
    gateway: str
    settings: Mapping[str, str]
    bin: Path
    forks: Forks
    staying: list[Forked] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        home = self.folder.parent / "home"
        home.mkdir(exist_ok=True)
        places = [self.bin, Path(sys.executable).parent]
        return {
            "HOME": str(home),
            "PATH": os.pathsep.join([*map(str, places), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "MLX_TOOLS_BACKEND_URL": f"http://{self.address}",
            "MLX_TOOLS_GATEWAY_PORT": self.gateway.rpartition(":")[2],
            "COLUMNS": "100",
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
        } | self.settings

    def here(self, text: str) -> str:
        """The text of a page with the addresses of this run."""
        return text.replace(SHOWN_ADDRESS, self.address).replace(SHOWN_GATEWAY, self.gateway)

    def shown(self, text: str) -> str:
        """The output of this run with the addresses of the page."""
        return text.replace(self.address, SHOWN_ADDRESS).replace(self.gateway, SHOWN_GATEWAY)

    def execute(self, *command: str) -> tuple[int, str]:
        done = subprocess.run(
            [self.here(part) for part in command],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            text=True,
        )
        return done.returncode, self.shown(done.stdout)

    def run(self, block: Block) -> None:
        if "file" in block.notes:
            path = self.folder / block.notes["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.here(block.body), encoding="utf-8")
        elif "stays" in block.notes:
            self.start(block)
        elif block.kind == "python":
            where = {"folder": self.folder, "environ": self.environment()}
            program = self.forks.start(code=self.here(block.body), **where)
            written = b"".join(program.communicate(SECONDS)).decode()
            assert program.returncode == 0, f"line {block.line}:\n{written}"
        elif block.kind == "console":
            self.run_console(block)

    def start(self, block: Block) -> None:
        """Start the command of a block that stays, and wait for what the page shows under it."""
        (command,) = commands(block.body)
        program, *arguments = shlex.split(self.here(command.text))
        assert program == "mlx-tools", f"line {block.line}: only mlx-tools can stay"
        where = {"folder": self.folder, "environ": self.environment()}
        self.staying.append(self.forks.start(*arguments, **where))
        output, stderr = b"", self.staying[-1].stderr.fileno()
        while not matches(command.shown, self.shown(output.decode())):
            ready = select.select([stderr], [], [], SECONDS)[0]
            more = os.read(stderr, 1 << 16) if ready else b""
            assert more, f"line {block.line}: this is not shown:\n{output.decode()}"
            output += more

    def stop(self) -> None:
        """End the commands that stay."""
        for program in self.staying:
            program.send_signal(signal.SIGTERM)
            program.communicate(SECONDS)

    def run_console(self, block: Block) -> None:
        todo = commands(block.body)
        for command in todo:
            expected = int(block.notes.get("exit", "0")) if command is todo[-1] else 0
            code, output = self.execute("bash", "-c", command.text)
            told = f"line {block.line}: {command.text}\nexit code {code}, output:\n{output}"
            assert code == expected, told
            if command.shown:
                assert matches(command.shown, output), f"{told}\nthe page shows:\n{command.shown}"


def to_run() -> Iterator[object]:
    for page in PAGES:
        for section in sections_of(page):
            if not section.runs:
                continue
            is_first = page == PAGES[0]
            real = section.needs_model and section.name not in SCRIPTS
            marks = [pytest.mark.real, pytest.mark.heavy] if real else []
            if not is_first and (real or section.installs or section.is_long):
                marks = [*marks, pytest.mark.slow]
            yield pytest.param(section, id=section.name, marks=marks)


PIP = """
import sys
from pip._internal.cli.main import main
offline = ["--no-index", "--no-build-isolation"] if sys.argv[1] == "install" else []
sys.exit(main([*sys.argv[1:2], *offline, *sys.argv[2:]]))
"""


@pytest.fixture
def own_environment(tmp_path: Path) -> Iterator[tuple[Path, Forks]]:
    """The programs of an environment into which a page may install something: it finds all that the
    environment of the tests has, and nothing that is installed here is found there."""
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    outer = f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n"
    Path(paths["purelib"], "outer.pth").write_text(outer, encoding="utf-8")
    scripts = Path(paths["scripts"])
    python = str(scripts / "python")
    write_program(scripts / "pip", "", PIP, python)
    started = Forks(python)
    yield scripts, started
    started.close()


@pytest.fixture
def runner(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Runner]:
    """Makes the runner of a section, with the real model's server or the one at ``url``."""

    def make(section: Section, url: str = "") -> Runner:
        folder = tmp_path / "work"
        folder.mkdir()
        address, settings = NO_SERVER, {}
        gateway = f"127.0.0.1:{free_port()}"
        if url:
            address = url.removeprefix("http://")
        elif section.needs_model:
            address = request.getfixturevalue("real_server").removeprefix("http://").rstrip("/")
            settings = MODEL_SETTINGS
        scripts, made = tmp_path / "bin", forks()
        if section.installs:
            scripts, made = request.getfixturevalue("own_environment")
        scripts.mkdir(exist_ok=True)
        made.write_command(scripts / "mlx-tools")
        return Runner(folder, address, gateway, settings, scripts, made)

    return make


def run_blocks(section: Section, runner: Runner) -> list[Block]:
    """Run the blocks of a section, and return those that ran; or fail."""
    blocks = [block for block in section.blocks if "not run" not in block.notes]
    try:
        for block in blocks:
            runner.run(block)
    finally:
        runner.stop()
    return blocks


@pytest.mark.parametrize("section", list(to_run()))
def test_the_examples_of_a_section_do_what_the_page_shows(
    section: Section, runner: Callable[..., Runner]
) -> None:
    with ExitStack() as stack:
        url = ""
        if script := SCRIPTS.get(section.name):
            server = stack.enter_context(ScriptedServer(*script))
            url = server.url
        assert run_blocks(section, runner(section, url))
        assert not script or len(server.prompts) == len(script), "the model was asked less"


@pytest.mark.real
@pytest.mark.heavy
def test_the_first_things_are_done_by_a_small_real_model(runner: Callable[..., Runner]) -> None:
    section = first_things().for_a_small_model
    assert run_blocks(section, runner(section))


def test_every_script_is_that_of_a_section() -> None:
    names = {one.name for page in PAGES for one in sections_of(page) if one.needs_model}
    assert SCRIPTS.keys() - names == set()


def test_the_page_on_tools_adds_one_in_each_of_the_four_ways() -> None:
    blocks = [
        block
        for section in sections_of(ROOT / "docs" / "tools.md")
        for block in section.blocks
        if "not run" not in block.notes
    ]
    done = "\n".join(block.body for block in blocks)
    for way in (
        "@tool(",
        "$ pip install ./",
        "$ mlx-tools tools new ",
        "$ mlx-tools tools add tides",
    ):
        assert way in done
    files = {block.notes.get("file") for block in blocks}
    assert {f"tides/{n}" for n in ("config.json", "tool_definition.json", "execute.py")} <= files


@table("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_is_of_a_known_kind_and_parses(page: Path) -> None:
    for section in sections_of(page):
        for block in section.blocks:
            assert block.kind in RUN | SHOWN | set(PARSED), f"line {block.line}: {block.kind!r}"
            if block.kind in PARSED:
                PARSED[block.kind](block.body)
            if block.kind == "python":
                compile(block.body, str(page), "exec")
            if block.kind == "console":
                assert commands(block.body), f"line {block.line}: no command"


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, for links."""
    outside = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@table("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    missing = []
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text):
        name, _, heading = link.partition("#")
        if "://" in link:
            continue
        file = page.parent / name if name else page
        known = file.exists() and (
            not heading or heading in anchors(file.read_text(encoding="utf-8"))
        )
        if not known:
            missing.append(link)
    assert missing == []


@table("page", PAGES, ids=lambda page: page.stem)
def test_every_file_of_the_project_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    rooms = "|".join(one.name for folder in (ROOT, PACKAGE) for one in folder.iterdir())
    named = re.findall(rf"`((?:{rooms})/[\w/.-]+\.(?:py|toml|json|txt))`", text)
    missing = {name for name in named if not any((f / name).is_file() for f in (ROOT, PACKAGE))}
    assert missing == set()


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert [name for name in pages if f"]({name})" not in index] == []
