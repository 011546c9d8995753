"""Rendering of a transcript as a model's prompt. Pure: no file, clock or socket."""

from mlx_tools.prompt.catalog import MIN_SHOWN_TOOLS, build_catalog, one_line, signature
from mlx_tools.prompt.chat_format import NAMED_FORMATS, ChatFormat, format_for_name
from mlx_tools.prompt.chat_template import format_from_template, render_template
from mlx_tools.prompt.compaction import (
    Cut,
    Placeholders,
    compact_prompt,
    conversation_text,
    count_turns,
    cut_all_turns,
    cut_to_fit,
    cut_to_sum_up,
    may_leave,
    replacements,
)
from mlx_tools.prompt.descriptions import (
    ShorterTools,
    parameter_descriptions,
    shorten_descriptions,
)
from mlx_tools.prompt.known_tools import (
    READER,
    SEARCH,
    KnownTools,
    RankTools,
    ToolRanking,
    is_on_demand,
    is_reader,
    is_search,
)
from mlx_tools.prompt.native_messages import ChatMessage, native_messages, neutralise_value
from mlx_tools.prompt.neutralise import Neutraliser
from mlx_tools.prompt.opening import (
    CATALOG_BUDGET,
    Frame,
    Opening,
    Openings,
    build_examples,
    build_system,
    result_tool,
)
from mlx_tools.prompt.render import Prompt, new_prompt
from mlx_tools.prompt.result_tool import ResultTool, holds_result
from mlx_tools.prompt.stems import HUMP, is_common, stem, stems
from mlx_tools.prompt.words import (
    FILES,
    GAP,
    MESSAGES,
    PROMPTED_STYLES,
    RESULT,
    PromptWords,
    fill,
    parse_words,
    parts,
)
