"""From a transcript to the text that a model goes on from. Pure: no file, clock or socket."""

from mlx_tools.prompt.builder import CATALOG_BUDGET, SystemPrompt, build_system
from mlx_tools.prompt.catalog import Catalog, build_catalog, count_tokens, signature
from mlx_tools.prompt.chat_format import NAMED_FORMATS, ChatFormat, format_for_name
from mlx_tools.prompt.examples import Turn, build_examples
from mlx_tools.prompt.neutralise import Neutraliser
from mlx_tools.prompt.probe import format_from_template
from mlx_tools.prompt.render import Prompt
from mlx_tools.prompt.words import PromptWords, parse_words

__all__ = [
    "CATALOG_BUDGET",
    "NAMED_FORMATS",
    "Catalog",
    "ChatFormat",
    "Neutraliser",
    "Prompt",
    "PromptWords",
    "SystemPrompt",
    "Turn",
    "build_catalog",
    "build_examples",
    "build_system",
    "count_tokens",
    "format_for_name",
    "format_from_template",
    "parse_words",
    "signature",
]
