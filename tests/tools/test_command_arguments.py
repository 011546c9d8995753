"""The rules' table, the arguments that are held to it, and the patterns that are expanded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.plugins.command.program_files import list_trusted_folders
from mlx_tools.plugins.command.rules import (
    MAX_ARGUMENTS,
    MAX_BYTES,
    MAX_MATCHES,
    PATH,
    check_arguments,
    expand,
    load_kinds,
    load_rules,
    make_plan,
)
from mlx_tools.store.roots import PathAbsent, PathRefused, Root, RootName
from scripts.commands_table import PART
from tests.tables import table
from tests.tools.file_calls import write_files

RULES = load_rules()


def words(name: str, *arguments: str) -> list[str]:
    return [word.text for word in check_arguments(RULES[name], arguments)]


def refused(name: str, *arguments: str) -> str:
    with pytest.raises(PathRefused) as caught:
        check_arguments(RULES[name], arguments)
    return str(caught.value)


@table(
    ("given", "made"),
    [
        (["head", "-n", "5", "a"], ["-n", "5", "--", "a"]),
        (["head", "a", "-n5"], ["-n5", "--", "a"]),
        (["head", "-5", "a"], ["-5", "--", "a"]),
        (["head", "-n", "-5", "a"], ["-n", "-5", "--", "a"]),
        (["head", "--lines=5", "--", "-a"], ["--lines=5", "--", "-a"]),
        (["tail", "-n", "+5", "a"], ["-n", "+5", "--", "a"]),
        (["ls"], []),
        (["ls", "-la", "--color=never"], ["-la", "--color=never"]),
        (["grep", "-rn", "x"], ["-rn", "--", "x"]),
        (["grep", "-e", "-x", "a"], ["-e", "-x", "--", "a"]),
        (["grep", "-inC2", "x", "a"], ["-inC2", "--", "x", "a"]),
        (["grep", "--", "-x", "a"], ["--", "-x", "a"]),
        (["sort", "-t", ",", "-k2,2n", "a"], ["-t", ",", "-k2,2n", "--", "a"]),
        (["cut", "-d,", "-f1-3", "a"], ["-d,", "-f1-3", "--", "a"]),
        (["find", "-name", "*.py"], [".", "-name", "*.py"]),
        (["find", "a", "b", "(", "-type", "f", ")", "-o", "-empty"], None),
        (["tree", "-L", "2"], ["-L", "2"]),
    ],
)
def test_arguments_come_out_in_an_order_that_has_one_meaning(
    given: list[str], made: list[str] | None
) -> None:
    assert words(*given) == (made if made is not None else given[1:])


@table(
    "given",
    [
        *(["sort", "-o", "out", "a"], ["sort", "-no", "out", "a"], ["sort", "--outp=out", "a"]),
        *(["sort", "--compress-program=sh", "a"], ["sort", "-k", "1;sh", "a"]),
        *(["find", ".", "-exec", "sh", ";"], ["find", ".", "-name", "x", "-delete"]),
        *(["find", "-L", "."], ["find", "--", "."], ["find", ".", "-name", "x", "y"]),
        *(["find", ".", "-maxdepth"], ["find", ".", "-type", "x"], ["grep", "-P", "(a+)+b", "a"]),
        *(["grep", "-f", "patterns", "a"], ["tail", "-f", "a"], ["tail", "-5f", "a"]),
        *(["uniq", "a", "out"], ["cat"], ["cat", "-"], ["cat", "a\0"], ["cat", "a\ud800"]),
        *(["cat", "--number=x", "a"], ["pwd", "x"], ["diff", "a"], ["git"]),
        *(["git", "-c", "a=b", "status"], ["git", "commit"], ["git", "log", "--output=x"]),
        *(["git", "log", "--format=%G?"], ["git", "log", "--pretty=tformat:%h %GS"]),
        *(["git", "diff", "--no-index", "a", "b"], ["git", "branch", "-d", "x"]),
        *(["git", "tag", "-d", "x"], ["git", "grep", "-Osh", "x"], ["git", "grep", "--", "x"]),
        ["git", "status", "--porcelai"],
    ],
    ids=" ".join,
)
def test_what_has_no_rule_is_refused(given: list[str]) -> None:
    assert refused(*given)


@table(
    "given",
    [
        *(["wc", "-l notes.txt"], ["head", "-n 5", "a"], ["git", "log -1"], ["git", "log", "-n 1"]),
        *(["grep", "--bad\tx", "a"], ["find", ".", "-name x"], ["find", ".", "-type", "f -o"]),
    ],
    ids=" ".join,
)
def test_several_words_in_one_argument_are_named_as_the_fault(given: list[str]) -> None:
    assert "give each word as an item of its own" in refused(*given)
    assert "item" not in refused("wc", "-lz")


def test_sizes_are_bounded() -> None:
    assert "more than" in refused("cat", *["a"] * (MAX_ARGUMENTS + 1))
    assert "longer than" in refused("cat", "a" * MAX_BYTES)


@given(
    st.sampled_from(sorted(RULES)),
    st.lists(
        st.one_of(st.text(max_size=12), st.from_regex(r"--?[A-Za-z=-]{1,12}", fullmatch=True))
    ),
)
def test_every_option_that_comes_out_stands_in_the_rule(name: str, arguments: list[str]) -> None:
    rule = RULES[name]
    try:
        made = check_arguments(rule, arguments)
    except PathRefused:
        return
    if rule.form != "options":
        return
    known = {*rule.flags, *rule.values, *rule.optional}
    texts = [word.text for word in made][len(rule.leading_words) :]
    options = texts[: texts.index("--")] if "--" in texts else texts
    skip = False
    for text in options:
        if skip:
            skip = False
        elif text.startswith("--"):
            assert text.partition("=")[0] in known
            skip = text in rule.values
        else:
            assert text[:2] in known or (rule.digits and text[1:].isdecimal())
            skip = f"-{text[-1]}" in rule.values and not any(
                f"-{c}" in (*rule.values, *rule.optional) for c in text[1:-1]
            )


def test_no_rule_lets_an_option_in_twice_or_names_a_kind_that_is_none() -> None:
    for top in RULES.values():
        for rule in (top, *top.subcommands.values()):
            both = [*rule.flags, *rule.values]
            assert len(both) == len(set(both)), rule.name
            assert rule.about
            assert {*rule.values.values(), *rule.optional.values()} <= {PATH, *load_kinds()}


def test_the_table_in_the_docs_is_that_of_the_rules() -> None:
    page, wanted = PART.render_page()
    assert page == wanted, "out of date: make docs"


# --- paths and patterns ---


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    names = ("src/a.py", "src/deep/b.py", "c.py", ".hidden/d.py", ".e.py", "[x].py", ".env")
    write_files(tmp_path, dict.fromkeys(names, ""))
    (tmp_path / "loop").symlink_to(".")
    opened = Root(RootName(str(tmp_path)))
    yield opened
    opened.close()


def globbed(root: Root, pattern: str) -> list[str]:
    return ["/".join(path) for path in expand(root, pattern.split("/"))]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        *(("*.py", ["[x].py", "c.py"]), ("?.py", ["c.py"]), ("[a-c].py", ["c.py"])),
        *(("[!c].py", []), ("*/*.py", ["src/a.py"])),
        ("**/*.py", ["[x].py", "c.py", "src/a.py", "src/deep/b.py"]),
        *(("**/**/b.py", ["src/deep/b.py"]), ("src/**", ["src/a.py", "src/deep", "src/deep/b.py"])),
        *((".*.py", [".e.py"]), (".e*", [".e.py"]), (".hidden/*", [".hidden/d.py"])),
        *(("loop/*.py", []), ("*/c.py", []), ("nothing*", [])),
    ],
)
def test_a_pattern_matches_what_a_shell_would(root: Root, pattern: str, found: list[str]) -> None:
    assert globbed(root, pattern) == found


def test_a_pattern_that_matches_too_much_is_refused_and_many_stars_take_no_longer(
    root: Root,
) -> None:
    (root.path / ("a" * 200)).write_text("")
    assert globbed(root, "*a" * 60 + "b") == []
    assert globbed(root, "/".join(["**"] * 50 + ["c.py"])) == ["c.py"]
    write_files(root.path, {f"{number}.txt": "" for number in range(MAX_MATCHES + 1)})
    with pytest.raises(PathRefused, match="more than"):
        globbed(root, "*.txt")


Planned = Callable[..., list[str]]


@pytest.fixture
def planned(root: Root) -> Planned:
    def made(*given: str) -> list[str]:
        argv = make_plan(RULES, list_trusted_folders(), [root], given[0], given[1:]).argv
        return list(argv[1:])

    return made


def test_paths_are_written_so_that_no_program_misreads_them(planned: Planned, root: Root) -> None:
    for name in ("-rf", "@x", "+5", "(", "!"):
        assert planned("cat", "--", name) == ["--", f"./{name}"]
    assert planned("cat", str(root.path / "c.py")) == ["--", "c.py"]
    assert planned("cat", "src//./a.py") == ["--", "src/a.py"]
    assert planned("ls", str(root.path)) == ["--", "."]
    assert planned("cat", "[x].py") == ["--", "[x].py"]


@pytest.mark.parametrize(
    "path", ["..", "src/../../x", "/etc/passwd", "", ".env", "src/.ssh/id", "{root}-evil/x"]
)
def test_a_path_outside_or_private_is_refused(planned: Planned, root: Root, path: str) -> None:
    path = path.format(root=root.path)
    with pytest.raises(PathRefused):
        planned("cat", path)
    if path:
        with pytest.raises(PathRefused):
            planned("find", ".", "-newer", path)


def test_a_pattern_is_expanded_only_where_a_path_may_stand(planned: Planned) -> None:
    assert planned("grep", "c*", "c.py") == ["--", "c*", "c.py"]
    assert planned("find", "s*", "-name", "*.py") == ["src", "-name", "*.py"]
    with pytest.raises(PathAbsent, match="no file matches"):
        planned("cat", "*.txt")


def test_an_option_whose_value_may_be_left_out_takes_nothing_that_follows_it() -> None:
    assert words("git", "log", "-pU", "HEAD")[-2:] == ["-pU", "HEAD"]
    assert words("git", "log", "-U", "HEAD")[-2:] == ["-U", "HEAD"]
    assert words("git", "log", "HEAD", "-pU")[-2:] == ["-pU", "HEAD"]
