"""From a transcript to the text that a model goes on from. Pure: no file, clock or socket."""

from mlx_tools.prompt.builder import CATALOG_BUDGET, SystemPrompt, build_system
from mlx_tools.prompt.catalog import Catalog, build_catalog, count_tokens, signature
from mlx_tools.prompt.chat_format import NAMED_FORMATS, ChatFormat, format_for_name
from mlx_tools.prompt.chat_template import format_from_template
from mlx_tools.prompt.compaction import (
    Cut,
    Stand,
    cut_at_rest,
    cut_to_fit,
    cut_to_sum_up,
    may_leave,
    retold,
    tried,
    turns_of,
    worded,
)
from mlx_tools.prompt.examples import ExampleTurn, build_examples
from mlx_tools.prompt.finder import (
    READER,
    SEARCH,
    Finder,
    is_reader,
    is_search,
    told_when_needed,
)
from mlx_tools.prompt.known_tools import KnownTools
from mlx_tools.prompt.neutralise import Neutraliser
from mlx_tools.prompt.opening import Frame, Opening, Openings, Said, read_history
from mlx_tools.prompt.render import Prompt
from mlx_tools.prompt.words import PromptWords, parse_words

__all__ = [
    "CATALOG_BUDGET",
    "NAMED_FORMATS",
    "READER",
    "SEARCH",
    "Catalog",
    "ChatFormat",
    "Cut",
    "ExampleTurn",
    "Finder",
    "Frame",
    "KnownTools",
    "Neutraliser",
    "Opening",
    "Openings",
    "Prompt",
    "PromptWords",
    "Said",
    "Stand",
    "SystemPrompt",
    "build_catalog",
    "build_examples",
    "build_system",
    "count_tokens",
    "cut_at_rest",
    "cut_to_fit",
    "cut_to_sum_up",
    "format_for_name",
    "format_from_template",
    "is_reader",
    "is_search",
    "may_leave",
    "parse_words",
    "read_history",
    "retold",
    "signature",
    "told_when_needed",
    "tried",
    "turns_of",
    "worded",
]
