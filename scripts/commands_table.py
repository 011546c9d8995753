"""Writes the table of programs into docs/commands.md, from the rules themselves.

python scripts/commands_table.py            write the table
python scripts/commands_table.py --check    exit 1 where it is out of date
"""

from __future__ import annotations

from typing import Final

from mlx_tools.toolbox.command_rules import Rule, rules
from scripts.stretch import Stretch

OPERANDS: Final = {"paths": "paths", "revisions": "commits, paths", "text": "text", "none": ""}


def table() -> str:
    """The table as Markdown."""
    lines = ["| program | what it does | takes | options |", "| --- | --- | --- | --- |"]
    for rule in rules().programs.values():
        shown = [rule, *rule.subcommands.values()]
        for one in shown[1:] if rule.subcommands else shown:
            cells = (f"`{one.name}`", one.about, _operands(one), _options(one))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _operands(rule: Rule) -> str:
    first = "what is looked for, " if rule.first else ""
    count = {None: "", 1: "one of ", 2: "two of " if rule.least == 2 else ""}.get(rule.most, "")
    return f"{first}{count}{OPERANDS[rule.operands]}"


def _options(rule: Rule) -> str:
    """Options by name; ``=`` after one that takes a value, ``[=]`` where it may be left out."""
    names = [*rule.flags, *(f"{name}=" for name in rule.values)]
    names += [f"{name}[=]" for name in rule.optional if name not in rule.flags]
    names += ["-NUMBER"] if rule.digits else []
    return f"`{' '.join(names)}`" if names else ""


STRETCH: Final = Stretch("commands.md", "table of programs", "commands_table.py", table)

if __name__ == "__main__":
    STRETCH.main()
