"""Writes the list of programs into docs/commands.md, from the rules themselves.

python scripts/commands_table.py            write the list
python scripts/commands_table.py --check    exit 1 where it is out of date
"""

from __future__ import annotations

from typing import Final

from mlx_tools.plugins.command.rules import load_rules
from scripts.generated_part import GeneratedPart


def table() -> str:
    """The names of the programs, and of the subcommands of those that have some."""
    programs = load_rules().values()
    alone = ", ".join(f"`{one.name}`" for one in programs if not one.subcommands)
    parts = [
        f"- `{one.name}`: {', '.join(f'`{name}`' for name in one.subcommands)}"
        for one in programs
        if one.subcommands
    ]
    return "\n".join([f"- {alone}", *parts])


PART: Final = GeneratedPart("commands.md", "table of programs", "commands_table.py", table)

if __name__ == "__main__":
    PART.main()
