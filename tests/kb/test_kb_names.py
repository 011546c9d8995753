"""Dotted names in a question: what defines or documents them comes before what uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_tools.toolbox.kb import KnowledgeBase
from mlx_tools.toolbox.kb.chunks import defined_in
from mlx_tools.toolbox.kb.names import dotted_names
from tests.kb.shelf import paths, written

TESTS = "".join(
    f"def test_join_{n}(): assert os.path.join('a', '{n}') == f'a/{n}' and os.path.join\n\n"
    f"def test_glob_{n}(): assert [*pathlib.Path.glob('{n}')] and pathlib.Path.glob\n\n"
    f"def test_dumps_{n}(): assert json.dumps({n}) == json.dumps({n})\n\n"
    for n in range(40)
)
SHELF = {
    "tests/test_all.py": f"import os.path, pathlib, json\n\n{TESTS}",
    "tests/test_join.py": "import os\n\ndef join(): ...\n\ndef test(): os.path.join(1, os.path)\n",
    "posix.py": '"""Paths of POSIX; import os, and say os.path."""\n\ndef join(a, *p): ...\n',
    "pathlib.py": "class PurePath:\n    def name(self): ...\n\nclass Path(PurePath):\n"
    "    def glob(self, pattern): ...\n",
    "json/__init__.py": "def dumps(obj): ...\n",
    "glob.py": '"""Not that of pathlib."""\n\ndef glob(pattern): ...\n',
    "manual.html": "<h1>Common pathname manipulations</h1><dl><dt>os.path.join(path, *paths)¶"
    "</dt><dd>Goes from an absolute one on.</dd></dl>",
    "manual.rst": "Files\n=====\n\nclassmethod Path.glob(pattern)\n\n  of a pathlib object\n",
}


@pytest.mark.parametrize("more", [0, 2_100])
@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("os.path.join", {"manual.html", "posix.py"}),
        ("what does os.path.join() do?", {"manual.html", "posix.py"}),
        ("pathlib.Path.glob", {"pathlib.py", "manual.rst"}),
        ("Path.glob", {"pathlib.py", "manual.rst"}),
        ("json.dumps", {"__init__.py"}),
        ("JSON.Dumps", {"__init__.py"}),
    ],
)
def test_what_defines_or_documents_a_name_comes_before_tests(
    shelves: dict[int, KnowledgeBase], question: str, first: set[str], more: int
) -> None:
    base = shelves[more]
    for corpus in (None, "code"):
        found = paths(base, question, corpus=corpus)
        assert {*found[: len(first)]} == first, found
        assert found[len(first) :], "what uses it is found too"


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> dict[int, KnowledgeBase]:
    """The shelf alone, and beside more passages than a small knowledge base has."""
    folder = tmp_path_factory.mktemp("names")
    code = written(folder / "code", SHELF)
    lines = "".join(f"# {n}\n\n{'tea ' * 80}\n\n" for n in range(2_100))
    (folder / "more.md").write_text(lines)
    made = {more: KnowledgeBase(folder / f"{more}.sqlite3") for more in (0, 2_100)}
    made[2_100].add([folder / "more.md"], "more")
    for base in made.values():
        base.add([code], "code")
    return made


def test_a_definition_shows_its_own_passage(shelves: dict[int, KnowledgeBase]) -> None:
    (hit,) = shelves[0].search("json.dumps", limit=1)
    assert (hit.heading, hit.snippet) == ("def dumps", "def dumps(obj): ...")


def test_a_question_about_a_name_shows_what_answers_it(base: KnowledgeBase, tmp_path: Path) -> None:
    parts = "".join(f"## Part {n}\n\n{'It goes on and on here. ' * 30}\n\n" for n in range(3))
    text = f"# Logs\n\nlog.getLogger(name)\n\n{parts}## Parents\n\nRecords propagate upwards to "
    text += "the handlers of ancestors, unless that is switched off."
    base.add([written(tmp_path / "d", {"log.md": text})])
    (hit,) = base.search("do handlers of ancestors get what log.getLogger records", limit=1)
    assert "propagate upwards" in hit.snippet
    (hit,) = base.search("log.getLogger", limit=1)
    assert "log.getLogger(name)" in hit.snippet


def test_a_name_beside_other_words_does_not_outdo_them(base: KnowledgeBase, tmp_path: Path) -> None:
    texts = {
        "retry.py": "class Config:\n    def get(self): ...\n",
        "deploy.md": "# Deploying\n\nThe cluster restarts pods that time out; raise the deadline "
        "of the readiness probe, and Config.get works again.\n",
    }
    base.add([written(tmp_path / "d", texts)])
    question = "Config.get fails when the cluster restarts pods before the readiness deadline"
    assert paths(base, question)[0] == "deploy.md"
    assert paths(base, "Config.get")[0] == "retry.py"


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("os.path.join", ["os.path.join"]),
        ("is a.b like a.b or c.d()?", ["a.b", "c.d"]),
        ("https://example.com/a.html and me@example.com", []),
        ("Write. Then read. 3.11 is 0.1 + v2.x", ["v2.x"]),
        ("example.com.au/path ./a.b", []),
        ("a." * 3_000, []),
        ("x" * 100_000, []),
        ("\0.\0 \ud800.a", []),
    ],
)
def test_which_names_a_question_has(question: str, names: list[str]) -> None:
    assert dotted_names(question) == names


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("def join", "join"),
        ("class Path", "Path"),
        ("`join(a, b)`", "join"),
        ("Opening hours", "Opening hours"),
    ],
)
def test_what_a_heading_defines(heading: str, name: str) -> None:
    assert defined_in(heading) == name
