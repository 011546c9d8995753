"""Tools: their declaration, the registry of tools, and the execution of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of
from mlx_tools.tools.bound import BoundSource, BoundSources, BoundTool, MakeTool, SourceKind
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
    SCOPES,
    CacheScope,
    NestedReadCallCache,
    ReadCallCache,
    ToolResult,
    execute,
    to_text,
    whole_characters,
)
from mlx_tools.tools.exports import FORMATS, export, to_mcp, to_openai
from mlx_tools.tools.folder.collection import (
    OFF_REASON,
    ToolCollection,
    find_exposure,
    write_template,
)
from mlx_tools.tools.folder.definition import (
    FOLDER,
    ToolFolder,
    find_folders,
    read_folder,
    rename_folder,
)
from mlx_tools.tools.folder.folder_tool import load_tool
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
    NO_SUCH,
    EntryPointTools,
    Registry,
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

if TYPE_CHECKING:
    from mlx_tools.tools.mcp.client import (
        McpClients,
        ServerOffer,
        fetch_offer,
        log_path,
        mcp_read,
        read_prompt,
    )
    from mlx_tools.tools.mcp.places import (
        find_config_files,
        mask_place,
        read_place,
        read_servers,
        strip_comments,
    )
    from mlx_tools.tools.mcp.sign_in import tokens_path
    from mlx_tools.tools.openapi.address import find_server_fault
    from mlx_tools.tools.openapi.document import (
        OpenApiDocument,
        OperationRefused,
        read_document,
        with_effects,
    )
    from mlx_tools.tools.openapi.request import PLACE_FORM, make_operation, parse_secret

__getattr__, __dir__ = names_of(
    globals(),
    {
        "mcp.client": (
            "McpClients",
            "ServerOffer",
            "log_path",
            "fetch_offer",
            "mcp_read",
            "read_prompt",
        ),
        "mcp.places": (
            "find_config_files",
            "mask_place",
            "read_place",
            "strip_comments",
            "read_servers",
        ),
        "mcp.sign_in": ("tokens_path",),
        "openapi.address": ("find_server_fault",),
        "openapi.document": (
            "OpenApiDocument",
            "OperationRefused",
            "read_document",
            "with_effects",
        ),
        "openapi.request": ("PLACE_FORM", "make_operation", "parse_secret"),
    },
)
