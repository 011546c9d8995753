"""Golden transcripts are told from all other files by the beginning of their first two lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlx_tools.golden.plugin import is_golden

HEADER = '{"type":"header","session":"s"}'
GOLDEN = '{"type":"golden","name":"n"}'


def is_one(folder: Path, data: bytes | str) -> bool:
    path = folder / "x.jsonl"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return is_golden(path)


@pytest.mark.parametrize(
    "text",
    [
        f"{HEADER}\n{GOLDEN}\n",
        f"{HEADER}\r\n{GOLDEN}\r\n",
        f"{HEADER}\n{GOLDEN}\nwhat is not JSON\n",
        f'{HEADER}\n{{"type":"golden","na',
        '{ "type" : "header" }\n {"type" : "golden"}',
        f'{{"type":"header","system":"{"long " * 60_000}"}}\n{GOLDEN}\n',
    ],
)
def test_a_golden_transcript_is_one_whatever_follows(tmp_path: Path, text: str) -> None:
    assert is_one(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "{}", "[]\n[]\n", "\x00\xff\x00", "null\nnull\n", HEADER, f"{HEADER}\n"),
        f"{GOLDEN}\n{HEADER}\n",
        f'{HEADER}\n{{"type":"user","content":"golden"}}\n',
        f'{HEADER}\n{{"type":"user","content":"\\"type\\":\\"golden\\""}}\n',
        f'{{"rows":[{{"type":"header"}}]}}\n{GOLDEN}\n',
        f"{HEADER}\n\n{GOLDEN}\n",
        f'{{"a":"header","b":{"[" * 9000}\n{GOLDEN}\n',
        f'{{"x":"{"long " * 60_000}"}}\n{GOLDEN}\n',
        f'{{"type":"header","system":"{"long " * 60_000}',
        f"{HEADER}\n[1]\n{GOLDEN}\n",
    ],
)
def test_another_file_is_none(tmp_path: Path, text: str) -> None:
    assert not is_one(tmp_path, text)


def test_what_cannot_be_read_is_none_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jsonl")
    (tmp_path / "gone.jsonl").symlink_to("nowhere")
    (tmp_path / "round.jsonl").symlink_to("round.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("fifo", "gone", "round", "folder", "missing", "nul\0"):
        assert not is_golden(tmp_path / f"{name}.jsonl")


def test_of_a_huge_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.jsonl"
    for start in (b"", b'{"type":"header"'):
        with path.open("wb") as file:
            file.write(start)
            file.truncate(1 << 40)
        assert not is_golden(path)
