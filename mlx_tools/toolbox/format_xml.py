"""``format_xml``: writes XML over several lines, and says what is wrong with what is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mlx_tools.toolbox.xml_lines import XmlFault, pretty
from mlx_tools.tools.tool import Tool, ToolError
from mlx_tools.tools.tool_words import words_of

NAME: Final = "format_xml"


def format_xml() -> Tool:
    """The tool. No document type is taken, so there are no entities to expand and no other files to
    be read; how deep elements stand and how long the result gets is limited."""
    words = words_of(NAME)

    def run(arguments: Mapping[str, Any]) -> str:
        try:
            return pretty(str(arguments["content"]))
        except XmlFault as fault:
            raise ToolError(words.notices[fault.kind].format(**fault.facts)) from None

    return Tool(words.spec(frozenset(("read",))), run)
