"""docs/chat.md: its pictures show what a terminal shows."""

from __future__ import annotations

import re

import pytest

from scripts.chat_screens import FOLDER, picture, read_shown_text, screens


@pytest.mark.heavy
def test_each_picture_is_on_the_page_and_shows_what_is_shown_now() -> None:
    page = FOLDER.with_name("chat.md").read_text(encoding="utf-8")
    drawn = set()
    for name, terminal in screens():
        kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert read_shown_text(picture(terminal.drawn, name)) == read_shown_text(kept), (
            f"{name} is out of date: make docs"
        )
        drawn.add(name)
    assert set(re.findall(r"\(screens/(\w+)\.svg\)", page)) == drawn
    assert {path.stem for path in FOLDER.iterdir()} == drawn
