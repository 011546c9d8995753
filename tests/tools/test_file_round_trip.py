"""Written text is read back as it was, or refused in words; a failed write leaves the old."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.tools import Registry, Tool, ToolError
from tests.suites import naughty_strings
from tests.tools.file_calls import list_names, make_fast_folder

FIXTURE = [HealthCheck.function_scoped_fixture]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with make_fast_folder(tmp_path) as made:
        yield made


def called(files: Registry, operation: str, path: str, content: str | None = None) -> str:
    """The result of a call. Raises ToolError."""
    tool = files.get("create_file" if operation == "create" else "file_access")
    assert isinstance(tool, Tool)
    arguments = {"operation": operation, "path": path, "content": content}
    return str(tool.blocking(arguments))


ENDS = ("\r\n", "\n", "\r", "\u2028", "\x85", "a", "\ufeff", "\0")
ANY = st.one_of(
    st.text(),
    st.text(st.characters(categories=("Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Lo", "Mn"))),
    st.lists(st.sampled_from(ENDS)).map("".join),
)


@given(text=ANY)
@settings(suppress_health_check=FIXTURE)
def test_a_text_is_read_back_as_it_was_written(folder: Path, text: str) -> None:
    assert is_kept(folder, text) == (
        not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)
        and not text.startswith("\ufeff")
    )


def is_kept(folder: Path, text: str) -> bool:
    """Return True if a text may be written; either way the files are as they must be then."""
    files = builtin_tools([f"{folder}:rw"])
    (folder / "a.txt").write_text("old")
    allowed = set()
    for operation, path in (("write", "a.txt"), ("create", "b.txt")):
        try:
            called(files, operation, path, text)
        except ToolError as error:
            assert error.code == "invalid_arguments" and "holds" in str(error)
            assert called(files, "read", "a.txt") == "old"
            assert not (folder / "b.txt").exists()
            allowed.add(False)
        else:
            assert called(files, "read", path) == text
            assert (folder / path).read_bytes() == text.encode()
            allowed.add(True)
    (kept,) = allowed
    assert list_names(folder) == (["a.txt", "b.txt"] if kept else ["a.txt"])
    (folder / "b.txt").unlink(missing_ok=True)
    return kept


def test_naughty_strings_are_contents_like_any_other(folder: Path) -> None:
    refused = [text for text in naughty_strings() if not is_kept(folder, text)]
    assert len(refused) < 5
    assert all(text.startswith("\ufeff") or "\0" in text for text in refused)


def test_naughty_strings_as_names_make_that_file_or_are_refused(folder: Path) -> None:
    base = folder / "data"
    base.mkdir()
    files = builtin_tools([f"{base}:rw"])
    made = 0
    for name in naughty_strings():
        before = {path for path in folder.rglob("*") if path.is_file()}
        try:
            called(files, "create", name, name.lstrip("\ufeff").replace("\0", ""))
        except ToolError as error:
            assert str(error)
            assert {path for path in folder.rglob("*") if path.is_file()} == before
            continue
        made += 1
        (new,) = {path for path in folder.rglob("*") if path.is_file()} - before
        walked = [step for step in name.split("/") if step not in ("", ".")]
        assert list(new.relative_to(base).parts) == walked
        assert called(files, "read", name) == name.lstrip("\ufeff").replace("\0", "")
        called(files, "delete", name)
        assert not new.exists()
    assert made > 300
    assert list_names(folder) == ["data"]
