"""Full traces: private, never through a link, and no trouble for the run."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.cli.ask import FullTrace
from mlx_tools.errors import UsageError
from mlx_tools.testing import ScriptedServer, answer, call
from tests.controller.full_disk import file_size_limit

CALCULATION = (call("calculator", expression="17 * 23"), answer("It is 391."))


def ask(run: Any, *script: Any, options: tuple[str, ...] = ()) -> Any:
    with ScriptedServer(*script) as server:
        return run("ask", "--url", server.url, *options)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [None, 0o644, 0o666, 0o400])
def test_the_file_is_the_owners_alone_whatever_it_was_before(
    tmp_path: Path, before: int | None
) -> None:
    path = tmp_path / "trace"
    if before is not None:
        path.write_text("old and longer than what comes now")
        path.chmod(before)
        if before == 0o400 and os.geteuid() != 0:
            path.chmod(0o600)  # who may not write it is told so, as for any file
    old = os.umask(0)
    try:
        with FullTrace(path) as trace:
            assert (mode(path), path.read_bytes()) == (0o600, b"")
            trace.write("x", text="secret")
    finally:
        os.umask(old)
    assert mode(path) == 0o600
    assert json.loads(path.read_text())["text"] == "secret"


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "read fifo", "folder", "device"])
def test_what_is_no_regular_file_is_refused_and_untouched(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "trace", tmp_path / "target"
    reader = None
    if kind == "link":
        target.write_text("mine")
        target.chmod(0o644)
        path.symlink_to(target)
    elif kind == "dangling":
        path.symlink_to(target)
    elif kind.endswith("fifo"):
        os.mkfifo(path, 0o644)
        if kind == "read fifo":
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    elif kind == "folder":
        path.mkdir(0o755)
    else:
        path = Path("/dev/null")
    before = mode(path) if kind != "dangling" else None
    with pytest.raises(UsageError, match="--full-trace"):
        FullTrace(path)
    if reader is not None:
        os.close(reader)
    assert before is None or mode(path) == before
    if kind == "link":
        assert (target.read_text(), mode(target)) == ("mine", 0o644)
    assert kind != "dangling" or not target.exists()


def test_where_the_disk_is_full_the_trace_says_so_and_nothing_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with file_size_limit(1000), FullTrace(path) as trace:
        trace.write("x", text="a")
        assert trace.problem is None
        trace.write("x", text="b" * 5000)
        trace.write("x", text="c")
        assert trace.problem is not None and "incomplete" in trace.problem
    assert path.stat().st_size <= 1000
    assert json.loads(path.read_text().splitlines()[0])["text"] == "a"


def test_no_secret_stands_in_a_trace(run: Any) -> None:
    key = "ghp_" + "a1B2" * 9
    result = ask(run, answer(f"It is {key}."), options=(f"Is {key} mine?", "--full-trace", "trace"))
    assert key in result.out and key not in Path("trace").read_text()


def test_a_trace_holds_prompts_outputs_and_counters(run: Any) -> None:
    with ScriptedServer(*CALCULATION) as server:
        options = ("What is 17 * 23?", "--full-trace", "trace")
        assert run("ask", "--url", server.url, *options).code == 0
    lines = [json.loads(line) for line in Path("trace").read_text().splitlines()]
    assert [x["request"]["prompt"] for x in lines if x["kind"] == "request"] == server.prompts
    assert lines[-1]["outcome"]["calls"][0]["output"] == "391"
    assert lines[-1]["counters"]["tools"]["calculator"]["ok"] == 1
    assert lines[-1]["counters"]["completions"] == 2


def test_without_being_asked_no_output_is_printed_and_no_trace_written(run: Any) -> None:
    Path("note.txt").write_text("x" * 9000 + "the end")
    script = (call("file_access", operation="read", path="note.txt"), answer("Read."))
    for option in ("--json", "--events"):
        result = ask(run, *script, options=("Read it", "--root", ".", option))
        assert "x" * 300 not in result.out and "the end" not in result.out
        outcome = result.lines[-1].get("outcome", result.lines[-1])
        (made,) = outcome["calls"]
        assert made["output_omitted"] is True and "output" not in made
        assert made["output_size_chars"] == 9007
    assert [path.name for path in Path().iterdir()] == ["note.txt"]
    wanted = ("Read it", "--root", ".", "--json", "--include-outputs")
    (made,) = ask(run, *script, options=wanted).json["calls"]
    assert "x" * 300 in made["output"] and made["output_omitted"] is False


def test_the_whole_of_a_long_output_is_named_and_is_where_it_is_said(run: Any) -> None:
    Path("note.txt").write_text("x" * 9000 + "the end")
    script = (call("file_access", operation="read", path="note.txt"), answer("Read."))
    value = ask(run, *script, options=("Read it", "--root", ".", "--json")).json
    folder = Path(value["transcript"]).parent / "artifacts"
    kept = folder / value["calls"][0]["artifact"]
    assert kept.read_text() == "x" * 9000 + "the end"
    assert (mode(kept), mode(folder)) == (0o600, 0o700)
