"""Writes the table of settings into docs/configuration.md, from the settings themselves.

python scripts/settings_table.py            write the table
python scripts/settings_table.py --check    exit 1 where it is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from mlx_tools import config

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
BEGIN: Final = "<!-- table of settings: written by scripts/settings_table.py -->"
END: Final = "<!-- end of the table of settings -->"

PROJECT: Final = {
    "never": "no",
    "any": "yes",
    "only_true": "only `true`",
    "only_false": "only `false`",
    "lower": "only lower",
    "rarer": "only lower, and more",
    "stricter": "only stricter",
    "allow": "only fewer",
    "add": "yes, adds",
}


def table() -> str:
    """The table as Markdown."""
    defaults = config.defaults().values
    lines = [
        "| setting | default | allowed | environment | option | project's file may set it |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for key, row in config.table().items():
        cells = (
            f"`{key}`<br>{row.description}",
            _code(defaults.get(key)),
            row.allowed(),
            f"`{row.env}`",
            f"`{row.setting.flag}`" if row.setting.flag else "",
            PROJECT[row.setting.project],
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def page_with_table(page: str) -> str:
    """The page with today's table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _code(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, dict) and not value:
        return "`{}`"
    shown = list(value) if isinstance(value, tuple) else value
    return f"`{shown!r}`".replace("'", '"')


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` say whether it is up to date."""
    page = PAGE.read_text(encoding="utf-8")
    wanted = page_with_table(page)
    if arguments == ["--check"]:
        if page != wanted:
            print(f"{PAGE.name} is out of date: run {Path(__file__).name}", file=sys.stderr)
        return int(page != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
