"""The table of settings in the documentation is that of the code."""

from __future__ import annotations

from scripts.generated_part import ROOT
from scripts.settings_table import PART


def test_the_table_in_the_docs_is_that_of_the_settings() -> None:
    page, wanted = PART.render_page()
    assert page == wanted, "out of date: make docs"


def test_the_default_file_holds_every_setting_or_names_it_in_a_comment() -> None:
    from mlx_tools.app import config

    text = (ROOT / "config" / "default.toml").read_text(encoding="utf-8")
    for key in config.table():
        name = key.rpartition(".")[2]
        assert f"\n{name} = " in text or f"\n# {name} = " in text
