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
- ``<!-- not run: WHY -->``: the block is left out, and this is why.

The pages speak of a server at 127.0.0.1:8080. Here that address stands for the real server of the
tests, which commands find in their configuration, as a user's would, with what the shipped verdict
says of its model; a section without a command that asks a model gets none. The README's tour is run
by default, on a server that plays the model's part; the heavy tests run it with the real model.

A section that installs something has an environment of its own, in which it finds this package and
what it stands on. Its ``pip`` is pip, told to ask no index and to build with what is here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mlx_tools.testing import ScriptedServer, answer, call
from tests.forked import Forks, forks, write_program
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mlx_tools"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN_ADDRESS = "127.0.0.1:8080"
SECONDS = 300
SHORT = 2
"""Commands of a section that is run by default; every one starts Python anew."""

RUN = {"console", "python"}
PARSED = {"json": json.loads, "toml": tomllib.loads}
SHOWN = {"js", "mermaid", "text", "yaml"}

NEEDS_MODEL = re.compile(
    rf"mlx-tools (?:ask|chat|doctor|propose|golden record)\b|{re.escape(SHOWN_ADDRESS)}"
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
NOTE = re.compile(r"<!-- (file|exit|not run): (.+?) -->")


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
    """The blocks under one second-level heading."""

    title: str
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
    def without_model(self) -> Section:
        """What of it can be run where no model is, for a tour in which every step stands alone."""
        return Section(self.title, [block for block in self.blocks if not block.needs_model])


@dataclass(frozen=True)
class Command:
    """A command of a ``console`` block, with what the page shows under it."""

    text: str
    shown: str


def sections(page: str) -> list[Section]:
    """The page's sections; a fence that is never closed is a fault."""
    found = [Section("")]
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
            found.append(Section(line.removeprefix("## ")))
        elif line.strip():
            assert not notes, f"line {number}: a note must stand right before its fence"
    return found


def tour() -> Section:
    """The section of the README that shows everything once."""
    (found,) = (s for s in sections(PAGES[0].read_text(encoding="utf-8")) if "tour" in s.title)
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
    """Whether the output is what the page shows, its ``...`` and ``…`` taken as any text."""
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
    """Runs blocks in a folder of their own, with nothing of the developer's settings."""

    folder: Path
    address: str
    settings: Mapping[str, str]
    bin: Path
    forks: Forks

    def environment(self) -> dict[str, str]:
        home = self.folder.parent / "home"
        home.mkdir(exist_ok=True)
        places = [self.bin, Path(sys.executable).parent]
        return {
            "HOME": str(home),
            "PATH": os.pathsep.join([*map(str, places), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "MLX_TOOLS_BACKEND_URL": f"http://{self.address}",
            "COLUMNS": "100",
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
        } | self.settings

    def execute(self, *command: str) -> tuple[int, str]:
        done = subprocess.run(
            [part.replace(SHOWN_ADDRESS, self.address) for part in command],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            text=True,
        )
        return done.returncode, done.stdout.replace(self.address, SHOWN_ADDRESS)

    def run(self, block: Block) -> None:
        if "file" in block.notes:
            path = self.folder / block.notes["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body.replace(SHOWN_ADDRESS, self.address), encoding="utf-8")
        elif block.kind == "python":
            code = block.body.replace(SHOWN_ADDRESS, self.address)
            where = {"folder": self.folder, "environ": self.environment()}
            program = self.forks.start(code=code, **where)
            written = b"".join(program.communicate(SECONDS)).decode()
            assert program.returncode == 0, f"line {block.line}:\n{written}"
        elif block.kind == "console":
            self.run_console(block)

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
        for section in sections(page.read_text(encoding="utf-8")):
            if section.runs:
                marks = [pytest.mark.real, pytest.mark.heavy] if section.needs_model else []
                # The README's tour does the like of these.
                if page != PAGES[0] and (
                    section.needs_model or section.installs or section.is_long
                ):
                    marks = [*marks, pytest.mark.slow]
                yield pytest.param(section, id=f"{page.stem}: {section.title}", marks=marks)


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
        return Runner(folder, address, settings, scripts, made)

    return make


def run_blocks(section: Section, runner: Runner) -> list[Block]:
    """What was run; or a failure."""
    blocks = [block for block in section.blocks if "not run" not in block.notes]
    for block in blocks:
        runner.run(block)
    return blocks


@pytest.mark.parametrize("section", list(to_run()))
def test_the_examples_of_a_section_do_what_the_page_shows(
    section: Section, runner: Callable[..., Runner]
) -> None:
    assert run_blocks(section, runner(section))


def test_the_tour_does_what_it_shows(runner: Callable[..., Runner]) -> None:
    """Another test runs it with the real model."""
    calculation = call("calculator", expression="17 * 23")
    room = call("area", width=3.5, height=4)
    script = (calculation, answer("It is 391."), room, answer("14 square metres."))
    with ScriptedServer(*script) as server:
        assert run_blocks(tour(), runner(tour(), server.url))
        assert len(server.prompts) == 4
        assert "391" in server.prompts[1] and "14.0" in server.prompts[3]


@pytest.mark.slow
def test_the_tour_does_what_it_shows_where_no_model_is(runner: Callable[..., Runner]) -> None:
    """Every way to add a tool is among its steps."""
    section = tour().without_model
    assert section.installs and not section.needs_model
    run_blocks(section, runner(section))


def test_the_tour_adds_a_tool_in_each_of_the_four_ways() -> None:
    done = "\n".join(b.body for b in tour().blocks if "not run" not in b.notes)
    for way in (
        "@tool(",
        "$ pip install ./",
        "$ mlx-tools tools new ",
        "$ mlx-tools tools add tides",
    ):
        assert way in done
    files = {block.notes.get("file") for block in tour().blocks}
    assert {f"tides/{n}" for n in ("config.json", "tool_definition.json", "execute.py")} <= files


@table("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_is_of_a_known_kind_and_parses(page: Path) -> None:
    for section in sections(page.read_text(encoding="utf-8")):
        for block in section.blocks:
            assert block.kind in RUN | SHOWN | set(PARSED), f"line {block.line}: {block.kind!r}"
            if block.kind in PARSED:
                PARSED[block.kind](block.body)
            if block.kind == "python":
                compile(block.body, str(page), "exec")
            if block.kind == "console":
                assert commands(block.body), f"line {block.line}: no command"


def anchors(page: str) -> set[str]:
    """What a link to a heading of the page may say behind its ``#``."""
    outside = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@table("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
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
