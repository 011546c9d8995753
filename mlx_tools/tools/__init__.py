"""Tools: their declaration, the registry of tools, and the execution of calls."""

from __future__ import annotations

from mlx_tools.tools.bound import (
    BoundSource,
    BoundSources,
    BoundTool,
    MakeTool,
    SourceKind,
    is_local,
)
from mlx_tools.tools.context import (
    MAX_ERROR_CHARS,
    MAX_LONG_ERROR_CHARS,
    OnProgress,
    Progress,
    ToolContext,
    ToolError,
    current_context,
)
from mlx_tools.tools.executor import (
    MAX_OUTPUT_CHARS,
    CacheScope,
    NestedReadCallCache,
    ReadCallCache,
    ToolResult,
    execute,
    to_text,
    whole_characters,
)
from mlx_tools.tools.exports import FORMATS, export, to_mcp, to_openai
from mlx_tools.tools.finder import Finder, rarity_factor
from mlx_tools.tools.functions import load_functions
from mlx_tools.tools.host_tools import (
    DEFAULT_LIMIT,
    ToolSearch,
    Words,
    artifacts_off_reason,
    find_tools,
    load_words,
    read_artifact,
    tool_search,
)
from mlx_tools.tools.registry import (
    FOLDER,
    NO_SUCH,
    Registry,
    ToolOffer,
    find_entry_points,
)
from mlx_tools.tools.signature import InvalidArguments
from mlx_tools.tools.threads import submit
from mlx_tools.tools.tool import (
    EffectsBy,
    Preview,
    Tool,
    ToolLike,
    disable_tool,
    make_preview,
    tool,
)
from mlx_tools.tools.user_choices import (
    LOCK_SECONDS,
    OFF_REASON,
    UserChoices,
    UserChoicesFile,
    find_exposure,
)
