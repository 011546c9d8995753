"""Writes the table of settings into docs/configuration.md, from the settings themselves.

python scripts/settings_table.py            write the table
python scripts/settings_table.py --check    exit 1 where it is out of date
"""

from __future__ import annotations

from typing import Any, Final

from mlx_tools.app import config
from scripts.generated_part import GeneratedPart

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
    "more": "only more",
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
            f"`{key}`<br>{row.setting.help}",
            _code(defaults.get(key)),
            row.allowed(),
            f"`{row.env}`",
            f"`{row.setting.flag}`" if row.setting.flag else "",
            PROJECT[row.setting.project],
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _code(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, dict) and not value:
        return "`{}`"
    shown = list(value) if isinstance(value, tuple) else value
    return f"`{shown!r}`".replace("'", '"')


PART: Final = GeneratedPart("configuration.md", "table of settings", "settings_table.py", table)

if __name__ == "__main__":
    PART.main()
